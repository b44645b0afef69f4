//! Which links are sealed, what their ends are told, and who is certified.

use partywall_abi::control::{Root, Sealing, TrustMessage};
use partywall_abi::security::Seal;
use partywall_trust::{Chain, Roots, SigningKey, TrustDomain};

use super::*;
use crate::trust::{Clock, Trust};

/// A policy in which links to `g` are sealed so.
fn sealing(seal: &str) -> State {
    let mut s = under(&format!(
        "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
         [service.g]\nregister = ['server']\nseal = '{seal}'\n\
         [service.g.call]\nweb = ['*']\nanyone = ['a.B/C']\n[sealing]\nsuite = 'aes-256-gcm'"
    ));
    s.trust(Trust::for_this_run("a.example", Clock::now()).unwrap());
    s
}

fn admit_able(s: &mut State, uid: u32, capabilities: Capabilities) -> Conn {
    let facts = facts(uid);
    let usage = s.account(&facts);
    let conn = s.opened(facts, usage, Spoken { capabilities, ..SPOKEN });
    s.take_effects();
    conn
}

/// What the server is told of a link that a caller asks for.
fn offered_to(s: &mut State, web: Conn) -> (Seal, Option<Sealing>) {
    match &connect(s, web)[..] {
        [Effect::Offer { message: Message::Link(LinkMessage::Offer { terms, .. }), .. }] => {
            (terms.security.seal, terms.sealing.as_deref().cloned())
        }
        other => panic!("no offer: {other:?}"),
    }
}

#[test]
fn both_ends_of_a_sealed_link_are_told_the_same() {
    for wish in ["required", "prefer"] {
        let mut s = sealing(wish);
        let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
        register(&mut s, server);
        let (seal, told) = offered_to(&mut s, web);
        let expected = Sealing {
            caller: "spiffe://a.example/service/web".into(),
            server: "spiffe://a.example/service/server".into(),
            name: "g".into(),
            policy: 1,
            suite: 2,
            classes: false,
        };
        assert_eq!((seal, told.as_ref()), (Seal::Sealed, Some(&expected)), "{wish}");
        let (link, security) = (1, s.links[&1].security);
        let adopted = Message::Link(LinkMessage::Adopted { link, security });
        s.message(server, adopted, Instant::now());
        let callers = s.take_effects().into_iter().find_map(|effect| match effect {
            Effect::Link { message: Message::Link(LinkMessage::Linked { terms, .. }), .. } => {
                Some(terms)
            }
            _ => None,
        });
        assert_eq!(callers.unwrap().sealing.as_deref(), Some(&expected), "{wish}");
        // A process that is no principal has its user's name, and another policy another number.
        let policy = s.policy().clone();
        s.reload(policy, None, Instant::now());
        let stranger = admit_able(&mut s, 7, Capabilities::OWN);
        let (_, told) = offered_to(&mut s, stranger);
        let told = told.unwrap();
        assert_eq!((&told.caller[..], told.policy), ("spiffe://a.example/user/7", 2));
    }
}

#[test]
fn a_link_whose_end_cannot_seal_is_plain_or_refused() {
    let without = Capabilities::OWN.without(Capabilities::SEAL);
    for (servers, webs) in [(without, Capabilities::OWN), (Capabilities::OWN, without)] {
        for wish in ["prefer", "off", "required"] {
            let mut s = sealing(wish);
            let server = admit_able(&mut s, 1, servers);
            let web = admit_able(&mut s, 2, webs);
            register(&mut s, server);
            if wish != "required" {
                assert_eq!(offered_to(&mut s, web), (Seal::Off, None), "{wish}");
                continue;
            }
            let effects = connect(&mut s, web);
            let (code, text) = refused(&effects);
            assert_eq!(code, PERMISSION_DENIED, "{text}");
            let says = "seal `sealed` is required, and there is `off`; remedy: build both ends with a release";
            assert!(text.contains(says), "{text}");
        }
    }
    let mut s = sealing("off");
    let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
    register(&mut s, server);
    assert_eq!(offered_to(&mut s, web), (Seal::Off, None));
}

/// A plain link is none that a policy that requires more lets go on.
#[test]
fn a_plain_link_ends_when_the_policy_requires_a_sealed_one() {
    let mut s = sealing("off");
    let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
    register(&mut s, server);
    let (link, _) = link(&mut s, web);
    let strict = sealing("required").policy().clone();
    let changed = s.reload(strict, None, Instant::now());
    assert_eq!(changed.ended, 1);
    assert!(!s.links[&link].open);
}

