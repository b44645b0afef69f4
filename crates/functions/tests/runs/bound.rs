//! What functions of one owner hold while they wait leaves others room: cells and processes.

use partywall_abi::security::Isolation;
use partywall_functions::dispatcher::{Event, HELD, Held, Id, Number, Outcome, Share};
use partywall_functions::isolation::Wanted;
use partywall_functions::layout::CELLS;
use partywall_functions::schedule::{Limits, Owner};

use super::host::UPPER;
use super::rig::{Rig, reply};

/// Replies to an empty request at once, and calls a service for any other.
const ASKS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     if r.body().is_empty() { return Ok(b\"warm\".to_vec()); }\n\
     partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";

/// An owner whose calls may all have begun.
fn owner(rig: &mut Rig) -> Owner {
    rig.dispatcher.add_owner(Limits { concurrency: 1000, ..Limits::default() })
}

fn register(rig: &mut Rig, text: &str, owner: Owner, share: Share) -> Id {
    rig.register(text, |registration| (registration.owner, registration.share) = (owner, share))
}

/// The functions that wait in all processes.
fn waiting(rig: &Rig) -> usize {
    rig.dispatcher.workers().iter().map(|process| process.waiting).sum()
}

/// Polls until nothing comes for a while. The calls of services that have come, by function, and what has come
/// of calls that are over.
fn settle(rig: &mut Rig) -> (Vec<(Id, Number)>, Vec<Outcome>) {
    let (mut asked, mut over) = (Vec::new(), Vec::new());
    let mut quiet = 0;
    while quiet < 300 {
        let now = rig.now();
        let any = rig.dispatcher.poll(now, &mut rig.events).unwrap();
        quiet = if any || rig.dispatcher.is_busy() { 0 } else { quiet + 1 };
        for event in rig.events.drain(..) {
            match event {
                Event::Outward(outward) => asked.push((outward.function, outward.call)),
                Event::Done(done) => over.push(done.outcome),
                Event::Unwanted(call) => panic!("{call:?}"),
            }
        }
    }
    (asked, over)
}

/// The service that a call's function asks is called, although calls of others wait for their bound.
fn asks(rig: &mut Rig, id: Id) -> (u32, Number) {
    let token = rig.call(id, b"x");
    match rig.event() {
        Event::Outward(outward) => {
            assert_eq!(outward.function, id);
            (token, outward.call)
        }
        event => panic!("{event:?}"),
    }
}

/// One owner's functions wait in all cells of a process that they can have. Others' have cells all the same,
/// and functions that need none run; what the one gets back it may have again.
#[test]
fn functions_that_wait_leave_cells_for_other_owners() {
    let has_keys =
        |rig: &Rig| rig.dispatcher.in_force().unwrap().isolation == Isolation::ProtectionKeys;
    for isolation in [Wanted::Prefer, Wanted::None] {
        let mut rig = Rig::with(1, |workers| workers.isolation = isolation);
        let [greedy, other, third] = std::array::from_fn(|_| {
            let owner = owner(&mut rig);
            register(&mut rig, ASKS, owner, Share::All)
        });
        // With keys, 6 of 12 colours: three have 6 cells, and the others 5.
        let most = if has_keys(&rig) { 33 } else { 32 };
        for _ in 0..100 {
            rig.call(greedy, b"x");
        }
        let (mut asked, _) = settle(&mut rig);
        assert_eq!((asked.len(), waiting(&rig)), (most, most), "{isolation:?}");
        // The other 67 wait for cells meanwhile.
        let (token, call) = asks(&mut rig, other);
        let (_, of_third) = asks(&mut rig, third);
        rig.dispatcher.answer(call, 0, b"yes".to_vec());
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (token, reply("yes")));
        assert_eq!(waiting(&rig), most + 1);
        // What ends leaves room for what waits, within the same bound.
        let mut rounds = 0;
        while !asked.is_empty() {
            let answered = asked.len();
            for (_, call) in asked {
                rig.dispatcher.answer(call, 0, b"so".to_vec());
            }
            let settled = settle(&mut rig);
            assert_eq!(settled.1, vec![reply("so"); answered]);
            asked = settled.0;
            assert!(asked.len() <= most && waiting(&rig) == asked.len() + 1);
            rounds += 1;
        }
        assert_eq!(rounds, 4, "100 calls, of which so many wait at once");
        rig.dispatcher.answer(of_third, 0, b"too".to_vec());
        assert_eq!(rig.done().outcome, reply("too"));
    }
}

/// In a process of one owner its functions wait in all cells.
#[test]
fn functions_that_wait_have_all_cells_of_their_owners_process() {
    let mut rig = Rig::new(1);
    let owner = owner(&mut rig);
    let alone = register(&mut rig, ASKS, owner, Share::Owner);
    for _ in 0..100 {
        rig.call(alone, b"x");
    }
    let (asked, _) = settle(&mut rig);
    assert_eq!((asked.len(), waiting(&rig)), (CELLS as usize - 1, CELLS as usize - 1));
}

/// Functions of one owner, each in its own process, wait in all processes that they can have. Others run all
/// the same, and the call that is beyond the bound is told whose that is.
#[test]
fn functions_that_wait_leave_processes_for_other_owners() {
    for (cpus, is_warm) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut rig = Rig::with(cpus, |workers| workers.processes = 4);
        let owners: [Owner; 2] = std::array::from_fn(|_| owner(&mut rig));
        let light = owners.map(|owner| register(&mut rig, UPPER, owner, Share::Function));
        let [greedy, other] = owners.map(|owner| {
            std::array::from_fn::<Id, 6, _>(|_| register(&mut rig, ASKS, owner, Share::Function))
        });
        if is_warm {
            // It has as many processes as there may be, in which nothing waits.
            for id in greedy {
                assert_eq!(rig.outcome(id, b""), reply("warm"));
            }
            assert_eq!(rig.dispatcher.workers().len(), 4);
        }
        let first = rig.now();
        let tokens = greedy.map(|id| rig.call(id, b"x"));
        let (asked, _) = settle(&mut rig);
        assert_eq!((asked.len(), waiting(&rig)), (2, 2), "{cpus} {is_warm}");
        let (token, call) = asks(&mut rig, other[0]);
        assert_eq!(rig.outcome(light[1], b"a"), reply("A"), "what cannot wait has a process");
        // The same function has a process already, and cells in it.
        let (_, again) = asks(&mut rig, other[0]);
        rig.dispatcher.answer(again, 0, b"soon".to_vec());
        assert_eq!(rig.done().outcome, reply("soon"));
        assert!(rig.now() < first + HELD.as_nanos() as u64, "too slow to tell");
        // One beyond its own bound waits a second of its own, and is told.
        std::thread::sleep(HELD / 2);
        let late = rig.call(other[2], b"x");
        let since = rig.now();
        let held = |holds| Outcome::Held(Held::Owner { holds, processes: 4 });
        for token in &tokens[2..] {
            let done = rig.done();
            assert_eq!((done.token, done.outcome), (*token, held(2)), "{cpus} {is_warm}");
        }
        assert!(rig.now() >= first + HELD.as_nanos() as u64);
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (late, held(1)));
        assert!(rig.now() >= since + HELD.as_nanos() as u64);
        assert_eq!(rig.outcome(light[0], b"b"), reply("B"), "also of who is beyond its bound");
        // One that waits less than that has the process that is free again.
        let fourth = rig.call(greedy[3], b"");
        let (id, ended) = asked[0];
        let first = greedy.iter().position(|greedy| *greedy == id).unwrap();
        rig.dispatcher.answer(ended, 0, b"yes".to_vec());
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (tokens[first], reply("yes")));
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (fourth, reply("warm")));
        rig.dispatcher.answer(call, 0, b"no".to_vec());
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (token, reply("no")));
        assert_eq!(waiting(&rig), 1);
    }
}

/// An owner alone has a process of each CPU to wait in, where there may be twice as many.
#[test]
fn functions_that_wait_may_have_each_cpu() {
    let mut rig = Rig::with(2, |workers| workers.processes = 4);
    let owner = owner(&mut rig);
    let alone = register(&mut rig, ASKS, owner, Share::Owner);
    for _ in 0..100 {
        rig.call(alone, b"x");
    }
    assert_eq!(settle(&mut rig).0.len(), 100);
    let waits = |process: &partywall_functions::dispatcher::WorkerProcess| process.waiting > 0;
    assert_eq!(rig.dispatcher.workers().iter().filter(|process| waits(process)).count(), 2);
}
