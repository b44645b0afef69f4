//! The `calls` bench: small calls that are echoed.
//!
//! A request is copied from the client's private buffer into the channel, from there into the
//! server's private memory, and the reply travels back in the same way. Every reply is checked in
//! full.
//!
//! Opponents with a dependency tree of their own stand behind the feature `opponents`. Of the crates for
//! calls over shared memory, with Rust 1.95 in November 2026:
//!
//! | crate | what came of it |
//! |---|---|
//! | iceoryx2 0.10 | measured: its request and response |
//! | xrpc-rs 0.3.1 | measured; one client to a server, which cannot connect again |
//! | rapace 0.5.0 | measured: a hub and its one peer |
//! | roam 7.3.0, roam-shm 7.3.0 | rapace's successor; roam-types does not compile (E0053, E0277, E0308): facet 0.44.5 is of facet-core 0.44.4, facet-reflect 0.44.6 of facet-core 0.45.0, and no older facet-reflect fits the rest |
//! | vox 0.3.1, vox-shm 0.3.1 | roam's successor; vox-schema does not compile (E0277): facet-cbor 0.3.4 is of facet-core 0.46.5, vox-schema of facet-core 0.44.4 |
//! | vox 0.10.0-rc.7 | has no transport over shared memory; vox-shm's newest is 0.3.1 |
//!
//! xrpc-rs makes tokio take its locks from parking_lot, in this program as a whole.

pub mod asyncfd_floor;
pub mod client;
pub mod handoff_floor;
#[cfg(feature = "opponents")]
pub mod iceoryx;
pub mod line_probe;
pub mod native_inline;
pub mod partywall;
pub mod pipe;
#[cfg(feature = "opponents")]
pub mod rapace;
pub mod ring;
pub mod ring_floor;
pub mod stubs;
pub mod tonic_inline;
pub mod tonic_net;
pub mod uds_epoll;
#[cfg(feature = "opponents")]
pub mod xrpc;

use crate::case::{CALL_SIZES, Case, Mode, Place, Placement, Wait};

/// Every size in both modes, with sides that sleep.
pub fn sleeping() -> Vec<Case> {
    cases(Wait::Block)
}

/// Every size in both modes, with sides that spin and with sides that sleep.
pub fn spinning_or_sleeping() -> Vec<Case> {
    [cases(Wait::Spin), cases(Wait::Block)].concat()
}

/// Calls of 32 bytes, one at a time, between two containers.
pub fn contained() -> Vec<Case> {
    [Wait::Spin, Wait::Block].into_iter().flat_map(contained_with).collect()
}

/// The same with sides that wait so, where they are pinned.
pub fn contained_with(wait: Wait) -> impl Iterator<Item = Case> {
    let pinned = placements(wait).iter().filter(|placement| **placement != Placement::Unpinned);
    let case = move |&placement| {
        let host = Case::call(Mode::Latency, Some(CALL_SIZES[0]), placement, Some(wait));
        host.at(Place::TwoContainers)
    };
    pinned.map(case)
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

/// Where memory that has a name is.
#[cfg(feature = "opponents")]
const SHARED_MEMORY: &str = "/dev/shm";

/// What names of a sample's shared memory begin with.
#[cfg(feature = "opponents")]
pub fn prefix(label: &str) -> String {
    format!("{label}_")
}

/// Removes the shared memory of a killed sample.
#[cfg(feature = "opponents")]
pub fn sweep(label: &str) {
    let prefix = prefix(label);
    for file in std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            // A file that has gone meanwhile is what was wanted.
            let _ = std::fs::remove_file(file.path());
        }
    }
}
