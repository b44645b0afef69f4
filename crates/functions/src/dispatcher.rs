//! The dispatcher: which call runs where and when, and what comes of it.
//!
//! ```text
//! call --> [schedule: queue of its owner] --> worker's ring --> function
//!                                                |                 |- reply, error, fault ------> done
//!                    again, with more memory <---|                 |- used too much: stopped ---> done
//!                                                |                 `- calls a service: waits
//!                    answer of the service ------> worker's ring --> goes on
//! ```
//!
//! A function is *light* at first: it runs in cell 0, with little memory, which its worker cleans at once.
//! One that needs more has its call run again in a cell of its own, from the begin, and is *heavy* from then
//! on. That is sound, for a light function has called nobody: one that can call a service is heavy from the
//! start. So is a reply that is longer than its room: the function has more room from then on.
//!
//! The worker is believed only that a submission with the next number has ended, and its reply is copied out
//! as far as its room goes. When a worker ends, the first of its submissions may have run and the others have
//! not; those begin again elsewhere, and so does the first, once, unless its function has called a service
//! and is not declared to be idempotent. Nobody is told twice.
//!
//! The budget of a function is time on the worker's CPU as the dispatcher sees it: from the completion
//! before, or from its submission, whichever is later. Beyond it the worker is sent the signal, and again
//! after [`AGAIN`] and ever longer times until the completion comes. A worker that does not hear it for
//! [`DEAF`] is killed, and the call is [`Outcome::Deaf`]. A worker that has given up so many functions
//! ([`Workers::recycle`]) takes no call any more, and another has its seat when its last one is over.

mod call;
mod cells;
mod complete;
mod counts;
mod function;
mod outcome;
mod payloads;
mod resident;
mod seat;
mod submit;
mod watch;
pub mod worker;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::time::Duration;

use partywall_abi::function::Word;

pub use call::{Done, Event, Number, Outward};
pub use counts::Counts;
pub use function::{Id, Registration};
pub use outcome::Outcome;

use crate::isolation::{InForce, Wanted};
use crate::layout::HEAVY_HEAP;
use crate::schedule::{Limits, Owner, Schedule};
use crate::store::Store;
use call::Call;
use function::Function;
use resident::Residents;
use seat::Seat;

/// How long it is until a function is told to stop again, at first.
pub const AGAIN: Duration = Duration::from_micros(100);
/// How long a worker may not hear it.
pub const DEAF: Duration = Duration::from_millis(500);
/// The most bytes of a request with its parameters, and of a reply.
pub const MESSAGE: usize = 8 << 20;

/// What is needed to start workers.
#[derive(Debug, Clone)]
pub struct Workers {
    /// A program that calls [`crate::worker::main`] with its last argument.
    pub program: Vec<String>,
    /// The CPU of each of them; none is any.
    pub cpus: Vec<Option<usize>>,
    /// How exactly functions see the time.
    pub exactness: crate::clock::Exactness,
    /// Who stops functions.
    pub preemption: Preemption,
    /// The most bytes of images that are loaded.
    pub resident: u64,
    /// How many functions a worker gives up before another one has its seat.
    pub recycle: u32,
    /// What is to keep functions from their worker's memory.
    pub isolation: Wanted,
}

/// Who stops functions that are beyond their budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// The dispatcher, which looks all the time while a function runs: it takes a CPU, and no function pays.
    Dispatcher,
    /// A timer of each worker, which looks so often whether the same function still runs: the dispatcher may
    /// sleep meanwhile. Budgets are rounded up to whole quanta, and functions are stopped up to one later.
    /// Each look costs the function the time of a signal.
    Timer(Duration),
}

impl Preemption {
    /// The quanta that a function has; 0 where they are not counted.
    fn quanta(self, left_ns: u64) -> u16 {
        match self {
            Self::Dispatcher => 0,
            Self::Timer(quantum) => {
                let quanta = left_ns.div_ceil(quantum.as_nanos().max(1) as u64);
                // What has more than can be counted is stopped by the dispatcher.
                u16::try_from(quanta.max(1)).unwrap_or(0)
            }
        }
    }
}

/// Functions, calls, and the workers that run them. `T` is what a call is told by.
#[derive(Debug)]
pub struct Dispatcher<T> {
    layout: crate::layout::Layout,
    store: Store,
    bell: worker::Bell,
    workers: Workers,
    seats: Vec<Seat>,
    functions: slab::Slab<Function>,
    names: HashMap<String, Id>,
    residents: Residents,
    schedule: Schedule<Number>,
    calls: slab::Slab<Call<T>>,
    /// That of the last call or function.
    generation: u32,
    /// When calls are over, the next one first; those that are over already are passed by.
    deadlines: BinaryHeap<(Reverse<u64>, Number)>,
    /// Calls that have begun and are to be submitted, before any that has not.
    again: VecDeque<Number>,
    /// When it was last looked whether workers live.
    looked_ns: u64,
}

