//! What one caller's calls hold in a service, and its bounds.
//!
//! A caller is a process. All its links to one [`crate::Server`] share its account, and all
//! processes of one user together have [`USER_SHARE`] times what one may have.
//!
//! ```text
//! what               charged                            given back
//! calls but one of   leased by a link, some at a time   when it has many to spare, or ends
//! each link
//! a link's window    when the link opens                when it ends
//! parcels unread     leased by a link, when it takes    when it ends
//!                    parcels
//! owned parcels      when a link makes memory for one   when the link ends
//!                    ([`super::pool`])
//! a whole request    when it comes, over 4 KiB          when its handler takes or drops it
//! a long message     its announced length, before any   when the request has ended or its body is
//!                    of it goes to the handler          dropped: decoders keep their memory
//! ```
//!
//! A long message is one that goes on in another record. The five bytes before it announce its
//! length, and the handler's decoder sets as much aside when it sees them; so they stay on the
//! stream, unseen and counting against the windows, until there is room ([`Charge::poll_begin`]).
//! There is room for any message when the caller holds nothing else. Who finds none waits, in order.
//! If for as long as [`PATIENCE`] all room is held by messages that handlers have taken, while their
//! requests go on, nothing that the service does makes any: the call ends with RESOURCE_EXHAUSTED.
//!
//! A message that has room can always be finished: where others wait on its link, and may have used
//! up the link's window, its rest comes by [`partywall_abi::frame::Kind::Room`] instead. So two
//! that each have a part of what they need never wait for each other.
//!
//! A charge is given back by its drop, wherever that comes from: the end of the body, a reset, the
//! death of the caller (its link closes, its handlers are dropped), the end of the runtime. One that
//! waits and is dropped leaves the queue; if it was given room at that moment, the next one has it.
//!
//! On the caller's side an account bounds what the answers on one link hold while they are put
//! together. What is complete is not charged there: the program itself decides how many calls it
//! makes.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use partywall_abi::limits;
use partywall_abi::sync::{AtomicU32, AtomicUsize, Ordering};
use partywall_shm::users::Subordinates;
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tonic::Status;

use crate::lock::lock;

/// Callers of one user together may hold so many times what one may.
pub(crate) const USER_SHARE: u64 = 4;
/// The windows of a caller's links together are at most one in so many of its bytes, and
/// [`limits::FIRST_WINDOW`] for each link beyond that.
const WINDOWS: u64 = 4;
/// Descriptors of parcels and attachments that one caller's links together may leave unread.
const PARCELS: u32 = 16 * limits::UNREAD_PARCELS;
/// Bytes of owned parcels that the links of one caller may have, unless set.
const OWNED: usize = 256 << 20;
/// Bytes of owned parcels of this process, and how many it may have.
static OWN_NOW: AtomicUsize = AtomicUsize::new(0);
static OWN_MOST: AtomicUsize = AtomicUsize::new(1 << 30);
/// What the answers on one link may hold while they are put together, in bytes.
const ANSWERS: u64 = 256 * 1024 * 1024;
/// [`Bounds::patience`].
const PATIENCE: Duration = Duration::from_secs(5);

/// Sets how many bytes of owned parcels this process may have.
pub(crate) fn own_at_most(bytes: usize) {
    OWN_MOST.store(bytes, Ordering::Relaxed);
}

/// A sixteenth of what this process may have: each counts twice where places of memory hold another one.
fn descriptors_of_a_user() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(u32::MAX, |limit| u32::try_from(limit / 16).unwrap_or(u32::MAX))
}

/// What a service lets its callers hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Calls of one link.
    pub(crate) calls_per_link: usize,
    /// Calls of one caller over all its links.
    pub(crate) calls: usize,
    /// Bytes of one caller's messages.
    pub(crate) bytes: u64,
    /// Bytes of this end's owned parcels on the links of one caller.
    pub(crate) owned: usize,
    /// How long a message waits for room where no other one is being put together.
    pub(crate) patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            calls_per_link: limits::STREAMS,
            calls: 4 * limits::STREAMS,
            bytes: 256 * 1024 * 1024,
            owned: OWNED,
            patience: PATIENCE,
        }
    }
}

