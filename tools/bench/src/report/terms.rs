//! What the words of a report mean.

use crate::case::Bench;
use crate::ratio::Metric;

/// Contenders, each in one sentence.
const CONTENDERS: &[(&str, &str)] = &[
    ("pipe", "two pipes, one each way"),
    ("uds", "a Unix stream socket; the client hands the file to the kernel with sendfile(2)"),
    ("uds-epoll", "a Unix stream socket with epoll(7) on both sides, as an event loop uses it"),
    ("shm", "plain shared memory that client and server trust each other to use correctly"),
    ("tonic-uds", "gRPC with tonic over a Unix socket"),
    ("tonic-tcp", "gRPC with tonic over TCP on the loopback interface"),
    (
        "tonic-inline",
        "tonic's client and server code joined in one thread, with no transport between",
    ),
    ("iceoryx2", "iceoryx2's request and response, polling (spin) or with its events (block)"),
    ("partywall-raw", "Partywall's link without gRPC: messages of bytes"),
    ("partywall-blocking", "Partywall's blocking channel against the async server"),
    ("partywall-tonic", "tonic's generated stubs over Partywall's channel, as programs use it"),
    ("ring-raw", "partywall-raw, as the benches of domains call it"),
    ("ring-tonic", "partywall-tonic, as the benches of domains call it"),
    (
        "gate",
        "a function over bytes in another domain, through the call gate, without protection keys",
    ),
    ("gate-keys", "the same with protection keys"),
    ("domain", "the text through the call gate, without protection keys"),
    ("domain-keys", "the same with protection keys"),
    ("domain-tonic", "tonic's stubs between two domains, without protection keys"),
    ("domain-tonic-keys", "the same with protection keys"),
    ("line-probe", "floor: one word bounced between two cores"),
    ("handoff-floor", "floor: two processes that take turns with a futex"),
    ("asyncfd-floor", "floor: a bare wake-up of a tokio task, there and back"),
    ("ring-floor", "floor: the least code that a ring needs"),
    ("floor", "floor: one process reads the text into a new buffer and counts"),
    ("floor-reuse", "floor: the same with one buffer that is used again"),
    ("call", "floor: a function called by its address"),
    ("memcpy", "floor: a copy of the request"),
    ("clock", "floor: two time stamps in a row, which every single time includes"),
];

const COMMON: &[(&str, &str)] = &[
    ("round", "all contenders once, in random order; ratios are taken within a round"),
    ("p50, p99, p99.9", "the time that half, 99 % or 99.9 % of a sample's calls stay below"),
    ("CPU/call", "processor time of both sides together per call"),
    ("spin, block", "a side that waits keeps looking, or sleeps in the kernel"),
    ("same core, two cores, unpinned", "where the two sides run"),
    ("near, far", "whether a cache line goes between the two cores and back in under 275 ns"),
    ("floor", "what nobody can stay below"),
    ("pass, FAIL", "the whole 95 % interval is within, or beyond, the bound"),
    ("undecided", "the bound lies within the interval: more rounds, or a quieter machine, decide"),
    ("too few", "fewer than five rounds, too few for an interval"),
    (
        "not run",
        "a contender of the comparison was left out, or was never measured beside the other",
    ),
    ("stated", "a figure for which nothing is promised"),
];

const CALLS: &[(&str, &str)] = &[
    ("latency", "one call at a time, each timed"),
    ("pipelined", "many calls under way at once; calls per second"),
    ("bare", "a hand-over without a payload"),
    ("VOID", "the floor that this rests on was none in this run"),
];

const WORDS: &[(&str, &str)] = &[
    ("clock A", "from starting the client's process to its end, connecting included"),
    ("clock B", "from a warm client's request to the answer that it has checked"),
    (
        "admission",
        "connecting: what passes between the client's first step and its first request; `domain`, \
         `pipe` and `shm` are connected before",
    ),
    (
        "total, counts",
        "the service answers with the number of words, or with how often each occurs",
    ),
];

const DOMAIN: &[(&str, &str)] = &[
    ("latency, loop", "one call at a time, each timed; or a row of them, for the mean"),
    ("one way", "half of a call's mean time, in cycles of the time stamp counter"),
    (
        "paced",
        "so many calls per second, with sleep between; less call: without what the sleep costs",
    ),
    ("bulk", "long requests with a short answer"),
    ("copies", "time per byte by that of memcpy"),
    (
        "RPAL",
        "a published system that also runs processes in one address space; see docs/systems.md",
    ),
    ("bare", "a hand-over without a payload"),
];

/// What a contender is.
pub fn contender(name: &str) -> &'static str {
    CONTENDERS.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text)
}

/// What the words of a bench mean.
pub fn terms(bench: Bench) -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = match bench {
        Bench::Calls => CALLS,
        Bench::Words => WORDS,
        Bench::Domain => DOMAIN,
    };
    COMMON.iter().chain(own).copied()
}

/// The title of an axis that shows this figure, and which way is better.
pub fn axis(metric: Metric) -> &'static str {
    match metric {
        Metric::P50 => "median time of a call (log scale), lower is better",
        Metric::PerSecond => "calls per second (log scale), higher is better",
        Metric::OneWay => "mean one way in cycles (log scale), lower is better",
        Metric::Cpu => "CPU time of a call (log scale), lower is better",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::ALL;

    #[test]
    fn every_contender_is_explained() {
        for (_, known) in ALL {
            assert!(!contender(known.name()).is_empty(), "{} is not explained", known.name());
        }
    }
}
