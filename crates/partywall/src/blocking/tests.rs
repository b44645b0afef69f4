use partywall_abi::control::{self, Grant};
use partywall_abi::frame::{ATTACHED, Kind};
use partywall_abi::name::MethodSet;
use partywall_abi::version::Capabilities;
use partywall_call::cases;

use super::*;
use partywall_abi::layout::Geometry;
use partywall_shm::link::Ends;
use partywall_shm::setup::local_pair;

/// It said isolation `process` of every link.
#[test]
fn blocking_channel_has_the_security_of_its_terms() {
    use partywall_abi::control::Token;
    use partywall_abi::security::{Confidentiality, Evidence, Isolation, Security};
    use partywall_shm::setup::Adopted;
    use partywall_shm::{memory, socket};
    for isolation in Isolation::ALL {
        let security = Security::new(*isolation, Confidentiality::Space, Evidence::Started);
        let geometry = Geometry::DEFAULT;
        let [ours, theirs] = [(); 2].map(|()| memory::create(geometry).unwrap());
        let (socket, peers) = socket::link_pair().unwrap();
        let (socket, peers) = (socket.endpoint(), peers.endpoint());
        let server = Adopted::new(7, geometry, theirs.writer, peers).unwrap();
        let terms = Terms {
            link: 7,
            token: Token([1; 16]),
            geometry,
            peer: crate::fuzz::identity(),
            methods: MethodSet::all(),
            capabilities: Capabilities::NONE,
            security,
            sealing: None,
        };
        let (tracked, coordinator) = crate::coordinator::tests::tracked(7);
        let (own, servers) = (ours.writer, theirs.reader);
        let linked = Linked { terms, own, servers, socket, tracked };
        let opening = std::thread::spawn(move || {
            let until = Instant::now() + Duration::from_secs(5);
            Channel::opened(linked, &Pins::default(), until).unwrap()
        });
        // It has filled both outboxes when it says that it has adopted the link.
        crate::coordinator::tests::wait_for_adopted(&coordinator, 7);
        let server = server.open(ours.reader).unwrap();
        assert_eq!(opening.join().unwrap().server.security(), security);
        drop(server);
    }
}

/// An open link, what the coordinator reaches it by, and the coordinator's end.
fn opened(ours: Ends) -> (Open, Arc<Reached>, std::os::fd::OwnedFd) {
    let (tracked, coordinator) = crate::coordinator::tests::tracked(7);
    let link = Link::new(ours).unwrap();
    let bell = link.bell();
    let mut open = Open::new(link, crate::fuzz::stranger(), None);
    let end = Arc::new(Reached::new(bell, open.sent()));
    open.tracked = Some((tracked, Arc::clone(&end)));
    (open, end, coordinator)
}

#[test]
fn what_is_granted_counts_from_the_next_call_on() {
    let (ours, _theirs) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut open, end, _coordinator) = opened(ours);
    assert!(open.is_usable() && open.granted().is_none());
    let grant = Grant { descriptors: 2, leases: true };
    let (socket, _peers) = partywall_shm::socket::descriptor_pair().unwrap();
    assert!(end.grant(socket, grant).is_none(), "it keeps the socket");
    assert!(open.is_usable());
    assert_eq!(open.granted(), grant);
}

/// The server has said what it takes before this end has its socket: nothing more comes of it.
#[test]
fn a_grant_that_comes_after_the_servers_word_is_not_waited_for() {
    let (ours, mut theirs) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut open, end, _coordinator) = opened(ours);
    open.connection.agree(Capabilities::OWN);
    let word = 4_u32.to_le_bytes();
    assert!(theirs.producer.try_push(Kind::Parcels as u8, 0, 0, &[&word]).unwrap());
    assert!(open.is_usable() && open.granted().is_none());
    let (socket, _peers) = partywall_shm::socket::descriptor_pair().unwrap();
    assert!(end.grant(socket, Grant { descriptors: 1, leases: false }).is_none());
    let file = std::fs::File::open("/dev/null").unwrap();
    let attached = Attaching::of(vec![file.into()]).unwrap();
    let (message, headers) = (Message::Encoded(b""), &HeaderMap::new());
    let request =
        Request { path: "/a/b", method: None, headers, attached: Some(&attached), message };
    let mut call = call(Some(Instant::now() + Duration::from_millis(200)));
    // Nobody answers.
    assert!(matches!(
        open.exchange(&request, None, &mut Vec::new(), &mut call),
        Err(Failed::Expired)
    ));
    let flags = std::iter::from_fn(|| {
        let record = theirs.consumer.peek().unwrap()?;
        theirs.consumer.release();
        Some((record.kind, record.flags))
    });
    let sent = |(kind, flags)| kind == Kind::Frame as u8 && flags & ATTACHED != 0;
    assert!(flags.into_iter().any(sent), "the request has waited");
}

