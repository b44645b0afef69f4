//! Quotas: what one user may have of everything that the coordinator has to share out.
//!
//! ```text
//! account --charge--> Ok(Charge)      counted until the value is dropped
//!                     Err(Exceeded)   the account's own limit, or its share of what is left
//! ```
//!
//! Something is charged before it is made, and its charge is dropped with it: nothing is counted by
//! hand. An account is a user, a container, a principal to which the policy gives quotas of its own, a
//! service that the coordinator has started, or all that services have started
//! ([`Account::Descendants`]). A user has many connections and may have many uids: those that /etc/subuid
//! lends to a user are that user's (subuid(5)), see [`partywall_shm::users::Subordinates`].
//!
//! A *share*: an account has at most half of what the others leave of the whole. So with n accounts
//! that take all they can get, the next one still finds a part in 2^(n+1), and no single one can take
//! the last. Root's and the coordinator's own user's processes, who have to be able to look, may
//! have all that is left; what is contained has another account, whatever its uid is. What an account has
//! for others, as a server has links for its callers, is shared by these likewise, so that no caller has
//! all that a server may have.
//!
//! What takes nothing of the whole ([`Usage::charge_own`]) observes the account's own limit alone, and
//! leaves the others their shares.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use serde::Deserialize;

use crate::container::Container;

/// Whose something is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Account {
    /// A user's.
    User(u32),
    /// A container's, whatever its users are.
    Container(Container),
    /// That of root, or of the coordinator's user, in namespaces that are not the coordinator's.
    Contained(u32),
    /// A principal's, which has a quota of its own in the policy.
    Principal(String),
    /// A service's, which the coordinator has started under this name.
    Service(String),
    /// That of all processes that services have started; see
    /// [`crate::identity::Reader::confines`].
    Descendants,
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Container(container) => write!(f, "{container}"),
            Self::Contained(uid) => write!(f, "user {uid} in other namespaces"),
            Self::Principal(name) => write!(f, "principal `{name}`"),
            Self::Service(name) => write!(f, "service `{name}`"),
            Self::Descendants => f.write_str("processes that services have started"),
        }
    }
}

/// What is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Connections to the coordinator.
    Connections,
    /// Of these, the ones that have not proven who they are.
    Unproven,
    /// Links as their caller, until the kernel says that their memory is let go.
    Links,
    /// Links as their server, likewise.
    Served,
    /// Links that are being made.
    Opening,
    /// Questions for links that wait for their turn.
    Waiting,
    /// Names that are watched.
    Watches,
    /// Names that are served.
    Registrations,
    /// Bytes that were sent and have not been read.
    Unread,
    /// Links with wide rings, which are faster for long messages; others have narrow ones.
    Wide,
    /// Links that one end has reported to a new coordinator, and the other one has not yet.
    Reported,
    /// Bytes of what its servers have counted for the methods of their links.
    Methods,
    /// Bytes that its processes have made for parcels, by their word.
    ParcelBytes,
}

pub(crate) const RESOURCES: usize = 13;

impl Resource {
    /// Each, in the order of their numbers.
    pub const ALL: [Self; RESOURCES] = [
        Self::Connections,
        Self::Unproven,
        Self::Links,
        Self::Served,
        Self::Opening,
        Self::Waiting,
        Self::Watches,
        Self::Registrations,
        Self::Unread,
        Self::Wide,
        Self::Reported,
        Self::Methods,
        Self::ParcelBytes,
    ];

    /// Its name in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Unproven => "unproven",
            Self::Links => "links",
            Self::Served => "served",
            Self::Opening => "opening",
            Self::Waiting => "waiting",
            Self::Watches => "watches",
            Self::Registrations => "registrations",
            Self::Unread => "unread",
            Self::Wide => "wide",
            Self::Reported => "reported",
            Self::Methods => "methods",
            Self::ParcelBytes => "parcel_bytes",
        }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connections => "connections",
            Self::Unproven => "connections that have not proven who they are",
            Self::Links => "links",
            Self::Served => "links that it serves",
            Self::Opening => "links that are being made",
            Self::Waiting => "questions for links that wait",
            Self::Watches => "watched names",
            Self::Registrations => "served names",
            Self::Unread => "unread bytes",
            Self::Wide => "links with wide rings",
            Self::Reported => "links that only one end has reported",
            Self::Methods => "bytes of what was counted for methods",
            Self::ParcelBytes => "bytes of parcels",
        })
    }
}

