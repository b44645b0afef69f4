//! Messages in parcels: what of a link's data travels as a descriptor, and is mapped where it arrives.
//!
//! ```text
//! granted    the coordinator has handed the descriptor socket over: this end says how many parcels it takes
//! sender     a message of [`LONG`] bytes that lies in a sealed parcel goes as it is, while the peer takes
//!            one more
//!            another long one ([`is_long`]) is encoded or copied: into a sealed parcel where a program says
//!            so, else into an owned one of the link ([`pool`])
//!            its descriptor, if the peer has not got it, then the record that stands for it, with this
//!            side's ring locked
//!            no memory, no descriptor, no word of the peer: its bytes, as ever
//! reader     the descriptor, in the order of the records; checked and mapped ([`Sealed::accept`],
//!            [`Reader::accept`]); one that is none ends the link
//! receiver   copies what lies in an owned parcel, in its call's own task, and gives the parcel back
//! ```
//!
//! Copies of a long message by native stubs: one when it is encoded, and one when it comes in an owned
//! parcel, none when in a sealed one. Others make one more on each side. Pages are its sender's. Those of a
//! sealed parcel are freed when both have dropped it; those of owned ones are used again.
//!
//! A parcel that is not read counts against the few that the receiver takes, and against no window. It holds
//! no memory of the receiver but its mapping, so it counts against no account; what a service's links take
//! together is bounded for each caller ([`super::account`]). What is copied is charged before.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::{BufMut, Bytes};
use partywall_abi::control::Grant;
use partywall_abi::frame::{self, Item, KNOWN, Owned, ParcelRef};
use partywall_abi::limits;
use partywall_abi::sync::{AtomicUsize, Ordering};
use partywall_shm::descriptors::{self, Incoming, Outgoing};
use partywall_shm::parcel::owned::Reader;
use partywall_shm::parcel::{Draft, Sealed, copies};
use partywall_shm::slot::{self, SlotBuf};
use partywall_shm::socket::Passed;
use tonic::Status;

use super::account::Account;
use super::attached::{Attached, Attaching, Said, Unread};
use super::broken::Broken;
use super::counters::SentParcels;
use super::known::{Came, Lost, Placed, Sent};
pub(crate) use super::pool::Filled;
use super::pool::{self, Pool, Read};
use crate::attach;
use crate::lock::lock;

/// Data of so many bytes that lie in a sealed parcel travel there.
const LONG: usize = 256 * 1024;

/// Messages of so many bytes are put into sealed parcels; 0 until that is known.
static PACK_FROM: AtomicUsize = AtomicUsize::new(0);

/// Sets from how many bytes on that is.
pub(crate) fn pack_from(bytes: usize) {
    PACK_FROM.store(bytes.max(1), Ordering::Relaxed);
}

/// Whether a message of so many bytes is put into a parcel.
#[inline]
pub(crate) fn is_long(bytes: usize) -> bool {
    pool::holds(bytes) || packs(bytes)
}

