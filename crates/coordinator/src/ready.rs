//! Whose turn it is: connections that have something to be done, one account after the other.
//!
//! A connection is ready once, however much there is; it is pushed again if something is left
//! after its turn. So an account with a thousand connections gets as many turns as one with one.
//!
//! Turns take time, and who takes much of it waits: what an account has had beyond [`BURST`] it
//! gets at [`RATE`] only. So no account keeps the thread busy all the time, and the thread sleeps in
//! between, which is why the kernel lets it run at once when somebody else comes.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::quota::{Account, Usage};

/// Time of turns that an account may have at once.
const BURST: Duration = Duration::from_millis(5);
/// Part of the thread's time that an account may have in the long run.
const RATE: f64 = 0.25;
/// Most time that an account can owe: a flood is paid for, and not for ever.
const DEBT: Duration = Duration::from_millis(500);
/// Accounts whose time is remembered, before those are looked for that have had none for long.
const REMEMBERED: usize = 256;

/// Time that an account has had, less what it was given since.
struct Had {
    time: Duration,
    at: Instant,
}

impl Had {
    fn now(&mut self, now: Instant) -> Duration {
        let given = now.saturating_duration_since(self.at).mul_f64(RATE);
        (self.time, self.at) = (self.time.saturating_sub(given), now);
        self.time
    }

    /// When it is its turn again; none when that is now.
    fn next(&mut self, now: Instant) -> Option<Instant> {
        let over = self.now(now).checked_sub(BURST).filter(|over| !over.is_zero())?;
        Some(now + over.div_f64(RATE))
    }
}

#[derive(Default)]
pub(crate) struct Ready {
    accounts: VecDeque<usize>,
    tokens: HashMap<usize, (Arc<Usage>, VecDeque<u64>)>,
    /// Under which account each waits.
    queued: HashMap<u64, usize>,
    had: HashMap<Account, Had>,
}

impl Ready {
    pub(crate) fn push(&mut self, usage: &Arc<Usage>, token: u64) {
        let Entry::Vacant(place) = self.queued.entry(token) else { return };
        let account = Arc::as_ptr(usage) as usize;
        place.insert(account);
        let (_, tokens) = self.tokens.entry(account).or_insert_with(|| {
            self.accounts.push_back(account);
            (Arc::clone(usage), VecDeque::new())
        });
        tokens.push_back(token);
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, token: u64) {
        let Some(account) = self.queued.remove(&token) else { return };
        let Some((_, tokens)) = self.tokens.get_mut(&account) else { return };
        tokens.retain(|t| *t != token);
        if tokens.is_empty() {
            self.tokens.remove(&account);
            self.accounts.retain(|a| *a != account);
        }
    }

