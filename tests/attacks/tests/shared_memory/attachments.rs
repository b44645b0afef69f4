//! Row 25, of what is attached to calls: what is not what its sender says ends its call and nothing else, and
//! a broken rule ends the link. Memory that its sender changes meanwhile is other bytes, or is told.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use partywall::parcel::Owned;
use partywall_abi::frame::{
    self, ATTACHED, Attached, END, HEAD, Item, KNOWN, Place, ResponseHead, TRAILERS, Trailers,
};
use partywall_abi::limits;
use partywall_attacks::{Hand, Town, UNARY, Victim, call_head, message, request};
use partywall_interop::proto::SimpleResponse;
use partywall_shm::socket::{self, Passed};
use partywall_testkit::{Conversation, PATIENCE, lingering};
use prost::Message as _;
use rustix::fs::{FallocateFlags, SealFlags};

use super::descriptors::{ALL, FRAME, PAGE, granted, memfd, no_parcels};
use super::{Attacked, CALLERS, LEASES, PARCELS, PROGRAMS, callers_end, opens};

/// Takes what is attached, and says what it was.
pub(super) const TAKES: &str = "/a.T/T";
/// Keeps it unread.
pub(super) const KEEPS: &str = "/a.B/C";
/// The status of an answer of [`TAKES`].
const ABORTED: u8 = 10;

pub(super) const LEASED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
pub(super) const OWNED: SealFlags = LEASED.union(SealFlags::FUTURE_WRITE);

/// A place of this end.
pub(super) const PLACE: Option<Place> = Place::new(0);

/// Longer than any test may take.
const SLOW: Duration = Duration::from_secs(60);

/// Memory files that a process has mapped, and its threads.
pub(super) fn mapped(pid: u32) -> (usize, usize) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    (maps.lines().filter(|line| line.contains("/memfd:")).count(), threads)
}

fn lease(generation: u64) -> Item {
    Item::Lease { bytes: 2 * PAGE, generation, place: PLACE }
}

fn owned(generation: u64) -> Item {
    Item::Owned { bytes: PAGE, generation, place: PLACE }
}

