//! Every message there and back, and what is no message.

use super::*;
use crate::layout::Geometry;
use crate::limits;
use crate::name::{MethodPattern, MethodSet, ServiceName};
use crate::security::{Isolation, Security};
use crate::version::{Capabilities, Versions};
use alloc::string::{String, ToString};
use alloc::vec;
use proptest::prelude::*;

/// Some descriptors, leases among them.
const LEASES: Grant = Grant { descriptors: 3, leases: true };
/// As many as there can be, and no leases.
const MOST: Grant = Grant { descriptors: limits::PACKET_FDS as u32, leases: false };

fn someone(pid: Option<u32>, digest: Digest) -> Identity {
    Identity {
        uid: 1000,
        gid: 100,
        pid,
        digest,
        cgroup: "/a/b".into(),
        container: String::new(),
        image: String::new(),
        compose: String::new(),
        principals: vec!["client".into(), "x".into()],
    }
}

/// The same row of a caller in a container.
fn in_container(mut row: LinkRow) -> LinkRow {
    row.caller.container = "0123456789abcdef".into();
    row
}

/// The same end, of which an engine has said more.
fn with_origin(mut end: Identity) -> Identity {
    end.image = "sha256:0a".into();
    end.compose = "shop/web".into();
    end
}

/// The same row of a link on which descriptors may cross.
fn with_parcels(mut row: LinkRow) -> LinkRow {
    row.grant = LEASES;
    row.caller_parcels = ParcelStats::new(1, 300_000);
    row.stats.parcels = ParcelStats::new(u64::MAX, 7);
    row
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
        parcels: ParcelStats::default(),
    };
    let row = LinkRow {
        link: 4,
        name: "greeter".into(),
        caller: someone(None, Digest::Unknown),
        server: Some(someone(Some(7), Digest::Started([9; 32]))),
        url: String::new(),
        security: Security::HIGHEST,
        gate: true,
        open: true,
        stats,
        methods: LinkMethods::default(),
        grant: Grant::NONE,
        caller_parcels: ParcelStats::default(),
        unable: vec![],
    };
    let methods_counted = LinkMethods::new(vec![MethodStats::new("/a.B/C", 9, 1)], 3);
    let server = someone(Some(1), Digest::Observed([1; 32]));
    let terms = |capabilities, isolation| Terms {
        link: 4,
        token: Token([7; 16]),
        geometry: Geometry::DEFAULT,
        peer: server.clone(),
        methods: methods.clone(),
        capabilities,
        security: Security { isolation, ..Security::NETWORK },
        sealing: None,
    };
    let sealing = Sealing {
        caller: "spiffe://a.b/service/web".into(),
        server: "spiffe://a.b/user/7".into(),
        name: "greeter".into(),
        policy: 1 << 40,
        suite: 2,
        classes: true,
        sign: true,
        receipts: false,
    };
    let sealed = |terms: Terms| Terms { sealing: Some(sealing.clone().into()), ..terms };
    let versions = Versions::new(1, 9).unwrap();
    let capabilities = Capabilities::from_bits(1 << 63 | 1);
    vec![
        Message::Session(SessionMessage::Challenge { versions, capabilities, nonce: [3; 16] }),
        Message::Session(SessionMessage::Proof {
            versions,
            version: 1,
            capabilities,
            nonce: [3; 16],
        }),
        Message::Session(SessionMessage::Welcome { you: server.clone() }),
        Message::Session(SessionMessage::Harden),
        Message::Session(SessionMessage::Hardened),
        Message::Session(SessionMessage::Operators { path: "/r/o.sock".into(), uid: 990 }),
        Message::Registry(RegistryMessage::Register { request: 1, name: name.clone(), places: 9 }),
        Message::Registry(RegistryMessage::Registered { request: 1, registration: 2 }),
        Message::Registry(RegistryMessage::Unregister { registration: 2 }),
        Message::Link(LinkMessage::Connect { request: 3, name: name.clone() }),
        Message::Link(LinkMessage::Linked {
            request: 3,
            terms: terms(capabilities, Isolation::None),
        }),
        Message::Link(LinkMessage::Redirect {
            request: 3,
            link: 4,
            token: Token([5; 16]),
            url: "http://h:1".into(),
            methods: methods.clone(),
        }),
        Message::Session(SessionMessage::Refused { request: 3, code: 7, text: "no".into() }),
        Message::Link(LinkMessage::Offer {
            registration: 2,
            terms: terms(Capabilities::NONE, Isolation::ProtectionKeys),
        }),
        Message::Link(LinkMessage::Offer {
            registration: 2,
            terms: sealed(terms(Capabilities::NONE, Isolation::Process)),
        }),
        Message::Link(LinkMessage::Linked {
            request: 3,
            terms: sealed(terms(capabilities, Isolation::None)),
        }),
        Message::Trust(TrustMessage::Certify { request: 9, key: vec![1; 91], proof: vec![2; 71] }),
        Message::Trust(TrustMessage::Renew),
        Message::Trust(TrustMessage::Receipts {
            request: 9,
            receipts: vec![vec![b'{'; limits::RECEIPT_BYTES], Vec::new()],
        }),
        Message::Trust(TrustMessage::Kept { request: 9 }),
        Message::Trust(TrustMessage::MayCall {
            request: 9,
            name: name.clone(),
            id: "spiffe://a.b/user/7".into(),
        }),
        Message::Trust(TrustMessage::Allowed { request: 9, methods: methods.clone() }),
        Message::Trust(TrustMessage::Certified {
            request: 9,
            now: 1 << 33,
            chain: vec![vec![1; 700], vec![2; 600]],
            roots: vec![Root { domain: "a.b".into(), certificate: vec![3; 500] }],
        }),
        Message::Trace(TraceMessage::Trace { request: 9, link: 4 }),
        Message::Trace(TraceMessage::Traced {
            request: 9,
            geometry: Geometry::WIDE,
            security: Security::HIGHEST,
        }),
        Message::Trace(TraceMessage::Over { request: 9 }),
        Message::Trace(TraceMessage::Untrace { request: 9 }),
        Message::Registry(RegistryMessage::Watch { request: 5, name: name.clone() }),
        Message::Registry(RegistryMessage::Watched { request: 5, instances: 2 }),
        Message::Registry(RegistryMessage::Unwatch { request: 5 }),
        Message::End(EndMessage::Closed { link: 4, role: Role::Server, blame: Blame::Peer, stats }),
        Message::List(ListMessage::List { request: 6 }),
        Message::List(ListMessage::Row { request: 6, row: row.clone().into() }),
        Message::List(ListMessage::Row {
            request: 6,
            row: LinkRow { server: None, open: false, ..row.clone() }.into(),
        }),
        Message::List(ListMessage::Row {
            request: 6,
            row: LinkRow { methods: methods_counted.clone(), ..row.clone() }.into(),
        }),
        Message::List(ListMessage::Row { request: 6, row: in_container(row.clone()).into() }),
        Message::List(ListMessage::Row { request: 6, row: with_parcels(row.clone()).into() }),
        Message::List(ListMessage::Row {
            request: 6,
            row: LinkRow { caller: with_origin(row.caller.clone()), ..row.clone() }.into(),
        }),
        Message::List(ListMessage::Row {
            request: 6,
            row: LinkRow { server: row.server.clone().map(with_origin), ..with_parcels(row) }
                .into(),
        }),
        Message::List(ListMessage::Sent {
            request: 7,
            link: 4,
            role: Role::Caller,
            parcels: ParcelStats::new(2, 1 << 40),
        }),
        Message::List(ListMessage::Observe { request: 6, name: name.clone() }),
        Message::List(ListMessage::Measure { request: 7, name: name.clone() }),
        Message::List(ListMessage::Measured {
            request: 7,
            link: 4,
            role: Role::Server,
            pace: PaceStats::new(1, u64::MAX, 3),
        }),
        Message::List(ListMessage::Pace {
            request: 6,
            link: 4,
            caller: None,
            server: Some(PaceStats::new(1, 2, 3)),
        }),
        Message::List(ListMessage::Unable { request: 6, link: 4, role: Role::Server }),
        Message::List(ListMessage::Instances { request: 6 }),
        Message::List(ListMessage::Instance { request: 6, row: longest_instance().into() }),
        Message::List(ListMessage::Instance { request: 6, row: plain_instance().into() }),
        Message::List(ListMessage::Listed { request: 6 }),
        Message::List(ListMessage::Query { request: 7 }),
        Message::List(ListMessage::Counted {
            request: 7,
            link: 4,
            stats,
            methods: LinkMethods::default(),
        }),
        Message::List(ListMessage::Counted {
            request: 7,
            link: 4,
            stats,
            methods: methods_counted,
        }),
        Message::List(ListMessage::CountedAll { request: 7 }),
        Message::Gate(GateMessage::Switch { request: 8, name: name.clone(), open: true }),
        Message::Gate(GateMessage::Switched { request: 8, domains: 2 }),
        Message::Gate(GateMessage::Set { request: 9, open: false }),
        Message::Gate(GateMessage::IsSet { request: 9, errno: 22 }),
        Message::Link(LinkMessage::Adopted { link: 4, security: Security::UNIX_SOCKET }),
        Message::Link(LinkMessage::Open { link: 4, security: Security::LOWEST }),
        Message::End(EndMessage::Allowed {
            link: 4,
            role: Role::Caller,
            peer: server.clone(),
            methods: methods.clone(),
        }),
        Message::End(EndMessage::Ended {
            link: 4,
            role: Role::Caller,
            code: 14,
            text: "over".into(),
        }),
        Message::End(EndMessage::Died { link: 4, role: Role::Server }),
        Message::Link(LinkMessage::Cancel { request: 3 }),
        Message::Registry(RegistryMessage::Unregistered { registration: 2, text: "over".into() }),
        Message::Link(LinkMessage::Report {
            request: 4,
            token: Token([7; 16]),
            role: Role::Redirected,
            name: name.clone(),
            security: Security::NETWORK,
            grant: Grant::NONE,
        }),
        Message::Link(LinkMessage::Report {
            request: 4,
            token: Token([7; 16]),
            role: Role::Caller,
            name,
            security: Security::LOWEST,
            grant: LEASES,
        }),
        Message::Link(LinkMessage::Reported { request: 4, link: 4 }),
        Message::Link(LinkMessage::Granted { link: 4, role: Role::Server, grant: LEASES }),
        Message::Link(LinkMessage::Granted { link: 4, role: Role::Caller, grant: MOST }),
        Message::Policy(PolicyMessage::Reload { request: 10 }),
        Message::Policy(PolicyMessage::Reloaded { request: 10, ended: 1, changed: 2 }),
        Message::Memory(MemoryMessage::Want { request: 11, bytes: u64::MAX }),
        Message::Memory(MemoryMessage::Given { request: 11, bytes: 0 }),
        Message::List(ListMessage::Instance { request: 6, row: instance_with_origin().into() }),
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

#[test]
fn every_kind_is_in_the_range_of_its_subject_and_is_taken_once() {
    let kinds: std::collections::BTreeSet<u16> =
        samples().iter().map(|m| u16::from_le_bytes([m.encode()[0], m.encode()[1]])).collect();
    // Three messages are there twice.
    assert_eq!(kinds.len(), samples().len() - 3);
    for (subject, messages) in
        [(1, 7), (2, 7), (3, 13), (4, 4), (5, 21), (6, 4), (7, 2), (8, 2), (9, 7), (10, 4)]
    {
        let of_it: alloc::vec::Vec<u16> =
            kinds.iter().filter(|kind| **kind >> 8 == subject).map(|kind| kind & 0xff).collect();
        assert_eq!(of_it, (1..=messages).collect::<alloc::vec::Vec<_>>(), "subject {subject}");
    }
}

/// An instance of which no engine has said more.
fn plain_instance() -> InstanceRow {
    let mut server = someone(Some(7), Digest::Unknown);
    server.container = "0123456789abcdef".into();
    InstanceRow::new("greeter", server, Security::UNIX_SOCKET)
}

/// An instance with as much of everything as there can be.
fn longest_instance() -> InstanceRow {
    let server = longest_row().caller;
    let mut instance =
        InstanceRow::new(&"x".repeat(limits::NAME_BYTES), server, Security::UNIX_SOCKET);
    (instance.links, instance.callers, instance.memory) = (u32::MAX, 7, u64::MAX);
    instance.parcel_bytes = u64::MAX;
    instance
}

/// An instance that has made no memory for parcels.
fn instance_with_origin() -> InstanceRow {
    let mut instance = longest_instance();
    instance.parcel_bytes = 0;
    instance
}

/// A row with as much of everything as there can be.
fn longest_row() -> LinkRow {
    let longest = |n: usize| "x".repeat(n);
    let mut someone = someone(Some(7), Digest::Started([9; 32]));
    someone.cgroup = longest(limits::CGROUP_BYTES);
    someone.container = longest(limits::CONTAINER_BYTES);
    someone.image = longest(limits::IMAGE_BYTES);
    someone.compose = longest(limits::COMPOSE_BYTES);
    someone.principals = vec![longest(limits::NAME_BYTES); limits::PRINCIPALS];
    let method = MethodStats::new(&alloc::format!("/{}", longest(limits::PATH_BYTES - 1)), 1, 2);
    let mut row = LinkRow::new(4, &longest(limits::NAME_BYTES), someone.clone(), Some(someone));
    row.url = longest(limits::URL_BYTES);
    row.methods = LinkMethods::new(vec![method; limits::LISTED_METHODS], u32::MAX);
    with_parcels(row)
}

#[test]
fn the_longest_row_of_a_list_fits_into_a_packet() {
    let row = longest_row();
    let message = Message::from(ListMessage::Row { request: 1, row: row.clone().into() });
    let packet = message.encode();
    assert!(packet.len() <= limits::CONTROL_BYTES, "{}", packet.len());
    assert_eq!(Message::decode(&packet), Ok(message));
    // What is too much is left out by whoever sends, and refused by whoever takes it.
    let mut more = row;
    more.methods.most_called.push(MethodStats::new("/a.B/C", 0, 0));
    let packet_of_more = Message::from(ListMessage::Row { request: 1, row: more.into() }).encode();
    assert_eq!(packet_of_more, packet);
    let counted = LinkMethods::new(vec![MethodStats::new("/a.B/C", 1, 2)], 0);
    let (link, stats, methods) = (4, LinkStats::default(), counted);
    let packet = Message::from(ListMessage::Counted { request: 1, link, stats, methods }).encode();
    let count_at = 8 + 8 + 8 * 8;
    let mut too_many = packet.clone();
    too_many[count_at] = 17;
    let error = Message::decode(&too_many).unwrap_err().to_string();
    assert_eq!(error, "methods: 17 is over the limit of 16");
    for (at, byte) in [(count_at + 3, b'x'), (count_at + 4, b'?'), (count_at + 4, 0xc3)] {
        let mut no_path = packet.clone();
        no_path[at] = byte;
        let error = Message::decode(&no_path).unwrap_err();
        assert_eq!(error, crate::codec::DecodeError::Text { field: "path" });
    }
}

#[test]
fn a_range_of_versions_that_is_none_is_no_challenge() {
    let versions = Versions::new(2, 3).unwrap();
    let capabilities = Capabilities::NONE;
    let challenge = SessionMessage::Challenge { versions, capabilities, nonce: [0; 16] };
    let packet = Message::from(challenge).encode();
    for (lowest, highest) in [(3_u16, 2_u16), (0, 3)] {
        let mut packet = packet.clone();
        packet[8..10].copy_from_slice(&lowest.to_le_bytes());
        packet[10..12].copy_from_slice(&highest.to_le_bytes());
        let found = u64::from(lowest);
        let wrong = crate::codec::DecodeError::Value { field: "lowest version", found };
        assert_eq!(Message::decode(&packet), Err(wrong));
    }
}

#[test]
fn a_grant_that_is_none_is_refused_wherever_one_has_to_be() {
    let row = with_parcels(LinkRow::new(4, "greeter", someone(None, Digest::Unknown), None));
    let row = Message::from(ListMessage::Row { request: 1, row: row.into() });
    let (token, name) = (Token([7; 16]), ServiceName::new("greeter").unwrap());
    let (role, security) = (Role::Caller, Security::LOWEST);
    let report = LinkMessage::Report { request: 4, token, role, name, security, grant: LEASES };
    let granted = LinkMessage::Granted { link: 4, role, grant: LEASES };
    // After it a row has two counts of two words each.
    for (message, after) in [(row, 2 * 16), (report.into(), 0), (granted.into(), 0)] {
        let packet = message.encode();
        let at = packet.len() - 4 - after;
        let with = |bits: u32| {
            let mut packet = packet.clone();
            packet[at..at + 4].copy_from_slice(&bits.to_le_bytes());
            Message::decode(&packet)
        };
        let leases = 1 << 31;
        assert_eq!(with(leases | 3), Ok(message.clone()));
        for good in [1, 3, 16, leases | 1, leases | 16] {
            assert!(with(good).is_ok_and(|m| m != message), "{good:#x}");
        }
        for found in [0, leases, 17, leases | 17, 1 << 30 | 3, 1 << 5 | 3, u32::MAX] {
            let field = "descriptors";
            let wrong = crate::codec::DecodeError::Value { field, found: found.into() };
            assert_eq!(with(found), Err(wrong), "{found:#x}");
        }
    }
}

#[test]
fn a_grant_covers_what_has_no_more_in_it() {
    let grant = |descriptors, leases| Grant { descriptors, leases };
    let all = [Grant::NONE, grant(1, false), grant(1, true), grant(2, false), grant(2, true)];
    // By the rows what covers, by the columns what is covered.
    let covers = all.map(|one| all.map(|other| u8::from(one.covers(other))));
    let expected =
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 1, 1]];
    assert_eq!(covers, expected);
    assert_eq!(all.map(Grant::is_none), [true, false, false, false, false]);
    assert_eq!(all.map(|g| g.to_string()), ["0", "1", "1 with leases", "2", "2 with leases"]);
    assert_eq!(Grant::default(), Grant::NONE);
}
