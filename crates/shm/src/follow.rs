//! A third process that reads along: it follows a ring without a part in it.
//!
//! It has both outboxes of a link for reading, and writes nothing: neither end waits for it, or sees it. So
//! records that it does not read in time are overwritten, and it says how many it has missed.
//!
//! ```text
//! stamp(p) there?   no, and no later one --> nothing yet
//!                   a later one          --> missed: on at the newest record
//! copy descriptor and payload
//! fence, the stamp of the record before the slot's next lap there? --> missed: it may be overwritten
//! ```
//!
//! The producer writes a slot before its stamp, so the stamp of record `p` still stands while record
//! `p + slots` is being written over it. That one is written after the stamp of record `p + slots - 1`, which
//! is in the slot before: where that stamp is not seen after the copy, the copy is whole. Stores of one
//! processor are seen in their order (x86-64, to which Partywall is bound).
//!
//! Where a payload in the arena lies, nobody says: the lengths of all records before it do. The follower
//! learns the place from what the consumer has taken, at a moment at which that is all there is, and adds
//! from then on. Until then, and after records were missed, it has no bytes of long payloads. They are
//! overwritten once the records behind them fill the arena, which the follower counts by their descriptors.
//!
//! # What the ends can do
//!
//! All of it is theirs to write, at any time: they can show the follower whatever they like of their own
//! ring, and the consumer can make it take wrong bytes of the arena for a payload. Each length and place is
//! bounded before it is used, and nothing follows from what is read.

use std::sync::Arc;

use partywall_abi::layout::{self, Descriptor, Geometry, INLINE_BYTES, SLOT_PAYLOAD_AT};
use partywall_abi::sync::{Ordering, fence};

use crate::region::Inbox;

/// One direction of a link, as somebody beside it sees it.
pub struct Follower {
    geometry: Geometry,
    /// The producer's outbox.
    ring: Arc<Inbox>,
    /// The consumer's, which says what has been taken.
    consumer: Arc<Inbox>,
    /// Number of the record that is next.
    position: u64,
    /// Where the next payload in the arena begins, if that is known.
    arena: Option<u64>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("position", &self.position).finish_non_exhaustive()
    }
}

/// What a follower finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing new.
    Nothing,
    /// So many records were overwritten before they were read.
    Missed(u64),
    /// A record.
    Record(Followed),
}

/// A record that has crossed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Its number in its direction, from 0 on.
    pub number: u64,
    /// What its slot says; none where that makes no sense.
    pub descriptor: Option<Descriptor>,
    /// The first bytes of its payload; none where they are not to be had.
    pub bytes: Option<Vec<u8>>,
}

impl Follower {
    /// Follows the ring in `ring` from its newest record on.
    pub fn new(geometry: Geometry, ring: Arc<Inbox>, consumer: Arc<Inbox>) -> Self {
        let mut this = Self { geometry, ring, consumer, position: 0, arena: None };
        let taken = this.consumer.load_u64(layout::TAKEN_SLOTS_AT, Ordering::Acquire);
        // What is taken says the upper half of the number; the stamps, which are the producer's, the lower
        // one.
        let newest = this.newest();
        let behind = newest.wrapping_sub(taken as u32) as i32;
        this.position = taken.wrapping_add_signed(behind.into());
        this.locate();
        this
    }

    /// How many records the ring holds.
    pub fn slots(&self) -> u64 {
        self.geometry.slots().into()
    }

    fn stamp_at(&self, position: u64) -> u32 {
        self.ring.load_u32(self.geometry.slot_at(position), Ordering::Acquire) // SYNC(ring.publish)
    }

    fn is_there(&self, position: u64) -> bool {
        self.stamp_at(position) == layout::stamp(position)
    }

    /// The lower half of the number of the record after the newest one, by the stamps.
    fn newest(&self) -> u32 {
        let first = self.stamp_at(0);
        let stamps = (0..self.slots()).map(|slot| self.stamp_at(slot)).filter(|stamp| *stamp != 0);
        let ahead = stamps.map(|stamp| stamp.wrapping_sub(first) as i32).max();
        // A record's stamp is one more than its number.
        if first == 0 { 0 } else { first.wrapping_add_signed(ahead.unwrap_or(0)) }
    }