/// The accounts of all callers of one service.
pub(crate) struct Accounts {
    bounds: Bounds,
    lent: Subordinates,
    users: Mutex<HashMap<u32, Weak<User>>>,
}

impl Accounts {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, lent: Subordinates::read(), users: Mutex::default() })
    }

    /// The account for one more link of the process `pid` of the user `uid`, or to whom that number is
    /// lent. Processes whose numbers the coordinator cannot see share one account per user.
    pub(crate) fn open(&self, uid: u32, pid: Option<u32>) -> Arc<Account> {
        let uid = self.lent.owner(uid, rustix::process::geteuid().as_raw());
        let mut users = lock(&self.users);
        let user = users.get(&uid).and_then(Weak::upgrade).unwrap_or_else(|| {
            users.retain(|_, user| user.strong_count() > 0);
            let user = Arc::new(User::default());
            users.insert(uid, Arc::downgrade(&user));
            user
        });
        drop(users);
        Account::new(user, pid, self.bounds, true)
    }
}

/// What is held, by one caller or by one user's callers.
#[derive(Default)]
struct Held {
    calls: usize,
    windows: u64,
    parcels: u32,
    owned: usize,
    bytes: u64,
    /// Messages that are being put together, or wait to be taken.
    passing: usize,
}

#[derive(Default)]
struct Caller {
    held: Held,
    links: usize,
    /// Messages that wait for room, first come, first served.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    pid: Option<u32>,
    /// What its stream has been charged already.
    own: u64,
    more: u64,
    wake: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    all: Held,
    callers: HashMap<Option<u32>, Caller>,
    /// Callers whose messages wait, in the order of their turns.
    waiting: VecDeque<Option<u32>>,
}

#[derive(Default)]
struct User {
    state: Mutex<State>,
}

/// One link's part in its caller's account.
pub(crate) struct Account {
    user: Arc<User>,
    pid: Option<u32>,
    bounds: Bounds,
    /// Messages that were taken count until their stream ends.
    keeps: bool,
    /// The link's window.
    pub(crate) window: u32,
    /// Parcels that the link takes.
    parcels: AtomicU32,
}

impl State {
    fn caller(&mut self, pid: Option<u32>) -> &mut Caller {
        self.callers.entry(pid).or_default()
    }

    /// Whether there is room for `more` bytes on a stream that has `own`.
    fn has_room(&self, pid: Option<u32>, bounds: &Bounds, own: u64, more: u64) -> bool {
        let Some(Caller { held, .. }) = self.callers.get(&pid) else { return false };
        let user = bounds.bytes.saturating_mul(USER_SHARE);
        [(held, bounds.bytes), (&self.all, user)]
            .iter()
            .all(|(held, most)| held.bytes <= own || held.bytes.saturating_add(more) <= *most)
    }

    fn charge(&mut self, pid: Option<u32>, more: u64) {
        for held in [&mut self.callers.entry(pid).or_default().held, &mut self.all] {
            held.bytes += more;
            held.passing += 1;
        }
    }

    /// Gives back `bytes`, and a charge that was `passing`; whom to tell that there is room.
    #[must_use]
    fn give_back(
        &mut self,
        pid: Option<u32>,
        bounds: &Bounds,
        bytes: u64,
        passing: bool,
    ) -> Vec<Waiting> {
        for held in [&mut self.callers.entry(pid).or_default().held, &mut self.all] {
            held.bytes -= bytes;
            held.passing -= usize::from(passing);
        }
        let (mut woken, mut left) = (Vec::new(), self.waiting.len());
        // One of each caller at a time, as long as there is room for the first of any.
        while left > 0
            && let Some(pid) = self.waiting.pop_front()
        {
            let Some(first) = self.caller(pid).waiting.pop_front() else {
                left -= 1;
                continue;
            };
            if first.wake.is_closed() {
                self.waiting.push_front(pid);
                continue;
            }
            self.waiting.push_back(pid);
            if self.has_room(pid, bounds, first.own, first.more) {
                self.charge(pid, first.more);
                woken.push(first);
                left = self.waiting.len();
            } else {
                self.caller(pid).waiting.push_front(first);
                left -= 1;
            }
        }
        woken
    }
}

