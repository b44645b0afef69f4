//! Processes that know no control protocol and ask for certificates alone, at a socket that another part of
//! this process listens at.
//!
//! ```text
//! other part                                                     coordinator
//!   accepts; who connected, by the kernel  ---- Workloads::take -->  charges, one end of a socket pair
//!   hears the nonce                        <----- Challenge ------  has read its facts
//!   has the workload say it, and compares
//!   the sender of what comes
//!   passes it on                           ------- Proof -------->  reads its facts again: open, or closed
//!                                          <------ Welcome -------
//!   makes a key                            ------ Certify ------->
//!                                          <- Certified, Refused -
//!   makes another key                      <------- Renew --------  it is somebody else now, or others are
//!                                                                   trusted
//! ```
//!
//! So it is found out, charged, looked at again and audited as any process at the control socket, by the
//! same steps ([`crate::identity`]); of the messages a workload has `Certify` alone. The other part is
//! believed in one thing: that the sender of the nonce was the process that connected. A workload that is no
//! principal of the policy is denied a certificate.
//!
//! The connection is over when either end of the pair is closed, or the workload's process ends. It counts as
//! two connections, for its descriptors.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use partywall_shm::socket::{self, Credentials};

use crate::identity::pidfd;

/// Who has connected to a socket, by the kernel's word.
#[derive(Debug)]
pub struct Visitor {
    pub(crate) credentials: Credentials,
    pub(crate) pidfd: Option<OwnedFd>,
}

impl Visitor {
    /// Who is at the other end of an accepted socket.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let credentials = socket::peer_credentials(socket)?;
        Ok(Self { credentials, pidfd: pidfd(socket, credentials)? })
    }

    /// What has to be the sender of all that comes from it.
    pub fn credentials(&self) -> Credentials {
        self.credentials
    }
}

type Answer = Box<dyn FnOnce(Result<OwnedFd, String>) + Send>;

/// A visitor, and who waits for what comes of it.
pub(crate) struct Visit {
    pub(crate) visitor: Visitor,
    pub(crate) answer: Answer,
}
