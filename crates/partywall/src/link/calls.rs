//! The calls of a link: the connection that keeps the rules, what each call has received, and the
//! places that calls take.
//!
//! One lock guards all of it, for one operation at a time and never while a record is copied. It
//! is taken after `tx` and `rx` where those are held; a caller's account may be locked under it.
//! An operation that makes a control record due says so ([`Due`]), and whoever called it sends that
//! when the lock is free.
//!
//! # Places
//!
//! How many calls may be open, and how much request data be under way, is the service's to say
//! ([`partywall_call`]). A call that finds no place waits in the caller ([`super::places`]). A service
//! leases places of the caller's account ([`super::account`]), all but one of each link, and gives
//! back what it has to spare.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use partywall_abi::control::{Grant, PaceStats};
use partywall_abi::frame::Limits;
use partywall_abi::limits;
use partywall_abi::sync::{AtomicBool, Ordering};
use partywall_abi::version::Capabilities;
use partywall_call::{Blocked, Connection, Control, Key, NotOpened, Permit, Want};
use tonic::{Code, Status};

mod accept;

pub(super) use accept::{Accepted, Beside, Called, Opened};

use super::account::{Account, USER_SHARE};
use super::mailbox::{self, Answer, Mailbox, Named, Part, Taken};
use super::pace::OpenCalls;
use super::parcels::Piece;
use super::places::{Place, Queue};
use super::pool::Read;
use crate::lock::lock;
use crate::waker::Waiters;

/// Places that a service's link has without leasing them.
const FREE_PLACES: usize = 1;

/// Whether control records are due.
#[must_use = "control records that are due are to be sent"]
#[derive(Clone, Copy)]
pub(super) struct Due(pub(super) bool);

struct State {
    connection: Connection<Mailbox>,
    queue: Queue,
    /// Calls that wait for the link's credit.
    waiters: Waiters,
    /// Places of the account, of a service's link; those include the free ones.
    leased: Option<usize>,
    /// Paths of the methods that the peer has numbered.
    numbered: Vec<Arc<str>>,
    /// Why the link has ended.
    ended: Option<Status>,
}

impl State {
    /// A call is over: what it leaves is dropped when the lock is free, for its wakers may end tasks.
    #[inline]
    fn release(&mut self, key: Key) -> (Mailbox, Option<Waker>) {
        (self.connection.release(key), self.waiters.forget(key))
    }
}

/// The calls of a link.
pub(super) struct Calls {
    state: Mutex<State>,
    /// How many are open, for those who need not know exactly.
    open: OpenCalls,
    /// The service wants no more of them.
    draining: AtomicBool,
    /// What they hold, of what the link's caller may.
    pub(super) account: Arc<Account>,
    /// What a caller is told whose account has no place.
    too_many: Arc<str>,
    /// Owned parcels of the peer's that are to be given back.
    pub(super) read: Arc<Read>,
}

impl Calls {
    /// Those of the caller's end.
    pub(super) fn calling() -> Self {
        Self::new(Connection::caller(), Account::own(), None)
    }

    /// Those of a service's end, which says what the account allows.
    pub(super) fn serving(account: Arc<Account>) -> Self {
        let bounds = *account.bounds();
        let calls = bounds.calls.saturating_add(FREE_PLACES);
        let streams = bounds.calls_per_link.min(calls).min(limits::STREAMS_MAX) as u32;
        let limits = Limits { streams, window: account.window };
        let full = if bounds.calls_per_link > calls {
            too_many_of_a_caller(bounds.calls)
        } else {
            format!(
                "{streams} calls are open on this link, the most that may \
                 (Server::max_concurrent_streams)"
            )
        };
        Self::new(Connection::service(limits, &full), account, Some(FREE_PLACES))
    }

    fn new(connection: Connection<Mailbox>, account: Arc<Account>, leased: Option<usize>) -> Self {
        let queue = Queue::default();
        let (waiters, numbered) = (Waiters::default(), Vec::new());
        let state = State { connection, queue, waiters, leased, numbered, ended: None };
        let (open, draining) = (OpenCalls::default(), AtomicBool::new(false));
        let too_many = too_many_of_a_caller(account.bounds().calls).into();
        let (state, read) = (Mutex::new(state), Arc::default());
        Self { state, open, draining, account, too_many, read }
    }

