//! The `domain` bench: calls between domains of one address space, beside calls between processes.
//!
//! Its loops are those of RPAL's evaluation: small messages that are echoed, as the mean of a row of
//! calls (one way is half of a call) and call by call; longer ones; and so many calls per second,
//! for the CPU time of both sides and of the launcher. Every reply is checked.
//!
//! Requests of 1 KiB and 64 KiB between domains are written where the callee reads them and answered
//! in place, so both sides touch every byte and no one copies it only to pass it on; their time
//! includes writing the request. Other contenders copy, as in `calls`.
//!
//! Bulk requests of up to 64 MiB have their ends looked at and nothing else: a line through their
//! times is what passing a byte costs, to be compared with what copying it costs (`memcpy`). Stubs have a
//! second line, of requests that a record of a ring has room for: longer ones go in pieces.

pub mod call;
pub mod gate;
pub mod others;

use crate::case::{BULK_SIZES, Case, ECHO_SIZES, Mode, Placement, RATES, RECORD_SIZES, Wait};

/// Calls with a function's own work only: the smallest in a loop, call by call and paced; longer ones
/// call by call.
fn echoes(placement: Placement, wait: Option<Wait>) -> Vec<Case> {
    let smallest = Some(ECHO_SIZES[0]);
    let mut cases = vec![Case::domain(Mode::Loop, smallest, placement, wait)];
    cases.extend(ECHO_SIZES.map(|size| Case::domain(Mode::Latency, Some(size), placement, wait)));
    if wait != Some(Wait::Spin) {
        cases.extend(paced(placement, wait));
    }
    cases
}

/// Calls of the smallest at fixed rates.
fn paced(placement: Placement, wait: Option<Wait>) -> [Case; RATES.len()] {
    RATES.map(|rate| Case::paced(rate, Some(ECHO_SIZES[0]), placement, wait))
}

/// Long requests.
fn bulk(wait: Option<Wait>) -> Vec<Case> {
    of_sizes(&BULK_SIZES, wait)
}

/// Long requests, and those that a record of a ring has room for.
fn bulk_by_record(wait: Option<Wait>) -> Vec<Case> {
    [of_sizes(&RECORD_SIZES, wait), bulk(wait)].concat()
}

fn of_sizes(sizes: &[u64], wait: Option<Wait>) -> Vec<Case> {
    let of = |size: &u64| Case::domain(Mode::Bulk, Some(*size), Placement::SameCore, wait);
    sizes.iter().map(of).collect()
}
