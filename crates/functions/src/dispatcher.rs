//! The dispatcher: which call runs where and when, and what comes of it.
//!
//! ```text
//! call --> [schedule: queue of its owner] --> [seat: a process of its group] --> worker's ring --> function
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
//! A worker says by the next number that a submission has ended, and how. What cannot be true ends it, and
//! nothing of that is copied out. When a worker ends, the first of its submissions may have run and the
//! others have not; those begin again elsewhere, and so does the first, once, unless its function has called
//! a service and is not declared to be idempotent. Nobody is told twice.
//!
//! The budget of a function is time on the worker's CPU, from the completion before or from its submission,
//! whichever is later, without what others have of that CPU (`budget`). Beyond it the worker is sent the
//! signal, again and again until the completion comes. A worker that does not hear it for [`DEAF`] is killed,
//! and the call is [`Outcome::Deaf`]. A worker that has given up so many functions
//! ([`Workers::recycle`]) takes no call any more, and another has its seat when its last one is over.
//!
//! A process runs functions that may meet ([`Share`]) and no others, from its begin to its end; it maps their
//! images and its own memory, and of the rest only the clock's page, which it may read. So there may be
//! several processes of a CPU, one of which has submissions at a time.
//!
//! # What a call costs
//!
//! | of a call whose function is loaded | request and reply in their slots (24 bytes) | longer |
//! | --- | --- | --- |
//! | allocations, besides the caller's for the request | 1: the reply | 2: payload, reply |
//! | copies of the request | 2: slot, heap of the cell | 3: payload, the worker's memory, heap |
//! | copies of the reply | 3: the worker's stack, slot, reply | 2: the worker's memory, reply |
//! | locks, atomic read-modify-writes, system calls | none, unless the worker sleeps | as before |
//! | fences | 1 for all that is submitted together | as before |

mod bound;
mod budget;
mod call;
mod cells;
mod check;
mod complete;
mod counts;
mod function;
mod group;
mod outcome;
mod payloads;
mod process;
mod resident;
mod seat;
mod share;
mod submit;
mod watch;
pub mod worker;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use partywall_abi::function::Word;

pub use call::{Done, Event, Number, Outward};
pub use counts::{Counts, Times};
pub use function::{Id, Registration};
pub use group::Group;
pub use outcome::{Held, Outcome};
pub use process::AHEAD;
pub use seat::{HELD, LEAD, TURN};
pub use share::{Share, UnknownShare};

use crate::archive::Archive;
use crate::isolation::{InForce, Wanted};
use crate::layout::HEAVY_HEAP;
use crate::schedule::{Limits, Owner, Schedule};
use crate::store::Store;
use call::Call;
use function::Function;
use group::{ALL, Groups};
use resident::Residents;
use seat::Seats;

/// How long it is until a function is told to stop again, at first.
pub const AGAIN: Duration = Duration::from_micros(100);
/// How long it may take until it is seen that a worker has ended, where nothing else happens.
pub const SLEPT: Duration = Duration::from_millis(20);
/// How long a worker may not hear it.
pub const DEAF: Duration = Duration::from_millis(500);
/// The most bytes of a request with its parameters, and of a reply.
pub const MESSAGE: usize = 8 << 20;

/// The most CPUs of workers: a thread waits for 128 words at most (futex_waitv(2)), and one is its own.
const CPUS: usize = 127;

/// What is needed to start workers.
#[derive(Debug, Clone)]
pub struct Workers {
    /// A program that calls [`crate::worker::main`].
    pub program: Vec<String>,
    /// The CPUs on which one of them runs at a time; none is any.
    pub cpus: Vec<Option<usize>>,
    /// The most processes, at least one for each CPU.
    pub processes: usize,
    /// How exactly functions see the time.
    pub exactness: crate::clock::Exactness,
    /// Who stops functions.
    pub preemption: Preemption,
    /// The most bytes of images that are loaded.
    pub resident: u64,
    /// How many functions a worker gives up before another one is started instead.
    pub recycle: u32,
    /// What is to keep functions from their worker's memory.
    pub isolation: Wanted,
    /// A directory of a disk, for the images of all that is registered.
    pub archive: PathBuf,
}

/// Who stops functions that are beyond their budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// The dispatcher, which looks all the time while a function runs: it takes a CPU, and no function pays.
    Dispatcher,
    /// A timer of each worker, which looks so often whether the same function still runs: the dispatcher may
    /// sleep meanwhile. Budgets are rounded up to whole quanta, and functions are stopped up to two later.
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
    workers: Workers,
    seats: Seats,
    functions: slab::Slab<Function>,
    archive: Archive,
    residents: Residents,
    schedule: Schedule<Number>,
    calls: slab::Slab<Call<T>>,
    /// That of the last call or function.
    generation: u32,
    /// When calls are over, the next one first; those that are over already are passed by.
    deadlines: BinaryHeap<(Reverse<u64>, Number)>,
    /// Calls that have begun and are to be submitted, before any that has not.
    again: VecDeque<Number>,
    /// Those that wait for a cell, which are tried one by one; some may be over.
    celled: VecDeque<Number>,
    /// Whether one that has not comes before them, by turns.
    is_fresh_first: bool,
    /// When it was last looked whether workers live, and how often.
    looked_ns: u64,
    turn: usize,
}

