//! Owned parcels of one end of a link: memory that long messages are encoded into, and that is used again.
//!
//! ```text
//! place      empty --a second long message: memory is made on a thread--> home
//!            home --take--> out --the last reference to what was filled--> home
//!            with a frame that names it it is lent, until the peer gives it back
//! filled     by a message that is encoded there                       [`Pool::fill`]
//!            by a field that a program writes there                   [`Pool::blank`]
//!            and a message around that, where it is sent on this link [`Pool::around`]
//! ```
//!
//! What is home and not lent can be taken. What is home and too short makes way for longer memory. Where
//! nothing can be taken a message goes another way: nobody waits.
//!
//! The memory counts against the caller's account ([`super::account`]), in a service and in a caller. It
//! stays until the link ends: its peer has mapped it, and no page is allocated or cleared again.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use partywall_abi::limits;
use partywall_abi::sync::{AtomicBool, AtomicU32, Ordering};
use partywall_shm::parcel::ParcelError;
use partywall_shm::parcel::field::{Claim, Field};
use partywall_shm::parcel::owned::Memory;
use partywall_shm::slot::{self, SlotBuf};
use partywall_shm::threads;

use super::account::Account;
use crate::lock::lock;

/// Messages of fewer bytes are in a ring in no more time.
const FROM: usize = 128 * 1024;
/// Longer ones go in pieces: no link is to keep so much.
const MOST: usize = limits::OWNED_PARCEL_BYTES;
/// Memory is made in multiples of so many bytes.
const STEP: usize = 64 * 1024;

/// Whether messages of so many bytes are put into owned parcels.
#[inline]
pub(crate) fn holds(bytes: usize) -> bool {
    (FROM..=MOST).contains(&bytes)
}

/// What memory a field of so many bytes takes, if it is one for an owned parcel.
fn takes(len: usize) -> Option<usize> {
    let takes = Field::takes(len);
    (holds(len) && holds(takes)).then_some(takes)
}

/// Memory at a place, and the packet by which the peer knows it.
struct Own {
    memory: Memory,
    packet: Mutex<Packet>,
}

/// What the peer knows of memory.
#[derive(Default)]
struct Packet {
    /// The packet that has its descriptor.
    number: Option<u64>,
    /// A frame has named it.
    named: bool,
}

#[derive(Default)]
enum Kept {
    #[default]
    Empty,
    /// Being made, or with whoever fills it.
    Out,
    Home(Box<Own>),
}

#[derive(Default)]
struct Place {
    memory: Kept,
    lent: bool,
    /// What is out as a field that a program has written.
    field: Weak<Taken>,
}

#[derive(Default)]
struct State {
    places: [Place; limits::OWNED_PARCELS as usize],
    /// A message has wanted memory that was not there.
    wanted: bool,
    /// Memory is being made.
    making: bool,
}

/// The owned parcels of one end.
pub(crate) struct Pool {
    state: Mutex<State>,
    account: Arc<Account>,
}