#[test]
fn server_that_takes_nothing_delays_no_deadline_loses_no_grant() {
    let (ours, theirs) = local_pair(Geometry::DEFAULT).unwrap();
    let mut open = Open::new(Link::new(ours).unwrap(), crate::fuzz::stranger(), None);
    let mut full = 0;
    while open.link.producer().try_push(Kind::Window as u8, 0, 9, &[&1_u32.to_le_bytes()]).unwrap()
    {
        full += 1;
    }
    let start = Instant::now();
    let soon = start + Duration::from_millis(50);
    let mut call = call(Some(soon));
    assert!(matches!(exchange(&mut open, b"", &mut call), Err(Failed::Expired)));
    assert!(open.release(&call, Code::DeadlineExceeded), "nothing of it was sent");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    // One that has begun is reset, when there is room.
    let mut taken = theirs.consumer;
    taken.peek().unwrap().unwrap();
    taken.release();
    let soon = Instant::now() + Duration::from_millis(50);
    let mut call = self::call(Some(soon));
    assert!(matches!(exchange(&mut open, b"", &mut call), Err(Failed::Expired)));
    assert!(!open.release(&call, Code::DeadlineExceeded), "the link is to end");
    assert!(open.connection.has_control());
    // The server wakes up.
    let mut kinds = Vec::new();
    while let Some(d) = taken.peek().unwrap() {
        kinds.push(d.kind);
        taken.release();
        open.send_control().unwrap();
    }
    assert_eq!(kinds.len(), full + 1);
    assert_eq!(kinds.pop(), Some(Kind::Reset as u8));
    assert_eq!(kinds.pop(), Some(Kind::Frame as u8));
    assert!(!open.connection.has_control());
}

fn exchange(open: &mut Open, message: &[u8], call: &mut Call) -> Result<(), Failed> {
    let (message, headers) = (Message::Encoded(message), &HeaderMap::new());
    let request = Request { path: "/a/b", method: None, headers, attached: None, message };
    open.exchange(&request, None, &mut Vec::new(), call)
}

fn call(deadline: Option<Instant>) -> Call {
    Call { key: None, answer: Answer::default(), limit: limits::MESSAGE_BYTES_MAX, deadline }
}

/// A call of one byte to a server that does this; how it ends, and whom the coordinator hears blamed.
fn answered_by(
    common: Capabilities,
    server: impl FnOnce(&mut Ends),
) -> Result<(), (String, Option<control::Blame>)> {
    // One record holds more than a window.
    let (ours, mut theirs) = local_pair(Geometry::new(64, 20 << 20).unwrap()).unwrap();
    let (mut open, _end, coordinator) = opened(ours);
    open.connection.agree(common);
    server(&mut theirs);
    let soon = Instant::now() + Duration::from_secs(5);
    match exchange(&mut open, b"x", &mut call(Some(soon))) {
        Ok(()) => Ok(()),
        Err(Failed::Link(why)) => {
            let status = open.end(&why);
            Err((status.message().into(), Some(crate::coordinator::tests::blamed(&coordinator))))
        }
        Err(other) => Err((format!("{other:?}"), None)),
    }
}

/// A server that sends the records.
fn sends(records: &[cases::Sent]) -> impl FnOnce(&mut Ends) {
    move |end| {
        for (kind, flags, stream, payload) in records {
            assert!(end.producer.try_push(*kind, *flags, *stream, &[payload]).unwrap());
        }
    }
}

#[test]
fn a_server_that_floods_a_blocking_channel_with_bells_is_blamed() {
    let ended = answered_by(Capabilities::OWN, |theirs| {
        let ring = || theirs.bell.carry_out(partywall_shm::ring::Wake::Doorbell);
        // Until the link is hung up.
        let begin = Instant::now();
        while ring().is_ok() && !theirs.bell.is_dead() && begin.elapsed().as_secs() < 1 {}
    });
    let (why, blame) = ended.unwrap_err();
    assert!(why.contains("floods the link"), "{why}");
    assert_eq!(blame, Some(control::Blame::Peer), "{why}");
}

#[test]
fn blocking_channel_ends_a_link_on_each_broken_rule_with_blame() {
    for records in cases::honest_services() {
        assert_eq!(answered_by(Capabilities::OWN, sends(&records)), Ok(()));
    }
    for case in cases::services() {
        let expected = match case.rule {
            Some(rule) => partywall_call::Error::from(rule).to_string(),
            None => "the peer sent a record that cannot be read".into(),
        };
        let (why, blame) = answered_by(case.capabilities(), sends(&case.records)).unwrap_err();
        assert!(why.contains(&expected), "{why} is not {expected}");
        assert_eq!(blame, Some(control::Blame::Peer), "{why}");
    }
}
