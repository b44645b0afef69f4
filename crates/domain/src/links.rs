//! Who may call whom through the gate: a table of links, which the callee opens.
//!
//! ```text
//!        offer (callee)          take (caller)        release, death (callee)
//!  FREE ---------------> OFFERED -------------> OPEN -------------------------> ENDED
//!                           |                    |                                |
//!                           `------------------> LEAVING <------------------------'
//!                         release, death           |       release, death (caller)
//!                                                  v
//!                                                FREE
//! ```
//!
//! A link that its callee has left keeps its place until the caller gives it up as well, because the
//! caller may be reading in its arena. One that the caller leaves is PARKED when a call of the callee
//! has been ended in the middle, because a system call of that may still write to its arena; the
//! callee's end frees it.
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
use crate::callers;
use crate::sys::{self, Errno};
use crate::table::{DomainEntry, LINKS_MOST, Link, SLOTS, TABLES};

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
/// It is being taken down.
const LEAVING: u32 = 5;
/// The caller has left; the callee's end takes it down.
const PARKED: u32 = 6;

/// No domain.
const NOBODY: u32 = u32::MAX;

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
    // SYNC(link.word)
    word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The domain whose task has this process number; the launcher counts.
fn domain_of(pid: i32) -> Option<u32> {
    let own = |d: &DomainEntry| pid > 0 && d.pid.load(Ordering::Acquire) == pid; // SYNC(domain.pid)
    Some(TABLES.domains.iter().position(own)? as u32)
}

/// The place of the link with this id.
pub(crate) fn place(id: u64) -> &'static Link {
    &TABLES.links.0[id as usize >> PLACE_SHIFT & (LINKS_MOST - 1)]
}

/// Whether it is this link that has the place, and open.
pub(crate) fn is_open(link: &Link, id: u64) -> bool {
    let word = link.word.load(Ordering::SeqCst); // SYNC(link.word), SYNC(gate.enter)
    state(word) == OPEN && u64::from(word) == id
}

/// The link with this id, if `domain` is its caller; the callee may have left.
fn as_caller(domain: usize, id: u64) -> Option<&'static Link> {
    let link = place(id);
    let word = link.word.load(Ordering::Acquire); // SYNC(link.word)
    let same = u64::from(with(word, OPEN)) == id && matches!(state(word), OPEN | ENDED);
    (same && link.caller.load(Ordering::Relaxed) == domain as u32).then_some(link)
}

/// Lets the process `pid` call the calling domain; the link's id, or minus an error number.
pub(crate) extern "C" fn offer(pid: u64, number: u64, cookie: u64) -> i64 {
    sys::encode(try_offer(pid as i32, number, cookie))
}

fn try_offer(pid: i32, number: u64, cookie: u64) -> Result<u64, Errno> {
    let callee = callers::own_domain()? as u32;
    if callee as usize >= SLOTS {
        return Err(Errno(libc::EINVAL));
    }
    // SYNC(domain.poisoned)
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
    let offered = with(word, OFFERED);
    // One of its ends may have died meanwhile, before it could be seen that it is one.
    if !exchange(&link.word, word, offered) || domain_of(pid) != Some(caller) {
        take_down(link, offered);
        return Err(Errno(libc::ESRCH));
    }
    Ok(u64::from(with(word, OPEN)))
}

/// Takes up the offer `number`; the link's id, or minus an error number.
pub(crate) extern "C" fn take(number: u64) -> i64 {
    sys::encode(callers::own_domain().and_then(|own| try_take(own as u32, number)))
}

fn try_take(own: u32, number: u64) -> Result<u64, Errno> {
    let id = TABLES.links.0.iter().find_map(|link| {
        let word = link.word.load(Ordering::Acquire); // SYNC(link.word)
        let mine = state(word) == OFFERED
            && link.caller.load(Ordering::Relaxed) == own
            && link.number.load(Ordering::Relaxed) == number;
        let open = with(word, OPEN);
        (mine && exchange(&link.word, word, open)).then_some(u64::from(open))
    });
    id.ok_or(Errno(libc::ENOENT))
}

/// Who owns the protection keys of a link.
fn owner(id: u64) -> u64 {
    1 << 32 | id
}

/// Makes the arena of a link of the calling domain; its address, or minus an error number: `ENOTCONN`
/// when the link is not open, `EINVAL` of one to oneself, and what [`arenas::make`] says.
pub(crate) extern "C" fn arena(id: u64) -> i64 {
    sys::encode(try_arena(id))
}

