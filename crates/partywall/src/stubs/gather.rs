//! A message that comes in several records, put together for the native way.
//!
//! ```text
//! taken      its bytes, one copy beside that of the ring; memory for all once its length is known; none
//!            where they come in one piece, as out of a parcel
//! whole      they are one message, which is not compressed
//! another    compressed, over the limit, more than one message: tonic's way takes what has come and the rest
//! ```

use bytes::Bytes;
use partywall_abi::limits;

use super::message::{is_sole, said};
use crate::wire::PREFIX;

/// What has come of a message.
pub(crate) struct Gather {
    /// The first piece, while there is no other.
    sole: Bytes,
    bytes: Vec<u8>,
    most: usize,
}

impl Gather {
    /// Of a message of so many bytes at most.
    pub(crate) fn new(most: Option<usize>) -> Self {
        Self { sole: Bytes::new(), bytes: Vec::new(), most: most.unwrap_or(limits::MESSAGE_BYTES) }
    }

    /// Takes a piece; false when this is none for the native way.
    pub(crate) fn take(&mut self, piece: Bytes) -> bool {
        if self.came().is_empty() {
            self.sole = piece;
        } else {
            let first = std::mem::take(&mut self.sole);
            if let Some(len) = said(&first).filter(|len| *len <= self.most) {
                self.bytes.reserve_exact(PREFIX + len);
            }
            self.bytes.extend_from_slice(&first);
            self.bytes.extend_from_slice(&piece);
        }
        let came = self.came();
        let Some(len) = said(came) else { return true };
        came[0] == 0 && len <= self.most && came.len() <= PREFIX + len
    }

    fn came(&self) -> &[u8] {
        if self.sole.is_empty() { &self.bytes } else { &self.sole }
    }

    /// Whether all of the message has come.
    pub(crate) fn is_whole(&self) -> bool {
        is_sole(self.came())
    }

    /// What has come.
    pub(crate) fn into_bytes(self) -> Bytes {
        if self.sole.is_empty() { self.bytes.into() } else { self.sole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(pieces: &[&[u8]], most: usize) -> (bool, bool) {
        let mut gather = Gather::new(Some(most));
        let goes = pieces.iter().all(|piece| gather.take(Bytes::copy_from_slice(piece)));
        (goes, gather.is_whole())
    }

    #[test]
    fn one_message_is_put_together_wherever_it_is_cut() {
        let message = b"\0\0\0\0\x04abcd";
        for at in 0..=message.len() {
            let (before, after) = message.split_at(at);
            assert_eq!(gathered(&[before, after], 4), (true, true), "cut at {at}");
            assert_eq!(gathered(&[before], 4), (true, at == message.len()));
        }
    }

    #[test]
    fn what_is_not_one_good_message_is_not_taken() {
        assert_eq!(gathered(&[b"\x01\0\0\0\x01a"], 4), (false, false), "compressed");
        assert_eq!(gathered(&[b"\0\0\0\0\x05"], 4), (false, false), "over the limit");
        assert!(!gathered(&[b"\0\0\0\0\x01a", b"\0"], 4).0, "more than one");
        let mut gather = Gather::new(Some(4));
        assert!(gather.take(Bytes::from_static(b"\0\0\0\0\x01a")) && gather.is_whole());
        assert!(!gather.take(Bytes::from_static(b"b")) && !gather.is_whole());
        assert_eq!(gather.into_bytes(), &b"\0\0\0\0\x01ab"[..], "nothing is lost");
        assert!(!gathered(&[b"\0\0\xff\xff\xff\xff"], 4).0);
    }
}
