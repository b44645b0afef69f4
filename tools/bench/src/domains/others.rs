//! Contenders of `calls` in this bench, under the names they have here, and the stubs between
//! domains: the same program as over the ring, where `Channel` finds that it can go through the gate.

use partywall_abi::security::Isolation;

use super::{bulk_by_record, echoes, paced};
use crate::calls::{handoff_floor, native_inline, partywall, tonic_inline, uds_epoll};
use crate::case::Placement::{SameCore, TwoCores};
use crate::case::{Case, ECHO_SIZES, Mode, RATES, Wait};
use crate::contender::Contender;

/// Stubs over the async channel, between domains.
pub const DOMAIN_TONIC: Contender = Contender {
    name: "domain-tonic",
    about: "tonic's stubs between two domains, without protection keys",
    cases: || [echoes(SameCore, SLEEP), bulk_by_record(SLEEP)].concat(),
    domains: Some(Isolation::None),
    ..partywall::TONIC
};

/// The same with protection keys, where the machine has them.
pub const DOMAIN_TONIC_KEYS: Contender = Contender {
    name: "domain-tonic-keys",
    about: "the same with protection keys",
    domains: Some(Isolation::ProtectionKeys),
    ..DOMAIN_TONIC
};

/// Native stubs on both sides, between domains.
pub const DOMAIN_NATIVE: Contender = Contender {
    name: "domain-native",
    about: "partywall-build's stubs between two domains, without protection keys",
    cases: DOMAIN_TONIC.cases,
    domains: DOMAIN_TONIC.domains,
    ..partywall::NATIVE
};

/// The same with protection keys, where the machine has them.
pub const DOMAIN_NATIVE_KEYS: Contender = Contender {
    name: "domain-native-keys",
    about: "the same with protection keys",
    domains: DOMAIN_TONIC_KEYS.domains,
    ..DOMAIN_NATIVE
};

/// The link without calls.
pub const RING_RAW: Contender = Contender {
    name: "ring-raw",
    about: "Partywall's link between processes, without gRPC: messages of bytes",
    cases: on_the_ring,
    ..partywall::RAW
};

/// Stubs over the async channel, between processes.
pub const RING_TONIC: Contender = Contender {
    name: "ring-tonic",
    about: "tonic's generated stubs over Partywall's channel, between processes",
    cases: || [on_the_ring(), bulk_by_record(SLEEP)].concat(),
    ..partywall::TONIC
};

/// Native stubs on both sides, between processes: long requests. `calls` has the others.
pub const RING_NATIVE: Contender = Contender {
    name: "ring-native",
    about: "partywall-build's generated stubs over Partywall's channel, between processes",
    cases: || bulk_by_record(SLEEP),
    ..partywall::NATIVE
};

/// What a unary call needs without a link.
pub const NATIVE_INLINE: Contender =
    Contender { cases: TONIC_INLINE.cases, ..native_inline::NATIVE_INLINE };

/// What the stubs cost by themselves: client and server joined in one thread, with nothing between.
pub const TONIC_INLINE: Contender = Contender {
    cases: || vec![Case::domain(Mode::Latency, Some(ECHO_SIZES[0]), SameCore, None)],
    ..tonic_inline::TONIC_INLINE
};

/// A futex hand-over.
pub const HANDOFF_FLOOR: Contender = Contender {
    cases: || {
        let at = |at| {
            let paced = RATES.map(|rate| Case::paced(rate, None, at, SLEEP));
            let others =
                [Mode::Loop, Mode::Latency].map(|mode| Case::domain(mode, None, at, SLEEP));
            [others, paced].concat()
        };
        [at(SameCore), at(TwoCores)].concat()
    },
    ..handoff_floor::HANDOFF_FLOOR
};

/// A Unix stream socket with epoll on both sides.
pub const UDS_EPOLL: Contender = Contender {
    cases: || [echoes(SameCore, SLEEP), echoes(TwoCores, SLEEP)].concat(),
    ..uds_epoll::UDS_EPOLL
};

const SLEEP: Option<Wait> = Some(Wait::Block);

/// Sleeping on one core; spinning on two, where they would otherwise wait for a wake-up. At fixed rates
/// they sleep there too, as it is the CPU time that counts.
fn on_the_ring() -> Vec<Case> {
    let spin = Some(Wait::Spin);
    [echoes(SameCore, SLEEP), echoes(TwoCores, spin), paced(TwoCores, SLEEP).to_vec()].concat()
}
