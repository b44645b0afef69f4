//! Who may call whom through the gate: a table of links, which the callee opens.
//!
//! ```text
//!        offer (callee)          take (caller)        release, death (callee)
//!  FREE ---------------> OFFERED -------------> OPEN -------------------------> ENDED
//!                           |                    |                                |
//!                           `--------------------+-----> FREE <-------------------'
//!                         release, death           release, death (caller)
//! ```
//!
//! A link that its callee has left keeps its place until the caller gives it up as well, because the
//! caller may be reading in its arena.
//!
//! An offer names the process that may take it, by a number that both know from the coordinator. The
//! gate lets the calling domain, and no other, call over an open link.
//!
//! A link's word holds its state, its place in the table, and how often the place has been used:
//!
//! ```text
//! bits  0-2   state
//! bits  3-14  place
//! bits 15-31  uses
//! ```
//!
//! Its *id* is the word it has while it is open. Whoever changes a link exchanges the word as a whole,
//! and the gate reads it after all else, so what it has read is that of the link it was asked for.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::arenas;
use crate::space::SLOTS;
use crate::sys::{self, Errno};
use crate::table::{DomainEntry, LINKS_MOST, Link, TABLES};

/// Nobody's.
const FREE: u32 = 0;
/// May be called over.
pub(crate) const OPEN: u32 = 1;
/// Waits for the caller to take it.
const OFFERED: u32 = 2;
/// Is being filled in by the callee.
const TAKEN: u32 = 3;
/// The callee has left.
const ENDED: u32 = 4;
/// The caller has left and frees the arena.
const LEAVING: u32 = 5;

/// How far the place is from the state in a word, and the uses from that.
pub(crate) const PLACE_SHIFT: u32 = 3;
const USES_SHIFT: u32 = PLACE_SHIFT + LINKS_MOST.ilog2();

fn state(word: u32) -> u32 {
    word % (1 << PLACE_SHIFT)
}

fn with(word: u32, state: u32) -> u32 {
    word >> PLACE_SHIFT << PLACE_SHIFT | state
}

/// Whether the word was `from` and is `to` now.
fn exchange(word: &AtomicU32, from: u32, to: u32) -> bool {
    word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The domain of the calling code.
fn own_domain() -> u32 {
    TABLES.slot_of(sys::fs()) as u32
}

/// The domain whose task has this process number; the launcher counts.
fn domain_of(pid: i32) -> Option<u32> {
    let own = |d: &DomainEntry| pid > 0 && d.pid.load(Ordering::Acquire) == pid;
    Some(TABLES.domains.iter().position(own)? as u32)
}

/// The place of the link with this id.
pub(crate) fn place(id: u64) -> &'static Link {
    &TABLES.links.0[id as usize >> PLACE_SHIFT & (LINKS_MOST - 1)]
}

/// Whether it is this link that has the place, and open.
pub(crate) fn is_open(link: &Link, id: u64) -> bool {
    let word = link.word.load(Ordering::SeqCst);
    state(word) == OPEN && u64::from(word) == id
}

/// The link with this id, if the calling domain is its caller; the callee may have left.
pub(crate) fn own_as_caller(id: u64) -> Option<&'static Link> {
    let link = place(id);
    let word = link.word.load(Ordering::Acquire);
    let same = u64::from(with(word, OPEN)) == id && matches!(state(word), OPEN | ENDED);
    (same && link.caller.load(Ordering::Relaxed) == own_domain()).then_some(link)
}

/// Lets the process `pid` call the calling domain; the link's id, or minus an error number.
pub(crate) extern "C" fn offer(pid: u64, number: u64, cookie: u64) -> i64 {
    sys::encode(try_offer(pid as i32, number, cookie))
}

