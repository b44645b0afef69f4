//! The `calls` bench: small calls that are echoed.
//!
//! A request is copied from the client's private buffer into the channel, from there into the
//! server's private memory, and the reply travels back in the same way. Every reply is checked in
//! full.

pub mod asyncfd_floor;
pub mod client;
pub mod handoff_floor;
#[cfg(feature = "opponents")]
pub mod iceoryx;
pub mod line_probe;
pub mod native_inline;
pub mod partywall;
pub mod pipe;
pub mod ring;
pub mod ring_floor;
pub mod stubs;
pub mod tonic_inline;
pub mod tonic_net;
pub mod uds_epoll;

use crate::case::{CALL_SIZES, Case, Mode, Placement, Wait};

/// Every size in both modes, with sides that sleep.
pub fn sleeping() -> Vec<Case> {
    cases(Wait::Block)
}

/// Every size in both modes, with sides that spin and with sides that sleep.
pub fn spinning_or_sleeping() -> Vec<Case> {
    [cases(Wait::Spin), cases(Wait::Block)].concat()
}

fn cases(wait: Wait) -> Vec<Case> {
    let of_mode = |mode| {
        let at = move |&at| CALL_SIZES.map(|bytes| Case::call(mode, Some(bytes), at, Some(wait)));
        placements(wait).iter().flat_map(at)
    };
    of_mode(Mode::Latency).chain(of_mode(Mode::Pipelined)).collect()
}

/// One hand-over at a time, without a payload.
pub fn bare(wait: Wait) -> Vec<Case> {
    let case = |&at| Case::call(Mode::Latency, None, at, Some(wait));
    placements(wait).iter().map(case).collect()
}

/// Sides that spin are not measured on one core, where they would only waste each other's time.
fn placements(wait: Wait) -> &'static [Placement] {
    use Placement::{SameCore, TwoCores, Unpinned};
    match wait {
        Wait::Spin => &[TwoCores, Unpinned],
        Wait::Block => &[SameCore, TwoCores, Unpinned],
    }
}
