//! One-way rings of records between two processes that do not trust each other.
//!
//! A ring lives in its producer's outbox (layout: [`partywall_abi::layout`]). A link is two of
//! them. Positions count records from zero and never wrap (64 bits).
//!
//! # Protocol
//!
//! ```text
//! producer                                   consumer
//! room?  tail - peer.taken < size            stamp(head) there?  -- no --> sleep
//!   no --> sleep                               yes: copy descriptor, check the copy
//! write payload, descriptor                  copy payload
//! stamp = f(tail)          Release  ----->   stamp                Acquire   SYNC(ring.publish)
//! tail += 1                                  head += 1
//! peer.taken               Acquire  <-----   taken = head         Release   SYNC(ring.take)
//! ```
//!
//! The consumer finds a record by the stamp in its slot, so a record of up to 48 bytes is one
//! cache line on its way. Stamps lie at fixed places that payload never covers, so payload cannot
//! forge one.
//!
//! # Sleeping and waking
//!
//! Each side announces its sleep in its own outbox, in `consumer_sleep` (it waits for records) or
//! `producer_sleep` (it waits for room); the other side looks after each step that could end the
//! wait. This is Dekker's handshake, with a sequentially consistent fence on both sides:
//!
//! ```text
//! sleeper                                    waker
//! b = peer.bell                              stamp = ... (or taken = ...)
//! own.sleep = (mode, episode)                fence(SeqCst)                 SYNC(ring.sleep)
//! fence(SeqCst)            SYNC(ring.sleep)  w = peer.sleep
//! look again; something? -> awake            w asleep and not rung for: bell += 1, wake
//! sleep on peer.bell == b, or in epoll       (futex), or one byte on the socket (doorbell)
//! ```
//!
//! Either the sleeper's second look sees the step, or the waker sees the announcement. One
//! announcement (the word has an episode number) is rung for once.
//!
//! # What the peer can do
//!
//! It can write anything into its own outbox, at any time. Stamps that never come look like an
//! idle peer. A descriptor is copied, then checked; a payload is copied, then given to the caller,
//! who checks it. `taken` must not run backwards nor past what was produced. Each broken rule is
//! a [`Violation`], which ends the link; nothing else follows from it.
//!
//! # Death
//!
//! A producer that dies before the stamp has sent nothing; after it, the record is whole. A
//! consumer that dies leaves `taken` where it was, so the producer runs out of room, sleeps, and
//! is told of the death by the link's socket. Neither ever waits for a lock of the other.
//!
//! # Cost of one record of up to 48 bytes
//!
//! Producer: one copy, one Release store, one fence, one load of the peer's sleep word, which
//! stays in the cache while the peer is awake. Consumer: one Acquire load, one copy, two stores
//! to a line that the peer reads only when the ring looks full. No read-modify-write, no
//! allocation, no system call unless the other side sleeps.

use std::sync::Arc;

use bytes::BufMut;
use partywall_abi::layout::{
    self, Descriptor, Geometry, INLINE_BYTES, SLOT_PAYLOAD_AT, SleepMode, SleepWord,
};
use partywall_abi::sync::{Ordering, fence};

use crate::failpoint::failpoint;
use crate::region::{Inbox, Outbox};

/// A rule that the peer broke; the blame is always the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A descriptor with bits that have no meaning.
    #[error("record {position}: a descriptor with unknown bits")]
    Descriptor {
        /// Number of the record.
        position: u64,
    },
    /// A record that is longer than a record may be.
    #[error("record {position}: {found} bytes, the limit is {limit}")]
    Length {
        /// Number of the record.
        position: u64,
        /// What the descriptor said.
        found: u32,
        /// The limit.
        limit: usize,
    },
    /// A consumer's cursor that ran backwards or ahead of its producer.
    #[error("the consumer claims to have taken {claimed}, after {before} and of {produced}")]
    Taken {
        /// What the word says now.
        claimed: u64,
        /// What it said before.
        before: u64,
        /// What has been produced.
        produced: u64,
    },
    /// A sleep word with a mode that does not exist.
    #[error("sleep word {word:#x} names no way to wake")]
    SleepWord {
        /// The word.
        word: u32,
    },
}

