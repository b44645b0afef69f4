//! The seam between the driver and those it measures.

use std::error::Error;
use std::os::fd::OwnedFd;

use partywall_abi::control::Isolation;
use partywall_domain::machine::Feature;

use crate::case::{Bench, Case};
use crate::seat::Seat;

/// Anything that can go wrong in a sample.
pub type Fault = Box<dyn Error + Send + Sync>;

/// What samples return.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

/// Who inherits a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Side {
    /// Only the server.
    Server,
    /// Only the client.
    Client,
    /// Each side gets a descriptor of its own.
    Both,
}

/// Runs a process that a sample needs besides its two sides. It calls [`Seat::ready`] once it can be
/// reached and then stays until the driver ends it.
pub type Attendant = fn(&mut Seat) -> Result<()>;

/// What the driver prepares for the two processes of a sample.
#[derive(Debug, Default)]
pub struct Ends(pub Vec<(Side, OwnedFd)>);

/// Someone who is measured. One value per bench; add it to [`ALL`].
///
/// For each sample the driver calls `open` in its own process, starts the two processes, and calls
/// `serve` in one and `call` in the other. A sample has a directory of its own that is removed
/// afterwards; see [`Seat`] for what the two sides are given.
pub trait Contender: Sync {
    /// As shown, and as `--only` takes it.
    fn name(&self) -> &'static str;

    /// Every cell to measure. `sizes` are the sizes of this run.
    fn cases(&self, sizes: &[u64]) -> Vec<Case>;

    /// Whether there is a server process. If not, only `call` runs.
    fn paired(&self) -> bool {
        true
    }

    /// A third process, such as a broker, started before the two sides. Its CPU time is nobody's.
    fn attendant(&self) -> Option<Attendant> {
        None
    }

    /// What keeps the two sides apart if they are domains of one launcher; none if they are
    /// processes.
    fn domains(&self) -> Option<Isolation> {
        None
    }

    /// Creates the descriptors that the processes inherit; they take them by index.
    ///
    /// # Errors
    /// Whatever the system refuses; the sample then counts as failed.
    fn open(&self, case: &Case) -> Result<Ends> {
        let _ = case;
        Ok(Ends::default())
    }

    /// Runs the server until the client has gone. Calls [`Seat::ready`] once it can be reached. A
    /// contender that is not paired has none.
    ///
    /// # Errors
    /// Whatever ended it early.
    fn serve(&self, _: &mut Seat) -> Result<()> {
        Err("there is no server".into())
    }

    /// Runs the client, which measures and leaves its result with the seat.
    ///
    /// # Errors
    /// Whatever kept it from measuring.
    fn call(&self, seat: &mut Seat) -> Result<()>;

    /// Removes what a killed sample leaves outside of its directory. `label` is the sample's own.
    fn sweep(&self, label: &str) {
        let _ = label;
    }
}

/// Every contender: one entry each.
pub const ALL: &[(Bench, &dyn Contender)] = &[
    (Bench::Calls, &crate::calls::pipe::Pipe),
    (Bench::Calls, &crate::calls::uds_epoll::UdsEpoll),
    (Bench::Calls, &crate::calls::tonic_net::TONIC_UDS),
    (Bench::Calls, &crate::calls::tonic_net::TONIC_TCP),
    (Bench::Calls, &crate::calls::tonic_inline::TonicInline),
    #[cfg(feature = "opponents")]
    (Bench::Calls, &crate::calls::iceoryx::Iceoryx2),
    (Bench::Calls, &crate::calls::line_probe::LineProbe),
    (Bench::Calls, &crate::calls::handoff_floor::HandoffFloor),
    (Bench::Calls, &crate::calls::asyncfd_floor::AsyncFdFloor),
    (Bench::Calls, &crate::calls::ring_floor::RingFloor),
    (Bench::Calls, &crate::calls::partywall::Raw),
    (Bench::Calls, &crate::calls::partywall::Blocking),
    (Bench::Calls, &crate::calls::partywall::Tonic),
    (Bench::Words, &crate::words::pipe::Pipe),
    (Bench::Words, &crate::words::uds::Uds),
    (Bench::Words, &crate::words::shm::Shm),
    (Bench::Words, &crate::words::tonic::TonicUds),
    (Bench::Words, &crate::words::partywall::Raw),
    (Bench::Words, &crate::words::partywall::TONIC),
    (Bench::Words, &crate::words::domain::DOMAIN),
    (Bench::Words, &crate::words::domain::DOMAIN_KEYS),
    (Bench::Words, &crate::words::partywall::DOMAIN_TONIC),
    (Bench::Words, &crate::words::partywall::DOMAIN_TONIC_KEYS),
    (Bench::Words, &crate::words::floor::FLOOR),
    (Bench::Words, &crate::words::floor::FLOOR_REUSE),
    (Bench::Domain, &crate::domains::call::Call),
    (Bench::Domain, &crate::domains::gate::GATE),
    (Bench::Domain, &crate::domains::gate::GATE_KEYS),
    (Bench::Domain, &crate::domains::others::DOMAIN_TONIC),
    (Bench::Domain, &crate::domains::others::DOMAIN_TONIC_KEYS),
    (Bench::Domain, &crate::domains::others::TONIC_INLINE),
    (Bench::Domain, &crate::domains::others::RING_RAW),
    (Bench::Domain, &crate::domains::others::RING_TONIC),
    (Bench::Domain, &crate::domains::others::HANDOFF_FLOOR),
    (Bench::Domain, &crate::domains::others::UDS_EPOLL),
    (Bench::Domain, &crate::domains::call::Memcpy),
    (Bench::Domain, &crate::domains::call::Clock),
];

/// Whether this machine has what a contender needs.
pub fn is_possible(contender: &dyn Contender) -> bool {
    contender.domains() != Some(Isolation::Fault) || Feature::ProtectionKeys.look().there
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
