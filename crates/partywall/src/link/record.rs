//! What happens to a record on its way: each record of a link of calls, of an async end or of a blocking one,
//! passes through the functions here, and nothing else touches the rings' payloads.
//!
//! This is where records will be sealed. Today they are plain: the bytes as they are, one copy on
//! each side. Lengths are those of the payload as it is given and taken: what sealing adds is added here, and
//! where a blocking end waits for room ([`partywall_shm::link::Link::wait`]).

use bytes::Bytes;
use partywall_abi::frame::Kind;
use partywall_abi::layout::{Descriptor, SleepMode};
use partywall_call::Control;
use partywall_shm::ring::{Consumer, Producer, Slot, Violation};
use partywall_shm::slot::SlotBuf;

/// The longest payload of one record.
#[inline]
pub(crate) fn most(ring: &Producer) -> usize {
    ring.record_bytes()
}

/// Whether a payload of so many bytes has room.
#[inline]
pub(crate) fn has_room(ring: &mut Producer, len: usize) -> Result<bool, Violation> {
    ring.has_room(len)
}

/// A frame in the room that is reserved for it. Nothing changes before [`Frame::send`].
pub(crate) struct Frame<'a>(Slot<'a>);

/// Reserves room for a frame, and writes its block; none when there is none.
#[inline]
pub(crate) fn reserve<'a>(
    ring: &'a mut Producer,
    block: &[u8],
    data: usize,
) -> Result<Option<Frame<'a>>, Violation> {
    let Some(mut slot) = ring.reserve(block.len() + data)? else { return Ok(None) };
    slot.write(block);
    Ok(Some(Frame(slot)))
}

impl Frame<'_> {
    /// Writes all of its data.
    #[inline]
    pub(crate) fn write(&mut self, data: &[u8]) {
        self.0.write(data);
    }

    /// Its data, to be encoded into.
    #[inline]
    pub(crate) fn buffer(&mut self) -> SlotBuf<'_> {
        self.0.buffer()
    }

    #[inline]
    pub(crate) fn send(self, flags: u8, stream: u32) {
        self.0.commit(Kind::Frame as u8, flags, stream);
    }
}

/// Writes a control record whose payload is `payload`; false when there is no room.
#[inline]
pub(crate) fn push_control(
    ring: &mut Producer,
    control: &Control,
    payload: &[u8],
) -> Result<bool, Violation> {
    ring.try_push(control.kind() as u8, 0, control.stream(), &[payload])
}

/// Asks to be rung for when there is room for a payload of so many bytes; false when there is some.
#[inline]
pub(crate) fn prepare_sleep(ring: &mut Producer, len: usize) -> Result<bool, Violation> {
    ring.prepare_sleep(len, SleepMode::Doorbell)
}

/// Takes one record: its payload replaces what is in `payload`.
#[cfg(feature = "blocking")]
#[inline]
pub(crate) fn take(
    ring: &mut Consumer,
    payload: &mut Vec<u8>,
) -> Result<Option<Descriptor>, Violation> {
    let Some(descriptor) = ring.peek()? else { return Ok(None) };
    let len = descriptor.len as usize;
    payload.clear();
    payload.reserve(len);
    ring.read(payload);
    ring.release();
    Ok(Some(descriptor))
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

/// Takes one record with a payload of its own. A long one keeps no more than the record, and a short one
/// [`SHORT`] bytes.
#[inline]
pub(super) fn take_bytes(ring: &mut Consumer) -> Result<Option<(Descriptor, Bytes)>, Violation> {
    let Some(descriptor) = ring.peek()? else { return Ok(None) };
    let len = descriptor.len as usize;
    let payload = if len <= SHORT {
        let mut bytes = [0; SHORT];
        ring.read(&mut &mut bytes[..len]);
        Bytes::from_owner(Short { bytes, len: len as u8 })
    } else {
        let mut bytes = Vec::with_capacity(len);
        ring.read(&mut bytes);
        bytes.into()
    };
    ring.release();
    Ok(Some((descriptor, payload)))
}
