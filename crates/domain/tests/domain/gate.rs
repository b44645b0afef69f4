//! Calls through the gate: what comes back, what a callee can do wrong, and what it costs nobody else.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partywall_abi::domain::GateStatus;
use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_guest::{Guest, Link};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process, setpriority_process,
    setrlimit, waitid,
};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::host::{
    Running, c, in_a_launcher, in_time, is_emulated, is_quiet, mapped, path, slowness, start,
};
use crate::launcher::launcher;

const LONG: Duration = Duration::from_secs(3);

/// A callee of `callee.c` and the link to it.
pub(crate) struct Callee {
    pub(crate) running: Running,
    guest: Guest,
    link: Link,
}

impl Callee {
    pub(crate) fn start(space: &AddressSpace, image: &OwnedFd, threads: u32) -> Self {
        Self::start_for(space, image, &[&threads.to_string()])
    }

    fn start_for(space: &AddressSpace, image: &OwnedFd, args: &[&str]) -> Self {
        let mut running = start(space, image, args);
        running.ready();
        let guest = launcher(space);
        let link = guest.take(7).unwrap();
        let callee = Self { running, guest, link };
        // Its threads may not have parked yet.
        let begin = Instant::now();
        while callee.call([0, 0, 0]) == Err(GateStatus::Busy) {
            assert!(begin.elapsed() < LONG, "no thread is lent");
        }
        callee
    }

    pub(crate) fn call(&self, words: [u64; 3]) -> Result<u64, GateStatus> {
        self.within(words, LONG)
    }

    fn within(&self, words: [u64; 3], limit: Duration) -> Result<u64, GateStatus> {
        self.guest.call(self.link, words, limit)
    }
}

in_a_launcher! {
    fn a_call_comes_back_with_its_answer(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        assert_eq!(callee.call([0, 40, 2]), Ok(42));
        let before = callee.call([1, 0, 0]).unwrap();
        let calls = 100_000 / u64::from(slowness());
        for n in 1..=calls {
            assert_eq!(callee.call([0, n, n]), Ok(2 * n));
        }
        // Its own thread-local storage counts, not ours.
        assert_eq!(callee.call([1, 0, 0]), Ok(before + calls + 1));
    }
}

in_a_launcher! {
    fn system_calls_of_a_callee_are_its_own(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        let pid = u64::from(callee.running.domain.pid());
        let tid = callee.call([8, pid, 0]).unwrap();
        assert!(tid > pid && std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists());
        let fd = callee.call([9, 0, 0]).unwrap();
        let theirs = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        assert_eq!(theirs, std::path::Path::new("/etc/hostname"));
        let ours = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        assert!(ours.is_err() || ours.unwrap() != theirs);
        for bytes in [100, 100_000, 10 << 20] {
            assert_eq!(callee.call([10, bytes, 0]), Ok(1));
        }
        assert_eq!(callee.call([36, 0, 0]), Ok(36));
        assert_eq!(callee.call([37, 10, 0]), Ok(37));
    }
}

in_a_launcher! {
    fn tasks_that_a_callee_makes_are_its_own(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        let pid = u64::from(callee.running.domain.pid());
        for _ in 0..20 / slowness() {
            assert_eq!(callee.call([22, pid, 0]), Ok(22));
        }
        assert_eq!(callee.call([0, 1, 1]), Ok(2));
    }
}

