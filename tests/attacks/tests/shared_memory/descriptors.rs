//! Rows 24 and 25: memory that can be taken away, and descriptors that are no memory.
//!
//! Untried is a file of FUSE: it needs a device and a right that the tests do not have. It is no memfd, as
//! the files that are tried are none, and it is told from one by the same system call, which asks no file
//! system.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use partywall_abi::control::{EndMessage, LinkMessage, Message, RegistryMessage, Setup};
use partywall_abi::frame::{END, HEAD, Kind, Owned, PARCEL, ParcelRef, TRAILERS};
use partywall_abi::layout::{self, Geometry};
use partywall_abi::limits;
use partywall_abi::sync::Ordering;
use partywall_attacks::{
    Hand, Town, UNARY, call_head, good_answer, message, name, register, request,
};
use partywall_shm::memory;
use partywall_shm::socket::{self, Passed};
use partywall_testkit::{Conversation, PATIENCE, lingering};
use prost::Message as _;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::{Attacked, CALLERS, OPEN, PARCELS, PROGRAMS, callers_end};

pub(super) const FRAME: u8 = Kind::Frame as u8;
pub(super) const PAGE: u64 = 4096;

/// What a peer must not do to memory that it has given away: each is refused by the kernel.
fn takes_nothing_back(memory: &OwnedFd) {
    let refused = [Errno::PERM, Errno::ACCESS, Errno::BADF, Errno::INVAL, Errno::TXTBSY];
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let again = OpenOptions::new().read(true).write(true).open(path).ok().map(OwnedFd::from);
    for file in again.iter().chain([memory]) {
        for len in [0, PAGE, 1 << 30] {
            let cut = rustix::fs::ftruncate(file, len).unwrap_err();
            assert!(refused.contains(&cut), "{cut}");
        }
        let punched = rustix::fs::fallocate(file, punch, 0, PAGE).unwrap_err();
        assert!(refused.contains(&punched), "{punched}");
        let written = rustix::io::pwrite(file, b"x", 0).unwrap_err();
        assert!(refused.contains(&written), "{written}");
        for seal in [SealFlags::WRITE, SealFlags::GROW, SealFlags::empty()] {
            assert_eq!(rustix::fs::fcntl_add_seals(file, seal), Err(Errno::PERM));
        }
    }
}

/// Every page of an outbox, written and not mapped.
fn fill(memory: &OwnedFd, geometry: Geometry) {
    let zeros = vec![0; geometry.outbox_bytes()];
    assert_eq!(rustix::io::pwrite(memory, &zeros, 0), Ok(zeros.len()));
}

fn adopted(by: &Conversation, terms: &partywall_abi::control::Terms) {
    let (link, security) = (terms.link, terms.security);
    by.say(&Message::Link(LinkMessage::Adopted { link, security })).unwrap();
}

/// What an end is told of the end of its link.
fn told(by: &Conversation, of: u64) -> (u8, String) {
    loop {
        if let Message::End(EndMessage::Ended { link, code, text, .. }) = by.next().unwrap().0
            && link == of
        {
            return (code, text);
        }
    }
}

/// FAILED_PRECONDITION.
const NOT_READY: u8 = 9;

#[test]
fn row_24_a_callers_outbox_that_can_be_cut_opens_no_link() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let connect = Message::Link(LinkMessage::Connect { request: 7, name: name("test") });
    // Whole, and not sealed by its owner; sealed, and with holes; neither.
    for (seals, fills, finding) in [
        (false, true, "seals 0x6 where 0x17 are needed"),
        (true, false, "0 bytes are allocated of 262144: the memory has holes"),
        (false, false, "seals 0x6 where 0x17 are needed"),
    ] {
        let hostile = attacked.town.hostile();
        hostile.say(&connect).unwrap();
        let (terms, own, servers, _end) = hostile.linked().unwrap();
        // Its maker has seen to it that nobody can cut it, its owner included.
        assert_eq!(rustix::fs::ftruncate(&own, 0), Err(Errno::PERM));
        if seals {
            let _outbox = memory::adopt(own.as_fd(), terms.geometry).unwrap();
        }
        if fills {
            fill(&own, terms.geometry);
            let inbox = memory::accept(servers.as_fd(), terms.geometry).unwrap();
            memory::fill_peers(&inbox).unwrap();
        }
        adopted(&hostile, &terms);
        let (code, text) = told(&hostile, terms.link);
        assert_eq!(code, NOT_READY, "{text}");
        assert!(text.contains(finding), "{text}");
        attacked.town.blamed(terms.link, Some(finding));
        assert!(attacked.town.events("introduced").iter().all(|line| line["link"] != terms.link));
        attacked.serves();
    }
}