impl<T> Dispatcher<T> {
    /// Starts the workers, and waits until they have begun.
    ///
    /// # Errors
    /// The kernel's, or why a worker does not begin.
    pub fn new(layout: crate::layout::Layout, store: Store, workers: Workers) -> io::Result<Self> {
        let bell = worker::Bell::new()?;
        let mut dispatcher = Self {
            layout,
            store,
            bell,
            workers,
            seats: Vec::new(),
            functions: slab::Slab::new(),
            names: HashMap::new(),
            residents: Residents::default(),
            schedule: Schedule::default(),
            calls: slab::Slab::new(),
            generation: 0,
            deadlines: BinaryHeap::new(),
            again: VecDeque::new(),
            looked_ns: 0,
        };
        for number in 0..dispatcher.workers.cpus.len() {
            let worker = dispatcher.start(number)?;
            dispatcher.seats.push(Seat::new(worker));
        }
        dispatcher.seats.iter_mut().try_for_each(|seat| seat.worker.wait())?;
        Ok(dispatcher)
    }

    /// Another owner of functions.
    pub fn add_owner(&mut self, limits: Limits) -> Owner {
        self.schedule.add(limits)
    }

    /// Other limits for an owner.
    pub fn limit(&mut self, owner: Owner, limits: Limits) {
        self.schedule.limit(owner, limits);
    }

    /// Registers a function. One that had the name before is removed: its calls go on.
    ///
    /// # Errors
    /// The kernel's, when the other's image cannot be taken out.
    pub fn register(&mut self, registration: Registration) -> io::Result<Id> {
        self.generation = self.generation.wrapping_add(1);
        let id = Id::new(self.functions.vacant_key(), self.generation);
        let before = self.names.insert(registration.name.clone(), id);
        self.functions.insert(Function::new(registration, self.generation));
        before.map_or(Ok(()), |before| self.remove(before))?;
        Ok(id)
    }

    /// The function of this name.
    pub fn find(&self, name: &str) -> Option<Id> {
        self.names.get(name).copied()
    }

    fn knows(&self, id: Id) -> bool {
        self.functions.get(id.at()).is_some_and(|function| function.is(id) && !function.is_removed)
    }

    /// Bans a function or lets it be called again. It is also banned by its strikes: calls that it spends
    /// beyond its budget, its memory or its stack, or ends by a fault. A thousand good replies take a strike
    /// back.
    pub fn ban(&mut self, id: Id, is_banned: bool) {
        if self.knows(id) {
            let function = &mut self.functions[id.at()];
            function.is_banned = is_banned;
            function.strikes[1] = 0;
        }
    }

    /// Whether it is banned, and the strikes that it has; none if there is no such function.
    pub fn strikes(&self, id: Id) -> Option<(bool, u32)> {
        let function = self.functions.get(id.at()).filter(|function| function.is(id))?;
        Some((function.is_banned, function.strikes[1]))
    }

    /// What has come of a function's calls; none if there is no such function.
    pub fn counts(&self, id: Id) -> Option<&Counts> {
        self.functions.get(id.at()).filter(|function| function.is(id)).map(|found| &found.counts)
    }

    /// Takes a call, until `deadline_ns` at most.
    ///
    /// # Errors
    /// The call that is over at once: without such a function, by its owner's limits, for its length, or with
    /// its function banned.
    pub fn call(
        &mut self,
        id: Id,
        request: Vec<u8>,
        token: T,
        (now_ns, deadline_ns): (u64, Option<u64>),
    ) -> Result<Number, Done<T>> {
        let refused =
            |token, outcome| Done { call: None, token, outcome, log: Vec::new(), cpu_ns: 0 };
        if !self.knows(id) {
            return Err(refused(token, Outcome::Gone));
        }
        let function = &mut self.functions[id.at()];
        let length = request.len() + function.parameters.len();
        let generation = self.generation.wrapping_add(1);
        let number = Number::new(self.calls.vacant_key(), generation);
        let why = if length > MESSAGE {
            Some(Outcome::Long(length as u64))
        } else if function.is_banned {
            Some(Outcome::Banned)
        } else {
            let admitted = self.schedule.admit(function.owner, number, now_ns);
            admitted.err().map(|(why, _)| Outcome::Refused(why))
        };
        if let Some(why) = why {
            function.counts.refused += 1;
            return Err(refused(token, why));
        }
        function.open += 1;
        self.generation = generation;
        self.forget_deadlines();
        self.deadlines.extend(deadline_ns.map(|deadline| (Reverse(deadline), number)));
        self.calls.insert(Call {
            generation,
            token,
            function: id,
            request,
            begun: None,
            waits: None,
            answer: None,
            has_called: false,
            is_second: false,
            is_queued: false,
            is_flying: false,
            over: None,
            holds: false,
            came_ns: now_ns,
            deadline_ns,
            cpu_ns: 0,
        });
        Ok(number)
    }

