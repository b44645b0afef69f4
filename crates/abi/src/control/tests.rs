//! Every message there and back, and what is no message.

use super::*;
use crate::layout::Geometry;
use crate::name::MethodPattern;
use alloc::vec;
use proptest::prelude::*;

fn someone(pid: Option<u32>, digest: Digest) -> Identity {
    Identity {
        uid: 1000,
        gid: 100,
        pid,
        digest,
        cgroup: "/a/b".into(),
        principals: vec!["client".into(), "x".into()],
    }
}

fn samples() -> Vec<Message> {
    let name = ServiceName::new("greeter").unwrap();
    let mut methods = MethodSet::default();
    methods.add(MethodPattern::new("a.B/C").unwrap());
    methods.add(MethodPattern::new("a.B/*").unwrap());
    let methods = methods.with_remedy("list more".into());
    let stats = LinkStats {
        calls: 1,
        failed: 2,
        denied: 3,
        sent_bytes: 4,
        received_bytes: 5,
        visits: 6,
        forwards: 7,
        inside_ns: 8,
    };
    let row = LinkRow {
        link: 4,
        name: "greeter".into(),
        caller: someone(None, Digest::Unknown),
        server: Some(someone(Some(7), Digest::Started([9; 32]))),
        url: String::new(),
        isolation: Isolation::Process,
        gate: true,
        open: true,
        stats,
    };
    let server = someone(Some(1), Digest::Observed([1; 32]));
    let terms = |isolation| Terms {
        link: 4,
        token: Token([7; 16]),
        geometry: Geometry::DEFAULT,
        peer: server.clone(),
        methods: methods.clone(),
        isolation,
    };
    vec![
        Message::Challenge { version: 1, nonce: [3; 16] },
        Message::Proof { version: 1, nonce: [3; 16] },
        Message::Welcome { you: server.clone() },
        Message::Register { request: 1, name: name.clone(), places: 9 },
        Message::Registered { request: 1, registration: 2 },
        Message::Unregister { registration: 2 },
        Message::Connect { request: 3, name: name.clone() },
        Message::Linked { request: 3, terms: terms(Isolation::None) },
        Message::Redirect {
            request: 3,
            link: 4,
            token: Token([5; 16]),
            url: "http://h:1".into(),
            methods: methods.clone(),
        },
        Message::Refused { request: 3, code: 7, text: "no".into() },
        Message::Offer { registration: 2, terms: terms(Isolation::Fault) },
        Message::Watch { request: 5, name: name.clone() },
        Message::Watched { request: 5, instances: 2 },
        Message::Unwatch { request: 5 },
        Message::Closed { link: 4, role: Role::Server, blame: Blame::Peer, stats },
        Message::List { request: 6 },
        Message::Row { request: 6, row: row.clone() },
        Message::Row { request: 6, row: LinkRow { server: None, open: false, ..row } },
        Message::Listed { request: 6 },
        Message::Query { request: 7 },
        Message::Counted { request: 7, link: 4, stats },
        Message::CountedAll { request: 7 },
        Message::Switch { request: 8, name: name.clone(), open: true },
        Message::Switched { request: 8, domains: 2 },
        Message::SetGate { request: 9, open: false },
        Message::GateSet { request: 9, errno: 22 },
        Message::Adopted { link: 4 },
        Message::Open { link: 4 },
        Message::Allowed {
            link: 4,
            role: Role::Caller,
            peer: server.clone(),
            methods: methods.clone(),
        },
        Message::Ended { link: 4, role: Role::Caller, code: 14, text: "over".into() },
        Message::Died { link: 4, role: Role::Server },
        Message::Cancel { request: 3 },
        Message::Unregistered { registration: 2, text: "over".into() },
        Message::Report { request: 4, token: Token([7; 16]), role: Role::Redirected, name },
        Message::Reported { request: 4, link: 4 },
        Message::Reload { request: 10 },
        Message::Reloaded { request: 10, ended: 1, changed: 2 },
    ]
}

#[test]
fn every_message_round_trips_and_no_prefix_does() {
    for message in samples() {
        let packet = message.encode();
        assert!(packet.len() <= limits::CONTROL_BYTES);
        assert_eq!(Message::decode(&packet), Ok(message));
        for end in 0..packet.len() {
            assert!(Message::decode(&packet[..end]).is_err());
        }
        let mut longer = packet;
        longer.push(0);
        assert!(Message::decode(&longer).is_err());
    }
}

#[test]
fn setup_round_trips() {
    let s = Setup { link: 77 };
    assert_eq!(Setup::decode(&s.encode()), Ok(s));
    assert!(Setup::decode(&[0; 16]).is_err());
    assert!(Setup::decode(&s.encode()[..15]).is_err());
}

proptest! {
    #[test]
    fn flipped_bytes_never_panic(which in any::<usize>(), at in any::<usize>(), to in any::<u8>()) {
        let samples = samples();
        let mut packet = samples[which % samples.len()].encode();
        let at = at % packet.len();
        packet[at] = to;
        let _ = Message::decode(&packet);
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Message::decode(&bytes);
        let _ = Setup::decode(&bytes);
    }
}