#[test]
fn row_24_a_services_outbox_that_can_be_cut_opens_no_link() {
    let town = Town::new(PROGRAMS, OPEN);
    let _service = town.service(&[]);
    for arguments in CALLERS {
        let hostile = town.hostile();
        let registration = register(&hostile, "bad").unwrap();
        let mut caller = town.caller(&[arguments, &["--name", "bad"]].concat());
        caller.say("open");
        let (terms, own, _end) = hostile.offered().unwrap();
        assert_eq!(rustix::fs::ftruncate(&own, 0), Err(Errno::PERM));
        adopted(&hostile, &terms);
        let finding = "its server says that an outbox is ready, and it is not: seals 0x6 where 0x17 are needed";
        assert_eq!(
            caller.line(),
            format!("Unavailable: the one instance of `bad` has not taken the link: {finding}")
        );
        let (_, text) = told(&hostile, terms.link);
        assert!(text.contains("seals 0x6 where 0x17 are needed"), "{text}");
        town.blamed(terms.link, Some(finding));
        // The next one is the one instance.
        hostile.say(&RegistryMessage::Unregister { registration }.into()).unwrap();
        hostile.say(&RegistryMessage::Watch { request: 2, name: name("bad") }.into()).unwrap();
        let nobody = RegistryMessage::Watched { request: 2, instances: 0 };
        assert_eq!(hostile.next().unwrap().0, nobody.into());
    }
    town.witness();
}

#[test]
fn row_24_an_open_links_memory_cannot_be_taken_away() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let hostile = attacked.town.hostile();
    hostile.say(&Message::Link(LinkMessage::Connect { request: 7, name: name("test") })).unwrap();
    let (terms, own, servers, end) = hostile.linked().unwrap();
    let outbox = memory::adopt(own.as_fd(), terms.geometry).unwrap();
    memory::fill_own(&outbox).unwrap();
    memory::begin(&outbox, terms.geometry);
    let inbox = memory::accept(servers.as_fd(), terms.geometry).unwrap();
    memory::fill_peers(&inbox).unwrap();
    adopted(&hostile, &terms);
    assert!(socket::wait_readable(end.as_fd(), Instant::now() + PATIENCE).unwrap());
    // Its own outbox, which the service reads; and the service's.
    for memory in [&own, &servers] {
        takes_nothing_back(memory);
    }
    // The link is as good as before.
    drop((outbox, inbox, end));
    attacked.serves();
}