/// Whether a message of so many bytes is put into a sealed parcel.
#[inline]
fn packs(bytes: usize) -> bool {
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
pub(crate) struct Parcels {
    granted: OnceLock<Grant>,
    outgoing: Mutex<Option<Leaving>>,
    incoming: Mutex<Option<Arriving>>,
    /// This end's owned parcels.
    pub(crate) pool: Arc<Pool>,
    /// The peer's that are to be given back.
    read: Arc<Read>,
    sent: Arc<SentParcels>,
}

/// What is sent.
struct Leaving {
    socket: Outgoing,
    attached: Sent,
}

/// What comes, and the peer's owned parcels by their places, with the packets that brought them.
struct Arriving {
    socket: Incoming,
    attached: Came,
    owned: [Option<(u64, Arc<Reader>)>; limits::OWNED_PARCELS as usize],
}

impl Parcels {
    pub(crate) fn new(account: Arc<Account>, read: Arc<Read>) -> Self {
        Self {
            granted: OnceLock::new(),
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            pool: Pool::new(account),
            read,
            sent: Arc::default(),
        }
    }

    /// From here on this may cross.
    pub(crate) fn grant(&self, socket: Passed, grant: Grant) {
        let (outgoing, incoming) = descriptors::halves(socket);
        *lock(&self.outgoing) = Some(Leaving { socket: outgoing, attached: Sent::default() });
        let (attached, owned) = (Came::default(), Default::default());
        *lock(&self.incoming) = Some(Arriving { socket: incoming, attached, owned });
        self.granted.get_or_init(|| grant);
    }

    #[inline]
    pub(crate) fn are_granted(&self) -> bool {
        !self.granted().is_none()
    }

    /// What may cross.
    pub(crate) fn granted(&self) -> Grant {
        self.granted.get().copied().unwrap_or_default()
    }

    /// What this end counts of what it sends.
    pub(crate) fn sent(&self) -> &Arc<SentParcels> {
        &self.sent
    }

    /// A long message in a parcel of its own kind, as `write` writes it; none where it goes as bytes. A
    /// thread of its own may take its time.
    pub(crate) fn pack(
        &self,
        len: usize,
        own_thread: bool,
        mut write: impl FnMut(&mut SlotBuf<'_>) -> bool,
    ) -> Option<Packed> {
        if let Some(owned) = self.pool.around(len, &mut write) {
            return Some(Packed { bytes: owned.bytes(), owned: Some(owned) });
        }
        if packs(len) {
            return filled(len, own_thread, write).map(|bytes| Packed { bytes, owned: None });
        }
        let owned = self.pool.fill(len, own_thread, write)?;
        Some(Packed { bytes: owned.bytes(), owned: Some(owned) })
    }

    /// The peer's owned parcels that are to be given back.
    #[cfg(feature = "blocking")]
    pub(crate) fn read(&self) -> impl Iterator<Item = u32> + use<> {
        self.read.take()
    }

    /// Sends the descriptor of a parcel in which so many bytes lie, if the peer has not got it: what stands
    /// for them; none where that does not go now. `lend` lends a place of an owned one.
    pub(crate) fn send(
        &self,
        parcel: &InParcel,
        bytes: usize,
        lend: impl FnOnce(u32) -> u32,
    ) -> Option<ParcelRef> {
        let mut outgoing = lock(&self.outgoing);
        let Leaving { socket, .. } = outgoing.as_mut()?;
        let bytes = bytes as u64;
        let sent = match parcel {
            InParcel::Sealed { sealed, offset } => socket
                .send(&[sealed.as_fd()])
                .map(|packet| ParcelRef { packet, offset: *offset, bytes, owned: None }),
            InParcel::Owned(filled) => {
                filled.packet(|memory| socket.send(&[memory])).map(|packet| {
                    let place = filled.place();
                    let owned = Some(Owned { place, generation: lend(place) });
                    ParcelRef { packet, offset: filled.offset(), bytes, owned }
                })
            }
        };
        sent.inspect_err(|why| tracing::debug!(%why, "a message goes without its parcel")).ok()
    }

    /// Whether this may be attached to a head, now or when descriptors are granted; `agreed` says whether the
    /// call protocol lets anything be.
    pub(crate) fn may_attach(&self, agreed: bool, attaching: &Attaching) -> Result<(), Status> {
        if !agreed {
            return Err(attach::cannot_here());
        }
        match self.granted() {
            // It waits for that.
            grant if grant.is_none() => Ok(()),
            grant => attaching.fits(grant),
        }
    }

    /// What stands for what is attached to a head, whose descriptors are sent where the peer has not got all.
    /// This side's ring is locked until the frame is on it. This end has so many places.
    pub(crate) fn send_attached(
        &self,
        attaching: &Attaching,
        places: usize,
    ) -> Result<Said, Status> {
        let mut outgoing = lock(&self.outgoing);
        let Some(Leaving { socket, attached }) = outgoing.as_mut() else {
            return Err(attach::cannot_here());
        };
        let sent = attaching.send(attached, places, |descriptors| socket.send(descriptors))?;
        attaching.parcels().for_each(|bytes| self.sent.count(bytes));
        Ok(sent)
    }

    /// The frame with that is on the ring. What it returns is to be dropped where nothing is locked.
    #[must_use]
    pub(crate) fn attached_sent(&self, placed: Placed) -> Lost {
        match &mut *lock(&self.outgoing) {
            Some(leaving) => leaving.attached.committed(placed),
            None => Lost::default(),
        }
    }

    /// What is attached to the head in the payload of a frame; none where no descriptor may come, which is a
    /// broken rule of the call protocol. The peer has so many places.
    pub(crate) fn receive_attached(
        &self,
        flags: u8,
        payload: &[u8],
        places: usize,
        unread: impl FnOnce() -> Unread,
    ) -> Result<Option<Attached>, Broken> {
        let mut incoming = lock(&self.incoming);
        let Some(Arriving { socket, attached: came, .. }) = incoming.as_mut() else {
            return Ok(None);
        };
        let attached = frame::Attached::of(flags, payload).map_err(partywall_call::Error::from)?;
        let items: Vec<_> = attached.items().collect();
        let granted = self.granted();
        let known = flags & KNOWN != 0;
        let descriptors = if known { Vec::new() } else { socket.receive(attached.packet)? };
        if !known && items.len() != descriptors.len() {
            return Err(Broken::NotAttached { said: items.len(), came: descriptors.len() });
        }
        let place = items.iter().filter_map(|item| item.place()).max();
        if place.is_some_and(|place| place.number() >= places) {
            return Err(Broken::NoPlace);
        }
        let leases = items.iter().filter(|item| matches!(item, Item::Lease { .. })).count();
        if items.len() > granted.descriptors as usize || (leases > 0 && !granted.leases) {
            return Err(Broken::NotGranted { descriptors: items.len(), leases });
        }
        let descriptors = descriptors.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let attached = Attached::new(items.into_iter().zip(descriptors), came, unread);
        attached.map(Some).ok_or(Broken::NotKnown)
    }

    /// The data for which a frame of this payload stands; none where no descriptor may come, which is a
    /// broken rule of the call protocol.
    pub(crate) fn receive(&self, payload: &[u8]) -> Result<Option<Piece>, Broken> {
        let mut incoming = lock(&self.incoming);
        let Some(Arriving { socket, owned: places, .. }) = incoming.as_mut() else {
            return Ok(None);
        };
        let parcel = ParcelRef::of(payload).map_err(partywall_call::Error::from)?;
        let ParcelRef { packet, offset, bytes, owned } = parcel;
        let mut arrived = || {
            let mut descriptors = socket.receive(packet)?;
            let descriptor = descriptors.pop().filter(|_| descriptors.is_empty());
            descriptor.ok_or(Broken::NoParcel)
        };
        let Some(Owned { place, .. }) = owned else {
            return Ok(Some(Sealed::accept(arrived()?, offset, bytes)?.into_bytes().into()));
        };
        let known = &mut places[place as usize];
        let reader = match known {
            Some((known, reader)) if *known == packet => Arc::clone(reader),
            _ => {
                let reader = Arc::new(Reader::accept(arrived()?)?);
                *known = Some((packet, Arc::clone(&reader)));
                reader
            }
        };
        reader.has(offset, bytes)?;
        let held = Arc::new(Held { reader, place, read: Arc::clone(&self.read) });
        let lent = Lent { held, offset, len: bytes as usize };
        Ok(Some(Piece::Lent(Box::new(lent))))
    }
}

/// Where bytes lie in a parcel.
pub(crate) enum InParcel {
    Sealed { sealed: Sealed, offset: u64 },
    Owned(Filled),
}

impl InParcel {
    /// Where these lie, if they are long and lie in a sealed one.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < LONG {
            return None;
        }
        let (sealed, offset) = Sealed::of(bytes)?;
        Some(Self::Sealed { sealed, offset })
    }
}

