//! This process as a domain: calls to others in the same launcher go through the gate.
//!
//! A link between two domains is a ring like any other, set up by the same introduction, with the
//! same records, windows and resets. What differs is how a sleeping reader is told: instead of
//! ringing a bell the caller's thread goes into the service through the gate ([`Gate::visit`]), takes
//! the records off the ring there and polls the handler. When it comes back, the answer of a handler
//! that was ready is on the other ring. A handler that waits goes on in the service's own runtime,
//! and its answer rings a bell as usual.
//!
//! ```text
//! service                                      caller
//!   offer(caller's process, link's number)
//!   outboxes exchanged <------------------->     take(link's number)
//!   .                                            push, the reader sleeps: visit
//!   Visit::visit, in the caller's thread <====     |
//!   records taken, handler polled, answers =====> answer taken off the ring
//! ```
//!
//! Only a request whose head and end travel in one record is worth going in for, of a method whose
//! handlers do not wait (see `link::wake::predictor`): to wake a task of the service from inside takes a
//! forwarded system call, which costs more than a bell. When the gate has no context to lend, when
//! somebody else reads the link at that moment, when the domain takes no calls, or when the call's deadline
//! could pass before the visit's limit, the bell is rung after all: nothing is lost by falling back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::harden;
use crate::lock::lock;
use partywall_abi::domain::{BLOCKED, GateStatus};
use partywall_abi::security::{Confidentiality, Isolation, Security};
use partywall_guest::{Guest, Link};
use partywall_shm::socket;
use tokio::runtime::Handle;

/// Threads that are lent to callers; each calling thread needs one.
const LENT: usize = 8;
/// How long a visit may last, unless [`LIMIT_VARIABLE`] says otherwise. Not the call's deadline: a
/// caller in a hurry is no reason to end a service.
const LIMIT: Duration = Duration::from_millis(10);
/// The environment variable with the limit of this process's visits, in milliseconds.
const LIMIT_VARIABLE: &str = "PARTYWALL_INLINE_LIMIT_MS";

/// The limit of this process's visits.
fn limit() -> Duration {
    static SET: OnceLock<Duration> = OnceLock::new();
    *SET.get_or_init(|| {
        let Some(text) = socket::variable(LIMIT_VARIABLE) else { return LIMIT };
        let text = text.to_string_lossy();
        parsed(&text).unwrap_or_else(|| {
            let default = LIMIT.as_millis();
            tracing::warn!(
                "{LIMIT_VARIABLE}={text} is no number of milliseconds from 1 on; it is {default}"
            );
            LIMIT
        })
    })
}

/// Whether a call that has to be over by then can go in: the caller's thread is its own again when a visit
/// has taken twice its limit, as that counts as well what the visitor had to wait for its CPU, and what a
/// system call of the handler may take beside that ([`BLOCKED`]). Others ring, so that their callers hear of
/// the deadline when it passes.
pub(crate) fn has_time(due: Option<Instant>) -> bool {
    let most = || 2 * limit() + BLOCKED;
    due.is_none_or(|due| due.saturating_duration_since(Instant::now()) >= most())
}

fn parsed(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// The outcome of a visit: the word that comes back through the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visited {
    /// All that was on the ring was taken; else somebody else takes it, or is to.
    pub(crate) taken: bool,
    /// Whether the handler of the visitor's own request goes on in the service's runtime, if that request
    /// was met.
    pub(crate) waits: Option<bool>,
}

impl Visited {
    const TAKEN: u64 = 1;
    const READY: u64 = 2;
    const WAITS: u64 = 4;

    fn to_word(self) -> u64 {
        let own = self.waits.map_or(0, |waits| if waits { Self::WAITS } else { Self::READY });
        own | if self.taken { Self::TAKEN } else { 0 }
    }

    /// A word that a service should not have said says nothing.
    fn from_word(word: u64) -> Self {
        let waits = match word & !Self::TAKEN {
            0 => None,
            Self::READY => Some(false),
            Self::WAITS => Some(true),
            _ => return Self::default(),
        };
        Self { taken: word & Self::TAKEN != 0, waits }
    }
}

