#![allow(unsafe_code, reason = "the CPU clock of another process is reached through libc")]
//! Which CPUs a sample may use, and how much CPU time a process has spent.

use std::io;
use std::mem::MaybeUninit;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs of the two sides.
#[derive(Clone, Copy, Debug)]
pub struct Cpus {
    /// The client's CPU, and the server's too when both share one core.
    pub first: usize,
    /// A CPU of another core, if this process may use one.
    pub second: Option<usize>,
}

impl Cpus {
    /// The first allowed CPU and the first allowed one that is not its hardware sibling.
    pub fn find() -> io::Result<Self> {
        let allowed = allowed()?;
        let first = *allowed.first().ok_or_else(|| io::Error::other("no CPU is allowed"))?;
        let siblings = siblings(first);
        let second = allowed.iter().copied().find(|cpu| !siblings.contains(cpu));
        Ok(Self { first, second })
    }
}

/// The CPUs this process may run on.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Binds the calling thread, and every thread it starts from now on, to one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut found = cpu_list(text.trim());
    found.push(cpu);
    found
}

/// Reads a kernel CPU list such as `0-1,4`.
fn cpu_list(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<usize>(), to.parse::<usize>()) {
            found.extend(from..=to);
        }
    }
    found
}

/// CPU time that process `pid` has used so far, all threads, user and system, in nanoseconds.
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid place for the result.
    let failed = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is a valid place for the result.
    let failed = unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: clock_gettime returned zero, so it has filled the value.
    let time = unsafe { time.assume_init() };
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kernel_cpu_lists() {
        assert_eq!(cpu_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(cpu_list("3"), [3]);
        assert_eq!(cpu_list(""), [0; 0]);
    }

    #[test]
    fn own_cpu_time_grows_with_work() {
        let me = std::process::id();
        let before = process_cpu_ns(me).expect("own clock");
        let mut sum = 0u64;
        for i in 0..2_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_add(i));
        }
        assert!(process_cpu_ns(me).expect("own clock") > before);
    }
}
