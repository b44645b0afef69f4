//! The audit log: who was admitted, who serves, who calls whom, what was denied and revoked, who was
//! to blame. One JSON object a line.
//!
//! ```text
//! {"time":1763900000.25,"event":"denied","uid":1002,"gid":1002,"pid":77,"principals":[],
//!  "account":"user 1002","what":"connect","text":"..."}
//! {"time":1763900001.5,"event":"left_out","account":"user 1002","count":480}
//! ```
//!
//! `time` is seconds since 1970 with microseconds, UTC. What one account causes is limited to
//! [`BURST`] lines at once and [`RATE`] lines a second; what is left out is counted, and the count
//! is a line of its own as soon as the account may have one. A thread writes, so that nobody waits
//! for a slow disk; lines that it has no room for are counted as well. Whoever drops the log waits until all
//! lines are written, [`LAST`] at most; what is then still on its way is lost, and an error says so.
//!
//! Receipts of signed messages have limits of their own, by which none is left out ([`receipts`]).

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use partywall_abi::control::{Digest, Grant, Identity};
use partywall_abi::name::ServiceName;
use partywall_abi::security::Security;
use partywall_shm::address::Addresses;
use partywall_shm::threads;
use serde::Serialize;

use crate::quota::Account;

mod receipts;

pub(crate) use receipts::Receipts;

/// Lines that an account may cause at once.
const BURST: u32 = 100;
/// Lines that an account may cause a second, over a longer time.
const RATE: u32 = 10;
/// Lines that wait for the thread that writes.
const WAITING: usize = 4096;
/// How long the end of the log waits for the lines that are on their way.
const LAST: Duration = Duration::from_secs(5);
/// Accounts whose lines are counted at once; those that have caused none for long go first.
const ACCOUNTS: usize = 4096;

/// The metric of lines that are left out.
pub(crate) const LEFT_OUT: &str = "partywall_coordinator_audit_lines_left_out_total";

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A process has proven who it is.
    Admitted {
        /// Who.
        #[serde(flatten)]
        by: By,
        /// Why it counts as contained, if its container is not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        contained: Option<String>,
        /// Why it is not known what its container was made of, where the policy goes by that.
        #[serde(skip_serializing_if = "Option::is_none")]
        no_origin: Option<String>,
    },
    /// It serves a name.
    Registered {
        /// Who.
        #[serde(flatten)]
        by: By,
        /// The name.
        name: String,
    },
    /// A link is open.
    Introduced {
        /// The link's number.
        link: u64,
        /// The name that was asked for.
        name: String,
        /// Who calls.
        caller: By,
        /// Who serves; none over the network.
        server: Option<Who>,
        /// Where the calls go over the network; none on a ring.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<String>,
        /// What protects it.
        security: Levels,
        /// How many descriptors may cross beside one message, and whether leases among them.
        #[serde(flatten)]
        grant: Granted,
    },
    /// An operator looks into a link.
    Traced {
        /// Who.
        #[serde(flatten)]
        by: By,
        /// The link's number.
        link: u64,
        /// The name that was asked for.
        name: String,
        /// Who calls.
        caller: Option<Who>,
        /// Who serves.
        server: Option<Who>,
        /// What protects it: of a sealed link nothing can be read but lengths, kinds and streams.
        security: Levels,
    },
    /// Descriptors may cross on a link that was open before.
    Granted {
        /// Who calls.
        #[serde(flatten)]
        by: By,
        /// The link's number.
        link: u64,
        /// The name that was asked for.
        name: String,
        /// How many beside one message, and whether leases among them.
        #[serde(flatten)]
        grant: Granted,
    },
    /// The policy does not let a process do something.
    Denied {
        /// Who.
        #[serde(flatten)]
        by: By,
        /// What it asked for.
        what: &'static str,
        /// What it was told.
        text: String,
    },
    /// The policy does not let a process go on with something.
    Revoked {
        /// Who.
        #[serde(flatten)]
        by: By,
        /// What.
        text: String,
    },
    /// An end of a link broke a rule.
    Blamed {
        /// Who.
        #[serde(flatten)]
        by: By,
        /// The link's number.
        link: u64,
        /// The name that was asked for.
        name: String,
        /// What is known of it.
        text: String,
        /// Whose word it is, if it is not the coordinator's own finding.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown_if")]
        said_by: Option<Account>,
    },
    /// A signed message has come, by the word of who has got it; its receipt is the proof.
    Signed {
        /// Who has got it.
        #[serde(flatten)]
        by: By,
        /// Whose certificate the receipt has.
        signer: String,
        /// The receipt.
        receipt: serde_json::Value,
    },
    /// Another policy is in force.
    Reloaded {
        /// Links that it has ended.
        ended: u32,
        /// Links that it has changed.
        changed: u32,
    },
    /// The policy could not be read again.
    NotReloaded {
        /// Why.
        text: String,
    },
}

