//! A dispatcher in its thread, called from others.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use partywall_functions::clock::Exactness;
use partywall_functions::dispatcher::{Group, Number, Outcome, Preemption, Registration, Share};
use partywall_functions::runtime::{
    Callee, Finished, OwnerHandle, Runtime, ServiceCall, Services, Settings,
};
use partywall_functions::schedule::{Limits, Owner, Refused};
use partywall_functions::signed::Signed;

use super::host::{self, UPPER, signed};
use super::rig::reply;

const ASKS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
                    partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";
const ENDLESS: &str =
    "pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }";

/// What functions have called, for a test to answer.
struct Asked(Sender<ServiceCall>, Arc<Mutex<Vec<Number>>>);

impl Services for Asked {
    fn call(&mut self, call: ServiceCall) {
        let _ended = self.0.send(call);
    }

    fn unwanted(&mut self, call: Number) {
        self.1.lock().unwrap().push(call);
    }
}

struct Rig {
    runtime: Runtime,
    owner: OwnerHandle,
    asked: Receiver<ServiceCall>,
    unwanted: Arc<Mutex<Vec<Number>>>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Preemption::Dispatcher)
    }

    fn with(preemption: Preemption) -> Self {
        let mut workers = host::workers(1, Exactness::Coarse(Duration::from_millis(1)));
        workers.preemption = preemption;
        let (send, asked) = channel();
        let unwanted = Arc::new(Mutex::new(Vec::new()));
        let services = Box::new(Asked(send, unwanted.clone()));
        let settings = Settings { cpu: None, blocks: 2, workers };
        let runtime = Runtime::start(settings, services).unwrap();
        let owner = runtime.add_owner(Limits::default()).unwrap();
        Self { runtime, owner, asked, unwanted }
    }

    fn register(&self, owner: &OwnerHandle, text: &str) -> Callee {
        self.register_with(owner, text, Duration::from_secs(20))
    }

    fn register_with(&self, owner: &OwnerHandle, text: &str, budget: Duration) -> Callee {
        self.register_image(owner, &signed(text).into(), budget)
    }

    fn register_image(&self, owner: &OwnerHandle, image: &Arc<Signed>, budget: Duration) -> Callee {
        let registration = Registration {
            owner: Owner(0),
            image: image.clone(),
            parameters: Vec::new(),
            budget,
            idempotent: false,
            share: Share::All,
            strikes: 1000,
        };
        self.runtime.register(owner, registration).unwrap().unwrap()
    }

    fn call(&self, callee: &Callee, request: &[u8]) -> Finished {
        call(&self.runtime, callee, request)
    }
}

fn call(runtime: &Runtime, callee: &Callee, request: &[u8]) -> Finished {
    let (told, end) = channel();
    runtime.call(callee, request.to_vec(), None, move |finished| told.send(finished).unwrap());
    end.recv_timeout(Duration::from_secs(20)).unwrap()
}

/// The voluntary context switches of a thread.
fn switches(task: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn calls_from_many_threads_have_their_own_answers() {
    let rig = Rig::new();
    let upper = rig.register(&rig.owner, UPPER);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (rig, upper) = (&rig.runtime, &upper);
            scope.spawn(move || {
                for round in 0..500 {
                    let request = format!("thread {thread} call {round}");
                    let finished = call(rig, upper, request.as_bytes());
                    assert_eq!(finished.outcome, reply(&request.to_uppercase()));
                }
            });
        }
    });
    rig.runtime.stop().unwrap();
}

