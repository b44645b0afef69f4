//! Handing a turn to another process that may sleep.
//!
//! A word holds the number of the last hand-over, an even one, and in its lowest bit whether the
//! other side sleeps until that changes. Whoever hands over wakes only a side that sleeps: a side
//! that was preempted on its way to sleep needs no system call.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::futex;

/// The distance between two numbers.
pub const STEP: u32 = 2;

const ASLEEP: u32 = 1;

/// Publishes `number`, and wakes the other side if it sleeps.
#[inline]
pub fn hand_over(word: &AtomicU32, number: u32) {
    // SYNC(handoff.number)
    if word.swap(number, AcqRel) & ASLEEP != 0 {
        futex::wake(word);
    }
}

/// Sleeps until the word no longer says `last`; returns what it says.
#[inline]
pub fn change(word: &AtomicU32, last: u32) -> u32 {
    loop {
        // SYNC(handoff.number)
        match word.load(Acquire) {
            seen if seen == last | ASLEEP => futex::wait(word, seen),
            seen if seen == last => {
                // If this fails the number has just changed.
                let _ = word.compare_exchange(last, last | ASLEEP, Relaxed, Relaxed);
            }
            seen => return seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hand_over_is_lost() {
        let words = [AtomicU32::new(0), AtomicU32::new(0)];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = 0;
                while last < 20_000 * STEP {
                    last = change(&words[0], last);
                    hand_over(&words[1], last);
                }
            });
            for number in (STEP..=20_000 * STEP).step_by(STEP as usize) {
                hand_over(&words[0], number);
                assert_eq!(change(&words[1], number - STEP), number);
            }
        });
    }
}