in_a_launcher! {
    fn a_callee_that_fails_ends_its_call_and_nothing_else(space) {
        let image = c("callee.c");
        let witness = Callee::start(space, &image, 1);
        let ways = [
            ("null", [2, 8, 0], GateStatus::Fault),
            ("ud2", [3, 0, 0], GateStatus::Fault),
            ("overflow", [4, 0, 0], GateStatus::Fault),
            ("abort", [6, 0, 0], GateStatus::Died),
            ("division", [7, 0, 0], GateStatus::Fault),
            ("stack pointer", [14, 64, 0], GateStatus::Fault),
            ("exit", [15, 0, 0], GateStatus::Died),
            ("kill", [16, 0, 0], GateStatus::Died),
            ("thread's exit", [18, 0, 0], GateStatus::Fault),
        ];
        for (way, words, status) in ways {
            let mut callee = Callee::start(space, &image, 2);
            if status == GateStatus::Died {
                // Somebody has to notice the death while this thread waits.
                let (guest, link) = (callee.guest, callee.link);
                let caller = std::thread::spawn(move || {
                    loop {
                        match guest.call(link, words, LONG) {
                            // The second thread has not parked yet.
                            Err(GateStatus::Busy) => std::thread::yield_now(),
                            ended => return ended,
                        }
                    }
                });
                callee.running.domain.wait().unwrap();
                drop(callee);
                assert_eq!(caller.join().unwrap(), Err(status), "{way}");
            } else {
                assert_eq!(callee.call(words), Err(status), "{way}");
                // This thread's context is poisoned.
                assert_eq!(callee.call([0, 1, 1]), Err(GateStatus::Busy), "{way}");
                assert!(callee.running.domain.try_wait().unwrap().is_none());
            }
            assert_eq!(witness.call([0, 1, 1]), Ok(2));
        }
    }
}

in_a_launcher! {
    fn what_is_left_on_the_x87_stack_of_an_ended_call_is_gone(space) {
        let callee = Callee::start(space, &c("callee.c"), 2);
        assert_eq!(callee.call([27, 0, 0]), Err(GateStatus::Fault));
        // With a full stack the next number would be none.
        let witness = Callee::start(space, &c("callee.c"), 1);
        assert_eq!(witness.call([21, 0, 0]), Ok(1));
    }
}

in_a_launcher! {
    fn a_callee_keeps_its_own_mask_and_is_nobody_elses_callee(space) {
        let callee = Callee::start(space, &c("callee.c"), 2);
        for way in [25, 26, 25] {
            assert_eq!(callee.call([way, 0, 0]), Ok(way));
        }
        let others = [7_u64; 8];
        let address = std::hint::black_box(&others).as_ptr() as u64;
        assert_eq!(callee.call([35, address, 0]), Ok(35));
        assert_eq!(std::hint::black_box(others), [7; 8]);
    }
}

in_a_launcher! {
    fn a_callee_that_declares_to_make_no_system_calls_makes_none(space) {
        let callee = Callee::start_for(space, &c("callee.c"), &["1", "silent"]);
        assert_eq!(callee.call([0, 1, 1]), Ok(2));
        assert_eq!(callee.call([8, 0, 0]), Err(GateStatus::SystemCall));
        assert!(callee.running.domain.is_poisoned());
    }
}

in_a_launcher! {
    fn a_callee_calls_another_and_what_that_does_is_that_ones_own(space) {
        let image = c("callee.c");
        let mut first = start(space, &image, &["2", "next"]);
        let pid = first.domain.pid().to_string();
        let second = Callee::start_for(space, &image, &["2", &pid]);
        first.ready();
        let first = Callee { link: launcher(space).take(7).unwrap(), guest: launcher(space), running: first };
        while first.call([0, 0, 0]) == Err(GateStatus::Busy) {
            std::thread::yield_now();
        }
        assert_eq!(first.call([28, 0, 26]), Ok(26));
        assert_eq!(first.call([29, 0, 0]), Ok(1000 + GateStatus::Denied as u64));
        assert_eq!(first.call([28, 0, 3]), Ok(1000 + GateStatus::Fault as u64));
        assert!(second.running.domain.is_poisoned() && !first.running.domain.is_poisoned());
        assert_eq!(first.call([0, 1, 1]), Ok(2));
    }
}