/// A worker process, as it is at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProcess {
    /// Its number.
    pub pid: u32,
    /// Which of [`Workers::cpus`] it runs on.
    pub seat: usize,
    /// Whose functions meet in it.
    pub group: Group,
    /// It has begun to look for submissions.
    pub has_begun: bool,
    /// It is the one that has submissions there.
    pub is_active: bool,
    /// The functions that wait in it for services.
    pub waiting: usize,
    /// The functions that it was given and that have not ended, in order.
    pub given: Vec<Id>,
    /// The inode of its memory, for tests.
    #[doc(hidden)]
    pub inode: u64,
}

impl<T> Dispatcher<T> {
    /// Starts a worker for each CPU, for functions that share with all, and waits until they have begun.
    ///
    /// # Errors
    /// The kernel's, or why a worker does not begin; [`io::ErrorKind::InvalidInput`] with fewer processes
    /// than CPUs, or too many CPUs.
    pub fn new(store: Store, workers: Workers) -> io::Result<Self> {
        let (cpus, most) = (workers.cpus.len(), workers.processes);
        if cpus > CPUS || most < cpus {
            let why = format!(
                "workers have {cpus} CPUs and may be {most} processes: there are at most {CPUS} CPUs, and \
                 `processes` must be as many or more"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let archive = Archive::new(&workers.archive)?;
        let seats = Seats::new(Groups::new(store, cpus), cpus, most, workers.recycle);
        let mut dispatcher = Self {
            workers,
            seats,
            functions: slab::Slab::new(),
            archive,
            residents: Residents::default(),
            schedule: Schedule::default(),
            calls: slab::Slab::new(),
            generation: 0,
            deadlines: BinaryHeap::new(),
            again: VecDeque::new(),
            celled: VecDeque::new(),
            is_fresh_first: false,
            looked_ns: 0,
            turn: 0,
        };
        for seat in 0..cpus {
            let process = dispatcher.start(seat, ALL, 0)?;
            dispatcher.seats.activate(process);
        }
        let mut begun = dispatcher.seats.processes.iter_mut();
        begun.try_for_each(|(_, process)| process.worker.wait())?;
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

    /// Registers a function.
    ///
    /// # Errors
    /// The kernel's, when there is no room for its image.
    pub fn register(&mut self, registration: Registration) -> io::Result<Id> {
        let packed = self.archive.put(registration.image.image())?;
        self.generation = self.generation.wrapping_add(1);
        let id = Id::new(self.functions.vacant_key(), self.generation);
        let Registration { share, owner, .. } = registration;
        let group = self.seats.groups.join(Group::of(share, owner, id), Some(owner));
        let numbers = (group, self.generation);
        self.functions.insert(Function::new(registration, packed, numbers));
        Ok(id)
    }

    fn knows(&self, id: Id) -> bool {
        self.functions.get(id.at()).is_some_and(|function| function.is(id) && !function.is_removed)
    }

    /// Bans a function or lets it be called again. It is also banned by its strikes: calls that it spends
    /// beyond its budget, its memory or its stack, or ends by a fault, or in which its worker ends by itself.
    /// A thousand good replies take a strike back.
    pub fn ban(&mut self, id: Id, is_banned: bool) {
        if self.knows(id) {
            let function = &mut self.functions[id.at()];
            function.is_banned = is_banned;
            function.more.strikes[1] = 0;
        }
    }

    /// Whether it is banned, and the strikes that it has; none if there is no such function.
    pub fn strikes(&self, id: Id) -> Option<(bool, u32)> {
        let function = self.functions.get(id.at()).filter(|function| function.is(id))?;
        Some((function.is_banned, function.more.strikes[1]))
    }

    /// With whose functions it may meet; none if there is no such function.
    pub fn share(&self, id: Id) -> Option<Share> {
        let function = self.functions.get(id.at()).filter(|function| function.is(id))?;
        Some(function.more.share)
    }

    /// What has come of a function's calls; none if there is no such function.
    pub fn counts(&self, id: Id) -> Option<&Counts> {
        self.functions
            .get(id.at())
            .filter(|function| function.is(id))
            .map(|found| &found.more.counts)
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
        let length = function.length(&request);
        let generation = self.generation.wrapping_add(1);
        let number = Number::new(self.calls.vacant_key(), generation);
        let why = if length > MESSAGE {
            Some(Outcome::LongRequest(length as u64))
        } else if function.is_banned {
            Some(Outcome::Banned)
        } else {
            let admitted = self.schedule.admit(function.owner, number, now_ns);
            admitted.err().map(|(why, _)| Outcome::Refused(why))
        };
        if let Some(why) = why {
            function.more.counts.refused += 1;
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
            asked: None,
            is_second: false,
            is_queued: false,
            is_flying: false,
            over: None,
            holds: false,
            came_ns: now_ns,
            deadline_ns,
            cpu_ns: 0,
            lost_ns: 0,
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

    /// Gives a function the answer to its call of a service, by the number of that ([`Outward::call`]): 0 or
    /// a status code, and bytes. A call that does not wait for it takes none.
    pub fn answer(&mut self, call: Number, code: u32, bytes: Vec<u8>) {
        let waiting = self.calls.get_mut(call.at());
        let Some(waiting) = waiting.filter(|found| found.has_asked(call)) else {
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
            self.again.push_back(Number::new(call.at(), waiting.generation));
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
            self.functions[call.function.at()].more.waiting -= 1;
            events.extend(call.asked.map(Event::Unwanted));
            let process = &mut self.seats.processes[at];
            process.worker.clean(cell)?;
            process.cells.give(cell);
        }
        if call.begun.is_none() {
            let owner = self.functions[call.function.at()].owner;
            let _waited = self.schedule.withdraw(owner, |queued| *queued == number);
        }
        self.done((number, now_ns), why, Vec::new(), events)
    }

    /// Does what there is to do; whether there was anything.
    ///
    /// # Errors
    /// The kernel's, when a worker or an image is not to be had.
    pub fn poll(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        let mut any = false;
        for seat in 0..self.seats.all.len() {
            if let Some(at) = self.seats.all[seat].active {
                any |= self.collect(at, now_ns, events)?;
                self.watch(at, now_ns);
            }
        }
        while let Some((Reverse(deadline), number)) = self.deadlines.peek().copied()
            && deadline <= now_ns
        {
            self.deadlines.pop();
            let over = self.deadline(number);
            self.end((number, now_ns), over, events)?;
            any = true;
        }
        any |= self.end_groups();
        any |= self.look(now_ns, events)?;
        any |= self.submit(now_ns, events)?;
        Ok(any)
    }

    /// Whether a function runs that must be watched all the time.
    pub fn must_watch(&self) -> bool {
        self.workers.preemption == Preemption::Dispatcher && self.is_busy()
    }

    /// Whether a function runs.
    pub fn is_busy(&self) -> bool {
        self.seats.active().any(|process| !process.flying.is_empty())
    }

    /// The words by which workers that run something wake who waits for a completion, if they do; see
    /// `partywall_abi::function`.
    pub(crate) fn bells(&self) -> impl Iterator<Item = &Word> {
        let does = self.workers.preemption != Preemption::Dispatcher;
        let active = self.seats.active().filter(move |process| does && !process.flying.is_empty());
        active.map(|process| process.worker.bell())
    }

    /// Whether a worker has completed something, or has begun.
    pub(crate) fn has_news(&self) -> bool {
        self.seats.active().any(|process| process.has_news())
    }

    /// When there will be something to do, if nothing comes before.
    pub fn next_ns(&self) -> Option<u64> {
        let deadline = self.deadlines.peek().map(|(Reverse(deadline), _)| *deadline);
        let active = self.seats.all.iter().filter_map(|seat| seat.active);
        let watched = active.filter_map(|at| self.watched_ns(at)).min();
        // Nobody tells of a worker that ends.
        let looks = (!self.calls.is_empty()).then(|| self.looked_ns + SLEPT.as_nanos() as u64);
        let times =
            [deadline, watched, self.seats.not_before_ns, self.seats.held_until_ns(), looks];
        times.into_iter().flatten().min()
    }

    /// Kills one of the workers in their order, for tests.
    #[doc(hidden)]
    pub fn kill_worker(&mut self, number: usize) {
        let (_, process) = self.seats.processes.iter_mut().nth(number).expect("there are so many");
        let child = process.worker.child();
        child.kill().expect("a worker can be killed");
        child.wait().expect("a worker ends");
        self.looked_ns = 0;
    }

    /// What keeps functions from their workers' memory: of the workers that have begun, the least.
    pub fn in_force(&self) -> Option<InForce> {
        let processes = self.seats.processes.iter();
        let begun = processes.filter_map(|(_, process)| process.worker.begun()?.as_ref().ok());
        begun.min_by_key(|begun| begun.isolation).cloned()
    }

    /// The processes of the workers, and who meets whom in them.
    pub fn workers(&self) -> Vec<WorkerProcess> {
        let process = |(at, process): (usize, &process::Process)| WorkerProcess {
            pid: process.worker.pid(),
            seat: process.seat,
            group: self.seats.groups.get(process.group).group,
            has_begun: process.has_begun,
            is_active: self.seats.all[process.seat].active == Some(at),
            waiting: process.waiting(),
            given: process.flying.iter().map(|it| self.calls[it.call.at()].function).collect(),
            inode: process.worker.inode(),
        };
        self.seats.processes.iter().map(process).collect()
    }
}

const _: () = assert!(MESSAGE as u64 * 2 <= HEAVY_HEAP);
