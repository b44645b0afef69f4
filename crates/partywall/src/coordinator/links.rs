//! What the coordinator and this process know of a link's end, as values.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use partywall_abi::control::{
    Blame, Grant, Identity, LinkMessage, LinkMethods, LinkStats, PaceStats, Role, Terms, Token,
};
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_abi::security::Security;
use partywall_abi::sync::{AtomicU64, Ordering};
use partywall_abi::version::Capabilities;
use partywall_shm::socket::{Endpoint, Passed};
use std::os::fd::OwnedFd;
use tonic::Status;

use super::Client;
use crate::lock::lock;

/// An end of an open link, as the coordinator can reach it.
pub(crate) trait End: Send + Sync {
    /// What it has counted so far.
    fn stats(&self) -> LinkStats;

    /// The same by methods, of a service's end.
    fn methods(&self) -> LinkMethods {
        LinkMethods::default()
    }

    /// What it has measured so far; from now on it measures for a while.
    fn pace(&self) -> Option<PaceStats> {
        None
    }

    /// The link is over, with this status for the calls under way.
    fn end(&self, status: Status);

    /// The process at the other end has ended: what it has sent counts, and nothing more comes.
    fn peer_died(&self);

    /// What may be called from now on, and who is at the other end.
    fn allow(&self, peer: Identity, methods: MethodSet);

    /// Descriptors may cross, on this socket and so far; one that is not open yet gives the socket back, for
    /// the open one.
    fn grant(&self, socket: Passed, _grant: Grant) -> Option<Passed> {
        Some(socket)
    }
}

/// A link that a caller was given.
pub(crate) struct Linked {
    pub(crate) terms: Terms,
    pub(crate) own: OwnedFd,
    pub(crate) servers: OwnedFd,
    pub(crate) socket: Endpoint,
    pub(crate) tracked: Tracked,
}

/// A link that a server is offered.
pub(crate) struct Offer {
    pub(crate) terms: Terms,
    pub(crate) memory: OwnedFd,
    pub(crate) socket: Endpoint,
    pub(crate) tracked: Tracked,
}

/// What became of a connect.
pub(crate) enum Connected {
    Link(Box<Linked>),
    Redirect { url: String, methods: MethodSet, tracked: Tracked },
}

/// What the coordinator tells of a link that is kept for the next one.
pub(super) struct Known {
    pub(super) token: Token,
    pub(super) security: Security,
    /// A grant is to come.
    pub(super) promised: bool,
}

impl Known {
    pub(super) fn of(terms: &Terms) -> Self {
        let promised = terms.capabilities.contains(Capabilities::ATTACHMENTS);
        Self { token: terms.token, security: terms.security, promised }
    }
}

/// What is known of an end in this process.
pub(super) struct Entry {
    /// The coordinator's number for it; another one after a restart.
    pub(super) number: AtomicU64,
    pub(super) token: Token,
    /// What protects it, as the coordinator told and this end found.
    security: Mutex<Security>,
    pub(super) role: Role,
    pub(super) name: ServiceName,
    /// By its terms a grant is to come.
    pub(super) promised: bool,
    /// What may cross, since it was granted.
    grant: OnceLock<Grant>,
    reach: Mutex<Reach>,
}

#[derive(Default)]
struct Reach {
    end: Option<Weak<dyn End>>,
    /// It is over, and nobody could be told.
    over: Option<Status>,
    died: bool,
    /// What is to be told to an end that is not open yet.
    allowed: Option<(Identity, MethodSet)>,
    granted: Option<Passed>,
}

impl Entry {
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(super) fn key(&self) -> (u64, Role) {
        (self.number(), self.role)
    }

    /// What protects it.
    pub(super) fn security(&self) -> Security {
        *lock(&self.security)
    }

    pub(super) fn end(&self) -> Option<Arc<dyn End>> {
        lock(&self.reach).end.as_ref()?.upgrade()
    }

    pub(super) fn over(&self, status: Status) {
        let end = {
            let mut reach = lock(&self.reach);
            reach.over.get_or_insert_with(|| status.clone());
            reach.end.as_ref().and_then(Weak::upgrade)
        };
        if let Some(end) = end {
            end.end(status);
        }
    }

    pub(super) fn peer_died(&self) {
        let end = {
            let mut reach = lock(&self.reach);
            reach.died = true;
            reach.end.as_ref().and_then(Weak::upgrade)
        };
        if let Some(end) = end {
            end.peer_died();
        }
    }