    /// Announces to the peer only what it knows, as both ends have agreed.
    pub(super) fn agree(&self, capabilities: Capabilities) {
        lock(&self.state).connection.agree(capabilities);
    }

    /// This end takes parcels from here on, once: as many as the account has left.
    pub(super) fn take_parcels(&self, grant: Grant) -> Due {
        let mut state = lock(&self.state);
        if state.connection.knows_parcels() && state.ended.is_none() {
            state.connection.take_parcels(self.account.lease_parcels(grant.descriptors));
        }
        // Those who would attach something.
        let waiters = state.waiters.take();
        let due = Due(state.connection.has_control());
        drop(state);
        waiters.wake();
        due
    }

    /// Whether something may be attached to a head.
    pub(super) fn may_attach(&self) -> bool {
        lock(&self.state).connection.may_attach()
    }

    /// How many places this end has for memory that it attaches, and how many the peer has.
    pub(super) fn attached_places(&self) -> [usize; 2] {
        lock(&self.state).connection.attached_places()
    }

    /// What was attached to a head is read, or nobody will.
    pub(super) fn attached_read(&self) -> Due {
        let mut state = lock(&self.state);
        let waits = state.connection.attached_read();
        Due(waits && state.connection.has_control())
    }

    /// Gives back what is read of the peer's owned parcels.
    #[inline]
    fn give_back(&self, state: &mut State) {
        if !self.read.is_empty() {
            self.read.take().for_each(|place| state.connection.give_back_owned(place));
        }
    }

    /// Lends an owned parcel with the frame that is committed next; its generation.
    pub(super) fn lend(&self, place: u32) -> u32 {
        lock(&self.state).connection.lend(place)
    }

    /// No frame was committed that lends it.
    pub(super) fn take_back(&self, place: u32) {
        lock(&self.state).connection.take_back(place);
    }

    /// Whether data in a parcel would go there now.
    pub(super) fn may_send_parcel(&self) -> bool {
        lock(&self.state).connection.may_send_parcel()
    }

    /// How many calls are open, or were a moment ago.
    pub(super) fn open_calls(&self) -> usize {
        self.open.get()
    }

    /// Measures from now on for a while, and says what was measured so far.
    pub(super) fn pace(&self) -> PaceStats {
        self.open.measure()
    }

    /// How many calls are open, as those see it that open one at the same time.
    pub(super) fn open_now(&self) -> usize {
        lock(&self.state).connection.open_calls()
    }

    /// Whether there is one call, and nobody who waits to begin another one.
    pub(super) fn is_single(&self) -> bool {
        let state = lock(&self.state);
        state.connection.open_calls() == 1 && state.queue.is_empty()
    }

    // ---- opening and ending ------------------------------------------------------------

    /// Opens a call of this side's own, and says how many are open with it; none when it has to wait
    /// for a place ([`Calls::ask`]), unless one is `kept` for it, or when the service drains.
    ///
    /// # Errors
    /// Why the link has ended.
    pub(super) fn open(&self, kept: bool) -> Result<Option<(Key, usize)>, Status> {
        let mut state = lock(&self.state);
        if let Some(status) = &state.ended {
            return Err(status.clone());
        }
        if kept {
            state.queue.unkeep();
        } else if !state.queue.lets_begin(state.connection.free()) {
            return Ok(None);
        }
        let key = match state.connection.open() {
            Ok(key) => key,
            Err(NotOpened::Full | NotOpened::Draining) => return Ok(None),
        };
        let open = state.connection.open_calls();
        self.open.set(open);
        Ok(Some((key, open)))
    }

    /// The next number, for this method; none if none can have one.
    pub(super) fn name(&self, path: &'static str) -> Option<u16> {
        lock(&self.state).connection.name(path)
    }

    /// Opens a call of this side's own whose request is one plain frame with so many bytes of data, for which
    /// room is reserved; none where it has to wait for anything.
    #[inline]
    pub(super) fn open_whole(&self, data: usize) -> Option<(Key, usize)> {
        let mut state = lock(&self.state);
        if state.ended.is_some() || !state.queue.lets_begin(state.connection.free()) {
            return None;
        }
        let key = state.connection.open_whole(data)?;
        let open = state.connection.open_calls();
        self.open.set(open);
        Some((key, open))
    }