fn try_arena(id: u64) -> Result<u64, Errno> {
    let link = as_caller(callers::own_domain()?, id).ok_or(Errno(libc::ENOTCONN))?;
    // Both ends could give it up: the one would free what the other reads.
    if link.callee.load(Ordering::Relaxed) == link.caller.load(Ordering::Relaxed) {
        return Err(Errno(libc::EINVAL));
    }
    arenas::make(link, owner(id))
}

/// Opens a link's arena to the calling thread, which is at home in the caller's domain, or closes it
/// again; 0, or minus an error number. Runs with the rights of the domain: it only reads the tables.
pub(crate) extern "C" fn open(id: u64, open: u64) -> i64 {
    let own = TABLES.slot_of(sys::fs());
    let Some(link) = as_caller(own, id) else { return -i64::from(libc::ENOTCONN) };
    arenas::open(link, open != 0);
    0
}

/// Ends a link of the calling domain.
pub(crate) extern "C" fn release(id: u64) {
    let Ok(own) = callers::own_domain() else { return };
    let (link, own) = (place(id), own as u32);
    loop {
        let word = link.word.load(Ordering::Acquire); // SYNC(link.word)
        if u64::from(with(word, OPEN)) != id || state(word) == LEAVING || leave(link, word, own) {
            return;
        }
    }
}

/// Takes a domain's end off a link; false when somebody else has changed it meanwhile.
fn leave(link: &Link, word: u32, domain: u32) -> bool {
    let calls = link.caller.load(Ordering::Relaxed) == domain;
    let called = link.callee.load(Ordering::Relaxed) == domain;
    match state(word) {
        OPEN | ENDED if calls => {
            let callee = TABLES.domains.get(link.callee.load(Ordering::Relaxed) as usize);
            // SYNC(domain.poisoned)
            match callee.is_some_and(|callee| callee.poisoned.load(Ordering::Acquire) != 0) {
                true => exchange(&link.word, word, with(word, PARKED)),
                false => take_down(link, word),
            }
        }
        OPEN if called => exchange(&link.word, word, with(word, ENDED)),
        OFFERED if calls || called => take_down(link, word),
        // One that was being offered when its domain died.
        TAKEN if called => take_down(link, word),
        _ => true,
    }
}

/// All links are nobody's.
pub(crate) fn prepare() {
    for link in &TABLES.links.0 {
        link.caller.store(NOBODY, Ordering::Relaxed);
        link.callee.store(NOBODY, Ordering::Relaxed);
    }
}

/// Frees a link and its arena, if its word is still this.
fn take_down(link: &Link, word: u32) -> bool {
    let leaving = with(word, LEAVING);
    if word != leaving && !exchange(&link.word, word, leaving) {
        return false;
    }
    arenas::free(link, owner(u64::from(with(word, OPEN))));
    link.caller.store(NOBODY, Ordering::Relaxed);
    link.callee.store(NOBODY, Ordering::Relaxed);
    exchange(&link.word, leaving, with(word, FREE))
}

/// Nobody calls over the links of a domain any more.
pub(crate) fn close_all(domain: usize) {
    for link in &TABLES.links.0 {
        let ends = [&link.caller, &link.callee];
        // SYNC(link.word)
        while ends.iter().any(|end| end.load(Ordering::Acquire) as usize == domain) {
            let word = link.word.load(Ordering::Acquire); // SYNC(link.word)
            if state(word) != OPEN || exchange(&link.word, word, with(word, ENDED)) {
                break;
            }
        }
    }
}

/// Ends all links of a domain that is gone, and whose calls have ended.
pub(crate) fn end_all(domain: usize) {
    // What is parked from here on goes with the next domain of the slot.
    TABLES.domains[domain].poisoned.store(0, Ordering::Release); // SYNC(domain.poisoned)
    for link in &TABLES.links.0 {
        // SYNC(link.word)
        let [caller, callee] =
            [&link.caller, &link.callee].map(|end| end.load(Ordering::Acquire) as usize == domain);
        loop {
            let word = link.word.load(Ordering::Acquire); // SYNC(link.word)
            let ended = match state(word) {
                PARKED if callee => take_down(link, word),
                // Its caller died while it took it down.
                LEAVING if caller => take_down(link, word),
                _ if caller || callee => leave(link, word, domain as u32),
                _ => true,
            };
            if ended {
                break;
            }
        }
    }
}
