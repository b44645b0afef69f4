//! A dispatcher in a thread of its own, which any other may ask to call functions.
//!
//! ```text
//! callers --[orders, one queue]--> thread: orders -> poll -> events --> told (in this thread)
//!    `------ wakes it by its word ----^   |
//!                                         |  sleeps where nothing runs and nothing came for a while
//! ```
//!
//! While a function runs the thread does not sleep, for it watches budgets: it has a CPU of its own where
//! there is one. Where nothing runs it looks [`LOOKS`] times, and then sleeps until an order comes or a
//! deadline is over; an idle runtime makes no system call. Where workers stop functions by timers of their
//! own ([`Preemption::Timer`](crate::dispatcher::Preemption)), it sleeps while functions run too. The
//! protocol of sleep is that of `partywall_abi::function`; callers wake it by a word that no worker maps, and
//! each worker by one of its own.
//!
//! The queue of orders has a bound for each owner: an owner has at most as many calls in it, in its queue and
//! begun together as its limits allow ([`Callee`]), and beyond that a call is refused where it is made.
//!
//! Who is told is called in the dispatcher's thread and must not wait. When the thread ends, because the
//! runtime is dropped or the kernel refuses what it cannot do without, whoever was not told is dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use partywall_abi::function::Word;

use crate::clock::{Clock, Exactness};
use crate::dispatcher::{
    Dispatcher, Done, Event, Id, Number, Outcome, Outward, Registration, Share, WorkerProcess,
    Workers,
};
use crate::isolation::InForce;
use crate::layout::Layout;
use crate::schedule::{Limits, Owner, Refused};
use crate::sleep::{sleep_by_any, wake};
use crate::store::Store;

/// How often the thread looks before it sleeps.
const LOOKS: u32 = 2000;
/// Orders that are taken before workers are looked at again.
const BATCH: usize = 64;
/// How often the clock is compared with the kernel's where functions see the time stamp counter.
const COMPARED: Duration = Duration::from_secs(1);

/// What a runtime is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The CPU of the dispatcher; none is any.
    pub cpu: Option<usize>,
    /// Blocks for images, each of 512 MiB of code: [`crate::layout`].
    pub blocks: u64,
    /// The workers.
    pub workers: Workers,
}

/// How a call has ended, as its caller is told.
#[derive(Debug)]
pub struct Finished {
    /// Its number, with which its log lines are marked; none if it was not taken.
    pub call: Option<Number>,
    /// How.
    pub outcome: Outcome,
    /// Its log lines.
    pub log: Vec<u8>,
    /// The CPU time that it has had.
    pub cpu: Duration,
}

impl Finished {
    /// The log lines: each is behind its length, as a u32 in little-endian order. What does not fit ends
    /// them.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.log[..];
        std::iter::from_fn(move || {
            let (bytes, behind) = rest.split_first_chunk::<4>()?;
            let (line, behind) = behind.split_at_checked(u32::from_le_bytes(*bytes) as usize)?;
            rest = behind;
            Some(line)
        })
    }
}

/// Who is told of a call's end.
pub type Told = Box<dyn FnOnce(Finished) + Send>;

/// What functions call.
pub trait Services: Send {
    /// A function calls a service. This must not wait; the answer comes by [`Answer::give`].
    fn call(&mut self, call: ServiceCall);

    /// Nobody wants an answer to this call ([`Answer::call`]) any more.
    fn unwanted(&mut self, call: Number);
}

/// A function's call of a service.
#[derive(Debug)]
pub struct ServiceCall {
    /// The function that calls.
    pub function: Id,
    /// Whose it is.
    pub owner: Owner,
    /// The service's name.
    pub service: String,
    /// The method's path.
    pub method: String,
    /// The request.
    pub request: Vec<u8>,
    /// When nobody waits for the answer any more.
    pub until: Option<Instant>,
    /// Takes the answer.
    pub answer: Answer,
}

/// Takes the answer of a service. Dropped, it answers that the service is unavailable.
#[derive(Debug)]
pub struct Answer {
    call: Number,
    shared: Option<Arc<Shared>>,
}