/// What the caller has to do for a peer that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a peer that sleeps in epoll is woken by the caller"]
pub enum Wake {
    /// Nothing: it is awake, or has been woken.
    Done,
    /// Send it one byte on the link's socket.
    Doorbell,
}

/// The words by which one side sleeps and wakes the other.
struct Waker {
    own: Arc<Outbox>,
    peer: Arc<Inbox>,
    /// Which of the peer's sleep words this watches.
    peer_word: usize,
    /// Which of the own sleep words this announces in.
    own_word: usize,
    episode: u32,
    asleep: bool,
    rung: SleepWord,
}

impl Waker {
    /// After a step that could end the peer's wait.
    #[inline]
    fn notify(&mut self) -> Result<Wake, Violation> {
        fence(Ordering::SeqCst); // SYNC(ring.sleep), waker's side
        failpoint("notify.fenced");
        let word = SleepWord(self.peer.load_u32(self.peer_word, Ordering::Relaxed));
        if word == SleepWord::AWAKE || word == self.rung {
            return Ok(Wake::Done);
        }
        let Some(mode) = word.mode() else {
            return Err(Violation::SleepWord { word: word.0 });
        };
        self.rung = word;
        match mode {
            SleepMode::Awake => Ok(Wake::Done),
            SleepMode::Doorbell => Ok(Wake::Doorbell),
            SleepMode::Futex => {
                self.own.u32(layout::BELL_AT).fetch_add(1, Ordering::Release);
                failpoint("notify.belled");
                self.own.futex_wake(layout::BELL_AT);
                Ok(Wake::Done)
            }
        }
    }

    /// Announces a sleep; the caller looks again afterwards.
    fn announce(&mut self, mode: SleepMode) {
        // A new episode each time: what was rung for before is not rung for now.
        self.episode = self.episode.wrapping_add(1);
        self.asleep = true;
        let word = SleepWord::asleep(mode, self.episode);
        self.own.u32(self.own_word).store(word.0, Ordering::Relaxed);
        fence(Ordering::SeqCst); // SYNC(ring.sleep), sleeper's side
        failpoint("sleep.announced");
    }

    fn awake(&mut self) {
        if self.asleep {
            self.asleep = false;
            self.own.u32(self.own_word).store(SleepWord::AWAKE.0, Ordering::Relaxed);
            failpoint("wake.awake");
        }
    }
}

/// The writing end of a ring.
pub struct Producer {
    geometry: Geometry,
    tail: u64,
    arena_tail: u64,
    /// What the peer has taken, as last seen and checked.
    taken: u64,
    arena_taken: u64,
    waker: Waker,
}

impl Producer {
    /// The producer of the ring in `own`, which nobody has used yet.
    pub fn new(geometry: Geometry, own: Arc<Outbox>, peer: Arc<Inbox>) -> Self {
        let waker = Waker {
            own,
            peer,
            peer_word: layout::CONSUMER_SLEEP_AT,
            own_word: layout::PRODUCER_SLEEP_AT,
            episode: 0,
            asleep: false,
            rung: SleepWord::AWAKE,
        };
        Self { geometry, tail: 0, arena_tail: 0, taken: 0, arena_taken: 0, waker }
    }

    /// Longest payload of one record.
    #[inline]
    pub fn record_bytes(&self) -> usize {
        self.geometry.record_bytes()
    }

    /// Whether the peer has taken every record.
    ///
    /// # Errors
    /// [`Violation::Taken`].
    pub fn all_taken(&mut self) -> Result<bool, Violation> {
        self.refresh()?;
        Ok(self.tail == self.taken)
    }