/// Asks for a certificate; what the answer is.
fn certify(s: &mut State, conn: Conn, key: Vec<u8>, proof: Vec<u8>) -> Result<Certificate, String> {
    let ask = TrustMessage::Certify { request: 5, key, proof };
    s.message(conn, ask.into(), Instant::now());
    match &s.take_effects()[..] {
        [
            Effect::Send {
                to,
                message: Message::Trust(TrustMessage::Certified { chain, roots, .. }),
            },
        ] => {
            assert_eq!(*to, conn);
            Ok((chain.clone(), roots.clone()))
        }
        other => Err(refused(other).1.to_owned()),
    }
}

type Certificate = (Vec<Vec<u8>>, Vec<Root>);

#[test]
fn a_process_is_certified_as_whom_the_coordinator_takes_it_for() {
    let mut s = sealing("required");
    let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
    let key = SigningKey::generate();
    let der = key.public().to_der();
    let proof = key.sign(&[TrustMessage::PROOF, &der].concat());
    for (conn, id, dns) in [
        (server, "spiffe://a.example/service/server", vec!["g", "localhost"]),
        (web, "spiffe://a.example/service/web", vec!["localhost"]),
    ] {
        let (chain, told) = certify(&mut s, conn, der.clone(), proof.clone()).unwrap();
        let mut roots = Roots::default();
        for Root { domain, certificate } in told {
            roots.add(&TrustDomain::new(&domain).unwrap(), &certificate).unwrap();
        }
        let now = std::time::SystemTime::now();
        let certified = roots.verify(&Chain::new(chain).unwrap(), now).unwrap();
        assert_eq!(
            (certified.id.as_str(), certified.dns),
            (id, dns.into_iter().map(String::from).collect())
        );
        assert_eq!(certified.key, key.public());
    }
    let refused = certify(&mut s, web, der.clone(), proof[1..].to_vec()).unwrap_err();
    assert_eq!(refused, "the key for a certificate has not signed itself");
    let other = SigningKey::generate().sign(&[TrustMessage::PROOF, &der].concat());
    let refused = certify(&mut s, web, der, other).unwrap_err();
    assert_eq!(refused, "the key for a certificate has not signed itself");
    let refused = certify(&mut s, web, vec![1; 91], proof).unwrap_err();
    assert_eq!(refused, "a key for a certificate is one of P-256 in DER");
}

#[test]
fn who_was_certified_hears_of_another_authority() {
    let mut s = sealing("required");
    let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
    let key = SigningKey::generate();
    let der = key.public().to_der();
    let proof = key.sign(&[TrustMessage::PROOF, &der].concat());
    let (_, before) = certify(&mut s, web, der.clone(), proof.clone()).unwrap();
    s.trust(Trust::for_this_run("a.example", Clock::now()).unwrap());
    let renew = Message::Trust(TrustMessage::Renew);
    assert_eq!(
        s.take_effects(),
        [Effect::Send { to: web, message: renew }],
        "and {server} does not"
    );
    let (_, after) = certify(&mut s, web, der, proof).unwrap();
    assert_ne!(before, after);
}

/// A process that asks at the workloads' socket.
fn workload(s: &mut State, uid: u32) -> Conn {
    let facts = facts(uid);
    let usage = s.account(&facts);
    let spoken = Spoken { capabilities: Capabilities::NONE, ..SPOKEN };
    let conn = s.opened_at(Way::Workload, facts, usage, spoken);
    s.take_effects();
    conn
}

#[test]
fn a_workload_is_certified_as_a_principal_or_denied() {
    let mut s = sealing("required");
    let [web, stranger] = [2, 7].map(|uid| workload(&mut s, uid));
    let key = SigningKey::generate();
    let der = key.public().to_der();
    let proof = key.sign(&[TrustMessage::PROOF, &der].concat());
    let (chain, _) = certify(&mut s, web, der.clone(), proof.clone()).unwrap();
    let certified = partywall_trust::Certified::read(&chain[0]).unwrap();
    assert_eq!(certified.id.as_str(), "spiffe://a.example/service/web");
    let ask = TrustMessage::Certify { request: 5, key: der, proof };
    s.message(stranger, ask.into(), Instant::now());
    let effects = s.take_effects();
    assert!(matches!(effects[0], Effect::Audit(_)), "{effects:?}");
    let (code, text) = refused(&effects[1..]);
    assert!(code == PERMISSION_DENIED && text.contains("no principal of the policy"), "{text}");
}

