use super::*;
use crate::authority::{Authority, LEAF_LIFE};
use crate::handshake::StaticKey;
use crate::id::{Id, TrustDomain};
use crate::key::SigningKey;

const NOW: u64 = 1_900_000_000_000;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(NOW)
}

/// An authority, and an end that it certifies.
struct World {
    authority: Authority,
    roots: Roots,
    id: Id,
    own: Credentials,
    certified: Certified,
}

fn end(authority: &Authority, id: &Id, from: SystemTime) -> Credentials {
    let signer = SigningKey::generate();
    let chain = authority.issue(id, &[], &signer.public(), (from, LEAF_LIFE)).unwrap();
    Credentials::new(StaticKey::generate(), signer, chain, Vec::new()).unwrap()
}

impl World {
    fn new() -> Self {
        let domain = TrustDomain::new("shop.example").unwrap();
        let authority = Authority::new(&domain, now()).unwrap();
        let mut roots = Roots::default();
        authority.trusted(&mut roots).unwrap();
        let id = domain.service("web").unwrap();
        let own = end(&authority, &id, now());
        let certified = roots.verify(own.chain(), now()).unwrap();
        Self { authority, roots, id, own, certified }
    }
}

fn said() -> Said {
    Said {
        way: Way::Reply,
        channel: [1; DIGEST],
        call: 2,
        number: 3,
        time: NOW,
        name: "billing".into(),
        method: "/shop.v1.Billing/Charge".into(),
        compressed: false,
        message: sha256(b"message"),
        requests: Requests { count: 1, digest: [5; DIGEST] },
    }
}

/// A signature as it goes over a channel.
fn sent(signature: &Signature) -> Vec<u8> {
    let mut bytes = Vec::new();
    signature.put(&mut bytes);
    assert_eq!(bytes.len(), signature.bytes());
    bytes
}

#[test]
fn a_message_is_that_of_who_has_signed_it() {
    let world = World::new();
    let bytes = sent(&said().sign(&world.own));
    assert!(bytes.len() <= SIGNATURE_BYTES);
    let signature = Signature::take(&bytes, None).unwrap();
    assert_eq!((signature.call, signature.time, signature.requests), (2, NOW, 1));
    let again = Signature::take(&bytes, Some(signature.chain())).unwrap();
    assert!(Arc::ptr_eq(again.chain(), signature.chain()), "the chain is kept twice");
    let receipt = signature.check(said(), &world.certified, now()).unwrap();
    assert_eq!(receipt.verify(&world.roots).unwrap().id, world.id);
    assert_eq!(receipt.time(), now());
}

/// Each field of what was said, changed.
#[test]
fn a_signature_is_of_all_that_was_said() {
    type Change = fn(&mut Said);
    let world = World::new();
    let changes: [(&str, Change); 12] = [
        ("way", |said| said.way = Way::Request),
        ("channel", |said| said.channel[31] ^= 1),
        ("call", |said| said.call += 1),
        ("number", |said| said.number += 1),
        ("time", |said| said.time += 1),
        ("name", |said| said.name = "billing/".into()),
        ("method", |said| said.method = "shop.v1.Billing/Charge".into()),
        ("moved", |said| (said.name, said.method) = ("billing/shop".into(), ".v1".into())),
        ("compressed", |said| said.compressed = true),
        ("message", |said| said.message[0] ^= 1),
        ("requests", |said| said.requests.count += 1),
        ("their digest", |said| said.requests.digest[0] ^= 1),
    ];
    for (what, change) in changes {
        let mut other = said();
        change(&mut other);
        assert_ne!(other.encoded(), said().encoded(), "{what}");
        let refused = said().sign(&world.own).check(other, &world.certified, now()).unwrap_err();
        assert_eq!(refused, MessageError::Altered(world.id.to_string()), "{what}");
    }
}

#[test]
fn a_signature_that_was_altered_or_cut_is_none() {
    let world = World::new();
    let bytes = sent(&said().sign(&world.own));
    let chain = Signature::take(&bytes, None).unwrap().chain;
    for at in 0..bytes.len() {
        assert!(Signature::take(&bytes[..at], None).is_err(), "{at}");
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let Ok(taken) = Signature::take(&changed, Some(&chain)) else { continue };
        // What it says is compared with what the receiver has; the rest does not fit.
        let numbers = (taken.call, taken.time, taken.requests);
        if numbers == (2, NOW, 1) && taken.chain == chain {
            assert!(taken.check(said(), &world.certified, now()).is_err(), "{at}");
        }
    }
    let long = [&bytes[..], &[0]].concat();
    let refused = Signature::take(&long, None).unwrap_err();
    assert_eq!(refused, MessageError::Malformed("there are bytes behind it"));
    let refused = Signature::take(&vec![1; SIGNATURE_BYTES + 1], None).unwrap_err();
    assert_eq!(refused, MessageError::Malformed("it is too long"));
    assert!(Signature::take(&[&[1][..], &[0; 24], &[0, 0, 0]].concat(), None).is_err());
}

