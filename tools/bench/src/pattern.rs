//! What the requests of a sample contain.

use partywall_testkit::Random;

use crate::error::Result;

/// Sequence numbers and bytes that tell every request of a sample from its neighbours.
#[derive(Debug)]
pub struct Pattern(Vec<u8>);

const SHIFTS: u64 = 4096;

/// Bytes of the number that starts a payload; a shorter payload is its first bytes.
pub const STAMP: usize = 8;

impl Pattern {
    /// For payloads of `size` bytes.
    pub fn new(size: usize) -> Self {
        let mut rng = Random::new(0x5eed);
        let len = SHIFTS as usize + size;
        Self((0..len.div_ceil(8)).flat_map(|_| rng.draw().to_le_bytes()).collect())
    }

    fn body(&self, seq: u64, len: usize) -> &[u8] {
        let from = (seq % SHIFTS) as usize;
        &self.0[from..from + len]
    }

    /// Writes request `seq`.
    #[inline]
    pub fn fill(&self, seq: u64, request: &mut [u8]) {
        let number = seq.to_le_bytes();
        let Some((stamp, body)) = request.split_at_mut_checked(STAMP) else {
            return request.copy_from_slice(&number[..request.len()]);
        };
        stamp.copy_from_slice(&number);
        body.copy_from_slice(self.body(seq, body.len()));
    }

    /// Whether `reply` is request `seq`, all `size` bytes of it.
    #[inline]
    pub fn matches(&self, seq: u64, reply: &[u8], size: usize) -> bool {
        let number = seq.to_le_bytes();
        if size < STAMP {
            return *reply == number[..size];
        }
        reply.len() == size
            && reply[..STAMP] == number
            && reply[STAMP..] == *self.body(seq, size - STAMP)
    }
}

/// Copies a reply that must be as long as the room for it.
#[inline]
pub fn copy(reply: &[u8], room: &mut [u8]) -> Result<()> {
    if reply.len() != room.len() {
        return Err("a reply of another length".into());
    }
    room.copy_from_slice(reply);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::CALL_SIZES;

    #[test]
    fn patterns_differ_at_every_size() {
        for size in CALL_SIZES.map(|size| size as usize) {
            let pattern = Pattern::new(size);
            let (mut a, mut b) = (vec![0; size], vec![0; size]);
            pattern.fill(1, &mut a);
            pattern.fill(2, &mut b);
            assert_ne!(a[STAMP..], b[STAMP..]);
            assert!(pattern.matches(1, &a, size) && !pattern.matches(2, &a, size));
            assert!(!pattern.matches(1, &a[..size - 1], size));
        }
    }

    #[test]
    fn payloads_shorter_than_a_number_have_its_first_bytes() {
        for size in 1..STAMP {
            let pattern = Pattern::new(size);
            let mut payload = vec![0; size];
            pattern.fill(0x0807_0605_0403_0201, &mut payload);
            assert_eq!(payload, (1..=size as u8).collect::<Vec<_>>());
            assert!(pattern.matches(0x0807_0605_0403_0201, &payload, size));
            assert!(!pattern.matches(0x0807_0605_0403_0200, &payload, size));
            assert!(!pattern.matches(0x0807_0605_0403_0201, &payload[1..], size));
        }
    }
}