/// This process as a domain, if it is one.
fn here() -> Option<Guest> {
    static HERE: OnceLock<Option<Guest>> = OnceLock::new();
    *HERE.get_or_init(|| {
        Guest::here().unwrap_or_else(|why| {
            tracing::warn!(%why, "this process is no domain");
            None
        })
    })
}

/// What protects a link: what the coordinator has told, and no more than what this process finds. A domain
/// shares its address space with others of its launcher, of which the coordinator need not know; what the
/// gate between the two ends leaves is what separates them, if there is one.
pub(crate) fn security(reported: Security, gate: Option<Isolation>) -> Security {
    lowered(harden::lowered(reported), here().is_some(), gate)
}

fn lowered(reported: Security, domain: bool, gate: Option<Isolation>) -> Security {
    let mut found = Security::HIGHEST;
    if domain || gate.is_some() {
        found.confidentiality = Confidentiality::Space;
    }
    if let Some(gate) = gate {
        found.isolation = gate;
    }
    reported.min_per_field(found)
}

/// Opens or closes this process's gate: callers come in by themselves, or ring the bell.
///
/// # Errors
/// The error number: `ENOTSUP` of a process that is no domain.
pub(crate) fn accept(open: bool) -> Result<(), u32> {
    let guest = here().ok_or(rustix::io::Errno::NOTSUP.raw_os_error() as u32)?;
    let accepted = guest.accept(open);
    accepted.map_err(|why| why.raw_os_error().unwrap_or_default() as u32)
}

/// System calls that were forwarded so far in the context that a visit runs in.
pub(crate) fn forwards() -> u64 {
    here().map_or(0, |guest| guest.forwards())
}

/// The caller's way into a service of the same launcher.
pub(crate) struct Gate {
    guest: Guest,
    link: Link,
}

impl Gate {
    /// The gate that the service has offered for the link with this number.
    pub(crate) fn take(number: u64) -> Option<Self> {
        let guest = here()?;
        let link = guest.take(number).ok()?;
        tracing::debug!(link = number, "calls go through the gate");
        Some(Self { guest, link })
    }

    /// What keeps the two ends apart.
    pub(crate) fn isolation(&self) -> Isolation {
        self.guest.isolation()
    }

    /// Has the service take what is on the ring, the request with this number among it, in this thread.
    ///
    /// # Errors
    /// When the service has failed in the middle.
    pub(crate) fn visit(&self, stream: u32) -> Result<Visited, GateStatus> {
        match self.guest.call(self.link, [stream.into(), 0, 0], limit()) {
            Ok(word) => Ok(Visited::from_word(word)),
            Err(
                why @ (GateStatus::Fault
                | GateStatus::Deadline
                | GateStatus::Died
                | GateStatus::SystemCall),
            ) => Err(why),
            Err(_) => Ok(Visited::default()),
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.guest.release(self.link);
    }
}

/// A link that callers can come into.
pub(crate) trait Visit: Send + Sync {
    /// Takes what is on the ring, for the caller of the request `stream`.
    fn visit(self: Arc<Self>, stream: u32) -> Visited;

    /// The runtime that finishes what handlers begin.
    fn runtime(&self) -> &Handle;
}

static VISITS: OnceLock<Mutex<HashMap<u64, Weak<dyn Visit>>>> = OnceLock::new();

fn visits() -> std::sync::MutexGuard<'static, HashMap<u64, Weak<dyn Visit>>> {
    lock(VISITS.get_or_init(Mutex::default))
}

/// What a service has offered for one link; taken back with the value.
pub(crate) struct Offered {
    guest: Guest,
    link: Link,
    number: u64,
}