fn try_offer(pid: i32, number: u64, cookie: u64) -> Result<u64, Errno> {
    let callee = own_domain();
    if callee as usize >= SLOTS {
        return Err(Errno(libc::EINVAL));
    }
    if TABLES.domains[callee as usize].poisoned.load(Ordering::Acquire) != 0 {
        return Err(Errno(libc::ENOTRECOVERABLE));
    }
    let caller = domain_of(pid).ok_or(Errno(libc::ESRCH))?;
    let claimed = TABLES.links.0.iter().enumerate().find_map(|(place, link)| {
        let free = link.word.load(Ordering::Relaxed);
        let uses = (free >> USES_SHIFT).wrapping_add(1);
        let mine = uses << USES_SHIFT | (place as u32) << PLACE_SHIFT | TAKEN;
        (state(free) == FREE && exchange(&link.word, free, mine)).then_some((link, mine))
    });
    let (link, word) = claimed.ok_or(Errno(libc::ENOSPC))?;
    link.caller.store(caller, Ordering::Relaxed);
    link.callee.store(callee, Ordering::Relaxed);
    link.rights
        .store(TABLES.domains[callee as usize].rights.load(Ordering::Relaxed), Ordering::Relaxed);
    link.number.store(number, Ordering::Relaxed);
    link.cookie.store(cookie, Ordering::Relaxed);
    // One of its ends may have died meanwhile.
    let offered = exchange(&link.word, word, with(word, OFFERED));
    offered.then_some(u64::from(with(word, OPEN))).ok_or(Errno(libc::ESRCH))
}

/// Takes up the offer `number`; the link's id, or minus an error number.
pub(crate) extern "C" fn take(number: u64) -> i64 {
    let own = own_domain();
    let id = TABLES.links.0.iter().find_map(|link| {
        let word = link.word.load(Ordering::Acquire);
        let mine = state(word) == OFFERED
            && link.caller.load(Ordering::Relaxed) == own
            && link.number.load(Ordering::Relaxed) == number;
        let open = with(word, OPEN);
        (mine && exchange(&link.word, word, open)).then_some(u64::from(open))
    });
    sys::encode(id.ok_or(Errno(libc::ENOENT)))
}

/// Ends a link of the calling domain.
pub(crate) extern "C" fn release(id: u64) {
    let (link, own) = (place(id), own_domain());
    let word = link.word.load(Ordering::Acquire);
    if u64::from(with(word, OPEN)) == id {
        leave(link, word, own);
    }
}

/// Takes a domain's end off a link; whether it had one.
fn leave(link: &Link, word: u32, domain: u32) -> bool {
    let calls = link.caller.load(Ordering::Relaxed) == domain;
    let called = link.callee.load(Ordering::Relaxed) == domain;
    match state(word) {
        OPEN | ENDED | LEAVING if calls => {
            let leaving = with(word, LEAVING);
            if word != leaving && !exchange(&link.word, word, leaving) {
                return false;
            }
            arenas::free(link);
            exchange(&link.word, leaving, with(word, FREE))
        }
        OPEN if called => exchange(&link.word, word, with(word, ENDED)),
        OFFERED if calls || called => exchange(&link.word, word, with(word, FREE)),
        _ => false,
    }
}

/// Nobody calls over the links of a domain any more.
pub(crate) fn close_all(domain: usize) {
    for link in &TABLES.links.0 {
        let ends = [&link.caller, &link.callee];
        if ends.iter().any(|end| end.load(Ordering::Relaxed) as usize == domain) {
            let word = link.word.load(Ordering::Acquire);
            // One that was being offered when its domain died, too.
            let to = if state(word) == OPEN { ENDED } else { FREE };
            let _closed = matches!(state(word), OPEN | OFFERED | TAKEN)
                && exchange(&link.word, word, with(word, to));
        }
    }
}

/// Ends all links of a domain that is gone, and whose calls have ended.
pub(crate) fn end_all(domain: usize) {
    for link in &TABLES.links.0 {
        let _left = leave(link, link.word.load(Ordering::Acquire), domain as u32);
    }
}
