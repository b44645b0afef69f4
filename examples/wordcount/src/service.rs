//! The service: counts words.

use std::collections::HashMap;

use bytes::Bytes;
use tonic::{Request, Response, Status};

use crate::proto::{
    CountsReply, CountsRequest, Frequency, TotalReply, TotalRequest, word_count_server::WordCount,
};

/// Counts the words of the texts it is given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counter;

#[tonic::async_trait]
impl WordCount for Counter {
    async fn total(&self, request: Request<TotalRequest>) -> Result<Response<TotalReply>, Status> {
        let words = words(&request.get_ref().text).count() as u64;
        Ok(Response::new(TotalReply { words }))
    }

    async fn counts(
        &self,
        request: Request<CountsRequest>,
    ) -> Result<Response<CountsReply>, Status> {
        Ok(Response::new(CountsReply { frequencies: frequencies(&request.get_ref().text) }))
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Every word with its count, in the order that the reply promises. The words share the text's
/// memory.
fn frequencies(text: &Bytes) -> Vec<Frequency> {
    let mut counts: HashMap<&[u8], u64> = HashMap::new();
    for word in words(text) {
        *counts.entry(word).or_default() += 1;
    }
    let mut sorted: Vec<(&[u8], u64)> = counts.into_iter().collect();
    sorted.sort_unstable_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
    sorted
        .into_iter()
        .map(|(word, count)| Frequency { word: text.slice_ref(word), count })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &'static [u8]) -> Vec<(String, u64)> {
        frequencies(&Bytes::from_static(text))
            .into_iter()
            .map(|f| (String::from_utf8_lossy(&f.word).into_owned(), f.count))
            .collect()
    }

    #[test]
    fn words_are_split_at_ascii_whitespace() {
        assert_eq!(words(b"").count(), 0);
        assert_eq!(words(b" \t\r\n\x0c").count(), 0);
        assert_eq!(words(b" a\tb\r\nc\x0cd ").count(), 4);
        // Neither a vertical tab nor what only Unicode calls a space ends a word.
        assert_eq!(words("a\x0bb c\u{a0}d".as_bytes()).count(), 2);
    }

    #[test]
    fn frequencies_are_sorted() {
        let expected = [("the", 2), ("The", 1), ("a", 1), ("wall,", 1)];
        let expected = expected.map(|(word, count)| (word.to_owned(), count));
        assert_eq!(counted(b"the wall, The a the"), expected);
        assert_eq!(counted(b""), []);
        assert_eq!(counted(b"\xff\xff \xff\xff"), [("\u{fffd}\u{fffd}".to_owned(), 2)]);
    }
}
