//! Row 26, of what is attached to calls: services and callers that are killed at random moments, and what
//! memory they take before that.

use std::time::Duration;

use partywall_abi::control::{Message, RegistryMessage};
use partywall_attacks::{Town, name};
use partywall_testkit::{Conversation, Held, Random};

use super::attachments::mapped;
use super::{LEASES, PROGRAMS};

/// A thousand calls with leases and owned parcels, while services and other callers are killed.
#[test]
fn row_26_attachments_of_the_killed_are_nobodys() {
    let town = Town::new(PROGRAMS, LEASES);
    let stays = town.service(&[]);
    let watch = town.hostile();
    watch.say(&RegistryMessage::Watch { request: 1, name: name("test") }.into()).unwrap();
    until_instances(&watch, 1);
    let mut random = Random::of_this_run();
    let mut caller = town.caller(&[]);
    // What stays for a process is there after one link.
    assert_eq!(caller.asked("open"), "open");
    assert_eq!(caller.asked("give 10"), "lost 0");
    assert_eq!(caller.asked("open"), "open");
    let processes = [stays.pid(), caller.pid()];
    let before = processes.map(|pid| settled(&town, || (Held::by(pid), mapped(pid))));
    let (mut lost, mut killed) = (0_u64, 0);
    for _ in 0..20 {
        let mut service = town.start(PROGRAMS.service, &[], &[]);
        until_instances(&watch, 2);
        let mut other = town.caller(if killed % 4 < 2 { &[] } else { &["--blocking"] });
        // Either is the one with a link to the service that is to be killed.
        if killed % 2 == 0 {
            assert_eq!(caller.asked("open"), "open");
        }
        assert_eq!(other.asked("open"), "open");
        if killed % 2 == 1 {
            assert_eq!(caller.asked("open"), "open");
        }
        other.say("give 1000000");
        caller.say("give 50");
        std::thread::sleep(Duration::from_micros(random.draw() % 20_000));
        service.kill();
        until_instances(&watch, 1);
        std::thread::sleep(Duration::from_micros(random.draw() % 5_000));
        assert!(other.is_running(), "{:?}", other.logged());
        other.kill();
        killed += 1;
        let said = caller.line();
        lost += said.strip_prefix("lost ").expect(&said).parse::<u64>().unwrap();
    }
    assert!(lost > 0, "no death struck a call");
    println!("{lost} of 1000 calls ended with their service");
    assert_eq!(caller.asked("open"), "open");
    for (pid, (held, mapped_before)) in processes.into_iter().zip(before) {
        held.wait_for(pid);
        town.until("end of what it has mapped", || {
            let now = mapped(pid);
            now.0 <= mapped_before.0 && now.1 <= mapped_before.1
        });
    }
    for survivor in [&stays, &caller] {
        let log = survivor.logged();
        assert!(!log.iter().any(|line| line.contains("blame=Peer")), "{log:?}");
    }
    town.witness();
}

/// Waits until so many serve `test`.
fn until_instances(watch: &Conversation, count: u32) {
    loop {
        match watch.next().unwrap().0 {
            Message::Registry(RegistryMessage::Watched { instances, .. }) if instances == count => {
                break;
            }
            _ => {}
        }
    }
}

/// Something that does not change for 100 ms.
fn settled<T: PartialEq>(town: &Town, mut look: impl FnMut() -> T) -> T {
    let mut last = look();
    town.until("end of changes", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = look();
        std::mem::replace(&mut last, now) == last
    });
    last
}

/// Bytes that these processes have in memory, what they share counted once for all of them (proc(5), `Pss`).
/// The pages of their programs' files, which they share with those of other tests, do not count.
fn proportional(pids: [u32; 2]) -> u64 {
    let of = |pid: u32| {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let bytes = |kind: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
        };
        bytes("Pss_Anon:") + bytes("Pss_Shmem:")
    };
    pids.into_iter().map(of).sum()
}

/// Both ends have all pages of it, and each page is there once.
#[test]
fn a_lease_takes_its_memory_once_at_both_ends() {
    const BYTES: u64 = 64 << 20;
    let town = Town::new(PROGRAMS, LEASES);
    let (service, mut caller) = (town.service(&[]), town.caller(&[]));
    let processes = [service.pid(), caller.pid()];
    assert_eq!(caller.asked("open"), "open");
    assert_eq!(caller.asked("give 10"), "lost 0");
    let before = settled(&town, || proportional(processes));
    assert_eq!(caller.asked(&format!("give 2 {BYTES}")), "lost 0");
    let more = proportional(processes) - before;
    // What is attached beside it is made anew by each call.
    let rest = 1 << 20;
    assert!((BYTES - rest..BYTES + BYTES / 50 + rest).contains(&more), "{more} bytes for {BYTES}");
    for pid in processes {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let leases = maps.lines().filter(|line| line.contains("partywall-lease"));
        let bytes = leases.map(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            [to, from].map(|at| u64::from_str_radix(at, 16).unwrap())
        });
        let most = bytes.map(|[to, from]| to - from).max();
        assert_eq!(most, Some(BYTES), "process {pid}");
    }
    println!("{more} bytes of both processes for a lease of {BYTES}");
}