    /// The next one, and whose it is.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(u64, Arc<Usage>)> {
        for _ in 0..self.accounts.len() {
            let at = self.accounts.pop_front()?;
            let (usage, tokens) = self.tokens.get_mut(&at)?;
            if self.had.get_mut(usage.account()).is_some_and(|had| had.next(now).is_some()) {
                self.accounts.push_back(at);
                continue;
            }
            let usage = Arc::clone(usage);
            let token = tokens.pop_front()?;
            if tokens.is_empty() {
                self.tokens.remove(&at);
            } else {
                self.accounts.push_back(at);
            }
            self.queued.remove(&token);
            return Some((token, usage));
        }
        None
    }

    /// When [`Ready::pop`] has one; none while nothing is to be done.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Instant> {
        let (tokens, had) = (&self.tokens, &mut self.had);
        let of = |at: &usize| {
            let had = tokens.get(at).and_then(|(usage, _)| had.get_mut(usage.account()));
            had.and_then(|had| had.next(now)).unwrap_or(now)
        };
        self.accounts.iter().map(of).min()
    }

    /// An account has had so much time. The coordinator's own user, who could end it, may have all.
    pub(crate) fn spent(&mut self, usage: &Usage, time: Duration, now: Instant) {
        let account = usage.account();
        if usage.is_privileged() {
            return;
        }
        if let Some(had) = self.had.get_mut(account) {
            had.time = (had.now(now) + time).min(BURST + DEBT);
            return;
        }
        if self.had.len() >= REMEMBERED {
            self.had.retain(|_, had| !had.now(now).is_zero());
        }
        self.had.insert(account.clone(), Had { time, at: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Limits, Quotas, Totals};

    fn usages() -> [Arc<Usage>; 2] {
        let q = Quotas::new(Totals::for_descriptors(1024), Limits::default(), 0);
        [1, 2].map(|uid| q.account(Account::User(uid), None))
    }

    fn pop(ready: &mut Ready, now: Instant) -> Option<u64> {
        ready.pop(now).map(|(token, _)| token)
    }

    #[test]
    fn accounts_take_turns_however_many_connections_they_have() {
        let ([many, one], now) = (usages(), Instant::now());
        let mut ready = Ready::default();
        for token in 0..1000 {
            ready.push(&many, token);
            ready.push(&many, token);
        }
        ready.push(&one, 5000);
        assert_eq!([(); 3].map(|()| pop(&mut ready, now)), [Some(0), Some(5000), Some(1)]);
        ready.push(&one, 5000);
        assert_eq!([(); 2].map(|()| pop(&mut ready, now)), [Some(2), Some(5000)]);
        let mut left = 0;
        while pop(&mut ready, now).is_some() {
            left += 1;
        }
        assert_eq!((left, ready.next(now)), (997, None));
    }

    #[test]
    fn turns_account_over_its_time_waits_alone() {
        let ([busy, other], start) = (usages(), Instant::now());
        let mut ready = Ready::default();
        ready.spent(&busy, BURST + Duration::from_millis(10), start);
        for token in [1, 3] {
            ready.push(&busy, token);
        }
        ready.push(&other, 5);
        assert_eq!(pop(&mut ready, start), Some(5));
        assert_eq!(pop(&mut ready, start), None);
        let then = start + Duration::from_millis(10).div_f64(RATE);
        assert_eq!(ready.next(start), Some(then));
        assert_eq!(pop(&mut ready, then), Some(1));
        ready.spent(&busy, Duration::from_millis(1), then);
        assert_eq!(pop(&mut ready, then), None);
        // After a while without turns it is as new.
        let later = then + Duration::from_secs(1);
        ready.spent(&busy, BURST, later);
        assert_eq!(pop(&mut ready, later), Some(3));
    }

    #[test]
    fn connections_that_are_gone_leave_nothing() {
        let ([flood, _], now) = (usages(), Instant::now());
        let mut ready = Ready::default();
        ready.spent(&flood, 10 * BURST, now);
        for token in 0..1000 {
            ready.push(&flood, token);
            ready.forget(token);
            ready.forget(token);
        }
        assert!(ready.queued.is_empty() && ready.tokens.is_empty() && ready.accounts.is_empty());
        ready.push(&flood, 1);
        ready.push(&flood, 2);
        ready.forget(1);
        assert_eq!(pop(&mut ready, now + Duration::from_secs(10)), Some(2));
    }

    #[test]
    fn turns_debt_of_an_account_is_bounded() {
        let ([flood, _], start) = (usages(), Instant::now());
        let mut ready = Ready::default();
        for _ in 0..1000 {
            ready.spent(&flood, 10 * BURST, start);
        }
        ready.push(&flood, 1);
        assert_eq!(ready.next(start), Some(start + DEBT.div_f64(RATE)));
    }

    #[test]
    fn the_coordinators_own_user_never_waits() {
        let (quotas, now) =
            (Quotas::new(Totals::for_descriptors(64), Limits::default(), 7), Instant::now());
        let own = quotas.account(Account::User(7), None);
        let mut ready = Ready::default();
        ready.spent(&own, 100 * BURST, now);
        ready.push(&own, 1);
        assert_eq!(pop(&mut ready, now), Some(1));
    }
}
