//! What one sample measures.

use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use crate::functions::cell::Cell;

/// The benches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bench {
    /// Small calls, echoed.
    Calls,
    /// The word count service.
    Words,
    /// Calls between domains of one address space, beside calls between processes.
    Domain,
    /// Blocks that two sides set and pass by turns.
    Transfer,
    /// Thousands of small functions, called one after the other.
    Functions,
    /// Calls over sealed links beside the same over plain ones, and making them.
    Sealed,
}

impl Bench {
    /// Every size that it measures: bytes of a call or a block, words of a text, or numbers of functions.
    pub const fn sizes(self) -> &'static [u64] {
        match self {
            Self::Calls => &CALL_SIZES,
            Self::Words => &WORD_SIZES,
            Self::Domain => &DOMAIN_SIZES,
            Self::Transfer => &BLOCK_SIZES,
            Self::Functions => &FUNCTIONS,
            Self::Sealed => &SEALED_SIZES,
        }
    }

    /// Those of a quick run, unless options say otherwise: all that it may have time for.
    pub const fn quick_sizes(self) -> &'static [u64] {
        match self {
            Self::Sealed => &SEALED_QUICK,
            _ => self.sizes(),
        }
    }
}

/// How calls follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One call at a time, each timed.
    Latency,
    /// A full window of calls in flight; calls per second.
    Pipelined,
    /// One call at a time, timed by the batch: the mean.
    Loop,
    /// So many calls per second; CPU time.
    Paced,
    /// One call at a time with a long request and a short reply.
    Bulk,
    /// Functions that are loaded and have been called before.
    Warm,
    /// Functions of which the worker has no page mapped.
    Cold,
    /// Links that are made, one at a time.
    Connect,
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

/// Where the two sides are at home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Both are processes of the host.
    Host,
    /// The client is in a container, the server on the host.
    ClientInContainer,
    /// Each is in a container of its own.
    TwoContainers,
}

/// The users of the containers of servers and of clients.
pub const USERS: [u32; 2] = [64_001, 64_002];

impl Place {
    /// As printed; nothing for the usual place.
    pub fn text(self) -> &'static str {
        match self {
            Self::Host => "",
            Self::ClientInContainer => "client in a container",
            Self::TwoContainers => "two containers",
        }
    }
}

/// On which CPUs the two processes run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
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
    /// `calls`, `domain`, `functions` and `sealed` only.
    pub mode: Option<Mode>,
    /// `words` only.
    pub op: Option<Op>,
    /// `words` only.
    pub clock: Option<Clock>,
    /// Bytes of a call or a block, words of a text, or functions; none for a bare hand-over or a connect.
    pub size: Option<u64>,
    /// `transfer` only: how many clients pass blocks at once.
    pub clients: Option<u32>,
    /// Calls per second, where they are paced.
    pub rate: Option<u64>,
    /// Where the two sides are at home.
    pub place: Place,
    /// On which CPUs the processes run.
    pub placement: Placement,
    /// How they wait; none where only one process takes part.
    pub wait: Option<Wait>,
    /// `functions` only.
    #[serde(flatten)]
    pub functions: Option<Cell>,
}

/// How many distinct functions there are: of a quick run, and of any other.
pub const FUNCTIONS: [u64; 2] = [500, 5_000];

/// Sizes of a call in bytes.
pub const CALL_SIZES: [u64; 3] = [32, 1024, 65536];

/// Sizes of a call over a sealed link: powers of four.
pub const SEALED_SIZES: [u64; 13] = [
    1,
    4,
    16,
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];

/// Those of a quick run.
const SEALED_QUICK: [u64; 3] = [1, 4 << 10, 64 << 10];

/// Sizes of a text in words.
pub const WORD_SIZES: [u64; 7] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Sizes of a call between domains that is echoed.
pub const ECHO_SIZES: [u64; 3] = CALL_SIZES;