    /// Asks for a place for a call.
    pub(super) fn ask(&self) -> Place {
        let mut state = lock(&self.state);
        let free = state.connection.free();
        state.queue.ask(free)
    }

    /// A place that was kept is not wanted.
    pub(super) fn unkeep(&self) -> Due {
        let mut state = lock(&self.state);
        state.queue.unkeep();
        self.changed(state)
    }

    /// The number of open calls, or of places, may have changed: a free place goes to the next who
    /// waits, or back to the account.
    fn changed<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Due {
        self.open.set(state.connection.open_calls());
        let due = Due(state.connection.has_control());
        if let Some(leased) = state.leased {
            let spare = leased.saturating_sub(needed(state.connection.open_calls()));
            if spare > 0 {
                state.leased = Some(leased - spare);
                self.account.give_back(spare);
            }
            return due;
        }
        loop {
            let free = state.connection.free();
            let Some(wake) = state.queue.next(free) else { return due };
            drop(state);
            let gone = wake.send(()).is_err();
            state = lock(&self.state);
            if gone {
                state.queue.unkeep();
            }
        }
    }

    /// [`Calls::changed`], if the number of open calls is no longer `open`.
    fn changed_from(&self, open: usize, state: MutexGuard<'_, State>) -> Due {
        match state.connection.open_calls() == open {
            true => Due(state.connection.has_control()),
            false => self.changed(state),
        }
    }

    /// Says what a call that the peer has opened is called by its path, and leases a place of the account for
    /// it. One that is called by a number has that when it comes.
    ///
    /// # Errors
    /// When there is none: the call is reset and released.
    pub(super) fn admit(&self, key: Key, path: Arc<str>) -> Result<(), Due> {
        let mut state = lock(&self.state);
        if self.admit_to(&mut state, key, Named::Path(path)) {
            Ok(())
        } else {
            Err(self.changed(state))
        }
    }

    fn admit_to(&self, state: &mut State, key: Key, named: Named) -> bool {
        let (open, leased) = (state.connection.open_calls(), state.leased.unwrap_or(usize::MAX));
        if open > leased {
            self.lease_more(state, open);
        }
        if state.leased.is_none_or(|leased| open <= leased) {
            state.connection.user(key).named = Some(named);
            return true;
        }
        let text = Arc::clone(&self.too_many);
        state.connection.reset(key, Code::ResourceExhausted as u8, text);
        state.connection.release(key);
        false
    }

    #[cold]
    fn lease_more(&self, state: &mut State, open: usize) {
        let leased = state.leased.unwrap_or_default();
        let most = self.account.bounds().calls_per_link.saturating_sub(leased);
        state.leased = Some(leased + self.account.lease(most.min(1 + open / 4)));
    }

    /// One more value refers to a call.
    pub(super) fn share(&self, key: Key) {
        lock(&self.state).connection.user(key).users += 1;
    }

    /// One value less refers to a call; with the last one it is over.
    pub(super) fn release(&self, key: Key) -> Due {
        let mut state = lock(&self.state);
        let open = state.connection.open_calls();
        let mailbox = state.connection.user(key);
        mailbox.users -= 1;
        if mailbox.users > 0 {
            return Due(state.connection.has_control());
        }
        let _left = state.release(key);
        self.changed_from(open, state)
    }

    /// Ends a call out of turn, on both sides with one status.
    pub(super) fn reset(&self, key: Key, status: Status) -> Due {
        let (code, text) = (status.code(), status.message().to_owned());
        self.give_up(key, code, &text, status)
    }

    /// Ends a call out of turn: with a code and a text for the peer, and a status for this side.
    pub(super) fn give_up(&self, key: Key, code: Code, text: &str, status: Status) -> Due {
        let mut state = lock(&self.state);
        state.connection.reset(key, code as i32 as u8, text);
        let wakers = state.connection.user(key).fail(status);
        let due = self.changed(state);
        wakers.wake();
        due
    }

    /// Ends a call on this side alone.
    pub(super) fn fail(&self, key: Key, status: Status) {
        let wakers = lock(&self.state).connection.user(key).fail(status);
        wakers.wake();
    }

    /// A call is denied: no policy that comes from now on ends it. Whether it is open.
    pub(super) fn deny(&self, key: Key) -> bool {
        let mut state = lock(&self.state);
        state.connection.user(key).named = None;
        state.connection.is_open(key)
    }

