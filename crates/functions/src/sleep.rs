//! Sleeping by a word that two sides share: the protocol is in `partywall_abi::function`.

use std::time::Duration;

use partywall_abi::function::Word;
use partywall_abi::sync::{Ordering, fence};
use rustix::thread::futex::{self, Flags, Timespec};

/// Wakes who sleeps by this word, after something was written for it.
pub(crate) fn wake(word: &Word) {
    fence(Ordering::SeqCst);
    if word.0.load(Ordering::Relaxed) == 1 && word.0.swap(0, Ordering::Relaxed) == 1 {
        // Nobody may be there any more.
        let _nobody = futex::wake(&word.0, Flags::empty(), 1);
    }
}

/// Sleeps once, for so long at most, unless what it waits for is there once it has said that it sleeps.
pub(crate) fn sleep(word: &Word, most: Option<Duration>, is_there: impl FnOnce() -> bool) {
    word.0.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if !is_there() {
        let most = most.map(|most| Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        });
        // A wake that comes first has changed the word; a signal is one wake too many.
        let _woken = futex::wait(&word.0, Flags::empty(), 1, most.as_ref());
    }
    word.0.store(0, Ordering::Relaxed);
}
