//! Calls, and what comes of them.

use std::time::Duration;

use super::function::Id;
use crate::schedule::{Begun, Refused};

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

/// How a call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The function's reply.
    Reply(Vec<u8>),
    /// The function's error: a status code and a text.
    Error(u16, String),
    /// The function has panicked, with this text.
    Panic(String),
    /// It needs more memory than a function may have.
    Memory,
    /// It needs more stack than a function may have.
    Stack,
    /// A signal for what it has done, and the address with it.
    Fault(u16, u64),
    /// It has used more CPU time than its budget.
    Budget(Duration),
    /// Its reply is longer than a reply may be.
    Long(u64),
    /// Its owner's limits.
    Refused(Refused),
    /// The function is banned.
    Banned,
    /// Its caller does not want it any more.
    Cancelled,
    /// Its time is over.
    Deadline,
    /// Its worker has ended, and it must not run again.
    Lost,
    /// It has not heard that it is to stop, and its worker was ended for that.
    Deaf,
    /// There is no such function any more.
    Gone,
    /// Its image is not to be had in memory, and why.
    NotLoaded(String),
}

impl<T> Call<T> {
    /// Whether it is the call with this number, and none that has had its place.
    pub(super) fn is(&self, number: Number) -> bool {
        self.generation == number.generation
    }
}

impl Outcome {
    /// Whether it counts against the function: what stops a worker for a while, or might do more.
    pub(super) fn is_strike(&self) -> bool {
        matches!(self, Self::Budget(_) | Self::Fault(..) | Self::Stack | Self::Memory | Self::Deaf)
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
    /// The call that waits for the answer.
    pub call: Number,
    /// The function that calls.
    pub function: Id,
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
    /// The call that has called a service wants no answer any more.
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
    pub(super) cpu_ns: u64,
}