impl Pool {
    pub(crate) fn new(account: Arc<Account>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), account })
    }

    /// A message of so many bytes in an owned parcel, as `write` writes it; none where there is no memory for
    /// it now, or it has another length. `own_thread` says that this one may take its time to make some.
    pub(crate) fn fill(
        self: &Arc<Self>,
        len: usize,
        own_thread: bool,
        write: impl FnOnce(&mut SlotBuf<'_>) -> bool,
    ) -> Option<Filled> {
        let taken = self.take_or_want(len, own_thread);
        // It takes the memory home, also when what writes panics.
        let mut taken = self.taken(taken?, |memory| Field::message_of(memory, len));
        let mut written = false;
        let mut out = taken.field.as_mut().expect("until the drop").bytes_mut();
        let fits = slot::append(&mut out, len, |out| written = write(out)).is_ok();
        (fits && written).then(|| Filled::new(Arc::new(taken), None))
    }

    /// Memory for a long field of so many bytes of a message that is sent on this link later, if it is there.
    pub(crate) fn blank(self: &Arc<Self>, len: usize) -> Option<Blank> {
        let taken = self.take(takes(len)?)?;
        Some(Blank(self.taken(taken, |memory| Field::new(memory, len))))
    }

    /// The same, made where it is not there. Takes its time.
    #[cfg(any(test, feature = "blocking"))]
    pub(crate) fn make_blank(self: &Arc<Self>, len: usize) -> Option<Blank> {
        self.blank(len).or_else(|| {
            self.making_blank(len)?();
            self.blank(len)
        })
    }

    /// What makes that, on a thread that may take its time; none where a place or bytes are lacking.
    pub(crate) fn making_blank(self: &Arc<Self>, len: usize) -> Option<impl FnOnce() + use<>> {
        let takes = takes(len)?;
        lock(&self.state).wanted = true;
        self.making(takes)
    }

    /// A message of so many bytes, as `write` writes it, around a field of it that lies in memory of this
    /// pool; none where it has no such field, or the peer has one with it.
    pub(crate) fn around(
        &self,
        len: usize,
        mut write: impl FnMut(&mut SlotBuf<'_>) -> bool,
    ) -> Option<Filled> {
        // None of them is dropped with the lock.
        let fields = lock(&self.state).places.each_ref().map(|place| place.field.upgrade());
        fields.into_iter().flatten().find_map(|taken| {
            let mut filled = Message { claim: Some(taken.field().claim()?), taken };
            let Message { claim: Some(claim), taken } = &mut filled else { return None };
            let at = taken.place as usize;
            let written = |out: &mut SlotBuf<'_>| _ = write(out);
            // Whoever had it lent has given the claim back after that.
            let encoded =
                !lock(&self.state).places[at].lent && taken.field().encode(claim, len, written);
            encoded.then(|| Filled(Arc::new(filled)))
        })
    }

    fn taken(
        self: &Arc<Self>,
        (place, own): (u32, Box<Own>),
        field: impl FnOnce(Memory) -> Field,
    ) -> Taken {
        let Own { memory, packet } = *own;
        Taken { pool: Arc::clone(self), place, field: Some(field(memory)), packet }
    }

    /// Memory that is there, or is made if this thread may take its time.
    fn take_or_want(self: &Arc<Self>, len: usize, own_thread: bool) -> Option<(u32, Box<Own>)> {
        self.take(len).or_else(|| {
            self.want(len, own_thread);
            // Else it may be home by now, and waits for the next message.
            if own_thread { self.take(len) } else { None }
        })
    }

    /// The shortest memory that is home, not lent, and long enough.
    fn take(&self, len: usize) -> Option<(u32, Box<Own>)> {
        let mut state = lock(&self.state);
        let bytes = |place: &Place| match &place.memory {
            Kept::Home(own) if !place.lent => Some(own.memory.len()).filter(|bytes| *bytes >= len),
            _ => None,
        };
        let fitting =
            state.places.iter().enumerate().filter_map(|(at, place)| Some((bytes(place)?, at)));
        let (_, at) = fitting.min()?;
        match std::mem::replace(&mut state.places[at].memory, Kept::Out) {
            Kept::Home(own) => Some((at as u32, own)),
            _ => unreachable!("it was home"),
        }
    }

    /// Has memory made for messages of so many bytes, unless this is the first one.
    #[cold]
    fn want(self: &Arc<Self>, len: usize, own_thread: bool) {
        match self.making(len) {
            Some(make) if own_thread => make(),
            // Where there is no thread the place stays empty.
            Some(make) => {
                let thread = std::thread::Builder::new().name(MAKER.into());
                let _none = threads::spawn(thread, make);
            }
            None => {}
        }
    }

    /// What makes memory for messages of so many bytes, at a place that is kept for it until then.
    fn making(self: &Arc<Self>, len: usize) -> Option<impl FnOnce() + use<>> {
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.wanted, true) || state.making {
            return None;
        }
        let can_go = |place: &Place| match &place.memory {
            Kept::Empty => !place.lent,
            Kept::Home(own) => !place.lent && own.memory.len() < len,
            Kept::Out => false,
        };
        let empty = state
            .places
            .iter()
            .position(|place| can_go(place) && matches!(place.memory, Kept::Empty));
        let at = empty.or_else(|| state.places.iter().position(can_go))?;
        // Some more, as the next one may be a little longer.
        let bytes = (len + len / 4).next_multiple_of(STEP).min(MOST);
        let before = match std::mem::replace(&mut state.places[at].memory, Kept::Out) {
            Kept::Home(own) => Some(own),
            _ => None,
        };
        let had = before.as_ref().map_or(0, |own| own.memory.len());
        if !self.account.change_owned(had, bytes) {
            state.places[at].memory = before.map_or(Kept::Empty, Kept::Home);
            return None;
        }
        state.making = true;
        drop(state);
        let making = Making { pool: Arc::clone(self), at, bytes, made: None };
        let make = move || {
            drop(before);
            making.make();
        };
        Some(make)
    }

    /// The peer has given a place back.
    pub(crate) fn released(&self, place: u32) {
        lock(&self.state).places[place as usize].lent = false;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for place in &state.places {
            if let Kept::Home(own) = &place.memory {
                self.account.change_owned(own.memory.len(), 0);
            }
        }
    }
}

