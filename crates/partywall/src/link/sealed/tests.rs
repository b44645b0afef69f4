//! Peers of sealed links that break their rules: attack rows 36, 37, 39, 40 and 42 over a link's rings. Those
//! of the handshake and of records by themselves are in crate trust.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::SystemTime;

use partywall_abi::control::Blame;
use partywall_abi::frame::{self, END, HEAD, Kind, RequestHead};
use partywall_abi::layout::Geometry;
use partywall_abi::name::MethodSet;
use partywall_abi::version::Capabilities;
use partywall_shm::setup::local_pair;
use partywall_trust::record::{Sealer, TAG, What};
use partywall_trust::{Authority, Id, TrustDomain};

use super::*;
use crate::coordinator::Place;
use crate::link::account::{Accounts, Bounds};
use crate::link::scripted::Never;
use crate::link::service::{self, Service as Serves};

const NAME: &str = "g";

/// Two processes of one authority, and what a link between them has to agree on.
struct Two {
    caller: With,
    server: With,
}

fn ids() -> [Id; 2] {
    let domain = TrustDomain::new("a.example").unwrap();
    ["web", "server"].map(|name| domain.service(name).unwrap())
}

impl Two {
    fn new() -> Self {
        let [caller, service] = ids();
        let now = SystemTime::now();
        let authority = Authority::new(&caller.domain(), now).unwrap();
        let terms = handshake::Terms {
            channel: [7; 16],
            caller: caller.clone(),
            service: service.clone(),
            name: NAME.into(),
            policy: 1,
            form: Form { suite: Suite::Aes128Gcm, classes: false },
        };
        let with = |id: &Id, dns: &[&str]| With {
            client: Arc::new(Client::new(Place::Path(PathBuf::from("/none")))),
            own: Own::certified_by(&authority, id, dns, now),
            terms: terms.clone(),
            receipts: None,
            pins: Pins::default(),
        };
        Self { caller: with(&caller, &[]), server: with(&service, &[NAME]) }
    }

    /// Another link between them.
    fn again(&self, channel: u8) -> (Calling, Vec<u8>, Serving) {
        let with = |with: &With| With {
            client: Arc::clone(&with.client),
            own: Arc::clone(&with.own),
            terms: handshake::Terms { channel: [channel; 16], ..with.terms.clone() },
            receipts: None,
            pins: Pins::default(),
        };
        let (caller, server) = (with(&self.caller), with(&self.server));
        let service = (ids()[1].to_string(), None, NAME.to_owned());
        let begin = caller.client.begin_with(&service);
        let (state, first) = Caller::begin(&caller.own.credentials, &caller.terms, begin, false);
        let calling = Calling { with: caller, service, state: Some(state) };
        (calling, first, Serving { with: server, state: None, retried: false })
    }
}

/// Has both sides do what they can, in turn, until both are done; how many messages the caller has sent.
fn shake(
    (calling, first, serving): (&mut Calling, &[u8], &mut Serving),
    callers: &mut Ends,
    servers: &mut Ends,
) -> Result<([Channel; 2], u64), Broken> {
    push(&mut callers.producer, first)?;
    let (mut one, mut other) = (None, None);
    for _ in 0..8 {
        other = if other.is_some() { other } else { serving.step(servers)? };
        one = if one.is_some() { one } else { calling.step(callers)? };
        if let (Some(one), Some(other)) = (one.take_if(|_| other.is_some()), other.take()) {
            return Ok(([one, other], callers.producer.position()));
        }
    }
    panic!("neither side goes on");
}

/// How a channel came about, and how many messages its caller has sent for it.
fn connect(two: &Two, channel: u8) -> (handshake::How, u64) {
    let (mut callers, mut servers) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut calling, first, mut serving) = two.again(channel);
    let sides = (&mut calling, &first[..], &mut serving);
    let ([one, other], messages) = shake(sides, &mut callers, &mut servers).unwrap();
    assert_eq!(one.how, other.how);
    assert_eq!([&one.peer.certified.id, &other.peer.certified.id], [&ids()[1], &ids()[0]]);
    (one.how, messages)
}

#[test]
fn each_link_after_the_first_resumes_the_one_before() {
    use handshake::How::{First, Known, Resumed};
    let two = Two::new();
    assert_eq!(connect(&two, 1), (First, 2));
    for channel in 2..6 {
        assert_eq!(connect(&two, channel), (Resumed, 1));
    }
    // One that is under way has taken it: another one at the same time knows the key alone.
    let (_under_way, ..) = two.again(6);
    assert_eq!(connect(&two, 7), (Known, 1));
    // The server has forgotten all: it has the same key.
    two.server.client.forget_sessions();
    assert_eq!(connect(&two, 8), (First, 3), "after a retry");
    // The server is another process.
    let other = Two::new();
    let mixed = Two { caller: two.caller, server: other.server };
    let (mut callers, mut servers) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut calling, first, mut serving) = mixed.again(9);
    let sides = (&mut calling, &first[..], &mut serving);
    let refused = shake(sides, &mut callers, &mut servers).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Broken::Handshake(HandshakeError::Certificate(_))), "{refused}");
}

