//! What a process holds, and how long something takes it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// User and system time of a process so far.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let field = |n: usize| after_name.split(' ').nth(n - 3).unwrap().parse::<u64>().unwrap();
    let ticks = field(14) + field(15);
    Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second())
}

/// A moment, and how long each thread of a process had waited for a CPU until then: what others of a
/// busy machine take from them is no part of how long the process takes.
#[derive(Debug, Clone)]
pub struct Moment {
    at: Instant,
    waited: BTreeMap<PathBuf, Duration>,
}

impl Moment {
    /// Now, of the process with this number.
    pub fn of(pid: u32) -> Self {
        let at = Instant::now();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread that has just ended says nothing.
        let waited = |task: std::io::Result<std::fs::DirEntry>| {
            let task = task.ok()?.path();
            let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
            Some((task, Duration::from_nanos(times.split(' ').nth(1)?.parse().ok()?)))
        };
        Self { at, waited: tasks.filter_map(waited).collect() }
    }

    /// Now, of the process that calls.
    pub fn here() -> Self {
        Self::of(std::process::id())
    }

    /// The time from `earlier`, less what the thread that waited longest for a CPU has waited since
    /// then: threads that wait at the same time hold the process up once.
    pub fn since(&self, earlier: &Self) -> Duration {
        let since = |(task, waited): (&PathBuf, &Duration)| {
            waited.saturating_sub(earlier.waited.get(task).copied().unwrap_or_default())
        };
        let waited = self.waited.iter().map(since).max().unwrap_or_default();
        self.at.saturating_duration_since(earlier.at).saturating_sub(waited)
    }
}

/// What a process holds: its descriptors by kind (`socket`, `memfd:partywall-outbox (deleted)`, the
/// path of a file), and mapped outboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    descriptors: BTreeMap<String, usize>,
    outboxes: usize,
}

impl Held {
    /// What the process with this number holds now.
    pub fn by(pid: u32) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mut descriptors = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
            // The directory that is being read is closed again.
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            // Numbers of sockets and pipes differ each time.
            let kind = target.split_once(":[").map_or(target.as_str(), |(kind, _)| kind);
            *descriptors.entry(kind.to_owned()).or_default() += 1;
        }
        let outboxes = maps.lines().filter(|l| l.contains("partywall-outbox")).count();
        Self { descriptors, outboxes }
    }

    /// How many descriptors are of files with `name` in their path.
    pub fn descriptors_of(&self, name: &str) -> usize {
        let of_name = self.descriptors.iter().filter(|(kind, _)| kind.contains(name));
        of_name.map(|(_, count)| count).sum()
    }

    /// What it holds that `before` did not.
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        let more = |(kind, count): (&String, &usize)| {
            let known = before.descriptors.get(kind).copied().unwrap_or(0);
            (*count > known).then(|| format!("{} of {kind}", count - known))
        };
        let mut found: Vec<String> = self.descriptors.iter().filter_map(more).collect();
        if self.outboxes > before.outboxes {
            found.push(format!("{} mapped outboxes", self.outboxes - before.outboxes));
        }
        found
    }

    /// Waits until the process holds no more than this again; how long that took, less what the
    /// process waited for a CPU.
    pub fn wait_for(&self, pid: u32) -> Duration {
        let start = Moment::of(pid);
        loop {
            let left = Self::by(pid).beyond(self);
            let took = Moment::of(pid).since(&start);
            if left.is_empty() {
                return took;
            }
            assert!(took < Duration::from_secs(5), "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