    /// Number of the first record that the peer had not taken when it was last looked at.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many records the peer has taken, if it sleeps and there are others: what the last
    /// [`Producer::notify`] asked for was done in another way than by waking it.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn untaken(&mut self) -> Result<Option<u64>, Violation> {
        self.waker.rung = SleepWord::AWAKE;
        let waits = !self.all_taken()? && self.notify()? == Wake::Doorbell;
        Ok(waits.then_some(self.taken))
    }

    /// Number of the next record.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Whether a record of `len` bytes has room now.
    ///
    /// Looks at the peer's cursor only when the last look does not suffice.
    ///
    /// # Errors
    /// [`Violation::Taken`].
    #[inline]
    pub fn has_room(&mut self, len: usize) -> Result<bool, Violation> {
        if self.fits(len) {
            return Ok(true);
        }
        self.refresh()?;
        Ok(self.fits(len))
    }

    #[inline]
    fn fits(&self, len: usize) -> bool {
        self.tail - self.taken < u64::from(self.geometry.slots())
            && self.arena_tail - self.arena_taken + layout::arena_need(len)
                <= u64::from(self.geometry.arena_bytes())
    }

    fn refresh(&mut self) -> Result<(), Violation> {
        let peer = &self.waker.peer;
        let slots = peer.load_u64(layout::TAKEN_SLOTS_AT, Ordering::Acquire); // SYNC(ring.take)
        let arena = peer.load_u64(layout::TAKEN_ARENA_AT, Ordering::Acquire); // SYNC(ring.take)
        for (claimed, before, produced) in
            [(slots, self.taken, self.tail), (arena, self.arena_taken, self.arena_tail)]
        {
            if claimed < before || claimed > produced {
                return Err(Violation::Taken { claimed, before, produced });
            }
        }
        (self.taken, self.arena_taken) = (slots, arena);
        Ok(())
    }

    /// Whether the peer has taken the record with this number.
    ///
    /// # Errors
    /// [`Violation::Taken`].
    pub fn was_taken(&mut self, position: u64) -> Result<bool, Violation> {
        self.refresh()?;
        Ok(self.taken > position)
    }

    /// Reserves a record with a payload of `len` bytes; none when there is no room now. Nothing is
    /// seen of it before [`Slot::commit`], and dropping it undoes it.
    ///
    /// # Errors
    /// [`Violation::Taken`].
    ///
    /// # Panics
    /// When `len` is more than [`Producer::record_bytes`].
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Option<Slot<'_>>, Violation> {
        assert!(len <= self.record_bytes(), "a record of {len} bytes");
        if !self.has_room(len)? {
            return Ok(None);
        }
        Ok(Some(Slot { producer: self, len, written: 0 }))
    }

    /// Appends one record whose payload is `parts` one after the other; false when there is no
    /// room now.
    ///
    /// One copy. The peer may see the record at once; [`Producer::notify`] wakes it if it sleeps,
    /// once after the last of several records.
    ///
    /// # Errors
    /// [`Violation::Taken`].
    ///
    /// # Panics
    /// When the parts together are longer than [`Producer::record_bytes`].
    #[inline]
    pub fn try_push(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        parts: &[&[u8]],
    ) -> Result<bool, Violation> {
        let len = parts.iter().map(|p| p.len()).sum();
        let Some(mut slot) = self.reserve(len)? else { return Ok(false) };
        parts.iter().for_each(|part| slot.write(part));
        slot.commit(kind, flags, stream);
        Ok(true)
    }

    /// Appends one record with what one read(2) from `from` brings, at most `most` bytes of it,
    /// straight into the ring; `flags` says the record's flags for that number. `None` when there
    /// is no room for `most`, `Some(0)` (and no record) at the end of `from`.
    ///
    /// # Errors
    /// [`Violation::Taken`]; inside, what read(2) says.
    ///
    /// # Panics
    /// When `most` is more than [`Producer::record_bytes`], or so little that it would not lie in
    /// the arena.
    #[cfg(not(loom))]
    pub fn try_push_from(
        &mut self,
        kind: u8,
        flags: impl Fn(usize) -> u8,
        from: std::os::fd::BorrowedFd<'_>,
        most: usize,
    ) -> Result<Option<std::io::Result<usize>>, Violation> {
        assert!(most > INLINE_BYTES && most <= self.record_bytes(), "a record of {most} bytes");
        if !self.has_room(most)? {
            return Ok(None);
        }
        let size = self.geometry.arena_bytes() as usize;
        let offset = (self.arena_tail % size as u64) as usize;
        let at = self.geometry.arena_base() + offset;
        // Up to the end of the arena; the next record has the rest.
        let n = match self.waker.own.read_from(at, most.min(size - offset), from) {
            Ok(n) if n > 0 => n,
            ended_or_failed => return Ok(Some(ended_or_failed)),
        };
        if n <= INLINE_BYTES {
            // So little lies in the slot.
            let slot = self.geometry.slot_at(self.tail);
            self.waker.own.move_down(at, slot + SLOT_PAYLOAD_AT, n);
        } else {
            self.arena_tail += layout::arena_need(n);
        }
        self.publish(kind, flags(n), 0, n);
        Ok(Some(Ok(n)))
    }

    fn publish(&mut self, kind: u8, flags: u8, stream: u32, len: usize) {
        let slot = self.geometry.slot_at(self.tail);
        let descriptor = Descriptor { kind, flags, stream, len: len as u32 };
        self.waker.own.write_words(slot + 4, descriptor.to_words());
        failpoint("push.written");
        self.waker.own.u32(slot).store(layout::stamp(self.tail), Ordering::Release); // SYNC(ring.publish)
        failpoint("push.published");
        self.tail += 1;
    }

    /// Wakes the consumer when it sleeps.
    ///
    /// # Errors
    /// [`Violation::SleepWord`].
    #[inline]
    pub fn notify(&mut self) -> Result<Wake, Violation> {
        self.waker.notify()
    }

    /// Announces that this side sleeps until there is room for `len` bytes.
    ///
    /// Returns true when the caller may sleep: the consumer will wake it. On false there is room
    /// now, and nothing stays announced.
    ///
    /// # Errors
    /// [`Violation::Taken`].
    pub fn prepare_sleep(&mut self, len: usize, mode: SleepMode) -> Result<bool, Violation> {
        self.waker.announce(mode);
        if self.has_room(len)? {
            self.waker.awake();
            return Ok(false);
        }
        Ok(true)
    }

    /// Takes the announcement back.
    #[inline]
    pub fn awake(&mut self) {
        self.waker.awake();
    }
}

