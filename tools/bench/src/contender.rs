//! The seam between the driver and those it measures.

use std::os::fd::OwnedFd;

use partywall_abi::security::Isolation;

use crate::case::Case;
use crate::error::Result;
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

/// Runs a process that a sample needs besides its two sides. It calls [`Seat::ready`] once it can be
/// reached and then stays until the driver ends it.
pub type Attendant = fn(&mut Seat) -> Result<()>;

/// What the driver prepares for the two processes of a sample.
#[derive(Debug, Default)]
pub struct Ends(pub Vec<(Side, OwnedFd)>);

/// Someone who is measured. One value per bench; add it to [`crate::registry::ALL`].
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