/// A thread that makes memory: a runtime may have no thread left for that, or wait for one for ever.
pub(super) const MAKER: &str = "partywall-pages";

/// Whether this process has said that it may not make more memory.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Memory that is being made for a place. The drop says that it is there, or that there is none.
struct Making {
    pool: Arc<Pool>,
    at: usize,
    bytes: usize,
    made: Option<Memory>,
}

impl Making {
    fn make(mut self) {
        match Memory::soon(self.bytes) {
            Ok(memory) => self.made = Some(memory),
            // Calls go on, and only take longer: an operator is told once.
            Err(why @ ParcelError::Quota(_)) if !TOLD.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%why, "long messages go as bytes");
            }
            Err(why) => tracing::debug!(%why, bytes = self.bytes, "no memory for an owned parcel"),
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let place = match self.made.take() {
            Some(memory) => Kept::Home(Box::new(Own { memory, packet: Mutex::default() })),
            None => {
                self.pool.account.change_owned(self.bytes, 0);
                Kept::Empty
            }
        };
        let mut state = lock(&self.pool.state);
        state.making = false;
        state.places[self.at].memory = place;
    }
}

/// Memory that is out of its place, until the drop takes it home.
struct Taken {
    pool: Arc<Pool>,
    place: u32,
    /// Until the drop.
    field: Option<Field>,
    packet: Mutex<Packet>,
}

impl Taken {
    fn field(&self) -> &Field {
        self.field.as_ref().expect("until the drop")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(field) = self.field.take() {
            let packet = std::mem::take(&mut self.packet);
            let own = Box::new(Own { memory: field.into_memory(), packet });
            let place = &mut lock(&self.pool.state).places[self.place as usize];
            (place.memory, place.field) = (Kept::Home(own), Weak::new());
        }
    }
}

/// A field of a message to be, which is written where it will be sent from.
pub(crate) struct Blank(Taken);

impl Blank {
    /// The field, which nobody writes any more.
    pub(crate) fn freeze(self) -> Bytes {
        let (pool, place) = (Arc::clone(&self.0.pool), self.0.place);
        let taken = Arc::new(self.0);
        lock(&pool.state).places[place as usize].field = Arc::downgrade(&taken);
        Bytes::from_owner(Frozen(taken))
    }
}

impl Deref for Blank {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.field().bytes()
    }
}

impl DerefMut for Blank {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.field.as_mut().expect("until the drop").bytes_mut()
    }
}

struct Frozen(Arc<Taken>);

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.0.field().bytes()
    }
}

struct Message {
    taken: Arc<Taken>,
    /// To the room around a field, of a message that is not alone in its memory.
    claim: Option<Claim>,
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.taken.field().release(claim);
        }
    }
}

/// A message in an owned parcel of this end. Clones share it.
#[derive(Clone)]
pub(crate) struct Filled(Arc<Message>);

impl Filled {
    fn new(taken: Arc<Taken>, claim: Option<Claim>) -> Self {
        Self(Arc::new(Message { taken, claim }))
    }

    pub(crate) fn place(&self) -> u32 {
        self.0.taken.place
    }

    /// Where it begins in the memory.
    pub(crate) fn offset(&self) -> u64 {
        self.message().0 as u64
    }

    fn message(&self) -> (usize, &[u8]) {
        let field = self.0.taken.field();
        match &self.0.claim {
            Some(claim) => field.message(claim),
            None => (field.at(), field.bytes()),
        }
    }