pub(super) fn memfd(len: u64, written: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("x", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    assert_eq!(rustix::io::pwrite(&file, &vec![7; written], 0), Ok(written));
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

pub(super) const ALL: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Sends a packet by hand, and names it in a record.
fn send(socket: &Passed, number: u64, files: &[OwnedFd]) {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    socket::send(socket.as_fd(), &number.to_le_bytes(), &files).unwrap();
}

/// A link over which descriptors cross, when the service takes the first one.
pub(super) fn granted(attacked: &Attacked) -> (Hand, Passed) {
    let mut hand = attacked.link();
    let socket = Hand::granted(&attacked.hostile).unwrap();
    while hand.hear().unwrap().0 != Kind::Parcels {}
    (hand, socket)
}

fn named(hand: &mut Hand, stream: u32, packet: u64, offset: u64, bytes: u64) {
    let parcel = ParcelRef { packet, offset, bytes, owned: None };
    let payload = call_head(UNARY, &parcel.encode());
    hand.try_say(FRAME, HEAD | END | PARCEL, stream, &payload).unwrap();
}

/// What is no parcel: what it is, where bytes are said to lie in it, and what comes of that.
pub(super) fn no_parcels(dir: &Path) -> Vec<(&'static str, OwnedFd, (u64, u64), &'static str)> {
    let open = |path: &Path| OwnedFd::from(std::fs::File::open(path).unwrap());
    let plain = dir.join("plain");
    std::fs::write(&plain, [7; 2 * PAGE as usize]).unwrap();
    // A memfd that takes no seals is what a file on a tmpfs is.
    let on_tmpfs = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&on_tmpfs, PAGE).unwrap();
    let (socket, _other) = socket::pair().unwrap();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let whole = |seals| memfd(2 * PAGE, 2 * PAGE as usize, seals);
    let by_path = |flags| {
        let file = whole(ALL);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap()
    };
    let none = "parcel: not a memfd with seals on tmpfs";
    let short = "parcel: 8192 bytes, and something in it is said to end at";
    vec![
        ("a file", open(&plain), (0, PAGE), none),
        ("a file on tmpfs", on_tmpfs, (0, PAGE), "parcel: seals 0x1 where 0xf are needed"),
        ("a directory", open(dir), (0, PAGE), none),
        ("a device", open(Path::new("/dev/zero")), (0, PAGE), none),
        ("a program", open(Path::new("/proc/self/exe")), (0, PAGE), none),
        ("a socket", socket, (0, PAGE), none),
        ("a pipe", pipe, (0, PAGE), none),
        ("an eventfd", event, (0, PAGE), none),
        ("a path", by_path(rustix::fs::OFlags::PATH), (0, PAGE), none),
        ("no seal", whole(SealFlags::empty()), (0, PAGE), "parcel: seals 0x0 where 0xf are needed"),
        (
            "a size that can be cut",
            whole(ALL.difference(SealFlags::SHRINK)),
            (0, PAGE),
            "parcel: seals 0xd where 0xf are needed",
        ),
        (
            "bytes that can be written",
            whole(ALL.difference(SealFlags::WRITE)),
            (0, PAGE),
            "parcel: seals 0x7 where 0xf are needed",
        ),
        (
            "an outbox's seals",
            whole(SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL),
            (0, PAGE),
            "parcel: seals 0x17 where 0xf are needed",
        ),
        ("an end behind its own", whole(ALL), (PAGE, PAGE + 1), short),
        ("a begin behind its end", whole(ALL), (1 << 40, 1), short),
        (
            "an exabyte of nothing",
            memfd(1 << 60, 0, ALL),
            (0, 1 << 59),
            "parcel: holes; it has pages for 0 bytes only",
        ),
        (
            "a page and a hole",
            memfd(1 << 60, 4096, ALL),
            (0, 4097),
            "parcel: holes; it has pages for 4096 bytes only",
        ),
        (
            "one that cannot be read",
            by_path(rustix::fs::OFlags::WRONLY),
            (0, PAGE),
            "parcel: mmap: Permission denied (os error 13)",
        ),
    ]
}

/// The half of the table that begins with `from`; the audit log has so many lines of an account at once.
fn in_halves<T>(mut all: Vec<T>) -> [Vec<T>; 2] {
    let rest = all.split_off(all.len() / 2);
    [all, rest]
}

fn services_end_links_for_what_is_no_parcel(service: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    for part in in_halves(no_parcels(dir.path())) {
        let mut attacked = Attacked::new(PARCELS, service);
        for (what, file, (offset, bytes), why) in part {
            let (mut hand, socket) = granted(&attacked);
            send(&socket, 0, &[file]);
            named(&mut hand, 1, 0, offset, bytes);
            let found = attacked.ends_somehow(hand);
            assert!(found.starts_with(why), "{what}: {found}");
        }
    }
}

#[test]
fn row_25_what_is_no_parcel_ends_the_link_of_a_service() {
    services_end_links_for_what_is_no_parcel(&[]);
}

#[test]
fn row_25_what_is_no_parcel_ends_the_link_of_a_native_service() {
    services_end_links_for_what_is_no_parcel(&["--native"]);
}

#[test]
fn row_25_what_is_no_parcel_ends_the_link_of_a_caller() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = ["a socket", "a size that can be cut", "an exabyte of nothing"];
    for (what, file, (offset, bytes), why) in no_parcels(dir.path()) {
        if !wanted.contains(&what) {
            continue;
        }
        let attack = |hostile: &Conversation, hand: &mut Hand| {
            let socket = Hand::granted(hostile).unwrap();
            send(&socket, 0, &[file.try_clone().unwrap()]);
            let parcel = ParcelRef { packet: 0, offset, bytes, owned: None };
            let payload = good_answer(&parcel.encode());
            hand.try_say(FRAME, HEAD | TRAILERS | END | PARCEL, hand.stream, &payload).unwrap();
        };
        callers_end(PARCELS, attack, why);
    }
}

