//! Waking who sleeps by a word that both sides map: the protocol is in `partywall_abi::function`.

use partywall_abi::function::Word;
use partywall_abi::sync::{Ordering, fence};
use rustix::thread::futex;

/// Wakes who sleeps by this word, after something was written for it.
pub(crate) fn wake(word: &Word) {
    fence(Ordering::SeqCst);
    if word.0.load(Ordering::Relaxed) == 1 && word.0.swap(0, Ordering::Relaxed) == 1 {
        // Nobody may be there any more.
        let _nobody = futex::wake(&word.0, futex::Flags::empty(), 1);
    }
}
