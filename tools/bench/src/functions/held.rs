//! What thousands of functions hold of memory: what the host's available memory falls by, and the shares of
//! the processes.
//!
//! MemAvailable has what processes' shares leave out: page tables, stacks of the kernel, sockets. It has also
//! what other programs take and give meanwhile; the median over the rounds leaves that out.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::cell::More;
use crate::error::Result;
use crate::row::Figures;

/// Memory at a time, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    available: u64,
    pss: u64,
}

impl Held {
    /// Looks at the host, at this process and at its children.
    pub fn look() -> Result<Self> {
        let mut pss = share(std::process::id());
        for child in children()? {
            pss += share(child);
        }
        Ok(Self { available: available()?, pss })
    }

    /// The figures of what was made since.
    pub fn since(self) -> Result<Figures> {
        let now = Self::look()?;
        let more = More {
            memory_bytes: Some((self.available as f64 - now.available as f64).max(0.0)),
            pss_bytes: Some((now.pss as f64 - self.pss as f64).max(0.0)),
            ..More::default()
        };
        Ok(Figures { functions: Some(more), ..Figures::default() })
    }
}

/// The bytes that a process holds by its proportional shares; 0 of one that has gone.
pub fn share(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    kib(&rollup, "Pss:").unwrap_or(0)
}

/// The children of this process.
pub fn children() -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        let text = fs::read_to_string(thread?.path().join("children"))?;
        found.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(found)
}

fn available() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    Ok(kib(&meminfo, "MemAvailable:").ok_or("the kernel does not say what memory is available")?)
}

/// The bytes of a line such as `Pss:  5 kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Refuses to make so many processes of so many bytes each where there is no room for them.
pub fn admit(processes: u32, each: u64) -> Result<()> {
    let (needed, there) = (u64::from(processes) * each, available()?);
    if there < needed {
        let (needed, there) = (needed >> 20, there >> 20);
        return Err(format!(
            "{processes} processes need {needed} MiB, and {there} MiB are available"
        )
        .into());
    }
    let wanted = u64::from(processes) + SPARE;
    let limit = getrlimit(Resource::Nproc).current.unwrap_or(u64::MAX);
    let is_bound = !rustix::process::geteuid().is_root();
    if is_bound && limit < wanted {
        return Err(
            format!("RLIMIT_NPROC is {limit}; {wanted} are needed (ulimit -u {wanted})").into()
        );
    }
    for file in ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"] {
        let most = fs::read_to_string(file)?.trim().parse::<u64>()?;
        if most < wanted {
            return Err(format!("{file} is {most}; {wanted} are needed").into());
        }
    }
    Ok(())
}

/// Processes that others may have.
const SPARE: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_have_no_room_are_refused() {
        let refused = admit(1_000_000, 1 << 30).expect_err("a petabyte");
        assert!(refused.to_string().contains("are available"), "{refused}");
        let refused = admit(100_000_000, 0).expect_err("more than there can be");
        assert!(refused.to_string().contains("are needed"), "{refused}");
        admit(1, 1 << 20).expect("room for one");
    }

    #[test]
    fn lines_of_the_kernel_are_in_kibibytes() {
        assert_eq!(kib("Rss:  9 kB\nPss:  5 kB\n", "Pss:"), Some(5 << 10));
        assert_eq!(kib("Rss:  9 kB\n", "Pss:"), None);
        assert!(share(std::process::id()) > 1 << 16);
    }
}
