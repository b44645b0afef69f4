//! Random numbers that a seed repeats, and how many trials a run is to make.

/// SplitMix64: small, and every seed is a good one.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The numbers of a seed that differs from run to run; it is printed, to repeat them.
    pub fn of_this_run() -> Self {
        let seed = std::process::id().into();
        println!("Random::new({seed})");
        Self(seed)
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The bias is bound / 2^64, far below anything visible.
        ((u128::from(self.draw()) * bound as u128) >> 64) as usize
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// Fewer bytes than `bound`, which is not 0.
    pub fn bytes(&mut self, bound: usize) -> Vec<u8> {
        (0..self.below(bound)).map(|_| self.draw() as u8).collect()
    }

    /// One of the seeds with one byte replaced.
    pub fn mutated<S: AsRef<[u8]>>(&mut self, seeds: &[S]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].as_ref().to_vec();
        let at = self.below(bytes.len());
        bytes[at] = self.draw() as u8;
        bytes
    }
}

/// Spreads the bits of `x` so that every input bit reaches every output bit; a bijection.
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Whether this run makes the promised number of trials (`cargo xtask test --full`), and has the machine
/// for itself.
pub fn is_full() -> bool {
    std::env::var("PARTYWALL_TRIALS").is_ok_and(|trials| trials == "full")
}

/// Random trials: what is promised in a full run, else a twentieth.
pub fn trials(promised: usize) -> usize {
    if is_full() { promised } else { promised.div_ceil(20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation for the seed 1234567.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([random.draw(), random.draw()], expected);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(5).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut random = Random::new(1);
        let mut seen = [false; 7];
        (0..200).for_each(|_| seen[random.below(7)] = true);
        assert_eq!(seen, [true; 7]);
        assert!((0..200).all(|_| random.bytes(5).len() < 5));
        let changed = random.mutated(&[b"abcd"]);
        assert!(changed.iter().zip(b"abcd").filter(|(a, b)| a != b).count() <= 1);
    }
}
