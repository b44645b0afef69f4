//! A calling thread's own context of each domain that it calls.
//!
//! The first call to each domain binds a context of it to the thread, for as long as both live: the
//! gate then finds it without asking anybody. When all contexts have owners, those of threads that have
//! ended without disarming are taken back first.

use std::sync::atomic::Ordering;

use crate::callers;
use crate::links;
use crate::sys::{self, Errno};
use crate::table::{Caller, Context, FREE, TABLES};

/// Gets the calling thread a context of a link's callee; 0, or minus an error number.
pub(crate) extern "C" fn bind(at: u64, link: u64) -> i64 {
    sys::encode(callers::own(at).ok_or(Errno(libc::EINVAL)).and_then(|entry| try_bind(entry, link)))
}

fn try_bind(entry: &Caller, id: u64) -> Result<u64, Errno> {
    let link = links::place(id);
    let callee = link.callee.load(Ordering::Acquire) as usize; // SYNC(link.word)
    let contexts = TABLES.contexts.get(callee).ok_or(Errno(libc::EINVAL))?;
    if entry.entering.load(Ordering::Relaxed) != 0 {
        return Err(Errno(libc::EBUSY));
    }
    entry.entering.store(callee as u32 + 1, Ordering::SeqCst); // SYNC(gate.enter)
    let owner = std::ptr::from_ref(entry) as u64;
    // Its number before the context: whoever gives back what a dead thread had looks at that.
    let mine = |(number, context): (usize, &Context)| {
        let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(context.bind)
        // SYNC(context.park)
        if context.state.load(Ordering::Acquire) != FREE {
            return None;
        }
        entry.bound[callee].store(number as u8, Ordering::Relaxed);
        // A handler that has interrupted this may have taken it for the same thread.
        // SYNC(context.bind)
        let taken = context.owner.compare_exchange(0, owner, Ordering::SeqCst, order.1);
        if taken.is_err() && taken != Err(owner) {
            return None;
        }
        // Its thread may have been taken out of it meanwhile.
        let parked = context.state.load(Ordering::SeqCst) == FREE; // SYNC(context.bind)
        if !parked {
            let _nobodys = context.owner.compare_exchange(owner, 0, order.0, order.1);
        }
        parked.then_some(())
    };
    // SYNC(gate.enter)
    let open = links::is_open(link, id) && TABLES.domains[callee].open.load(Ordering::SeqCst) == 1;
    let any = || contexts.iter().enumerate().find_map(mine);
    let bound = match open.then(|| any().or_else(|| take_back(contexts).then(any).flatten())) {
        None => Err(Errno(libc::ENOTCONN)),
        Some(None) => Err(Errno(libc::EAGAIN)),
        Some(Some(())) => Ok(0),
    };
    entry.entering.store(0, Ordering::Release); // SYNC(gate.enter)
    bound
}

/// Gives back the contexts whose owners have ended without disarming, as threads of C programs do; whether
/// there were any.
fn take_back(contexts: &[Context]) -> bool {
    let mut any = false;
    for context in contexts {
        let owner = TABLES.caller_at(context.owner.load(Ordering::Acquire)); // SYNC(context.bind)
        let Some(owner) = owner.filter(|owner| callers::is_dead(owner)) else { continue };
        any |= callers::forget_dead(owner);
    }
    any
}
