#![allow(unsafe_code, reason = "maps memory at addresses of its own choice")]
//! Where arguments and replies of calls over one link lie: memory that just its two ends share.
//!
//! ```text
//! | request: HALF bytes, written by the caller | reply: HALF bytes, written by the callee |
//! ```
//!
//! An arena is at a place of its own for each place in the table of links, beyond all slots. With
//! protection keys it has its own, and is closed to everybody but the thread that calls: to the caller
//! while that has opened it, to the callee while it is being called. It is made by the caller, and
//! goes when the caller gives up the link or is gone itself: until then a caller can read a reply,
//! whatever has become of the callee.

use std::sync::atomic::Ordering;

use crate::keys;
use crate::sys::{self, Errno};
use crate::table::{LINKS_MOST, Link, SLOT, SLOTS, TABLES};

use partywall_abi::domain::HALF;

/// Bytes of an arena.
const ARENA: u64 = 2 * HALF;
/// Of each half, this much is backed by small pages, the rest by huge ones where the machine has them.
const SMALL: u64 = 2 << 20;

/// Where the arena of a place lies.
fn address(link: &Link) -> u64 {
    let place = (std::ptr::from_ref(link) as u64 - TABLES.links.0.as_ptr() as u64)
        / size_of::<Link>() as u64;
    TABLES.base.load(Ordering::Relaxed) + (SLOTS as u64 + 1) * SLOT + place * ARENA
}

const _: () = assert!(LINKS_MOST as u64 * ARENA <= 16 * SLOT);

/// Makes the arena of a link, whose keys are `owner`'s; its address. `ENOSPC` when no protection key is
/// left, `ENOMEM` where addresses count as memory (vm.overcommit_memory=2).
pub(crate) fn make(link: &Link, owner: u64) -> Result<u64, Errno> {
    let known = link.arena.load(Ordering::Acquire); // SYNC(link.arena)
    if known != 0 {
        return Ok(known);
    }
    let at = address(link);
    let key = keys::take(owner)?;
    if let Err(why) = map(at, key) {
        // Another thread makes it at this moment: what is mapped is not this one's.
        if why != Errno(libc::EEXIST) {
            unmap(at);
        }
        keys::give_back(key, owner);
        return Err(why);
    }
    if key != 0 {
        TABLES.arenas.fetch_or(keys::denied(key), Ordering::AcqRel); // SYNC(link.arena)
        link.rights.fetch_and(!keys::denied(key), Ordering::AcqRel); // SYNC(link.arena)
    }
    link.key.store(key, Ordering::Relaxed);
    link.arena.store(at, Ordering::Release); // SYNC(link.arena)
    Ok(at)
}

fn map(at: u64, key: u32) -> Result<(), Errno> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags =
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE)
            as u64;
    // SAFETY: nothing is replaced.
    unsafe { sys::call(libc::SYS_mmap, [at, ARENA, rights, flags, u64::MAX, 0])? };
    for half in [at, at + HALF] {
        let huge = [half + SMALL, HALF - SMALL, libc::MADV_HUGEPAGE as u64, 0, 0, 0];
        // SAFETY: advice for the mapping that was just made; without it pages are small.
        let _advised = unsafe { sys::call(libc::SYS_madvise, huge) };
    }
    keys::tag(at, ARENA, rights, key)
}

fn unmap(at: u64) {
    // SAFETY: an arena that nobody uses any more, or that was not made.
    let _freed = unsafe { sys::call(libc::SYS_munmap, [at, ARENA, 0, 0, 0, 0]) };
}

/// Frees the arena of a link that its caller has given up, as far as it was made, or the freeing
/// begun by a caller that has died.
pub(crate) fn free(link: &Link, owner: u64) {
    unmap(address(link));
    for key in keys::of(owner) {
        TABLES.arenas.fetch_and(!keys::denied(key), Ordering::AcqRel); // SYNC(link.arena)
        keys::give_back(key, owner);
    }
    link.key.store(0, Ordering::Relaxed);
    link.arena.store(0, Ordering::Release); // SYNC(link.arena)
}

/// Opens a link's arena to the calling thread, or closes it again.
pub(crate) fn open(link: &Link, open: bool) {
    match link.key.load(Ordering::Relaxed) {
        0 => {}
        // Others may be open as well.
        key if open => keys::set(keys::rights() & !keys::denied(key)),
        key => keys::set(keys::rights() | keys::denied(key)),
    }
}
