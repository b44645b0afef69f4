//! Row 25, of memory that is attached by its place: what has not come so ends the link, and what was
//! refused is refused again.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use partywall_abi::frame::{ATTACHED, Item, KNOWN, Kind, Place};
use partywall_abi::limits;
use partywall_attacks::Town;
use partywall_testkit::lingering;

use super::attachments::{Attacking, KEEPS, LEASED, OWNED, TAKES, mapped, pages, stale};
use super::descriptors::{PAGE, granted};
use super::{Attacked, LEASES, PROGRAMS};

fn lease(place: usize, generation: u64) -> Item {
    Item::Lease { bytes: 2 * PAGE, generation, place: Place::new(place) }
}

fn owned(place: usize) -> Item {
    Item::Owned { bytes: PAGE, generation: 0, place: Place::new(place) }
}

const LEASE: &str = "lease, 8192 of 7";
const OWNED_PARCEL: &str = "owned, 4096 of 7";
const REFUSED: &str = "parcel: memory that was refused when it came first";

#[test]
fn row_25_memory_comes_by_its_place_as_often_as_it_may() {
    let mut attacking = Attacking::new(&[]);
    let (first, second) = (pages(LEASED, 0), pages(OWNED, 0));
    let both = [first.as_fd(), second.as_fd()];
    let said = attacking.says(&both, &[lease(7, 1), owned(0)]);
    assert_eq!(said, format!("{LEASE}, {OWNED_PARCEL}"));
    for generation in 2..100 {
        assert_eq!(attacking.told_known(&[lease(7, generation)]), LEASE);
        assert_eq!(attacking.told_known(&[lease(7, generation)]), stale(generation, generation));
        assert_eq!(attacking.told_known(&[owned(0)]), OWNED_PARCEL);
    }
    // Of a lease that is there twice the second is refused.
    let said = attacking.told_known(&[lease(7, 200), lease(7, 201)]);
    assert!(said.contains("a lease of generation 201"), "{said}");
    // Other memory has the place from the frame on that brings it.
    let other = pages(LEASED, 0);
    assert_eq!(attacking.says(&[other.as_fd()], &[lease(7, 1)]), LEASE);
    assert_eq!(attacking.told_known(&[lease(7, 2)]), LEASE);
    attacking.stays();
}

#[test]
fn row_25_memory_that_has_not_come_so_ends_the_link() {
    let mut attacking = Attacking::new(&[]);
    let good = pages(LEASED, 0);
    let before = "what is attached is said to have come before, and has not";
    for (item, why) in [
        (lease(1, 2), before),
        (owned(0), before),
        (Item::Sealed { offset: 0, bytes: 1 }, "attachment's place"),
        (Item::File, "attachment's place"),
    ] {
        assert_eq!(attacking.says(&[good.as_fd()], &[lease(0, 1)]), LEASE);
        attacking.call_known(TAKES, &[item]);
        attacking = attacking.ends(why);
    }
    // Places are those of one link.
    attacking.call_known(TAKES, &[lease(0, 2)]);
    attacking = attacking.ends(before);
    attacking.say(TAKES, ATTACHED | KNOWN, 1, &[lease(0, 2)]);
    attacking.ends("attachments' packet").stays();
}

#[test]
fn row_25_memory_that_was_refused_is_refused_by_its_place() {
    let (mut attacking, begin) = (Attacking::new(&[]), Instant::now());
    let (slow, _other) = lingering(Duration::from_secs(60)).unwrap();
    let program = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    for (file, why) in [
        (slow, "parcel: not a memfd with seals on tmpfs"),
        (program, "parcel: not a memfd with seals on tmpfs"),
        (pages(OWNED, 0), "parcel: mmap: Operation not permitted"),
    ] {
        attacking.packet(&[file.as_fd()]);
        // Its last close is the service's.
        drop(file);
        let said = attacking.told(&[lease(3, 1)]);
        assert!(said.starts_with(why), "{said}");
        for generation in [1, 2] {
            let said = attacking.told_known(&[lease(3, generation)]);
            assert!(said.starts_with(REFUSED), "{said}");
        }
    }
    let good = pages(LEASED, 0);
    assert_eq!(attacking.says(&[good.as_fd()], &[lease(3, 1)]), LEASE);
    assert_eq!(attacking.told_known(&[lease(3, 2)]), LEASE);
    assert!(begin.elapsed() < Duration::from_secs(30), "somebody waits for a slow close");
    attacking.stays();
}

