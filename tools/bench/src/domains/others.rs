//! Contenders of `calls` in this bench, under the names they have here, and the stubs between
//! domains: the same program as over the ring, where `Channel` finds that it can go through the gate.

use partywall_abi::security::Isolation;

use super::{bulk, echoes, paced};
use crate::calls::{handoff_floor, partywall, tonic_inline, uds_epoll};
use crate::case::{Case, ECHO_SIZES, Mode, Placement, RATES, Wait};
use crate::contender::{Attendant, Contender, Ends};
use crate::error::Result;
use crate::seat::Seat;

/// A contender of `calls` with cases of this bench.
pub struct Other {
    name: &'static str,
    inner: &'static dyn Contender,
    cases: fn() -> Vec<Case>,
    domains: Option<Isolation>,
}

/// Stubs over the async channel, between domains.
pub static DOMAIN_TONIC: Other = Other {
    name: "domain-tonic",
    inner: &partywall::Tonic,
    cases: stubs,
    domains: Some(Isolation::None),
};

/// The same with protection keys, where the machine has them.
pub static DOMAIN_TONIC_KEYS: Other = Other {
    name: "domain-tonic-keys",
    inner: &partywall::Tonic,
    cases: stubs,
    domains: Some(Isolation::ProtectionKeys),
};

/// The link without calls.
pub static RING_RAW: Other =
    Other { name: "ring-raw", inner: &partywall::Raw, cases: on_the_ring, domains: None };

/// Stubs over the async channel, between processes.
pub static RING_TONIC: Other = Other {
    name: "ring-tonic",
    inner: &partywall::Tonic,
    cases: || [on_the_ring(), bulk(Some(Wait::Block))].concat(),
    domains: None,
};

/// What the stubs cost by themselves: client and server joined in one thread, with nothing between.
pub static TONIC_INLINE: Other = Other {
    name: "tonic-inline",
    inner: &tonic_inline::TonicInline,
    cases: || vec![Case::domain(Mode::Latency, Some(ECHO_SIZES[0]), Placement::SameCore, None)],
    domains: None,
};

/// A futex hand-over.
pub static HANDOFF_FLOOR: Other = Other {
    name: "handoff-floor",
    inner: &handoff_floor::HandoffFloor,
    cases: || {
        let wait = Some(Wait::Block);
        let at = |at| {
            let paced = RATES.map(|rate| Case::paced(rate, None, at, wait));
            let others = [Mode::Loop, Mode::Latency].map(|mode| Case::domain(mode, None, at, wait));
            [others, paced].concat()
        };
        [at(Placement::SameCore), at(Placement::TwoCores)].concat()
    },
    domains: None,
};

/// A Unix stream socket with epoll on both sides.
pub static UDS_EPOLL: Other = Other {
    name: "uds-epoll",
    inner: &uds_epoll::UdsEpoll,
    cases: || {
        let wait = Some(Wait::Block);
        [echoes(Placement::SameCore, wait), echoes(Placement::TwoCores, wait)].concat()
    },
    domains: None,
};

fn stubs() -> Vec<Case> {
    let wait = Some(Wait::Block);
    [echoes(Placement::SameCore, wait), bulk(wait)].concat()
}

/// Sleeping on one core; spinning on two, where they would otherwise wait for a wake-up. At fixed rates
/// they sleep there too, as it is the CPU time that counts.
fn on_the_ring() -> Vec<Case> {
    use Placement::{SameCore, TwoCores};
    let (sleep, spin) = (Some(Wait::Block), Some(Wait::Spin));
    [echoes(SameCore, sleep), echoes(TwoCores, spin), paced(TwoCores, sleep).to_vec()].concat()
}

impl Contender for Other {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        (self.cases)()
    }

    fn paired(&self) -> bool {
        self.inner.paired()
    }

    fn attendant(&self) -> Option<Attendant> {
        self.inner.attendant()
    }

    fn domains(&self) -> Option<Isolation> {
        self.domains
    }

    fn open(&self, case: &Case) -> Result<Ends> {
        self.inner.open(case)
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        self.inner.serve(seat)
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        self.inner.call(seat)
    }

    fn sweep(&self, label: &str) {
        self.inner.sweep(label);
    }
}
