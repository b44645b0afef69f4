//! Calls, and what happens to them.

use super::function::Id;
use super::outcome::Outcome;
use crate::schedule::{Begun, Owner};

/// A call's number: its place among all calls, and which one has that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    at: u32,
    generation: u32,
}

impl Number {
    pub(super) fn new(at: usize, generation: u32) -> Self {
        Self { at: at as u32, generation }
    }

    pub(super) fn at(self) -> usize {
        self.at as usize
    }

    /// The number that [`Self::as_u64`] has said; 0 is none.
    pub fn from_u64(number: u64) -> Option<Self> {
        let (at, generation) = (number as u32, (number >> 32) as u32);
        (number != 0).then_some(Self { at, generation })
    }

    /// As a function sees it, and its log.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.at)
    }
}

impl<T> Call<T> {
    /// Whether it is the call with this number, and none that has had its place.
    pub(super) fn is(&self, number: Number) -> bool {
        self.generation == number.generation
    }

    /// Its function runs once more, from its begin.
    pub(super) fn begin_again(&mut self) {
        (self.answer, self.has_called) = (None, false);
        self.lost_ns += std::mem::take(&mut self.cpu_ns);
    }

    /// Whether this is the number of the last call of a service that it has made, and none of one before.
    pub(super) fn has_asked(&self, number: Number) -> bool {
        self.asked == Some(number)
    }
}

/// A call that is over.
#[derive(Debug)]
pub struct Done<T> {
    /// Its number; none if it was not taken.
    pub call: Option<Number>,
    /// What it was called with.
    pub token: T,
    /// How it has ended.
    pub outcome: Outcome,
    /// Its log lines.
    pub log: Vec<u8>,
    /// The CPU time that it has had, in nanoseconds.
    pub cpu_ns: u64,
}

/// A function's call to a service.
#[derive(Debug)]
pub struct Outward {
    /// Its own number, which no other one has: a call that begins again asks anew, and an answer to what it
    /// has asked before is nobody's.
    pub call: Number,
    /// The function that calls.
    pub function: Id,
    /// Whose it is.
    pub owner: Owner,
    /// When its call is over, if it has such a time.
    pub deadline_ns: Option<u64>,
    /// The service's name, the method's path and the request, one behind the other.
    pub message: Vec<u8>,
    /// The bytes of the name.
    pub service: usize,
    /// The bytes of the path.
    pub method: usize,
}

/// What has happened.
#[derive(Debug)]
pub enum Event<T> {
    /// A call is over.
    Done(Done<T>),
    /// A function calls a service.
    Outward(Outward),
    /// Nobody wants the answer to this call of a service any more.
    Unwanted(Number),
}

#[derive(Debug)]
pub(super) struct Call<T> {
    pub(super) generation: u32,
    pub(super) token: T,
    pub(super) function: Id,
    pub(super) request: Vec<u8>,
    pub(super) begun: Option<Begun>,
    /// The worker and the cell in which it waits for a service.
    pub(super) waits: Option<(usize, u16)>,
    /// The service's answer, which it has not been given yet.
    pub(super) answer: Option<(u32, Vec<u8>)>,
    pub(super) has_called: bool,
    /// The number of its last call of a service.
    pub(super) asked: Option<Number>,
    /// It has begun again because its worker has ended.
    pub(super) is_second: bool,
    /// It is among those that are to be submitted again.
    pub(super) is_queued: bool,
    /// It has a submission that has not ended.
    pub(super) is_flying: bool,
    /// It is over whatever its function says, and why.
    pub(super) over: Option<Outcome>,
    /// Its function's image stays loaded for it.
    pub(super) holds: bool,
    /// When it came, and when it is over.
    pub(super) came_ns: u64,
    pub(super) deadline_ns: Option<u64>,
    /// The CPU time of this run of its function, and of those before, of which nothing is left.
    pub(super) cpu_ns: u64,
    pub(super) lost_ns: u64,
}