/// The status code (google.rpc.Code) of a service that gives no answer: UNAVAILABLE.
const UNAVAILABLE: u32 = 14;

impl Answer {
    /// The number of the service call that it answers; no other one has that.
    pub fn call(&self) -> Number {
        self.call
    }

    /// Gives the function the reply.
    ///
    /// # Errors
    /// A status code that is not 0, and a text.
    pub fn give(mut self, answer: Result<Vec<u8>, (u32, String)>) {
        let (code, bytes) = match answer {
            Ok(bytes) => (0, bytes),
            Err((code, text)) => (if code == 0 { 2 } else { code }, text.into_bytes()),
        };
        self.send(code, bytes);
    }

    fn send(&mut self, code: u32, bytes: Vec<u8>) {
        if let Some(shared) = self.shared.take() {
            shared.order(Order::Answer(self.call, code, bytes));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.send(UNAVAILABLE, b"the service gave no answer".to_vec());
    }
}

/// A function as it is called. It is registered as long as there is one of these: with the last it is
/// removed, and its calls go on.
#[derive(Debug, Clone)]
pub struct Callee {
    registered: Arc<Registered>,
    owner: Arc<OwnerCalls>,
}

impl Callee {
    /// The function's number.
    pub fn id(&self) -> Id {
        self.registered.id
    }
}

#[derive(Debug)]
struct Registered {
    id: Id,
    shared: Arc<Shared>,
    /// Calls that were refused before the dispatcher had them.
    refused: AtomicU64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let id = self.id;
        self.shared.order(Order::Change(Box::new(move |dispatcher| dispatcher.remove(id))));
    }
}

/// Who owns functions.
#[derive(Debug, Clone)]
pub struct OwnerHandle(Arc<OwnerCalls>);

impl OwnerHandle {
    /// The owner's number.
    pub fn number(&self) -> Owner {
        self.0.owner
    }
}

/// The calls of an owner that are not over, and the most that there may be.
#[derive(Debug)]
struct OwnerCalls {
    owner: Owner,
    open: AtomicUsize,
    most: AtomicUsize,
}

impl OwnerCalls {
    fn most(limits: &Limits) -> usize {
        limits.queue.saturating_add(limits.concurrency)
    }
}

/// A call, for who wants to end it.
#[derive(Debug)]
pub struct Ticket {
    number: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

impl Ticket {
    /// Ends the call, if it is not over. Its caller is told all the same.
    pub fn cancel(&self) {
        self.shared.order(Order::Cancel(self.number.clone()));
    }
}

/// What a call is told by.
struct Token {
    told: Told,
    number: Arc<AtomicU64>,
    owner: Arc<OwnerCalls>,
}

impl Token {
    fn tell(self, finished: Finished) {
        self.owner.open.fetch_sub(1, Ordering::Relaxed);
        (self.told)(finished);
    }
}

type Change = Box<dyn FnOnce(&mut Dispatcher<Token>) -> io::Result<()> + Send>;

enum Order {
    Call(Id, Vec<u8>, Option<u64>, Token),
    Answer(Number, u32, Vec<u8>),
    Cancel(Arc<AtomicU64>),
    Change(Change),
    Stop,
}

#[derive(Debug)]
struct Shared {
    /// What the thread has ended by.
    over: OnceLock<String>,
    orders: Sender<Order>,
    word: Word,
    /// Where the times of this runtime begin.
    begun: Instant,
}

impl Shared {
    /// Gives an order; one that comes after the thread has ended is dropped.
    fn order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            wake(&self.word);
        }
    }
}