/// Whoever keeps what is known keeps memory that may have lost its place, so it counts as all that is
/// attached.
#[test]
fn row_25_memory_that_is_known_and_kept_is_bounded() {
    let mut attacking = Attacking::new(&[]);
    let files: Vec<_> = (0..limits::UNREAD_PARCELS).map(|_| pages(LEASED, 0)).collect();
    for (at, file) in (0..).zip(&files) {
        assert_eq!(attacking.says(&[file.as_fd()], &[lease(at, 1)]), LEASE);
    }
    for at in 0..files.len() {
        attacking.call_known(KEEPS, &[lease(at, 2)]);
    }
    attacking.call_known(KEEPS, &[lease(0, 3)]);
    attacking.ends("a parcel more than its receiver takes").stays();
}

/// A handler that never looks at what is attached keeps no descriptor of it when its call is over, and the
/// memory is there by its place.
#[test]
fn row_25_memory_that_nobody_took_is_known_all_the_same() {
    let mut attacking = Attacking::new(&[]);
    let files: Vec<_> = (0..3 * limits::ATTACHED_PLACES).map(|_| pages(LEASED, 0)).collect();
    for (at, file) in files.iter().enumerate() {
        let place = at % limits::ATTACHED_PLACES;
        attacking.packet(&[file.as_fd()]);
        let stream = attacking.call(KEEPS, &[lease(place, 1)]);
        let reset = [1, 0, 0];
        attacking.hand.try_say(Kind::Reset as u8, 0, stream, &reset).unwrap();
        assert_eq!(attacking.told_known(&[lease(place, 2)]), LEASE);
    }
    attacking.stays();
}

/// A caller's descriptors are lent to its first links. What comes on others has no place, so that nobody
/// fills a service with them by links that do nothing.
#[test]
fn row_25_links_beyond_the_bound_of_a_caller_have_no_places() {
    let attacked = Attacked::new(LEASES, &[]);
    let before = mapped(attacked.service.pid());
    let first: Vec<_> = (0..4).map(|_| granted(&attacked)).collect();
    let mut attacking = Attacking::on(attacked, before);
    let file = pages(LEASED, 0);
    for generation in 1..4 {
        let item = Item::Lease { bytes: 2 * PAGE, generation, place: None };
        assert_eq!(attacking.says(&[file.as_fd()], &[item]), LEASE);
    }
    attacking.packet(&[file.as_fd()]);
    attacking.call(TAKES, &[lease(0, 4)]);
    drop(first);
    attacking.ends("what is attached is said to have a place, and there is none").stays();
}

/// How many mappings of owned parcels a process has.
fn owned_parcels(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("/memfd:partywall-owned")).count()
}

/// Neither end keeps what a service has made for one answer and dropped; the caller's own, which has come
/// more than once, keeps its place.
#[test]
fn row_25_owned_parcels_of_answers_are_kept_by_nobody() {
    let town = Town::new(PROGRAMS, LEASES);
    let service = town.service(&[]);
    for (links, arguments) in (1..).zip([&[][..], &["--blocking"]]) {
        let mut caller = town.caller(arguments);
        assert_eq!(caller.asked("open"), "open");
        assert_eq!(caller.asked("give 20"), "lost 0");
        assert_eq!(owned_parcels(caller.pid()), 0, "{arguments:?}");
        // It drops an answer when that is on its way.
        town.until("the caller's is there alone", || owned_parcels(service.pid()) == 1);
        drop(caller);
        town.until("the link is over", || owned_parcels(service.pid()) == 0);
        assert_eq!(town.events("introduced").len(), links);
    }
}
