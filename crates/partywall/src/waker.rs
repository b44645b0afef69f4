//! Who is woken.

use std::task::{Context, Waker};

/// Remembers a waker, without cloning one that is there already; the one whose place it takes.
pub(crate) fn register(slot: &mut Option<Waker>, cx: &Context<'_>) -> Option<Waker> {
    if slot.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
        return None;
    }
    slot.replace(cx.waker().clone())
}
