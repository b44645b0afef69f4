#![allow(unsafe_code, reason = "allocates protection keys and sets rights")]
//! Protection keys (pkeys(7)): who may read and write which pages, changed without a system call.
//!
//! | key | pages | the launcher's threads | a domain's code |
//! | --- | --- | --- | --- |
//! | 0 | the launcher's: the tables, its heap | read and write | read |
//! | a domain's | all that is mapped in its slot, its threads' signal stacks | none | read and write, if it is this domain |
//! | an arena's | arguments and replies of one link | none | while it is called, or has opened it |
//!
//! The rights of a thread are a register (PKRU, Intel SDM volume 3, 4.6.2): two bits a key, the lower
//! denies access, the upper writing. Only code of the gate's page writes it: open, all of it, while
//! the launcher's own code runs for a domain; else what the tables say.
//!
//! From Linux 6.12 on the kernel writes a signal's frame with all rights. Before, it has those of the code
//! that is interrupted, which may be a callee's: then signal stacks have a key of their own (*scratch*),
//! which all domains can read and write (`Isolation::SharedSignalStacks`).
//!
//! This contains mistakes, not malice: a domain's code can write the register by itself, or have the
//! kernel read and write for it.
//!
//! | label | what pairs | shown by |
//! | --- | --- | --- |
//! | SYNC(key.owner) | A key changes hands by one exchange of its owner: taken after it was free, given back after its pages are unmapped. | the exchange; `an_arena_goes_with_its_link` |

use std::sync::atomic::{AtomicU64, Ordering};

use partywall_keys::{CLOSED, KEYS};
pub(crate) use partywall_keys::{FIRST, denied, rights};

use crate::elf::PAGE;
use crate::page;
use crate::sys::{self, Errno};
use crate::table::TABLES;

/// Rights of a domain's code: its own key, and the scratch key where there is one, and key 0 to read.
pub(crate) fn domain_rights(key: u32, scratch: u32) -> u32 {
    CLOSED & !denied(0) & !denied(key) & !denied(scratch) | denied(0) << 1
}

/// Takes a key from the kernel, which nobody has yet, closed to this thread.
pub(crate) fn allocate() -> Result<u32, Errno> {
    // SAFETY: closes the new key to this thread, which has nothing there.
    let call = |number, arguments| unsafe { sys::call(number, arguments) };
    partywall_keys::allocate(call, false)?.ok_or(Errno(libc::EINVAL))
}

/// Who has each key that was taken from the kernel: 0 nobody, [`NOT_OURS`] what was not taken. Owners
/// are written down, so that what a domain had when it was killed is found.
static OWNERS: [AtomicU64; KEYS as usize] = [const { AtomicU64::new(NOT_OURS) }; KEYS as usize];
const NOT_OURS: u64 = u64::MAX;

/// Takes all keys that the kernel still gives; why it gives no more.
pub(crate) fn allocate_all() -> (Vec<u32>, Errno) {
    let mut keys = Vec::new();
    loop {
        match allocate() {
            Ok(key) if !keys.contains(&key) => keys.push(key),
            // Somebody answers for the kernel.
            Ok(_) => return (keys, Errno(libc::EINVAL)),
            Err(why) => return (keys, why),
        }
    }
}

/// Takes all keys from the kernel, for domains to come.
pub(crate) fn take_all() {
    for key in allocate_all().0 {
        OWNERS[key as usize].store(0, Ordering::Release); // SYNC(key.owner)
    }
}

/// Takes a key for `owner`; 0 without keys.
pub(crate) fn take(owner: u64) -> Result<u32, Errno> {
    if TABLES.keys.load(Ordering::Relaxed) == 0 {
        return Ok(0);
    }
    let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(key.owner)
    let free = |key: &AtomicU64| key.compare_exchange(0, owner, order.0, order.1).is_ok();
    let key = OWNERS.iter().position(free).ok_or(Errno(libc::ENOSPC))?;
    Ok(key as u32)
}

/// The keys of `owner`.
pub(crate) fn of(owner: u64) -> impl Iterator<Item = u32> {
    // SYNC(key.owner)
    let mine = move |key: &u32| OWNERS[*key as usize].load(Ordering::Acquire) == owner;
    (1..KEYS).filter(mine)
}

/// Gives a key back whose pages are gone, if it is still its owner's.
pub(crate) fn give_back(key: u32, owner: u64) {
    let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(key.owner)
    let _was = OWNERS[key as usize].compare_exchange(owner, 0, order.0, order.1);
}

/// Gives pages a key; with key 0 that there are none, nothing.
pub(crate) fn tag(start: u64, bytes: u64, protection: u64, key: u32) -> Result<(), Errno> {
    if key == 0 {
        return Ok(());
    }
    // SAFETY: the caller's own mapping, with the protection that it has.
    let call = |number, arguments| unsafe { sys::call(number, arguments) };
    partywall_keys::tag(call, (start, bytes.next_multiple_of(PAGE)), protection, key)
}

/// Gives a key back to the kernel that [`allocate`] has given, and that no page has.
pub(crate) fn free(key: u32) {
    // SAFETY: changes no mapping. That no page has the key is its callers' affair:
    // `machine::free_keys` tags none,
    // `machine::read_closed` has unmapped the one that it has tagged.
    let call = |number, arguments| unsafe { sys::call(number, arguments) };
    let _freed = partywall_keys::free(call, key);
}

/// Gives the calling thread rights of the domain whose thread-local storage it has: those of its code,
/// or those and some arenas'.
pub(crate) fn set(rights: u32) {
    if TABLES.keys.load(Ordering::Relaxed) != 0 {
        // SAFETY: ends the thread for rights that are not the domain's; its code needs no others.
        unsafe { page::partywall_set_rights(rights) };
    }
}