    /// Ends those open calls whose path says so, on both sides; how many.
    pub(super) fn reset_all(&self, ends: impl Fn(&str) -> bool, status: &Status) -> (usize, Due) {
        let mut state = lock(&self.state);
        let all: Vec<_> = state.connection.calls().collect();
        let text = Arc::<str>::from(status.message());
        let (mut ended, mut wakers) = (0, Vec::new());
        for key in all {
            let State { connection, numbered, .. } = &mut *state;
            let mailbox = connection.user(key);
            if !mailbox.named.as_ref().is_some_and(|named| ends(named.path(numbered))) {
                continue;
            }
            wakers.push(mailbox.fail(status.clone()));
            connection.reset(key, status.code() as i32 as u8, Arc::clone(&text));
            ended += 1;
        }
        let due = self.changed(state);
        wakers.into_iter().for_each(mailbox::Wakers::wake);
        (ended, due)
    }

    /// The link has ended.
    pub(super) fn end(&self, status: &Status) {
        let mut state = lock(&self.state);
        state.ended = Some(status.clone());
        let waiting = state.queue.shut();
        let waiters = state.waiters.take();
        let open = state.connection.end();
        let wakers: Vec<_> =
            open.iter().map(|key| state.connection.user(*key).fail(status.clone())).collect();
        let _nothing_is_sent = self.changed(state);
        drop(waiting);
        wakers.into_iter().for_each(mailbox::Wakers::wake);
        waiters.wake();
    }

    // ---- receiving ---------------------------------------------------------------------

    /// Puts what came with a request's head where its handler finds it; `end` when that is all.
    pub(super) fn deliver(&self, key: Key, data: Piece, end: bool) {
        let part = Part { data, end, ..Part::default() };
        let wakers = lock(&self.state).connection.user(key).fill(part, false);
        wakers.wake();
    }

    /// How an answer begins. With all of it, or with an error, the call is over and released.
    #[inline]
    pub(super) fn poll_head(
        &self,
        key: Key,
        cx: &Context<'_>,
    ) -> Poll<(Result<Answer, Status>, Due)> {
        let mut state = lock(&self.state);
        let open = state.connection.open_calls();
        let mailbox = state.connection.user(key);
        let Poll::Ready(answer) = mailbox.poll_head(cx) else {
            return pending(state, key);
        };
        if let Ok(Answer::Head(_)) = &answer {
            return Poll::Ready((answer, Due(state.connection.has_control())));
        }
        debug_assert_eq!(mailbox.users, 1, "nobody else has a call that is not answered");
        // Its data count as taken then.
        let _left = state.release(key);
        let due = self.changed_from(open, state);
        Poll::Ready((answer, due))
    }

    pub(super) fn poll_take(&self, key: Key, cx: &Context<'_>) -> Poll<Result<Taken, Status>> {
        let mut state = lock(&self.state);
        match state.connection.user(key).poll_take(cx) {
            Poll::Pending => pending(state, key),
            taken => taken,
        }
    }

    pub(super) fn poll_failed(&self, key: Key, cx: &Context<'_>) -> Poll<Status> {
        let mut state = lock(&self.state);
        match state.connection.user(key).poll_failed(cx) {
            Poll::Pending => pending(state, key),
            failed => failed,
        }
    }

    pub(super) fn put_back(&self, key: Key, piece: Piece) {
        lock(&self.state).connection.user(key).put_back(piece);
    }

    pub(super) fn is_drained(&self, key: Key) -> bool {
        lock(&self.state).connection.user(key).is_drained()
    }

    /// The program has taken data.
    pub(super) fn taken(&self, key: Key, bytes: usize) -> Due {
        let mut state = lock(&self.state);
        state.connection.taken(key, bytes);
        self.give_back(&mut state);
        Due(state.connection.has_control())
    }

    /// The program takes nothing more.
    pub(super) fn discard(&self, key: Key) -> Due {
        let mut state = lock(&self.state);
        state.connection.user(key).discard();
        state.connection.discard(key);
        self.give_back(&mut state);
        Due(state.connection.has_control())
    }

    /// The program keeps memory for a message.
    pub(super) fn keep_room(&self, key: Key, bytes: u64) -> Due {
        let mut state = lock(&self.state);
        state.connection.keep_room(key, bytes);
        Due(state.connection.has_control())
    }

