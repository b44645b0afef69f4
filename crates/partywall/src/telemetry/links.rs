//! Links and HTTP/2 routes that are open, and calls that wait.

use metrics::{Gauge, counter, gauge};
use partywall_abi::security::Security;

use super::methods::Side;
use super::metrics::{self as names, LINKS, LINKS_OPENED, WAITING};

/// How the calls of a link travel.
#[derive(Clone, Copy)]
pub(crate) enum Route {
    Ring,
    /// A ring with a call gate.
    Gate,
    Http2,
}

impl Route {
    fn word(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Gate => "gate",
            Self::Http2 => "http2",
        }
    }
}

/// Counts for as long as it is there.
struct Raised(Gauge);

impl Raised {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A link or an HTTP/2 route that is open until this is dropped.
pub(crate) struct Link {
    _raised: Option<Raised>,
}

impl Link {
    pub(crate) fn opened(side: Side, route: Route, security: Security) -> Self {
        if !names::are_recorded() {
            return Self { _raised: None };
        }
        let (side, route) = (side.word(), route.word());
        counter!(LINKS_OPENED, "side" => side, "route" => route).increment(1);
        let open = gauge!(
            LINKS,
            "side" => side,
            "route" => route,
            "isolation" => security.isolation.word(),
            "confidentiality" => security.confidentiality.word(),
            "evidence" => security.evidence.word(),
            "seal" => security.seal.word(),
            "sign" => security.sign.word(),
        );
        Self { _raised: Some(Raised::new(open)) }
    }
}

/// A call that waits until this is dropped.
pub(crate) struct Waiting {
    _raised: Raised,
}

impl Waiting {
    /// None where nobody wants to know.
    pub(crate) fn begin(what: &'static str) -> Option<Self> {
        let begin = || Self { _raised: Raised::new(gauge!(WAITING, "for" => what)) };
        names::are_recorded().then(begin)
    }
}
