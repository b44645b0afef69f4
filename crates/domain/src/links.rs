//! Who may call whom through the gate: a table of links, which the callee opens.
//!
//! ```text
//!            offer (callee)            take (caller)            release, death (either)
//!  FREE ---------------------> OFFERED ------------> OPEN --------------------------> FREE
//! ```
//!
//! An offer names the process that may take it, by a number that both know from the coordinator. The
//! gate lets the calling domain, and no other, call over an open link.

use std::sync::atomic::Ordering;

use crate::callers;
use crate::space::SLOTS;
use crate::sys;
use crate::table::{Link, TABLES};

/// Nobody's.
const FREE: u32 = 0;
/// May be called over.
pub(crate) const OPEN: u32 = 1;
/// Waits for the caller to take it.
const OFFERED: u32 = 2;
/// Is being filled in.
const TAKEN: u32 = 3;

/// The domain of the calling code.
fn own_domain() -> u32 {
    TABLES.slot_of(sys::fs()) as u32
}

/// The domain whose task has this process number; the launcher counts.
fn domain_of(pid: i32) -> Option<u32> {
    if pid == TABLES.launcher.load(Ordering::Relaxed) {
        return Some(SLOTS as u32);
    }
    let at = TABLES.domains.iter().position(|d| d.pid.load(Ordering::Acquire) == pid)?;
    Some(at as u32)
}

/// Lets the process `pid` call the calling domain; the link, or minus an error number.
pub(crate) extern "C" fn offer(pid: u64, number: u64, cookie: u64) -> i64 {
    let (callee, Some(caller)) = (own_domain(), domain_of(pid as i32)) else {
        return -i64::from(libc::ESRCH);
    };
    if callee as usize >= SLOTS {
        return -i64::from(libc::EINVAL);
    }
    let claim = |link: &&Link| {
        link.open.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let Some(link) = TABLES.links.iter().find(claim) else { return -i64::from(libc::ENOSPC) };
    link.caller.store(caller, Ordering::Relaxed);
    link.callee.store(callee, Ordering::Relaxed);
    link.number.store(number, Ordering::Relaxed);
    link.cookie.store(cookie, Ordering::Relaxed);
    link.open.store(OFFERED, Ordering::Release);
    index(link)
}

fn index(link: &Link) -> i64 {
    TABLES.links.iter().position(|l| std::ptr::eq(l, link)).map_or(-1, |at| at as i64)
}

/// Takes up the offer `number`; the link, or minus an error number.
pub(crate) extern "C" fn take(number: u64) -> i64 {
    let own = own_domain();
    let wanted = |link: &&Link| {
        link.open.load(Ordering::Acquire) == OFFERED
            && link.caller.load(Ordering::Relaxed) == own
            && link.number.load(Ordering::Relaxed) == number
    };
    let Some(link) = TABLES.links.iter().find(wanted) else { return -i64::from(libc::ENOENT) };
    match link.open.compare_exchange(OFFERED, OPEN, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => index(link),
        Err(_) => -i64::from(libc::ENOENT),
    }
}

/// Ends a link of the calling domain.
pub(crate) extern "C" fn release(link: u64) {
    let Some(link) = TABLES.links.get(link as usize) else { return };
    let own = own_domain();
    if [&link.caller, &link.callee].iter().any(|end| end.load(Ordering::Relaxed) == own) {
        link.open.store(FREE, Ordering::Release);
    }
}

/// Ends all links of a domain that is gone.
pub(crate) fn end_all(domain: usize) {
    for link in &TABLES.links {
        let ends = [&link.caller, &link.callee];
        if link.open.load(Ordering::Acquire) != FREE
            && ends.iter().any(|end| end.load(Ordering::Relaxed) as usize == domain)
        {
            link.open.store(FREE, Ordering::Release);
        }
    }
}

/// Callers look up the process of a domain.
pub(crate) fn this_is_the_launcher() {
    TABLES.launcher.store(callers::pid(), Ordering::Release);
}
