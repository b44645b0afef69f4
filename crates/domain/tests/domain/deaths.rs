//! Deaths under load: domains die in every way, most of them with somebody inside, are started again,
//! and nobody else notices but by the status of a call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use partywall_abi::domain::GateStatus;
use partywall_domain::address_space::AddressSpace;
use partywall_guest::{Guest, Link};
use rustix::process::{Pid, Signal, kill_process};

use crate::gate::Callee;
use crate::host::{
    Running, c, descriptors, in_a_launcher, in_time, is_emulated, mapped, slowness, start,
};
use crate::launcher::launcher;

const LIMIT: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_secs(10);
/// Domains that are called.
const CALLEES: usize = 3;

/// What a call does that its callee does not survive; the last is a call that stays.
const ENDS: [(&str, [u64; 3]); 9] = [
    ("null", [2, 8, 0]),
    ("ud2", [3, 0, 0]),
    ("overflow", [4, 0, 0]),
    ("endless loop", [5, 0, 0]),
    ("abort", [6, 0, 0]),
    ("division", [7, 0, 0]),
    ("exit", [15, 0, 0]),
    ("kill", [16, 0, 0]),
    ("sleep", [17, 0, 0]),
];

/// The links to the callees.
type Links = [Mutex<Option<Link>>; CALLEES];

/// Calls all of them, as long as the others die; how many calls have come back, by how they ended.
fn caller(guest: Guest, links: &Links, stop: &AtomicBool) -> [u64; 16] {
    let mut ended = [0; 16];
    for turn in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let Some(link) = *links[turn % CALLEES].lock().unwrap() else { continue };
        let status = match guest.call(link, [0, turn as u64, 1], LIMIT) {
            Ok(sum) => {
                assert_eq!(sum, turn as u64 + 1);
                GateStatus::Done
            }
            Err(status) => status,
        };
        if status != GateStatus::Done {
            std::thread::yield_now();
        }
        ended[status as usize] += 1;
    }
    ended
}

/// A callee that lets `other` call it as well, and the launcher's link to it.
fn callee(space: &AddressSpace, image: &std::os::fd::OwnedFd, other: u32) -> (Running, Link) {
    let other = other.to_string();
    let mut running = start(space, image, &["4", &other]);
    running.ready();
    (running, launcher(space).take(7).unwrap())
}

fn tasks() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

in_a_launcher! {
    fn a_thousand_deaths_leave_nothing_and_nobody_waits(space) {
        let (callee_image, caller_image) = (c("callee.c"), c("caller.c"));
        // Emulation is slow: with `--full`, what is promised is seen there as well.
        let full = std::env::var_os("PARTYWALL_TRIALS").is_some_and(|trials| trials == "full");
        let deaths = if is_emulated() && !full { 10 } else { 1000 };
        let before = (tasks(), descriptors());
        let links: Arc<Links> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let mut other = start(space, &caller_image, &["load"]);
        other.ready();
        let mut callees: Vec<Option<Running>> = Vec::new();
        for link in &*links {
            let (running, taken) = callee(space, &callee_image, other.domain.pid());
            *link.lock().unwrap() = Some(taken);
            callees.push(Some(running));
        }
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (guest, links, stop) = (launcher(space), links.clone(), stop.clone());
                std::thread::spawn(move || caller(guest, &links, &stop))
            })
            .collect();
        // Who makes the last call of a callee: a thread that may be inside when it dies.
        let (ask, asked) = mpsc::channel::<(Link, [u64; 3])>();
        let last_calls = Arc::new(AtomicU64::new(0));
        let (guest, counted) = (launcher(space), last_calls.clone());
        let last = std::thread::spawn(move || {
            for (link, words) in asked {
                let begin = Instant::now();
                while guest.call(link, words, LIMIT) == Err(GateStatus::Busy) {
                    assert!(begin.elapsed() < LONG, "no context");
                    std::thread::yield_now();
                }
                counted.fetch_add(1, Ordering::Release);
            }
        });
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut inside = 0;
        for death in 0..deaths {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (victim, way) = ((random >> 33) as usize % CALLEES, (random >> 48) as usize % 11);
            let domain = &mut callees[victim].as_mut().unwrap().domain;
            match ENDS.get(way) {
                Some((_, words)) => {
                    ask.send((links[victim].lock().unwrap().unwrap(), *words)).unwrap();
                    inside += 1;
                }
                // Killed from outside, under load.
                None if way == ENDS.len() => domain.signal(Signal::KILL).unwrap(),
                None => {
                    // A caller dies with it, wherever it is; what that was inside of is poisoned.
                    other.domain.signal(Signal::KILL).unwrap();
                    other.domain.wait().unwrap();
                    domain.signal(Signal::KILL).unwrap();
                }
            }
            let begin = Instant::now();
            while !domain.is_poisoned() && domain.try_wait().unwrap().is_none() {
                assert!(begin.elapsed() < LONG, "death {death}, way {way}");
                std::thread::sleep(Duration::from_micros(100));
            }
            if other.domain.try_wait().unwrap().is_some() {
                other = start(space, &caller_image, &["load"]);
                other.ready();
            }
            for (running, link) in callees.iter_mut().zip(&*links) {
                let domain = &mut running.as_mut().unwrap().domain;
                if domain.is_poisoned() || domain.try_wait().unwrap().is_some() {
                    *running = None;
                    launcher(space).release(link.lock().unwrap().take().unwrap());
                    let (again, taken) = callee(space, &callee_image, other.domain.pid());
                    *link.lock().unwrap() = Some(taken);
                    *running = Some(again);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        drop(ask);
        last.join().unwrap();
        let ended: Vec<[u64; 16]> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        println!("{inside} of {deaths} by a call; calls by status: {ended:?}");
        // Every call has come back.
        assert_eq!(last_calls.load(Ordering::Acquire), inside);
        assert!(ended.iter().all(|by_status| by_status[GateStatus::Done as usize] > 1000));
        drop((callees, other));
        assert_eq!(mapped(space.range()), 0);
        assert_eq!((tasks(), descriptors()), before);
        // No child is left to wait for.
        assert_eq!(rustix::process::wait(rustix::process::WaitOptions::NOHANG).unwrap_err(), rustix::io::Errno::CHILD);
    }
}

in_a_launcher! {
    /// More often than a domain can have contexts: each is used again.
    fn a_caller_whose_lent_thread_is_cancelled_gets_another(space) {
        let mut callee = Callee::start(space, &c("callee.c"), 2);
        let pid = Pid::from_raw(callee.running.domain.pid() as i32).unwrap();
        for turn in 0..70 {
            let begin = Instant::now();
            loop {
                match callee.call([70, 0, 0]) {
                    Ok(70) => break,
                    other => assert!(begin.elapsed() < LONG * slowness(), "{turn}: {other:?}"),
                }
                std::thread::yield_now();
            }
            kill_process(pid, Signal::USR1).unwrap();
            in_time(LONG, "pthread_join(3)", || callee.running.says("exchanged\n"));
        }
        assert!(!callee.running.domain.is_poisoned());
    }
}
