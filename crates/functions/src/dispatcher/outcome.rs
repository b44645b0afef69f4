//! How calls end.

use std::time::Duration;

use crate::schedule::Refused;

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
    /// Its request, with the parameters, is longer than one may be.
    LongRequest(u64),
    /// Its owner's limits.
    Refused(Refused),
    /// The function is banned.
    Banned,
    /// Its caller does not want it any more.
    Cancelled,
    /// Its time is over.
    Deadline,
    /// The same, and no worker process for it could be started meanwhile: why.
    Unstarted(String),
    /// Its worker has ended, and why, and it must not run again.
    Lost(String),
    /// It has not heard that it is to stop, and its worker was ended for that.
    Deaf,
    /// No worker process could be had for its group, for functions wait.
    Held(Held),
    /// There is no such function any more.
    Gone,
    /// Its image is not to be had in memory, and why.
    NotLoaded(String),
}

/// Why functions that wait leave a call no worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Functions wait in all processes.
    All {
        /// How many these are.
        processes: usize,
    },
    /// Functions of its owner wait in as many processes as one owner may hold beside others.
    Owner {
        /// How many these are.
        holds: usize,
        /// How many there may be.
        processes: usize,
    },
}

impl Outcome {
    /// Whether it counts against the function: what stops a worker for a while, or might do more. The end of
    /// a worker does too, whatever comes of the call: see [`super::watch`].
    pub(super) fn is_strike(&self) -> bool {
        matches!(self, Self::Budget(_) | Self::Fault(..) | Self::Stack | Self::Memory | Self::Deaf)
    }
}