/// A record that is reserved: its payload is written straight into the ring.
pub struct Slot<'a> {
    producer: &'a mut Producer,
    len: usize,
    written: usize,
}

impl Slot<'_> {
    /// Appends to the payload.
    ///
    /// # Panics
    /// When that is longer than what was reserved.
    #[inline]
    pub fn write(&mut self, part: &[u8]) {
        assert!(part.len() <= self.len - self.written, "more than was reserved");
        let Producer { geometry, tail, arena_tail, waker, .. } = &*self.producer;
        if self.len <= INLINE_BYTES {
            waker.own.write(geometry.slot_at(*tail) + SLOT_PAYLOAD_AT + self.written, part);
        } else {
            let (size, base) = (geometry.arena_bytes() as usize, geometry.arena_base());
            let offset = ((arena_tail + self.written as u64) % size as u64) as usize;
            let first = part.len().min(size - offset);
            waker.own.write(base + offset, &part[..first]);
            waker.own.write(base, &part[first..]);
        }
        self.written += part.len();
    }

    /// Where the rest of the payload lies: in one piece, or to the arena's end and from its start on.
    #[cfg(not(loom))]
    pub(crate) fn pieces(&self) -> [(*mut u8, usize); 2] {
        let Producer { geometry, tail, arena_tail, waker, .. } = &*self.producer;
        let left = self.len - self.written;
        if self.len <= INLINE_BYTES {
            let at = geometry.slot_at(*tail) + SLOT_PAYLOAD_AT + self.written;
            let pointer = waker.own.pointer(at, left);
            return [(pointer, left), (pointer, 0)];
        }
        let (size, base) = (geometry.arena_bytes() as usize, geometry.arena_base());
        let offset = ((arena_tail + self.written as u64) % size as u64) as usize;
        let first = left.min(size - offset);
        let then = left - first;
        [(waker.own.pointer(base + offset, first), first), (waker.own.pointer(base, then), then)]
    }

    #[cfg(not(loom))]
    pub(crate) fn written_mut(&mut self) -> &mut usize {
        &mut self.written
    }

    /// Publishes the record.
    ///
    /// # Panics
    /// When less was written than was reserved: what the ring held before would be sent.
    #[inline]
    pub fn commit(self, kind: u8, flags: u8, stream: u32) {
        assert!(self.written == self.len, "less than was reserved");
        if self.len > INLINE_BYTES {
            self.producer.arena_tail += layout::arena_need(self.len);
        }
        self.producer.publish(kind, flags, stream, self.len);
    }
}

