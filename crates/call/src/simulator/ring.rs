//! A ring between two ends.

use std::collections::VecDeque;

use super::random::Random;

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

    /// Changes it on its way; it has so many bytes of data at most.
    pub(super) fn spoil(&mut self, random: &mut Random, most: usize) {
        match random.below(7) {
            0 => self.kind = random.below(11) as u8,
            1 => self.flags ^= 1 << random.below(8),
            2 => self.stream = random.below(12) as u32,
            3 => self.block.truncate(random.below(self.block.len() + 1)),
            4 if !self.block.is_empty() => {
                let at = random.below(self.block.len());
                self.block[at] = random.next() as u8;
            }
            5 => self.data = random.size().min(most),
            _ => {
                // Something else in its place.
                *self = Self {
                    kind: random.below(11) as u8,
                    flags: random.below(256) as u8,
                    stream: random.below(8) as u32,
                    block: (0..random.below(12)).map(|_| random.next() as u8).collect(),
                    data: 0,
                };
            }
        }
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