/// Limits for each account. In a policy, what is left out is as here.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections; 4,096.
    pub connections: usize,
    /// Links as a caller; 4,096.
    pub links: usize,
    /// Links as a server; 16,384.
    pub served: usize,
    /// Watched names; 1,024.
    pub watches: usize,
    /// Served names; 512.
    pub registrations: usize,
    /// Bytes that processes make for parcels; 4 GiB.
    pub parcel_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            links: 4096,
            served: 16 * 1024,
            watches: 1024,
            registrations: 512,
            parcel_bytes: 4 << 30,
        }
    }
}

impl Limits {
    fn of(&self, resource: Resource) -> usize {
        match resource {
            Resource::Connections => self.connections,
            Resource::Unproven => 256,
            Resource::Links => self.links,
            Resource::Served => self.served,
            Resource::Opening => 256,
            Resource::Waiting => 4096,
            Resource::Watches => self.watches,
            Resource::Registrations => self.registrations,
            Resource::Unread => 8 << 20,
            Resource::Wide => WIDE,
            Resource::Reported => self.links.saturating_add(self.served),
            Resource::Methods => 1 << 20,
            Resource::ParcelBytes => self.parcel_bytes,
        }
    }
}

/// How much there is of each, for all accounts together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals([usize; RESOURCES]);

/// Links with wide rings: few enough that a thousand links have less than 200 MiB.
const WIDE: usize = 32;
/// Descriptors of the coordinator that no quota covers.
const SPARE: usize = 64;
/// Descriptors of a link: what is kept of its two outboxes.
const OF_A_LINK: usize = 2;
/// Descriptors of a connection: its socket, its process.
const OF_A_CONNECTION: usize = 2;
/// Descriptors of a link that is being made: two for its owner and its reader each, a socket pair.
const OF_AN_OPENING: usize = 6;

impl Totals {
    /// For a process that may have so many descriptors: half of them for links, a quarter each for
    /// connections and for links that are being made. Half of the machine's memory is for parcels.
    pub fn for_descriptors(most: usize) -> Self {
        let left = most.saturating_sub(SPARE);
        // Where there are very few, descriptors run out before these do; then connections wait in
        // the backlog, and links are refused with that reason.
        let part = |descriptors: usize, each: usize, least: usize, most: usize| {
            (descriptors / each).clamp(least, most)
        };
        let links = part(left / 2, OF_A_LINK, 64, 32 * 1024);
        let connections = part(left / 4, OF_A_CONNECTION, 128, 16 * 1024);
        let opening = part(left / 4, OF_AN_OPENING, 16, 1024);
        Self(Resource::ALL.map(|resource| match resource {
            Resource::Connections => connections,
            Resource::Unproven => (connections / 2).clamp(64, 1024),
            Resource::Links | Resource::Served => links,
            Resource::Opening => opening,
            Resource::Waiting | Resource::Watches => 64 * 1024,
            Resource::Registrations => 16 * 1024,
            Resource::Unread => 64 << 20,
            Resource::Wide => WIDE,
            Resource::Methods => 4 << 20,
            Resource::ParcelBytes => memory() / 2,
            // Nothing is made for them.
            Resource::Reported => usize::MAX,
        }))
    }
}

/// Bytes that the machine has.
fn memory() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize)
}

/// Why something cannot be charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// The account has all that one may have.
    #[error("{account} has {has} {resource}, the most that one may have")]
    Own {
        /// Whose.
        account: Account,
        /// How many there are.
        has: usize,
        /// Of what.
        resource: Resource,
    },
    /// The account has its share of what is left.
    #[error("{account} has {has} {resource}, its share of what the others leave")]
    Share {
        /// Whose.
        account: Account,
        /// How many there are.
        has: usize,
        /// Of what.
        resource: Resource,
    },
    /// The account has its share of the links that another one may serve.
    #[error("{account} has {has} links to servers of {server}, its share of what the others leave")]
    ToServers {
        /// Whose.
        account: Account,
        /// How many there are.
        has: usize,
        /// Whose servers they are.
        server: Account,
    },
}