/// A message that was put into a parcel, and the owned one if it is such.
pub(crate) struct Packed {
    pub(crate) bytes: Bytes,
    pub(crate) owned: Option<Filled>,
}

/// What copies these, for [`Parcels::pack`].
pub(crate) fn copied(bytes: &[u8]) -> impl Fn(&mut SlotBuf<'_>) -> bool {
    |out| {
        out.put_slice(bytes);
        true
    }
}

/// So many bytes in a sealed parcel, as `write` writes them; none where it writes others, or memory has
/// run out.
fn filled(
    len: usize,
    own_thread: bool,
    write: impl FnOnce(&mut SlotBuf<'_>) -> bool,
) -> Option<Bytes> {
    let draft = if own_thread { Draft::soon(len) } else { Draft::at_once(len) };
    let mut draft = match draft {
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

/// Data that have come.
#[derive(Debug)]
pub(crate) enum Piece {
    /// In this process's own memory, or in memory that never changes.
    Here(Bytes),
    /// In an owned parcel, to be copied.
    Lent(Box<Lent>),
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Lent(lent) => lent.len(),
        }
    }

    pub(crate) fn is_lent(&self) -> bool {
        matches!(self, Self::Lent(_))
    }

    /// Its bytes, which are copied if they lie in an owned parcel.
    #[inline]
    pub(crate) fn here(self) -> Bytes {
        match self {
            Self::Here(bytes) => bytes,
            Self::Lent(lent) => lent.copy(),
        }
    }
}

impl Default for Piece {
    fn default() -> Self {
        Self::Here(Bytes::new())
    }
}

impl From<Bytes> for Piece {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Self::Here(bytes)
    }
}