impl Account {
    fn new(user: Arc<User>, pid: Option<u32>, bounds: Bounds, keeps: bool) -> Arc<Self> {
        let mut state = user.state();
        let windows = bounds.bytes / WINDOWS;
        let all = windows.saturating_mul(USER_SHARE).saturating_sub(state.all.windows);
        let caller = state.caller(pid);
        let left = windows.saturating_sub(caller.held.windows).min(all);
        let window = u32::try_from(left).unwrap_or(u32::MAX);
        let window = window.clamp(limits::FIRST_WINDOW, limits::LINK_WINDOW);
        caller.links += 1;
        caller.held.windows += u64::from(window);
        state.all.windows += u64::from(window);
        drop(state);
        Arc::new(Self { user, pid, bounds, keeps, window, parcels: AtomicU32::new(0) })
    }

    /// An account for the answers on one link of this process.
    pub(crate) fn own() -> Arc<Self> {
        let bounds = Bounds { bytes: ANSWERS, ..Bounds::default() };
        Self::new(Arc::default(), None, bounds, false)
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Leases up to `calls` calls; how many.
    pub(crate) fn lease(&self, calls: usize) -> usize {
        let mut state = self.user.state();
        let user = self.bounds.calls.saturating_mul(USER_SHARE as usize);
        let left = user.saturating_sub(state.all.calls);
        let held = &mut state.caller(self.pid).held;
        let calls = calls.min(left).min(self.bounds.calls.saturating_sub(held.calls));
        held.calls += calls;
        state.all.calls += calls;
        calls
    }

    /// Gives calls back that were leased.
    pub(crate) fn give_back(&self, calls: usize) {
        if calls > 0 {
            let mut state = self.user.state();
            state.caller(self.pid).held.calls -= calls;
            state.all.calls -= calls;
        }
    }

    /// Leases the messages that the link may leave unread which come with up to so many descriptors, once;
    /// how many. The account counts the descriptors. One message is left for each link, as what is attached
    /// to a call has no other way.
    pub(crate) fn lease_parcels(&self, descriptors: u32) -> u32 {
        let mut state = self.user.state();
        if self.parcels.load(Ordering::Relaxed) > 0 {
            return 0;
        }
        let user = (PARCELS * USER_SHARE as u32).min(descriptors_of_a_user());
        let left = user.saturating_sub(state.all.parcels);
        let held = &mut state.caller(self.pid).held;
        let left = left.min(PARCELS.saturating_sub(held.parcels));
        let messages = (left / descriptors).clamp(1, limits::UNREAD_PARCELS);
        held.parcels += messages * descriptors;
        state.all.parcels += messages * descriptors;
        self.parcels.store(messages * descriptors, Ordering::Relaxed);
        messages
    }

    /// Owned parcels of the link have `to` bytes in place of `from`; false, and nothing has changed, where
    /// that is too many.
    pub(crate) fn change_owned(&self, from: usize, to: usize) -> bool {
        let mut state = self.user.state();
        let all = state.all.owned - from + to;
        let held = &mut state.caller(self.pid).held;
        let own = held.owned - from + to;
        let users = self.bounds.owned.saturating_mul(USER_SHARE as usize);
        if to > from && (own > self.bounds.owned || all > users) {
            return false;
        }
        let most = OWN_MOST.load(Ordering::Relaxed);
        let of_process =
            |now: usize| Some(now - from + to).filter(|now| to <= from || *now <= most);
        if OWN_NOW.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_process).is_err() {
            return false;
        }
        held.owned = own;
        state.all.owned = all;
        true
    }

