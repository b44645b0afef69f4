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
//! every [`AGAIN`] until the completion comes. A worker that does not hear it for [`DEAF`] is killed.

mod call;
mod function;
mod payloads;
mod seat;
mod submit;
pub mod worker;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::time::Duration;

use partywall_abi::function::{Completion, End};

pub use call::{Done, Event, Number, Outcome, Outward};
pub use function::{Id, Registration};

use crate::layout::HEAVY_HEAP;
use crate::schedule::{Limits, Owner, Schedule};
use crate::store::{Loaded, Store};
use call::Call;
use function::Function;
use seat::{Flying, Seat};
use worker::Worker;

/// How often a function is told to stop.
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
}

/// Functions, calls, and the workers that run them. `T` is what a call is told by.
#[derive(Debug)]
pub struct Dispatcher<T> {
    layout: crate::layout::Layout,
    store: Store,
    bell: std::os::fd::OwnedFd,
    workers: Workers,
    seats: Vec<Seat>,
    functions: Vec<Function>,
    names: HashMap<String, Id>,
    schedule: Schedule<Number>,
    calls: slab::Slab<Call<T>>,
    /// That of the last call.
    generation: u32,
    /// When calls are over, the next one first; those that are over already are passed by.
    deadlines: BinaryHeap<(Reverse<u64>, Number)>,
    /// Calls that have begun and are to be submitted, before any that has not.
    again: VecDeque<Number>,
    /// When it was last looked whether workers live.
    looked_ns: u64,
}

impl<T> Dispatcher<T> {
    /// Starts the workers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(layout: crate::layout::Layout, store: Store, workers: Workers) -> io::Result<Self> {
        let bell = worker::bell()?;
        let mut dispatcher = Self {
            layout,
            store,
            bell,
            workers,
            seats: Vec::new(),
            functions: Vec::new(),
            names: HashMap::new(),
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
        Ok(dispatcher)
    }

    fn start(&self, number: usize) -> io::Result<Worker> {
        let Workers { program, cpus, exactness } = &self.workers;
        Worker::start(program, self.layout, &self.store, &self.bell, (cpus[number], *exactness))
    }

    /// Another owner of functions.
    pub fn add_owner(&mut self, limits: Limits) -> Owner {
        self.schedule.add(limits)
    }

    /// Registers a function; none if there is one of that name.
    pub fn register(&mut self, registration: Registration) -> Option<Id> {
        let id = Id(self.functions.len() as u32);
        let (name, function) = Function::new(registration);
        match self.names.entry(name) {
            std::collections::hash_map::Entry::Occupied(_) => return None,
            std::collections::hash_map::Entry::Vacant(free) => free.insert(id),
        };
        self.functions.push(function);
        Some(id)
    }

    /// The function of this name.
    pub fn find(&self, name: &str) -> Option<Id> {
        self.names.get(name).copied()
    }

    /// Loads a function's image before it is called.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::StorageFull`] when the store is full.
    pub fn preload(&mut self, id: Id) -> io::Result<Loaded> {
        let function = &mut self.functions[id.0 as usize];
        if let Some(loaded) = function.loaded {
            return Ok(loaded);
        }
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let loaded = self.store.put(&function.image)?.ok_or_else(full)?;
        Ok(*function.loaded.insert(loaded))
    }

    /// Bans a function or lets it be called again. It is also banned by its strikes: calls that it spends
    /// beyond its budget, its memory or its stack, or ends by a fault. A thousand good replies take a strike
    /// back.
    pub fn ban(&mut self, id: Id, is_banned: bool) {
        let function = &mut self.functions[id.0 as usize];
        function.is_banned = is_banned;
        function.strikes[1] = 0;
    }

    /// Whether it is banned, and the strikes that it has.
    pub fn strikes(&self, id: Id) -> (bool, u32) {
        let function = &self.functions[id.0 as usize];
        (function.is_banned, function.strikes[1])
    }

