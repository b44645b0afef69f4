//! Random numbers of a seed.

use partywall_abi::limits;

/// Splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub(super) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
    /// Sizes of all orders of magnitude, the limits' own among them.
    pub(super) fn size(&mut self) -> usize {
        let window = limits::STREAM_WINDOW as usize;
        match self.below(12) {
            0 => 0,
            1 => limits::FIRST_WINDOW as usize,
            2 => window,
            3 => window + 1 + self.below(2 * window),
            order => self.below(4 << (order + 4)),
        }
    }
}
