//! Peers that send what is no parcel, or more of them than are taken, descriptor by descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::control::{Blame, Grant};
use partywall_abi::frame::{
    self, ATTACHED, Attached, END, HEAD, Item, Kind, Owned, PARCEL, ParcelRef, Place, RequestHead,
};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::MethodSet;
use partywall_abi::version::Capabilities;
use partywall_shm::descriptors::{self, Outgoing};
use partywall_shm::link::Ends;
use partywall_shm::parcel::owned::Memory;
use partywall_shm::parcel::{Draft, Sealed};
use partywall_shm::setup::local_pair;
use partywall_shm::socket;
use partywall_testkit::lingering;
use rustix::fs::{MemfdFlags, SealFlags};

use super::account::{Accounts, Bounds};
use super::scripted::Never;
use super::service::{self, Service};
use crate::coordinator::End;

/// A place of the peer's.
const PLACE: Option<Place> = Place::new(0);

/// A service that takes parcels and never answers, a caller that speaks records, and the coordinator's end.
struct Peer {
    service: Arc<Service<Never>>,
    ends: Ends,
    out: Outgoing,
    coordinator: OwnedFd,
}

fn peer() -> Peer {
    granted(Grant { descriptors: 1, leases: false })
}

/// The same, where this may cross.
fn granted(grant: Grant) -> Peer {
    let (ours, ends) = local_pair(Geometry::WIDE).unwrap();
    let (tracked, coordinator) = crate::coordinator::tests::tracked(7);
    let account = Accounts::new(Bounds::default()).open(1, Some(1));
    let (caller, methods) = ((crate::fuzz::stranger(), account), MethodSet::all());
    let common = Capabilities::OWN;
    let service = service::run(ours, Never, caller, methods, Some(tracked), common).unwrap();
    let (theirs, own) = socket::descriptor_pair().unwrap();
    assert!(End::grant(&*service, own, grant).is_none());
    let (out, _) = descriptors::halves(theirs);
    Peer { service, ends, out, coordinator }
}

impl Peer {
    /// A request whose data lie in a parcel, as one record.
    fn request(&mut self, stream: u32, parcel: ParcelRef) {
        self.frame(stream, PARCEL, |payload| payload.extend_from_slice(&parcel.encode()));
    }

    /// A request to whose head this is attached, as one record.
    fn attached(&mut self, stream: u32, packet: u64, items: &[Item]) {
        self.frame(stream, ATTACHED, |payload| Attached::write(payload, packet, items));
    }

    fn frame(&mut self, stream: u32, flags: u8, rest: impl FnOnce(&mut Vec<u8>)) {
        let mut payload = Vec::new();
        let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a.B/C", 0);
        frame::write_block(&mut payload, head).unwrap();
        rest(&mut payload);
        let (kind, flags) = (Kind::Frame as u8, HEAD | END | flags);
        assert!(self.ends.producer.try_push(kind, flags, stream, &[&payload]).unwrap());
        let wake = self.ends.producer.notify().unwrap();
        self.ends.bell.carry_out(wake).unwrap();
    }

