//! The seam between the driver and those it measures.

use std::os::fd::OwnedFd;

use partywall_abi::security::Isolation;
use partywall_domain::machine::Feature;

use crate::case::Case;
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

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

/// What the driver prepares for the two processes of a sample.
#[derive(Debug, Default)]
pub struct Ends(pub Vec<(Side, OwnedFd)>);

/// Whose work it is; also its colour in the plots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Partywall.
    Ours,
    /// An alternative.
    Other,
    /// What nobody can stay below.
    Floor,
}

/// Runs a process that answers, or that both sides need.
pub type Serve = fn(&mut Seat) -> Result<()>;

/// Someone who is measured: an entry of the registry.
///
/// For each sample the driver calls `open` in its own process, starts the two processes, and calls
/// `serve` in one and `call` in the other. A sample has a directory of its own that is removed
/// afterwards; see [`Seat`] for what the two sides are given.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// Whose work it is.
    pub kind: Kind,
    /// As shown, and as `--only` takes it.
    pub name: &'static str,
    /// What it is, for the report.
    pub about: &'static str,
    /// Every cell to measure.
    pub cases: fn() -> Vec<Case>,
    /// Creates the descriptors that the processes inherit; they take them by index. An error counts
    /// as a failed sample.
    pub open: fn(&Case) -> Result<Ends>,
    /// Runs the server until the client has gone. Calls [`Seat::ready`] once it can be reached. None
    /// if there is no server process.
    pub serve: Option<Serve>,
    /// Runs the client, which measures. None if it is measured by `functions`.
    pub call: Option<fn(&mut Seat) -> Result<Figures>>,
    /// Runs a third process, such as a broker, which is started before the two sides. It calls
    /// [`Seat::ready`] once it can be reached and then stays until the driver ends it. Its CPU time is
    /// nobody's.
    pub attend: Option<Serve>,
    /// What keeps the two sides apart if they are domains of one launcher; none if they are
    /// processes.
    pub domains: Option<Isolation>,
    /// Removes what a killed sample leaves outside of its directory. The text is the sample's label.
    pub sweep: fn(&str),
}

impl Contender {
    /// A single process.
    pub const fn new(
        kind: Kind,
        name: &'static str,
        about: &'static str,
        cases: fn() -> Vec<Case>,
        call: fn(&mut Seat) -> Result<Figures>,
    ) -> Self {
        Self {
            kind,
            name,
            about,
            cases,
            open: |_| Ok(Ends::default()),
            serve: None,
            call: Some(call),
            attend: None,
            domains: None,
            sweep: |_| {},
        }
    }

    /// One that `functions` measures by itself.
    pub const fn function(
        kind: Kind,
        name: &'static str,
        about: &'static str,
        cases: fn() -> Vec<Case>,
    ) -> Self {
        Self {
            kind,
            name,
            about,
            cases,
            open: |_| Ok(Ends::default()),
            serve: None,
            call: None,
            attend: None,
            domains: None,
            sweep: |_| {},
        }
    }

    /// With a server that the client reaches by itself.
    pub const fn served(self, serve: Serve) -> Self {
        Self { serve: Some(serve), ..self }
    }

    /// With descriptors for both sides.
    pub const fn opened(self, open: fn(&Case) -> Result<Ends>) -> Self {
        Self { open, ..self }
    }

    /// With a third process.
    pub const fn attended(self, attend: Serve) -> Self {
        Self { attend: Some(attend), ..self }
    }

    /// Between domains.
    pub const fn in_domains(self, isolation: Isolation) -> Self {
        Self { domains: Some(isolation), ..self }
    }

    /// With something left to remove after a sample.
    #[cfg_attr(not(feature = "opponents"), expect(dead_code, reason = "only they leave anything"))]
    pub const fn swept(self, sweep: fn(&str)) -> Self {
        Self { sweep, ..self }
    }

    /// Whether this machine has what it needs.
    pub fn is_possible(&self) -> bool {
        self.domains != Some(Isolation::ProtectionKeys) || Feature::ProtectionKeys.look().there
    }
}
