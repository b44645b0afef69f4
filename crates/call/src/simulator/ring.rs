//! A ring between two ends.

use std::collections::VecDeque;

/// A record on its way.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    /// What comes before the data.
    pub(super) block: Vec<u8>,
    pub(super) data: usize,
}

impl Sent {
    fn len(&self) -> usize {
        self.block.len() + self.data
    }
}

/// A ring: so many records, so many bytes.
pub(super) struct Ring {
    pub(super) records: VecDeque<Sent>,
    pub(super) slots: usize,
    pub(super) bytes: usize,
    used: usize,
}

impl Ring {
    pub(super) fn new(slots: usize, bytes: usize) -> Self {
        Self { records: VecDeque::new(), slots, bytes, used: 0 }
    }

    pub(super) fn has_room(&self, len: usize) -> bool {
        self.records.len() < self.slots && self.used + len <= self.bytes
    }

    pub(super) fn push(&mut self, sent: Sent) {
        self.used += sent.len();
        self.records.push_back(sent);
    }

    pub(super) fn pop(&mut self) -> Option<Sent> {
        let sent = self.records.pop_front()?;
        self.used -= sent.len();
        Some(sent)
    }
}
