//! Two ends of a link in one thread, driven by a seed: which task runs next, what calls do, when
//! one is given up, when the service drains, when an end dies, and what a hostile end sends, is all
//! random, and the same for the same seed.
//!
//! Tasks that are blocked run again only when an event says so. So a run that comes to rest before
//! its calls are over has found a wake-up that the protocol does not give.
//!
//! `PARTYWALL_SEED=N cargo test -p partywall-call simulator` runs the schedule N alone and prints it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use partywall_abi::frame::{END, HEAD, Kind, Limits};
use partywall_abi::limits;

use crate::{Connection, DRAIN_TIME, Event, Record};

mod end;
mod method;
mod random;
mod ring;
mod world;

use method::Method;
use world::World;

fn schedule(seed: u64, verbose: bool) -> World {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("PARTYWALL_SEED={} shows it again", self.0);
            }
        }
    }
    let seed = Seed(seed);
    let mut world = World::new(seed.0, verbose);
    world.run();
    world.check_end();
    world
}

#[test]
fn random_schedules_lose_nothing_and_break_no_rule() {
    if let Ok(seed) = std::env::var("PARTYWALL_SEED") {
        schedule(seed.parse().expect("a number"), true);
        return;
    }
    let full = std::env::var("PARTYWALL_TRIALS").is_ok_and(|trials| trials == "full");
    let trials = if full { 100_000 } else { 2_000 };
    let (mut finished, mut broken, mut died) = (0, BTreeSet::new(), 0);
    let (mut drained, mut rooms, mut numbered, mut plain) = (0, 0, 0, 0);
    let (mut parcels, mut owned, mut attached) = (0, 0, 0);
    for seed in 0..trials {
        let world = schedule(seed, false);
        finished += world.finished;
        rooms += world.rooms;
        numbered += world.numbered;
        plain += world.plain;
        parcels += world.parcels;
        owned += world.owned;
        attached += world.attached;
        for end in [&world.caller, &world.service] {
            let rule = end.broken.as_ref();
            broken.extend(rule.map(|why| why.to_string()));
            died += usize::from(end.dead);
        }
        drained += usize::from(world.service.connection.is_draining());
    }
    // What the schedules are for has happened.
    assert!(finished > 3 * trials as usize, "{finished} calls");
    assert!(broken.len() > 15, "{broken:#?}");
    assert!(died > trials as usize / 5 && drained > trials as usize / 10, "{died} {drained}");
    assert!(rooms > trials as usize / 20, "{rooms} records of room");
    assert!(numbered > trials as usize, "{numbered} calls named by numbers");
    assert!(plain > trials as usize / 2, "{plain} plain frames");
    assert!(parcels > trials as usize / 2, "{parcels} parcels");
    assert!(owned > trials as usize / 10, "{owned} owned parcels");
    assert!(attached > trials as usize / 10, "{attached} heads with something attached");
}

#[test]
fn a_caller_that_does_not_acknowledge_a_drain_is_refused() {
    let mut service: Connection<()> =
        Connection::service(Limits { streams: 3, window: limits::LINK_WINDOW }, "full");
    let start = Instant::now();
    let head = World::block(Some(Method::default()), true, false, false);
    let call = |service: &mut Connection<()>, stream| {
        let (kind, flags) = (Kind::Frame as u8, HEAD | END);
        let opened = service.handle(Record { kind, flags, stream, payload: &head }).unwrap();
        matches!(opened, Event::Opened { .. })
    };
    service.control_sent();
    service.drain(start);
    assert_eq!(service.timeout(), Some(start + DRAIN_TIME));
    service.control_sent();
    service.handle_timeout(start + DRAIN_TIME - Duration::from_nanos(1));
    assert!(call(&mut service, 1), "it has time yet");
    service.handle_timeout(start + DRAIN_TIME);
    assert!(!call(&mut service, 2));
    let refused = service.control().unwrap().cloned();
    let refused = refused.map(|control| (control.kind(), control.stream()));
    assert_eq!(refused, Some((Kind::Reset, 2)));
    assert!(!service.is_drained(), "one is open");
}
