//! What functions of one owner hold while they wait leaves others room: cells and processes.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use partywall_abi::security::Isolation;
use partywall_functions::dispatcher::{Event, HELD, Held, Id, Number, Outcome, Share, Workers};
use partywall_functions::isolation::Wanted;
use partywall_functions::layout::CELLS;
use partywall_functions::schedule::{Limits, Owner};
use partywall_functions::signed::Signed;

use super::host::{UPPER, signed};
use super::rig::{Rig, reply};

/// Replies to an empty request at once, and calls a service for any other.
const ASKS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     if r.body().is_empty() { return Ok(b\"warm\".to_vec()); }\n\
     partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";

/// Calls of services, by function.
type Asked = Vec<(Id, Number)>;
/// Calls that are over, and what has come of them.
type Over = Vec<(u32, Outcome)>;

/// A rig, of which `ASKS` is built once, and whose time stands still but where a test lets it go on.
struct Bounds {
    rig: Rig,
    asks: Arc<Signed>,
    now: u64,
}

impl Bounds {
    fn new(cpus: usize, change: impl FnOnce(&mut Workers)) -> Self {
        static IMAGE: LazyLock<Arc<Signed>> = LazyLock::new(|| signed(ASKS).into());
        let rig = Rig::with(cpus, change);
        let now = rig.now();
        Self { rig, asks: IMAGE.clone(), now }
    }

    /// An owner whose calls may all have begun.
    fn owner(&mut self) -> Owner {
        let limits = Limits { concurrency: 1000, ..Limits::default() };
        self.rig.dispatcher.add_owner(limits)
    }

    fn register(&mut self, owner: Owner, share: Share) -> Id {
        self.rig.register_image(self.asks.clone(), |registration| {
            (registration.owner, registration.share) = (owner, share);
        })
    }

    /// The functions that wait in all processes.
    fn waiting(&self) -> usize {
        self.rig.dispatcher.workers().iter().map(|process| process.waiting).sum()
    }

    fn poll(&mut self) -> bool {
        self.rig.dispatcher.poll(self.now, &mut self.rig.events).unwrap()
    }

    /// Polls until nothing comes for a while; what has come.
    fn settle(&mut self) -> (Asked, Over) {
        let (mut asked, mut over) = (Vec::new(), Vec::new());
        let mut quiet = 0;
        while quiet < 300 {
            let any = self.poll();
            quiet = if any || self.rig.dispatcher.is_busy() { 0 } else { quiet + 1 };
            for event in self.rig.events.drain(..) {
                match event {
                    Event::Outward(outward) => asked.push((outward.function, outward.call)),
                    Event::Done(done) => over.push((done.token, done.outcome)),
                    Event::Unwanted(call) => panic!("{call:?}"),
                }
            }
        }
        (asked, over)
    }

    /// The next call that is over.
    fn done(&mut self) -> (u32, Outcome) {
        let begun = Instant::now();
        while self.rig.events.is_empty() {
            self.poll();
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{:?}",
                self.rig.dispatcher.workers()
            );
        }
        match self.rig.events.remove(0) {
            Event::Done(done) => (done.token, done.outcome),
            event => panic!("{event:?}"),
        }
    }

    fn outcome(&mut self, id: Id, request: &[u8]) -> Outcome {
        let token = self.rig.call(id, request);
        let (of, outcome) = self.done();
        assert_eq!(of, token);
        outcome
    }

    /// Calls a function, which asks its service at once; the call, and that of the service.
    fn asks(&mut self, id: Id) -> (u32, Number) {
        let token = self.rig.call(id, b"x");
        let (asked, over) = self.settle();
        let [(of, call)] = asked[..] else { panic!("it has no room to wait: {over:?}") };
        assert_eq!((of, over), (id, Vec::new()));
        (token, call)
    }

    fn answer(&mut self, call: Number, text: &str) {
        self.rig.dispatcher.answer(call, 0, text.into());
    }
}

/// One owner's functions wait in all cells of a process that they can have. Those of others have cells all
/// the same, and what the one gives back it may have again.
#[test]
fn functions_that_wait_leave_cells_for_other_owners() {
    for isolation in [Wanted::Prefer, Wanted::None] {
        let mut it = Bounds::new(1, |workers| workers.isolation = isolation);
        let [greedy, other, third] = std::array::from_fn(|_| {
            let owner = it.owner();
            it.register(owner, Share::All)
        });
        // With keys, 6 of 12 colours: three have 6 cells, and the others 5.
        let in_force = it.rig.dispatcher.in_force().unwrap().isolation;
        let most = if in_force == Isolation::ProtectionKeys { 33 } else { 32 };
        for _ in 0..100 {
            it.rig.call(greedy, b"x");
        }
        let (mut asked, _) = it.settle();
        // The other calls wait for cells meanwhile.
        let (token, call) = it.asks(other);
        let (_, of_third) = it.asks(third);
        assert_eq!((asked.len(), it.waiting()), (most, most + 2), "{isolation:?}");
        it.answer(call, "yes");
        assert_eq!(it.done(), (token, reply("yes")));
        assert_eq!(it.waiting(), most + 1);
        // What ends leaves room for what waits, within the same bound.
        let mut rounds = 0;
        while !asked.is_empty() {
            let answered = asked.len();
            asked.into_iter().for_each(|(_, call)| it.answer(call, "so"));
            let settled = it.settle();
            assert_eq!(settled.1.len(), answered);
            assert!(settled.1.iter().all(|(_, outcome)| *outcome == reply("so")));
            asked = settled.0;
            assert!(asked.len() <= most && it.waiting() == asked.len() + 1);
            rounds += 1;
        }
        assert_eq!(rounds, 4, "100 calls, of which so many wait at once");
        it.answer(of_third, "too");
        assert_eq!(it.done().1, reply("too"));
    }
}

/// In a process of one owner its functions wait in all cells.
#[test]
fn functions_that_wait_have_all_cells_of_their_owners_process() {
    let mut it = Bounds::new(1, |_| ());
    let owner = it.owner();
    let alone = it.register(owner, Share::Owner);
    for _ in 0..100 {
        it.rig.call(alone, b"x");
    }
    let (asked, _) = it.settle();
    assert_eq!((asked.len(), it.waiting()), (CELLS as usize - 1, CELLS as usize - 1));
}

/// Functions of one owner, each in its own process, wait in all processes that they can have. Others run all
/// the same, and the call that is beyond the bound is told whose that is.
#[test]
fn functions_that_wait_leave_processes_for_other_owners() {
    const SECOND: u64 = HELD.as_nanos() as u64;
    let upper: Arc<Signed> = signed(UPPER).into();
    for (cpus, is_warm) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut it = Bounds::new(cpus, |workers| workers.processes = 4);
        let owners = [it.owner(), it.owner()];
        let light = owners.map(|owner| {
            it.rig.register_image(upper.clone(), |registration| {
                (registration.owner, registration.share) = (owner, Share::Function);
            })
        });
        let [greedy, other] =
            owners.map(|owner| [(); 6].map(|()| it.register(owner, Share::Function)));
        if is_warm {
            // It has as many processes as there may be, in which nothing waits.
            for id in greedy {
                assert_eq!(it.outcome(id, b""), reply("warm"));
            }
            assert_eq!(it.rig.dispatcher.workers().len(), 4);
        }
        let tokens = greedy.map(|id| it.rig.call(id, b"x"));
        let (asked, _) = it.settle();
        let (token, call) = it.asks(other[0]);
        assert_eq!((asked.len(), it.waiting()), (2, 3), "{cpus} {is_warm}");
        assert_eq!(it.outcome(light[1], b"a"), reply("A"), "what cannot wait has a process");
        // The same function has a process already, and cells in it.
        let (second, again) = it.asks(other[0]);
        it.answer(again, "soon");
        assert_eq!(it.done(), (second, reply("soon")));
        // Each waits a second of its own owner's, and is told.
        let held = |holds| Outcome::Held(Held::Owner { holds, processes: 4 });
        it.now += SECOND / 2;
        let late = it.rig.call(other[1], b"x");
        assert_eq!(it.settle().1, []);
        it.now += SECOND / 2;
        let expected: Vec<_> = tokens[2..].iter().map(|token| (*token, held(2))).collect();
        let mut over = it.settle().1;
        over.sort_unstable_by_key(|(token, _)| *token);
        assert_eq!(over, expected, "{cpus} {is_warm}");
        it.now += SECOND / 2;
        assert_eq!(it.settle().1, [(late, held(1))]);
        assert_eq!(it.outcome(light[0], b"b"), reply("B"), "also of who is beyond its bound");
        // What waits less than that has the process that is free again.
        let third = it.rig.call(greedy[5], b"");
        assert_eq!(it.settle().1, []);
        let at = greedy.iter().position(|id| *id == asked[0].0).unwrap();
        it.answer(asked[0].1, "yes");
        assert_eq!(it.done(), (tokens[at], reply("yes")));
        assert_eq!(it.done(), (third, reply("warm")));
        it.answer(call, "no");
        assert_eq!(it.done(), (token, reply("no")));
        assert_eq!(it.waiting(), 1);
    }
}

/// An owner alone has a process of each CPU to wait in, where there may be twice as many.
#[test]
fn functions_that_wait_may_have_each_cpu() {
    let mut it = Bounds::new(2, |workers| workers.processes = 4);
    let owner = it.owner();
    let alone = it.register(owner, Share::Owner);
    for _ in 0..100 {
        it.rig.call(alone, b"x");
    }
    assert_eq!(it.settle().0.len(), 100);
    let workers = it.rig.dispatcher.workers();
    assert_eq!(workers.iter().filter(|process| process.waiting > 0).count(), 2);
}
