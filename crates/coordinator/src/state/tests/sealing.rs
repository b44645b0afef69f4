//! Which links are sealed, what their ends are told, and who is certified.

use partywall_abi::control::{Root, Sealing, TrustMessage};
use partywall_abi::security::{Seal, Sign};
use partywall_trust::message::{Receipt, Requests, Said, Way};
use partywall_trust::{Chain, Roots, SigningKey, TrustDomain};

use super::*;
use crate::state::list::LIST_WAIT;
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
            sign: false,
            receipts: false,
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

/// What an operator with these capabilities is told of ends that cannot seal.
fn unable(s: &mut State, capabilities: Capabilities) -> Vec<(u64, Role)> {
    let operator = admit_able(s, 9, capabilities);
    ask(s, operator, Message::List(ListMessage::List { request: 3 }));
    s.timeout(Instant::now() + LIST_WAIT);
    s.room(operator);
    let told = s.take_effects().into_iter().filter_map(|effect| match effect {
        Effect::Send {
            message: Message::List(ListMessage::Unable { request: 3, link, role }),
            ..
        } => Some((link, role)),
        _ => None,
    });
    told.collect()
}

#[test]
fn an_operator_is_told_of_ends_that_cannot_seal() {
    let (all, without) = (Capabilities::OWN, Capabilities::OWN.without(Capabilities::SEAL));
    for (wish, servers, webs, ends) in [
        ("prefer", without, all, &[Role::Server][..]),
        ("off", all, without, &[Role::Caller]),
        ("off", without, without, &[Role::Caller, Role::Server]),
        ("off", all, all, &[]),
        ("prefer", all, all, &[]),
    ] {
        let mut s = sealing(wish);
        let server = admit_able(&mut s, 1, servers);
        let web = admit_able(&mut s, 2, webs);
        register(&mut s, server);
        let (link, _) = link(&mut s, web);
        let expected: Vec<_> = ends.iter().map(|role| (link, *role)).collect();
        assert_eq!(unable(&mut s, all), expected, "{wish}");
        // An older one would not know what that is, and a link that is over is nobody's trouble.
        assert_eq!(unable(&mut s, without), [], "{wish}");
        ask(&mut s, server, closed(link, Role::Server));
        assert_eq!(unable(&mut s, all), [], "{wish}");
    }
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

/// A policy in which messages to `g` are signed; `seal` is off.
fn signing() -> State {
    let mut s = under(
        "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n[principal.far]\nuid = 3\n\
         [service.g]\nregister = ['server']\nfallback = true\n\
         [service.g.call]\nweb = { methods = ['*'], sign = 'required' }\nfar = ['*']\n\
         [names]\ng = 'https://far.example:1'",
    );
    s.trust(Trust::for_this_run("a.example", Clock::now()).unwrap());
    s
}

#[test]
fn a_link_with_signed_messages_is_sealed_and_both_know_it() {
    let mut s = signing();
    let [server, web, far] = [1, 2, 3].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
    register(&mut s, server);
    let (seal, told) = offered_to(&mut s, web);
    let told = told.unwrap();
    assert_eq!((seal, told.sign, told.receipts), (Seal::Sealed, true, false));
    assert_eq!(s.links[&1].security.sign, Sign::Signed);
    assert_eq!(offered_to(&mut s, far), (Seal::Off, None));
    // Over the network nothing is signed.
    let mut s = signing();
    let web = admit_able(&mut s, 2, Capabilities::OWN);
    let text = "sign `signed` is required, and there is `off`; remedy: reach it on this host, where messages are \
                signed, or lower `sign` under [service.g] and [service.g.call]";
    let effects = connect(&mut s, web);
    let (found, why) = refused(&effects);
    assert!(found == NOT_FOUND && why.contains(text), "{found} {why}");
}

/// A receipt, as JSON.
fn receipt() -> Vec<u8> {
    let authority = Trust::for_this_run("a.example", Clock::now()).unwrap();
    let key = SigningKey::generate();
    let der = key.public().to_der();
    let proof = key.sign(&[TrustMessage::PROOF, &der].concat());
    let name = authority.name(Some("web"), 2, Vec::new());
    let certified = authority.certify(1, &name, &der, &proof).unwrap();
    let TrustMessage::Certified { chain, .. } = certified else { panic!("{certified:?}") };
    let said = Said {
        way: Way::Request,
        channel: [1; 32],
        call: 1,
        number: 0,
        time: 0,
        name: "g".into(),
        method: "/a.B/C".into(),
        compressed: false,
        message: [2; 32],
        requests: Requests::default(),
    };
    let chain = Chain::new(chain).unwrap().into();
    serde_json::to_vec(&Receipt::new(said, vec![1, 2], chain).to_json()).unwrap()
}

#[test]
fn receipts_of_signed_links_alone_are_kept() {
    let mut s = signing();
    s.keep_receipts();
    let [server, web] = [1, 2].map(|uid| admit_able(&mut s, uid, Capabilities::OWN));
    register(&mut s, server);
    link(&mut s, web);
    let send = |s: &mut State, conn, receipts: Vec<Vec<u8>>| {
        s.message(conn, TrustMessage::Receipts { request: 7, receipts }.into(), Instant::now());
        let effects = s.take_effects().into_iter();
        effects.filter(|effect| !matches!(effect, Effect::Audit(_))).collect::<Vec<_>>()
    };
    let effects = send(&mut s, server, vec![receipt(), receipt()]);
    let [Effect::Receipts { conn, request: 7, events }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*conn, events.len()), (server, 2));
    let line = serde_json::to_value(&events[0]).unwrap();
    assert_eq!(line["event"], "signed");
    assert_eq!(line["uid"], 1);
    assert_eq!(line["signer"], "spiffe://a.example/service/web");
    assert_eq!(line["receipt"]["method"], "/a.B/C");
    s.kept(server, 7);
    let told = s.take_effects();
    let kept = Message::Trust(TrustMessage::Kept { request: 7 });
    assert!(matches!(&told[..], [Effect::Send { message, .. }] if *message == kept), "{told:?}");
    // What is no receipt, more before the answer, and from whom the policy has none.
    let closed = |effects: &[Effect]| matches!(effects, [Effect::Close { .. }, ..]);
    assert!(closed(&send(&mut s, web, vec![receipt(), b"{}".to_vec()])));
    assert!(!closed(&send(&mut s, server, vec![receipt()])));
    assert!(closed(&send(&mut s, server, vec![receipt()])));
    let other = admit_able(&mut s, 9, Capabilities::OWN);
    for _ in 0..2 {
        let effects = send(&mut s, other, vec![receipt()]);
        let (code, text) = refused(&effects);
        assert!(code == PERMISSION_DENIED && text.contains("no link of this process"), "{text}");
    }
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
    let conn = s.opened_at(Socket::Workload, facts, usage, spoken);
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