/// The levels of a [`Security`], by their words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Levels {
    isolation: &'static str,
    confidentiality: &'static str,
    evidence: &'static str,
    seal: &'static str,
    sign: &'static str,
}

impl From<Security> for Levels {
    fn from(security: Security) -> Self {
        let Security { isolation, confidentiality, evidence, seal, sign, .. } = security;
        Self {
            isolation: isolation.word(),
            confidentiality: confidentiality.word(),
            evidence: evidence.word(),
            seal: seal.word(),
            sign: sign.word(),
        }
    }
}

/// What may cross on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Granted {
    descriptors: u32,
    leases: bool,
}

impl From<Grant> for Granted {
    fn from(Grant { descriptors, leases }: Grant) -> Self {
        Self { descriptors, leases }
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Who {
    uid: u32,
    gid: u32,
    pid: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    cgroup: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    container: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    image: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    compose: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    principals: Vec<String>,
}

/// A process, and whose account it is charged to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct By {
    #[serde(flatten)]
    who: Who,
    #[serde(serialize_with = "shown")]
    account: Account,
}

fn shown_if<S: serde::Serializer>(account: &Option<Account>, to: S) -> Result<S::Ok, S::Error> {
    account.as_ref().map(ToString::to_string).serialize(to)
}

fn shown<S: serde::Serializer>(account: &Account, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(account)
}

impl Who {
    fn new(identity: &Identity) -> Self {
        let hex = |how: &str, digest: &[u8; 32]| {
            let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
            Some(format!("{how} sha256:{hex}"))
        };
        Self {
            uid: identity.uid,
            gid: identity.gid,
            pid: identity.pid,
            cgroup: identity.cgroup.clone(),
            container: identity.container.clone(),
            image: identity.image.clone(),
            compose: identity.compose.clone(),
            digest: match &identity.digest {
                Digest::Observed(d) => hex("observed", d),
                Digest::Started(d) => hex("started", d),
                _ => None,
            },
            principals: identity.principals.clone(),
        }
    }
}

impl By {
    fn new(identity: &Identity, account: &Account) -> Self {
        Self { who: Who::new(identity), account: account.clone() }
    }
}

impl Event {
    pub(crate) fn admitted(
        identity: &Identity,
        account: &Account,
        contained: Option<&str>,
        no_origin: Option<&str>,
    ) -> Self {
        let (by, owned) = (By::new(identity, account), |text: &str| text.to_string());
        Self::Admitted { by, contained: contained.map(owned), no_origin: no_origin.map(owned) }
    }

    pub(crate) fn registered(identity: &Identity, account: &Account, name: &ServiceName) -> Self {
        Self::Registered { by: By::new(identity, account), name: name.as_str().into() }
    }

    pub(crate) fn introduced(
        link: u64,
        name: &ServiceName,
        (caller, account): (&Identity, &Account),
        (server, url): (Option<&Identity>, Option<&str>),
        (security, grant): (Security, Grant),
    ) -> Self {
        let (caller, server) = (By::new(caller, account), server.map(Who::new));
        let (name, security, grant) = (name.as_str().into(), security.into(), grant.into());
        let addresses = url.and_then(|url| Addresses::parse(url).ok());
        let addresses = addresses.iter().flat_map(Addresses::texts).map(Into::into).collect();
        Self::Introduced { link, name, caller, server, addresses, security, grant }
    }

    pub(crate) fn traced(
        (by, account): (&Identity, &Account),
        (link, name): (u64, &ServiceName),
        ends: [Option<&Identity>; 2],
        security: Security,
    ) -> Self {
        let [caller, server] = ends.map(|end| end.map(Who::new));
        let (by, name, security) = (By::new(by, account), name.as_str().into(), security.into());
        Self::Traced { by, link, name, caller, server, security }
    }