/// The dispatcher's thread.
#[derive(Debug)]
pub struct Runtime {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// The thread has ended.
#[derive(Debug, thiserror::Error)]
#[error("the dispatcher of functions has ended")]
pub struct Ended;

impl Runtime {
    /// Starts the thread and the workers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(settings: Settings, services: Box<dyn Services>) -> io::Result<Self> {
        let (orders, taken) = channel();
        let (word, begun) = (Word::default(), Instant::now());
        let shared = Arc::new(Shared { over: OnceLock::new(), orders, word, begun });
        let (ready, is_ready) = channel();
        let (of_thread, builder) = (shared.clone(), std::thread::Builder::new());
        let thread = builder.name("dispatcher".into()).spawn(move || {
            // Workers end with the thread that has started them (PR_SET_PDEATHSIG(2const)).
            let begun = Thread::begin(&settings, of_thread, taken, services);
            match begun {
                Ok(mut thread) => {
                    let _waits = ready.send(Ok(()));
                    let ended = thread.run();
                    // Before the services go, which tells their owner.
                    let why = ended.as_ref().err().map(ToString::to_string).unwrap_or_default();
                    let _once = thread.shared.over.set(why);
                    ended
                }
                Err(why) => {
                    let _waits = ready.send(Err(why));
                    Ok(())
                }
            }
        })?;
        is_ready.recv().map_err(|_| io::Error::other("the dispatcher's thread has ended"))??;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What the thread has ended by, if it has: then its services are dropped.
    pub fn over(&self) -> Option<&str> {
        self.shared.over.get().map(String::as_str)
    }

    /// Changes the dispatcher, or asks it, between two calls.
    ///
    /// # Errors
    /// The thread has ended.
    fn change<R: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Dispatcher<Token>) -> io::Result<R> + Send + 'static,
    ) -> Result<R, Ended> {
        let (answer, answered) = channel();
        self.shared.order(Order::Change(Box::new(move |dispatcher| {
            let changed = change(dispatcher)?;
            // Who has asked waits, unless it has ended.
            let _waits = answer.send(changed);
            Ok(())
        })));
        answered.recv().map_err(|_| Ended)
    }

    /// Another owner of functions.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn add_owner(&self, limits: Limits) -> Result<OwnerHandle, Ended> {
        let owner = self.change(move |dispatcher| Ok(dispatcher.add_owner(limits)))?;
        let most = OwnerCalls::most(&limits).into();
        Ok(OwnerHandle(Arc::new(OwnerCalls { owner, open: 0.into(), most })))
    }

    /// Other limits for an owner.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn limit(&self, owner: &OwnerHandle, limits: Limits) -> Result<(), Ended> {
        owner.0.most.store(OwnerCalls::most(&limits), Ordering::Relaxed);
        let number = owner.0.owner;
        self.change(move |dispatcher| {
            dispatcher.limit(number, limits);
            Ok(())
        })
    }

    /// Registers a function of an owner: see [`Dispatcher::register`]. The owner in `registration` is this
    /// one ([`OwnerHandle::number`]).
    ///
    /// # Errors
    /// The thread has ended; within, why there is no room for its image.
    pub fn register(
        &self,
        owner: &OwnerHandle,
        mut registration: Registration,
    ) -> Result<io::Result<Callee>, Ended> {
        registration.owner = owner.number();
        let registered = self.change(|dispatcher| Ok(dispatcher.register(registration)))?;
        let (shared, refused) = (self.shared.clone(), AtomicU64::new(0));
        Ok(registered.map(|id| Callee {
            registered: Arc::new(Registered { id, shared, refused }),
            owner: owner.0.clone(),
        }))
    }

    /// Loads a function's image before it is called.
    ///
    /// # Errors
    /// The thread has ended; within, why there is no room.
    pub fn preload(&self, id: Id) -> Result<io::Result<()>, Ended> {
        self.change(move |dispatcher| Ok(dispatcher.preload(id).map(drop)))
    }

    /// Bans a function or lets it be called again.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn ban(&self, id: Id, is_banned: bool) -> Result<(), Ended> {
        self.change(move |dispatcher| {
            dispatcher.ban(id, is_banned);
            Ok(())
        })
    }

    /// What is known of these functions; none for those that are no more.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn report(&self, callees: Vec<Callee>) -> Result<Vec<Option<Report>>, Ended> {
        self.change(move |dispatcher| {
            let report = |Callee { registered, .. }: Callee| {
                let id = registered.id;
                let (is_banned, strikes) = dispatcher.strikes(id)?;
                let mut counts = dispatcher.counts(id)?.clone();
                counts.refused += registered.refused.load(Ordering::Relaxed);
                let (is_loaded, share) = (dispatcher.is_loaded(id), dispatcher.share(id)?);
                Some(Report { is_banned, strikes, is_loaded, share, counts })
            };
            Ok(callees.into_iter().map(report).collect())
        })
    }

    /// What keeps functions from their workers' memory: see [`Dispatcher::in_force`].
    ///
    /// # Errors
    /// The thread has ended.
    pub fn in_force(&self) -> Result<Option<InForce>, Ended> {
        self.change(|dispatcher| Ok(dispatcher.in_force()))
    }

    /// The processes of the workers, and who meets whom in them.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn workers(&self) -> Result<Vec<WorkerProcess>, Ended> {
        self.change(|dispatcher| Ok(dispatcher.workers()))
    }

    /// Calls a function, until `deadline` at most.
    pub fn call(
        &self,
        callee: &Callee,
        request: Vec<u8>,
        deadline: Option<Instant>,
        told: impl FnOnce(Finished) + Send + 'static,
    ) -> Ticket {
        let number = Arc::new(AtomicU64::new(0));
        let Callee { registered, owner } = callee;
        let most = owner.most.load(Ordering::Relaxed);
        let open = owner.open.fetch_add(1, Ordering::Relaxed);
        let token = Token { told: Box::new(told), number: number.clone(), owner: owner.clone() };
        if open >= most {
            registered.refused.fetch_add(1, Ordering::Relaxed);
            let outcome = Outcome::Refused(Refused::Queue { queue: most });
            token.tell(Finished { call: None, outcome, log: Vec::new(), cpu: Duration::ZERO });
        } else {
            let since = |at: Instant| at.saturating_duration_since(self.shared.begun);
            let deadline = deadline.map(|at| since(at).as_nanos() as u64);
            self.shared.order(Order::Call(registered.id, request, deadline, token));
        }
        Ticket { number, shared: self.shared.clone() }
    }

    /// Ends the thread and its workers, and says what the thread has ended by. Calls that are not over are
    /// dropped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.shared.order(Order::Stop);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the dispatcher has panicked")))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Who wants to know has called `stop`.
        let _unknown = self.end();
    }
}

