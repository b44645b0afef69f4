//! What a block contains, and reading it.

use partywall_testkit::mix;

/// The unit of contents, and of what a reader looks at.
pub const PAGE: usize = 4096;

/// A word of a page; all words of one page are the same.
pub type Word = [u8; 8];

/// Words of a page.
pub const WORDS: usize = PAGE / size_of::<Word>();

/// One setting of a block. Its number decides all bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn(u64);

impl Turn {
    /// The first of a client.
    pub fn first(client: usize) -> Self {
        Self((client as u64) << 40)
    }

    /// The one that follows, of the other side.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// What a side sets instead when it has read something wrong.
    pub fn spoilt(self) -> Self {
        Self(!self.0)
    }

    /// The word of a page.
    #[inline]
    pub fn word(self, page: usize) -> Word {
        mix(mix(self.0) ^ page as u64).to_le_bytes()
    }

    /// Sets all bytes of a block.
    pub fn fill(self, block: &mut [u8]) {
        for (page, room) in block.chunks_exact_mut(PAGE).enumerate() {
            room.as_chunks_mut().0.fill(self.word(page));
        }
    }
}

/// Reads a block, whole or in pieces of whole pages.
#[derive(Debug)]
pub struct Reader {
    turn: Turn,
    page: usize,
    pages: usize,
    is_right: bool,
}

impl Reader {
    /// For a block of `bytes` bytes that was set for `turn`.
    pub fn new(turn: Turn, bytes: usize) -> Self {
        Self { turn, page: 0, pages: bytes / PAGE, is_right: true }
    }

    /// Which setting is expected.
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Reads what follows: of each page one word, at a place that differs from page to page and from turn to
    /// turn.
    pub fn read(&mut self, piece: &[u8]) {
        let (pages, rest) = piece.as_chunks::<PAGE>();
        self.is_right &= rest.is_empty();
        for page in pages {
            let place = (self.turn.0 as usize ^ self.page) % WORDS;
            self.is_right &= page.as_chunks().0[place] == self.turn.word(self.page);
            self.page += 1;
        }
    }

    /// Reads a whole block that has so many words, by their numbers.
    pub fn read_words(&mut self, words: usize, word: impl Fn(usize) -> u64) {
        self.is_right &= words.is_multiple_of(WORDS);
        for page in 0..words / WORDS {
            let place = (self.turn.0 as usize ^ self.page) % WORDS;
            let word = word(page * WORDS + place).to_ne_bytes();
            self.is_right &= word == self.turn.word(self.page);
            self.page += 1;
        }
    }

    /// Whether all was read.
    pub fn is_over(&self) -> bool {
        self.page >= self.pages
    }

    /// Whether all was read and right.
    pub fn is_right(&self) -> bool {
        self.is_right && self.page == self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 6 * PAGE;

    fn block(turn: Turn) -> Vec<u8> {
        let mut block = vec![0; BYTES];
        turn.fill(&mut block);
        block
    }

    fn is_right(turn: Turn, pieces: &[&[u8]]) -> bool {
        let mut reader = Reader::new(turn, BYTES);
        pieces.iter().for_each(|piece| reader.read(piece));
        reader.is_right()
    }

    #[test]
    fn only_the_block_of_its_turn_is_right() {
        let turn = Turn::first(3).next();
        let right = block(turn);
        assert!(is_right(turn, &[&right]));
        assert!(is_right(turn, &[&right[..PAGE], &right[PAGE..]]));
        let others = [turn.next(), turn.spoilt(), Turn::first(3), Turn::first(2).next()];
        assert!(others.iter().all(|other| !is_right(turn, &[&block(*other)])));
        assert!(!is_right(turn, &[&right[..BYTES - PAGE]]), "a page is missing");
        assert!(!is_right(turn, &[&right, &right[..PAGE]]), "a page too many");
        for pages in 1..BYTES / PAGE {
            let (head, rest) = right.split_at(pages * PAGE);
            assert!(!is_right(turn, &[rest, head]), "{pages} pages come last");
        }
        let pages: Vec<_> = (0..1000).map(|page| turn.word(page)).collect();
        let different: std::collections::HashSet<_> = pages.iter().collect();
        assert_eq!(different.len(), pages.len());
    }

    #[test]
    fn a_page_that_was_left_out_is_seen_wherever_it_is() {
        let mut turn = Turn::first(0);
        for page in 0..BYTES / PAGE {
            let mut stale = block(turn);
            turn = turn.next();
            let fresh = block(turn);
            for other in (0..BYTES / PAGE).filter(|other| *other != page) {
                let at = other * PAGE..(other + 1) * PAGE;
                stale[at.clone()].copy_from_slice(&fresh[at]);
            }
            assert!(!is_right(turn, &[&stale]), "page {page}");
        }
    }

    #[test]
    fn words_anywhere_in_a_page_are_read() {
        let mut turn = Turn::first(0);
        let read = |turn: Turn| {
            let seen = |place: &usize| {
                let mut block = block(turn);
                block[place * 8] ^= 1;
                !is_right(turn, &[&block])
            };
            (0..WORDS).find(seen).expect("one word of the first page is read")
        };
        let mut places: Vec<usize> = (0..WORDS)
            .map(|_| {
                turn = turn.next();
                read(turn)
            })
            .collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), WORDS);
    }
}
