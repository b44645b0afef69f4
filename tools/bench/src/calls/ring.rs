#![allow(unsafe_code, reason = "copies payloads into and out of shared memory")]
//! The simplest correct ring: slots in which a request travels one way and its reply the other.
//!
//! A slot is a stamp and a payload side by side, so a message of up to 56 bytes is one cache line,
//! and the reply comes back in the line that brought the request. So a call costs what bouncing a
//! word costs; with a lane of its own for replies it would move two lines.
//!
//! Exchange `n` happens in slot `n % slots`. Its stamp is `2n + 1` once the request is there and
//! `2n + 2` once the reply is; each is stored with release after the payload, so whoever acquires
//! the stamp may read the payload. The client writes a slot only after it has taken the reply of the
//! exchange `slots` before, the server only between request and reply, so nothing is overwritten.
//!
//! A side that sleeps first says so in a word of its own. The one puts a `SeqCst` fence between its
//! stamp and a look at the word, the other between the word and a look at the stamp, so at least one
//! of them sees the other's store: the sleeper stays awake, or is woken.
//!
//! If the client dies the server waits until it is killed; this is a floor, not a transport.

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::case::Wait;
use crate::error::Result;
use crate::sys::futex;
use crate::sys::shared::{self, Shared};

const STAMP: usize = 8;
const LINE: usize = 64;
const SERVER_SLEEPS: usize = 0;
const CLIENT_SLEEPS: usize = 64;
const SLOTS: usize = 4096;
const GONE: u64 = u64::MAX;

/// The shape of a ring; both sides know it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a payload.
    pub size: usize,
    /// How many exchanges may be under way.
    pub slots: usize,
    /// How the sides wait.
    pub wait: Wait,
}

impl Shape {
    fn stride(&self) -> usize {
        (STAMP + self.size).next_multiple_of(LINE)
    }
}

/// Creates the memory of a ring.
pub fn create(shape: &Shape) -> Result<OwnedFd> {
    Ok(shared::create(SLOTS + shape.stride() * shape.slots)?)
}

/// What both sides do with the slots.
#[derive(Clone, Copy)]
struct Ring<'a> {
    memory: &'a Shared,
    shape: Shape,
}

impl Ring<'_> {
    fn slot(&self, exchange: u64) -> usize {
        SLOTS + exchange as usize % self.shape.slots * self.shape.stride()
    }

    /// Puts a payload and then its stamp into a slot that is this side's to write.
    #[inline]
    fn put(&self, slot: usize, message: &[u8], stamp: u64) {
        assert_eq!(message.len(), self.shape.size, "a ring carries one size");
        let place = self.memory.at(slot + STAMP, message.len());
        if let Ok(line) = <&[u8; 32]>::try_from(message) {
            // SAFETY: `at` checked the range; the other side keeps off until it sees the stamp.
            unsafe { ptr::copy_nonoverlapping(line.as_ptr(), place, 32) };
        } else {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(message.as_ptr(), place, message.len()) };
        }
        // SYNC(ring.stamp)
        self.memory.long(slot).store(stamp, Release);
    }

    /// Waits for a stamp and copies the payload out. False once the client has gone.
    #[inline]
    fn take(&self, slot: usize, message: &mut [u8], stamp: u64, sleeps: usize) -> bool {
        assert_eq!(message.len(), self.shape.size, "a ring carries one size");
        if !self.await_stamp(slot, stamp, sleeps) {
            return false;
        }
        let place = self.memory.at(slot + STAMP, message.len());
        if let Ok(line) = <&mut [u8; 32]>::try_from(&mut *message) {
            // SAFETY: `at` checked the range; with this stamp the other side keeps off the slot.
            unsafe { ptr::copy_nonoverlapping(place, line.as_mut_ptr(), 32) };
        } else {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(place, message.as_mut_ptr(), message.len()) };
        }
        true
    }

    #[inline]
    fn await_stamp(&self, slot: usize, due: u64, sleeps: usize) -> bool {
        let stamp = self.memory.long(slot);
        // SYNC(ring.stamp)
        let arrived = || Some(stamp.load(Acquire)).filter(|seen| *seen == due || *seen == GONE);
        loop {
            if let Some(seen) = arrived() {
                return seen != GONE;
            }
            if self.shape.wait == Wait::Spin {
                // No pause, as in the line probe, which says why.
                continue;
            }
            let asleep = self.memory.word(sleeps);
            asleep.store(1, Relaxed);
            fence(SeqCst);
            if let Some(seen) = arrived() {
                asleep.store(0, Relaxed);
                return seen != GONE;
            }
            futex::wait(asleep, 1);
        }
    }

    /// Wakes the other side if it sleeps.
    #[inline]
    fn wake(&self, sleeps: usize) {
        if self.shape.wait == Wait::Block {
            fence(SeqCst);
            let asleep = self.memory.word(sleeps);
            if asleep.load(Relaxed) == 1 {
                asleep.store(0, Relaxed);
                futex::wake(asleep);
            }
        }
    }
}

