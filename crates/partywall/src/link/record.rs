//! What happens to a record on its way: each record of a link of calls, of an async end or of a blocking one,
//! passes through the functions here, and nothing else touches the rings' payloads.
//!
//! ```text
//! plain    block, data  ------------------------------------------->  slot  -- copied -->  own memory
//! sealed   block, data  -- sealed, from own memory into the slot -->  slot  -- copied -->  own memory,
//!                                                                                          opened there
//! ```
//!
//! Lengths are those of the payload as it is given and taken: what sealing adds is added here, and where a
//! blocking end waits for room ([`Outgoing::room`], for [`partywall_shm::link::Link::wait`]).
//!
//! # Copies
//!
//! A plain record is written once and copied once. A sealed one is as well: what seals it reads its bytes
//! where they are and writes them where they go, and it is opened where it has been copied to. Two kinds
//! are written once more: a message that is encoded into its record is encoded into memory of this end
//! first, since what lies in a slot can be seen by whoever has the ring mapped; and a record that lies
//! across the end of the arena, one in some hundreds, is sealed in memory of this end.
//!
//! # What can go wrong
//!
//! A record that is not opened ends the link ([`Broken::Sealed`]), and the peer is to blame: nobody else
//! writes its ring. A process that fork(2) has made of this one seals nothing, since both would seal by the
//! same numbers.

use bytes::Bytes;
use partywall_abi::frame::Kind;
use partywall_abi::layout::{Descriptor, SleepMode};
use partywall_call::Control;
use partywall_shm::fork;
use partywall_shm::ring::{Consumer, Producer, Slot, Violation};
use partywall_shm::slot::SlotBuf;
use partywall_trust::record::{Opener, Sealer, What};

use super::broken::Broken;

/// How an end sends its records: as they are, or sealed.
#[derive(Default)]
pub(crate) struct Outgoing(Option<Box<Sealing>>);

/// How an end takes its peer's records.
#[derive(Default)]
pub(crate) struct Incoming(Option<Box<Opener>>);

struct Sealing {
    sealer: Sealer,
    /// Whose end it is.
    process: fork::Process,
    /// The block of a frame, as it was reserved.
    block: Vec<u8>,
    /// A message as it was encoded; its length alone is that of the message.
    encoded: Vec<u8>,
    /// Of a record across the end of the arena.
    sealed: Vec<u8>,
}

impl Outgoing {
    /// Sealed from here on.
    pub(crate) fn sealed(sealer: Sealer) -> Self {
        let (block, encoded, sealed) = (Vec::new(), Vec::new(), Vec::new());
        let process = fork::Process::this();
        Self(Some(Box::new(Sealing { sealer, process, block, encoded, sealed })))
    }

    /// The bytes of a record with a payload of so many.
    #[inline]
    pub(crate) fn room(&self, len: usize) -> usize {
        self.0.as_ref().map_or(len, |sealing| sealing.sealer.form().sealed(len))
    }

    /// The longest payload of one record.
    #[inline]
    pub(crate) fn most(&self, ring: &Producer) -> usize {
        let most = ring.record_bytes();
        self.0.as_ref().map_or(most, |sealing| sealing.sealer.form().most(most))
    }

    /// Whether a payload of so many bytes has room.
    #[inline]
    pub(crate) fn has_room(&self, ring: &mut Producer, len: usize) -> Result<bool, Violation> {
        ring.has_room(self.room(len))
    }

    /// Asks to be rung for when there is room for a payload of so many bytes; false when there is some.
    #[inline]
    pub(crate) fn prepare_sleep(&self, ring: &mut Producer, len: usize) -> Result<bool, Violation> {
        ring.prepare_sleep(self.room(len), SleepMode::Doorbell)
    }

    /// Reserves room for a frame, and takes its block; none when there is none.
    #[inline]
    pub(crate) fn reserve<'a>(
        &'a mut self,
        ring: &'a mut Producer,
        block: &[u8],
        data: usize,
    ) -> Result<Option<Frame<'a>>, Violation> {
        let len = block.len() + data;
        let Some(mut slot) = ring.reserve(self.room(len))? else { return Ok(None) };
        let sealing = self.0.as_deref_mut();
        match sealing {
            None => {
                slot.write(block);
                Ok(Some(Frame { slot, sealing: None, data, written: 0 }))
            }
            Some(sealing) => {
                sealing.block.clear();
                sealing.block.extend_from_slice(block);
                Ok(Some(Frame { slot, sealing: Some(sealing), data, written: 0 }))
            }
        }
    }

    /// Writes a control record whose payload is `payload`; false when there is no room.
    #[inline]
    pub(crate) fn push_control(
        &mut self,
        ring: &mut Producer,
        control: &Control,
        payload: &[u8],
    ) -> Result<bool, Broken> {
        let what = What { kind: control.kind() as u8, flags: 0, stream: control.stream() };
        match self.0.as_deref_mut() {
            None => Ok(ring.try_push(what.kind, what.flags, what.stream, &[payload])?),
            Some(sealing) => {
                let len = sealing.sealer.form().sealed(payload.len());
                let Some(slot) = ring.reserve(len)? else { return Ok(false) };
                sealing.block.clear();
                sealing.seal(slot, what, payload)?;
                Ok(true)
            }
        }
    }
}

