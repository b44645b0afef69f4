use partywall_abi::name::MethodSet;

use super::*;
use partywall_abi::layout::Geometry;
use partywall_shm::setup::local_pair;

/// It said isolation `process` of every link.
#[test]
fn the_security_of_a_blocking_channel_is_what_the_coordinator_told() {
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
            capabilities: partywall_abi::version::Capabilities::NONE,
            security,
        };
        let (booked, coordinator) = crate::agent::tests::booked(7);
        let (own, servers) = (ours.writer, theirs.reader);
        let linked = Linked { terms, own, servers, socket, booked };
        let opening = std::thread::spawn(move || {
            Channel::opened(linked, Instant::now() + Duration::from_secs(5)).unwrap()
        });
        // It has filled both outboxes when it says that it has adopted the link.
        crate::agent::tests::wait_for_adopted(&coordinator, 7);
        let server = server.open(ours.reader).unwrap();
        assert_eq!(opening.join().unwrap().server.security(), security);
        drop(server);
    }
}

#[test]
fn a_server_that_takes_nothing_delays_no_deadline_and_loses_no_grant() {
    let (ours, theirs) = local_pair(Geometry::DEFAULT).unwrap();
    let mut open = Open::new(Link::new(ours).unwrap(), crate::fuzz::stranger());
    let window = |n: usize| (n as u32).to_le_bytes();
    let mut full = 0;
    while open.pending.is_empty() {
        open.control(Kind::Window, 0, &window(full)).unwrap();
        full += 1;
    }
    let start = Instant::now();
    wire::write_request_head(&mut open.block, "/a/b", &HeaderMap::new(), None).unwrap();
    let soon = start + Duration::from_millis(50);
    let (id, answer) = open.exchange(b"", 0, Some(soon));
    assert!(matches!(answer, Err(Failed::Expired)));
    assert!(!open.reset(id, Code::DeadlineExceeded), "the link is to end");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    // The server wakes up.
    let mut taken = theirs.consumer;
    let mut kinds = Vec::new();
    while let Some(d) = taken.peek().unwrap() {
        kinds.push(d.kind);
        taken.release();
        open.send_pending().unwrap();
    }
    assert_eq!(kinds.len(), full + 1);
    assert_eq!(kinds.pop(), Some(Kind::Reset as u8));
    assert!(kinds.iter().all(|&kind| kind == Kind::Window as u8));
    assert!(open.reset(id, Code::Cancelled));
    // One that never does is given up.
    let mut more = 0..2 * PENDING + full;
    let refused = more.find(|_| open.control(Kind::Window, 0, &window(0)).is_err());
    assert!(refused.is_some_and(|n| n >= PENDING));
}

/// One record of a service that breaks the rules: kind, flags, call, payload.
type Hostile = (Kind, u8, u32, Vec<u8>);

fn segment(flags: u8, data: usize) -> Hostile {
    use partywall_abi::segment::TRAILERS;
    let mut payload = Vec::new();
    if flags & HEAD != 0 {
        segment::write_block(&mut payload, |out| ResponseHead::write(out, 0));
    }
    if flags & TRAILERS != 0 {
        segment::write_block(&mut payload, |out| Trailers::write(out, 0, 0));
    }
    payload.resize(payload.len() + data, 7);
    (Kind::Segment, flags, 1, payload)
}

/// Sends the records to a call of one byte; how that ends.
fn answered_by(records: &[Hostile]) -> Result<Answer, Failed> {
    // One record holds more than a window.
    let room = Geometry::new(64, 64 << 20).unwrap();
    let (ours, mut theirs) = local_pair(room).unwrap();
    for (kind, flags, stream, payload) in records {
        let (kind, flags) = (*kind as u8, *flags);
        assert!(theirs.producer.try_push(kind, flags, *stream, &[payload]).unwrap());
    }
    let mut open = Open::new(Link::new(ours).unwrap(), crate::fuzz::stranger());
    wire::write_request_head(&mut open.block, "/a/b", &HeaderMap::new(), None).unwrap();
    let soon = Instant::now() + Duration::from_millis(500);
    open.exchange(b"x", limits::MESSAGE_BYTES_MAX, Some(soon)).1
}

#[test]
fn a_service_that_breaks_a_rule_of_calls_is_told_from_an_honest_one() {
    use partywall_abi::segment::TRAILERS;
    let window = |stream, credit: u32| (Kind::Window, 0, stream, credit.to_le_bytes().to_vec());
    let limits = |stream, window| {
        let limits = segment::Limits { streams: 1, window };
        (Kind::Limits, 0, stream, limits.encode().to_vec())
    };
    let room = |until: u64| (Kind::Room, 0, 1, until.to_le_bytes().to_vec());
    let all = limits::LINK_WINDOW;
    let whole = || segment(HEAD | TRAILERS | END, 10);
    let honest = [
        // What the message's one byte has used up.
        vec![limits(0, all), window(0, 1), window(1, 1), room(9), room(9), whole()],
        vec![segment(HEAD, limits::STREAM_WINDOW as usize), segment(TRAILERS | END, 0)],
    ];
    for records in &honest {
        assert!(answered_by(records).is_ok(), "{:?}", answered_by(records).err());
    }
    let over = "more data than was granted";
    let credit = "more credit than there is window";
    let broken = [
        (vec![window(0, 2)], credit),
        (vec![limits(0, all), window(0, 2)], credit),
        (vec![window(1, 2)], credit),
        (vec![window(1, u32::MAX)], credit),
        (vec![room(9), room(8)], credit),
        (vec![limits(0, all), limits(0, all)], "said before"),
        (vec![limits(1, all)], "limits of a stream"),
        (vec![segment(HEAD, 1), segment(HEAD, 1)], "a second head"),
        (vec![segment(HEAD | END, 1)], "without trailers"),
        (vec![segment(END, 0)], "without trailers"),
        (vec![segment(HEAD, limits::STREAM_WINDOW as usize + 1)], over),
        (vec![segment(HEAD, all as usize + 1)], over),
        (vec![segment(HEAD | segment::ROOM, 1)], over),
        (vec![(Kind::Message, 0, 1, vec![])], "a raw message"),
        (vec![(Kind::Segment, HEAD, 1, vec![0xff; 4])], "cannot be read"),
    ];
    for (records, rule) in broken {
        match answered_by(&records) {
            Err(Failed::Link(why)) => {
                assert!(why.to_string().contains(rule), "{why}, not {rule}");
                assert_eq!(why.blame(), partywall_shm::link::Blame::Peer, "{why}");
            }
            other => panic!("{rule}: {:?}", other.map(|_| "an answer")),
        }
    }
    // Data of a call that is over counts against the link's window like any.
    let (kind, flags, _, payload) = segment(0, all as usize + 1);
    assert!(matches!(answered_by(&[(kind, flags, 7, payload)]), Err(Failed::Link(_))));
}