    /// Keeps the deadlines of calls that are over from becoming more than those of calls that are not.
    fn forget_deadlines(&mut self) {
        if self.deadlines.len() > 1024 + 2 * self.calls.len() {
            let calls = &self.calls;
            let is_open = |number: &Number| calls.get(number.at()).is_some_and(|c| c.is(*number));
            self.deadlines.retain(|(_, number)| is_open(number));
        }
    }

    /// Gives a function the answer of the service that it has called: 0 or a status code, and bytes. A call
    /// that does not wait takes none.
    pub fn answer(&mut self, call: Number, code: u32, bytes: Vec<u8>) {
        let waiting = self.calls.get_mut(call.at());
        let Some(waiting) = waiting.filter(|found| found.is(call)) else {
            return;
        };
        if waiting.waits.is_some() && waiting.answer.is_none() {
            let most = MESSAGE.min(bytes.len());
            waiting.answer = Some(if most < bytes.len() {
                (8, b"the service's answer is longer than a function takes".to_vec())
            } else {
                (code, bytes)
            });
            waiting.is_queued = true;
            self.again.push_back(call);
        }
    }

    /// Ends a call that its caller does not want any more, if it is not over. One that runs is stopped first.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cancel(
        &mut self,
        call: Number,
        now_ns: u64,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        self.end((call, now_ns), Outcome::Cancelled, events)
    }

    fn end(
        &mut self,
        (number, now_ns): (Number, u64),
        why: Outcome,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        let call = self.calls.get_mut(number.at());
        let Some(call) = call.filter(|call| call.is(number)) else {
            return Ok(());
        };
        if call.is_flying {
            call.over.get_or_insert(why);
            return Ok(());
        }
        if let Some((at, cell)) = call.waits {
            events.push(Event::Unwanted(number));
            self.seats[at].worker.clean(cell)?;
            self.seats[at].cells.give(cell);
        }
        if call.begun.is_none() {
            let owner = self.functions[call.function.at()].owner;
            self.schedule.withdraw(owner, |queued| *queued == number);
        }
        self.done((number, now_ns), why, Vec::new(), events)
    }

    /// Does what there is to do; whether there was anything.
    ///
    /// # Errors
    /// The kernel's, when a worker or an image is not to be had.
    pub fn poll(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        let mut any = false;
        for at in 0..self.seats.len() {
            any |= self.collect(at, now_ns, events)?;
            self.watch(at, now_ns);
        }
        while let Some((Reverse(deadline), number)) = self.deadlines.peek().copied()
            && deadline <= now_ns
        {
            self.deadlines.pop();
            self.end((number, now_ns), Outcome::Deadline, events)?;
            any = true;
        }
        any |= self.look(now_ns, events)?;
        any |= self.submit(now_ns, events)?;
        Ok(any)
    }

    /// Whether a function runs that must be watched all the time.
    pub fn must_watch(&self) -> bool {
        self.workers.preemption == Preemption::Dispatcher
            && self.seats.iter().any(|seat| !seat.flying.is_empty())
    }

    /// The word by which workers wake who waits for a completion, if they do; see
    /// `partywall_abi::function`.
    pub(crate) fn bell(&self) -> Option<&Word> {
        (self.workers.preemption != Preemption::Dispatcher).then(|| self.bell.word())
    }

    /// Whether a worker has completed something.
    pub(crate) fn has_completions(&self) -> bool {
        self.seats.iter().any(|seat| seat.worker.has_completion())
    }

    /// When there will be something to do, if nothing comes before.
    pub fn next_ns(&self) -> Option<u64> {
        let deadline = self.deadlines.peek().map(|(Reverse(deadline), _)| *deadline);
        let watched = (0..self.seats.len()).filter_map(|at| self.watched_ns(at)).min();
        let missing = self.seats.iter().filter_map(|seat| seat.missing_until_ns).min();
        let mut seats = self.seats.iter();
        let begins = seats.any(|seat| seat.missing_until_ns.is_none() && !seat.has_begun());
        let looks = begins.then(|| self.looked_ns + watch::LOOKS.as_nanos() as u64);
        deadline.into_iter().chain(watched).chain(missing).chain(looks).min()
    }

    /// Kills a worker, for tests; another one has its seat then.
    #[doc(hidden)]
    pub fn kill_worker(&mut self, number: usize) {
        let child = self.seats[number].worker.child();
        child.kill().expect("a worker can be killed");
        child.wait().expect("a worker ends");
        self.looked_ns = 0;
    }

    /// What keeps functions from their workers' memory: of the workers that have begun, the least.
    pub fn in_force(&self) -> Option<InForce> {
        let begun = self.seats.iter().filter_map(|seat| seat.worker.begun()?.as_ref().ok());
        begun.min_by_key(|begun| begun.isolation).cloned()
    }

    /// The processes of the workers.
    pub fn workers(&self) -> Vec<u32> {
        self.seats.iter().map(|seat| seat.worker.pid()).collect()
    }
}

const _: () = assert!(MESSAGE as u64 * 2 <= HEAVY_HEAP);
