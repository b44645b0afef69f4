//! Who is measured, in the order of a report.

use crate::case::Bench;
use crate::contender::Contender;
use crate::domains::{call, gate, others};
use crate::{calls, functions, sealed, transfer, words};

const CALLS: &[Contender] = &[
    calls::partywall::NATIVE,
    calls::partywall::TONIC,
    calls::partywall::BLOCKING,
    calls::partywall::NATIVE_BLOCKING,
    calls::partywall::RAW,
    calls::tonic_net::TONIC_UDS,
    calls::tonic_net::TONIC_TCP,
    calls::uds_epoll::UDS_EPOLL,
    calls::pipe::PIPE,
    #[cfg(feature = "opponents")]
    calls::iceoryx::ICEORYX2,
    #[cfg(feature = "opponents")]
    calls::rapace::RAPACE,
    #[cfg(feature = "opponents")]
    calls::xrpc::XRPC,
    calls::native_inline::NATIVE_INLINE,
    calls::tonic_inline::TONIC_INLINE,
    calls::asyncfd_floor::ASYNCFD_FLOOR,
    calls::handoff_floor::HANDOFF_FLOOR,
    calls::ring_floor::RING_FLOOR,
    calls::line_probe::LINE_PROBE,
];

const WORDS: &[Contender] = &[
    words::partywall::NATIVE,
    words::partywall::ATTACHED,
    words::partywall::TONIC,
    words::partywall::RAW,
    words::partywall::DOMAIN_TONIC,
    words::partywall::DOMAIN_TONIC_KEYS,
    words::domain::DOMAIN,
    words::domain::DOMAIN_KEYS,
    words::tonic::TONIC_UDS,
    words::stream::UDS,
    words::stream::PIPE,
    words::shm::SHM,
    words::floor::FLOOR,
    words::floor::FLOOR_REUSE,
];

const DOMAIN: &[Contender] = &[
    gate::GATE,
    gate::GATE_KEYS,
    others::DOMAIN_NATIVE,
    others::DOMAIN_NATIVE_KEYS,
    others::DOMAIN_TONIC,
    others::DOMAIN_TONIC_KEYS,
    others::RING_NATIVE,
    others::RING_TONIC,
    others::RING_RAW,
    others::UDS_EPOLL,
    others::NATIVE_INLINE,
    others::TONIC_INLINE,
    others::HANDOFF_FLOOR,
    call::CALL,
    call::MEMCPY,
    call::CLOCK,
];

const TRANSFER: &[Contender] = &[
    transfer::stream::TCP,
    transfer::udp::UDP_RELIABLE,
    transfer::stream::UDS_DEFAULT,
    transfer::stream::UDS,
    transfer::tonic::TONIC_TCP,
    transfer::tonic::TONIC_UDS,
    #[cfg(feature = "opponents")]
    transfer::iceoryx::ICEORYX2,
    transfer::parcels::SEALED,
    transfer::parcels::OWNED,
    transfer::parcels::LEASE,
    transfer::memfd_floor::MEMFD_FLOOR,
    transfer::seal_floor::SEAL_FLOOR,
    transfer::fill_floor::FILL_FLOOR,
];

const SEALED: &[Contender] = &[
    sealed::stubs::RING_PLAIN_TONIC,
    sealed::stubs::RING_SEALED_TONIC,
    sealed::rotating::RING_SEALED_ROTATING,
    sealed::stubs::RING_SIGNED_TONIC,
    sealed::stubs::NATIVE_PLAIN,
    sealed::stubs::NATIVE_SEALED,
    sealed::stubs::GATE_PLAIN,
    sealed::stubs::GATE_SEALED,
    sealed::raw::RING_PLAIN_RAW,
    sealed::raw::RING_SEALED_RAW,
    sealed::tls::TONIC_UDS,
    sealed::tls::TONIC_UDS_TLS,
    sealed::tls::TONIC_TCP_MTLS,
    sealed::aead_floor::AEAD_FLOOR,
    sealed::sign_floor::SIGN_FLOOR,
    sealed::connect::CONNECT_PLAIN,
    sealed::connect::CONNECT_PLAIN_SECOND,
    sealed::connect::CONNECT_SEALED_FIRST,
    sealed::connect::CONNECT_SEALED_KNOWN,
    sealed::connect::CONNECT_SEALED_RESUMED,
    sealed::handshake::HANDSHAKE_FIRST,
    sealed::handshake::HANDSHAKE_KNOWN,
    sealed::handshake::HANDSHAKE_RESUMED,
];

/// The contenders of a bench.
pub fn of(bench: Bench) -> &'static [Contender] {
    match bench {
        Bench::Calls => CALLS,
        Bench::Words => WORDS,
        Bench::Domain => DOMAIN,
        Bench::Transfer => TRANSFER,
        Bench::Functions => functions::CONTENDERS,
        Bench::Sealed => SEALED,
    }
}

/// A contender by name.
pub fn named(bench: Bench, name: &str) -> Option<&'static Contender> {
    of(bench).iter().find(|contender| contender.name == name)
}

/// Where a contender stands in a report.
pub fn place(bench: Bench, name: &str) -> Option<usize> {
    of(bench).iter().position(|contender| contender.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{floors, targets};
    use std::collections::HashSet;

    const BENCHES: [Bench; 6] = [
        Bench::Calls,
        Bench::Words,
        Bench::Domain,
        Bench::Transfer,
        Bench::Functions,
        Bench::Sealed,
    ];

    #[test]
    fn names_and_cells_are_unique() {
        for bench in BENCHES {
            let names: HashSet<_> = of(bench).iter().map(|contender| contender.name).collect();
            assert_eq!(names.len(), of(bench).len());
            for contender in of(bench) {
                let cases = (contender.cases)();
                assert!(!cases.is_empty(), "{} measures nothing", contender.name);
                assert_eq!(cases.iter().collect::<HashSet<_>>().len(), cases.len());
                assert!(cases.iter().all(|case| case.bench == bench));
            }
        }
    }

    #[test]
    fn every_target_names_a_cell_that_exists() {
        for bench in BENCHES {
            let all = targets(bench, bench.sizes()).into_iter().chain(floors(bench));
            for key in all.flat_map(|target| target.quantity.keys()) {
                if let Some(contender) = named(bench, key.contender) {
                    let there = (contender.cases)().contains(&key.case);
                    assert!(there, "{} lacks {}", key.contender, key.case);
                }
            }
        }
    }
}
