//! What the words of a report mean.

use super::summary::metric;
use crate::case::{Bench, Case, Clock, Mode};
use crate::ratio::Metric;

const COMMON: &[(&str, &str)] = &[
    ("sample", "calls of one fresh pair of processes for a set time, after a warm-up"),
    ("round", "all contenders once, in random order; ratios are taken within a round"),
    ("p50, p99, p99.9", "the time that half, 99 % or 99.9 % of a sample's calls stay below"),
    ("CPU/call", "processor time of both sides together per call"),
    ("spin, block", "a side that waits keeps looking, or sleeps in the kernel"),
    ("same core, two cores, unpinned", "where the two sides run"),
    (
        "two containers, client in a container",
        "each side, or the client alone, is in a container of its own, as another user; else both are \
         processes of the host",
    ),
    ("near, far", "whether a cache line goes between the two cores and back in under 275 ns"),
    ("floor", "what nobody can stay below"),
    (
        "pass, FAIL",
        "the whole 95 % interval is within, or beyond, the bound; without a container engine a target of \
         containers is missed",
    ),
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
    (
        "VOID",
        "a floor that this rests on does not hold in this run, so the row says nothing: most often \
         other work or a hypervisor disturbed it; measure again on a quiet machine",
    ),
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
    ("copies", "time per byte by that of memcpy, both sides together"),
    (
        "RPAL",
        "a published system that also runs processes in one address space; see docs/systems.md",
    ),
    ("bare", "a hand-over without a payload"),
];

const TRANSFER: &[(&str, &str)] = &[
    ("iteration", "client and server both set all bytes of a block and both pass it once"),
    ("calls", "iterations per second, of all clients together"),
    ("memory", "memory of both sides by the data: proportional shares, above the idle processes"),
    ("Shmem, sockets", "the rise of the host's shared memory and of its sockets' by the data"),
    ("fill-floor", "what setting and reading costs when nothing is passed"),
    (
        "VOID",
        "a floor that this rests on does not hold in this run, so the row says nothing: most often \
         other work or a hypervisor disturbed it; measure again on a quiet machine",
    ),
];

const FUNCTIONS: &[(&str, &str)] = &[
    (
        "function",
        "answers with its own number and a time stamp; there are as many distinct ones as a row says",
    ),
    (
        "p50, p99, p99.9",
        "of one way: from the dispatcher's stamp before it submits to the function's stamp",
    ),
    ("rtt", "from the same stamp to the dispatcher's stamp when it has the answer"),
    (
        "warm, cold",
        "loaded and called before; or no page of it is mapped in the worker before its one call",
    ),
    (
        "closed loop, window",
        "so many calls are under way, the next one comes when one has been answered",
    ),
    (
        "load",
        "calls at random times (Poisson), in per cent of a contender's calls per second; times are from \
         when a call was to begin, so none is left out",
    ),
    ("quantum", "how long a function may run before it is looked at or stopped"),
    (
        "MemAvailable, Pss",
        "what all functions hold when loaded: of the host, and as shares of processes",
    ),
    ("kept", "honest work by what the time that overrunning calls leave would give"),
];

const SEALED: &[(&str, &str)] = &[
    (
        "sealed, plain",
        "records of the link are encrypted and authenticated with keys that its two ends alone have, or pass \
         as they are",
    ),
    ("latency", "one call at a time, each timed; it is echoed, and checked in full"),
    (
        "connect",
        "a link is made by a caller that is connected to the coordinator and certified; CPU time has one call \
         on it, and its end",
    ),
    (
        "first, known, resumed",
        "how the handshake of a link begins: with nothing, with the key of the service, with a secret of an \
         earlier link",
    ),
    ("CPU/GB", "processor time of both sides by the bytes of requests and replies, from 4 KiB on"),
    ("less ... over aead-floor", "what sealing adds to a call, by what the cipher alone takes"),
    (
        "less ... over sign-floor",
        "what signed messages add to a call, by what signatures alone take",
    ),
];

/// What the words of a bench mean.
pub fn terms(bench: Bench) -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = match bench {
        Bench::Calls => CALLS,
        Bench::Words => WORDS,
        Bench::Domain => DOMAIN,
        Bench::Transfer => TRANSFER,
        Bench::Functions => FUNCTIONS,
        Bench::Sealed => SEALED,
    };
    COMMON.iter().chain(own).copied()
}

/// What a bench measures, in a sentence or two.
pub fn about(bench: Bench) -> &'static str {
    match bench {
        Bench::Calls => {
            "Small calls between two processes: the server sends the bytes of a request back. Latency \
             is the time of one call at a time; pipelined is the number of calls per second with many \
             under way."
        }
        Bench::Words => {
            "A service counts the words of a text. Clock A is the time from starting the client's \
             process to its end; clock B is the time of one request of a client that is connected."
        }
        Bench::Domain => {
            "Calls between programs that share one address space (domains), beside calls between \
             processes: their times, their CPU time at fixed rates, and what a byte of a long request \
             costs."
        }
        Bench::Transfer => {
            "Client and server set all bytes of a block by turns and pass it to the other, which reads \
             eight bytes of each page: the time of an iteration there and back, its CPU time, and the \
             memory of both sides."
        }
        Bench::Functions => {
            "Thousands of small functions that answer with a time stamp: a dispatcher on one core calls \
             them, and one worker, or their own processes, run them on another core."
        }
        Bench::Sealed => {
            "Calls over links whose records are sealed, beside the same over plain links and over TLS: their \
             times and CPU times from 1 B to 16 MiB, and what it takes to make such a link."
        }
    }
}

/// The title of a case's axis: what it shows, and which way is better.
pub fn axis(case: &Case) -> &'static str {
    match metric(case) {
        Metric::P50 if case.clock == Some(Clock::A) => {
            "time from the client's start to its end (log scale), lower is better"
        }
        Metric::P50 if case.bench == Bench::Transfer => {
            "median time of an iteration (log scale), lower is better"
        }
        Metric::P50 if case.bench == Bench::Functions => {
            "median time of one way (log scale), lower is better"
        }
        Metric::P50 if case.mode == Some(Mode::Connect) => {
            "median time of a connect (log scale), lower is better"
        }
        Metric::P50 => "median time of a call (log scale), lower is better",
        Metric::PerSecond if case.bench == Bench::Transfer => {
            "iterations of all clients per second (log scale), higher is better"
        }
        Metric::PerSecond => "calls per second (log scale), higher is better",
        Metric::OneWay => "mean one way in cycles (log scale), lower is better",
        Metric::Cpu => "CPU time of a call, both sides (log scale), lower is better",
        Metric::P99 => "99th percentile of the time of a call (log scale), lower is better",
        Metric::P999 => "99.9th percentile of the time of a call (log scale), lower is better",
        Metric::RoundTripP99 => "99th percentile there and back (log scale), lower is better",
        Metric::Memory => "memory of all functions in bytes (log scale), lower is better",
        Metric::Kept => "honest work by what the time left would give, higher is better",
        Metric::Harm => "lost, leaked or wrong, lower is better",
        Metric::Pss => "memory of both sides by the data (log scale), lower is better",
    }
}