/// Sizes of a long request; a line through the times shows what a byte costs.
pub const BULK_SIZES: [u64; 5] = [64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// The same of one that a record of a ring has room for; [`BULK_SIZES`] go in pieces there.
pub const RECORD_SIZES: [u64; 4] = [16 << 10, 32 << 10, 48 << 10, 56 << 10];

/// Every size of `domain`.
const DOMAIN_SIZES: [u64; 11] = [
    32,
    1024,
    16 << 10,
    32 << 10,
    48 << 10,
    56 << 10,
    64 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

/// Sizes of a block in bytes.
pub const BLOCK_SIZES: [u64; 12] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    128 << 20,
    256 << 20,
    512 << 20,
    1 << 30,
];

/// How many clients pass blocks of [`CLIENTS_BYTES`] at once.
pub const CLIENTS: [u32; 3] = [1, 8, 64];

/// The size of a block that several clients pass.
pub const CLIENTS_BYTES: u64 = 1 << 20;

/// Calls per second, where they are paced.
pub const RATES: [u64; 2] = [10_000, 50_000];

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
        Self {
            bench: Bench::Calls,
            mode: Some(mode),
            op: None,
            clock: None,
            size,
            clients: None,
            rate: None,
            place: Place::Host,
            placement,
            wait,
            functions: None,
        }
    }

    /// A case of `domain` that is not paced.
    pub const fn domain(
        mode: Mode,
        size: Option<u64>,
        placement: Placement,
        wait: Option<Wait>,
    ) -> Self {
        Self { bench: Bench::Domain, ..Self::call(mode, size, placement, wait) }
    }

    /// A paced case of `domain`.
    pub const fn paced(
        rate: u64,
        size: Option<u64>,
        placement: Placement,
        wait: Option<Wait>,
    ) -> Self {
        Self { rate: Some(rate), ..Self::domain(Mode::Paced, size, placement, wait) }
    }

    /// A call of `sealed`, which is echoed.
    pub const fn sealed(size: u64, placement: Placement, wait: Option<Wait>) -> Self {
        Self { bench: Bench::Sealed, ..Self::call(Mode::Latency, Some(size), placement, wait) }
    }

    /// Connects of `sealed`, on one core.
    pub const fn connect(wait: Option<Wait>) -> Self {
        let connect = Self::call(Mode::Connect, None, Placement::SameCore, wait);
        Self { bench: Bench::Sealed, ..connect }
    }

    /// A case of `words`; always unpinned.
    pub const fn words(clock: Clock, op: Op, words: u64, wait: Option<Wait>) -> Self {
        Self {
            bench: Bench::Words,
            mode: None,
            op: Some(op),
            clock: Some(clock),
            size: Some(words),
            clients: None,
            rate: None,
            place: Place::Host,
            placement: Placement::Unpinned,
            wait,
            functions: None,
        }
    }

    /// A case of `transfer`; always unpinned.
    pub const fn transfer(bytes: u64, clients: u32, wait: Option<Wait>) -> Self {
        Self {
            bench: Bench::Transfer,
            mode: None,
            op: None,
            clock: None,
            size: Some(bytes),
            clients: Some(clients),
            rate: None,
            place: Place::Host,
            placement: Placement::Unpinned,
            wait,
            functions: None,
        }
    }

    /// A case of `functions`: so many, called by a dispatcher on a core of its own.
    pub const fn functions(mode: Mode, count: u64, cell: Cell) -> Self {
        Self {
            bench: Bench::Functions,
            mode: Some(mode),
            op: None,
            clock: None,
            size: Some(count),
            clients: None,
            rate: None,
            place: Place::Host,
            placement: Placement::TwoCores,
            wait: None,
            functions: Some(cell),
        }
    }

    /// The same case elsewhere.
    pub const fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Payload bytes of a call or a block; 0 for a bare hand-over.
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

    /// Whether several calls are under way at once.
    pub fn is_pipelined(&self) -> bool {
        self.mode == Some(Mode::Pipelined)
    }

    /// Whether a side that waits sleeps.
    pub fn sleeps(&self) -> bool {
        self.wait != Some(Wait::Spin)
    }

    /// Whether the placement of the two cores matters, so that the line is probed.
    pub fn probed(&self) -> bool {
        self.placement == Placement::TwoCores
    }

    /// The cases shown and run side by side with this one have the same group. Bare hand-overs go
    /// with the smallest calls.
    pub fn group(&self) -> Self {
        let bare = (self.mode != Some(Mode::Connect)).then_some(CALL_SIZES[0]);
        let size = self.size.or(bare);
        Self { size, place: Place::Host, wait: None, ..*self }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match (self.bench, self.size) {
            (Bench::Words, Some(words)) => Some(format!("{} words", HumanCount(words))),
            (Bench::Functions, Some(count)) => Some(format!("{} functions", HumanCount(count))),
            (_, Some(bytes)) => Some(bytes_text(bytes)),
            (_, None) => (self.mode != Some(Mode::Connect)).then(|| "bare".to_owned()),
        };
        let mut parts = Vec::from_iter(size);
        let several = self.clients.filter(|clients| *clients > 1);
        parts.extend(several.map(|clients| format!("{clients} clients")));
        parts.extend(self.mode.map(|mode| lower(&mode)));
        parts.extend(self.rate.map(|rate| format!("{} calls/s", HumanCount(rate))));
        parts.extend(self.op.map(|op| lower(&op)));
        parts.extend(self.clock.map(|clock| format!("clock {clock:?}")));
        let placement = match self.placement {
            Placement::SameCore => "same core",
            Placement::TwoCores => "two cores",
            Placement::Unpinned => "unpinned",
        };
        parts.push(placement.to_owned());
        parts.extend(self.wait.map(|wait| lower(&wait)));
        parts.extend(self.functions.map(|cell| cell.to_string()));
        parts.extend((self.place != Place::Host).then(|| self.place.text().to_owned()));
        f.write_str(&parts.join(", "))
    }
}