/// Memory of a link's pool is checked as any other parcel, and closed where nobody waits for that.
#[test]
fn row_25_what_is_no_owned_parcel_ends_the_link_of_a_service() {
    let (mut attacked, begin) = (Attacked::new(PARCELS, &[]), Instant::now());
    let (slow, _other) = lingering(Duration::from_secs(60)).unwrap();
    let program = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let seals = ALL.difference(SealFlags::WRITE).union(SealFlags::FUTURE_WRITE);
    let whole = |seals| memfd(2 * PAGE, 2 * PAGE as usize, seals);
    let (long, bytes) = (whole(seals), 2 * PAGE);
    for (what, file, bytes, why) in [
        ("a slow socket", slow, bytes, "parcel: not a memfd with seals on tmpfs"),
        ("a program", program, bytes, "parcel: not a memfd with seals on tmpfs"),
        ("a sealed parcel", whole(ALL), bytes, "parcel: seals 0xf where 0x17 are needed"),
        ("half of it", memfd(bytes, 4096, seals), bytes, "parcel: holes; it has pages for 4096"),
        ("a long message", long, bytes + 1, "parcel: 8192 bytes, and something in it is said"),
    ] {
        let (mut hand, socket) = granted(&attacked);
        // Its last close is the service's.
        send(&socket, 0, &[file]);
        let owned = Some(Owned { place: 0, generation: 1 });
        let parcel = ParcelRef { packet: 0, offset: 0, bytes, owned };
        let payload = call_head(UNARY, &parcel.encode());
        hand.try_say(FRAME, HEAD | END | PARCEL, 1, &payload).unwrap();
        let found = attacked.ends_somehow(hand);
        assert!(found.starts_with(why), "{what}: {found}");
        attacked.held.wait_for(attacked.service.pid());
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "somebody waits for a slow close");
    attacked.serves();
}

/// The link goes on: what is too long is its call's end, and what lies anywhere in a parcel is read there.
#[test]
fn row_25_a_long_parcel_ends_its_call_a_crooked_one_is_read() {
    let mut attacked = Attacked::new(PARCELS, &[]);
    let (mut hand, socket) = granted(&attacked);
    let long = 8 << 20;
    let whole = message(&vec![0; long]);
    let file = memfd(whole.len() as u64, 0, SealFlags::empty());
    assert_eq!(rustix::io::pwrite(&file, &whole, 0), Ok(whole.len()));
    rustix::fs::fcntl_add_seals(&file, ALL).unwrap();
    send(&socket, 0, &[file]);
    named(&mut hand, 1, 0, 0, whole.len() as u64);
    let (code, text) = hand.status(1).unwrap();
    assert_eq!(
        (code, &*text),
        (
            11,
            "Error, decoded message length too large: found 8388608 bytes, the limit is: 4194304 bytes"
        )
    );
    let asked = message(&request(1, 3000).encode_to_vec());
    let at = 5001;
    let file = memfd(PAGE * 3, 0, SealFlags::empty());
    let all = [&vec![9; at][..], &asked, &vec![9; 12288 - at - asked.len()]].concat();
    assert_eq!(rustix::io::pwrite(&file, &all, 0), Ok(all.len()));
    rustix::fs::fcntl_add_seals(&file, ALL).unwrap();
    send(&socket, 1, &[file]);
    named(&mut hand, 2, 1, at as u64, asked.len() as u64);
    assert_eq!(hand.status(2).unwrap(), (0, String::new()));
    attacked.stays(hand);
}