/// Services are called from the thread, and an answer that is dropped is one too.
#[test]
fn functions_wait_for_services_and_are_answered() {
    let rig = Rig::new();
    let asks = rig.register(&rig.owner, ASKS);
    let (told, end) = channel();
    let call = |request: &[u8], deadline| {
        let told = told.clone();
        rig.runtime.call(&asks, request.to_vec(), deadline, move |finished| {
            told.send(finished.outcome).unwrap();
        })
    };
    let asked = || rig.asked.recv_timeout(Duration::from_secs(20)).unwrap();
    let ended = || end.recv_timeout(Duration::from_secs(20)).unwrap();
    call(b"x", None);
    let service = asked();
    assert_eq!((service.service.as_str(), service.method.as_str()), ("a", "/b/c"));
    assert_eq!((service.request.as_slice(), service.function), (&b"x"[..], asks.id()));
    service.answer.give(Ok(b"y".to_vec()));
    assert_eq!(ended(), reply("y"));
    call(b"x", None);
    asked().answer.give(Err((5, "no such thing".into())));
    assert_eq!(ended(), Outcome::Error(5, "no such thing".into()));
    call(b"x", None);
    drop(asked());
    assert_eq!(ended(), Outcome::Error(14, "the service gave no answer".into()));
    // A thread that sleeps wakes for a deadline.
    let begun = Instant::now();
    call(b"x", Some(begun + Duration::from_millis(50)));
    let service = asked();
    assert!(service.until.is_some());
    assert_eq!(ended(), Outcome::Deadline);
    assert!(begun.elapsed() >= Duration::from_millis(50));
    let ticket = call(b"x", None);
    let second = asked();
    ticket.cancel();
    assert_eq!(ended(), Outcome::Cancelled);
    ticket.cancel();
    let numbers = vec![service.answer.call(), second.answer.call()];
    assert_eq!(*rig.unwanted.lock().unwrap(), numbers);
    service.answer.give(Ok(Vec::new()));
    assert_eq!(rig.call(&rig.register(&rig.owner, UPPER), b"a").outcome, reply("A"));
}

/// An owner's calls are refused where they are made once its limits are used up, and another's are not.
#[test]
fn an_owner_has_no_more_calls_open_than_its_limits() {
    let rig = Rig::new();
    let few = Limits { queue: 3, concurrency: 2, ..Limits::default() };
    let owner = rig.runtime.add_owner(few).unwrap();
    let (asks, upper) = (rig.register(&owner, ASKS), rig.register(&rig.owner, UPPER));
    let (told, end) = channel();
    let mut refused = 0;
    for _ in 0..1000 {
        let told = told.clone();
        rig.runtime.call(&asks, Vec::new(), None, move |finished| {
            told.send(finished.outcome).unwrap();
        });
    }
    while let Ok(outcome) = end.try_recv() {
        assert_eq!(outcome, Outcome::Refused(Refused::Queue { queue: 5 }));
        refused += 1;
    }
    assert_eq!(refused, 995);
    assert_eq!(rig.call(&upper, b"a").outcome, reply("A"));
    for _ in 0..5 {
        let service = rig.asked.recv_timeout(Duration::from_secs(20)).unwrap();
        service.answer.give(Ok(b"y".to_vec()));
    }
    for _ in 0..5 {
        assert_eq!(end.recv_timeout(Duration::from_secs(20)).unwrap(), reply("y"));
    }
    let more = Limits { queue: 10, ..few };
    rig.runtime.limit(&owner, more).unwrap();
    for _ in 0..12 {
        let told = told.clone();
        rig.runtime.call(&asks, Vec::new(), None, move |finished| {
            told.send(finished.outcome).unwrap();
        });
    }
    for _ in 0..12 {
        let service = rig.asked.recv_timeout(Duration::from_secs(20)).unwrap();
        service.answer.give(Ok(Vec::new()));
        assert_eq!(end.recv_timeout(Duration::from_secs(20)).unwrap(), reply(""));
    }
}

