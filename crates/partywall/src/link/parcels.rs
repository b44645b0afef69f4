//! Messages in parcels: what of a link's data travels as a descriptor, and is mapped where it arrives.
//!
//! ```text
//! granted    the coordinator has handed the descriptor socket over: this end says how many parcels it takes
//! sender     a message of [`LONG`] bytes that lies in a parcel goes as it is, while the peer takes one more;
//!            others, from as many bytes on as pay ([`packs`]), are encoded into one, or copied there
//!            its descriptor, then the record that stands for it, with this side's ring locked
//!            no memory, no descriptor, no word of the peer: its bytes, as ever
//! reader     the descriptor, in the order of the records; checked and mapped ([`Sealed::accept`])
//!            one that is none ends the link
//! ```
//!
//! Copies of a long message: by native stubs one when it is encoded, and none when it comes; by others one
//! more on each side. Pages are its sender's, and are freed when both have dropped it.
//!
//! A parcel that is not read counts against the few that the receiver takes, and against no window. It holds
//! no memory of the receiver but its mapping, so it counts against no account; what a service's links take
//! together is bounded for each caller ([`super::account`]).

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use partywall_abi::frame::ParcelRef;
use partywall_abi::sync::{AtomicBool, AtomicUsize, Ordering};
use partywall_shm::descriptors::{self, Incoming, Outgoing};
use partywall_shm::parcel::{Draft, Sealed};
use partywall_shm::slot::{self, SlotBuf};
use partywall_shm::socket::Passed;

use super::broken::Broken;
use super::counters::SentParcels;
use crate::lock::lock;

/// Data of so many bytes that lie in a parcel travel there.
const LONG: usize = 256 * 1024;

/// Messages of so many bytes are put into parcels; 0 until that is known.
static PACK_FROM: AtomicUsize = AtomicUsize::new(0);

/// Sets from how many bytes on that is.
pub(crate) fn pack_from(bytes: usize) {
    PACK_FROM.store(bytes.max(1), Ordering::Relaxed);
}

/// Whether a message of so many bytes is put into a parcel.
#[inline]
pub(crate) fn packs(bytes: usize) -> bool {
    match PACK_FROM.load(Ordering::Relaxed) {
        0 => bytes >= first_pack_from(),
        from => bytes >= from,
    }
}

/// As many as one huge page has where shared memory gets some when it asks. Elsewhere never: to allocate and
/// clear a small page for each message takes longer than to copy its bytes (docs/measurements.md).
#[cold]
fn first_pack_from() -> usize {
    const OFFERED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let offered = std::fs::read_to_string(OFFERED).unwrap_or_default();
    let asks = ["[always]", "[within_size]", "[advise]", "[force]"];
    let from = match asks.iter().any(|word| offered.contains(word)) {
        true => partywall_shm::parcel::HUGE,
        false => usize::MAX,
    };
    let set = PACK_FROM.compare_exchange(0, from, Ordering::Relaxed, Ordering::Relaxed);
    set.map_or_else(|set| set, |_| from)
}

/// Parcels of one link. The two halves are locked for a parcel at a time, under the ring's end.
#[derive(Default)]
pub(crate) struct Parcels {
    granted: AtomicBool,
    outgoing: Mutex<Option<Outgoing>>,
    incoming: Mutex<Option<Incoming>>,
    sent: Arc<SentParcels>,
}

impl Parcels {
    /// From here on descriptors may cross.
    pub(crate) fn grant(&self, socket: Passed) {
        let (outgoing, incoming) = descriptors::halves(socket);
        *lock(&self.outgoing) = Some(outgoing);
        *lock(&self.incoming) = Some(incoming);
        self.granted.store(true, Ordering::Release);
    }

    pub(crate) fn are_granted(&self) -> bool {
        self.granted.load(Ordering::Acquire)
    }

    /// What this end counts of what it sends.
    pub(crate) fn sent(&self) -> &Arc<SentParcels> {
        &self.sent
    }

    /// Sends the descriptor of a parcel in which these bytes lie: what stands for them; none where that does
    /// not go now.
    pub(crate) fn send(&self, parcel: &InParcel, bytes: usize) -> Option<ParcelRef> {
        let mut outgoing = lock(&self.outgoing);
        match outgoing.as_mut()?.send(&[parcel.sealed.as_fd()]) {
            Ok(packet) => {
                self.sent.count(bytes);
                Some(ParcelRef { packet, offset: parcel.offset, bytes: bytes as u64 })
            }
            Err(why) => {
                tracing::debug!(%why, "a message goes without its parcel");
                None
            }
        }
    }

    /// The data for which a frame of this payload stands; none where no descriptor may come, which is a
    /// broken rule of the call protocol.
    pub(crate) fn receive(&self, payload: &[u8]) -> Result<Option<Bytes>, Broken> {
        let mut incoming = lock(&self.incoming);
        let Some(incoming) = incoming.as_mut() else { return Ok(None) };
        let parcel = ParcelRef::of(payload).map_err(partywall_call::Error::from)?;
        let mut descriptors = incoming.receive(parcel.packet)?;
        let descriptor = descriptors.pop().filter(|_| descriptors.is_empty());
        let descriptor = descriptor.ok_or(Broken::NoParcel)?;
        let sealed = Sealed::accept(descriptor, parcel.offset, parcel.bytes)?;
        Ok(Some(sealed.into_bytes()))
    }
}

/// Where bytes lie in a parcel.
pub(crate) struct InParcel {
    sealed: Sealed,
    offset: u64,
}

impl InParcel {
    /// Where these lie, if they are long and lie in one.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < LONG {
            return None;
        }
        let (sealed, offset) = Sealed::of(bytes)?;
        Some(Self { sealed, offset })
    }
}

/// So many bytes in a parcel, as `write` writes them; none where it writes others, or memory has run out.
pub(crate) fn filled(len: usize, write: impl FnOnce(&mut SlotBuf<'_>) -> bool) -> Option<Bytes> {
    let mut draft = match Draft::new(len) {
        Ok(draft) => draft,
        Err(why) => {
            tracing::debug!(%why, "a message goes without a parcel");
            return None;
        }
    };
    let mut written = false;
    slot::append(&mut &mut draft[..], len, |out| written = write(out)).ok()?;
    written.then(|| draft.seal().ok().map(Sealed::into_bytes))?
}
