//! Random bytes of the kernel, fit for keys.

/// Fills `to` with random bytes.
pub fn fill(to: &mut [u8]) {
    crate::rt::random(to);
}

/// A random number.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
