//! Where requests and replies lie in a worker's payloads.
//!
//! Each slot of the ring has a little of its own ([`OWN`], for each direction), which costs nothing. What is
//! longer has a power of two of bytes, and a free one waits in the list of its size. When all are free, they
//! are one again.

use partywall_abi::function::{GRAIN, SLOTS};

use crate::layout::PAYLOAD_BYTES;

/// The bytes that a slot has of its own in each direction.
pub(super) const OWN: u32 = 4096;
/// The smallest and the largest of the others, as powers of two.
const SMALLEST: u32 = 13;
const LARGEST: u32 = 25;
/// Where the others begin, behind what slots have.
const BEGIN: u64 = SLOTS as u64 * 2 * OWN as u64;

/// The payloads' free memory.
#[derive(Debug)]
pub(super) struct Payloads {
    free: [Vec<u32>; (LARGEST - SMALLEST + 1) as usize],
    /// Where nothing has been taken from yet.
    next: u64,
    /// How many are taken.
    taken: u32,
}

/// Memory of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Where it is, in grains.
    pub(super) at: u32,
    /// Its bytes.
    pub(super) bytes: u32,
}

impl Default for Payloads {
    fn default() -> Self {
        Self { free: Default::default(), next: BEGIN, taken: 0 }
    }
}

impl Payloads {
    /// What a slot has of its own: for the request, and for the reply.
    pub(super) fn own(number: u32) -> [Room; 2] {
        let at = (number % SLOTS) * 2 * OWN / GRAIN as u32;
        [at, at + OWN / GRAIN as u32].map(|at| Room { at, bytes: OWN })
    }

    /// Memory of at least so many bytes; none if there is none, or too much is asked for.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Room> {
        let power = bytes.max(1).checked_next_power_of_two()?.ilog2().max(SMALLEST);
        let list = self.free.get_mut((power - SMALLEST) as usize)?;
        let bytes = 1 << power;
        if let Some(at) = list.pop() {
            self.taken += 1;
            return Some(Room { at, bytes });
        }
        let end = self.next + u64::from(bytes);
        if end > PAYLOAD_BYTES {
            return None;
        }
        let at = (self.next / GRAIN as u64) as u32;
        self.next = end;
        self.taken += 1;
        Some(Room { at, bytes })
    }

    /// Room for a submission's request and reply: what its slot has of its own where that is enough.
    pub(super) fn pair(
        &mut self,
        number: u32,
        request: usize,
        reply: usize,
    ) -> Option<(Room, Room)> {
        let [own_input, own_output] = Self::own(number);
        let mut room = |bytes: usize, own: Room| match bytes <= own.bytes as usize {
            true => Some(own),
            false => self.take(bytes),
        };
        let input = room(request, own_input)?;
        let output = room(reply, own_output);
        if output.is_none() {
            self.give(input);
        }
        Some((input, output?))
    }

    /// Gives back what was taken. A slot's own memory is nobody's to give.
    pub(super) fn give(&mut self, room: Room) {
        if room.bytes <= OWN {
            return;
        }
        self.taken -= 1;
        if self.taken == 0 {
            self.free.iter_mut().for_each(Vec::clear);
            self.next = BEGIN;
        } else {
            self.free[(room.bytes.ilog2() - SMALLEST) as usize].push(room.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    /// What small rooms were made of is there for a large one when they are free.
    #[test]
    fn free_rooms_are_one_again() {
        let mut payloads = Payloads::default();
        let small: Vec<_> = std::iter::from_fn(|| payloads.take(1 << 20)).collect();
        assert_eq!((small.len(), payloads.take(16 << 20)), (63, None));
        for room in small {
            assert_eq!(payloads.take(16 << 20), None);
            payloads.give(room);
        }
        let large: Vec<_> = std::iter::from_fn(|| payloads.take(16 << 20)).collect();
        assert_eq!(large.len(), 3);
    }

    #[test]
    fn rooms_do_not_overlap_and_are_used_again() {
        let (mut payloads, mut random) = (Payloads::default(), Random::of_this_run());
        let mut taken: Vec<Room> = (0..SLOTS).flat_map(Payloads::own).collect();
        let own = taken.len();
        for _ in 0..20_000 {
            if random.below(2) == 0 && taken.len() > own {
                payloads.give(taken.swap_remove(own + random.below(taken.len() - own)));
                continue;
            }
            let bytes = 1 << random.below(22);
            let Some(room) = payloads.take(bytes) else { continue };
            assert!(room.bytes as usize >= bytes);
            let range = |room: &Room| {
                let at = room.at as usize * GRAIN;
                at..at + room.bytes as usize
            };
            let new = range(&room);
            assert!(new.end as u64 <= PAYLOAD_BYTES);
            for other in taken.iter().map(range) {
                assert!(new.end <= other.start || other.end <= new.start, "{new:?} {other:?}");
            }
            taken.push(room);
        }
        assert_eq!(payloads.take(usize::MAX), None);
        assert_eq!(payloads.take((1 << LARGEST) + 1), None);
    }
}
