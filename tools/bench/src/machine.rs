//! What a run ran on.

use std::time::{Duration, SystemTime};

use httpdate::fmt_http_date;
use partywall_domain::machine::Feature;
use serde::Serialize;

use crate::sys::clock::Ticker;
use crate::sys::cpu::{self, Cpus};

/// Facts about the machine and the build; empty where the system does not tell.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// CPUs this process may use.
    pub cores: usize,
    /// The CPUs the two sides are bound to.
    pub pinned: (usize, Option<usize>),
    /// Whether a hypervisor is below.
    pub virtual_machine: bool,
    /// Kernel release.
    pub kernel: String,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Transparent huge pages for private memory.
    pub thp: String,
    /// The same for shared memory.
    pub thp_shared: String,
    /// The kernel's clock source.
    pub clocksource: String,
    /// The clock of this run.
    pub clock: String,
    /// Speculation mitigations in force.
    pub mitigations: Vec<String>,
    /// Whether there are protection keys.
    pub protection_keys: bool,
    /// Load average over a minute when the run began.
    pub load: f64,
    /// Compiler.
    pub rustc: &'static str,
    /// Whether this is an optimised build.
    pub release: bool,
    /// When the run began, in UTC.
    pub date: String,
}

impl Machine {
    /// Looks at this machine.
    pub fn look(ticker: Ticker, cpus: Cpus) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        Self {
            cpu: field("model name").unwrap_or_default(),
            cores: cpu::allowed().map_or(0, |cpus| cpus.len()),
            pinned: (cpus.first, cpus.second),
            virtual_machine: cpuinfo.contains(" hypervisor"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_mib: memory_kib(&read("/proc/meminfo")) / 1024,
            thp: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            thp_shared: chosen(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
            clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .trim()
                .to_owned(),
            clock: ticker.describe(),
            mitigations: mitigations(),
            protection_keys: Feature::ProtectionKeys.look().there,
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|x| x.parse().ok())
                .unwrap_or(0.0),
            rustc: env!("BENCH_RUSTC"),
            release: !cfg!(debug_assertions),
            date: fmt_http_date(SystemTime::now()),
        }
    }

    /// What makes figures of this machine mean less than they seem to; a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.release {
            found.push("This is not a release build: its figures mean nothing.".to_owned());
        }
        if self.load > BUSY * self.cores as f64 {
            found.push(format!(
                "This machine was busy when the run began: load {:.1} on {} CPUs. End what else runs \
                 there, and measure again.",
                self.load, self.cores
            ));
        }
        found
    }

    /// One line for the terminal.
    pub fn line(&self) -> String {
        format!(
            "{}, {} CPUs{}, {}, Linux {}, {} MiB, {}, {}",
            self.cpu,
            self.cores,
            if self.virtual_machine { " (virtual)" } else { "" },
            self.clock,
            self.kernel,
            self.memory_mib,
            self.rustc,
            self.date
        )
    }
}

/// From this load per CPU on a machine counts as busy.
pub const BUSY: f64 = 0.5;

/// CPU time that programs outside of this run have used so far, over all CPUs: what the kernel has
/// counted for all programs, less that of this one and of the children it has waited for.
pub fn others_cpu() -> Duration {
    let stat = read("/proc/stat");
    let ticks = |field: &str| field.parse::<u64>().unwrap_or(0);
    let fields = stat.lines().next().unwrap_or_default().split_whitespace();
    // User, nice and system; then idle, waiting, interrupts.
    let all: u64 = fields.skip(1).take(3).map(ticks).sum();
    let own: Vec<String> = read("/proc/self/stat").split_whitespace().map(str::to_owned).collect();
    let own: u64 = own.get(13..17).map_or(0, |fields| fields.iter().map(|f| ticks(f)).sum());
    let rate = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(all.saturating_sub(own) as f64 / rate as f64)
}

/// Time that other machines took from this one's CPUs, in hundredths of a second since boot.
pub fn steal() -> u64 {
    let stat = read("/proc/stat");
    let total = stat.lines().next().unwrap_or_default();
    total.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn memory_kib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(text: &str) -> String {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map(|(word, _)| word.to_owned()).unwrap_or_default()
}

fn mitigations() -> Vec<String> {
    let Ok(files) = std::fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return Vec::new();
    };
    let mut found: Vec<String> = files
        .flatten()
        .filter_map(|file| {
            let state = std::fs::read_to_string(file.path()).ok()?;
            let state = state.trim();
            let name = file.file_name().to_string_lossy().into_owned();
            (state != "Not affected").then(|| format!("{name}: {state}"))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(load: f64) -> Machine {
        let cpus = Cpus { first: 0, second: None };
        Machine { load, cores: 2, release: true, ..Machine::look(Ticker::calibrate(), cpus) }
    }

    #[test]
    fn a_busy_machine_is_said_to_be_busy() {
        assert_eq!(machine(1.0).warnings(), [""; 0]);
        let warnings = machine(1.1).warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("load 1.1 on 2 CPUs"), "{warnings:?}");
        assert!(Machine { release: false, ..machine(0.0) }.warnings()[0].contains("release"));
    }

    #[test]
    fn load_excludes_this_program() {
        let (begun, before) = (std::time::Instant::now(), others_cpu());
        let own = || cpu::process_cpu_ns(std::process::id()).expect("own clock");
        let (start, mut sum) = (own(), 0_u64);
        while own() - start < 300_000_000 {
            (0..100_000_u64).for_each(|i| sum = std::hint::black_box(sum.wrapping_add(i)));
        }
        let (others, took) = (others_cpu().saturating_sub(before), begun.elapsed());
        let cpus = cpu::allowed().expect("CPUs").len() as u32;
        let rest = (took * cpus).saturating_sub(Duration::from_millis(300));
        // Counted in ticks of a hundredth of a second, on each CPU.
        assert!(others <= rest + Duration::from_millis(60), "{others:?} in {took:?}");
    }

    #[test]
    fn reads_the_chosen_word_and_the_memory() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "");
        assert_eq!(memory_kib("MemTotal:       2048 kB\nMemFree: 1 kB\n"), 2048);
    }
}
