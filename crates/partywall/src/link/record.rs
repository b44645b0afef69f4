//! What happens to a record on its way: every record of a link of calls is written by [`Out::push`]
//! and read by [`In::take`], and nothing else touches the rings' payloads.
//!
//! This is where records will be sealed. Today they are plain: the bytes as they are, one copy on
//! each side, and one allocation for a record that is read, as long as the record.

use bytes::Bytes;
use partywall_abi::frame::Kind;
use partywall_call::Control;
use partywall_shm::ring::{Consumer, Producer, Violation};

/// A record that was taken off a ring: copied, not yet understood.
pub(super) struct Record {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Bytes,
}

/// The writing end of a ring.
pub(super) struct Out(Producer);

impl Out {
    pub(super) fn new(producer: Producer) -> Self {
        Self(producer)
    }

    /// The longest payload of one record.
    pub(super) fn most(&self) -> usize {
        self.0.record_bytes()
    }

    /// Whether a payload of so many bytes has room.
    pub(super) fn has_room(&mut self, len: usize) -> Result<bool, Violation> {
        self.0.has_room(len)
    }

    /// Writes a frame, for which there is room.
    pub(super) fn push(
        &mut self,
        flags: u8,
        stream: u32,
        block: &[u8],
        data: &[u8],
    ) -> Result<(), Violation> {
        let slot = self.0.reserve(block.len() + data.len())?;
        let mut slot = slot.expect("room that was there stays there");
        slot.write(block);
        slot.write(data);
        slot.commit(Kind::Frame as u8, flags, stream);
        Ok(())
    }

    /// Writes a control record whose payload is `payload`; false when there is no room.
    pub(super) fn push_control(
        &mut self,
        control: &Control,
        payload: &[u8],
    ) -> Result<bool, Violation> {
        self.0.try_push(control.kind() as u8, 0, control.stream(), &[payload])
    }

    /// The ring itself, for all that concerns no payload.
    pub(super) fn ring(&mut self) -> &mut Producer {
        &mut self.0
    }
}

/// The reading end of a ring.
pub(super) struct In(Consumer);

impl In {
    pub(super) fn new(consumer: Consumer) -> Self {
        Self(consumer)
    }

    /// Takes one record.
    pub(super) fn take(&mut self) -> Result<Option<Record>, Violation> {
        let Some(d) = self.0.peek()? else { return Ok(None) };
        // As long as the record: what is kept of it keeps no more than it alive.
        let mut payload = Vec::with_capacity(d.len as usize);
        self.0.read(&mut payload);
        self.0.release();
        let payload = payload.into();
        Ok(Some(Record { kind: d.kind, flags: d.flags, stream: d.stream, payload }))
    }

    /// Whether a record is there.
    pub(super) fn ready(&self) -> bool {
        self.0.ready()
    }

    /// The ring itself, for all that concerns no payload.
    pub(super) fn ring(&mut self) -> &mut Consumer {
        &mut self.0
    }
}