    pub(crate) fn granted(
        link: u64,
        name: &ServiceName,
        (caller, account): (&Identity, &Account),
        grant: Grant,
    ) -> Self {
        let (by, name) = (By::new(caller, account), name.as_str().into());
        Self::Granted { by, link, name, grant: grant.into() }
    }

    pub(crate) fn denied(
        identity: &Identity,
        account: &Account,
        what: &'static str,
        text: &str,
    ) -> Self {
        Self::Denied { by: By::new(identity, account), what, text: text.into() }
    }

    pub(crate) fn revoked(identity: &Identity, account: &Account, text: &str) -> Self {
        Self::Revoked { by: By::new(identity, account), text: text.into() }
    }

    pub(crate) fn blamed(
        link: u64,
        name: &ServiceName,
        identity: &Identity,
        account: &Account,
        said_by: Option<Account>,
        text: &str,
    ) -> Self {
        let (by, name) = (By::new(identity, account), name.as_str().into());
        Self::Blamed { by, link, name, text: text.into(), said_by }
    }

    pub(crate) fn signed(
        identity: &Identity,
        account: &Account,
        signer: String,
        receipt: serde_json::Value,
    ) -> Self {
        Self::Signed { by: By::new(identity, account), signer, receipt }
    }

    pub(crate) fn reloaded(ended: u32, changed: u32) -> Self {
        Self::Reloaded { ended, changed }
    }

    pub(crate) fn not_reloaded(text: &str) -> Self {
        Self::NotReloaded { text: text.into() }
    }

    /// Whose doing it is, for the limit; none for the coordinator's own.
    pub(crate) fn account(&self) -> Option<Account> {
        match self {
            Self::Admitted { by, .. }
            | Self::Registered { by, .. }
            | Self::Granted { by, .. }
            | Self::Denied { by, .. }
            | Self::Revoked { by, .. }
            | Self::Signed { by, .. } => Some(by.account.clone()),
            Self::Blamed { by, said_by, .. } => {
                Some(said_by.as_ref().unwrap_or(&by.account).clone())
            }
            Self::Introduced { caller, .. } => Some(caller.account.clone()),
            // That somebody has looked into a link is never left out.
            Self::Traced { .. } | Self::Reloaded { .. } | Self::NotReloaded { .. } => None,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "event", rename = "left_out")]
struct LeftOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    count: u64,
}

#[derive(Serialize)]
struct Line<'a, T> {
    time: f64,
    #[serde(flatten)]
    what: &'a T,
}

fn line<T: Serialize>(what: &T, at: SystemTime) -> String {
    let time = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = (time.as_secs_f64() * 1e6).round() / 1e6;
    let mut text = serde_json::to_string(&Line { time, what })
        .unwrap_or_else(|e| format!("{{\"event\":\"lost\",\"text\":\"{e}\"}}"));
    text.push('\n');
    text
}

/// How many lines an account has left.
struct Bucket {
    left: f64,
    at: Instant,
    left_out: u64,
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        self.fill_by(now, RATE, BURST);
    }

    fn fill_by(&mut self, now: Instant, rate: u32, most: u32) {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * f64::from(rate);
        self.left = (self.left + more).min(f64::from(most));
        self.at = now;
    }
}

/// What limits the lines and counts those that are left out.
#[derive(Default)]
struct Limiter(HashMap<Account, Bucket>);

impl Limiter {
    /// The lines that are to be written for an event.
    fn lines(&mut self, event: &Event, now: Instant, at: SystemTime) -> Vec<String> {
        let Some(account) = event.account() else { return vec![line(event, at)] };
        if self.0.len() >= ACCOUNTS && !self.0.contains_key(&account) {
            // Whose bucket is full again has nothing left out that was not told.
            let full = Duration::from_secs(u64::from(BURST / RATE));
            self.0.retain(|_, b| b.left_out > 0 || now.saturating_duration_since(b.at) < full);
            if self.0.len() >= 2 * ACCOUNTS {
                self.0.clear();
            }
        }
        let new = || Bucket { left: f64::from(BURST), at: now, left_out: 0 };
        let bucket = self.0.entry(account.clone()).or_insert_with(new);
        bucket.fill(now);
        if bucket.left < 1.0 {
            bucket.left_out += 1;
            metrics::counter!(LEFT_OUT, "why" => "rate").increment(1);
            return Vec::new();
        }
        bucket.left -= 1.0;
        let mut lines = Vec::new();
        let count = std::mem::take(&mut bucket.left_out);
        if count > 0 {
            lines.push(line(&LeftOut { account: Some(account.to_string()), count }, at));
        }
        lines.push(line(event, at));
        lines
    }

