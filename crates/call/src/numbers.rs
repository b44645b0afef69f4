//! Streams by their numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Where each open stream is kept.
pub(crate) type Numbers = HashMap<u32, usize, BuildHasherDefault<NumberHasher>>;

/// Numbers are the caller's choice, and there are at most [`partywall_abi::limits::STREAMS_MAX`], so a plain
/// multiplication hashes well enough (Fibonacci hashing).
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u32(u32::from(*b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}