in_a_launcher! {
    fn time_inside_counts_for_the_callee_and_for_its_caller(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        let now = || callee.call([62, 0, 0]).unwrap();
        let long_call = || {
            let begin = now();
            assert_eq!(callee.call([24, 1_000, 0]), Ok(24));
            now() - begin
        };
        let least = (0..50).map(|_| long_call()).min().unwrap();
        // One in ten is long, at random: most of those come after short ones, and are not timed.
        let calls = 20_000 / u64::from(slowness());
        let (before, begin) = (callee.running.domain.called(), now());
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut long = 0;
        for _ in 0..calls {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pauses = if (random >> 33).is_multiple_of(10) { 1_000 } else { 1 };
            long += u64::from(pauses == 1_000);
            assert_eq!(callee.call([24, pauses, 0]), Ok(24));
        }
        let whole = now() - begin;
        let after = callee.running.domain.called();
        let inside = after.ticks - before.ticks;
        println!("{inside} of {whole} ticks, {long} long calls of {least}");
        // What takes a processor away in a call that is timed counts for others too; were all calls taken for
        // long ones, it would be nine times the whole.
        let most = if is_quiet() { whole * 3 / 2 } else { whole * 6 };
        assert!(inside > long * least / 5 * 4 && inside < most, "{inside} of {whole}, {long} of {least}");
        assert_eq!((after.calls - before.calls, after.callee_time), (calls + 2, 0));

        let mut other = start(space, &c("caller.c"), &["load"]);
        other.ready();
        let pid = other.domain.pid().to_string();
        let callee = Callee::start_for(space, &c("callee.c"), &["2", &pid]);
        let ours = callee.running.domain.called();
        let begin = Instant::now();
        while other.domain.called().callee_time == 0 {
            assert!(begin.elapsed() < LONG, "it makes no calls");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(100));
        // Its own time may be one sample short of the callee's, and the callee's have ours.
        let (away, inside) = (other.domain.called().callee_time, callee.running.domain.called().ticks);
        assert!(away > 0 && away <= inside && inside - away <= ours.ticks + inside / 4, "{away} of {inside}");
        assert_eq!(other.domain.called().ticks, 0);
    }
}

/// A moment, and what each of some threads has waited for a CPU until then.
struct Moment {
    at: Instant,
    waited: Vec<Duration>,
}

impl Moment {
    fn of(threads: &[PathBuf]) -> Self {
        let at = Instant::now();
        let waited = threads.iter().map(|thread| {
            let times = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
            Duration::from_nanos(times.split(' ').nth(1).map_or(0, |n| n.parse().unwrap()))
        });
        Self { at, waited: waited.collect() }
    }

    /// The time from `earlier`, and that less what the threads have waited for a CPU since then: they
    /// wait for each other, so that all of it may have come one after the other.
    fn since(&self, earlier: &Self) -> (Duration, Duration) {
        let waits = self.waited.iter().zip(&earlier.waited);
        let waited = waits.map(|(now, before)| now.saturating_sub(*before)).sum();
        let all = self.at - earlier.at;
        (all, all.saturating_sub(waited))
    }
}

/// The threads of a process, by their directories below /proc.
fn threads(pid: u32) -> Vec<PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| thread.unwrap().path()).collect()
}

/// The thread of this process that watches the time, once it has nothing to watch and the next call has to
/// wake it.
fn watch_that_sleeps() -> PathBuf {
    let is_watch = |thread: &PathBuf| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "domain-watchdog\n")
    };
    let watch = threads(std::process::id()).into_iter().find(is_watch).unwrap();
    let futex = format!("{} ", libc::SYS_futex);
    in_time(LONG, "the sleep of the thread that watches the time", || {
        while !std::fs::read_to_string(watch.join("syscall")).unwrap().starts_with(&futex) {
            std::thread::yield_now();
        }
    });
    watch
}