    /// How far the stamp in a record's slot is ahead of the record's own.
    fn ahead(&self, position: u64) -> i32 {
        match self.stamp_at(position) {
            0 => 0,
            found => found.wrapping_sub(layout::stamp(position)) as i32,
        }
    }

    /// Finds out where the next payload in the arena begins, if all records are taken.
    fn locate(&mut self) {
        let taken = || self.consumer.load_u64(layout::TAKEN_SLOTS_AT, Ordering::Acquire);
        let before = taken();
        let arena = self.consumer.load_u64(layout::TAKEN_ARENA_AT, Ordering::Acquire); // SYNC(ring.take)
        // The consumer counts the arena first: it may be ahead by a record, which would be there.
        let is_idle = before == self.position && !self.is_there(self.position);
        self.arena = (is_idle && taken() == before).then_some(arena);
    }

    /// On at the newest record, for others are overwritten.
    fn skip(&mut self) -> Found {
        let newest = self.newest().wrapping_sub(self.position as u32);
        // At least the one at hand; a producer can write any stamp.
        let missed = u64::from(newest).clamp(1, u64::from(u32::MAX / 2));
        self.position = self.position.wrapping_add(missed);
        self.arena = None;
        Found::Missed(missed)
    }

    /// The next record, with at most so many bytes of its payload. Never blocks.
    pub fn look(&mut self, most: usize) -> Found {
        if !self.is_there(self.position) {
            if self.ahead(self.position) > 0 {
                return self.skip();
            }
            if self.arena.is_none() {
                self.locate();
            }
            return Found::Nothing;
        }
        let (position, slot) = (self.position, self.geometry.slot_at(self.position));
        let descriptor = Descriptor::from_words(self.ring.read_words(slot + 4));
        let limit = self.geometry.record_bytes();
        let descriptor = descriptor.filter(|d| d.len as usize <= limit);
        let len = descriptor.map_or(0, |d| d.len as usize);
        let (is_long, most) = (len > INLINE_BYTES, most.min(len));
        let mut bytes = Vec::with_capacity(most);
        let mut whole = true;
        match (is_long, self.arena) {
            (false, _) => self.ring.read(slot + SLOT_PAYLOAD_AT, most, &mut bytes),
            (true, Some(at)) => self.read_arena(at, most, &mut bytes),
            (true, None) => whole = false,
        }
        fence(Ordering::Acquire);
        // The record before the slot's next lap.
        let last = position.wrapping_add(self.slots() - 1);
        if !self.is_there(position) || self.is_there(last) || self.ahead(last) > 0 {
            return self.skip();
        }
        if let Some(at) = self.arena {
            let next = at.wrapping_add(layout::arena_need(len));
            whole &= !is_long || !self.is_overwritten(at, next);
            self.arena = Some(next);
        }
        if descriptor.is_none() {
            // Nobody knows how long it is.
            self.arena = None;
        }
        self.position = position.wrapping_add(1);
        Found::Record(Followed { number: position, descriptor, bytes: whole.then_some(bytes) })
    }

    fn read_arena(&self, at: u64, len: usize, to: &mut Vec<u8>) {
        let size = self.geometry.arena_bytes() as usize;
        let offset = (at % size as u64) as usize;
        let first = len.min(size - offset);
        self.ring.read(self.geometry.arena_base() + offset, first, to);
        self.ring.read(self.geometry.arena_base(), len - first, to);
    }

