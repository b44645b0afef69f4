//! One end, and the programs at it.

use std::collections::BTreeSet;

use partywall_abi::limits;

use super::method::Method;
use super::ring::Ring;
use crate::{Connection, Error, Key};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// A program opens a call.
    Open,
    /// The reader of the ring.
    Read,
    /// Control records that are due.
    Control,
    /// A call's sender, and its receiver.
    Send(usize),
    Receive(usize),
}

/// What one side does in a call.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) key: Option<Key>,
    /// What its head names its method by, of a caller's.
    pub(super) method: Method,
    /// Data to send, and the head that goes before it.
    pub(super) left: usize,
    pub(super) headed: bool,
    pub(super) sent_all: bool,
    /// Data that has come and is not taken, and the owned parcels in which it lies.
    pub(super) untaken: usize,
    pub(super) held: Vec<u32>,
    /// Something is to be attached to its head; what was to the peer's is not read.
    pub(super) attaches: bool,
    pub(super) unread: bool,
    pub(super) received: usize,
    /// Nothing more comes.
    pub(super) over: bool,
    /// All of the request is to be read before the answer.
    pub(super) reads_all: bool,
    /// Bytes of the message for which memory is to be kept.
    pub(super) message: usize,
    pub(super) has_memory: bool,
    pub(super) waits: bool,
    pub(super) ended: Option<u8>,
}

pub(super) struct End {
    pub(super) connection: Connection<usize>,
    pub(super) out: Ring,
    pub(super) calls: Vec<Call>,
    /// What can run.
    pub(super) ready: BTreeSet<Task>,
    /// Who waits for room on the ring, for the link's credit, for a place, for memory.
    pub(super) for_room: BTreeSet<Task>,
    pub(super) for_credit: BTreeSet<Task>,
    pub(super) for_place: bool,
    pub(super) memory: usize,
    /// Owned parcels that are free here.
    pub(super) free: Vec<u32>,
    pub(super) dead: bool,
    pub(super) broken: Option<Error>,
}

impl End {
    pub(super) fn new(
        connection: Connection<usize>,
        slots: usize,
        bytes: usize,
        memory: usize,
    ) -> Self {
        let out = Ring::new(slots, bytes);
        Self {
            connection,
            out,
            calls: Vec::new(),
            ready: BTreeSet::from([Task::Read, Task::Control]),
            for_room: BTreeSet::new(),
            for_credit: BTreeSet::new(),
            for_place: false,
            memory,
            free: (0..limits::OWNED_PARCELS).collect(),
            dead: false,
            broken: None,
        }
    }

    pub(super) fn wake_place(&mut self) {
        if std::mem::take(&mut self.for_place) {
            self.ready.insert(Task::Open);
        }
    }

    pub(super) fn wake_call(&mut self, call: usize) {
        self.ready.insert(Task::Send(call));
        self.ready.insert(Task::Receive(call));
    }
}