#[test]
fn what_is_no_handshake_blames_the_peer() {
    let two = Two::new();
    let message = |kind, flags, stream, payload: &[u8]| {
        let (mut callers, mut servers) = local_pair(Geometry::WIDE).unwrap();
        let (_, _, mut serving) = two.again(1);
        assert!(callers.producer.try_push(kind, flags, stream, &[payload]).unwrap());
        let refused = serving.step(&mut servers).map(|_| ()).unwrap_err();
        assert_eq!(refused.reported(), Blame::Peer, "{refused}");
        refused.to_string()
    };
    let (_, first, _) = two.again(1);
    assert!(
        message(Kind::Frame as u8, 0, 0, &first).contains("record of kind 1 where the handshake")
    );
    assert!(message(HANDSHAKE, 1, 0, &first).contains("record of kind 32"));
    assert!(message(HANDSHAKE, 0, 9, &first).contains("record of kind 32"));
    assert!(message(HANDSHAKE, 0, 0, b"").contains("message of 0 bytes"));
    assert!(message(HANDSHAKE, 0, 0, &[9, 1, 0]).contains("version 9"));
    assert!(message(HANDSHAKE, 0, 0, &[1, 9, 0]).contains("pattern 9"));
    assert!(message(HANDSHAKE, 0, 0, &vec![1; MESSAGE_BYTES + 1]).contains("bytes"));
}

#[tokio::test]
async fn a_caller_that_leaves_its_handshake_undone_is_given_up() {
    let two = Two::new();
    let (mut callers, servers) = local_pair(Geometry::DEFAULT).unwrap();
    let (_, first, mut serving) = two.again(1);
    push(&mut callers.producer, &first).unwrap();
    let start = std::time::Instant::now();
    let within = Duration::from_millis(50);
    let refused = finish(&mut serving, servers, within).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Broken::Link(LinkError::TimedOut)), "{refused}");
    assert!(start.elapsed() >= within);
    // One that hangs up is heard of at once.
    let (mut callers, servers) = local_pair(Geometry::DEFAULT).unwrap();
    let (_, first, mut serving) = two.again(2);
    push(&mut callers.producer, &first).unwrap();
    drop(callers);
    let long = Duration::from_secs(60);
    let refused = finish(&mut serving, servers, long).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Broken::Link(LinkError::Dead)), "{refused}");
}

/// A service that is called by hand, over a sealed link.
struct Called {
    service: Arc<Serves<Never>>,
    coordinator: OwnedFd,
    callers: Ends,
    sealer: Sealer,
}

impl Called {
    /// Within a runtime.
    fn new(two: &Two, channel: u8) -> Self {
        let (mut callers, mut servers) = local_pair(Geometry::WIDE).unwrap();
        let (mut calling, first, mut serving) = two.again(channel);
        let sides = (&mut calling, &first[..], &mut serving);
        let ([one, other], _) = shake(sides, &mut callers, &mut servers).unwrap();
        let (tracked, coordinator) = crate::coordinator::tests::tracked(7);
        let account = Accounts::new(Bounds::default()).open(1, Some(1));
        let caller = (crate::fuzz::stranger(), account);
        let common = Capabilities::OWN.without(Capabilities::ATTACHMENTS);
        let end = LinkEnd::sealed(servers, other, &serving);
        let methods = MethodSet::all();
        let service = service::run(end, Never, caller, methods, Some(tracked), common).unwrap();
        Self { service, coordinator, callers, sealer: one.sealer }
    }

    /// The next record of a call, sealed.
    fn request(&mut self, stream: u32) -> (What, Vec<u8>) {
        let mut payload = Vec::new();
        let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a.B/C", 0);
        frame::write_block(&mut payload, head).unwrap();
        let what = What { kind: Kind::Frame as u8, flags: HEAD | END, stream };
        let mut record = vec![0; payload.len() + TAG];
        self.sealer.seal(what, [&payload, &[]], &mut record).unwrap();
        (what, record)
    }

    fn say(&mut self, (what, record): &(What, Vec<u8>)) {
        let What { kind, flags, stream } = *what;
        assert!(self.callers.producer.try_push(kind, flags, stream, &[record]).unwrap());
        let wake = self.callers.producer.notify().unwrap();
        self.callers.bell.carry_out(wake).unwrap();
    }