    /// Whether records behind the one at hand, or the one that is being written, may lie over its payload,
    /// which begins at `at` and ends at `next`.
    fn is_overwritten(&self, at: u64, next: u64) -> bool {
        let limit = self.geometry.record_bytes();
        let mut end = next;
        for behind in 1..self.slots() {
            let position = self.position.wrapping_add(behind);
            if !self.is_there(position) {
                break;
            }
            let words = self.ring.read_words(self.geometry.slot_at(position) + 4);
            let len = (words[2] as usize).min(limit);
            end = end.wrapping_add(layout::arena_need(len));
        }
        end.wrapping_sub(at) + limit as u64 > self.geometry.arena_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use partywall_abi::sync::{AtomicBool, AtomicU64};
    use partywall_testkit::Random;

    use super::*;
    use crate::memory::{self, Handout};
    use crate::region::Outbox;
    use crate::ring::{Consumer, Producer};

    const SMALL: Geometry = match Geometry::new(8, 1024) {
        Ok(g) => g,
        Err(_) => panic!("a geometry"),
    };

    struct Rings {
        producer: Producer,
        consumer: Consumer,
        follower: Follower,
        /// The memories of both ends, for who writes there what no end does.
        outboxes: [Arc<Outbox>; 2],
    }

    impl Rings {
        fn new(geometry: Geometry) -> Self {
            let made = [(), ()].map(|()| {
                let Handout { writer, reader, .. } = memory::create(geometry).unwrap();
                let outbox = Arc::new(memory::adopt(writer.as_fd(), geometry).unwrap());
                let inbox = || Arc::new(memory::accept(reader.as_fd(), geometry).unwrap());
                (outbox, inbox(), inbox())
            });
            let [(one, ones, ones_copy), (other, others, others_copy)] = made;
            let producer = Producer::new(geometry, Arc::clone(&one), others);
            let consumer = Consumer::new(geometry, Arc::clone(&other), ones);
            let follower = Follower::new(geometry, ones_copy, others_copy);
            Self { producer, consumer, follower, outboxes: [one, other] }
        }

        fn push(&mut self, stream: u32, payload: &[u8]) -> bool {
            self.producer.try_push(5, 1, stream, &[payload]).unwrap()
        }

        fn take(&mut self) -> bool {
            let is_there = self.consumer.peek().unwrap().is_some();
            if is_there {
                self.consumer.release();
            }
            is_there
        }

        fn anew(&self) -> Follower {
            let (ring, consumer) = (&self.follower.ring, &self.follower.consumer);
            Follower::new(self.follower.geometry, Arc::clone(ring), Arc::clone(consumer))
        }
    }

    fn record(number: u64, payload: &[u8], most: usize) -> Found {
        let len = payload.len() as u32;
        let descriptor = Some(Descriptor { kind: 5, flags: 1, stream: number as u32, len });
        let bytes = Some(payload[..most.min(payload.len())].to_vec());
        Found::Record(Followed { number, descriptor, bytes })
    }

    /// Records of all lengths, over several laps of slots and arena.
    #[test]
    fn a_follower_sees_each_record_that_crosses() {
        let (mut rings, mut random) = (Rings::new(SMALL), Random::of_this_run());
        let limit = SMALL.record_bytes();
        let mut sent = std::collections::VecDeque::new();
        for number in 0..500_u64 {
            let payload = random.bytes(limit + 1);
            while !rings.push(number as u32, &payload) {
                assert!(rings.take());
            }
            sent.push_back((number, payload));
            // With one more it could be written over.
            if sent.len() == 7 || random.below(2) == 0 {
                while let Some((number, payload)) = sent.pop_front() {
                    let found = rings.follower.look(20);
                    let Found::Record(mut seen) = found else { panic!("{number}: {found:?}") };
                    // Long ones that lie where the next one may be written are not to be had.
                    seen.bytes.get_or_insert_with(|| payload[..payload.len().min(20)].to_vec());
                    assert_eq!(Found::Record(seen), record(number, &payload, 20));
                }
                assert_eq!(rings.follower.look(20), Found::Nothing);
            }
        }
    }

    #[test]
    fn bytes_of_long_records_are_had_when_they_are_read_in_time() {
        let mut rings = Rings::new(Geometry::DEFAULT);
        for number in 0..300 {
            let payload = vec![number as u8; 5000];
            assert!(rings.push(number as u32, &payload));
            assert_eq!(rings.follower.look(32), record(number, &payload, 32));
            assert!(rings.take());
        }
        // One that comes later finds its place in the arena.
        let mut late = rings.anew();
        assert_eq!(late.look(32), Found::Nothing);
        assert!(rings.push(300, &[7; 5000]));
        assert_eq!(late.look(9), record(300, &[7; 5000], 9));
        // While records are under way it has none of them.
        assert!(rings.push(301, &[8; 5000]));
        let mut busy = rings.anew();
        assert!(rings.push(302, &[9; 5000]));
        let Found::Record(seen) = busy.look(9) else { panic!("none") };
        assert_eq!((seen.number, seen.bytes), (302, None));
        while rings.take() {}
        assert_eq!(busy.look(9), Found::Nothing);
        assert!(rings.push(303, &[6; 5000]));
        assert_eq!(busy.look(9), record(303, &[6; 5000], 9));
    }

    #[test]
    fn records_that_were_overwritten_are_counted_as_missed() {
        let mut rings = Rings::new(SMALL);
        for number in 0..30 {
            assert!(rings.push(number, &[number as u8; 8]));
            assert!(rings.take());
        }
        assert_eq!(rings.follower.look(8), Found::Missed(30));
        assert_eq!(rings.follower.look(8), Found::Nothing);
        for number in 30..37 {
            assert!(rings.push(number, &[1; 8]) && rings.take());
        }
        // The slot of the first one is not written again before there are as many as slots.
        assert_eq!(rings.follower.look(8), record(30, &[1; 8], 8));
        assert!(rings.push(37, &[1; 8]) && rings.take());
        assert!(rings.push(38, &[1; 8]) && rings.take());
        assert_eq!(rings.follower.look(8), Found::Missed(8), "record 31 may be being written over");
        assert!(rings.push(39, &[]));
        assert_eq!(rings.follower.look(8), record(39, &[], 8));
    }

    /// Neither end is kept from anything, and each record is what it was when it is said to be whole.
    #[test]
    fn a_follower_of_a_busy_ring_shows_no_torn_record() {
        let mut rings = Rings::new(SMALL);
        let (total, stop) = (200_000_u32, AtomicBool::new(false));
        let counted = AtomicU64::new(0);
        let mut follower = rings.anew();
        std::thread::scope(|scope| {
            let following = scope.spawn(|| {
                let (mut seen, mut missed, mut had) = (0_u64, 0_u64, 0_u64);
                loop {
                    let is_over = stop.load(Ordering::Acquire);
                    counted.store(seen + missed, Ordering::Release);
                    match follower.look(1024) {
                        Found::Missed(count) => missed += count,
                        Found::Nothing if is_over => return (seen, missed, had),
                        Found::Nothing => std::hint::spin_loop(),
                        Found::Record(record) => {
                            seen += 1;
                            let stream = record.descriptor.unwrap().stream;
                            assert_eq!(u64::from(stream), record.number);
                            had += u64::from(record.bytes.is_some());
                            let byte = stream as u8;
                            let bytes = record.bytes.unwrap_or_default();
                            assert!(bytes.iter().all(|b| *b == byte), "{byte}: {bytes:?}");
                        }
                    }
                }
            });
            for number in 0..total {
                let len = [0, 8, 48, 49, 200, 256][number as usize % 6];
                let payload = vec![number as u8; len];
                while !rings.push(number, &payload) {
                    rings.take();
                }
                // It catches up at times, on few processors as well, and then sees each.
                let lags = || counted.load(Ordering::Acquire) <= number.into();
                while number % 1000 < 2 && lags() && !following.is_finished() {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Release);
            let (seen, missed, had) = following.join().unwrap();
            assert_eq!(seen + missed, u64::from(total), "each is seen or missed");
            assert!(seen >= 200 && had > 0, "{seen} seen, {had} with bytes");
        });
    }

    /// Whatever the ends write, it is neither out of bounds nor without an end.
    #[test]
    fn no_bytes_of_the_ends_confuse_a_follower() {
        let mut random = Random::of_this_run();
        for _ in 0..200 {
            let rings = Rings::new(SMALL);
            let mut follower = rings.anew();
            for _ in 0..100 {
                let outbox = &rings.outboxes[random.below(2)];
                for _ in 0..random.below(20) {
                    let words = SMALL.outbox_bytes() / 4;
                    let at = 4 * random.below(words);
                    let near =
                        layout::stamp(follower.position.wrapping_add(random.below(20) as u64));
                    let word =
                        [near, random.below(1 << 32) as u32, 0, 49, 256, 257][random.below(6)];
                    outbox.u32(at).store(word, Ordering::Relaxed);
                }
                for _ in 0..20 {
                    if let Found::Record(record) = follower.look(64) {
                        let len = record.descriptor.map_or(0, |d| d.len as usize);
                        assert!(len <= SMALL.record_bytes());
                        let bytes = record.bytes.map_or(len.min(64), |bytes| bytes.len());
                        assert_eq!(bytes, len.min(64));
                    }
                }
                if random.below(4) == 0 {
                    follower = rings.anew();
                }
            }
        }
    }
}
