//! The `calls` bench: small calls that are echoed.
//!
//! A request is copied from the client's private buffer into the channel, from there into the
//! server's private memory, and the reply travels back in the same way. Every reply is checked in
//! full.

pub mod asyncfd_floor;
pub mod handoff_floor;
#[cfg(feature = "opponents")]
pub mod iceoryx;
pub mod line_probe;
pub mod partywall;
pub mod pipe;
pub mod ring;
pub mod ring_floor;
pub mod stubs;
pub mod tonic_inline;
pub mod tonic_net;
pub mod uds_epoll;

use crate::case::{CALL_SIZES, Case, Mode, Placement, Wait};

/// Where sides that sleep are measured.
pub const ANYWHERE: [Placement; 3] =
    [Placement::SameCore, Placement::TwoCores, Placement::Unpinned];

/// Where sides that spin are measured: on one core they would only waste each other's time.
pub const NOT_ONE_CORE: [Placement; 2] = [Placement::TwoCores, Placement::Unpinned];

/// Every size in both modes, in each placement that suits the wait.
pub fn cases(waits: &[Wait]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &wait in waits {
        for &placement in placements(wait) {
            for mode in [Mode::Latency, Mode::Pipelined] {
                let size = |bytes| Case::call(mode, Some(bytes), placement, Some(wait));
                cases.extend(CALL_SIZES.map(size));
            }
        }
    }
    cases
}

/// One hand-over at a time, without a payload.
pub fn bare(wait: Wait, placements: &[Placement]) -> Vec<Case> {
    let case = |placement: &Placement| Case::call(Mode::Latency, None, *placement, Some(wait));
    placements.iter().map(case).collect()
}

fn placements(wait: Wait) -> &'static [Placement] {
    match wait {
        Wait::Spin => &NOT_ONE_CORE,
        Wait::Block => &ANYWHERE,
    }
}