    /// The packet by which the peer knows the memory; `send` sends its descriptor, once.
    pub(crate) fn packet<E>(
        &self,
        send: impl FnOnce(BorrowedFd<'_>) -> Result<u64, E>,
    ) -> Result<u64, E> {
        let taken = &self.0.taken;
        let mut packet = lock(&taken.packet);
        if let Some(number) = packet.number {
            return Ok(number);
        }
        let number = send(taken.field().as_fd())?;
        packet.number = Some(number);
        Ok(number)
    }

    /// The frame that was to name the packet is not written: if it was the first, the packet is passed over.
    pub(crate) fn not_lent(&self) {
        let mut packet = lock(&self.0.taken.packet);
        packet.number = packet.number.filter(|_| packet.named);
    }

    /// It is going to be lent, by a frame that is written next.
    pub(crate) fn lend(&self) {
        let taken = &self.0.taken;
        lock(&taken.packet).named = true;
        lock(&taken.pool.state).places[taken.place as usize].lent = true;
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        self.message().1
    }
}

/// Owned parcels of the peer's of which nothing is read any more, and which are not given back yet.
#[derive(Debug, Default)]
pub(crate) struct Read(AtomicU32);

impl Read {
    pub(super) fn add(&self, place: u32) {
        self.0.fetch_or(1 << place, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Takes all of them.
    pub(crate) fn take(&self) -> impl Iterator<Item = u32> + use<> {
        let places = self.0.swap(0, Ordering::Acquire);
        (0..limits::OWNED_PARCELS).filter(move |place| places & (1 << place) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::account::{Accounts, Bounds};
    use crate::link::parcels::copied;
    use bytes::BufMut;

    const LONG: usize = 200 * 1024;

    fn pool() -> Arc<Pool> {
        Pool::new(Account::own())
    }

    fn fill(pool: &Arc<Pool>, len: usize, with: u8) -> Option<Filled> {
        pool.fill(len, true, copied(&vec![with; len]))
    }

    fn has_all(account: &Account) -> bool {
        let all = 256 << 20;
        account.change_owned(0, all) && account.change_owned(all, 0)
    }

    #[test]
    fn memory_is_made_for_the_second_message_and_used_again() {
        let pool = pool();
        assert!(fill(&pool, LONG, 1).is_none(), "one message alone");
        let packets = (0..50_u8).map(|round| {
            let filled = fill(&pool, LONG - usize::from(round), round).unwrap();
            assert!(filled.bytes().iter().all(|byte| *byte == round));
            assert_eq!(filled.bytes().len(), LONG - usize::from(round));
            filled.packet(|_memory| Ok::<_, ()>(round.into())).unwrap()
        });
        assert!(packets.eq([0; 50]), "its descriptor is sent once");
        let filled = fill(&pool, LONG, 1).unwrap();
        filled.not_lent();
        assert_eq!(filled.packet(|_memory| Ok::<_, ()>(7)), Ok(7), "no frame has named it");
        filled.lend();
        filled.not_lent();
        assert_eq!(filled.packet(|_memory| Err(())), Ok(7), "the peer has it");
    }

    #[test]
    fn what_is_lent_or_held_is_not_taken() {
        let pool = pool();
        assert!(fill(&pool, LONG, 0).is_none());
        let mut held: Vec<_> = (0..4).map(|n| fill(&pool, LONG, n).unwrap()).collect();
        assert!(fill(&pool, LONG, 4).is_none(), "there are four places");
        let lent = held.pop().unwrap();
        let (place, bytes) = (lent.place(), lent.bytes());
        lent.lend();
        drop(lent);
        assert!(fill(&pool, LONG, 5).is_none(), "the peer has it");
        pool.released(place);
        assert!(fill(&pool, LONG, 6).is_none(), "its bytes are still held here");
        assert!(bytes.iter().all(|byte| *byte == 3));
        drop(bytes);
        let again = fill(&pool, LONG, 7).unwrap();
        assert_eq!(again.place(), place);
        drop((again, held));
        assert!(fill(&pool, 2 * LONG, 8).is_some(), "longer memory takes the place of some");
    }

    #[test]
    fn what_has_another_length_than_it_said_is_not_filled() {
        let pool = pool();
        assert!(fill(&pool, LONG, 0).is_none());
        for wrong in [LONG - 1, LONG + 1] {
            assert!(pool.fill(LONG, true, copied(&vec![0; wrong])).is_none());
        }
        assert!(pool.fill(LONG, true, |_| false).is_none());
        let panics = || pool.fill(LONG, true, |_| panic!("it cannot be encoded"));
        for _ in 0..5 {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
            assert!(caught.is_err());
        }
        assert!(fill(&pool, LONG, 1).is_some(), "the memory is back");
    }

    /// A message with this field.
    fn message(field: &Bytes) -> impl Fn(&mut SlotBuf<'_>) -> bool {
        |out| {
            out.put_u8(7);
            out.put(field.clone());
            out.is_filled()
        }
    }

    #[test]
    fn one_message_at_a_time_is_around_a_field() {
        let pool = pool();
        assert!(pool.blank(LONG).is_none(), "nothing is made yet");
        let mut blank = pool.make_blank(LONG).unwrap();
        blank.fill(1);
        let field = blank.freeze();
        let around = || pool.around(LONG + 1, message(&field));
        let first = around().unwrap();
        assert_eq!(first.bytes()[..2], [7, 1]);
        assert_eq!(first.bytes()[1..].as_ptr(), field.as_ptr(), "it is not copied");
        assert_eq!(first.offset(), 4095);
        assert!(around().is_none(), "the first one is under way");
        first.lend();
        let place = first.place();
        drop(first);
        assert!(around().is_none(), "the peer has it");
        pool.released(place);
        assert_eq!(around().unwrap().place(), place);
        assert!(pool.around(LONG + 1, message(&Bytes::from(vec![1; LONG]))).is_none());
        let other = self::pool();
        assert!(other.around(LONG + 1, message(&field)).is_none(), "it is another pool's");
        drop(field);
        assert_eq!(pool.blank(LONG).unwrap()[0], 1, "the memory is back");
        assert!(pool.make_blank(FROM - 1).is_none() && pool.make_blank(MOST).is_none());
    }

    #[test]
    fn memory_counts_against_the_account_until_the_link_ends() {
        let account = Account::own();
        let pool = Pool::new(Arc::clone(&account));
        assert!(fill(&pool, LONG, 0).is_none());
        assert!(has_all(&account), "nothing is made yet");
        let filled = fill(&pool, 100 << 20, 1).unwrap();
        assert!(!has_all(&account));
        let second = fill(&pool, 100 << 20, 1).unwrap();
        assert!(fill(&pool, 100 << 20, 2).is_none(), "over the account's bytes");
        assert!(fill(&pool, LONG, 2).is_some(), "a short one has room");
        drop((second, pool));
        assert!(!has_all(&account), "a message that goes on keeps it");
        drop(filled);
        assert!(has_all(&account));
    }

    #[test]
    fn memory_is_made_as_far_as_the_server_lets_it() {
        for (owned, made) in [(0, 0), (2 << 20, 4), (700 << 10, 2)] {
            let accounts = Accounts::new(Bounds { owned, ..Bounds::default() });
            let pool = Pool::new(accounts.open(1, Some(1)));
            let all: Vec<_> = (0..5).map_while(|_| pool.make_blank(LONG)).collect();
            assert_eq!(all.len(), made, "{owned} bytes");
        }
    }

    #[test]
    fn memory_is_made_where_a_runtime_has_no_thread_for_it() {
        let made = || {
            let (pool, begin) = (pool(), std::time::Instant::now());
            while pool.fill(LONG, false, copied(&[0; LONG])).is_none() {
                assert!(begin.elapsed().as_secs() < 10, "no memory is made");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        made();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        let (over, wait) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || wait.recv());
        runtime.block_on(async { made() });
        drop(over);
    }

    #[tokio::test]
    async fn no_poll_waits_for_memory() {
        let pool = pool();
        let fill = |pool: &Arc<Pool>| pool.fill(LONG, false, copied(&[0; LONG]));
        assert!(fill(&pool).is_none() && fill(&pool).is_none(), "it is being made");
        let made = async {
            while fill(&pool).is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), made).await.unwrap();
    }
}