/// The thread goes to sleep when nothing runs and stays asleep, as do its workers, and calls that are open
/// when it is stopped are dropped.
fn sleeps_and_ends(preemption: Preemption) {
    let rig = Rig::with(preemption);
    let (upper, endless) = (rig.register(&rig.owner, UPPER), rig.register(&rig.owner, ENDLESS));
    assert_eq!(rig.call(&upper, b"a").outcome, reply("A"));
    let report = rig.runtime.report(vec![upper.clone(), endless.clone()]).unwrap();
    let report: Vec<_> = report.into_iter().map(Option::unwrap).collect();
    assert_eq!([&report[0], &report[1]].map(|report| report.is_loaded), [true, false]);
    assert_eq!((report[0].counts.calls, report[0].strikes, report[0].is_banned), (1, 0, false));
    let (told, end) = channel();
    rig.runtime.call(&upper, Vec::new(), None, move |_| {
        told.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
    });
    let dispatcher = format!("self/task/{}", end.recv().unwrap());
    let workers = rig.runtime.workers().unwrap();
    let [worker] = &workers[..] else { panic!("one worker") };
    assert_eq!((worker.group, report[0].share), (Group::All, Share::All));
    let tasks = [dispatcher, worker.pid.to_string()];
    let now = || tasks.iter().map(|task| switches(task)).collect::<Vec<_>>();
    let begun = Instant::now();
    let mut before = now();
    // It has gone to sleep once no more switches come.
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let after = now();
        if after == before {
            break;
        }
        before = after;
        assert!(begun.elapsed() < Duration::from_secs(20), "{before:?} {:?}", now());
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(now(), before, "an idle runtime is woken");
    let (told, end) = channel();
    rig.runtime.call(&endless, Vec::new(), None, move |finished| told.send(finished).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    rig.runtime.stop().unwrap();
    assert!(end.recv_timeout(Duration::from_secs(20)).is_err());
}

#[test]
fn an_idle_dispatcher_sleeps_and_one_that_is_stopped_ends() {
    sleeps_and_ends(Preemption::Dispatcher);
}

#[test]
fn an_idle_dispatcher_sleeps_where_workers_have_timers() {
    sleeps_and_ends(Preemption::Timer(Duration::from_micros(100)));
}

/// Two owners' functions that do not meet, called at once: the thread sleeps while one runs, and hears both.
#[test]
fn groups_take_turns_where_workers_have_timers() {
    let rig = Rig::with(Preemption::Timer(Duration::from_micros(100)));
    let callees = [0, 1].map(|_| {
        let owner = rig.runtime.add_owner(Limits::default()).unwrap();
        let registration = Registration {
            owner: Owner(0),
            image: signed(UPPER).into(),
            parameters: Vec::new(),
            budget: Duration::from_secs(20),
            idempotent: false,
            share: Share::Owner,
            strikes: 1000,
        };
        rig.runtime.register(&owner, registration).unwrap().unwrap()
    });
    std::thread::scope(|scope| {
        for callee in &callees {
            let runtime = &rig.runtime;
            scope.spawn(move || {
                for round in 0..100 {
                    let request = format!("call {round}");
                    let finished = call(runtime, callee, request.as_bytes());
                    assert_eq!(finished.outcome, reply(&request.to_uppercase()));
                }
            });
        }
    });
    let report = rig.runtime.report(callees.to_vec()).unwrap();
    assert!(report.into_iter().all(|report| report.unwrap().share == Share::Owner));
    let groups: Vec<_> = rig.runtime.workers().unwrap().into_iter().map(|it| it.group).collect();
    assert_eq!(groups.len(), 3, "{groups:?}");
    rig.runtime.stop().unwrap();
}

/// A worker's own timer stops what is beyond its budget, not before, and the dispatcher does not run
/// meanwhile.
#[test]
fn row_47_what_is_beyond_its_budget_is_stopped_by_a_timer() {
    let rig = Rig::with(Preemption::Timer(Duration::from_micros(20)));
    let budget = Duration::from_millis(10);
    let (endless, upper) =
        (rig.register_with(&rig.owner, ENDLESS, budget), rig.register(&rig.owner, UPPER));
    assert_eq!(rig.call(&upper, b"a").outcome, reply("A"));
    for _ in 0..20 {
        let finished = rig.call(&endless, b"");
        assert_eq!(finished.outcome, Outcome::Budget(budget));
        assert!(finished.cpu >= budget, "{:?}", finished.cpu);
        assert_eq!(rig.call(&upper, b"next").outcome, reply("NEXT"));
    }
    let report = rig.runtime.report(vec![endless.clone()]).unwrap().remove(0).unwrap();
    assert_eq!((report.counts.overruns, report.strikes), (20, 20));
    // Ticks find short functions at every point, and change nothing.
    for round in 0..3000 {
        let request = format!("short {round}");
        assert_eq!(rig.call(&upper, request.as_bytes()).outcome, reply(&request.to_uppercase()));
    }
    // What is longer than quanta can be counted is stopped by the dispatcher.
    let budget = Duration::from_millis(1500);
    let long = rig.register_with(&rig.owner, ENDLESS, budget);
    let finished = rig.call(&long, b"");
    assert_eq!(finished.outcome, Outcome::Budget(budget));
    assert!(finished.cpu >= budget, "{:?}", finished.cpu);
}

/// The addresses of a variable, a block of the heap, a constant, and the function itself.
const ADDRESSES: &str = "pub fn handle(_: Request<'_>) -> Reply {\n\
     let (local, block) = (core::hint::black_box(7_u8), core::hint::black_box(Box::new(7_u8)));\n\
     let code = core::hint::black_box(handle as fn(Request<'_>) -> Reply);\n\
     let all = [&raw const local as usize, &raw const *block as usize,\n\
     core::hint::black_box(\"constant\").as_ptr() as usize, code as usize];\n\
     Ok(all.iter().flat_map(|at| at.to_le_bytes()).collect()) }";

fn addresses(rig: &Rig, callee: &Callee) -> [u64; 4] {
    let Outcome::Reply(said) = rig.call(callee, b"").outcome else { panic!("no addresses") };
    std::array::from_fn(|at| u64::from_le_bytes(said[8 * at..][..8].try_into().unwrap()))
}

/// A function learns from addresses where its host has put it: its stack and its heap are where all others
/// have had theirs, whatever those did, and its code stays in its place. Each host draws others.
#[test]
fn addresses_tell_nothing_of_what_others_do() {
    let uses = "pub fn handle(r: Request<'_>) -> Reply { match r.text()? {\n\
         \"heap\" => { core::mem::forget(core::hint::black_box(vec![1_u8; 200_000])); Ok(vec![]) }\n\
         \"heaps\" => Ok(vec![core::hint::black_box(vec![1_u8; 9_000_000])[3]]),\n\
         \"stack\" => Ok(vec![deep(1) as u8]), _ => panic!() } }\n\
         #[inline(never)] fn deep(n: u64) -> u64 { let x = core::hint::black_box([n; 50]); deep(n + 1) + x[3] }";
    let images = [ADDRESSES, ADDRESSES, uses].map(|text| Arc::new(signed(text)));
    let seen: Vec<_> = (0..4)
        .map(|_| {
            let rig = Rig::new();
            let register = |image| rig.register_image(&rig.owner, image, Duration::from_secs(20));
            let [one, other, uses] = images.each_ref().map(register);
            let first = addresses(&rig, &one);
            let others = addresses(&rig, &other);
            assert_eq!(first[..2], others[..2], "stacks and heaps of two functions");
            assert!(first[2] != others[2] && first[3] != others[3], "images of two functions");
            for what in ["heap", "panic", "heaps", "stack", "heap"] {
                rig.call(&uses, what.as_bytes());
                assert_eq!(addresses(&rig, &one), first, "after {what}");
                assert_eq!(addresses(&rig, &other), others, "after {what}");
            }
            first
        })
        .collect();
    for which in 0..4 {
        // Two hosts may have drawn the same place of thousands, and hardly all of them.
        assert!(seen[1..].iter().any(|of| of[which] != seen[0][which]), "{which}: {seen:x?}");
    }
}

/// Where the clock is coarse, a function sees no time but that of ticks: not how long a block of memory takes
/// to have, which is longer where nobody has had it before, and no more steps than there were ticks.
#[test]
fn a_coarse_clock_tells_ticks_and_no_time_between_them() {
    let rig = Rig::new();
    let allocates = rig.register(
        &rig.owner,
        "pub fn handle(_: Request<'_>) -> Reply {\n\
         let before = partywall_fn::clock::monotonic();\n\
         core::hint::black_box(vec![7_u8; 200_000]);\n\
         let took = partywall_fn::clock::monotonic() - before;\n\
         Ok((took.as_nanos() as u64).to_le_bytes().to_vec()) }",
    );
    let steps = rig.register(
        &rig.owner,
        "pub fn handle(_: Request<'_>) -> Reply {\n\
         let mut last = partywall_fn::clock::monotonic();\n\
         let (mut steps, until) = (0_u64, last + core::time::Duration::from_millis(50));\n\
         while last < until { let now = partywall_fn::clock::monotonic();\n\
         steps += u64::from(now != last); last = now; }\n\
         Ok(steps.to_le_bytes().to_vec()) }",
    );
    let number = |callee: &Callee| match rig.call(callee, b"").outcome {
        Outcome::Reply(said) => u64::from_le_bytes(said.try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    // One tick a millisecond, and one that was due before.
    let ticks = |begun: Instant| begun.elapsed().as_millis() as usize + 2;
    let begun = Instant::now();
    let told = (0..500).filter(|_| number(&allocates) != 0).count();
    println!("{told} of 500 calls see a tick, of {} that there may be", ticks(begun));
    assert!(told <= ticks(begun), "{told} in {:?}", begun.elapsed());
    let begun = Instant::now();
    let seen = number(&steps) as usize;
    assert!(seen > 0 && seen <= ticks(begun), "{seen} in {:?}", begun.elapsed());
}