    /// Why the link has ended, within a second.
    async fn ended(&self) -> String {
        let begin = Instant::now();
        while !self.service.is_closed() {
            assert!(begin.elapsed() < Duration::from_secs(1), "it goes on");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(crate::coordinator::tests::blamed(&self.coordinator), Blame::Peer);
        self.service.why().unwrap().message().to_owned()
    }
}

fn sealed(bytes: usize) -> Sealed {
    Draft::new(bytes).unwrap().seal().unwrap()
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("x", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

const ALL: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

#[tokio::test]
async fn a_descriptor_that_is_no_parcel_ends_its_link_with_blame() {
    let (good, program) = (sealed(4096), std::fs::File::open("/proc/self/exe").unwrap());
    let (slow, _other) = lingering(Duration::from_secs(20)).unwrap();
    let hollow = memfd(4096, ALL);
    let open = memfd(4096, ALL.difference(SealFlags::WRITE));
    let begin = Instant::now();
    let none: &[BorrowedFd<'_>] = &[];
    let cases = [
        (&[program.as_fd()][..], 1, "not a memfd"),
        (&[slow.as_fd()], 1, "not a memfd"),
        (&[hollow.as_fd()], 1, "pages for 0 bytes only"),
        (&[open.as_fd()], 1, "seals"),
        (&[good.as_fd()], 4097, "said to end at 4097"),
        (none, 1, "one descriptor"),
        (&[good.as_fd(), good.as_fd()], 1, "one descriptor"),
        (&[good.as_fd(), slow.as_fd()], 1, "one descriptor"),
    ];
    for (descriptors, bytes, expected) in cases {
        let mut peer = peer();
        let packet = peer.out.send(descriptors).unwrap();
        peer.request(1, ParcelRef { packet, offset: 0, bytes, owned: None });
        let why = peer.ended().await;
        assert!(why.contains(expected), "{why} is not {expected}");
    }
    let mut peer = peer();
    peer.out.send(&[good.as_fd()]).unwrap();
    peer.request(1, ParcelRef { packet: 1, offset: 0, bytes: 1, owned: None });
    assert!(peer.ended().await.contains("missing"));
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
}

/// A request in an owned parcel.
fn owned(packet: u64, (place, generation): (u32, u32), bytes: u64) -> ParcelRef {
    ParcelRef { packet, offset: 0, bytes, owned: Some(Owned { place, generation }) }
}

#[tokio::test]
async fn an_owned_parcel_that_breaks_a_rule_ends_its_link_with_blame() {
    let (good, never) = (Memory::new(4096).unwrap(), sealed(4096));
    let hollow = memfd(4096, ALL.difference(SealFlags::WRITE).union(SealFlags::FUTURE_WRITE));
    let (slow, _other) = lingering(Duration::from_secs(20)).unwrap();
    let begin = Instant::now();
    for (descriptor, bytes, expected) in [
        (never.as_fd(), 1, "seals"),
        (hollow.as_fd(), 1, "pages for 0 bytes only"),
        (good.as_fd(), 4097, "said to end at 4097"),
        (slow.as_fd(), 1, "not a memfd"),
    ] {
        let mut peer = peer();
        let packet = peer.out.send(&[descriptor]).unwrap();
        peer.request(1, owned(packet, (0, 1), bytes));
        let why = peer.ended().await;
        assert!(why.contains(expected), "{why} is not {expected}");
    }
    // What is with a handler is lent: again, with another generation, and with other memory.
    for (again, expected) in [
        (owned(0, (0, 1), 1), "lent already"),
        (owned(0, (0, 2), 1), "lent already"),
        (owned(1, (0, 2), 1), "lent already"),
        // A place that was never lent, by a packet that another one has, and by one that is not there.
        (owned(0, (1, 1), 1), "missing"),
        (owned(2, (1, 1), 1), "missing"),
        (owned(1, (1, 0), 1), "another generation"),
        (owned(1, (1, 2), 1), "another generation"),
    ] {
        let mut peer = peer();
        let packet = peer.out.send(&[good.as_fd()]).unwrap();
        peer.request(1, owned(packet, (0, 1), 4096));
        while peer.service.open_calls() == 0 {
            assert!(begin.elapsed() < Duration::from_secs(10), "it does not arrive");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!peer.service.is_closed());
        if again.packet == 1 {
            peer.out.send(&[good.as_fd()]).unwrap();
        }
        peer.request(2, again);
        let why = peer.ended().await;
        assert!(why.contains(expected), "{why} is not {expected}");
    }
}

#[tokio::test]
async fn more_parcels_than_are_taken_end_the_link() {
    let (mut peer, good) = (peer(), sealed(1 << 20));
    let bytes = 1 << 20;
    for stream in 1..=limits::UNREAD_PARCELS {
        let packet = peer.out.send(&[good.as_fd()]).unwrap();
        peer.request(stream, ParcelRef { packet, offset: 0, bytes, owned: None });
    }
    // They are with handlers that take nothing of them.
    let begin = Instant::now();
    while peer.service.open_calls() < limits::UNREAD_PARCELS as usize {
        assert!(begin.elapsed() < Duration::from_secs(10), "they do not arrive");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!peer.service.is_closed());
    let packet = peer.out.send(&[good.as_fd()]).unwrap();
    peer.request(9, ParcelRef { packet, offset: 0, bytes, owned: None });
    assert!(peer.ended().await.contains("a parcel more than its receiver takes"));
}

#[tokio::test]
async fn attachments_that_break_a_rule_end_their_link_with_blame() {
    let (good, begin) = (sealed(4096), Instant::now());
    let (slow, _other) = lingering(Duration::from_secs(20)).unwrap();
    let none: &[BorrowedFd<'_>] = &[];
    let lease = Item::Lease { bytes: 4096, generation: 1, place: PLACE };
    for (descriptors, items, expected) in [
        (none, &[Item::File][..], "1 descriptors are said to be attached, and 0 come"),
        (&[good.as_fd()], &[Item::File; 2], "2 descriptors are said to be attached, and 1 come"),
        (&[good.as_fd(), slow.as_fd()], &[Item::File], "and 2 come"),
        (&[good.as_fd(), slow.as_fd()], &[Item::File; 2], "2 descriptors are attached, 0 of them"),
        (&[good.as_fd()], &[lease], "1 descriptors are attached, 1 of them leases"),
    ] {
        let mut peer = peer();
        let packet = peer.out.send(descriptors).unwrap();
        peer.attached(1, packet, items);
        let why = peer.ended().await;
        assert!(why.contains(expected), "{why} is not {expected}");
    }
    let mut peer = peer();
    peer.attached(1, 0, &[Item::File]);
    assert!(peer.ended().await.contains("missing"));
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
}

#[tokio::test]
async fn attachments_that_nobody_wants_hold_nothing_up() {
    let mut peer = granted(Grant { descriptors: 2, leases: true });
    let (slow, _other) = lingering(Duration::from_secs(20)).unwrap();
    let begin = Instant::now();
    let attach = async |peer: &mut Peer, stream: u32| {
        let packet = peer.out.send(&[slow.as_fd(), slow.as_fd()]).unwrap();
        peer.attached(
            stream,
            packet,
            &[Item::File, Item::Lease { bytes: 1, generation: 1, place: PLACE }],
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // Of handlers that take nothing of it.
    for stream in 1..20 {
        attach(&mut peer, stream).await;
        assert!(!peer.service.is_closed(), "{:?}", peer.service.why());
        assert_eq!(peer.service.open_calls(), 1);
        let reset = [1, 0, 0];
        assert!(peer.ends.producer.try_push(Kind::Reset as u8, 0, stream, &[&reset]).unwrap());
        let wake = peer.ends.producer.notify().unwrap();
        peer.ends.bell.carry_out(wake).unwrap();
        while peer.service.open_calls() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(10), "it is not cancelled");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_packet_that_no_record_names_is_passed_over() {
    let (mut peer, good) = (peer(), sealed(4096));
    let (slow, _other) = lingering(Duration::from_secs(20)).unwrap();
    let begin = Instant::now();
    peer.out.send(&[good.as_fd()]).unwrap();
    peer.out.send(&[slow.as_fd()]).unwrap();
    drop(slow);
    let packet = peer.out.send(&[good.as_fd()]).unwrap();
    peer.request(1, ParcelRef { packet, offset: 0, bytes: 4096, owned: None });
    while peer.service.open_calls() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "it does not arrive");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!peer.service.is_closed());
}

#[test]
fn parcels_of_a_caller_and_of_a_user_are_bounded_together() {
    let accounts = Accounts::new(Bounds::default());
    let links =
        |pid, count| -> Vec<_> { (0..count).map(|_| accounts.open(1, Some(pid))).collect() };
    let lease = |links: &[Arc<super::account::Account>]| -> u32 {
        links.iter().map(|link| link.lease_parcels(1)).sum()
    };
    let first = links(1, 20);
    assert_eq!(lease(&first), 64 + 4, "one of each that finds none");
    assert_eq!(lease(&first[..16]), 0, "once each");
    let others: Vec<_> = (2..6).map(|pid| links(pid, 20)).collect();
    let leased: Vec<_> = others.iter().map(|links| lease(links)).collect();
    // A user has 256, and one of each link beyond.
    assert_eq!(leased, [68, 68, 59, 20]);
    // Descriptors are what counts.
    let many = accounts.open(2, Some(1));
    assert_eq!(many.lease_parcels(16), 4);
    assert_eq!(accounts.open(2, Some(1)).lease_parcels(16), 1);
    assert_eq!(accounts.open(2, Some(1)).lease_parcels(1), 1, "all are leased");
    drop(first);
    assert_eq!(lease(&links(9, 20)), 50, "what has ended is given back");
}
