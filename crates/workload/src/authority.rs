//! What a client says is the authority of its calls, made such that HTTP/2 servers take it.
//!
//! gRPC's C core, and with it Python's grpcio, calls a Unix socket by the path: `:authority: tmp%2Fx.sock`.
//! That is no authority of a URI (RFC 3986, section 3.2), and h2 resets the stream. Nothing here goes by it,
//! so each `%` in it is read as `-`. No length changes, and so neither does what both sides keep of headers
//! (RFC 7541).
//!
//! Only what is sent in plain letters is looked at, in HEADERS frames that are whole; everything else passes
//! as it is, and what is malformed is the HTTP/2 server's business.

use std::ops::Range;

use bytes::{Buf as _, BytesMut};

/// Bytes of the head of a frame (RFC 9113, section 4.1).
const HEAD: usize = 9;
/// The most bytes of a frame: no other setting is agreed on.
const LONGEST: usize = 16 << 10;
const HEADERS: u8 = 1;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
const NAME: &[u8] = b":authority";
/// Its number in the table that all have (RFC 7541, appendix A).
const NUMBER: usize = 1;

/// The frames of a client.
pub(crate) struct Frames {
    come: BytesMut,
    /// Bytes that pass as they are.
    pass: usize,
}

impl Frames {
    /// Of a client whose preface, of so many bytes, comes first.
    pub(crate) fn new(preface: usize) -> Self {
        Self { come: BytesMut::new(), pass: preface }
    }

    /// Takes what has come, and adds to `out` what is to be read of it.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut BytesMut) {
        self.come.extend_from_slice(bytes);
        loop {
            let passes = self.pass.min(self.come.len());
            out.extend_from_slice(&self.come[..passes]);
            self.come.advance(passes);
            self.pass -= passes;
            let &[a, b, c, kind, ..] = &self.come[..] else { return };
            let len = HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
            if kind != HEADERS || len > HEAD + LONGEST {
                self.pass = len;
            } else if self.come.len() >= len {
                correct(&mut self.come[..len]);
                self.pass = len;
            } else {
                return;
            }
        }
    }
}

/// Corrects a frame of headers.
fn correct(frame: &mut [u8]) {
    let Some(block) = block(frame) else { return };
    let block = &mut frame[block];
    let mut at = 0;
    while let Some(found) = field(block, &mut at) {
        block[found].iter_mut().filter(|byte| **byte == b'%').for_each(|byte| *byte = b'-');
    }
}

/// Where the headers are in their frame (RFC 9113, section 6.2).
fn block(frame: &[u8]) -> Option<Range<usize>> {
    let flags = *frame.get(4)?;
    let (mut from, mut padding) = (HEAD, 0);
    if flags & PADDED != 0 {
        padding = usize::from(*frame.get(from)?);
        from += 1;
    }
    if flags & PRIORITY != 0 {
        from += 5;
    }
    let to = frame.len().checked_sub(padding)?;
    (from <= to).then_some(from..to)
}

/// Reads one field, and where its value is if that is an authority; nothing at the end, and where the rest is
/// no field (RFC 7541, section 6).
fn field(block: &[u8], at: &mut usize) -> Option<Range<usize>> {
    let prefix = match block.get(*at)? {
        0x80.. => return integer(block, at, 7).map(|_| 0..0),
        0x40.. => 6,
        0x20.. => return integer(block, at, 5).map(|_| 0..0),
        _ => 4,
    };
    let is_authority = match integer(block, at, prefix)? {
        0 => string(block, at)?.is_some_and(|name| &block[name] == NAME),
        number => number == NUMBER,
    };
    let value = string(block, at)?;
    Some(value.filter(|_| is_authority).unwrap_or(0..0))
}

/// Where a string is; none of one that is compressed (section 5.2).
fn string(block: &[u8], at: &mut usize) -> Option<Option<Range<usize>>> {
    let is_plain = block.get(*at)? & 0x80 == 0;
    let len = integer(block, at, 7)?;
    let from = *at;
    *at = from.checked_add(len).filter(|to| *to <= block.len())?;
    Some(is_plain.then_some(from..*at))
}

/// A number whose first bits are the last ones of a byte (section 5.1).
fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let most = (1 << prefix) - 1;
    let mut next = || {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        Some(byte)
    };
    let mut value = next()? & most;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1][..], payload].concat()
    }

    /// What is read of bytes that come in pieces of this size, behind a preface.
    fn read(bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut frames, mut out) = (Frames::new(3), BytesMut::new());
        frames.take(b"PRI", &mut out);
        bytes.chunks(piece).for_each(|piece| frames.take(piece, &mut out));
        out.split_off(3).to_vec()
    }

    /// As grpcio 1.85 sends it, and by the number of the name.
    const NAMED: &[u8] = b"\x40\x05:path\x05/a%2F\x40\x0a:authority\x09a%2Fb%2Fc\x83\x86";
    const NUMBERED: &[u8] = b"\x83\x01\x05a%2Fb\x10\x02te\x08trailers";

    #[test]
    fn a_path_that_is_an_authority_is_corrected_and_nothing_else() {
        let data = frame(0, 1, b"\x40\x0a:authority\x03%%%");
        let padded = [&[2, 0, 0, 0, 0, 16][..], NUMBERED, b"%%"].concat();
        let sent = [
            frame(HEADERS, 4, NAMED),
            data.clone(),
            frame(HEADERS, 4 | PADDED | PRIORITY, &padded),
            frame(HEADERS, 4, b"\x01\x85%%%%%"),
        ]
        .concat();
        let corrected = String::from_utf8_lossy(&sent).into_owned();
        assert!(corrected.contains("a%2Fb%2Fc"));
        for piece in [1, 5, sent.len()] {
            let got = read(&sent, piece);
            assert_eq!(got.len(), sent.len());
            let differs: Vec<_> = (0..sent.len()).filter(|at| sent[*at] != got[*at]).collect();
            let expected: Vec<_> = [&b"a%2Fb%2Fc"[..], b"a%2Fb\x10"]
                .iter()
                .flat_map(|value| {
                    let from = sent.windows(value.len()).position(|part| part == *value).unwrap();
                    (from..from + value.len()).filter(|at| sent[*at] == b'%')
                })
                .collect();
            assert_eq!(differs, expected);
            assert!(differs.iter().all(|at| got[*at] == b'-'));
        }
    }

    /// Any bytes: none is lost or added, and none but `%` changes.
    #[test]
    fn any_bytes_pass() {
        let mut random = Random::of_this_run();
        let (named, numbered) = (frame(HEADERS, 4, NAMED), frame(HEADERS, 12, NUMBERED));
        let seeds = [[&named[..], &frame(0, 0, b"x"), &numbered].concat(), named, numbered];
        let mut changed = 0;
        for _ in 0..20_000 {
            let bytes = random.mutated(&seeds);
            let got = read(&bytes, 1 + random.below(64));
            assert!(got.len() <= bytes.len() && bytes.len() - got.len() <= HEAD + LONGEST);
            for (was, is) in bytes.iter().zip(&got).filter(|(was, is)| was != is) {
                assert_eq!((*was, *is), (b'%', b'-'));
                changed += 1;
            }
        }
        assert!(changed > 1000, "{changed}");
    }
}
