//! The ends of a blocking channel's link, as the coordinator reaches them.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};

use partywall_abi::control::{Grant, Identity, LinkStats, PaceStats};
use partywall_abi::name::MethodSet;
use partywall_shm::link::Bell;
use partywall_shm::setup::Pending;
use partywall_shm::socket::{Endpoint, Passed};
use tonic::Status;

use crate::coordinator::End;
use crate::error::Error;
use crate::link::counters::SentParcels;
use crate::link::pace::OpenCalls;
use crate::lock::lock;

/// This end, as the coordinator reaches it.
pub(super) struct Reached {
    pub(super) bell: Arc<Bell>,
    pub(super) over: OnceLock<Status>,
    /// The descriptor socket and what may cross on it, until the thread that calls takes it over.
    granted: Mutex<Option<(Passed, Grant)>>,
    sent: Arc<SentParcels>,
    /// Whether a call is under way.
    pub(super) open: OpenCalls,
}

impl Reached {
    pub(super) fn new(bell: Arc<Bell>, sent: Arc<SentParcels>) -> Self {
        Self {
            bell,
            over: OnceLock::new(),
            granted: Mutex::new(None),
            sent,
            open: OpenCalls::default(),
        }
    }

    /// Both, once.
    pub(super) fn take_granted(&self) -> Option<(Passed, Grant)> {
        lock(&self.granted).take()
    }
}

impl End for Reached {
    // What is counted, the server says, but for what this end alone knows.
    fn stats(&self) -> LinkStats {
        let mut stats = LinkStats::default();
        stats.parcels = self.sent.stats();
        stats
    }

    fn pace(&self) -> Option<PaceStats> {
        Some(self.open.measure())
    }

    fn end(&self, status: Status) {
        let _first = self.over.set(status);
        // A thread that waits for an answer hears of it.
        self.bell.hang_up();
    }

    fn peer_died(&self) {
        self.bell.hang_up();
    }

    fn allow(&self, _peer: Identity, _methods: MethodSet) {}

    fn grant(&self, socket: Passed, grant: Grant) -> Option<Passed> {
        *lock(&self.granted) = Some((socket, grant));
        None
    }
}

/// A link that its server has not opened yet: who waits for that hears of its end.
pub(super) struct Opening(Endpoint);

impl Opening {
    pub(super) fn of(pending: &Pending) -> Result<Self, Error> {
        let copy = pending.as_fd().try_clone_to_owned();
        let what = || "copying a link's socket".into();
        Ok(Self(Endpoint::new(copy.map_err(|source| Error::Io { what: what(), source })?)))
    }
}

impl End for Opening {
    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }

    fn end(&self, _status: Status) {
        self.peer_died();
    }

    fn peer_died(&self) {
        // It fails only where the peer has hung up already.
        let _gone = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    fn allow(&self, _peer: Identity, _methods: MethodSet) {}
}
