//! How much memory this process has made for parcels, and who is asked before it makes more.
//!
//! ```text
//! take    has + n <= allowed: a [`Share`], until its drop
//!         else the keeper of the quota is asked, which may say no, or be nobody; it counts then, not before
//! drop    has - n; where far more may be charged than this process has, the keeper is told on a thread
//! ```
//!
//! Counted is what this process has made, until it drops it, as it pays for the pages. A peer may have it for
//! longer. What comes from peers is not counted. A process may leave the keeper out: the kernel's bound on
//! its memory is that of its control group.
//!
//! One thread at a time asks, or gives back, and holds `ASKING` for that. What is counted has a lock of its
//! own, the last one, which is held for no call but getpid(2) and clock_gettime(2): it is taken twice for
//! each parcel. While something is given back no more is allowed than will be left. One thread at a time is
//! there to give back; it ends when nothing is spare.
//!
//! What the keeper gives when nobody waits for it any more is kept for who tries again: until that much was
//! made, something else is given so, or a second is over. The thread that gives back waits for that.
//!
//! A child that is forked counts what it makes, and asks nobody: its keeper's threads are not there.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{ParcelError, failed};
use crate::threads;

/// Who keeps the quota of this process.
pub trait Keeper: Send + Sync {
    /// How much this process may have in all, if it is to have so many bytes: as many or more. An answer may
    /// take so long.
    ///
    /// # Errors
    /// [`ParcelError::Quota`], and [`ParcelError::Unanswered`] after that time.
    fn want(&self, bytes: usize, within: Duration) -> Result<usize, ParcelError>;

    /// This process has only so many, and may have this much more at once: the rest is given back. What it
    /// may have from now on.
    fn give_back(&self, bytes: usize, more: usize) -> usize;
}

/// What stays allowed beside what is there, so that a process that drops a parcel and makes another one asks
/// nobody.
const SPARE: usize = 64 << 20;

/// How long the keeper may take: where a program makes memory itself, where a message that can go without it
/// is to go, and where nobody waits.
pub(super) const PATIENT: Duration = Duration::from_secs(1);
pub(super) const SOON: Duration = Duration::from_millis(20);
pub(super) const AT_ONCE: Duration = Duration::ZERO;

/// How long what was given in vain is kept.
const KEPT: Duration = Duration::from_secs(1);

/// The keeper, and the process that has it.
static KEEPER: OnceLock<(&'static dyn Keeper, u32)> = OnceLock::new();
static SUMS: Mutex<Sums> = Mutex::new(Sums::NONE);
/// Held by who asks or gives back.
static ASKING: Mutex<()> = Mutex::new(());

struct Sums {
    /// What this process has made, and not dropped.
    has: usize,
    /// What the keeper allows; nothing before it was asked.
    allowed: usize,
    /// What the keeper may have charged for this process, at most.
    charged: usize,
    /// How often what was allowed has become void.
    voided: u64,
    /// What was given in vain last, of all that this process may have, and how long it is kept.
    kept: Option<(usize, Instant)>,
    /// A thread is there to give back.
    gives_back: bool,
}

impl Sums {
    const NONE: Self =
        Self { has: 0, allowed: 0, charged: 0, voided: 0, kept: None, gives_back: false };

    /// So many bytes more, if they are allowed, or nobody is asked.
    fn count(&mut self, bytes: usize) -> Option<Share> {
        let most = if keeper().is_some() { self.allowed } else { isize::MAX as usize };
        let has = self.has.checked_add(bytes).filter(|has| *has <= most)?;
        self.has = has;
        self.kept = self.kept.filter(|(kept, _)| *kept > has);
        Some(Share(bytes))
    }

    /// Whether far more may be charged than there is.
    fn has_spare(&self) -> bool {
        self.charged.saturating_sub(self.has) > 2 * SPARE
    }

    /// Whether a thread has to be started that gives back.
    fn starts(&mut self) -> bool {
        let starts = self.has_spare() && !self.gives_back;
        self.gives_back |= starts;
        starts
    }

    /// What stays when all but so many bytes more is given back, now.
    fn left(&self, more: usize, now: Instant) -> usize {
        let kept = self.kept.filter(|(_, until)| now < *until).map_or(0, |(kept, _)| kept);
        self.has.saturating_add(more).max(kept)
    }

    /// How long the thread that gives back waits before it looks again; nothing where it ends.
    fn waits(&mut self, now: Instant) -> Option<Duration> {
        self.gives_back = self.has_spare();
        let until = self.kept.map_or(now, |(_, until)| until);
        self.gives_back.then(|| until.saturating_duration_since(now))
    }
}

fn sums() -> MutexGuard<'static, Sums> {
    SUMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on this one is asked. There is one for each process; the first one stays.
pub fn keep(keeper: &'static dyn Keeper) {
    let _first = KEEPER.set((keeper, std::process::id()));
}

/// Who is asked; nobody in a child of the process that has a keeper.
fn keeper() -> Option<&'static dyn Keeper> {
    let (keeper, process) = KEEPER.get()?;
    (*process == std::process::id()).then_some(*keeper)
}

/// How many bytes this process has made, and not dropped.
pub fn has() -> usize {
    sums().has
}