impl Sealing {
    /// Seals the block and what is behind it into a slot.
    #[inline]
    fn seal(&mut self, mut slot: Slot<'_>, what: What, data: &[u8]) -> Result<(), Broken> {
        if !self.process.is_this() {
            return Err(Broken::Forked);
        }
        let parts = [&self.block[..], data];
        let len = self.sealer.form().sealed(self.block.len() + data.len());
        match slot.whole() {
            Some(whole) => self.sealer.seal(what, parts, whole)?,
            None => {
                self.sealed.resize(len, 0);
                self.sealer.seal(what, parts, &mut self.sealed)?;
                slot.write(&self.sealed);
            }
        }
        slot.commit(what.kind, what.flags, what.stream);
        Ok(())
    }
}

/// A frame in the room that is reserved for it. Nothing changes before it is sent.
pub(crate) struct Frame<'a> {
    slot: Slot<'a>,
    sealing: Option<&'a mut Sealing>,
    /// Bytes of its data, and how many were encoded of a sealed one.
    data: usize,
    written: usize,
}

impl Frame<'_> {
    /// Its data, to be encoded into.
    #[inline]
    pub(crate) fn buffer(&mut self) -> SlotBuf<'_> {
        match &mut self.sealing {
            None => self.slot.buffer(),
            Some(sealing) => {
                if sealing.encoded.len() < self.data {
                    sealing.encoded.resize(self.data, 0);
                }
                SlotBuf::over(&mut sealing.encoded[..self.data], &mut self.written)
            }
        }
    }

    /// Sends it with these data.
    #[inline]
    pub(crate) fn send_data(mut self, flags: u8, stream: u32, data: &[u8]) -> Result<(), Broken> {
        let what = What { kind: Kind::Frame as u8, flags, stream };
        match self.sealing {
            None => {
                self.slot.write(data);
                self.slot.commit(what.kind, what.flags, what.stream);
                Ok(())
            }
            Some(sealing) => sealing.seal(self.slot, what, data),
        }
    }

    /// Sends it with the data that were encoded.
    ///
    /// # Panics
    /// Less was encoded than was reserved, or more.
    #[inline]
    pub(crate) fn send(self, flags: u8, stream: u32) -> Result<(), Broken> {
        let what = What { kind: Kind::Frame as u8, flags, stream };
        match self.sealing {
            None => {
                self.slot.commit(what.kind, what.flags, what.stream);
                Ok(())
            }
            Some(sealing) => {
                assert!(self.written == self.data, "less than was reserved, or more");
                let encoded = std::mem::take(&mut sealing.encoded);
                let sent = sealing.seal(self.slot, what, &encoded[..self.data]);
                sealing.encoded = encoded;
                sent
            }
        }
    }
}

fn what(descriptor: &Descriptor) -> What {
    let &Descriptor { kind, flags, stream, .. } = descriptor;
    What { kind, flags, stream }
}

impl Incoming {
    /// Sealed from here on.
    pub(crate) fn sealed(opener: Opener) -> Self {
        Self(Some(Box::new(opener)))
    }

    /// Takes one record: its payload replaces what is in `payload`.
    #[cfg(feature = "blocking")]
    #[inline]
    pub(crate) fn take(
        &mut self,
        ring: &mut Consumer,
        payload: &mut Vec<u8>,
    ) -> Result<Option<Descriptor>, Broken> {
        let Some(descriptor) = ring.peek()? else { return Ok(None) };
        let len = descriptor.len as usize;
        payload.clear();
        payload.reserve(len);
        ring.read(payload);
        ring.release();
        if let Some(opener) = &mut self.0 {
            let len = opener.open(what(&descriptor), payload)?;
            payload.truncate(len);
        }
        Ok(Some(descriptor))
    }

    /// Takes one record with a payload of its own. A long one keeps no more than the record, and a short one
    /// [`SHORT`] bytes.
    #[inline]
    pub(super) fn take_bytes(
        &mut self,
        ring: &mut Consumer,
    ) -> Result<Option<(Descriptor, Bytes)>, Broken> {
        let Some(descriptor) = ring.peek()? else { return Ok(None) };
        let len = descriptor.len as usize;
        let payload = if len <= SHORT {
            let mut bytes = [0; SHORT];
            ring.read(&mut &mut bytes[..len]);
            ring.release();
            let len = match &mut self.0 {
                None => len,
                Some(opener) => opener.open(what(&descriptor), &mut bytes[..len])?,
            };
            Bytes::from_owner(Short { bytes, len: len as u8 })
        } else {
            let mut bytes = Vec::with_capacity(len);
            ring.read(&mut bytes);
            ring.release();
            if let Some(opener) = &mut self.0 {
                let len = opener.open(what(&descriptor), &mut bytes)?;
                bytes.truncate(len);
            }
            bytes.into()
        };
        Ok(Some((descriptor, payload)))
    }
}

/// Bytes of a short record.
const SHORT: usize = 64;

/// The payload of a short record, which takes one allocation however often it is shared.
struct Short {
    bytes: [u8; SHORT],
    len: u8,
}

impl AsRef<[u8]> for Short {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
