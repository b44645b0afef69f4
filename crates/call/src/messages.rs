//! Where messages begin and end in the data of a stream.
//!
//! gRPC's messages have a head of five bytes: a compression flag and the length, with the most
//! significant byte first. The pieces in which they come are cut anywhere, in a head too.

/// Length of a message's head.
const HEAD: usize = 5;
/// Messages of up to so many bytes are too short to keep account of.
pub const SHORT: usize = 4096;

/// How far the data of one stream has come.
#[derive(Default)]
pub struct Messages {
    head: [u8; HEAD],
    /// So much of the head has gone by.
    have: usize,
    /// So much of the message has not gone by.
    left: u64,
}

/// What a piece of data brings.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// So many bytes of the piece are of messages seen before, or that end in it, or are short.
    pub pass: usize,
    /// The message that was under way has ended.
    pub ended: bool,
    /// After those begins a message of so many bytes that goes on in another piece.
    pub long: Option<u32>,
}

impl Messages {
    /// So much of the message under way has not gone by.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Goes through a piece, up to a long message that begins in it.
    pub fn see(&mut self, piece: &[u8]) -> Seen {
        let mut pass = piece.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= pass as u64;
        let ended = pass > 0 && self.left == 0;
        while self.left == 0 {
            let rest = &piece[pass..];
            let Some(len) = self.length(rest) else {
                self.head[self.have..self.have + rest.len()].copy_from_slice(rest);
                self.have += rest.len();
                break;
            };
            let body = rest.len() - (HEAD - self.have);
            if len as usize > body.max(SHORT) {
                return Seen { pass, ended, long: Some(len) };
            }
            let here = body.min(len as usize);
            pass += HEAD - self.have + here;
            (self.have, self.left) = (0, u64::from(len) - here as u64);
        }
        Seen { pass: piece.len(), ended, long: None }
    }

    /// The length of the message whose head ends in `rest`, if that reaches so far.
    fn length(&self, rest: &[u8]) -> Option<u32> {
        let mut head = self.head;
        head[self.have..].copy_from_slice(rest.get(..HEAD - self.have)?);
        Some(u32::from_be_bytes([head[1], head[2], head[3], head[4]]))
    }

    /// The long message of which `piece` is the beginning goes by; how many bytes that is from the
    /// piece's first to the message's last.
    pub fn begin(&mut self, piece: &[u8], len: u32) -> u64 {
        let whole = u64::from(len) + (HEAD - self.have) as u64;
        (self.have, self.left) = (0, whole - piece.len() as u64);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(len: usize) -> Vec<u8> {
        let mut m = vec![0];
        m.extend_from_slice(&(len as u32).to_be_bytes());
        m.resize(HEAD + len, 7);
        m
    }

    proptest! {
        /// However messages are cut, each long one is found once, at its place, and ends once.
        #[test]
        fn long_messages_are_found_wherever_they_are_cut(
            lens in proptest::collection::vec(0usize..3 * SHORT, 1..12),
            cuts in proptest::collection::vec(1usize..2 * SHORT, 1..12),
        ) {
            let data: Vec<u8> = lens.iter().flat_map(|&len| message(len)).collect();
            let (mut messages, mut at, mut under_way, mut found) = (Messages::default(), 0, None, Vec::new());
            for cut in cuts.iter().cycle() {
                let mut piece = &data[at..data.len().min(at + cut)];
                while !piece.is_empty() {
                    let seen = messages.see(piece);
                    if seen.ended && under_way.is_some() {
                        prop_assert!(under_way.take().unwrap() <= at + seen.pass);
                    }
                    at += seen.pass;
                    piece = &piece[seen.pass..];
                    if let Some(len) = seen.long {
                        prop_assert!(under_way.is_none());
                        let whole = messages.begin(piece, len);
                        under_way = Some(at + whole as usize);
                        found.push((at + whole as usize, len as usize));
                        at += piece.len();
                        piece = &[];
                    }
                }
                if at == data.len() { break; }
            }
            let mut end = 0;
            let ends: Vec<_> = lens.iter().map(|&len| { end += HEAD + len; (end, len) }).collect();
            prop_assert!(found.iter().all(|f| ends.contains(f) && f.1 > SHORT), "{:?} of {:?}", found, ends);
            // What was not found came to its end in the piece in which it began.
            let missed = ends.iter().filter(|e| e.1 > SHORT && !found.contains(e));
            for (end, len) in missed {
                prop_assert!(cuts.iter().any(|cut| cut > len), "{} bytes to {}", len, end);
            }
        }
    }

    #[test]
    fn a_head_that_is_cut_is_put_together() {
        let data = message(SHORT + 1);
        for cut in 1..HEAD {
            let mut messages = Messages::default();
            let none = Seen { pass: cut, ended: false, long: None };
            assert_eq!(messages.see(&data[..cut]), none);
            let long = Seen { pass: 0, ended: false, long: Some(SHORT as u32 + 1) };
            assert_eq!(messages.see(&data[cut..100]), long);
            assert_eq!(
                messages.begin(&data[cut..100], SHORT as u32 + 1),
                (data.len() - cut) as u64
            );
            assert_eq!(
                messages.see(&data[100..]),
                Seen { pass: data.len() - 100, ended: true, long: None }
            );
        }
    }
}
