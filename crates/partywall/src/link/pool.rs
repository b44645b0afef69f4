//! Owned parcels of one end of a link: memory that long messages are encoded into, and that is used again.
//!
//! ```text
//! place      empty --a second long message: memory is made on a thread--> home
//!            home --take--> out --the last reference to what was filled--> home
//!            with a frame that names it it is lent, until the peer gives it back
//! ```
//!
//! What is home and not lent can be taken. What is home and too short makes way for longer memory. Where
//! nothing can be taken a message goes another way: nobody waits.
//!
//! The memory counts against the caller's account ([`super::account`]), in a service and in a caller. It
//! stays until the link ends: its peer has mapped it, and no page is allocated or cleared again.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use partywall_abi::limits;
use partywall_abi::sync::{AtomicU32, Ordering};
use partywall_shm::parcel::owned::Memory;
use partywall_shm::slot::{self, SlotBuf};

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
        let taken = self.take(len).or_else(|| {
            self.want(len, own_thread);
            // Else it may be home by now, and waits for the next message.
            if own_thread { self.take(len) } else { None }
        });
        let (place, own) = taken?;
        // It takes the memory home, also when what writes panics.
        let mut inner = Inner { pool: Arc::clone(self), place, own: Some(own), len };
        let mut written = false;
        let mut out = &mut inner.own.as_mut().expect("until the drop").memory[..];
        let fits = slot::append(&mut out, len, |out| written = write(out)).is_ok();
        (fits && written).then(|| Filled(Arc::new(inner)))
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
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.wanted, true) || state.making {
            return;
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
        let Some(at) = empty.or_else(|| state.places.iter().position(can_go)) else { return };
        // Some more, as the next one may be a little longer.
        let bytes = (len + len / 4).next_multiple_of(STEP).min(MOST);
        let before = match std::mem::replace(&mut state.places[at].memory, Kept::Out) {
            Kept::Home(own) => Some(own),
            _ => None,
        };
        let had = before.as_ref().map_or(0, |own| own.memory.len());
        if !self.account.change_owned(had, bytes) {
            state.places[at].memory = before.map_or(Kept::Empty, Kept::Home);
            return;
        }
        state.making = true;
        drop(state);
        let making = Making { pool: Arc::clone(self), at, bytes, made: None };
        let make = move || {
            drop(before);
            making.make();
        };
        if own_thread {
            make();
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(make);
        }
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

/// Memory that is being made for a place. The drop says that it is there, or that there is none.
struct Making {
    pool: Arc<Pool>,
    at: usize,
    bytes: usize,
    made: Option<Memory>,
}

impl Making {
    fn make(mut self) {
        match Memory::new(self.bytes) {
            Ok(memory) => self.made = Some(memory),
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

struct Inner {
    pool: Arc<Pool>,
    place: u32,
    /// Until the drop.
    own: Option<Box<Own>>,
    len: usize,
}

/// A message in an owned parcel of this end. Clones share it.
#[derive(Clone)]
pub(crate) struct Filled(Arc<Inner>);

impl Filled {
    pub(crate) fn place(&self) -> u32 {
        self.0.place
    }

    fn own(&self) -> &Own {
        self.0.own.as_deref().expect("until the drop")
    }

    /// The packet by which the peer knows the memory; `send` sends its descriptor, once.
    pub(crate) fn packet<E>(
        &self,
        send: impl FnOnce(BorrowedFd<'_>) -> Result<u64, E>,
    ) -> Result<u64, E> {
        let own = self.own();
        let mut packet = lock(&own.packet);
        if let Some(number) = packet.number {
            return Ok(number);
        }
        let number = send(own.memory.as_fd())?;
        packet.number = Some(number);
        Ok(number)
    }

    /// The frame that was to name the packet is not written: if it was the first, the packet is passed over.
    pub(crate) fn not_lent(&self) {
        let mut packet = lock(&self.own().packet);
        packet.number = packet.number.filter(|_| packet.named);
    }

    /// It is going to be lent, by a frame that is written next.
    pub(crate) fn lend(&self) {
        lock(&self.own().packet).named = true;
        lock(&self.0.pool.state).places[self.0.place as usize].lent = true;
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }
}

impl Deref for Filled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.own().memory[..self.0.len]
    }
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            lock(&self.pool.state).places[self.place as usize].memory = Kept::Home(own);
        }
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
    use crate::link::parcels::copied;

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
            assert!(filled.iter().all(|byte| *byte == round));
            assert_eq!(filled.len(), LONG - usize::from(round));
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
    fn memory_that_nobody_makes_is_not_waited_for() {
        let account = Account::own();
        let pool = Pool::new(Arc::clone(&account));
        let fill = |own_thread| pool.fill(LONG, own_thread, copied(&[0; LONG])).is_some();
        assert!(!fill(false) && !fill(false), "there is no runtime");
        assert!(has_all(&account) && fill(true));
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