impl From<Box<Lent>> for Piece {
    fn from(lent: Box<Lent>) -> Self {
        Self::Lent(lent)
    }
}

/// Data in an owned parcel of the peer's, which goes back when all parts of them are dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    held: Arc<Held>,
    offset: u64,
    len: usize,
}

/// An owned parcel of the peer's that is not given back.
#[derive(Debug)]
struct Held {
    reader: Arc<Reader>,
    place: u32,
    read: Arc<Read>,
}

impl Lent {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first bytes, as they are now.
    #[cfg(feature = "blocking")]
    pub(crate) fn begin(&self, most: usize) -> Vec<u8> {
        let mut begin = Vec::with_capacity(most);
        self.held.reader.copy(self.offset, most.min(self.len), &mut begin);
        begin
    }

    /// Copies all of it.
    pub(crate) fn copy(&self) -> Bytes {
        copies::copied(self.offset, self.len, |out| {
            self.held.reader.copy(self.offset, self.len, out);
        })
    }

    /// The first bytes, and what comes after so many.
    pub(crate) fn split(mut self: Box<Self>, at: usize) -> (Box<Self>, Option<Box<Self>>) {
        let rest = self.len.checked_sub(at).filter(|rest| *rest > 0).map(|len| {
            let offset = self.offset + at as u64;
            Box::new(Self { held: Arc::clone(&self.held), offset, len })
        });
        self.len = self.len.min(at);
        (self, rest)
    }
}

#[cfg(test)]
impl Lent {
    /// These bytes, as they come in an owned parcel.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut memory = partywall_shm::parcel::owned::Memory::new(bytes.len()).unwrap();
        memory.copy_from_slice(bytes);
        let (a, b) = partywall_shm::socket::descriptor_pair().unwrap();
        let ((mut out, _), (_, mut incoming)) = (descriptors::halves(a), descriptors::halves(b));
        out.send(&[memory.as_fd()]).unwrap();
        let descriptor = incoming.receive(0).unwrap().pop().unwrap();
        let reader = Arc::new(Reader::accept(descriptor).unwrap());
        let held = Arc::new(Held { reader, place: 0, read: Arc::default() });
        Self { held, offset: 0, len: bytes.len() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.read.add(self.place);
    }
}
