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
//! every
//! [`AGAIN`] until the completion comes. A worker that does not hear it for [`DEAF`] is killed.

mod payloads;
pub mod worker;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use partywall_abi::function::{Completion, End, Input, Short, Submission, Task};

use crate::image::{Call as RuntimeCall, Image};
use crate::layout::{CELLS, HEAVY_HEAP, LIGHT_HEAP};
use crate::schedule::{Begun, Limits, Owner, Refused, Schedule};
use crate::store::{Data, Loaded, Store};
use payloads::{OWN, Payloads, Room};
use worker::Worker;

/// How often a function is told to stop.
pub const AGAIN: Duration = Duration::from_micros(100);
/// How long a worker may not hear it.
pub const DEAF: Duration = Duration::from_millis(500);
/// The most bytes of a request with its parameters, and of a reply.
pub const MESSAGE: usize = 8 << 20;
/// The bytes that a reply has room for of a function that calls services.
const CALLERS_ROOM: usize = 256 << 10;
/// Submissions of a worker that have not ended, where owners share it: who comes next waits for no more.
const AHEAD: usize = 16;

/// A function's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// A call's number: it is used again when the call is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number(u32);

/// What a function is registered with.
#[derive(Debug)]
pub struct Registration {
    /// Its name, which no other has.
    pub name: String,
    /// Whose it is.
    pub owner: Owner,
    /// Its image.
    pub image: Image,
    /// Its parameters and secrets.
    pub parameters: Vec<u8>,
    /// What it may use of the CPU in one call.
    pub budget: Duration,
    /// It may run twice for one call, even if it has called a service.
    pub idempotent: bool,
}

/// How a call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The function's reply.
    Reply(Vec<u8>),
    /// The function's error: a status code and a text.
    Error(u16, String),
    /// The function has panicked, with this text.
    Panic(String),
    /// It needs more memory than a function may have.
    Memory,
    /// It needs more stack than a function may have.
    Stack,
    /// A signal for what it has done, and the address with it.
    Fault(u16, u64),
    /// It has used more CPU time than its budget.
    Budget(Duration),
    /// Its reply is longer than a reply may be.
    Long(u64),
    /// Its owner's limits.
    Refused(Refused),
    /// Its worker has ended, and it must not run again.
    Lost,
}

/// A call that is over.
#[derive(Debug)]
pub struct Done<T> {
    /// What it was called with.
    pub token: T,
    /// How it has ended.
    pub outcome: Outcome,
    /// Its log lines.
    pub log: Vec<u8>,
    /// The CPU time that it has had, in nanoseconds.
    pub cpu_ns: u64,
}

/// A function's call to a service.
#[derive(Debug)]
pub struct Outward {
    /// The call that waits for the answer.
    pub call: Number,
    /// The service's name, the method's path and the request, one behind the other.
    pub message: Vec<u8>,
    /// The bytes of the name.
    pub service: usize,
    /// The bytes of the path.
    pub method: usize,
}

/// What has happened.
#[derive(Debug)]
pub enum Event<T> {
    /// A call is over.
    Done(Done<T>),
    /// A function calls a service.
    Outward(Outward),
}

#[derive(Debug)]
struct Function {
    owner: Owner,
    image: Image,
    parameters: Vec<u8>,
    budget_ns: u64,
    idempotent: bool,
    loaded: Option<Loaded>,
    /// It has cells of its own.
    heavy: bool,
    /// The bytes that its reply has room for.
    room: usize,
}

#[derive(Debug)]
struct Call<T> {
    token: T,
    function: Id,
    request: Vec<u8>,
    begun: Option<Begun>,
    /// The worker and the cell in which it waits for a service.
    waits: Option<(usize, u16)>,
    /// The service's answer, which it has not been given yet.
    answer: Option<(u32, Vec<u8>)>,
    has_called: bool,
    /// It has begun again because its worker has ended.
    is_second: bool,
    /// It is among those that are to be submitted again.
    is_queued: bool,
    cpu_ns: u64,
}

/// A submission that has not ended.
#[derive(Debug)]
struct Flying {
    number: u32,
    call: Number,
    cell: u16,
    input: Room,
    output: Room,
}