/// Descriptors cross on the descriptor socket alone, and there only where a rule grants it. From Linux 6.16
/// on the kernel refuses them to who sends them. Before, one lies on a link's own socket, where nobody
/// takes it, until the socket is emptied of bells: after so many sleeps at most.
#[test]
fn row_25_descriptors_cross_nowhere_else() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let file = memfd(PAGE, 4096, ALL);
    let (ours, theirs) = socket::pair().unwrap();
    let refuses = socket::refuse_descriptors(theirs.as_fd());
    drop((ours, theirs));
    let mut hand = attacked.link();
    match socket::send(hand.bare(), b"x", &[file.as_fd()]) {
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(Errno::PERM.raw_os_error()));
            attacked.stays(hand);
        }
        Ok(()) => {
            assert!(!refuses);
            let request = call_head("/x.Y/Z", b"");
            let mut calls = (1..).step_by(2).take(2 * limits::UNREAD_BELLS as usize);
            let within = Duration::from_millis(10);
            let is_ended = calls.any(|call| {
                let sent = hand.say(FRAME, HEAD | END, call, &request).and_then(|()| hand.wake());
                sent.unwrap();
                while !hand.is_ended().unwrap() {
                    if hand.hear_within(within).unwrap().is_some_and(|said| said.2 == call) {
                        return false;
                    }
                }
                true
            });
            assert!(is_ended, "{:?}", attacked.service.logged());
            attacked.ends(hand, "setup message: with descriptors where none belong");
        }
    }
    let hostile = attacked.town.hostile();
    let packet = Message::Link(LinkMessage::Connect { request: 7, name: name("test") }).encode();
    match socket::send(hostile.as_fd(), &packet, &[file.as_fd()]) {
        Err(e) => assert_eq!(e.raw_os_error(), Some(Errno::PERM.raw_os_error())),
        Ok(()) => assert!(hostile.next_or_end().unwrap().is_none()),
    }
    // A parcel on a link without a descriptor socket.
    let mut hand = attacked.link();
    named(&mut hand, 1, 0, 0, 1);
    attacked.ends(
        hand,
        "the peer broke a rule of the call protocol: a parcel more than its receiver takes",
    );
}

/// What an outbox says of itself is compared with what the coordinator has said, on either side: nobody
/// goes by it.
#[test]
fn row_22_a_header_that_disagrees_opens_no_link() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let why = "outbox: the outbox's own header disagrees with what was agreed";
    let fields = [layout::MAGIC_AT, layout::VERSION_AT, layout::SLOTS_AT, layout::ARENA_BYTES_AT];
    for at in fields {
        let hostile = attacked.town.hostile();
        let connect = LinkMessage::Connect { request: 7, name: name("test") };
        hostile.say(&connect.into()).unwrap();
        let (terms, own, servers, end) = hostile.linked().unwrap();
        let outbox = memory::adopt(own.as_fd(), terms.geometry).unwrap();
        memory::fill_own(&outbox).unwrap();
        memory::begin(&outbox, terms.geometry);
        outbox.u32(at).fetch_add(1, Ordering::Relaxed);
        let inbox = memory::accept(servers.as_fd(), terms.geometry).unwrap();
        memory::fill_peers(&inbox).unwrap();
        adopted(&hostile, &terms);
        let words = ["a link was not opened", &format!("link={} ", terms.link), why];
        attacked.service.logs(&words);
        attacked.town.blamed(terms.link, None);
        drop((outbox, inbox, end));
        attacked.serves();
    }
    for (arguments, at) in CALLERS.iter().zip(fields) {
        let hostile = attacked.town.hostile();
        register(&hostile, "bad").unwrap();
        let mut caller = attacked.town.caller(&[*arguments, &["--name", "bad"]].concat());
        caller.say("open");
        let (terms, own, end) = hostile.offered().unwrap();
        let outbox = memory::adopt(own.as_fd(), terms.geometry).unwrap();
        adopted(&hostile, &terms);
        hostile.opened().unwrap();
        memory::begin(&outbox, terms.geometry);
        outbox.u32(at).fetch_add(1, Ordering::Relaxed);
        socket::send(end.as_fd(), &Setup { link: terms.link }.encode(), &[]).unwrap();
        let said = caller.line();
        let remedy = "remedy: build the service and this program from the same release";
        assert_eq!(said, format!("Unavailable: link: {why}; {remedy}"), "{arguments:?}");
        attacked.town.blamed(terms.link, None);
    }
    attacked.serves();
}