/// What was allowed is not any more: the keeper is asked before the next parcel is made.
pub fn void() {
    let mut sums = sums();
    sums.voided += 1;
    sums.allowed = 0;
    // It may be told of all that is there.
    sums.charged = sums.charged.max(sums.has);
}

/// So many bytes, until the drop.
#[derive(Debug)]
pub(super) struct Share(usize);

impl Share {
    /// Counts so many bytes, if that may be. May ask the keeper, which has so long to answer. What is refused
    /// does not count, so that it is in nobody's way.
    ///
    /// # Errors
    /// Those of [`Keeper::want`].
    pub(super) fn take(bytes: usize, within: Duration) -> Result<Self, ParcelError> {
        if let Some(share) = sums().count(bytes) {
            return Ok(share);
        }
        let held = match ASKING.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) if within == PATIENT => {
                ASKING.lock().unwrap_or_else(PoisonError::into_inner)
            }
            Err(TryLockError::WouldBlock) => {
                return Err(ParcelError::Unanswered("more memory is being asked for"));
            }
        };
        let taken = Self::ask(bytes, within);
        drop(held);
        // What was not used may be spare.
        change(|_| {});
        taken
    }

    /// Asks until it is allowed, or is not.
    fn ask(bytes: usize, within: Duration) -> Result<Self, ParcelError> {
        let begin = Instant::now();
        loop {
            // Others may have taken some of what was given, or another coordinator has come.
            let (all, voided, keeper) = {
                let mut sums = sums();
                if let Some(share) = sums.count(bytes) {
                    return Ok(share);
                }
                let all = sums.has.checked_add(bytes).filter(|all| isize::try_from(*all).is_ok());
                let (Some(all), Some(keeper)) = (all, keeper()) else {
                    return Err(failed("memfd_create")(Errno::NOMEM));
                };
                sums.charged = sums.charged.max(all);
                (all, sums.voided, keeper)
            };
            match keeper.want(all, within.saturating_sub(begin.elapsed())) {
                Ok(given) if given >= all => {
                    let mut sums = sums();
                    sums.charged = sums.charged.max(given);
                    if sums.voided == voided {
                        sums.allowed = given;
                    }
                }
                Ok(_) => {
                    let why = "the coordinator has given less than was asked for";
                    return Err(ParcelError::Unanswered(why));
                }
                Err(why) => {
                    // One of several coordinators may have given it.
                    give_back_all_but(keeper, 2 * SPARE);
                    return Err(why);
                }
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        change(|sums| sums.has -= self.0);
    }
}

/// A keeper has given so much, of all that this process may have, and nobody has waited for it: it is kept
/// for a second.
pub fn given_in_vain(bytes: usize) {
    change(|sums| {
        sums.charged = sums.charged.max(bytes);
        if bytes > sums.has {
            sums.kept = Some((bytes, Instant::now() + KEPT));
        }
    });
}

/// Changes the sums, and has what is spare given back on a thread.
fn change(change: impl FnOnce(&mut Sums)) {
    let keeper = {
        let mut sums = sums();
        change(&mut sums);
        sums.has_spare().then(keeper).flatten().filter(|_| sums.starts())
    };
    if let Some(keeper) = keeper {
        let thread = std::thread::Builder::new().name("partywall-memory".into());
        if threads::spawn(thread, || give_back(keeper)).is_err() {
            sums().gives_back = false;
        }
    }
}

/// Gives back what is spare, and what is kept when it is not any more.
fn give_back(keeper: &dyn Keeper) {
    loop {
        let held = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        if sums().has_spare() {
            give_back_all_but(keeper, SPARE);
        }
        drop(held);
        let Some(time) = sums().waits(Instant::now()) else { return };
        std::thread::sleep(time);
    }
}

/// Gives back what is beyond what there is and so many bytes more, but what is kept.
fn give_back_all_but(keeper: &dyn Keeper, more: usize) {
    let (has, left, voided) = {
        let mut sums = sums();
        let left = sums.left(more, Instant::now());
        // Meanwhile no more may be counted than is left.
        (sums.allowed, sums.charged) = (sums.allowed.min(left), left);
        (sums.has, left, sums.voided)
    };
    let left = keeper.give_back(has, left - has);
    let mut sums = sums();
    if sums.voided == voided {
        sums.allowed = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_started_for_many_drops() {
        let mut sums = Sums { charged: 1 << 30, ..Sums::NONE };
        assert!(sums.starts());
        assert!(!sums.starts());
        // It ends when nothing is spare, and what is dropped later starts another one.
        assert_eq!(sums.waits(Instant::now()), Some(Duration::ZERO));
        sums.charged = 0;
        assert_eq!(sums.waits(Instant::now()), None);
        assert!(!sums.starts());
        sums.charged = 1 << 30;
        assert!(sums.starts());
    }

    #[test]
    fn what_is_kept_is_given_back_after_its_time() {
        let (now, far) = (Instant::now(), 4 * SPARE);
        let mut sums = Sums { charged: far, kept: Some((far, now + KEPT)), ..Sums::NONE };
        assert!(sums.starts());
        assert_eq!((sums.left(SPARE, now), sums.waits(now)), (far, Some(KEPT)));
        assert_eq!(sums.left(SPARE, now + KEPT), SPARE);
        assert_eq!(sums.waits(now + KEPT), Some(Duration::ZERO));
    }
}
