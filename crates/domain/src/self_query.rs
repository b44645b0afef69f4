//! What a domain says of itself, and asks, while it runs: whether it takes calls, and how many
//! system calls a call has cost so far. Neither makes a system call, so both can be had in the
//! middle of a call.

use std::sync::atomic::Ordering;

use crate::callers;
use crate::keys;
use crate::page;
use crate::sys::{self, Errno};
use crate::table::{SLOTS, TABLES};

/// System calls that the context which the caller is inside of has forwarded so far; 0 for whoever
/// is not the code that runs in it.
pub(crate) extern "C" fn forwards(caller: u64) -> u64 {
    let entry = usize::try_from(caller).ok().and_then(|at| TABLES.callers.get(at));
    let own = entry.filter(|entry| entry.fs.load(Ordering::Relaxed) == sys::fs());
    let context = own.and_then(|entry| TABLES.context_at(entry.inside.load(Ordering::Relaxed)));
    context.map_or(0, |context| context.forwards.load(Ordering::Relaxed))
}

/// Says whether the calling domain takes calls from now on; those under way are not touched. 0, or
/// minus an error number.
pub(crate) extern "C" fn accept(open: u64) -> i64 {
    sys::encode(try_accept(open))
}

fn try_accept(open: u64) -> Result<u64, Errno> {
    let slot = callers::own_domain()?;
    if slot >= SLOTS || open > 1 {
        return Err(Errno(libc::EINVAL));
    }
    let domain = &TABLES.domains[slot];
    domain.open.store(open as u8, Ordering::SeqCst); // SYNC(domain.accept), SYNC(gate.enter)
    // The launcher says first that it is dead, or closes it after this.
    // SYNC(domain.accept)
    if domain.dead.load(Ordering::SeqCst) != 0 {
        domain.open.store(0, Ordering::SeqCst); // SYNC(domain.accept), SYNC(gate.enter)
        return Err(Errno(libc::ESRCH));
    }
    Ok(0)
}

/// Whether the calling domain takes calls from now on; for code of ours that has its rights, or all.
pub(crate) fn accept_from_within(open: bool) {
    let keys = TABLES.keys.load(Ordering::Relaxed) != 0;
    if keys && keys::rights() != 0 {
        let _accepted = page::partywall_enter_accept(open.into());
    } else {
        let _accepted = accept(open.into());
    }
}
