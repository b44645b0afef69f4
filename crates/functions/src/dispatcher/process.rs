//! A worker process and what the dispatcher has given it.

use std::collections::VecDeque;

use partywall_abi::function::{SLOTS, Submission};
use partywall_abi::security::Isolation;

use super::budget::Budget;
use super::call::Number;
use super::cells::Cells;
use super::group::ALL;
use super::payloads::{Payloads, Room};
use super::worker::Worker;
use crate::isolation::InForce;
use crate::schedule::Owner;

/// Submissions of a worker that have not ended, where owners share it: who comes next waits for no more.
pub const AHEAD: usize = 16;
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
pub(super) struct Process {
    pub(super) worker: Worker,
    /// Whose functions it runs, and where.
    pub(super) group: usize,
    pub(super) seat: usize,
    /// It was seen to have begun.
    pub(super) has_begun: bool,
    pub(super) payloads: Payloads,
    pub(super) flying: VecDeque<Flying>,
    pub(super) cells: Cells,
    /// What the first of them has had of its budget; before the process has begun, since when it is there.
    pub(super) budget: Budget,
    /// The functions that it has given up.
    pub(super) given_up: u32,
    /// What it has said that cannot be true: it is killed, and nothing more of it is read.
    pub(super) lie: Option<&'static str>,
}

impl Process {
    pub(super) fn new(worker: Worker, (group, seat): (usize, usize), now_ns: u64) -> Self {
        let (payloads, flying) = <(Payloads, VecDeque<_>)>::default();
        let cells = Cells::new(group == ALL);
        let mut budget = Budget::default();
        budget.begin(now_ns);
        Self {
            worker,
            group,
            seat,
            has_begun: false,
            payloads,
            flying,
            cells,
            budget,
            given_up: 0,
            lie: None,
        }
    }

    /// Whether there is room for a submission.
    pub(super) fn has_room(&self) -> bool {
        self.flying.len() < AHEAD
    }

    /// Whether protection keys are in force in it, or may be: where it has not begun.
    pub(super) fn has_keys(&self) -> bool {
        let none = |begun: &InForce| begun.isolation != Isolation::ProtectionKeys;
        !matches!(self.worker.begun(), Some(Ok(begun)) if none(begun))
    }

    /// Whether it has a cell for a function of this owner.
    pub(super) fn has_cell(&self, owner: Owner) -> bool {
        self.cells.has_one(owner, self.has_keys())
    }

    /// Takes a cell for a function of this owner; cell 0, which all share, if there is none.
    pub(super) fn take_cell(&mut self, owner: Owner) -> u16 {
        let keyed = self.has_keys();
        self.cells.take(owner, keyed).unwrap_or(0)
    }

    /// Whether it takes no new call, having given up so many functions.
    pub(super) fn is_leaving(&self, recycle: u32) -> bool {
        self.given_up >= recycle
    }

    /// Whether nothing of it runs or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.cells.are_all_free()
    }

    /// Whether a function waits in it, or one runs that may wait.
    pub(super) fn is_held(&self) -> bool {
        !self.cells.are_all_free()
    }

    /// The functions that wait in it.
    pub(super) fn waiting(&self) -> usize {
        let running = self.flying.iter().filter(|flying| flying.cell != 0).count();
        self.cells.taken() - running
    }

    /// Whether it has completed something, or has begun and was not seen to, or is to be replaced.
    pub(super) fn has_news(&self) -> bool {
        self.lie.is_some()
            || self.worker.has_completion()
            || !self.has_begun && self.worker.has_begun()
    }

    /// It has said what cannot be true: it is killed, and replaced when it is gone.
    #[cold]
    pub(super) fn has_lied(&mut self, lie: &'static str) {
        self.lie = Some(lie);
        let _gone = self.worker.child().kill();
    }

    /// Whether it may be given something: not if it has completed that already.
    pub(super) fn is_honest(&mut self) -> bool {
        if self.worker.peek(self.worker.next()).is_some() {
            self.has_lied("it has completed what it was not given yet");
        }
        self.lie.is_none()
    }

    /// Sees whether it has begun: what it was given before begins now.
    pub(super) fn greet(&mut self, now_ns: u64) {
        if !self.has_begun && self.worker.has_begun() {
            self.has_begun = true;
            self.budget.begin(now_ns);
        }
    }

    pub(super) fn fly(
        &mut self,
        submission: &Submission,
        call: Number,
        (input, output): (Room, Room),
        now_ns: u64,
    ) {
        if self.flying.is_empty() {
            self.budget.begin(now_ns);
        }
        let number = self.worker.put(submission);
        self.flying.push_back(Flying { number, call, cell: submission.cell, input, output });
    }
}
