//! Sleeping by a word that two sides share: the protocol is in `partywall_abi::function`.

use std::time::Duration;

use partywall_abi::function::{CLOSED, WOKEN, Word};
use partywall_abi::sync::{Ordering, fence};
use rustix::thread::futex::{self, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, clock_gettime};

/// Wakes who sleeps by this word, after something was written for it.
pub(crate) fn wake(word: &Word) {
    fence(Ordering::SeqCst);
    let relaxed = Ordering::Relaxed;
    if word.0.load(relaxed) == 1 && word.0.compare_exchange(1, WOKEN, relaxed, relaxed).is_ok() {
        // Nobody may be there any more.
        let _nobody = futex::wake(&word.0, Flags::empty(), 1);
    }
}

/// Lets a worker look for submissions that waits for that by this word.
pub(crate) fn open(word: &Word) {
    word.0.store(WOKEN, Ordering::Release);
    // Nobody may be there any more.
    let _nobody = futex::wake(&word.0, Flags::empty(), 1);
}

/// Waits until the dispatcher has opened this word.
pub(crate) fn until_open(word: &Word) {
    while word.0.load(Ordering::Acquire) == CLOSED {
        // It looks again, whatever has ended the wait.
        let _woken = futex::wait(&word.0, Flags::empty(), CLOSED, None);
    }
    word.0.store(0, Ordering::Relaxed);
}

/// Sleeps once, for so long at most, unless what it waits for is there once it has said that it sleeps.
pub(crate) fn sleep(word: &Word, most: Option<Duration>, is_there: impl FnOnce() -> bool) {
    word.0.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if !is_there() {
        // A wake that comes first has changed the word. Behind a handler the sleep goes on.
        let _woken = futex::wait(&word.0, Flags::empty(), 1, most.map(timespec).as_ref());
    }
    word.0.store(0, Ordering::Relaxed);
}

/// As [`sleep`], by several words, 128 at most: a wake by any of them is enough, and no side can keep
/// another's from coming.
pub(crate) fn sleep_by_any(
    words: &[&Word],
    most: Option<Duration>,
    is_there: impl FnOnce() -> bool,
) {
    let say = |sleeps| words.iter().for_each(|word| word.0.store(sleeps, Ordering::Relaxed));
    say(1);
    fence(Ordering::SeqCst);
    if !is_there() {
        let waits = words.iter().map(|word| {
            let mut wait = Wait::new();
            wait.val = 1;
            wait.uaddr = WaitPtr::new(word.0.as_ptr().cast());
            wait.flags = WaitFlags::SIZE_U32;
            wait
        });
        let waits: Vec<_> = waits.collect();
        // The kernel takes a time, not a duration.
        let until = most.map(|most| {
            let now = clock_gettime(ClockId::Monotonic);
            let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
            timespec(now + most)
        });
        let clock = futex::ClockId::Monotonic;
        let _woken = futex::waitv(&waits, WaitvFlags::empty(), until.as_ref(), clock);
    }
    say(0);
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}