in_a_launcher! {
    /// The fastest of three had half a second.
    fn a_call_that_takes_too_long_is_ended(space) {
        let image = c("callee.c");
        let limit = Duration::from_millis(10);
        // Some 20 ms, and 130 ms in a system call, which is left a hundred ticks.
        for (way, words, most) in [("loop", [5, 0, 0], 50), ("sleep", [17, 0, 0], 200)] {
            let callee = Callee::start(space, &image, 1);
            let own = PathBuf::from(format!("/proc/self/task/{}", rustix::thread::gettid()));
            let threads = [vec![own, watch_that_sleeps()], threads(callee.running.domain.pid())];
            let threads = threads.concat();
            let (ended, (all, own)) = in_time(5 * LONG, "the end of a call", || {
                let begin = Moment::of(&threads);
                let ended = callee.within(words, limit);
                (ended, Moment::of(&threads).since(&begin))
            });
            assert_eq!(ended, Err(GateStatus::Deadline), "{way}");
            assert!(all >= limit, "{way}: {all:?}");
            let most = Duration::from_millis(most) * slowness();
            println!("{way}: {all:?}, of which {own:?} not waiting for a CPU");
            assert!(own < most, "{way}: {own:?} of {all:?}");
        }
    }
}

in_a_launcher! {
    fn a_full_queue_of_signals_switches_no_limit_off(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        // What any process of the same user can bring about by signals that it queues and blocks.
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(Resource::Sigpending, none).unwrap();
        let ended = in_time(LONG, "the end of a call with a limit of 20 ms", || {
            callee.within([5, 0, 0], Duration::from_millis(20))
        });
        assert_eq!(ended, Err(GateStatus::Deadline));
    }
}

in_a_launcher! {
    fn a_domain_with_lent_threads_changes_its_user_and_cancels_them(space) {
        let mut callee = Callee::start(space, &c("callee.c"), 2);
        let changed = in_time(LONG, "setuid(2) inside a call", || callee.call([40, 0, 0]));
        assert_eq!(changed, Ok(40));
        let pid = Pid::from_raw(callee.running.domain.pid() as i32).unwrap();
        kill_process(pid, Signal::USR1).unwrap();
        in_time(LONG, "setuid(2) and pthread_join(3)", || callee.running.says("dropped\n"));
        // The thread that is left is lent as before.
        let begin = Instant::now();
        loop {
            match callee.call([0, 40, 2]) {
                Ok(42) => break,
                other => assert!(begin.elapsed() < LONG * slowness(), "{other:?}"),
            }
            std::thread::yield_now();
        }
        assert!(!callee.running.domain.is_poisoned());
    }
}

in_a_launcher! {
    fn a_domain_that_becomes_another_program_takes_no_calls(space) {
        let other = c("end.c");
        let mut callee = Callee::start_for(space, &c("callee.c"), &["1", "other", "/no/other"]);
        let pid = Pid::from_raw(callee.running.domain.pid() as i32).unwrap();
        kill_process(pid, Signal::USR2).unwrap();
        callee.running.says("still here\n");
        assert_eq!(callee.call([0, 40, 2]), Ok(42));
        drop(callee);
        let mut callee = Callee::start_for(space, &c("callee.c"), &["1", "other", &path(&other)]);
        let pid = Pid::from_raw(callee.running.domain.pid() as i32).unwrap();
        kill_process(pid, Signal::USR2).unwrap();
        callee.running.ready();
        assert_eq!(callee.call([0, 40, 2]), Err(GateStatus::Closed));
        assert!(callee.running.domain.try_wait().unwrap().is_none());
    }
}

