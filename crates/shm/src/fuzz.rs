//! Bodies of the fuzz targets: a hostile peer that writes anything into all it can reach.
//!
//! Each body returns whether it came to the accepting path, so that a test can assert that its
//! corpus does.

use std::os::fd::AsFd;
use std::sync::Arc;

use partywall_abi::layout::{self, Geometry, SleepMode};
use partywall_abi::sync::Ordering;

use crate::memory;
use crate::ring::{Consumer, Producer};

/// Our two ring ends against a peer whose every write comes from `data`.
///
/// # Panics
/// When an own invariant breaks: that is what fuzzing looks for.
pub fn hostile_ring(data: &[u8]) -> bool {
    let g = Geometry::new(4, 256).expect("a geometry");
    let ours = memory::create(g).expect("memory");
    let theirs = memory::create(g).expect("memory");
    let own = Arc::new(memory::adopt(ours.writer.as_fd(), g).expect("adopt"));
    let hostile = memory::adopt(theirs.writer.as_fd(), g).expect("adopt");
    let peer = Arc::new(memory::accept(theirs.reader.as_fd(), g).expect("accept"));
    let mut producer = Producer::new(g, Arc::clone(&own), Arc::clone(&peer));
    let mut consumer = Consumer::new(g, own, peer);
    let mut accepted = false;
    let mut sent = 0_u64;
    for op in data.chunks_exact(6) {
        let word = u32::from_le_bytes([op[2], op[3], op[4], op[5]]);
        let at = usize::from(op[1]) * 4 % g.outbox_bytes();
        match op[0] % 8 {
            0 => hostile.u32(at).store(word, Ordering::Release),
            1 => hostile
                .u32(g.slot_at(op[1].into()) + 4 * (op[2] as usize % 4))
                .store(word, Ordering::Release),
            2 => {
                // What an honest peer would write next.
                let slot = g.slot_at(sent);
                let d = layout::Descriptor { kind: 5, flags: 0, stream: 1, len: word % 49 };
                hostile.write_words(slot + 4, d.to_words());
                hostile.u32(slot).store(layout::stamp(sent), Ordering::Release);
                sent += 1;
            }
            3 => hostile
                .u64(layout::TAKEN_SLOTS_AT + 8 * (op[1] as usize % 2))
                .store(u64::from(word % 8), Ordering::Release),
            4 => {
                let payload = [op[1]; 64];
                let len = (word as usize) % (g.record_bytes() + 1);
                if producer.try_push(op[1], op[2], word, &[&payload[..len]]).is_err() {
                    return accepted;
                }
                if producer.notify().is_err() {
                    return accepted;
                }
            }
            5 => match consumer.peek() {
                Err(_) => return accepted,
                Ok(None) => {}
                Ok(Some(d)) => {
                    let mut payload = Vec::new();
                    consumer.read(&mut payload);
                    assert_eq!(payload.len(), d.len as usize);
                    assert!(payload.len() <= g.record_bytes());
                    consumer.release();
                    accepted = true;
                }
            },
            6 => {
                let _asleep = consumer.prepare_sleep(SleepMode::Doorbell);
                consumer.awake();
                if consumer.notify().is_err() {
                    return accepted;
                }
            }
            _ => match producer.prepare_sleep(word as usize % 64, SleepMode::Futex) {
                Err(_) => return accepted,
                Ok(_) => producer.awake(),
            },
        }
    }
    accepted
}

#[cfg(test)]
mod tests {
    /// Random operations on stable; cargo-fuzz explores the same body with coverage.
    #[test]
    fn fuzz_hostile_ring() {
        let mut random = partywall_testkit::Random::new(1);
        let mut accepted = 0;
        for _ in 0..3_000 {
            accepted += u32::from(super::hostile_ring(&random.bytes(400)));
        }
        assert!(accepted > 100, "only {accepted} inputs reached the accepting path");
    }
}