    pub(super) fn allow(&self, peer: Identity, methods: MethodSet) {
        match self.end() {
            Some(end) => end.allow(peer, methods),
            None => lock(&self.reach).allowed = Some((peer, methods)),
        }
    }

    /// Whether it waits for a grant.
    pub(super) fn waits_for_grant(&self) -> bool {
        self.promised && self.grant.get().is_none()
    }

    /// What it was granted.
    pub(super) fn granted(&self) -> Grant {
        self.grant.get().copied().unwrap_or_default()
    }

    pub(super) fn grant(&self, socket: Passed, grant: Grant) {
        // A second one would come of a coordinator that has broken a rule.
        self.grant.get_or_init(|| grant);
        self.hand_over(socket);
    }

    /// Gives the descriptor socket to the end, or keeps it for one that is attached later.
    fn hand_over(&self, mut socket: Passed) {
        loop {
            let end = {
                let mut reach = lock(&self.reach);
                let Some(end) = reach.end.as_ref().and_then(Weak::upgrade) else {
                    reach.granted = Some(socket);
                    return;
                };
                end
            };
            let Some(kept) = end.grant(socket, self.granted()) else { return };
            let mut reach = lock(&self.reach);
            // Another one may have been attached meanwhile, and have found none.
            if reach.end.as_ref().is_some_and(|now| Weak::ptr_eq(now, &Arc::downgrade(&end))) {
                reach.granted = Some(kept);
                return;
            }
            socket = kept;
        }
    }

    fn attach(&self, end: Weak<dyn End>) {
        let (over, died, allowed, granted) = {
            let mut reach = lock(&self.reach);
            reach.end = Some(Weak::clone(&end));
            (reach.over.clone(), reach.died, reach.allowed.take(), reach.granted.take())
        };
        let Some(end) = end.upgrade() else { return };
        if let Some(socket) = granted {
            self.hand_over(socket);
        }
        if let Some((peer, methods)) = allowed {
            end.allow(peer, methods);
        }
        if died {
            end.peer_died();
        }
        if let Some(status) = over {
            end.end(status);
        }
    }
}

/// An end of a link that the coordinator knows, and for which this process reports to it. The drop
/// reports that the end is over.
pub(crate) struct Tracked {
    pub(super) client: Arc<Client>,
    pub(super) entry: Arc<Entry>,
    said: bool,
}

impl std::fmt::Debug for Tracked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tracked({})", self.link())
    }
}

impl Tracked {
    pub(super) fn new(
        client: &Arc<Client>,
        link: u64,
        known: Known,
        role: Role,
        name: ServiceName,
    ) -> Self {
        let Known { token, security, promised } = known;
        let entry = Arc::new(Entry {
            number: AtomicU64::new(link),
            token,
            security: Mutex::new(security),
            role,
            name,
            promised,
            grant: OnceLock::new(),
            reach: Mutex::default(),
        });
        client.enter(&entry);
        Self { client: Arc::clone(client), entry, said: false }
    }

    /// Whom it is reported to.
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The name that was asked for.
    pub(crate) fn name(&self) -> &str {
        self.entry.name.as_str()
    }

    /// The coordinator's number for the link.
    pub(crate) fn link(&self) -> u64 {
        self.entry.number()
    }

    /// This end's part is ready, and it finds that this protects the link.
    pub(crate) fn adopted(&self, security: Security) {
        *lock(&self.entry.security) = security;
        self.client.say_of(&self.entry, LinkMessage::Adopted { link: self.link(), security });
    }

    /// From here on the coordinator reaches this end. What it has said before is told now.
    pub(crate) fn attach(&self, end: Weak<dyn End>) {
        self.entry.attach(end);
    }

    /// The link is about to be over, with this counted for its methods.
    pub(crate) fn count(&self, stats: LinkStats, methods: LinkMethods) {
        self.client.count_last(&self.entry, stats, methods);
    }

    /// The link is over.
    pub(crate) fn close(mut self, blame: Blame, stats: LinkStats) {
        self.said = true;
        self.client.left(&self.entry, blame, stats);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if !self.said {
            let stats = self.entry.end().map(|end| end.stats());
            self.client.left(&self.entry, Blame::Nobody, stats.unwrap_or_default());
        }
    }
}