impl Offered {
    /// Offers the gate to the process `pid`, if both are domains of one launcher. To be called inside
    /// the runtime that is to finish what handlers begin.
    ///
    /// # Errors
    /// When a call in this process was cut off: it is about to be ended, and takes no links.
    pub(crate) fn new(pid: Option<u32>, number: u64) -> std::io::Result<Option<Self>> {
        const POISONED: i32 = rustix::io::Errno::NOTRECOVERABLE.raw_os_error();
        let Some(guest) = here() else { return Ok(None) };
        // No process has the number 0.
        match guest.offer(pid.unwrap_or(0), number, number) {
            Ok(link) => {
                lend(guest);
                Ok(Some(Self { guest, link, number }))
            }
            Err(why) if why.raw_os_error() == Some(POISONED) => Err(why),
            Err(_) => Ok(None),
        }
    }

    /// What keeps the two ends apart.
    pub(crate) fn isolation(&self) -> Isolation {
        self.guest.isolation()
    }

    /// Lets callers in.
    pub(crate) fn open(&self, link: Weak<dyn Visit>) {
        visits().insert(self.number, link);
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        self.guest.release(self.link);
        visits().remove(&self.number);
    }
}

/// Parks threads of this process for callers, once, inside the runtime of the first link.
fn lend(guest: Guest) {
    static LENDING: Once = Once::new();
    LENDING.call_once(|| {
        let runtime = Handle::current();
        let lent_in = runtime.id();
        guest.serve(move |entered| {
            let link = visits().get(&entered.cookie).and_then(Weak::upgrade);
            let visited = link.map_or(Visited::default(), |link| {
                let other = link.runtime().id() != lent_in;
                let runtime = other.then(|| link.runtime().clone());
                let _inside = runtime.as_ref().map(Handle::enter);
                link.visit(entered.words[0] as u32)
            });
            visited.to_word()
        });
        for number in 0..LENT {
            let runtime = runtime.clone();
            let lent = move || {
                let _inside = runtime.enter();
                if let Err(why) = guest.lend() {
                    tracing::warn!(%why, "a thread cannot be lent to callers");
                }
            };
            let builder = std::thread::Builder::new().name(format!("partywall-lent-{number}"));
            if let Err(why) = builder.spawn(lent) {
                tracing::warn!(%why, "a thread for callers cannot be started");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visit_result_round_trips_and_a_wrong_word_is_nothing() {
        for taken in [false, true] {
            for waits in [None, Some(false), Some(true)] {
                let visited = Visited { taken, waits };
                assert_eq!(Visited::from_word(visited.to_word()), visited);
            }
        }
        for word in [6, 7, 8, 9, u64::MAX - 1, u64::MAX] {
            assert_eq!(Visited::from_word(word), Visited::default(), "{word}");
        }
    }

    #[test]
    fn security_is_lowered_by_field_and_never_raised() {
        use partywall_abi::security::Evidence;
        let reported =
            |isolation| Security::new(isolation, Confidentiality::Host, Evidence::Started);
        let (all, space) = (reported(Isolation::Process), Confidentiality::Space);
        assert_eq!(lowered(all, false, None), all);
        assert_eq!(
            lowered(all, true, None),
            Security::new(Isolation::Process, space, Evidence::Started)
        );
        for one in Isolation::ALL {
            for gate in Isolation::ALL {
                let found = lowered(reported(*one), true, Some(*gate));
                assert_eq!(found, Security::new(*one.min(gate), space, Evidence::Started));
            }
        }
        assert_eq!(lowered(Security::LOWEST, true, Some(Isolation::Process)), Security::LOWEST);
    }

    #[test]
    fn call_near_its_deadline_does_not_use_the_gate() {
        assert!(has_time(None));
        assert!(has_time(Some(Instant::now() + Duration::from_secs(1))));
        assert!(!has_time(Some(Instant::now() + LIMIT)));
        assert!(!has_time(Some(Instant::now())));
    }

    #[test]
    fn a_limit_is_a_number_of_milliseconds() {
        assert_eq!(parsed("25"), Some(Duration::from_millis(25)));
        for bad in ["", "0", "-1", "10ms", "1.5"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
