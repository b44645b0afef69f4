use std::sync::atomic::{AtomicU64, Ordering};

use partywall_abi::domain::{Entry, Outcome};

use super::*;

static BOUND: AtomicU64 = AtomicU64::new(0);
static PARKED: AtomicU64 = AtomicU64::new(0);

/// What a launcher would say: caller 5, link 7, which has to be bound; no other link.
static LAUNCHER: Info = Info {
    magic: MAGIC,
    version: VERSION,
    bytes: size_of::<Info>() as u32,
    base: 0,
    slot: 0,
    call,
    arm,
    disarm,
    park,
    offer,
    take,
    release,
    bind,
    declare,
    arena,
    open,
    keys: KEYS,
    forwards,
    accept,
};

const FAILS: i64 = -(libc::ENOENT as i64);

extern "C" fn call(caller: u64, link: u64, a: u64, b: u64, c: u64, limit: u64) -> Outcome {
    let status = match link {
        7 if BOUND.load(Ordering::Relaxed) == 0 => GateStatus::Unbound as u64,
        7 => GateStatus::Done as u64,
        8 => GateStatus::Busy as u64,
        _ => 1000,
    };
    let word = if status == 0 { caller * 10_000 + a * 1000 + b * 100 + c * 10 + limit } else { 0 };
    Outcome { status, word }
}
extern "C" fn arm() -> i64 {
    5
}
extern "C" fn disarm(_caller: u64) {}
/// A signal of the C library's comes first.
extern "C" fn park(entry: Option<Entry>) -> i64 {
    let interrupted = PARKED.fetch_add(1, Ordering::Relaxed) == 0;
    let why = if interrupted { libc::EINTR } else { libc::ENOSPC };
    -i64::from(if entry.is_some() { why } else { libc::EINVAL })
}
extern "C" fn offer(pid: u64, number: u64, cookie: u64) -> i64 {
    if (pid, number, cookie) == (1, 2, 3) { 7 } else { -i64::from(libc::ESRCH) }
}
extern "C" fn take(number: u64) -> i64 {
    if number == 2 { 7 } else { FAILS }
}
extern "C" fn release(_link: u64) {}
extern "C" fn bind(caller: u64, link: u64) -> i64 {
    BOUND.fetch_add(1, Ordering::Relaxed);
    if (caller, link) == (5, 7) { 0 } else { FAILS }
}
extern "C" fn declare(declarations: u64) -> i64 {
    if declarations == NO_SYSTEM_CALLS { 0 } else { FAILS }
}
extern "C" fn arena(link: u64) -> i64 {
    if link == 7 { 0x1000 } else { -i64::from(libc::ENOSPC) }
}
extern "C" fn open(link: u64, open: u64) -> i64 {
    if (link, open) == (7, 1) { 0 } else { FAILS }
}
extern "C" fn forwards(caller: u64) -> u64 {
    caller + 100
}
extern "C" fn accept(open: u64) -> i64 {
    if open == 1 { 0 } else { -i64::from(libc::ESRCH) }
}

const GUEST: Guest = Guest { info: &LAUNCHER };

fn number<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn a_program_that_no_launcher_has_started_is_no_domain() {
    assert!(Guest::here().unwrap().is_none());
}

#[test]
fn entry_points_get_what_they_are_to_have_and_errors_come_back() {
    assert_eq!(GUEST.isolation(), Isolation::ProtectionKeys);
    assert_eq!(GUEST.offer(1, 2, 3).unwrap(), Link(7));
    assert_eq!(number(GUEST.offer(1, 2, 4)), libc::ESRCH);
    assert_eq!(GUEST.take(2).unwrap(), Link(7));
    assert_eq!(number(GUEST.take(3)), libc::ENOENT);
    assert_eq!(GUEST.arena(Link(7)).unwrap().as_ptr() as usize, 0x1000);
    assert_eq!(number(GUEST.arena(Link(8))), libc::ENOSPC);
    GUEST.open(Link(7), true).unwrap();
    assert_eq!(number(GUEST.open(Link(7), false)), libc::ENOENT);
    GUEST.declare_no_system_calls().unwrap();
    GUEST.accept(true).unwrap();
    assert_eq!(number(GUEST.accept(false)), libc::ESRCH);
    assert_eq!(number(GUEST.lend()), libc::ENOSPC);
    assert_eq!(PARKED.load(Ordering::Relaxed), 2, "parked again after a signal");
}

#[test]
fn a_call_binds_its_thread_once_and_says_how_it_ended() {
    let limit = Duration::from_nanos(4);
    assert_eq!(GUEST.forwards(), 0, "outside of a call");
    for _ in 0..2 {
        assert_eq!(GUEST.call(Link(7), [1, 2, 3], limit), Ok(51234));
        assert_eq!(BOUND.load(Ordering::Relaxed), 1);
    }
    assert_eq!(GUEST.forwards(), 105);
    assert_eq!(GUEST.call(Link(8), [0; 3], limit), Err(GateStatus::Busy));
    let unknown = GUEST.call(Link(9), [0; 3], limit);
    assert_eq!(unknown, Err(GateStatus::Fault), "a status that there is none of");
}