    /// The counts that have not been told and may be now.
    fn due(&mut self, now: Instant, at: SystemTime) -> Vec<String> {
        let mut lines = Vec::new();
        for (account, bucket) in &mut self.0 {
            if bucket.left_out > 0 {
                bucket.fill(now);
                if bucket.left >= 1.0 {
                    let count = std::mem::take(&mut bucket.left_out);
                    lines.push(line(&LeftOut { account: Some(account.to_string()), count }, at));
                }
            }
        }
        lines
    }
}

/// The way to the log.
pub(crate) struct Audit {
    limiter: Limiter,
    rates: receipts::Rates,
    to: SyncSender<Lines>,
    /// Bytes of receipts that wait.
    waiting: Arc<AtomicUsize>,
    lost: u64,
    /// After `to`, with which the thread ends.
    _written: Written,
}

/// What the thread that writes has the other end of. The end of the log waits for it, unless the disk takes
/// longer than [`LAST`].
struct Written(Receiver<Infallible>);

impl Drop for Written {
    fn drop(&mut self) {
        if self.0.recv_timeout(LAST) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the last lines of the audit log are not written: the disk takes none");
        }
    }
}

/// Lines on their way, and how many bytes of them are receipts.
struct Lines {
    text: String,
    receipts: usize,
}

impl Audit {
    /// Writes to `to`, which messages call `name`, on a thread of its own.
    pub(crate) fn new(name: String, mut to: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, lines) = sync_channel::<Lines>(WAITING);
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        let (writes, has_written) = channel::<Infallible>();
        let write = move || {
            let _until_all_is_written = writes;
            let mut lost = 0_u64;
            for Lines { text, receipts } in lines {
                let done = to.write_all(text.as_bytes()).and_then(|()| to.flush());
                written.fetch_sub(receipts, Ordering::Relaxed);
                match done {
                    Ok(()) if lost > 0 => {
                        tracing::warn!(lost, "the audit log is written again");
                        lost = 0;
                    }
                    Ok(()) => {}
                    Err(error) => {
                        if lost == 0 {
                            tracing::error!(
                                %error,
                                "{name}: the audit log cannot be written, and lines are lost until it \
                                 can; make room there"
                            );
                        }
                        lost += 1;
                    }
                }
            }
            if lost > 0 {
                tracing::error!(lost, "{name}: lines of the audit log are lost");
            }
        };
        threads::spawn(std::thread::Builder::new().name("audit".into()), write)?;
        let (limiter, rates) = (Limiter::default(), receipts::Rates::default());
        Ok(Self { limiter, rates, to: sender, waiting, lost: 0, _written: Written(has_written) })
    }

    pub(crate) fn event(&mut self, event: &Event) {
        let lines = self.limiter.lines(event, Instant::now(), SystemTime::now());
        self.write(lines);
    }

    /// Writes the counts that are due; called now and then.
    pub(crate) fn due(&mut self) {
        let lines = self.limiter.due(Instant::now(), SystemTime::now());
        self.write(lines);
    }

    /// Whether counts are still to be told.
    pub(crate) fn owes(&self) -> bool {
        self.lost > 0 || self.limiter.0.values().any(|b| b.left_out > 0)
    }

    fn send(&self, text: String) -> bool {
        self.to.try_send(Lines { text, receipts: 0 }).is_ok()
    }

    fn write(&mut self, lines: Vec<String>) {
        if self.lost > 0 {
            let lost = LeftOut { account: None, count: self.lost };
            if self.send(line(&lost, SystemTime::now())) {
                self.lost = 0;
            }
        }
        for line in lines {
            if !self.send(line) {
                self.lost += 1;
                metrics::counter!(LEFT_OUT, "why" => "disk").increment(1);
            }
        }
    }
}

/// Opens the file of an audit log, to be added to; readable by its owner only when it is new.
///
/// # Errors
/// What open(2) says.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests;
