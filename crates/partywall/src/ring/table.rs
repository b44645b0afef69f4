//! The calls that are open on a link.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::stream::Stream;

/// Open calls by number. Numbers are the caller's choice, and there are at most
/// [`partywall_abi::limits::STREAMS`], so a plain multiplication hashes well enough.
pub(crate) type Table = HashMap<u32, Arc<Stream>, BuildHasherDefault<IdHasher>>;

#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
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
