//! What sealing cannot cost less than: the cipher over the bytes of a request and of a reply.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use partywall_abi::layout::Geometry;

use super::on_one_core;
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// The cipher alone.
pub const AEAD_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "aead-floor",
    "AES-128-GCM (AWS-LC): request and reply are each sealed out of place and opened in place, record by \
     record as on a link, in one thread",
    || on_one_core(None),
    call,
);

const TAG: usize = 16;
/// Bytes that are authenticated beside a record.
const BESIDE: [u8; 40] = [5; 40];

/// One direction.
struct Way {
    key: LessSafeKey,
    number: u64,
    /// What has come; its last tag is behind it.
    to: Vec<u8>,
}

impl Way {
    fn new(key: u8, bytes: usize) -> Result<Self> {
        let key = UnboundKey::new(&AES_128_GCM, &[key; 16]).map_err(|_| "no such key")?;
        Ok(Self { key: LessSafeKey::new(key), number: 0, to: vec![0; bytes + TAG] })
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals a message and opens it again: what has come.
    #[inline]
    fn pass(&mut self, message: &[u8]) -> Result<&[u8]> {
        let most = Geometry::WIDE.record_bytes() - TAG;
        for (at, piece) in (0..).step_by(most).zip(message.chunks(most)) {
            let (seals, opens) = (self.nonce(), self.nonce());
            let record = at..at + piece.len() + TAG;
            // The next piece goes where this one's tag was.
            let (text, tag) = self.to[record.clone()].split_at_mut(piece.len());
            self.key
                .seal_out_of_place_scatter(seals, Aad::from(BESIDE), piece, text, &[], tag)
                .map_err(|_| "not sealed")?;
            self.key
                .open_in_place(opens, Aad::from(BESIDE), &mut self.to[record])
                .map_err(|_| "not opened")?;
            self.number += 1;
        }
        Ok(&self.to[..message.len()])
    }
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let mut meter = seat.meter()?;
    let mut request = vec![0; meter.size()];
    let (mut there, mut back) = (Way::new(1, meter.size())?, Way::new(2, meter.size())?);
    loop {
        let seq = meter.fill(&mut request);
        let begun = meter.now();
        let reply = back.pass(there.pass(&request)?)?;
        let ended = meter.now();
        meter.check(seq, reply)?;
        if !meter.lap(begun, ended) {
            return Ok(meter.figures());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_what_was_sent() {
        for len in [1, 48, 65_536, 300_000] {
            let message: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let mut way = Way::new(1, len).expect("a key");
            assert_eq!(way.pass(&message).expect("passed"), message);
            assert_eq!(way.pass(&message).expect("passed again"), message);
        }
    }
}