#[derive(Debug)]
struct Seat {
    worker: Worker,
    payloads: Payloads,
    flying: VecDeque<Flying>,
    cells: Vec<u16>,
    /// When the first of them has begun, as far as is known.
    began_ns: u64,
    /// When it was told to stop, first and last.
    told_ns: Option<(u64, u64)>,
}

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
        let Registration { name, owner, image, parameters, budget, idempotent } = registration;
        let id = Id(self.functions.len() as u32);
        match self.names.entry(name) {
            std::collections::hash_map::Entry::Occupied(_) => return None,
            std::collections::hash_map::Entry::Vacant(free) => free.insert(id),
        };
        // Only what has a cell of its own can wait.
        let heavy = image.calls(RuntimeCall::Service);
        // And only it cannot run again when its reply has no room.
        let room = if heavy { CALLERS_ROOM } else { OWN as usize };
        let budget_ns = budget.as_nanos() as u64;
        let function =
            Function { owner, image, parameters, budget_ns, idempotent, loaded: None, heavy, room };
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

    /// Takes a call.
    ///
    /// # Errors
    /// The call that is over at once: by its owner's limits, or for its length.
    pub fn call(
        &mut self,
        id: Id,
        request: Vec<u8>,
        token: T,
        now_ns: u64,
    ) -> Result<Number, Done<T>> {
        let function = &self.functions[id.0 as usize];
        let refused = |token, outcome| Done { token, outcome, log: Vec::new(), cpu_ns: 0 };
        let length = request.len() + function.parameters.len();
        if length > MESSAGE {
            return Err(refused(token, Outcome::Long(length as u64)));
        }
        let owner = function.owner;
        let number = Number(self.calls.vacant_key() as u32);
        if let Err((why, _)) = self.schedule.admit(owner, number, now_ns) {
            return Err(refused(token, Outcome::Refused(why)));
        }
        self.calls.insert(Call {
            token,
            function: id,
            request,
            begun: None,
            waits: None,
            answer: None,
            has_called: false,
            is_second: false,
            is_queued: false,
            cpu_ns: 0,
        });
        Ok(number)
    }

    /// Gives a function the answer of the service that it has called: 0 or a status code, and bytes. A call
    /// that does not wait takes none.
    pub fn answer(&mut self, call: Number, code: u32, bytes: Vec<u8>) {
        let Some(waiting) = self.calls.get_mut(call.0 as usize) else { return };
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
            self.calls[flying.call.0 as usize].cpu_ns += cpu_ns;
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
        let call = &mut self.calls[number.0 as usize];
        let function = &mut self.functions[call.function.0 as usize];
        // All lengths are the worker's word.
        let most = output.bytes as usize;
        let bytes = (completion.bytes as usize).min(most);
        let rest = (completion.log as usize).min(most - bytes);
        let seat = &mut self.seats[at];
        if completion.end == End::Calls && cell != 0 {
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
        if again {
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
        self.done(number, outcome, log, events);
        Ok(())
    }

    /// A call is over.
    fn done(&mut self, number: Number, outcome: Outcome, log: Vec<u8>, events: &mut Vec<Event<T>>) {
        let Call { token, begun, cpu_ns, is_queued, .. } = self.calls.remove(number.0 as usize);
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
        let function = self.calls[front.call.0 as usize].function;
        let budget = self.functions[function.0 as usize].budget_ns;
        if now_ns.saturating_sub(seat.began_ns) <= budget {
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
        let waited: Vec<_> = waited.map(|(key, _)| Number(key as u32)).collect();
        // The last one first, so that the first one is in front again.
        let flew = gone.flying.iter().enumerate().rev();
        let flew = flew.map(|(place, flying)| (flying.call, place == 0)).collect::<Vec<_>>();
        for (number, may_have_run) in flew.into_iter().chain(waited.into_iter().map(|n| (n, true)))
        {
            let call = &mut self.calls[number.0 as usize];
            let idempotent = self.functions[call.function.0 as usize].idempotent;
            let once_more = !call.is_second && (idempotent || !call.has_called);
            if may_have_run && !once_more {
                self.done(number, Outcome::Lost, Vec::new(), events);
                continue;
            }
            call.is_second |= may_have_run;
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

    /// Submits what there is room for.
    fn submit(&mut self, now_ns: u64) -> io::Result<bool> {
        let mut any = false;
        for _ in 0..self.again.len() {
            let Some(number) = self.again.pop_front() else { break };
            self.calls[number.0 as usize].is_queued = false;
            any |= self.place(number, now_ns)?;
        }
        while self.seats.iter().any(Seat::has_room) {
            let Some((begun, number)) = self.schedule.begin() else { break };
            self.calls[number.0 as usize].begun = Some(begun);
            any = true;
            if !self.place(number, now_ns)? {
                break;
            }
        }
        Ok(any)
    }

    /// Submits a call; false, and it is tried again, where there is no room for it.
    fn place(&mut self, number: Number, now_ns: u64) -> io::Result<bool> {
        let placed = match self.calls[number.0 as usize].waits {
            Some(waits) => Some(self.resume(number, waits, now_ns)),
            None => self.invoke(number, now_ns)?,
        };
        let done = placed.unwrap_or(false);
        if !done {
            self.calls[number.0 as usize].is_queued = true;
            self.again.push_back(number);
        }
        Ok(done)
    }

    /// Enters a function; none where no worker has room.
    fn invoke(&mut self, number: Number, now_ns: u64) -> io::Result<Option<bool>> {
        let id = self.calls[number.0 as usize].function;
        let Loaded { entry, data, .. } = self.preload(id)?;
        let call = &self.calls[number.0 as usize];
        let function = &self.functions[id.0 as usize];
        let length = call.request.len() + function.parameters.len();
        let is_heavy = function.heavy || length as u64 > LIGHT_HEAP / 2;
        let with_room = self.seats.iter_mut().filter(|seat| seat.has_room());
        let able = with_room.filter(|seat| !is_heavy || !seat.cells.is_empty());
        let Some(seat) = able.min_by_key(|seat| seat.flying.len()) else { return Ok(None) };
        let next = seat.worker.next();
        let [own_input, own_output] = Payloads::own(next);
        let described = data.map_or(0, |_| Data::BYTES);
        let take =
            |payloads: &mut Payloads, bytes: usize, own: Room| match bytes <= own.bytes as usize {
                true => Some(own),
                false => payloads.take(bytes),
            };
        let Some(input) = take(&mut seat.payloads, described + length, own_input) else {
            return Ok(None);
        };
        let Some(output) = take(&mut seat.payloads, function.room, own_output) else {
            seat.payloads.give(input);
            return Ok(None);
        };
        let is_plain = data.is_none() && function.parameters.is_empty();
        let short = Short::new(&call.request).filter(|_| is_plain);
        let input_is = match short {
            Some(short) => Input::Short(short),
            None => {
                let mut payload = Vec::with_capacity(described + length);
                payload.extend(data.map(Data::to_bytes).into_iter().flatten());
                payload.extend_from_slice(&call.request);
                payload.extend_from_slice(&function.parameters);
                seat.worker.write(input.at, &payload);
                let parameters = function.parameters.len() as u32;
                Input::Long { at: input.at, parameters, has_data: data.is_some() }
            }
        };
        let cell = if is_heavy { seat.cells.pop().unwrap_or(0) } else { 0 };
        let submission = Submission {
            task: Task::Invoke,
            cell,
            entry,
            call: number.0.into(),
            bytes: call.request.len() as u32,
            input: input_is,
            output: output.at,
            room: output.bytes,
        };
        seat.fly(&submission, number, (input, output), now_ns);
        Ok(Some(true))
    }

    /// Lets a function go on that has waited in this worker and cell; whether there was room.
    fn resume(&mut self, number: Number, (at, cell): (usize, u16), now_ns: u64) -> bool {
        let call = &mut self.calls[number.0 as usize];
        let function = &self.functions[call.function.0 as usize];
        let seat = &mut self.seats[at];
        let Some((code, bytes)) = &call.answer else { return false };
        if !seat.has_room() {
            return false;
        }
        let [own_input, own_output] = Payloads::own(seat.worker.next());
        let input = if bytes.len() <= own_input.bytes as usize {
            own_input
        } else {
            let Some(input) = seat.payloads.take(bytes.len()) else { return false };
            input
        };
        let output = match function.room <= own_output.bytes as usize {
            true => Some(own_output),
            false => seat.payloads.take(function.room),
        };
        let Some(output) = output else {
            seat.payloads.give(input);
            return false;
        };
        seat.worker.write(input.at, bytes);
        let submission = Submission {
            task: Task::Resume,
            cell,
            entry: 0,
            call: number.0.into(),
            bytes: bytes.len() as u32,
            input: Input::Long { at: input.at, parameters: *code, has_data: false },
            output: output.at,
            room: output.bytes,
        };
        (call.waits, call.answer) = (None, None);
        seat.fly(&submission, number, (input, output), now_ns);
        true
    }
}

impl Seat {
    fn new(worker: Worker) -> Self {
        let cells = (1..CELLS as u16).rev().collect();
        let (payloads, flying) = (Payloads::default(), VecDeque::new());
        Self { worker, payloads, flying, cells, began_ns: 0, told_ns: None }
    }

    fn has_room(&self) -> bool {
        self.flying.len() < AHEAD && self.worker.has_room()
    }

    fn fly(
        &mut self,
        submission: &Submission,
        call: Number,
        (input, output): (Room, Room),
        now_ns: u64,
    ) {
        if self.flying.is_empty() {
            (self.began_ns, self.told_ns) = (now_ns, None);
        }
        let number = self.worker.submit(submission);
        self.flying.push_back(Flying { number, call, cell: submission.cell, input, output });
    }
}

const _: () = assert!(MESSAGE as u64 * 2 <= HEAVY_HEAP);
