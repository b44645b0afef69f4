//! A process that ends when it asks for the time of day.
//!
//! Most processes read clocks without a system call, by functions that the kernel maps into them (vdso(7)).
//! This process writes system calls in their place, by /proc/self/mem, and has a filter end it by SIGSYS
//! for each system call that reads, or waits by, a clock that can be set: CLOCK_REALTIME, its coarse form,
//! CLOCK_TAI and the alarm clocks. So whatever it does afterwards, it does without such a clock.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use object::{Object, ObjectSymbol};
use rustix::time::ClockId;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

type Fault = Box<dyn std::error::Error>;

/// Functions of the vDSO, and the system calls that do the same (asm/unistd_64.h).
const FUNCTIONS: [(&str, u32); 3] =
    [("__vdso_clock_gettime", 228), ("__vdso_gettimeofday", 96), ("__vdso_time", 201)];

/// System calls whose first argument is a clock: clock_gettime(2), clock_nanosleep(2), timer_create(2) and
/// timerfd_create(2).
const BY_CLOCK: [i64; 4] = [228, 230, 222, 283];

/// CLOCK_REALTIME, its coarse form, CLOCK_REALTIME_ALARM and CLOCK_TAI (clock_gettime(2)).
const SETTABLE: [u64; 4] = [0, 5, 8, 11];

/// futex(2), and the bit of its operation that means CLOCK_REALTIME.
const FUTEX: i64 = 202;
const FUTEX_CLOCK_REALTIME: u64 = 256;

/// From here on this process, all its threads, ends when it asks.
///
/// # Errors
/// When the kernel does not let it.
///
/// # Panics
/// When a clock that cannot be set is no longer read right.
pub fn forbid() -> Result<(), Fault> {
    call_the_kernel()?;
    let equal = |argument, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    };
    let mut rules = std::collections::BTreeMap::new();
    for number in BY_CLOCK {
        let clocks: Result<Vec<_>, _> =
            SETTABLE.iter().map(|clock| SeccompRule::new(vec![equal(0, *clock)?])).collect();
        rules.insert(number, clocks?);
    }
    for number in [96, 201] {
        rules.insert(number, Vec::new());
    }
    let bit = SeccompCmpOp::MaskedEq(FUTEX_CLOCK_REALTIME);
    let bit = SeccompCondition::new(1, SeccompCmpArgLen::Dword, bit, FUTEX_CLOCK_REALTIME)?;
    rules.insert(FUTEX, vec![SeccompRule::new(vec![bit])?]);
    let arch = std::env::consts::ARCH.try_into()?;
    let (others, these) = (SeccompAction::Allow, SeccompAction::KillProcess);
    let filter: BpfProgram = SeccompFilter::new(rules, others, these, arch)?.try_into()?;
    seccompiler::apply_filter_all_threads(&filter)?;
    let before = rustix::time::clock_gettime(ClockId::Monotonic);
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert!(rustix::time::clock_gettime(ClockId::Monotonic) > before, "time stands still");
    Ok(())
}

/// Writes `mov eax, NUMBER; syscall; ret` over each function.
fn call_the_kernel() -> Result<(), Fault> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).ok_or("there is no vDSO")?;
    let (from, rest) = line.split_once('-').ok_or("a range")?;
    let to = rest.split(' ').next().ok_or("its end")?;
    let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16));
    let (from, to) = (from?, to?);
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let mut image = vec![0; (to - from) as usize];
    memory.read_exact_at(&mut image, from)?;
    let file = object::File::parse(&image[..])?;
    for (name, number) in FUNCTIONS {
        let found = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name));
        let at = from + found.ok_or("a function of the vDSO is missing")?.address();
        let mut code = [0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3];
        code[1..5].copy_from_slice(&number.to_le_bytes());
        memory.write_all_at(&code, at)?;
    }
    Ok(())
}
