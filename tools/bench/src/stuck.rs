//! What the processes of a sample are doing, from /proc: to tell a hang from a want of CPU time.
//!
//! A thread that may run and is not let is not stuck. On a machine with more to do than CPUs that
//! is most of a sample's time: at a load of 30 on two CPUs, 7 of 105 samples of `words` did not end in
//! their time, each with one side ready to run that had had a fiftieth of it. So a [`Watch`] does not
//! count what the two sides waited for a CPU.
//!
//! ```text
//! hung   when the time less all waiting for a CPU is over (both sides sleep), or
//!        when one thread has run for all of that time (it goes round in circles)
//! ```

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A thread of a process, as /proc shows it. Empty where it has just ended.
struct Task {
    name: String,
    state: String,
    place: String,
    ran: Duration,
    waited: Duration,
}

impl Task {
    fn look(dir: &Path) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(dir.join(file));
        let stat = read("stat").ok()?;
        let (before, after) = stat.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        let (ran, waited) = times(&read("schedstat").ok()?)?;
        let place = read("wchan").unwrap_or_default();
        Some(Self {
            name: name.to_owned(),
            state: after.chars().take(1).collect(),
            place: if place == "0" { String::new() } else { place },
            ran,
            waited,
        })
    }
}

/// How long a thread has run, and how long it has waited for a CPU, from its `schedstat`.
fn times(schedstat: &str) -> Option<(Duration, Duration)> {
    let mut fields = schedstat.split_whitespace().map(|field| field.parse().ok());
    let (ran, waited) = (fields.next()??, fields.next()??);
    Some((Duration::from_nanos(ran), Duration::from_nanos(waited)))
}

/// Directories of the threads of a process.
fn threads(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn tasks(pid: u32) -> Vec<Task> {
    threads(pid).filter_map(|dir| Task::look(&dir)).collect()
}

/// The process and its children, which are a launcher's domains.
fn family(pid: u32) -> Vec<u32> {
    let children = threads(pid).filter_map(|dir| fs::read_to_string(dir.join("children")).ok());
    let numbers = children.flat_map(|text| {
        text.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<u32>>()
    });
    std::iter::once(pid).chain(numbers).collect()
}

/// How long the processes and their children have waited for a CPU so far, of each process the thread
/// that waited longest; and how long the thread that has run longest has run. Nothing where the
/// kernel does not say.
fn spent(pids: &[u32]) -> (Duration, Duration) {
    let (mut waited, mut ran) = (Duration::ZERO, Duration::ZERO);
    for pid in pids.iter().flat_map(|pid| family(*pid)) {
        let tasks = tasks(pid);
        waited += tasks.iter().map(|task| task.waited).max().unwrap_or_default();
        ran = tasks.iter().map(|task| task.ran).max().unwrap_or_default().max(ran);
    }
    (waited, ran)
}

/// The time that some processes have.
#[derive(Debug)]
pub struct Watch {
    from: Instant,
    limit: Duration,
    before: (Duration, Duration),
}

impl Watch {
    /// Gives them `limit` from `from` on.
    pub fn new(from: Instant, limit: Duration, pids: &[u32]) -> Self {
        Self { from, limit, before: spent(pids) }
    }

    /// When their time is over if they do not wait for a CPU.
    pub fn end(&self) -> Instant {
        self.from + self.limit
    }

    /// Whether their time is over.
    pub fn is_over(&self, pids: &[u32]) -> bool {
        let took = self.from.elapsed();
        // Reading what they wait for takes its time, so it is done when it can matter.
        if took < self.limit {
            return false;
        }
        let (waited, ran) = spent(pids);
        let waited = waited.saturating_sub(self.before.0);
        took.saturating_sub(waited) >= self.limit || ran.saturating_sub(self.before.1) >= self.limit
    }
}

/// What each thread of the process and of its children is doing.
pub fn describe(role: &str, pid: u32) -> String {
    let mut out = String::new();
    for pid in family(pid) {
        for task in tasks(pid) {
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "; {role} {}: {} {} after {:.2} s of CPU time and {:.2} s of waiting for it",
                task.name,
                task.state,
                task.place,
                task.ran.as_secs_f64(),
                task.waited.as_secs_f64()
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn times_are_read_from_schedstat() {
        let (ran, waited) = times("147354964 101720138 271\n").expect("three numbers");
        assert_eq!((ran.as_nanos(), waited.as_nanos()), (147_354_964, 101_720_138));
        assert!(times("").is_none() && times("x 1 2").is_none());
    }

    #[test]
    fn a_thread_that_sleeps_is_described_and_has_not_waited_for_a_cpu() {
        let (tx, rx) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::Builder::new()
            .name("sleeper".into())
            .spawn(move || rx.recv().is_err())
            .expect("a thread");
        let end = Instant::now() + Duration::from_secs(5);
        let said = || describe("client", std::process::id());
        while !said().contains("client sleeper: S") {
            assert!(Instant::now() < end, "{}", said());
        }
        drop(tx);
        assert!(sleeper.join().expect("no panic"));
    }

    /// Threads that run while this asks, eight times as many as CPUs.
    fn crowd<T>(done: &AtomicBool, ask: impl FnOnce() -> T) -> T {
        let cpus = crate::sys::cpu::allowed().expect("CPUs").len();
        std::thread::scope(|scope| {
            for _ in 0..8 * cpus {
                scope.spawn(|| while !done.load(Relaxed) {});
            }
            let answer = ask();
            done.store(true, Relaxed);
            answer
        })
    }

    /// Whether a watch is over once: what threads of other tests have waited goes with them.
    fn is_over_within(watch: &Watch, pids: &[u32], most: Duration) -> bool {
        let end = Instant::now() + most;
        while Instant::now() < end {
            if watch.is_over(pids) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    #[test]
    fn cpu_wait_is_no_hang_and_endless_run_is() {
        let me = [std::process::id()];
        // A machine with other work can keep this thread away for a second.
        let limit = Duration::from_millis(500);
        let done = AtomicBool::new(false);
        let (late, over) = crowd(&done, || {
            let watch = Watch::new(Instant::now(), limit, &me);
            while watch.from.elapsed() < 2 * limit {
                std::thread::sleep(Duration::from_millis(10));
            }
            let late = watch.is_over(&me);
            // Each thread gets an eighth of a CPU.
            (late, is_over_within(&watch, &me, 100 * limit))
        });
        assert!(!late, "it has waited for most of its time");
        assert!(over, "it has run for all of its time");
    }

    #[test]
    fn sleep_past_the_limit_is_a_hang() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = [child.id()];
        let watch = Watch::new(Instant::now(), Duration::from_millis(100), &pid);
        assert!(!watch.is_over(&pid));
        std::thread::sleep(Duration::from_millis(50));
        let over = is_over_within(&watch, &pid, Duration::from_secs(20));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(over);
    }
}