/// The client's side; closes the ring when dropped.
pub struct Client<'a> {
    ring: Ring<'a>,
    sent: u64,
    taken: u64,
}

impl<'a> Client<'a> {
    /// On memory of [`create`] with the same shape.
    pub fn new(memory: &'a Shared, shape: Shape) -> Self {
        Self { ring: Ring { memory, shape }, sent: 0, taken: 0 }
    }

    /// Puts a request without waking the server.
    ///
    /// # Panics
    /// If as many requests are unanswered as there are slots.
    #[inline]
    pub fn put(&mut self, request: &[u8]) {
        let unanswered = self.sent - self.taken;
        assert!(unanswered < self.ring.shape.slots as u64, "the ring is full");
        self.ring.put(self.ring.slot(self.sent), request, 2 * self.sent + 1);
        self.sent += 1;
    }

    /// Wakes the server if it sleeps.
    #[inline]
    pub fn wake(&self) {
        self.ring.wake(SERVER_SLEEPS);
    }

    /// Waits for the next reply.
    #[inline]
    pub fn take(&mut self, reply: &mut [u8]) {
        let slot = self.ring.slot(self.taken);
        self.ring.take(slot, reply, 2 * self.taken + 2, CLIENT_SLEEPS);
        self.taken += 1;
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // SYNC(ring.stamp)
        self.ring.memory.long(self.ring.slot(self.sent)).store(GONE, Release);
        self.wake();
    }
}

/// Echoes until the client has gone. Wakes a sleeping client after every reply, or, if requests
/// come in batches of `batch`, after the last of each.
pub fn echo(memory: &Shared, shape: Shape, batch: usize) {
    let ring = Ring { memory, shape };
    let mut message = vec![0; shape.size];
    for exchange in 0.. {
        let slot = ring.slot(exchange);
        if !ring.take(slot, &mut message, 2 * exchange + 1, SERVER_SLEEPS) {
            return;
        }
        ring.put(slot, &message, 2 * exchange + 2);
        if (exchange + 1).is_multiple_of(batch as u64) {
            ring.wake(CLIENT_SLEEPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(shape: Shape, batch: usize) {
        let fd = create(&shape).expect("memory");
        let (near, far) = (Shared::map(&fd).expect("map"), Shared::map(&fd).expect("map"));
        std::thread::scope(|scope| {
            scope.spawn(|| echo(&far, shape, batch));
            let mut client = Client::new(&near, shape);
            let mut reply = vec![0; shape.size];
            for round in 0..300u32 {
                let message = |i: usize| vec![(round as usize * 7 + i) as u8; shape.size];
                (0..batch).for_each(|i| client.put(&message(i)));
                client.wake();
                for i in 0..batch {
                    client.take(&mut reply);
                    assert_eq!(reply, message(i));
                }
            }
        });
    }

    #[test]
    fn every_message_comes_back_in_order() {
        for wait in [Wait::Spin, Wait::Block] {
            exchange(Shape { size: 32, slots: 8, wait }, 1);
            exchange(Shape { size: 1024, slots: 4, wait }, 4);
        }
    }

    #[test]
    fn a_small_message_is_one_line() {
        let shape = Shape { size: 32, slots: 1, wait: Wait::Spin };
        assert_eq!(shape.stride(), LINE);
        assert_eq!(Shape { size: 56, ..shape }.stride(), LINE);
        assert_eq!(Shape { size: 57, ..shape }.stride(), 2 * LINE);
    }

    #[test]
    #[should_panic(expected = "full")]
    fn a_full_ring_is_never_overwritten() {
        let shape = Shape { size: 32, slots: 2, wait: Wait::Spin };
        let fd = create(&shape).expect("memory");
        let memory = Shared::map(&fd).expect("map");
        let mut client = Client::new(&memory, shape);
        (0..3).for_each(|_| client.put(&[0; 32]));
    }
}