/// Memory of two pages of sevens, of which the second is the generation of an owned parcel.
pub(super) fn pages(seals: SealFlags, generation: u64) -> OwnedFd {
    let file = memfd(2 * PAGE, 2 * PAGE as usize, SealFlags::empty());
    if seals.contains(SealFlags::FUTURE_WRITE) {
        rustix::io::pwrite(&file, &generation.to_ne_bytes(), PAGE).unwrap();
    }
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// A service whose caller, this process, attaches what it likes.
pub(super) struct Attacking {
    attacked: Attacked,
    mapped: (usize, usize),
    pub(super) hand: Hand,
    socket: Passed,
    packets: u64,
    stream: u32,
}

impl Attacking {
    pub(super) fn new(service: &[&str]) -> Self {
        let attacked = Attacked::new(LEASES, service);
        let mapped = mapped(attacked.service.pid());
        Self::on(attacked, mapped)
    }

    pub(super) fn on(attacked: Attacked, mapped: (usize, usize)) -> Self {
        let (hand, socket) = granted(&attacked);
        Self { attacked, mapped, hand, socket, packets: 0, stream: 0 }
    }

    pub(super) fn packet(&mut self, files: &[BorrowedFd<'_>]) {
        socket::send(self.socket.as_fd(), &self.packets.to_le_bytes(), files).unwrap();
        self.packets += 1;
    }

    /// A call to which these are said to be attached, in the last packet.
    pub(super) fn call(&mut self, path: &str, items: &[Item]) -> u32 {
        self.say(path, ATTACHED, self.packets - 1, items)
    }

    /// A call with memory that has come before, as it says.
    pub(super) fn call_known(&mut self, path: &str, items: &[Item]) -> u32 {
        self.say(path, ATTACHED | KNOWN, 0, items)
    }

    pub(super) fn say(&mut self, path: &str, flags: u8, packet: u64, items: &[Item]) -> u32 {
        let mut attached = Vec::new();
        Attached::write(&mut attached, packet, items);
        self.stream += 1;
        let payload = call_head(path, &attached);
        self.hand.try_say(FRAME, HEAD | END | flags, self.stream, &payload).unwrap();
        self.stream
    }

    /// What the service says of these.
    pub(super) fn says(&mut self, files: &[BorrowedFd<'_>], items: &[Item]) -> String {
        self.packet(files);
        self.told(items)
    }

    /// What it says of those in the last packet.
    pub(super) fn told(&mut self, items: &[Item]) -> String {
        let stream = self.call(TAKES, items);
        self.taken(stream)
    }

    /// What it says of memory that has come before.
    pub(super) fn told_known(&mut self, items: &[Item]) -> String {
        let stream = self.call_known(TAKES, items);
        self.taken(stream)
    }

    fn taken(&mut self, stream: u32) -> String {
        let (code, text) = self.hand.status(stream).unwrap();
        assert_eq!(code, ABORTED, "{text}");
        text
    }

    /// The link ends with blame for this; another one begins.
    pub(super) fn ends(self, why: &str) -> Self {
        let Self { mut attacked, mapped, hand, socket, .. } = self;
        let found = attacked.ends_somehow(hand);
        assert!(found.contains(why), "{found}");
        drop(socket);
        is_as_before(&attacked, mapped);
        Self::on(attacked, mapped)
    }

    /// The link is as good as before, and nothing is left of it.
    pub(super) fn stays(mut self) {
        let good = pages(LEASED, 0);
        assert_eq!(self.says(&[good.as_fd()], &[lease(1)]), "lease, 8192 of 7");
        self.attacked.stays(self.hand);
        drop(self.socket);
        is_as_before(&self.attacked, self.mapped);
    }
}

/// Nothing is mapped, and no thread runs, beyond what was before.
fn is_as_before(attacked: &Attacked, before: (usize, usize)) {
    attacked.town.until("end of what it has mapped", || {
        let now = mapped(attacked.service.pid());
        now.0 <= before.0 && now.1 <= before.1
    });
    attacked.held.wait_for(attacked.service.pid());
}

/// What it is, what it is said to be, and what comes of that.
type Case = (&'static str, OwnedFd, Item, String);

/// What is no owned parcel and no lease; the other ends of those whose close takes long.
fn not_attached() -> (Vec<Case>, [OwnedFd; 2]) {
    let ((first, one), (second, other)) = (lingering(SLOW).unwrap(), lingering(SLOW).unwrap());
    let program = || OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let none = || "parcel: not a memfd with seals on tmpfs".to_owned();
    let mut all = vec![
        ("a program as a lease", program(), lease(1), none()),
        ("a program as an owned parcel", program(), owned(0), none()),
        ("a slow socket as a lease", first, lease(1), none()),
        ("a slow socket as an owned parcel", second, owned(0), none()),
        ("a lease that is half there", memfd(2 * PAGE, 4096, LEASED), lease(1), hole(PAGE)),
        (
            "an owned parcel without a generation",
            memfd(2 * PAGE, 4096, OWNED),
            owned(0),
            hole(PAGE),
        ),
        ("a short lease", memfd(PAGE, 4096, LEASED), lease(1), short(PAGE, 2 * PAGE)),
        (
            "a long lease",
            pages(LEASED, 0),
            Item::Lease { bytes: PAGE, generation: 1, place: PLACE },
            short(2 * PAGE, PAGE),
        ),
        ("an owned parcel of a page", memfd(PAGE, 4096, OWNED), owned(0), short(PAGE, 2 * PAGE)),
        (
            "an owned parcel in which its generation lies",
            pages(OWNED, 0),
            Item::Owned { bytes: PAGE + 1, generation: 0, place: PLACE },
            short(2 * PAGE, PAGE + 1),
        ),
        (
            "an owned parcel of nearly all bytes",
            pages(OWNED, 0),
            Item::Owned { bytes: i64::MAX as u64, generation: 0, place: PLACE },
            short(2 * PAGE, i64::MAX as u64),
        ),
        (
            "a lease that is sealed",
            pages(ALL, 0),
            lease(1),
            "parcel: mmap: Operation not permitted (os error 1)".into(),
        ),
        ("an exabyte for a lease", memfd(1 << 60, 4096, LEASED), lease(1), hole(PAGE)),
    ];
    for missing in LEASED.iter().filter(|seal| *seal != SealFlags::SEAL) {
        let found = LEASED.difference(missing);
        let why = format!("parcel: seals {:#x} where 0x7 are needed", found.bits());
        all.push(("a lease without a seal", pages(found, 0), lease(1), why));
    }
    for missing in OWNED.iter().filter(|seal| *seal != SealFlags::SEAL) {
        let found = OWNED.difference(missing);
        let why = format!("parcel: seals {:#x} where 0x17 are needed", found.bits());
        all.push(("an owned parcel without a seal", pages(found, 0), owned(0), why));
    }
    (all, [one, other])
}

fn hole(at: u64) -> String {
    format!("parcel: holes; it has pages for {at} bytes only")
}

fn short(found: u64, wanted: u64) -> String {
    format!("parcel: {found} bytes, and something in it is said to end at {wanted}")
}

fn services_refuse(service: &[&str]) {
    let (dir, begin) = (tempfile::tempdir().unwrap(), Instant::now());
    let mut attacking = Attacking::new(service);
    let (all, others) = not_attached();
    for (what, file, item, why) in all {
        attacking.packet(&[file.as_fd()]);
        // Its last close is the service's.
        drop(file);
        assert_eq!(attacking.told(&[item]), why, "{what}");
    }
    for (what, file, (offset, bytes), why) in no_parcels(dir.path()) {
        let said = attacking.says(&[file.as_fd()], &[Item::Sealed { offset, bytes }]);
        assert!(said.starts_with(why), "{what}: {said}");
    }
    // One that is wrong among others.
    let (good, wrong) = (pages(LEASED, 0), pages(OWNED, 0));
    let files = [good.as_fd(), wrong.as_fd(), wrong.as_fd()];
    let said = attacking.says(&files, &[lease(1), owned(0), lease(1)]);
    assert!(said.contains("mmap"), "{said}");
    assert!(begin.elapsed() < SLOW / 2, "somebody waits for a slow close");
    drop(others);
    attacking.stays();
}

#[test]
fn row_25_what_is_not_as_said_ends_its_call_at_a_service() {
    services_refuse(&[]);
}

#[test]
fn row_25_what_is_not_as_said_ends_a_native_services_call() {
    services_refuse(&["--native"]);
}

/// A good answer to which these are said to be attached.
fn answer(packet: u64, items: &[Item]) -> Vec<u8> {
    let mut payload = Vec::new();
    frame::write_block(&mut payload, |out| ResponseHead::write(out, 0)).unwrap();
    Attached::write(&mut payload, packet, items);
    frame::write_block(&mut payload, |out| Trailers::write(out, 0, 0)).unwrap();
    payload.extend(message(&SimpleResponse::default().encode_to_vec()));
    payload
}

const ANSWERS: u8 = HEAD | TRAILERS | END | ATTACHED;

#[test]
fn row_25_what_is_not_as_said_is_told_to_a_caller() {
    let (town, begin) = (Town::new(PROGRAMS, LEASES), Instant::now());
    let _service = town.service(&[]);
    for arguments in CALLERS {
        let hostile = town.hostile();
        let (mut caller, mut hand) = opens(&town, &hostile, arguments);
        while !hand.takes_parcels {
            assert_eq!(answered(&mut caller, &mut hand), "ok");
        }
        let socket = Hand::granted(&hostile).unwrap();
        let mut packet = 0_u64;
        let mut says = |file: OwnedFd, item| {
            caller.say("take");
            hand.asked().unwrap();
            socket::send(socket.as_fd(), &packet.to_le_bytes(), &[file.as_fd()]).unwrap();
            drop(file);
            hand.try_say(FRAME, ANSWERS, hand.stream, &answer(packet, &[item])).unwrap();
            packet += 1;
            caller.line()
        };
        let (all, _others) = not_attached();
        for (what, file, item, why) in all {
            assert_eq!(says(file, item), why, "{what} {arguments:?}");
        }
        let good = pages(LEASED, 0);
        assert_eq!(says(good.try_clone().unwrap(), lease(2)), "lease, 8192 of 7");
        assert_eq!(says(good, lease(2)), stale(2, 2));
        for generation in [1, 3, u64::MAX] {
            let said = says(pages(OWNED, generation), owned(generation));
            assert!(said.starts_with("owned, parcel: its owner has written it again"), "{said}");
        }
        assert_eq!(says(pages(OWNED, 4), owned(4)), "owned, 4096 of 7");
        assert_eq!(answered(&mut caller, &mut hand), "ok");
        assert!(!hand.is_ended().unwrap());
    }
    assert!(begin.elapsed() < SLOW / 2, "somebody waits for a slow close");
    town.witness();
}

fn answered(caller: &mut Victim, hand: &mut Hand) -> String {
    caller.say("call 500");
    hand.answer().unwrap();
    caller.line()
}

pub(super) fn stale(found: u64, last: u64) -> String {
    partywall::parcel::ParcelError::Stale { found, last }.to_string()
}

#[test]
fn row_25_wrong_counts_of_attachments_end_the_link_of_a_caller() {
    let attack = |hostile: &Conversation, hand: &mut Hand| {
        let socket = Hand::granted(hostile).unwrap();
        let good = pages(LEASED, 0);
        socket::send(socket.as_fd(), &0_u64.to_le_bytes(), &[good.as_fd()]).unwrap();
        let payload = answer(0, &[lease(1), Item::File]);
        hand.try_say(FRAME, ANSWERS, hand.stream, &payload).unwrap();
    };
    callers_end(LEASES, attack, "2 descriptors are said to be attached, and 1 come");
}

#[test]
fn row_25_a_broken_rule_of_attachments_ends_the_link() {
    let good = pages(LEASED, 0);
    let five = [good.as_fd(); 5];
    let mut attacking = Attacking::new(&[]);
    for (files, items, why) in [
        (&[][..], &[Item::File][..], "1 descriptors are said to be attached, and 0 come"),
        (&five[..1], &[Item::File; 2], "2 descriptors are said to be attached, and 1 come"),
        (&five[..2], &[Item::File], "1 descriptors are said to be attached, and 2 come"),
        (&five, &[Item::File; 5], "5 descriptors are attached, 0 of them leases"),
        (&[], &[Item::Owned { bytes: 0, generation: 0, place: PLACE }], "attachment's bytes"),
        (&[], &[Item::Sealed { offset: u64::MAX, bytes: 1 }], "attachment's second word"),
    ] {
        attacking.packet(files);
        attacking.call(TAKES, items);
        attacking = attacking.ends(why);
    }
    attacking.stays();
}

#[test]
fn row_25_attachments_that_nobody_is_to_send_end_the_link() {
    let good = pages(LEASED, 0);
    // A packet that is not there.
    let mut attacking = Attacking::new(&[]);
    attacking.packets = 1;
    attacking.call(TAKES, &[Item::File]);
    attacking = attacking.ends("a packet that a record names is missing");
    // The fifth that is unread.
    for _ in 0..5 {
        attacking.packet(&[good.as_fd()]);
        attacking.call(KEEPS, &[Item::File]);
    }
    attacking.ends("a parcel more than its receiver takes").stays();

    // No lease is granted, and one descriptor.
    let mut attacked = Attacked::new(PARCELS, &[]);
    for item in [lease(1), lease(u64::MAX)] {
        let (mut hand, socket) = granted(&attacked);
        socket::send(socket.as_fd(), &0_u64.to_le_bytes(), &[good.as_fd()]).unwrap();
        let mut attached = Vec::new();
        Attached::write(&mut attached, 0, &[item]);
        hand.try_say(FRAME, HEAD | END | ATTACHED, 1, &call_head(TAKES, &attached)).unwrap();
        let why = attacked.ends_somehow(hand);
        assert!(why.starts_with("1 descriptors are attached, 1 of them leases"), "{why}");
    }
}

#[test]
fn row_25_a_lease_of_an_old_generation_is_refused() {
    let mut attacking = Attacking::new(&[]);
    let memory = pages(LEASED, 0);
    for (generation, said) in [
        (5, "lease, 8192 of 7".into()),
        (5, stale(5, 5)),
        (4, stale(4, 5)),
        (0, stale(0, 5)),
        (u64::MAX, stale(u64::MAX, 5)),
        (6, "lease, 8192 of 7".into()),
        (u64::MAX / 4, "lease, 8192 of 7".into()),
        (u64::MAX / 4 + 1, stale(u64::MAX / 4 + 1, u64::MAX / 4)),
        (7, stale(7, u64::MAX / 4)),
    ] {
        assert_eq!(attacking.says(&[memory.as_fd()], &[lease(generation)]), said, "{generation}");
    }
    // Twice in one message: all of it is refused.
    let memory = pages(LEASED, 0);
    let files = [memory.as_fd(), memory.as_fd()];
    assert_eq!(attacking.says(&files, &[lease(1), lease(1)]), stale(1, 1));
    // One that is here already.
    assert_eq!(attacking.says(&files, &[lease(2), lease(3)]), stale(3, 2));
    assert_eq!(attacking.says(&files[..1], &[lease(4)]), "lease, 8192 of 7");
    attacking.stays();
}

/// Does something again and again beside something else.
fn beside<T>(mut again: impl FnMut() + Send, attack: impl FnOnce() -> T) -> T {
    let (still, over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            while over.try_recv() == Err(TryRecvError::Empty) {
                again();
            }
        });
        let done = attack();
        drop(still);
        done
    })
}

#[test]
fn row_25_a_lease_that_changes_is_other_bytes_and_no_more() {
    let mut attacking = Attacking::new(&[]);
    let len = 4 << 20;
    let memory = memfd(len, len as usize, LEASED);
    let item = |generation| Item::Lease { bytes: len, generation, place: PLACE };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (mut other, file) = (0_u8, memory.as_fd());
    let write = || {
        other = other.wrapping_add(1);
        rustix::io::pwrite(file, &vec![other; 1 << 20], u64::from(other % 4) << 20).unwrap();
    };
    let said: Vec<_> =
        beside(write, || (1..30).map(|n| attacking.says(&[memory.as_fd()], &[item(n)])).collect());
    assert!(said.iter().all(|said| said.starts_with("lease, 4194304 ")), "{said:?}");
    assert!(said.iter().any(|said| said == "lease, 4194304 mixed"), "{said:?}");
    // Holes that come when it is known, and while it is read.
    let hole = || {
        rustix::fs::fallocate(file, punch, 0, len).unwrap();
        rustix::io::pwrite(file, &vec![9; len as usize], 0).unwrap();
    };
    let said: Vec<_> =
        beside(hole, || (30..60).map(|n| attacking.says(&[memory.as_fd()], &[item(n)])).collect());
    assert!(said.iter().all(|said| said.starts_with("lease, 4194304 ")), "{said:?}");
    attacking.stays();
}

#[test]
fn row_25_an_owner_that_writes_meanwhile_is_told_to_the_reader() {
    let mut attacking = Attacking::new(&[]);
    let len = 8 << 20;
    let owner = std::sync::Mutex::new(Owned::new(len).unwrap());
    let (mut round, file) = (0_u8, owner.lock().unwrap().view());
    let write = || {
        round = round.wrapping_add(1);
        owner.lock().unwrap().write(|bytes| bytes.fill(round));
        // As long as it takes to be read, more or less.
        std::thread::sleep(Duration::from_millis(u64::from(round.wrapping_mul(37) % 32)));
    };
    let (mut whole, mut changed) = (0_u32, 0_u32);
    beside(write, || {
        let begin = Instant::now();
        while whole < 5 || changed < 5 || whole + changed < 100 {
            assert!(begin.elapsed() < 2 * PATIENCE, "{whole} whole, {changed} changed");
            let generation = owner.lock().unwrap().view().generation();
            let item = Item::Owned { bytes: len as u64, generation, place: PLACE };
            let said = attacking.says(&[file.as_fd()], &[item]);
            let (_, what) = said.split_once(", ").unwrap();
            match what {
                "8388608 mixed" => panic!("parts of two generations"),
                what if what.starts_with("8388608 of ") => whole += 1,
                what => {
                    assert!(what.starts_with("parcel: its owner has written it again"), "{what}");
                    changed += 1;
                }
            }
        }
    });
    attacking.stays();
}

#[test]
fn row_25_a_generation_that_is_none_is_a_change() {
    let mut attacking = Attacking::new(&[]);
    for (word, said) in [(1, 1), (3, 3), (u64::MAX, u64::MAX), (0xdead_beef, 2), (2, 4), (0, 2)] {
        let text = attacking.says(&[pages(OWNED, word).as_fd()], &[owned(said)]);
        assert!(text.starts_with("owned, parcel: its owner has written it again"), "{text}");
    }
    let most = u64::MAX - 1;
    assert_eq!(attacking.says(&[pages(OWNED, most).as_fd()], &[owned(most)]), "owned, 4096 of 7");
    attacking.stays();
}

/// Memory without pages takes none of a victim's room for mappings, which is 128 TiB on most machines.
#[test]
fn row_25_memory_without_pages_takes_no_address_space() {
    let mut attacking = Attacking::new(&[]);
    let len = 1_u64 << 45;
    for _ in 0..4 {
        let files: Vec<_> = (0..4).map(|_| memfd(len, 4096, SealFlags::empty())).collect();
        for file in &files {
            rustix::io::pwrite(file, &[0; 4096], len - PAGE).unwrap();
            rustix::fs::fcntl_add_seals(file, OWNED).unwrap();
        }
        let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let item = Item::Owned { bytes: len - PAGE, generation: 0, place: PLACE };
        assert_eq!(attacking.says(&descriptors, &[item; 4]), hole(2 * PAGE));
    }
    attacking.stays();
}

#[test]
fn row_25_a_sender_that_dies_leaves_nothing_of_it() {
    let mut attacking = Attacking::new(&[]);
    let (slow, _other) = lingering(SLOW).unwrap();
    let begin = Instant::now();
    for frames in [0, 1, 4] {
        let Attacking { mut attacked, mapped, hand, socket, .. } = {
            let files = [pages(LEASED, 0), pages(OWNED, 0)];
            let files = [files[0].as_fd(), files[1].as_fd(), slow.as_fd()];
            attacking.packet(&files);
            for n in 0..frames {
                if n > 0 {
                    attacking.packet(&files);
                }
                let path = if n % 2 == 0 { KEEPS } else { TAKES };
                attacking.call(path, &[lease(n + 1), owned(0), Item::File]);
            }
            attacking
        };
        // All that this process has of the link ends with it, as when it is killed.
        drop((hand, socket));
        attacked.hostile = attacked.town.hostile();
        attacked.serves();
        is_as_before(&attacked, mapped);
        attacking = Attacking::on(attacked, mapped);
    }
    assert!(begin.elapsed() < SLOW / 2, "somebody waits for a slow close");
    attacking.stays();
}

#[test]
fn row_25_a_receiver_that_dies_keeps_nothing_of_it() {
    let mut attacking = Attacking::new(&[]);
    let (pipe, writer) = rustix::pipe::pipe().unwrap();
    let begin = Instant::now();
    for n in 1..=4 {
        let memory = pages(LEASED, 0);
        attacking.packet(&[memory.as_fd(), writer.as_fd()]);
        attacking.call(KEEPS, &[lease(n), Item::File]);
    }
    // One that it has not looked for.
    attacking.packet(&[writer.as_fd()]);
    drop(writer);
    attacking.attacked.service.kill();
    attacking.hand.until_ended();
    drop((attacking.hand, attacking.socket));
    let _next = attacking.attacked.town.service(&[]);
    // Nobody has the pipe's other end any more.
    let mut byte = [0; 1];
    assert_eq!(rustix::io::read(&pipe, &mut byte), Ok(0));
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    attacking.attacked.town.witness();
}

/// A link keeps the memory mapped that has come last for each place, however often that was.
#[test]
fn row_25_memory_that_a_link_keeps_is_bounded() {
    let mut attacking = Attacking::new(&[]);
    let pid = attacking.attacked.service.pid();
    let without = mapped(pid).0;
    let at = Place::new;
    let first = pages(LEASED, 0);
    assert_eq!(attacking.says(&[first.as_fd()], &[lease(1)]), "lease, 8192 of 7");
    let (other, place) = (pages(OWNED, 0), at(1));
    for _ in 0..10 {
        let item = Item::Owned { bytes: PAGE, generation: 0, place };
        assert_eq!(attacking.says(&[other.as_fd()], &[item]), "owned, 4096 of 7");
    }
    assert_eq!(mapped(pid).0, without + 2, "one that comes often puts out no other");
    for round in 0..3 * limits::ATTACHED_PLACES {
        let (new, place) = (pages(LEASED, 0), at(round % limits::ATTACHED_PLACES));
        let item = Item::Lease { bytes: 2 * PAGE, generation: 1, place };
        assert_eq!(attacking.says(&[new.as_fd()], &[item]), "lease, 8192 of 7");
    }
    assert_eq!(mapped(pid).0, without + limits::ATTACHED_PLACES);
    attacking.stays();
}

/// Lets a process have so many descriptors more, or as many as it likes.
fn limit(pid: u32, room: Option<usize>) {
    let taken = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let taken: Vec<u64> =
        taken.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    // So many numbers are free below it.
    let free = room.and_then(|room| (0..).filter(|number| !taken.contains(number)).nth(room));
    let limit =
        rustix::process::Rlimit { current: Some(free.unwrap_or(1024)), maximum: Some(1024) };
    let process = rustix::process::Pid::from_raw(pid as i32);
    rustix::process::prlimit(process, rustix::process::Resource::Nofile, limit).unwrap();
}

#[test]
fn row_25_a_caller_without_descriptors_left_is_told() {
    let town = Town::new(PROGRAMS, LEASES);
    let _service = town.service(&[]);
    for arguments in CALLERS {
        let hostile = town.hostile();
        let (mut caller, mut hand) = opens(&town, &hostile, arguments);
        while !hand.takes_parcels {
            assert_eq!(answered(&mut caller, &mut hand), "ok");
        }
        let socket = Hand::granted(&hostile).unwrap();
        caller.say("take");
        hand.asked().unwrap();
        limit(caller.pid(), Some(1));
        let good = pages(LEASED, 0);
        socket::send(socket.as_fd(), &0_u64.to_le_bytes(), &[good.as_fd(); 2]).unwrap();
        let payload = answer(0, &[lease(1), Item::File]);
        hand.try_say(FRAME, ANSWERS, hand.stream, &payload).unwrap();
        let said = caller.line();
        let why =
            format!("Unavailable: link {}: descriptor socket: descriptors are lost", hand.link);
        assert!(said.starts_with(&why), "{arguments:?}: {said}");
        hand.until_ended();
        limit(caller.pid(), None);
        assert!(caller.is_running());
    }
    assert_eq!(town.events("blamed"), [serde_json::Value::Null; 0]);
    town.witness();
}

/// What comes when its receiver has no descriptors left ends the link, and nobody is blamed.
#[test]
fn row_25_attachments_without_descriptors_left_end_the_link() {
    let mut attacking = Attacking::new(&[]);
    let pid = attacking.attacked.service.pid();
    for room in [0, 1, 2] {
        limit(pid, Some(room));
        let file = pages(LEASED, 0);
        attacking.packet(&[file.as_fd(); 3]);
        attacking.call(TAKES, &[lease(1), Item::File, Item::File]);
        attacking.hand.until_ended();
        let Attacking { mut attacked, mapped, hand, socket, .. } = attacking;
        let words = [&format!("link closed link={} ", hand.link), "descriptors are lost"];
        let line = attacked.service.logs(&words);
        assert!(line.contains("blame=Resource"), "{line}");
        assert_eq!(attacked.witness.asked("call 1000"), "ok", "without a descriptor");
        limit(pid, None);
        drop((hand, socket));
        attacked.serves();
        is_as_before(&attacked, mapped);
        attacking = Attacking::on(attacked, mapped);
    }
    assert_eq!(attacking.attacked.town.events("blamed"), [serde_json::Value::Null; 0]);
    attacking.stays();
}

#[test]
fn row_25_the_methods_of_the_victims_are_there() {
    let mut attacking = Attacking::new(&[]);
    attacking.packet(&[]);
    let data = message(&request(1, 10).encode_to_vec());
    attacking.hand.try_say(FRAME, HEAD | END, 1, &call_head(UNARY, &data)).unwrap();
    attacking.stream = 1;
    assert_eq!(attacking.hand.status(1).unwrap().0, 0);
    let file = pages(ALL, 0);
    let sealed = Item::Sealed { offset: 1, bytes: 5 };
    let files = [file.as_fd(), file.as_fd()];
    assert_eq!(attacking.says(&files, &[sealed, Item::File]), "sealed, 5 of 7, a file");
    attacking.stays();
}
