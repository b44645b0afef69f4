//! What happens to a record on its way: each record of a link of calls, of an async end or of a blocking one,
//! passes through the functions here, and nothing else touches the rings' payloads.
//!
//! This is where records will be sealed. Today they are plain: the bytes as they are, one copy on
//! each side. Lengths are those of the payload as it is given and taken: what sealing adds is added here, and
//! where a blocking end waits for room ([`partywall_shm::link::Link::wait`]).

use partywall_abi::frame::Kind;
use partywall_abi::layout::{Descriptor, SleepMode};
use partywall_call::Control;
use partywall_shm::ring::{Consumer, Producer, Slot, Violation};

/// The longest payload of one record.
#[inline]
pub(crate) fn most(ring: &Producer) -> usize {
    ring.record_bytes()
}

/// Whether a payload of so many bytes has room.
#[inline]
pub(super) fn has_room(ring: &mut Producer, len: usize) -> Result<bool, Violation> {
    ring.has_room(len)
}

/// Reserves room for a payload of so many bytes; none when there is none. Nothing changes before
/// [`write()`].
#[inline]
pub(crate) fn reserve(ring: &mut Producer, len: usize) -> Result<Option<Slot<'_>>, Violation> {
    ring.reserve(len)
}

/// Writes a frame into its slot, which is as long as both parts.
#[inline]
pub(crate) fn write(mut slot: Slot<'_>, flags: u8, stream: u32, block: &[u8], data: &[u8]) {
    slot.write(block);
    slot.write(data);
    slot.commit(Kind::Frame as u8, flags, stream);
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

/// Takes one record: its payload replaces what is in `payload`. A new vector becomes as long as the record.
#[inline]
pub(crate) fn take(
    ring: &mut Consumer,
    payload: &mut Vec<u8>,
) -> Result<Option<Descriptor>, Violation> {
    let Some(descriptor) = ring.peek()? else { return Ok(None) };
    payload.clear();
    payload.reserve(descriptor.len as usize);
    ring.read(payload);
    ring.release();
    Ok(Some(descriptor))
}