in_a_launcher! {
    fn a_system_call_that_nobody_has_begun_is_waited_for_but_not_for_ever(space) {
        let image = c("callee.c");
        let (limit, away) = (Duration::from_millis(10), Duration::from_millis(300));
        let stopped = || {
            let callee = Callee::start(space, &image, 1);
            let pid = Pid::from_raw(callee.running.domain.pid() as i32).unwrap();
            kill_process(pid, Signal::STOP).unwrap();
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap().unwrap();
            (callee, pid, Instant::now())
        };
        let (callee, pid, begin) = stopped();
        std::thread::scope(|scope| {
            let awake = scope.spawn(|| {
                std::thread::sleep(away);
                kill_process(pid, Signal::CONT).unwrap();
                begin.elapsed()
            });
            let answer = callee.within([60, 1, 0], limit);
            assert!(begin.elapsed() > away, "{answer:?}");
            // What else runs on the machine can keep it away for longer than anybody waits, which
            // is a second.
            let away = awake.join().unwrap();
            assert!(answer == Ok(1) || away > Duration::from_millis(600), "{answer:?} after {away:?}");
        });
        drop(callee);
        let (callee, _, begin) = stopped();
        assert_eq!(callee.within([60, 1, 0], limit), Err(GateStatus::Deadline));
        let took = begin.elapsed();
        assert!((Duration::from_secs(1)..5 * LONG * slowness()).contains(&took), "{took:?}");
    }
}

in_a_launcher! {
    fn registers_that_a_callee_leaves_odd_come_back_as_they_were(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        for way in [11, 12, 13, 20] {
            assert_eq!(callee.call([way, 0, 0]), Ok(way));
            assert_eq!(callee.call([21, 0, 0]), Ok(1), "after {way}");
            let third = std::hint::black_box(1.0_f64) / 3.0;
            assert_eq!(third.to_bits(), 0x3fd5_5555_5555_5555);
            let mut bytes = [7_u8; 64];
            bytes.copy_within(0..60, 4);
            assert_eq!(bytes, [7; 64]);
        }
        // Its thread-local storage somewhere else: ours comes back.
        assert_eq!(callee.call([19, 0x1000, 0]), Ok(19));
        assert_eq!(std::thread::current().id(), std::thread::current().id());
    }
}

in_a_launcher! {
    fn as_many_callers_as_contexts_are_inside_at_once(space) {
        let callee = Callee::start(space, &c("callee.c"), 4);
        let (guest, link) = (callee.guest, callee.link);
        let most = if is_emulated() { 1000 } else { 50_000 };
        let callers: Vec<_> = (0..8_u64)
            .map(|lane| {
                std::thread::spawn(move || {
                    let (mut done, mut busy) = (0_u64, 0_u64);
                    while done < most {
                        match guest.call(link, [0, lane, done], LONG) {
                            Ok(sum) => {
                                assert_eq!(sum, lane + done);
                                done += 1;
                            }
                            Err(status) => {
                                assert_eq!(status, GateStatus::Busy);
                                busy += 1;
                                std::thread::yield_now();
                            }
                        }
                    }
                    busy
                })
            })
            .collect();
        let busy: u64 = callers.into_iter().map(|c| c.join().unwrap()).sum();
        println!("{busy} of {} found no context", 8 * most + busy);
    }
}