/// What is known of a function.
#[derive(Debug, Clone)]
pub struct Report {
    /// It is not called any more.
    pub is_banned: bool,
    /// Its strikes.
    pub strikes: u32,
    /// Its image is in memory.
    pub is_loaded: bool,
    /// With whose functions it may meet in a worker process.
    pub share: Share,
    /// What has come of its calls.
    pub counts: crate::dispatcher::Counts,
}

/// What the thread has.
struct Thread {
    dispatcher: Dispatcher<Token>,
    shared: Arc<Shared>,
    orders: Receiver<Order>,
    /// One that has come while the thread was about to sleep.
    first: VecDeque<Order>,
    services: Box<dyn Services>,
    clock: Clock,
    /// How often it is written, and when it was.
    tick_ns: (u64, u64),
    events: Vec<Event<Token>>,
    is_over: bool,
}

impl Thread {
    fn begin(
        settings: &Settings,
        shared: Arc<Shared>,
        orders: Receiver<Order>,
        services: Box<dyn Services>,
    ) -> io::Result<Self> {
        let workers = settings.workers.clone();
        let mut random = [0; 16];
        let filled =
            rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        if filled != random.len() {
            return Err(io::Error::other("there are no random bytes"));
        }
        let (low, high) = (u128::from_le_bytes(random) as u64, u128::from_le_bytes(random) >> 64);
        let layout = Layout::draw([low, high as u64]);
        let store = Store::new(layout, settings.blocks)?;
        let clock = Clock::new(&store, workers.exactness)?;
        let tick = match workers.exactness {
            Exactness::Coarse(resolution) => resolution,
            Exactness::Exact => COMPARED,
        };
        let dispatcher = Dispatcher::new(store, workers)?;
        if let Some(cpu) = settings.cpu {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu);
            rustix::thread::sched_setaffinity(None, &set)?;
        }
        Ok(Self {
            dispatcher,
            shared,
            orders,
            first: VecDeque::new(),
            services,
            clock,
            tick_ns: (tick.as_nanos() as u64, 0),
            events: Vec::new(),
            is_over: false,
        })
    }

    fn now(&self) -> u64 {
        self.shared.begun.elapsed().as_nanos() as u64
    }

    fn run(&mut self) -> io::Result<()> {
        let mut looks = 0;
        while !self.is_over {
            let mut any = self.take()?;
            let now_ns = self.now();
            let (tick_ns, last_ns) = self.tick_ns;
            if now_ns - last_ns >= tick_ns {
                self.tick_ns.1 = now_ns;
                self.clock.tick();
            }
            any |= self.dispatcher.poll(now_ns, &mut self.events)?;
            self.tell();
            if any || self.dispatcher.must_watch() {
                looks = 0;
            } else if looks < LOOKS {
                looks += 1;
            } else {
                looks = 0;
                self.sleep();
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Carries out orders; whether there were any.
    fn take(&mut self) -> io::Result<bool> {
        for taken in 0..BATCH {
            let order = match self.first.pop_front() {
                Some(order) => order,
                None => match self.orders.try_recv() {
                    Ok(order) => order,
                    Err(TryRecvError::Empty) => return Ok(taken != 0),
                    Err(TryRecvError::Disconnected) => Order::Stop,
                },
            };
            let now_ns = self.now();
            match order {
                Order::Call(id, request, deadline_ns, token) => {
                    let number = token.number.clone();
                    match self.dispatcher.call(id, request, token, (now_ns, deadline_ns)) {
                        Ok(taken) => number.store(taken.as_u64(), Ordering::Relaxed),
                        Err(refused) => self.events.push(Event::Done(refused)),
                    }
                }
                Order::Answer(call, code, bytes) => self.dispatcher.answer(call, code, bytes),
                Order::Cancel(number) => {
                    if let Some(number) = Number::from_u64(number.load(Ordering::Relaxed)) {
                        self.dispatcher.cancel(number, now_ns, &mut self.events)?;
                    }
                }
                Order::Change(change) => change(&mut self.dispatcher)?,
                Order::Stop => {
                    self.is_over = true;
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    fn tell(&mut self) {
        for event in self.events.drain(..) {
            match event {
                Event::Done(Done { call, token, outcome, log, cpu_ns }) => {
                    let cpu = Duration::from_nanos(cpu_ns);
                    token.tell(Finished { call, outcome, log, cpu });
                }
                Event::Outward(outward) => self.services.call(service_call(outward, &self.shared)),
                Event::Unwanted(call) => self.services.unwanted(call),
            }
        }
    }

    /// Sleeps until an order comes, or a deadline is over.
    fn sleep(&mut self) {
        let now_ns = self.now();
        // Whoever runs meanwhile sees the time.
        let (tick_ns, last_ns) = self.tick_ns;
        let tick = self.dispatcher.is_busy().then(|| last_ns + tick_ns);
        let next = self.dispatcher.next_ns().into_iter().chain(tick).min();
        let next = next.map(|next| Duration::from_nanos(next.saturating_sub(now_ns)));
        let Self { shared, orders, first, dispatcher, .. } = self;
        let mut has_order = || {
            first.extend(orders.try_recv());
            !first.is_empty()
        };
        let words: Vec<_> = std::iter::once(&shared.word).chain(dispatcher.bells()).collect();
        sleep_by_any(&words, next, || has_order() || dispatcher.has_news());
    }
}

fn service_call(outward: Outward, shared: &Arc<Shared>) -> ServiceCall {
    let Outward { call, function, owner, deadline_ns, message, service, method } = outward;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (names, request) = message.split_at(service + method);
    let (service, method) = names.split_at(service);
    ServiceCall {
        function,
        owner,
        service: text(service),
        method: text(method),
        request: request.to_vec(),
        until: deadline_ns.map(|at| shared.begun + Duration::from_nanos(at)),
        answer: Answer { call, shared: Some(shared.clone()) },
    }
}