/// All accounts and what they have.
#[derive(Clone)]
pub struct Quotas(Arc<Shared>);

struct Shared {
    totals: Totals,
    limits: RwLock<Limits>,
    operator: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of the whole.
    used: [usize; RESOURCES],
    accounts: HashMap<Account, Weak<Usage>>,
}

/// One account, while anybody has a handle to it.
pub struct Usage {
    account: Account,
    /// Limits of its own.
    limits: Mutex<Option<Limits>>,
    quotas: Quotas,
    /// The caller holds the lock of the quotas.
    used: Mutex<[Used; RESOURCES]>,
}

/// How much of a resource an account has.
#[derive(Default)]
struct Used {
    all: usize,
    /// Of these, those that are of the whole.
    of_the_whole: usize,
    /// Of these, those that it has for others.
    by: HashMap<Account, usize>,
}

impl std::fmt::Debug for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.account)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Quotas {
    /// No accounts yet, at the coordinator of the user `operator`.
    pub fn new(totals: Totals, limits: Limits, operator: u32) -> Self {
        let (limits, state) = (RwLock::new(limits), Mutex::default());
        Self(Arc::new(Shared { totals, limits, operator, state }))
    }

    /// From here on each account without limits of its own has these. What it has beyond them stays.
    pub fn limit(&self, limits: Limits) {
        *self.0.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// How much of each resource all accounts have, of what is shared out.
    pub(crate) fn used(&self) -> [usize; RESOURCES] {
        lock(&self.0.state).used
    }

    /// The accounts that anybody has a handle to.
    pub(crate) fn accounts(&self) -> Vec<Arc<Usage>> {
        let state = lock(&self.0.state);
        state.accounts.values().filter_map(Weak::upgrade).collect()
    }

    /// The account, as it is or new, with these limits from here on. What it has beyond them stays.
    pub fn account(&self, account: Account, limits: Option<&Limits>) -> Arc<Usage> {
        let mut state = lock(&self.0.state);
        if let Some(usage) = state.accounts.get(&account).and_then(Weak::upgrade) {
            *lock(&usage.limits) = limits.cloned();
            return usage;
        }
        state.accounts.retain(|_, usage| usage.strong_count() > 0);
        let usage = Arc::new(Usage {
            account: account.clone(),
            limits: Mutex::new(limits.cloned()),
            quotas: self.clone(),
            used: Mutex::default(),
        });
        state.accounts.insert(account, Arc::downgrade(&usage));
        usage
    }
}

impl Usage {
    /// Whose it is.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Root's, or the coordinator's own user's, who may have all that is left.
    pub fn is_privileged(&self) -> bool {
        matches!(self.account, Account::User(uid) if uid == 0 || uid == self.quotas.0.operator)
    }

    /// The most that it may have of a resource, whatever the others leave.
    pub fn limit(&self, resource: Resource) -> usize {
        match &*lock(&self.limits) {
            Some(limits) => limits.of(resource),
            None => {
                let limits = self.quotas.0.limits.read();
                limits.unwrap_or_else(PoisonError::into_inner).of(resource)
            }
        }
    }

    /// How much of a resource is charged to it.
    pub fn used(&self, resource: Resource) -> usize {
        lock(&self.used)[resource as usize].all
    }

    /// Charges so many of a resource.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn charge(self: &Arc<Self>, resource: Resource, amount: usize) -> Result<Charge, Exceeded> {
        Charge::of(self, resource).with(Rule::Share, amount)
    }

