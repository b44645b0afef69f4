//! What one sample measures.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The two benches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bench {
    /// Small calls, echoed.
    Calls,
    /// The word count service.
    Words,
}

/// How calls follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One call at a time, each timed.
    Latency,
    /// A full window of calls in flight; calls per second.
    Pipelined,
}

/// What the word count service is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// The number of words.
    Total,
    /// How often each word occurs.
    Counts,
}

/// What is timed in the word count bench.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Clock {
    /// From spawning the client to its exit, with the server already running.
    A,
    /// From a warm client's request to the verified answer.
    B,
}

/// Where the two processes run.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Both on one CPU.
    SameCore,
    /// Each on a core of its own.
    TwoCores,
    /// Wherever the scheduler puts them.
    Unpinned,
}

/// How a side waits for the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// It keeps looking.
    Spin,
    /// It sleeps in the kernel.
    Block,
}

/// One cell of a bench, without the contender's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Case {
    /// Which bench.
    pub bench: Bench,
    /// `calls` only.
    pub mode: Option<Mode>,
    /// `words` only.
    pub op: Option<Op>,
    /// `words` only.
    pub clock: Option<Clock>,
    /// Bytes of a call or words of a text; none for a bare hand-over.
    pub size: Option<u64>,
    /// Where the processes run.
    pub placement: Placement,
    /// How they wait; none where only one process takes part.
    pub wait: Option<Wait>,
}

/// Sizes of a call in bytes.
pub const CALL_SIZES: [u64; 3] = [32, 1024, 65536];

/// Sizes of a text in words.
pub const WORD_SIZES: [u64; 7] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The largest text whose word frequencies are asked for. Beyond it the table of distinct words
/// outgrows the caches and the text by far, and hides the transport.
pub const COUNTS_MAX: u64 = 10_000_000;

impl Case {
    /// A case of `calls`.
    pub const fn call(
        mode: Mode,
        size: Option<u64>,
        placement: Placement,
        wait: Option<Wait>,
    ) -> Self {
        Self { bench: Bench::Calls, mode: Some(mode), op: None, clock: None, size, placement, wait }
    }

    /// A case of `words`; always unpinned.
    pub const fn words(clock: Clock, op: Op, words: u64, wait: Option<Wait>) -> Self {
        Self {
            bench: Bench::Words,
            mode: None,
            op: Some(op),
            clock: Some(clock),
            size: Some(words),
            placement: Placement::Unpinned,
            wait,
        }
    }

    /// Payload bytes of a call; 0 for a bare hand-over.
    pub fn bytes(&self) -> usize {
        self.size.unwrap_or(0) as usize
    }

    /// Calls in flight.
    pub fn window(&self) -> usize {
        match (self.mode, self.size) {
            (Some(Mode::Pipelined), Some(0..=64)) => 64,
            (Some(Mode::Pipelined), Some(65..=4096)) => 32,
            (Some(Mode::Pipelined), _) => 4,
            _ => 1,
        }
    }

    /// Whether the placement of the two cores matters, so that the line is probed.
    pub fn probed(&self) -> bool {
        self.placement == Placement::TwoCores
    }

    /// The cases shown and run side by side with this one have the same group. Bare hand-overs go
    /// with the smallest calls.
    pub fn group(&self) -> Self {
        let size = self.size.or(Some(CALL_SIZES[0]));
        Self { size, wait: None, ..*self }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match (self.bench, self.size) {
            (Bench::Calls, Some(bytes)) => bytes_text(bytes),
            (Bench::Words, Some(words)) => words_text(words),
            (_, None) => "bare".to_owned(),
        };
        let mut parts = vec![size];
        parts.extend(self.mode.map(|mode| lower(&mode)));
        parts.extend(self.op.map(|op| lower(&op)));
        parts.extend(self.clock.map(|clock| format!("clock {clock:?}")));
        parts.push(self.placement.text().to_owned());
        parts.extend(self.wait.map(|wait| lower(&wait)));
        f.write_str(&parts.join(", "))
    }
}

impl Placement {
    /// As printed.
    pub fn text(self) -> &'static str {
        match self {
            Self::SameCore => "same core",
            Self::TwoCores => "two cores",
            Self::Unpinned => "unpinned",
        }
    }
}

fn lower(value: &impl fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn bytes_text(bytes: u64) -> String {
    if bytes >= 1024 { format!("{} KiB", bytes / 1024) } else { format!("{bytes} B") }
}

fn words_text(words: u64) -> String {
    let mut text = words.to_string();
    for at in
        (1..text.len()).rev().filter(|at| (text.len() - at).is_multiple_of(3)).collect::<Vec<_>>()
    {
        text.insert(at, ',');
    }
    format!("{text} words")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_sizes_for_people() {
        assert_eq!(bytes_text(32), "32 B");
        assert_eq!(bytes_text(65536), "64 KiB");
        assert_eq!(words_text(100), "100 words");
        assert_eq!(words_text(1_000_000), "1,000,000 words");
    }

    #[test]
    fn windows_follow_the_size() {
        let window =
            |size| Case::call(Mode::Pipelined, Some(size), Placement::SameCore, None).window();
        assert_eq!(CALL_SIZES.map(window), [64, 32, 4]);
    }
}