/// The reading end of a ring.
pub struct Consumer {
    geometry: Geometry,
    head: u64,
    arena_head: u64,
    current: Option<Descriptor>,
    waker: Waker,
}

impl Consumer {
    /// The consumer of the ring in `peer`, which nobody has used yet.
    pub fn new(geometry: Geometry, own: Arc<Outbox>, peer: Arc<Inbox>) -> Self {
        let waker = Waker {
            own,
            peer,
            peer_word: layout::PRODUCER_SLEEP_AT,
            own_word: layout::CONSUMER_SLEEP_AT,
            episode: 0,
            asleep: false,
            rung: SleepWord::AWAKE,
        };
        Self { geometry, head: 0, arena_head: 0, current: None, waker }
    }

    /// Whether a record is there. Never blocks, checks nothing.
    #[inline(always)]
    pub fn ready(&self) -> bool {
        let slot = self.geometry.slot_at(self.head);
        self.waker.peer.load_u32(slot, Ordering::Acquire) == layout::stamp(self.head) // SYNC(ring.publish)
    }

    /// The next record, which stays current until [`Consumer::release`].
    ///
    /// # Errors
    /// [`Violation::Descriptor`], [`Violation::Length`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Descriptor>, Violation> {
        if self.current.is_some() {
            return Ok(self.current);
        }
        if !self.ready() {
            return Ok(None);
        }
        let position = self.head;
        let words = self.waker.peer.read_words(self.geometry.slot_at(position) + 4);
        let Some(d) = Descriptor::from_words(words) else {
            return Err(Violation::Descriptor { position });
        };
        let limit = self.geometry.record_bytes();
        if d.len as usize > limit {
            return Err(Violation::Length { position, found: d.len, limit });
        }
        self.current = Some(d);
        Ok(self.current)
    }

    /// Copies the payload of the current record to the end of `to`.
    ///
    /// # Panics
    /// When no record is current or `to` has no room.
    #[inline]
    pub fn read(&self, to: &mut impl BufMut) {
        let d = self.current.expect("peek found a record");
        let len = d.len as usize;
        if len <= INLINE_BYTES {
            let slot = self.geometry.slot_at(self.head);
            self.waker.peer.read(slot + SLOT_PAYLOAD_AT, len, to);
        } else {
            let size = self.geometry.arena_bytes() as usize;
            let offset = (self.arena_head % size as u64) as usize;
            let first = len.min(size - offset);
            self.waker.peer.read(self.geometry.arena_base() + offset, first, to);
            self.waker.peer.read(self.geometry.arena_base(), len - first, to);
        }
        failpoint("take.copied");
    }

    /// Gives the current record's room back to the producer.
    ///
    /// # Panics
    /// When no record is current.
    #[inline]
    pub fn release(&mut self) {
        let d = self.current.take().expect("peek found a record");
        self.head += 1;
        let own = &self.waker.own;
        if d.len as usize > INLINE_BYTES {
            self.arena_head += layout::arena_need(d.len as usize);
            own.u64(layout::TAKEN_ARENA_AT).store(self.arena_head, Ordering::Release); // SYNC(ring.take)
        }
        own.u64(layout::TAKEN_SLOTS_AT).store(self.head, Ordering::Release); // SYNC(ring.take)
        failpoint("take.released");
    }

    /// Wakes the producer when it sleeps for want of room; once after several records.
    ///
    /// # Errors
    /// [`Violation::SleepWord`].
    #[inline]
    pub fn notify(&mut self) -> Result<Wake, Violation> {
        self.waker.notify()
    }

    /// Announces that this side sleeps until there is a record.
    ///
    /// Returns true when the caller may sleep: the producer will wake it. On false there is a
    /// record now, and nothing stays announced.
    #[inline]
    pub fn prepare_sleep(&mut self, mode: SleepMode) -> bool {
        self.waker.announce(mode);
        if self.ready() {
            self.waker.awake();
            return false;
        }
        true
    }

    /// Takes the announcement back.
    #[inline]
    pub fn awake(&mut self) {
        self.waker.awake();
    }
}