    /// Charges a link that the account serves for another one, `caller`.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn charge_served(self: &Arc<Self>, caller: &Arc<Self>) -> Result<Charge, Exceeded> {
        self.charge_for(caller, Resource::Served, 1)
    }

    /// Charges so many of a resource that the account has for another one, `caller`.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn charge_for(
        self: &Arc<Self>,
        caller: &Arc<Self>,
        resource: Resource,
        amount: usize,
    ) -> Result<Charge, Exceeded> {
        let mut charge = Charge::of(self, resource);
        charge.caller = Some(Arc::clone(caller));
        charge.with(Rule::Share, amount)
    }

    /// Charges so many of a resource, whatever is left for others: for what takes nothing of the
    /// whole.
    ///
    /// # Errors
    /// [`Exceeded::Own`].
    pub fn charge_own(
        self: &Arc<Self>,
        resource: Resource,
        amount: usize,
    ) -> Result<Charge, Exceeded> {
        let mut charge = Charge::of(self, resource);
        charge.of_the_whole = false;
        charge.with(Rule::Own, amount)
    }

    /// Changes what is charged by a charge.
    fn change(&self, charge: &Charge, after: usize, rule: Rule) -> Result<(), Exceeded> {
        let shared = &self.quotas.0;
        let (resource, before) = (charge.resource, charge.amount);
        let mut state = lock(&shared.state);
        let mut used = lock(&self.used);
        let (whole, used) = (&mut state.used[resource as usize], &mut used[resource as usize]);
        // A process may name any number.
        let changed = |has: usize| (has - before).saturating_add(after);
        if after > before && rule != Rule::None {
            let account = || self.account.clone();
            let limit = self.limit(resource);
            let has = used.all;
            if changed(has) > limit {
                return Err(Exceeded::Own { account: account(), has, resource });
            }
            let total = shared.totals.0[resource as usize];
            let share = self.share(total.saturating_sub(*whole - used.of_the_whole));
            if rule == Rule::Share && changed(used.of_the_whole) > share {
                return Err(Exceeded::Share { account: account(), has, resource });
            }
            if let Some(caller) = &charge.caller {
                let has = used.by.get(&caller.account).copied().unwrap_or(0);
                let left = limit.saturating_sub(used.all - has);
                let left = left.min(share.saturating_sub(used.of_the_whole - has));
                // The last one is for whoever comes first, and its own are its own affair.
                let own = caller.account == self.account;
                if changed(has) > if own { left } else { caller.share(left).max(1) } {
                    let (account, server) = (caller.account.clone(), account());
                    return Err(Exceeded::ToServers { account, has, server });
                }
            }
        }
        used.all = changed(used.all);
        if charge.of_the_whole {
            used.of_the_whole = changed(used.of_the_whole);
            *whole = changed(*whole);
        }
        if let Some(caller) = &charge.caller {
            let has = used.by.entry(caller.account.clone()).or_default();
            *has = changed(*has);
            if *has == 0 {
                used.by.remove(&caller.account);
            }
        }
        Ok(())
    }

    /// How much it may have of what the others leave.
    fn share(&self, left: usize) -> usize {
        if self.is_privileged() { left } else { left / 2 }
    }
}

/// What a charge has to observe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The account's own limit, and its share.
    Share,
    /// The account's own limit.
    Own,
    /// Nothing: the account has it already.
    None,
}

/// So many of a resource, charged to an account until it is dropped.
#[derive(Debug)]
pub struct Charge {
    usage: Arc<Usage>,
    resource: Resource,
    amount: usize,
    of_the_whole: bool,
    /// For whom the account has it.
    caller: Option<Arc<Usage>>,
}

impl Charge {
    fn of(usage: &Arc<Usage>, resource: Resource) -> Self {
        let usage = Arc::clone(usage);
        Self { usage, resource, amount: 0, of_the_whole: true, caller: None }
    }

    fn with(mut self, rule: Rule, amount: usize) -> Result<Self, Exceeded> {
        self.set_under(rule, amount)?;
        Ok(self)
    }

    /// Whose it is.
    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// How much it is.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Makes it so much; less always goes.
    ///
    /// # Errors
    /// [`Exceeded`]; then it stays as it was.
    pub fn set(&mut self, amount: usize) -> Result<(), Exceeded> {
        self.set_under(Rule::Share, amount)
    }

    fn set_under(&mut self, rule: Rule, amount: usize) -> Result<(), Exceeded> {
        if amount != self.amount {
            self.usage.change(self, amount, rule)?;
            self.amount = amount;
        }
        Ok(())
    }

    /// Makes it so much, whatever the limits are: for what the account has already.
    pub fn force(&mut self, amount: usize) {
        self.set_under(Rule::None, amount).expect("there is no rule");
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.force(0);
    }
}

#[cfg(test)]
mod tests;