impl Wait {
    /// As printed; nothing where only one process takes part.
    pub fn text(wait: Option<Self>) -> &'static str {
        match wait {
            Some(Self::Spin) => "spin",
            Some(Self::Block) => "block",
            None => "",
        }
    }
}

fn lower(value: &impl fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn bytes_text(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_sizes_for_people() {
        assert_eq!(bytes_text(32), "32 B");
        assert_eq!(bytes_text(65536), "64 KiB");
        assert_eq!(bytes_text(1 << 20), "1 MiB");
        let block = |clients| Case::transfer(1 << 30, clients, Some(Wait::Block)).to_string();
        assert_eq!(block(1), "1 GiB, unpinned, block");
        assert_eq!(block(8), "1 GiB, 8 clients, unpinned, block");
        let text = Case::words(Clock::B, Op::Total, 1_000_000, None);
        assert_eq!(text.to_string(), "1,000,000 words, total, clock B, unpinned");
        let paced = Case::paced(10_000, Some(32), Placement::SameCore, Some(Wait::Block));
        assert_eq!(paced.to_string(), "32 B, paced, 10,000 calls/s, same core, block");
        let contained = Case::call(Mode::Latency, Some(32), Placement::TwoCores, Some(Wait::Spin))
            .at(Place::TwoContainers);
        assert_eq!(contained.to_string(), "32 B, latency, two cores, spin, two containers");
        assert_eq!(Case::connect(Some(Wait::Block)).to_string(), "connect, same core, block");
    }

    #[test]
    fn every_size_of_domains_is_one_of_its_sizes() {
        let mut all = [&ECHO_SIZES[..], &RECORD_SIZES, &BULK_SIZES].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, DOMAIN_SIZES);
    }

    #[test]
    fn sizes_of_sealed_calls_are_powers_of_four() {
        assert!(SEALED_SIZES.iter().enumerate().all(|(power, size)| *size == 1 << (2 * power)));
        assert!(SEALED_QUICK.iter().all(|size| SEALED_SIZES.contains(size)));
        assert_eq!(Case::connect(None).group(), Case::connect(Some(Wait::Block)).group());
        assert_eq!(Case::connect(None).group().size, None);
    }

    #[test]
    fn places_of_a_case_are_shown_side_by_side() {
        let host = Case::transfer(1 << 20, 1, Some(Wait::Block));
        let contained = host.at(Place::ClientInContainer);
        assert_ne!(host, contained);
        assert_eq!(host.group(), contained.group());
    }

    #[test]
    fn windows_follow_the_size() {
        let window =
            |size| Case::call(Mode::Pipelined, Some(size), Placement::SameCore, None).window();
        assert_eq!(CALL_SIZES.map(window), [64, 32, 4]);
    }
}