    /// Takes a call, until `deadline_ns` at most.
    ///
    /// # Errors
    /// The call that is over at once: by its owner's limits, for its length, or with its function banned.
    pub fn call(
        &mut self,
        id: Id,
        request: Vec<u8>,
        token: T,
        (now_ns, deadline_ns): (u64, Option<u64>),
    ) -> Result<Number, Done<T>> {
        let function = &self.functions[id.0 as usize];
        let refused = |token, outcome| Done { token, outcome, log: Vec::new(), cpu_ns: 0 };
        let length = request.len() + function.parameters.len();
        if length > MESSAGE {
            return Err(refused(token, Outcome::Long(length as u64)));
        }
        if function.is_banned {
            return Err(refused(token, Outcome::Banned));
        }
        let owner = function.owner;
        let generation = self.generation.wrapping_add(1);
        let number = Number::new(self.calls.vacant_key(), generation);
        if let Err((why, _)) = self.schedule.admit(owner, number, now_ns) {
            return Err(refused(token, Outcome::Refused(why)));
        }
        self.generation = generation;
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
            cpu_ns: 0,
        });
        Ok(number)
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
    pub fn cancel(&mut self, call: Number, events: &mut Vec<Event<T>>) -> io::Result<()> {
        self.end(call, Outcome::Cancelled, events)
    }

    fn end(&mut self, number: Number, why: Outcome, events: &mut Vec<Event<T>>) -> io::Result<()> {
        let call = self.calls.get_mut(number.at());
        let Some(call) = call.filter(|call| call.is(number)) else {
            return Ok(());
        };
        if call.is_flying {
            call.over.get_or_insert(why);
            return Ok(());
        }
        if let Some((at, cell)) = call.waits {
            self.seats[at].worker.clean(cell)?;
            self.seats[at].cells.push(cell);
        }
        if call.begun.is_none() {
            let owner = self.functions[call.function.0 as usize].owner;
            self.schedule.withdraw(owner, |queued| *queued == number);
        }
        self.done(number, why, Vec::new(), events);
        Ok(())
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
            self.end(number, Outcome::Deadline, events)?;
            any = true;
        }
        if now_ns.saturating_sub(self.looked_ns) > 1_000_000 {
            self.looked_ns = now_ns;
            for at in 0..self.seats.len() {
                if self.seats[at].worker.child().try_wait()?.is_some() {
                    self.replace(at, now_ns, events)?;
                    any = true;
                }
            }
        }
        any |= self.submit(now_ns)?;
        Ok(any)
    }

    /// Takes what a worker has completed.
    fn collect(&mut self, at: usize, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        let mut any = false;
        while let Some((_, completion)) = self.seats[at].worker.completion() {
            any = true;
            let seat = &mut self.seats[at];
            let flying = seat.flying.pop_front().expect("a completion has its submission");
            let cpu_ns = now_ns.saturating_sub(seat.began_ns);
            (seat.began_ns, seat.told_ns) = (now_ns, None);
            let call = &mut self.calls[flying.call.at()];
            (call.cpu_ns, call.is_flying) = (call.cpu_ns + cpu_ns, false);
            self.completed(at, &flying, &completion, events)?;
            let seat = &mut self.seats[at];
            seat.payloads.give(flying.input);
            seat.payloads.give(flying.output);
        }
        Ok(any)
    }

    /// What comes of a submission.
    fn completed(
        &mut self,
        at: usize,
        flying: &Flying,
        completion: &Completion,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        let Flying { call: number, cell, output, .. } = *flying;
        let call = &mut self.calls[number.at()];
        let function = &mut self.functions[call.function.0 as usize];
        // All lengths are the worker's word.
        let most = output.bytes as usize;
        let bytes = (completion.bytes as usize).min(most);
        let rest = (completion.log as usize).min(most - bytes);
        let seat = &mut self.seats[at];
        if completion.end == End::Calls && cell != 0 && call.over.is_none() {
            let body = (completion.lost as usize).min(most - bytes - rest);
            let message = seat.worker.read(output.at, bytes + rest + body);
            (call.waits, call.has_called) = (Some((at, cell)), true);
            let outward = Outward { call: number, message, service: bytes, method: rest };
            events.push(Event::Outward(outward));
            return Ok(());
        }
        if cell != 0 {
            seat.worker.clean(cell)?;
            seat.cells.push(cell);
        }
        let again = match completion.end {
            End::Memory | End::Stack if cell == 0 => {
                function.heavy = true;
                true
            }
            End::Room if !call.has_called && completion.detail <= MESSAGE as u64 => {
                let wanted = completion.detail as usize + partywall_fn::cell::LOG_BYTES;
                let is_more = function.room < wanted;
                function.room = wanted.max(function.room);
                is_more
            }
            _ => false,
        };
        if again && call.over.is_none() {
            call.is_queued = true;
            self.again.push_front(number);
            return Ok(());
        }
        let (said, log) = match completion.short {
            Some(short) => {
                let short = short.bytes();
                (short[..bytes.min(short.len())].to_vec(), Vec::new())
            }
            None => {
                let mut said = seat.worker.read(output.at, bytes + rest);
                let log = said.split_off(bytes);
                (said, log)
            }
        };
        let text = || String::from_utf8_lossy(&said).into_owned();
        let outcome = match completion.end {
            End::Error => Outcome::Error(completion.code, text()),
            End::Panic => Outcome::Panic(text()),
            End::Memory => Outcome::Memory,
            End::Stack => Outcome::Stack,
            End::Fault => Outcome::Fault(completion.code, completion.detail),
            End::Stopped => Outcome::Budget(Duration::from_nanos(function.budget_ns)),
            End::Room => Outcome::Long(completion.detail),
            End::Calls | End::Refused => Outcome::Lost,
            End::Reply => Outcome::Reply(said),
        };
        // One that was stopped for its caller's sake has done nothing wrong.
        let outcome = call.over.take().unwrap_or_else(|| {
            match &outcome {
                Outcome::Reply(_) => function.reply(),
                wrong if wrong.is_strike() => function.strike(),
                _ => {}
            }
            outcome
        });
        self.done(number, outcome, log, events);
        Ok(())
    }

    /// A call is over.
    fn done(&mut self, number: Number, outcome: Outcome, log: Vec<u8>, events: &mut Vec<Event<T>>) {
        let Call { token, begun, cpu_ns, is_queued, .. } = self.calls.remove(number.at());
        if is_queued {
            self.again.retain(|queued| *queued != number);
        }
        if let Some(begun) = begun {
            self.schedule.ended(begun, cpu_ns);
        }
        events.push(Event::Done(Done { token, outcome, log, cpu_ns }));
    }

    /// Stops a function that is beyond its budget.
    fn watch(&mut self, at: usize, now_ns: u64) {
        let seat = &mut self.seats[at];
        let Some(front) = seat.flying.front() else { return };
        let call = &self.calls[front.call.at()];
        let budget = self.functions[call.function.0 as usize].budget_ns;
        if now_ns.saturating_sub(seat.began_ns) <= budget && call.over.is_none() {
            return;
        }
        let number = front.number;
        match &mut seat.told_ns {
            None => seat.told_ns = Some((now_ns, now_ns)),
            Some((first, _)) if now_ns - *first > DEAF.as_nanos() as u64 => {
                // It is replaced when it is gone.
                let _gone = seat.worker.child().kill();
                return;
            }
            Some((_, last)) if now_ns - *last > AGAIN.as_nanos() as u64 => *last = now_ns,
            Some(_) => return,
        }
        seat.worker.stop(number);
    }

    /// Gives a worker's seat to another one.
    fn replace(&mut self, at: usize, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<()> {
        self.collect(at, now_ns, events)?;
        let worker = self.start(at)?;
        let gone = std::mem::replace(&mut self.seats[at], Seat::new(worker));
        let waited = self.calls.iter().filter(|(_, call)| call.waits.is_some_and(|w| w.0 == at));
        let number = |(at, call): (usize, &Call<T>)| Number::new(at, call.generation);
        let waited: Vec<_> = waited.map(number).collect();
        // The last one first, so that the first one is in front again.
        let flew = gone.flying.iter().enumerate().rev();
        let flew = flew.map(|(place, flying)| (flying.call, place == 0)).collect::<Vec<_>>();
        for (number, may_have_run) in flew.into_iter().chain(waited.into_iter().map(|n| (n, true)))
        {
            let call = &mut self.calls[number.at()];
            let idempotent = self.functions[call.function.0 as usize].idempotent;
            let once_more = !call.is_second && (idempotent || !call.has_called);
            if may_have_run && !once_more {
                self.done(number, Outcome::Lost, Vec::new(), events);
                continue;
            }
            call.is_second |= may_have_run;
            call.is_flying = false;
            if let Some(over) = call.over.take() {
                self.done(number, over, Vec::new(), events);
                continue;
            }
            (call.waits, call.answer, call.has_called) = (None, None, false);
            if !std::mem::replace(&mut call.is_queued, true) {
                self.again.push_front(number);
            }
        }
        Ok(())
    }

    /// Kills a worker, for tests; another one has its seat then.
    #[doc(hidden)]
    pub fn kill_worker(&mut self, number: usize) {
        let child = self.seats[number].worker.child();
        child.kill().expect("a worker can be killed");
        child.wait().expect("a worker ends");
        self.looked_ns = 0;
    }
}

const _: () = assert!(MESSAGE as u64 * 2 <= HEAVY_HEAP);
