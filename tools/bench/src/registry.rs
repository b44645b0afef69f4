//! Who is measured.

use partywall_abi::security::Isolation;
use partywall_domain::machine::Feature;

use crate::case::Bench;
use crate::contender::Contender;
use crate::{calls, domains, words};

/// Every contender: one entry each.
pub const ALL: &[(Bench, &dyn Contender)] = &[
    (Bench::Calls, &calls::pipe::Pipe),
    (Bench::Calls, &calls::uds_epoll::UdsEpoll),
    (Bench::Calls, &calls::tonic_net::TONIC_UDS),
    (Bench::Calls, &calls::tonic_net::TONIC_TCP),
    (Bench::Calls, &calls::tonic_inline::TonicInline),
    #[cfg(feature = "opponents")]
    (Bench::Calls, &calls::iceoryx::Iceoryx2),
    (Bench::Calls, &calls::line_probe::LineProbe),
    (Bench::Calls, &calls::handoff_floor::HandoffFloor),
    (Bench::Calls, &calls::asyncfd_floor::AsyncFdFloor),
    (Bench::Calls, &calls::ring_floor::RingFloor),
    (Bench::Calls, &calls::partywall::Raw),
    (Bench::Calls, &calls::partywall::Blocking),
    (Bench::Calls, &calls::partywall::Tonic),
    (Bench::Words, &words::pipe::Pipe),
    (Bench::Words, &words::uds::Uds),
    (Bench::Words, &words::shm::Shm),
    (Bench::Words, &words::tonic::TonicUds),
    (Bench::Words, &words::partywall::Raw),
    (Bench::Words, &words::partywall::TONIC),
    (Bench::Words, &words::domain::DOMAIN),
    (Bench::Words, &words::domain::DOMAIN_KEYS),
    (Bench::Words, &words::partywall::DOMAIN_TONIC),
    (Bench::Words, &words::partywall::DOMAIN_TONIC_KEYS),
    (Bench::Words, &words::floor::FLOOR),
    (Bench::Words, &words::floor::FLOOR_REUSE),
    (Bench::Domain, &domains::call::Call),
    (Bench::Domain, &domains::gate::GATE),
    (Bench::Domain, &domains::gate::GATE_KEYS),
    (Bench::Domain, &domains::others::DOMAIN_TONIC),
    (Bench::Domain, &domains::others::DOMAIN_TONIC_KEYS),
    (Bench::Domain, &domains::others::TONIC_INLINE),
    (Bench::Domain, &domains::others::RING_RAW),
    (Bench::Domain, &domains::others::RING_TONIC),
    (Bench::Domain, &domains::others::HANDOFF_FLOOR),
    (Bench::Domain, &domains::others::UDS_EPOLL),
    (Bench::Domain, &domains::call::Memcpy),
    (Bench::Domain, &domains::call::Clock),
];

/// Whether this machine has what a contender needs.
pub fn is_possible(contender: &dyn Contender) -> bool {
    contender.domains() != Some(Isolation::ProtectionKeys) || Feature::ProtectionKeys.look().there
}

/// The contenders of a bench.
pub fn of(bench: Bench) -> impl Iterator<Item = &'static dyn Contender> {
    ALL.iter().filter(move |entry| entry.0 == bench).map(|entry| entry.1)
}

/// A contender by name.
pub fn named(bench: Bench, name: &str) -> Option<&'static dyn Contender> {
    of(bench).find(|contender| contender.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{CALL_SIZES, DOMAIN_SIZES, WORD_SIZES};
    use std::collections::HashSet;

    const BENCHES: [(Bench, &[u64]); 3] =
        [(Bench::Calls, &CALL_SIZES), (Bench::Words, &WORD_SIZES), (Bench::Domain, &DOMAIN_SIZES)];

    #[test]
    fn names_and_cells_are_unique() {
        for (bench, sizes) in BENCHES {
            let names: Vec<_> = of(bench).map(|contender| contender.name()).collect();
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
            for contender in of(bench) {
                let cases = contender.cases(sizes);
                assert!(!cases.is_empty(), "{} measures nothing", contender.name());
                assert_eq!(cases.iter().collect::<HashSet<_>>().len(), cases.len());
                assert!(cases.iter().all(|case| case.bench == bench));
            }
        }
    }

    #[test]
    fn every_target_names_a_cell_that_exists() {
        for (bench, sizes) in BENCHES {
            let mut targets = crate::target::targets(bench, sizes);
            targets.extend(crate::target::floors(bench));
            for key in targets.iter().flat_map(|target| target.quantity.keys()) {
                if let Some(contender) = named(bench, key.contender) {
                    let cases = contender.cases(sizes);
                    assert!(cases.contains(&key.case), "{} lacks {}", key.contender, key.case);
                }
            }
        }
    }
}