in_a_launcher! {
    fn a_link_that_was_given_up_is_closed(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        let guest = callee.guest;
        assert_eq!(guest.take(7).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        guest.release(callee.link);
        assert_eq!(callee.call([0, 0, 0]), Err(GateStatus::Closed));
    }
}

in_a_launcher! {
    fn a_dead_callee_takes_no_calls(space) {
        let mut callee = Callee::start(space, &c("callee.c"), 1);
        callee.running.domain.signal(rustix::process::Signal::KILL).unwrap();
        let status = callee.running.domain.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        let (guest, link) = (callee.guest, callee.link);
        drop(callee);
        assert_eq!(guest.call(link, [0, 0, 0], LONG), Err(GateStatus::Closed));
    }
}

/// A caller of `caller.c` and the callee that it calls.
pub(crate) fn pair(space: &AddressSpace, way: &str) -> (Running, Callee) {
    pair_for(space, &[way])
}

/// The same, with more arguments for the caller.
pub(crate) fn pair_for(space: &AddressSpace, way: &[&str]) -> (Running, Callee) {
    let mut caller = start(space, &c("caller.c"), way);
    caller.ready();
    let pid = caller.domain.pid().to_string();
    let callee = Callee::start_for(space, &c("callee.c"), &["3", &pid]);
    (caller, callee)
}

in_a_launcher! {
    fn a_domain_that_enters_oddly_gets_the_right_answer_or_none(space) {
        let (caller, callee) = pair(space, "all");
        let (status, said) = caller.end();
        assert_eq!((status.code(), said.as_str()), (Some(0), "ok\n"), "{status}");
        assert_eq!(callee.call([0, 1, 1]), Ok(2));
    }
}

in_a_launcher! {
    fn entrances_believe_no_thread_local_storage(space) {
        let keys = space.isolation() != Isolation::None;
        for which in 0..9 {
            let (caller, callee) = pair_for(space, &["entrances", &which.to_string()]);
            let (status, said) = caller.end();
            // With keys the way back finds that its rights are not those of the storage.
            let lost = keys && status.signal() == Some(libc::SIGILL);
            assert!(lost || (status.code(), said.as_str()) == (Some(0), "ok\n"), "{which}: {status} {said}");
            // It takes calls, which may make system calls.
            assert_eq!(callee.call([60, 1, 0]), Ok(1), "{which}");
        }
    }
}

in_a_launcher! {
    fn threads_that_end_without_disarming_keep_no_contexts(space) {
        let count = (1200 / slowness()).to_string();
        let (caller, _callee) = pair_for(space, &["threads", &count]);
        let (status, said) = caller.end();
        assert_eq!((status.code(), said.as_str()), (Some(0), "ok\n"), "{status}");
    }
}

in_a_launcher! {
    fn a_caller_without_a_stack_ends_itself_alone(space) {
        let (caller, callee) = pair(space, "stack");
        assert_eq!(caller.end().0.signal(), Some(libc::SIGSEGV));
        assert_eq!(callee.call([0, 1, 1]), Ok(2));
    }
}

in_a_launcher! {
    fn a_copy_made_in_a_call_does_not_come_back_as_its_caller(space) {
        let (caller, callee) = pair(space, "copied");
        let (status, said) = caller.end();
        assert_eq!((status.code(), said.as_str()), (Some(0), "ok\n"), "{status}");
        assert_eq!(callee.call([0, 1, 1]), Ok(2));
    }
}

in_a_launcher! {
    fn a_caller_that_dies_inside_poisons_what_it_was_lent(space) {
        let (mut caller, callee) = pair(space, "stay");
        caller.says("inside\n");
        assert!(!callee.running.domain.is_poisoned());
        std::thread::sleep(Duration::from_millis(20));
        caller.domain.signal(rustix::process::Signal::KILL).unwrap();
        caller.domain.wait().unwrap();
        drop(caller);
        assert!(callee.running.domain.is_poisoned());
        // Others have contexts of their own.
        assert_eq!(callee.call([0, 1, 1]), Ok(2));
    }
}

in_a_launcher! {
    fn a_handler_of_the_caller_is_not_cut_off_with_the_callee(space) {
        let (caller, _callee) = pair(space, "handler");
        let (status, said) = caller.end();
        assert_eq!((status.code(), said.as_str()), (Some(0), "ok\n"), "{status}");
    }
}

in_a_launcher! {
    fn a_callee_is_freed_though_its_caller_is_dead_and_not_waited_for(space) {
        let (mut caller, callee) = pair(space, "stay");
        caller.says("inside\n");
        std::thread::sleep(Duration::from_millis(20));
        caller.domain.signal(rustix::process::Signal::KILL).unwrap();
        let range = callee.running.domain.range();
        let begin = Instant::now();
        drop(callee);
        let most = Duration::from_millis(500) * slowness();
        assert!(begin.elapsed() < most, "{:?}", begin.elapsed());
        assert_eq!(mapped(range), 0);
    }
}

in_a_launcher! {
    fn a_callee_with_a_stopped_caller_is_freed_when_that_goes_on(space) {
        let (mut caller, callee) = pair(space, "stay");
        caller.says("inside\n");
        std::thread::sleep(Duration::from_millis(20));
        caller.domain.signal(rustix::process::Signal::STOP).unwrap();
        let range = callee.running.domain.range();
        drop(callee);
        assert!(mapped(range.clone()) > 3, "its caller is still inside");
        let image = c("end.c");
        let other = start(space, &image, &["stay"]);
        assert!(other.domain.range() != range);
        caller.domain.signal(rustix::process::Signal::CONT).unwrap();
        // Called off, it calls again, and finds the link closed.
        let (status, said) = caller.end();
        assert_eq!(status.code(), Some(1), "{status} {said}");
        let again = [start(space, &image, &["stay"]), start(space, &image, &["stay"])];
        assert!(again.iter().any(|running| running.domain.range() == range));
    }
}

in_a_launcher! {
    fn a_domain_that_takes_no_calls_is_closed_until_it_does_again(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        for _ in 0..20 {
            for expected in [Err(GateStatus::Closed), Ok(42)] {
                callee.running.domain.signal(rustix::process::Signal::HUP).unwrap();
                let begin = Instant::now();
                while callee.call([0, 40, 2]) != expected {
                    assert!(begin.elapsed() < LONG, "{expected:?}");
                }
            }
        }
        assert!(!callee.running.domain.is_poisoned());
    }
}

in_a_launcher! {
    fn a_callee_learns_how_many_system_calls_it_has_made(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        for calls in [0, 1, 7] {
            assert_eq!(callee.call([60, calls, 0]), Ok(calls));
        }
        assert_eq!(launcher(space).forwards(), 0, "outside of a call");
    }
}

in_a_launcher! {
    fn whoever_waits_for_a_poisoning_is_told_of_each(space) {
        let image = c("callee.c");
        let mut seen = 0;
        for _ in 0..2 {
            let (waiting, before) = (space.clone(), seen);
            let waiting = std::thread::spawn(move || waiting.await_poisoning(before));
            let callee = Callee::start(space, &image, 1);
            assert_eq!(callee.call([3, 0, 0]), Err(GateStatus::Fault));
            assert!(callee.running.domain.is_poisoned());
            seen = in_time(LONG, "the end of the wait for a poisoning", || waiting.join().unwrap());
            assert!(seen > before, "{seen} after {before}");
        }
    }
}

in_a_launcher! {
    fn a_caller_that_others_keep_from_running_comes_back(space) {
        let callee = Callee::start(space, &c("callee.c"), 1);
        // Others have this thread's CPU for much longer than its calls may last: it is told each
        // tick that it is late, and hears of it all at once.
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            setpriority_process(None, 15).unwrap();
            let limit = Duration::from_millis(20) * slowness();
            let (started, mut kept) = (Instant::now(), 0);
            let mut answer = Ok(24);
            while answer == Ok(24) && kept < 3 && started.elapsed() < 20 * LONG * slowness() {
                let begin = Instant::now();
                answer = callee.within([24, 1000, 0], limit);
                kept += u32::from(begin.elapsed() > 2 * limit);
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!((answer, kept), (Ok(24), 3));
        });
    }
}

in_a_launcher! {
    fn a_callee_in_which_a_call_was_cut_off_offers_no_links(space) {
        let callee = Callee::start(space, &c("callee.c"), 2);
        assert_eq!(callee.call([3, 0, 0]), Err(GateStatus::Fault));
        // This thread owns the context that was cut off; another one gets the other.
        let offered = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let begin = Instant::now();
                loop {
                    match callee.call([61, 0, 0]) {
                        Err(GateStatus::Busy) if begin.elapsed() < LONG => {}
                        other => break other,
                    }
                }
            });
            other.join().unwrap()
        });
        assert_eq!(offered, Ok(libc::ENOTRECOVERABLE as u64));
    }
}
