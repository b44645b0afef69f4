//! A worker and what the dispatcher has given it.

use std::collections::VecDeque;

use partywall_abi::function::{SLOTS, Submission};
use partywall_abi::security::Isolation;

use super::call::Number;
use super::cells::Cells;
use super::payloads::{Payloads, Room};
use super::worker::Worker;

/// Submissions of a worker that have not ended, where owners share it: who comes next waits for no more.
const AHEAD: usize = 16;
const _: () = assert!(AHEAD <= SLOTS as usize);

/// A submission that has not ended.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) number: u32,
    pub(super) call: Number,
    pub(super) cell: u16,
    pub(super) input: Room,
    pub(super) output: Room,
}

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) worker: Worker,
    pub(super) payloads: Payloads,
    pub(super) flying: VecDeque<Flying>,
    pub(super) cells: Cells,
    /// When the first of them has begun, as far as is known.
    pub(super) began_ns: u64,
    /// When it was told to stop, first and last.
    pub(super) told_ns: Option<(u64, u64)>,
    /// The functions that its worker has given up.
    pub(super) given_up: u32,
    /// Its worker has ended, and none is started before then.
    pub(super) missing_until_ns: Option<u64>,
}

impl Seat {
    pub(super) fn new(worker: Worker) -> Self {
        let (payloads, flying) = (Payloads::default(), VecDeque::new());
        Self {
            worker,
            payloads,
            flying,
            cells: Cells::default(),
            began_ns: 0,
            told_ns: None,
            given_up: 0,
            missing_until_ns: None,
        }
    }

    /// Whether there is room for a submission.
    pub(super) fn has_room(&self) -> bool {
        self.flying.len() < AHEAD && self.missing_until_ns.is_none() && self.has_begun()
    }

    /// Whether its worker takes submissions.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.worker.begun(), Some(Ok(_)))
    }

    /// Whether protection keys are in force in its worker.
    pub(super) fn has_keys(&self) -> bool {
        let begun = self.worker.begun();
        matches!(begun, Some(Ok(begun)) if begun.isolation == Isolation::ProtectionKeys)
    }

    /// Whether its worker takes no new call, having given up so many functions.
    pub(super) fn is_leaving(&self, recycle: u32) -> bool {
        self.given_up >= recycle
    }

    /// Whether nothing of it runs or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.cells.are_all_free()
    }

    pub(super) fn fly(
        &mut self,
        submission: &Submission,
        call: Number,
        (input, output): (Room, Room),
        now_ns: u64,
    ) {
        if self.flying.is_empty() {
            (self.began_ns, self.told_ns) = (now_ns, None);
        }
        let number = self.worker.submit(submission);
        self.flying.push_back(Flying { number, call, cell: submission.cell, input, output });
    }
}
