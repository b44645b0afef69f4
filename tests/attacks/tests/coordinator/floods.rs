//! Row 31: more than anybody needs, slower than anybody waits, and pieces of what is whole.
//!
//! Who floods is a principal with a quota, and so an account of its own; its victims are another account.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use partywall_abi::control::{Message, RegistryMessage, SessionMessage};
use partywall_abi::limits;
use partywall_attacks::{Town, Victim, name};
use partywall_shm::socket;
use partywall_testkit::{Conversation, Held, is_full};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{OPEN, PROGRAMS, RESOURCE_EXHAUSTED, connect, principal, turned_away};

/// Most that a step of an honest process may take meanwhile. Who waited for all of a flood would wait for
/// longer; other programs may have the processors for a while.
fn in_time() -> Duration {
    Duration::from_millis(if is_full() { 50 } else { 2000 })
}

struct Flooded {
    town: Town,
    witness: Victim,
    hostile: Conversation,
    held: Held,
    _service: Victim,
}

impl Flooded {
    fn new() -> Self {
        let hostile = principal("hostile", Path::new(&std::env::current_exe().unwrap()));
        let policy = format!("{hostile}[principal.hostile.quota]\nregistrations = 16\n{OPEN}");
        let town = Town::new(*PROGRAMS, &policy);
        let service = town.service(&[]);
        let (witness, hostile) = (town.witness(), town.hostile());
        assert_eq!(hostile.you().principals, ["hostile"]);
        let held = Held::by(town.coordinator.pid());
        Self { town, witness, hostile, held, _service: service }
    }

    /// A call and a new link of somebody else's; the slower one.
    fn others(&mut self) -> Duration {
        let mut slowest = Duration::ZERO;
        for step in ["call 100", "open", "call 100"] {
            let begin = Instant::now();
            let said = self.witness.asked(step);
            assert!(said == "ok" || said == "open", "{said}");
            slowest = slowest.max(begin.elapsed());
        }
        slowest
    }

    /// The coordinator has no more than before.
    fn back_as_before(self) {
        let Self { town, mut witness, hostile, held, _service } = self;
        drop(hostile);
        assert_eq!(witness.asked("call 100"), "ok");
        held.wait_for(town.coordinator.pid());
    }
}

#[test]
fn row_31_a_hundred_thousand_registrations_are_sixteen() {
    const ALL: u32 = 100_000;
    let mut flooded = Flooded::new();
    let (mut asked, mut served, mut refused, mut slowest) = (0, 0, 0, Duration::ZERO);
    let mut next = Instant::now();
    while served + refused < ALL {
        let register =
            RegistryMessage::Register { request: asked, name: name("bad"), places: u32::MAX };
        let sent = asked < ALL && flooded.hostile.try_say(&register.into()).unwrap();
        asked += u32::from(sent);
        while let Ok(Some((message, _))) = flooded.hostile.now() {
            match message {
                Message::Registry(RegistryMessage::Registered { .. }) => served += 1,
                Message::Session(SessionMessage::Refused { code, text, .. }) => {
                    assert_eq!(code, RESOURCE_EXHAUSTED, "{text}");
                    assert_eq!(
                        text,
                        "principal `hostile` has 16 served names, the most that one may have"
                    );
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        if next.elapsed() > Duration::from_millis(100) {
            slowest = slowest.max(flooded.others());
            next = Instant::now();
        }
    }
    println!("{served} served, {refused} refused; others waited {slowest:?} at most");
    assert_eq!(served, 16);
    assert!(slowest < in_time(), "others waited {slowest:?}");
    flooded.back_as_before();
}

/// Who does not read is not read; when it does, it has its answers, one for each question that was taken.
#[test]
fn row_31_a_slow_reader_is_not_read_and_loses_nothing() {
    let mut flooded = Flooded::new();
    let begin = Instant::now();
    let mut taken = 0;
    while begin.elapsed() < Duration::from_millis(500) {
        match flooded.hostile.try_say(&connect(taken, "nobody")).unwrap() {
            true => taken += 1,
            false => {
                let waited = flooded.others();
                assert!(waited < in_time(), "others waited {waited:?}");
            }
        }
    }
    // What two sockets hold, and 32 more.
    assert!((64..2000).contains(&taken), "{taken} questions are taken of who reads no answer");
    for request in 0..taken {
        let Message::Session(SessionMessage::Refused { request: of, .. }) =
            flooded.hostile.next().unwrap().0
        else {
            panic!("no answer")
        };
        assert_eq!(of, request);
    }
    flooded.back_as_before();
}

#[test]
fn row_31_pieces_of_packets_end_their_connection() {
    let mut flooded = Flooded::new();
    let whole = Message::from(RegistryMessage::Watch { request: 1, name: name("test") }).encode();
    let too_long = vec![0; limits::CONTROL_BYTES + 1];
    let longer = [&whole[..], &[0]].concat();
    let pieces = (0..whole.len()).map(|len| &whole[..len]);
    for piece in pieces.chain([&longer[..], &too_long]) {
        // Proven, and not.
        let proven = flooded.town.hostile();
        socket::send(proven.as_fd(), piece, &[]).unwrap();
        assert!(proven.next_or_end().unwrap().is_none(), "{} bytes", piece.len());
        let silent = Conversation::connect(&flooded.town.socket()).unwrap();
        silent.challenge().unwrap();
        socket::send(silent.as_fd(), piece, &[]).unwrap();
        let why = turned_away(&silent);
        let expected = match piece.len() {
            0 => "the process has closed the socket",
            len if len > limits::CONTROL_BYTES => {
                "a packet that is too long or carries descriptors"
            }
            _ => "a packet that is no message: ",
        };
        assert!(why.starts_with(expected), "{} bytes: {why}", piece.len());
    }
    // A byte at a time, on as many connections: the first byte is one too few.
    for byte in &whole {
        let hostile = flooded.town.hostile();
        socket::send(hostile.as_fd(), &[*byte], &[]).unwrap();
        assert!(hostile.next_or_end().unwrap().is_none());
    }
    assert!(flooded.others() < in_time());
    flooded.back_as_before();
}

/// As many descriptors as a packet may have (SCM_MAX_FD), and one more. From Linux 6.16 on their sender is
/// refused; before, the kernel closes what nobody has room for, and the connection ends.
#[test]
fn row_31_floods_of_descriptors_leave_none() {
    let mut flooded = Flooded::new();
    let files: Vec<_> = (0..254).map(|_| std::fs::File::open("/proc/self/exe").unwrap()).collect();
    let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let (_ours, theirs) = socket::pair().unwrap();
    let refuses = socket::refuse_descriptors(theirs.as_fd());
    let packet = connect(1, "test").encode();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(254))];
    for round in 0..200 {
        let hostile = flooded.town.hostile();
        for count in [254, 253, 1] {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&all[..count])));
            let data = [std::io::IoSlice::new(&packet)];
            let sent = rustix::net::sendmsg(&hostile, &data, &mut ancillary, SendFlags::empty());
            match (count, refuses) {
                (254, _) => assert_eq!(sent, Err(Errno::INVAL)),
                (_, true) => assert_eq!(sent, Err(Errno::PERM)),
                (_, false) => {
                    sent.unwrap();
                    assert!(hostile.next_or_end().unwrap().is_none());
                    break;
                }
            }
        }
        if round % 50 == 0 {
            assert!(flooded.others() < in_time());
        }
    }
    flooded.back_as_before();
}