#[test]
fn a_receipt_holds_for_who_trusts_the_root() {
    let world = World::new();
    let receipt = said().sign(&world.own).check(said(), &world.certified, now()).unwrap();
    let json = receipt.to_json();
    let again = Receipt::from_json(&json).unwrap();
    assert_eq!(again, receipt);
    assert_eq!(again.verify(&world.roots).unwrap().id, world.id);
    let other = World::new();
    let refused = again.verify(&other.roots).unwrap_err();
    assert!(matches!(refused, MessageError::Certificate(_)), "{refused}");
    // Every field of it, changed to another text or number.
    for (field, value) in json.as_object().unwrap() {
        let mut changed = json.clone();
        changed[field] = match value {
            serde_json::Value::String(text) if text.len() > 8 => {
                let first = if text.starts_with('0') { "1" } else { "0" };
                format!("{first}{}", &text[1..]).into()
            }
            serde_json::Value::String(text) if text == "reply" => "request".into(),
            serde_json::Value::String(text) => format!("{text}!").into(),
            serde_json::Value::Number(number) => (number.as_u64().unwrap() ^ 1).into(),
            serde_json::Value::Bool(bool) => (!bool).into(),
            _ => serde_json::json!([]),
        };
        let believed =
            Receipt::from_json(&changed).ok().and_then(|it| it.verify(&world.roots).ok());
        assert_eq!(believed, None, "{field}");
        let mut less = json.clone();
        less.as_object_mut().unwrap().remove(field);
        assert!(Receipt::from_json(&less).is_err(), "{field}");
    }
}

#[test]
fn a_receipt_is_of_a_time_at_which_the_certificate_held() {
    let world = World::new();
    let late = Said { time: NOW + LEAF_LIFE.as_millis() as u64 + 1000, ..said() };
    let signature = late.sign(&world.own);
    let refused = signature.clone().check(late.clone(), &world.certified, now()).unwrap_err();
    assert_eq!(refused, MessageError::Time { id: world.id.to_string() }, "it is to come");
    let after = now() + LEAF_LIFE + Duration::from_secs(1);
    let refused = signature.clone().check(late.clone(), &world.certified, after).unwrap_err();
    assert!(matches!(refused, MessageError::Certificate(CertificateError::Expired { .. })));
    let early = Said { time: NOW - 1000 * 3600, ..said() };
    let refused = early.sign(&world.own).check(early, &world.certified, now()).unwrap_err();
    assert_eq!(refused, MessageError::Time { id: world.id.to_string() }, "it was before");
    let chain = Arc::clone(signature.chain());
    let receipt = Receipt::new(late, signature.signature.clone(), chain);
    let refused = receipt.verify(&world.roots).unwrap_err();
    assert_eq!(refused, MessageError::Time { id: world.id.to_string() });
    // With the next certificate.
    let next = end(&world.authority, &world.id, now() + LEAF_LIFE);
    let certified = world.roots.verify(next.chain(), now() + LEAF_LIFE).unwrap();
    let late = receipt.said.clone();
    let receipt = late.sign(&next).check(late, &certified, after).unwrap();
    assert_eq!(receipt.verify(&world.roots).unwrap().id, world.id);
}

#[test]
fn requests_have_a_digest_of_all_of_them_in_their_order() {
    let request = |number, text: &[u8]| Said {
        way: Way::Request,
        number,
        message: sha256(text),
        requests: Requests::default(),
        ..said()
    };
    let of = |texts: &[&[u8]]| {
        let numbered = texts.iter().zip(0..);
        numbered.fold(Requests::default(), |all, (text, number)| all.and(&request(number, text)))
    };
    let all = of(&[b"one", b"two"]);
    assert_eq!(all.count, 2);
    for others in [&[&b"two"[..], b"one"][..], &[b"one"], &[b"one", b"two", b"two"], &[]] {
        assert_ne!(of(others).digest, all.digest);
    }
    assert_eq!(of(&[b"one", b"two"]), all);
}