    /// A call waits for memory, or has waited.
    pub(super) fn waits(&self, begins: bool) -> Due {
        let mut state = lock(&self.state);
        if begins {
            state.connection.begin_to_wait();
        } else {
            state.connection.end_to_wait();
        }
        Due(state.connection.has_control())
    }

    // ---- sending -----------------------------------------------------------------------

    /// What may be sent on a call; the task is woken when more may.
    #[inline(always)]
    pub(super) fn reserve(
        &self,
        key: Key,
        want: Want,
        cx: &Context<'_>,
    ) -> Result<Permit, Blocked> {
        let mut state = lock(&self.state);
        let reserved = state.connection.reserve(key, want);
        if let Err(Blocked::Credit { link }) = reserved {
            let replaced = if link { state.waiters.wait(key, cx) } else { None };
            state.connection.user(key).wait_to_send(cx);
            let _waits = pending::<()>(state, key);
            drop(replaced);
        }
        reserved
    }

    /// How many calls wait for the link's credit.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        lock(&self.state).waiters.len()
    }

    /// A frame is going to be written; false when the call is over.
    #[inline(always)]
    pub(super) fn commit(&self, key: Key, flags: u8, data: usize) -> (bool, Due) {
        let mut state = lock(&self.state);
        let open = state.connection.open_calls();
        let sent = state.connection.commit(key, flags, data);
        (sent, self.changed_from(open, state))
    }

    /// An answer is going to be written as one plain frame with so many bytes of data; false where that has
    /// to wait for anything, or the call is over. Else the call is over now, and this value's reference to it
    /// gone.
    #[inline]
    pub(super) fn answer_whole(&self, key: Key, data: usize) -> (bool, Due) {
        let mut state = lock(&self.state);
        let open = state.connection.open_calls();
        if !state.connection.answer_whole(key, data) {
            return (false, Due(false));
        }
        let mailbox = state.connection.user(key);
        mailbox.users -= 1;
        let _left = (mailbox.users == 0).then(|| state.release(key));
        (true, self.changed_from(open, state))
    }

    /// The control record that is due next: its payload goes to `payload`.
    pub(super) fn control(
        &self,
        payload: &mut Vec<u8>,
    ) -> Result<Option<Control>, partywall_call::Error> {
        let state = lock(&self.state);
        let control = state.connection.control()?.cloned();
        if let Some(control) = &control {
            control.write(payload);
        }
        Ok(control)
    }

    /// Whether control records are due.
    pub(super) fn has_control(&self) -> bool {
        lock(&self.state).connection.has_control()
    }

    /// That one is on the ring.
    pub(super) fn control_sent(&self) {
        lock(&self.state).connection.control_sent();
    }

    /// Ready when nothing may be sent any more: the call was reset or answered.
    pub(super) fn poll_stopped(&self, key: Key, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.connection.is_stopped(key) {
            return Poll::Ready(());
        }
        state.connection.user(key).wait_to_send(cx);
        pending(state, key)
    }

    // ---- draining ----------------------------------------------------------------------

    pub(super) fn drain(&self) -> Due {
        let mut state = lock(&self.state);
        state.connection.drain(Instant::now());
        self.draining.store(true, Ordering::Relaxed);
        Due(state.connection.has_control())
    }

    /// Whether the service wants no more calls.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether a draining link has no call, and none comes; or when to ask again at the latest.
    pub(super) fn is_finished(&self) -> Result<(), Option<Instant>> {
        let mut state = lock(&self.state);
        state.connection.handle_timeout(Instant::now());
        if state.connection.is_drained() { Ok(()) } else { Err(state.connection.timeout()) }
    }
}

/// A task waits now: the waker whose place it has taken is dropped when the lock is free.
fn pending<T>(mut state: MutexGuard<'_, State>, key: Key) -> Poll<T> {
    let replaced = state.connection.user(key).take_replaced();
    drop(state);
    drop(replaced);
    Poll::Pending
}

/// Leased places that a link with so many calls will soon need again.
fn needed(open: usize) -> usize {
    if open <= FREE_PLACES { FREE_PLACES } else { open + 1 + open / 2 }
}

fn too_many_of_a_caller(calls: usize) -> String {
    format!(
        "this caller has {calls} calls open beside one on each link, or its user's callers {USER_SHARE} times \
         as many, the most that they may (Server::max_calls_per_caller)"
    )
}