    /// How many calls have come, once so many have, or the link is over.
    async fn calls(&self, expected: u64) -> u64 {
        let calls = || crate::coordinator::End::stats(&*self.service).calls;
        for _ in 0..5000 {
            if calls() >= expected || self.service.is_closed() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        calls()
    }

    /// That the link ends for this, after so many calls, and the caller is to blame.
    async fn ends(&self, calls: u64, what: &str) {
        assert_eq!(self.calls(u64::MAX).await, calls, "{what}");
        let why = self.service.why().expect("the link is over").to_string();
        assert!(why.contains("is not as it was sealed, or not the next one"), "{what}: {why}");
        assert_eq!(crate::coordinator::tests::blamed(&self.coordinator), Blame::Peer, "{what}");
    }
}

#[tokio::test]
async fn row_39_an_altered_record_reaches_no_handler() {
    let two = Two::new();
    let len = Called::new(&two, 0).request(1).1.len();
    for at in 0..len + 4 {
        let mut called = Called::new(&two, 0);
        let first = called.request(1);
        called.say(&first);
        assert_eq!(called.calls(1).await, 1);
        let (mut what, mut record) = called.request(2);
        match at.checked_sub(len) {
            None => record[at] ^= 1 << (at % 8),
            Some(0) => what.stream = 3,
            Some(1) => what.flags &= !END,
            Some(2) => drop(record.pop()),
            Some(_) => record.push(0),
        }
        called.say(&(what, record));
        called.ends(1, &format!("position {at} of {len}")).await;
    }
}

#[tokio::test]
async fn row_39_records_out_of_order_reach_no_handler() {
    let two = Two::new();
    let begun = || {
        let mut called = Called::new(&two, 0);
        let records = [1, 2, 3].map(|stream| called.request(stream));
        (called, records)
    };
    for (order, calls, what) in [
        (&[0, 0][..], 1, "sent twice"),
        (&[0, 1, 0], 2, "sent again later"),
        (&[1], 0, "begun with the second"),
        (&[0, 2], 1, "one left out"),
        (&[0, 2, 1], 1, "two changed places"),
    ] {
        let (mut called, records) = begun();
        order.iter().for_each(|at: &usize| called.say(&records[*at]));
        called.ends(calls, what).await;
    }
    let (mut called, records) = begun();
    records.iter().for_each(|record| called.say(record));
    assert_eq!(called.calls(3).await, 3);
    assert!(!called.service.is_closed());
}

#[tokio::test]
async fn row_37_records_of_other_links_reach_no_handler() {
    let two = Two::new();
    let mut other = Called::new(&two, 2);
    let spliced = other.request(1);
    let mut called = Called::new(&two, 1);
    called.say(&spliced);
    called.ends(0, "of another link").await;
    // Its own record, returned: the service has said what it may have.
    let mut called = Called::new(&two, 3);
    let consumer = &mut called.callers.consumer;
    let descriptor = loop {
        match consumer.peek().unwrap() {
            Some(descriptor) => break descriptor,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let mut record = Vec::with_capacity(descriptor.len as usize);
    consumer.read(&mut record);
    consumer.release();
    let (kind, flags, stream) = (descriptor.kind, descriptor.flags, descriptor.stream);
    called.say(&(What { kind, flags, stream }, record));
    called.ends(0, "its own").await;
    // And one that is not sealed at all.
    let mut called = Called::new(&two, 4);
    let what = What { kind: Kind::Frame as u8, flags: HEAD | END, stream: 1 };
    let mut plain = Vec::new();
    let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a.B/C", 0);
    frame::write_block(&mut plain, head).unwrap();
    called.say(&(what, plain));
    called.ends(0, "plain").await;
}

/// Whoever has the memory mapped sees nothing of what passes.
#[test]
fn nothing_of_a_message_lies_in_a_sealed_ring() {
    const SECRET: &[u8] = b"a secret that nobody else is to see";
    let two = Two::new();
    let (mut callers, mut servers) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut calling, first, mut serving) = two.again(1);
    let sides = (&mut calling, &first[..], &mut serving);
    let ([one, other], _) = shake(sides, &mut callers, &mut servers).unwrap();
    let (mut outgoing, mut incoming) = (Outgoing::sealed(one.sealer), other.opener);
    let seen = |servers: &mut Ends, incoming: &mut partywall_trust::record::Opener| {
        let descriptor = servers.consumer.peek().unwrap().expect("a record");
        let mut record = Vec::new();
        servers.consumer.read(&mut record);
        servers.consumer.release();
        let is_in = record.windows(SECRET.len()).any(|part| part == SECRET);
        let what =
            What { kind: descriptor.kind, flags: descriptor.flags, stream: descriptor.stream };
        let len = incoming.open(what, &mut record).unwrap();
        (is_in, record[..len].to_vec())
    };
    // Written as it is, encoded, and across the end of the arena.
    for round in 0..400 {
        let data = SECRET.repeat(1 + round % 100);
        let frame = outgoing.reserve(&mut callers.producer, b"head", data.len()).unwrap().unwrap();
        if round % 2 == 0 {
            frame.send_data(0, 1, &data).unwrap();
        } else {
            let mut frame = frame;
            bytes::BufMut::put_slice(&mut frame.buffer(), &data);
            frame.send(0, 1).unwrap();
        }
        let (is_in, opened) = seen(&mut servers, &mut incoming);
        assert!(!is_in && opened == [b"head", &data[..]].concat(), "{round}");
    }
}