#[test]
fn a_workload_hears_of_a_policy_that_makes_it_another() {
    let mut s = sealing("required");
    let [web, other] = [2, 7].map(|uid| workload(&mut s, uid));
    let key = SigningKey::generate();
    let der = key.public().to_der();
    let proof = key.sign(&[TrustMessage::PROOF, &der].concat());
    certify(&mut s, web, der, proof).unwrap();
    let renewed = |s: &mut State, policy: &str| -> Vec<Conn> {
        s.reload(under(policy).policy().clone(), None, Instant::now());
        let effects = s.take_effects().into_iter();
        let told = effects.filter_map(|effect| match effect {
            Effect::Send { to, message: Message::Trust(TrustMessage::Renew) } => Some(to),
            _ => None,
        });
        told.collect()
    };
    let web_alone = "[principal.web]\nuid = 2\n";
    assert!(renewed(&mut s, web_alone).is_empty(), "it is who it was");
    assert_eq!(renewed(&mut s, "[principal.shop]\nuid = 2\n"), [web]);
    let serves = "[principal.web]\nuid = 2\n[service.g]\nregister = ['web']\n";
    assert_eq!(renewed(&mut s, serves), [web], "it has another DNS name");
    assert_eq!(renewed(&mut s, ""), [web]);
    let both = "[principal.web]\nuid = 2\n[principal.other]\nuid = 7\n";
    assert_eq!(renewed(&mut s, both), [other]);
}

#[test]
fn a_workload_asks_for_certificates_alone() {
    let mut s = sealing("required");
    let web = workload(&mut s, 2);
    let connect = LinkMessage::Connect { request: 5, name: name() };
    let may_call = TrustMessage::MayCall { request: 5, name: name(), id: "x".into() };
    for message in [Message::from(connect), may_call.into(), SessionMessage::Hardened.into()] {
        s.message(web, message, Instant::now());
        let effects = s.take_effects();
        assert!(matches!(effects[..], [Effect::Close { conn, .. }] if conn == web), "{effects:?}");
    }
}

/// By one rule descriptors may cross, by another one the links are sealed.
#[test]
fn no_descriptor_crosses_on_a_sealed_link() {
    let both = Capabilities::OWN;
    for (seal, expected) in [("off", false), ("prefer", true)] {
        let mut s = under(&format!(
            "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
             [service.g]\nregister = ['server']\n[service.g.call]\n\
             web = {{ methods = ['*'], descriptors = 2 }}\n\
             anyone = {{ methods = ['a.B/C'], seal = '{seal}' }}"
        ));
        s.trust(Trust::for_this_run("a.example", Clock::now()).unwrap());
        let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, both));
        register(&mut s, server);
        let (link, _) = link(&mut s, web);
        let link = &s.links[&link];
        assert_eq!(
            (link.security.seal == Seal::Sealed, link.grant.is_none()),
            (expected, expected)
        );
    }
}

/// Over HTTP/2 a server knows its caller by a certificate alone, and asks what that one may call.
#[test]
fn a_server_is_told_what_a_certified_caller_may_call() {
    let mut s = sealing("off");
    let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
    let may_call = |s: &mut State, conn, id: &str| {
        let ask = TrustMessage::MayCall { request: 5, name: name(), id: id.into() };
        s.message(conn, ask.into(), Instant::now());
        s.take_effects()
    };
    for (id, whole, one) in [
        ("spiffe://a.example/service/web", true, true),
        // Nobody is that principal, and these are everybody.
        ("spiffe://a.example/service/nobody", false, true),
        ("spiffe://b.example/service/web", false, true),
        ("spiffe://a.example/user/2", false, true),
        ("no id", false, true),
    ] {
        let effects = may_call(&mut s, server, id);
        let [Effect::Send { message: Message::Trust(TrustMessage::Allowed { methods, .. }), .. }] =
            &effects[..]
        else {
            panic!("{id}: {effects:?}")
        };
        assert_eq!(methods.covers("/x.Y/Z"), whole, "{id}");
        assert_eq!(methods.covers("/a.B/C"), one, "{id}");
    }
    let effects = may_call(&mut s, web, "spiffe://a.example/service/server");
    let refused = effects.iter().any(|e| {
        matches!(
            e,
            Effect::Send {
                message: Message::Session(SessionMessage::Refused { code: PERMISSION_DENIED, .. }),
                ..
            }
        )
    });
    assert!(refused, "who may not serve the name learns nothing: {effects:?}");
}
