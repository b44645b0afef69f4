//! Calls at full rate for a long time take no more memory, mappings or descriptors than at first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partywall_abi::domain::GateStatus;
use partywall_guest::bytes::{CallError, Function};

use crate::host::{c, descriptors, in_a_launcher, mapped, slowness, start};
use crate::launcher::launcher;

/// Resident memory of this process, in KiB (proc(5), `status`).
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

in_a_launcher! {
    fn memory_stays_flat_at_full_rate(space) {
        // `cargo xtask test --full` goes on for ten minutes.
        let full = std::env::var_os("PARTYWALL_TRIALS").is_some_and(|trials| trials == "full");
        let (warm, whole) = if full { (30, 600) } else { (1, 5) };
        let limit = Duration::from_millis(10) * slowness();
        let image = c("callee.c");
        let mut other = start(space, &c("caller.c"), &["load"]);
        other.ready();
        let pid = other.domain.pid().to_string();
        let mut words = start(space, &image, &["4", &pid]);
        words.ready();
        let link = launcher(space).take(7).unwrap();
        let mut bytes = start(space, &image, &["2", "bytes"]);
        bytes.ready();
        let mut function = Function::take(launcher(space), 7).unwrap();
        let stop = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let (guest, stop) = (launcher(space), &stop);
            let calls = scope.spawn(move || {
                let mut calls = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    match guest.call(link, [0, calls, 1], limit) {
                        Ok(sum) => assert_eq!(sum, calls + 1),
                        Err(GateStatus::Busy) => continue,
                        Err(why) => panic!("{why:?}"),
                    }
                    calls += 1;
                }
                calls
            });
            let passed = scope.spawn(move || {
                let request = vec![1; 64 << 10];
                let right = |reply: &[u8]| reply.len() == 64 << 10 && reply.iter().all(|b| *b == 2);
                let mut calls = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    match function.call(&request, limit, right) {
                        Ok(right) => assert!(right),
                        Err(CallError::Gate(GateStatus::Busy)) => continue,
                        Err(why) => panic!("{why}"),
                    }
                    calls += 1;
                }
                calls
            });
            let begin = Instant::now();
            std::thread::sleep(Duration::from_secs(warm));
            let first = (resident_kib(), mapped(0..u64::MAX), descriptors());
            while begin.elapsed() < Duration::from_secs(whole) {
                std::thread::sleep(Duration::from_millis(500));
                let now = resident_kib();
                assert!(now < first.0 + 1024, "{} KiB at first, {now} now", first.0);
            }
            assert_eq!((mapped(0..u64::MAX), descriptors()), (first.1, first.2));
            stop.store(true, Ordering::Relaxed);
            (calls.join().unwrap(), passed.join().unwrap())
        });
        assert!(done.0 > 1000 && done.1 > 50, "{done:?}");
        assert!(words.domain.called().calls > done.0, "the other domain has called as well");
        println!("{done:?} calls in {whole} s");
    }
}