    /// A charge of `bytes` for what passes to a handler as it is, if there is room now.
    pub(crate) fn try_charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        let mut state = self.user.state();
        if !state.has_room(self.pid, &self.bounds, 0, bytes) {
            return None;
        }
        state.charge(self.pid, bytes);
        Some(Charge { account: Arc::clone(self), bytes, passing: true, waiting: None })
    }

    /// Whether nothing that is under way makes room.
    fn is_stuck(&self) -> bool {
        let mut state = self.user.state();
        state.caller(self.pid).held.passing == 0 && state.all.passing == 0
    }

    fn free(&self, bytes: u64, passing: bool) {
        let mut back = vec![(bytes, self.pid, passing)];
        while let Some((bytes, pid, passing)) = back.pop() {
            let mut state = self.user.state();
            let woken = state.give_back(pid, &self.bounds, bytes, passing);
            drop(state);
            for Waiting { pid, more, wake, .. } in woken {
                // One that was dropped at this moment does not want it.
                if wake.send(()).is_err() {
                    back.push((more, pid, true));
                }
            }
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.user.state();
        let parcels = *self.parcels.get_mut();
        state.all.windows -= u64::from(self.window);
        state.all.parcels -= parcels;
        let caller = state.caller(self.pid);
        caller.held.windows -= u64::from(self.window);
        caller.held.parcels -= parcels;
        caller.links -= 1;
        if caller.links == 0 {
            state.callers.remove(&self.pid);
            state.waiting.retain(|pid| *pid != self.pid);
        }
    }
}

impl User {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics half-way through a change.
        lock(&self.state)
    }
}

/// What one stream holds of its link's account.
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
    /// A message is being put together.
    passing: bool,
    waiting: Option<Wait>,
}

/// A message that waits for room.
struct Wait {
    more: u64,
    woken: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
}

