//! What processes and the host hold of memory.

use std::io;

/// Bytes: of the processes, of the host's shared memory, and of the host's sockets.
///
/// Of a process it is the proportional share of memory that is private or shared, without that of files
/// on a disk, which is the program itself. Memory that no process has mapped is part of the host's.
/// Unix sockets are not among the sockets that the kernel counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held(pub [u64; 3]);

impl Held {
    /// Looks at `pids` and the host.
    ///
    /// # Errors
    /// If a process has gone, or the kernel does not say.
    pub fn look(pids: &[u32]) -> io::Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path);
        let mut own = 0;
        for pid in pids {
            own += pss(&read(&format!("/proc/{pid}/smaps_rollup"))?);
        }
        let page = rustix::param::page_size() as u64;
        let sockets = sockets(&read("/proc/net/sockstat")?) * page;
        Ok(Self([own, kib(&read("/proc/meminfo")?, "Shmem:"), sockets]))
    }

    /// This and what other processes hold or held, with the host as it was seen with these.
    pub fn with(self, others: Self) -> Self {
        let [own, ..] = self.0;
        let [theirs, shared, sockets] = others.0;
        Self([own + theirs, shared, sockets])
    }

    /// The larger of both, each by itself.
    pub fn most(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].max(other.0[i])))
    }

    /// How far this is above `idle`, by `data` bytes.
    pub fn above(self, idle: Self, data: u64) -> [f64; 3] {
        std::array::from_fn(|i| (self.0[i] as f64 - idle.0[i] as f64) / data as f64)
    }
}

fn pss(rollup: &str) -> u64 {
    kib(rollup, "Pss_Anon:") + kib(rollup, "Pss_Shmem:")
}

/// The bytes of a line such as `Shmem:  5 kB`.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let number = line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// The pages of all protocols, each of which has a line that ends with `mem` or has it before others.
fn sockets(sockstat: &str) -> u64 {
    let words = sockstat.split_whitespace();
    let pairs = words.clone().zip(words.skip(1));
    pairs
        .filter(|(name, _)| *name == "mem")
        .filter_map(|(_, pages)| pages.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::shared;

    #[test]
    fn reads_what_the_kernel_writes() {
        let rollup = "Pss:  9 kB\nPss_Anon:  2 kB\nPss_File:  4 kB\nPss_Shmem:  3 kB\n";
        assert_eq!(pss(rollup), 5 << 10);
        assert_eq!(sockets("sockets: used 1\nTCP: inuse 1 mem 20\nUDP: inuse 0 mem 3\n"), 23);
        let (idle, most) = (Held([10, 20, 30]), Held([30, 10, 30]));
        assert_eq!(most.above(idle, 10), [2.0, -1.0, 0.0]);
        assert_eq!(most.most(idle), Held([30, 20, 30]));
        assert_eq!(idle.with(Held([1, 2, 3])), Held([11, 2, 3]));
    }

    #[test]
    fn memory_that_nobody_has_mapped_is_the_host_s() {
        const LEN: usize = 64 << 20;
        // Other programs of the machine may give back some of theirs meanwhile.
        const MOST: u64 = LEN as u64 / 2;
        let look = || Held::look(&[std::process::id()]).expect("a kernel that says");
        let before = look();
        let private = std::hint::black_box(vec![1_u8; LEN]);
        assert!(look().0[0] >= before.0[0] + MOST, "private memory");
        drop(private);
        let file = shared::create(LEN).expect("memfd");
        let chunk = vec![1; 1 << 20];
        for at in (0..LEN as u64).step_by(chunk.len()) {
            rustix::io::pwrite(&file, &chunk, at).expect("room");
        }
        let after = look();
        assert!(after.0[1] >= before.0[1] + MOST, "shared memory: {before:?} {after:?}");
    }
}