impl Charge {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self { account, bytes: 0, passing: false, waiting: None }
    }

    /// Charges a message of `len` bytes before any of it goes to its reader; ready when there is
    /// room.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when there will be none.
    pub(crate) fn poll_begin(
        &mut self,
        cx: &mut Context<'_>,
        len: u64,
    ) -> Poll<Result<(), Status>> {
        if self.waiting.is_none() && self.begin(len) {
            return Poll::Ready(Ok(()));
        }
        let Some(wait) = &mut self.waiting else { return Poll::Ready(Err(self.no_room(len))) };
        if let Poll::Ready(woken) = Pin::new(&mut wait.woken).poll(cx) {
            let more = wait.more;
            self.waiting = None;
            self.bytes += more;
            self.passing = true;
            // Nobody but this value ends the wait.
            return Poll::Ready(woken.map_err(|_| Status::internal("a place in a queue was lost")));
        }
        while wait.patience.as_mut().poll(cx).is_ready() {
            if self.account.is_stuck() {
                self.give_up();
                return Poll::Ready(Err(self.no_room(len)));
            }
            let again = tokio::time::Instant::now() + self.account.bounds.patience;
            wait.patience.as_mut().reset(again);
        }
        Poll::Pending
    }

    /// Charges a message if there is room, or gets into the queue.
    fn begin(&mut self, len: u64) -> bool {
        let more = len.saturating_sub(self.bytes);
        let Account { user, pid, bounds, .. } = &*self.account;
        let mut state = user.state();
        let waiting = &mut state.caller(*pid).waiting;
        if waiting.is_empty() && state.has_room(*pid, bounds, self.bytes, more) {
            state.charge(*pid, more);
            self.bytes += more;
            self.passing = true;
            return true;
        }
        let (wake, woken) = oneshot::channel();
        let waiting = &mut state.caller(*pid).waiting;
        if waiting.len() == waiting.capacity() {
            waiting.retain(|other| !other.wake.is_closed());
        }
        waiting.push_back(Waiting { pid: *pid, own: self.bytes, more, wake });
        if !state.waiting.contains(pid) {
            state.waiting.push_back(*pid);
        }
        let patience = Box::pin(tokio::time::sleep(bounds.patience));
        self.waiting = Some(Wait { more, woken, patience });
        false
    }

    /// Whether a message is being put together.
    pub(crate) fn is_passing(&self) -> bool {
        self.passing
    }

    /// The message is complete.
    pub(crate) fn complete(&mut self) {
        if std::mem::take(&mut self.passing) {
            let bytes = if self.account.keeps { 0 } else { std::mem::take(&mut self.bytes) };
            self.account.free(bytes, true);
        }
    }

    /// Waits no more; what was given at that moment goes back.
    fn give_up(&mut self) {
        if let Some(mut wait) = self.waiting.take() {
            wait.woken.close();
            match wait.woken.try_recv() {
                Ok(()) => self.account.free(wait.more, true),
                // There may be room for who stood behind it.
                Err(_) => self.account.free(0, false),
            }
        }
    }

    /// Nothing more comes, or is wanted.
    pub(crate) fn end(&mut self) {
        self.give_up();
        let (bytes, passing) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.passing));
        if bytes > 0 || passing {
            self.account.free(bytes, passing);
        }
    }

    fn no_room(&self, len: u64) -> Status {
        let most = self.account.bounds.bytes;
        Status::resource_exhausted(format!(
            "no room for a message of {len} bytes: the requests of this caller that go on hold all of \
             the {most} bytes that they may (Server::max_request_bytes_per_caller), or those of its \
             user {USER_SHARE} times as much"
        ))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    const MOST: u64 = 1000;

    fn accounts() -> Arc<Accounts> {
        Accounts::new(Bounds { bytes: MOST, calls: 10, ..Bounds::default() })
    }

    fn poll(charge: &mut Charge, len: u64) -> Poll<Result<(), Status>> {
        charge.poll_begin(&mut Context::from_waker(Waker::noop()), len)
    }

    fn is_in(polled: &Poll<Result<(), Status>>) -> bool {
        matches!(polled, Poll::Ready(Ok(())))
    }

    #[tokio::test]
    async fn messages_wait_in_order_and_a_large_one_is_not_overtaken() {
        let account = accounts().open(1, Some(1));
        let mut charges: Vec<_> = (0..5).map(|_| Charge::new(Arc::clone(&account))).collect();
        let lens = [600, 5000, 10, 400, 10];
        let first: Vec<_> =
            charges.iter_mut().zip(lens).map(|(c, len)| is_in(&poll(c, len))).collect();
        assert_eq!(first, [true, false, false, false, false]);
        let again = |charges: &mut [Charge]| -> Vec<bool> {
            charges
                .iter_mut()
                .zip(lens)
                .map(|(c, len)| c.waiting.is_none() || is_in(&poll(c, len)))
                .collect()
        };
        // The one of 5,000 bytes has room when there is nothing else; the rest after it.
        charges[0].end();
        assert_eq!(again(&mut charges), [true, true, false, false, false]);
        charges[1].end();
        assert_eq!(again(&mut charges), [true; 5]);
        drop(charges);
        let state = account.user.state();
        assert_eq!((state.all.bytes, state.all.passing), (0, 0));
    }

    #[tokio::test]
    async fn waiting_request_fails_after_the_accounts_patience() {
        let patience = Duration::from_millis(50);
        let bounds = Bounds { bytes: MOST, patience, ..Bounds::default() };
        let account = Accounts::new(bounds).open(1, Some(1));
        let [mut kept, mut waits, mut last] = [(); 3].map(|()| Charge::new(Arc::clone(&account)));
        assert!(is_in(&poll(&mut kept, 900)));
        assert!(poll(&mut waits, 200).is_pending());
        tokio::time::sleep(patience * 2).await;
        assert!(poll(&mut waits, 200).is_pending(), "a message is being put together");
        kept.complete();
        let waited = std::future::poll_fn(|cx| waits.poll_begin(cx, 200)).await;
        assert_eq!(waited.unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert!(poll(&mut last, 200).is_pending());
        kept.end();
        assert!(is_in(&poll(&mut last, 200)));
    }

    #[test]
    fn bytes_are_bounded_for_a_caller_and_for_its_user() {
        let accounts = accounts();
        let callers: Vec<_> = (1..=5).map(|pid| accounts.open(1, Some(pid))).collect();
        let full: Vec<_> = callers[..4].iter().map(|one| one.try_charge(MOST).unwrap()).collect();
        let last = &callers[4];
        assert!(callers[0].try_charge(1).is_none() && last.try_charge(1).is_none());
        let stranger = accounts.open(2, Some(9));
        assert!(stranger.try_charge(MOST).is_some(), "another user has its own");
        drop(full);
        assert!(last.try_charge(MOST).is_some());
    }

    #[test]
    fn calls_are_bounded_for_a_caller_and_for_its_user() {
        let accounts = accounts();
        let one = [accounts.open(1, Some(1)), accounts.open(1, Some(1))];
        assert_eq!((one[0].lease(7), one[1].lease(7), one[1].lease(1)), (7, 3, 0));
        let others: Vec<_> = (2..7).map(|pid| accounts.open(1, Some(pid))).collect();
        assert_eq!(others.iter().map(|other| other.lease(10)).sum::<usize>(), 30);
        assert_eq!(accounts.open(2, Some(9)).lease(10), 10, "another user has its own");
        one[0].give_back(7);
        assert_eq!(others[4].lease(10), 7);
    }

    /// Random charges, completions, cancellations and reads: never more than is allowed, nobody waits
    /// while there is room, and nothing is left. Four calls were under way at a time, of three callers,
    /// who hold less than their user may: its bound was never reached.
    #[tokio::test]
    async fn accounts_balance_whatever_happens() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let accounts = accounts();
        let open: Vec<_> = (0..12).map(|link| accounts.open(1, Some(link / 2))).collect();
        let mut charges: Vec<(Charge, u64)> = Vec::new();
        // How often a message waits for what others of its user hold, and for nothing else.
        let mut for_others = 0;
        for _ in 0..20_000 {
            // A new one for each that goes, forty in all.
            if charges.len() < 40 {
                let account = &open[next(12) as usize];
                charges.push((Charge::new(Arc::clone(account)), 1 + next(700)));
            }
            let at = next(charges.len() as u64) as usize;
            let (charge, len) = &mut charges[at];
            match next(4) {
                0 | 1 if !charge.passing => drop(poll(charge, *len)),
                2 => charge.complete(),
                3 => drop(charges.swap_remove(at)),
                _ => {}
            }
            let state = open[0].user.state();
            let mut bytes = 0;
            for (pid, caller) in &state.callers {
                bytes += caller.held.bytes;
                assert!(caller.held.bytes <= MOST, "{pid:?}: {}", caller.held.bytes);
                if let Some(first) = caller.waiting.iter().find(|first| !first.wake.is_closed()) {
                    let bounds = &open[0].bounds;
                    assert!(!state.has_room(*pid, bounds, first.own, first.more), "waits in vain");
                    for_others += usize::from(caller.held.bytes + first.more <= MOST);
                }
            }
            assert_eq!(bytes, state.all.bytes);
            assert!(bytes <= 4 * MOST, "{bytes}");
        }
        assert!(for_others > 1000, "{for_others}: all together hold hardly what they may");
        charges.clear();
        let user = Arc::clone(&open[0].user);
        drop(open);
        let state = user.state();
        assert_eq!((state.all.bytes, state.all.passing, state.all.windows), (0, 0, 0));
        assert!(state.callers.is_empty() && state.waiting.is_empty());
    }
}
