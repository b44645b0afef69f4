//! Who meets whom in a worker process, and how groups that may not meet take turns.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use partywall_functions::dispatcher::{
    AHEAD, Dispatcher, Event, Group, HELD, Held, Id, Outcome, Share, TURN,
};
use partywall_functions::layout::Layout;
use partywall_functions::schedule::{Limits, Owner};
use partywall_functions::store::Store;
use partywall_testkit::Random;

use super::host::{self, UPPER, WILD};
use super::limits::stat;
use super::rig::{Rig, reply};

const ASKS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
                    partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";
/// Burns some tens of microseconds.
const BURNS: &str = "pub fn handle(_: Request<'_>) -> Reply {\n\
     let mut sum = 7_u64;\n\
     for n in 0..30_000 { sum = core::hint::black_box(sum.rotate_left(5) ^ n); }\n\
     Ok(sum.to_le_bytes().to_vec()) }";

fn another(rig: &mut Rig, share: u32) -> Owner {
    let limits = Limits { share, ..Limits::default() };
    rig.dispatcher.add_owner(limits)
}

fn register(rig: &mut Rig, text: &str, owner: Owner, share: Share) -> Id {
    rig.register(text, |registration| {
        (registration.owner, registration.share) = (owner, share);
        registration.budget = Duration::from_secs(60);
    })
}

/// One function each of so many owners that share with nobody else.
fn of_owners<const COUNT: usize>(rig: &mut Rig, text: &str) -> [Id; COUNT] {
    std::array::from_fn(|_| {
        let owner = another(rig, 100);
        register(rig, text, owner, Share::Owner)
    })
}

/// A function of an owner whose time counts as nothing, so that its calls are always next.
fn often(rig: &mut Rig) -> Id {
    let owner = another(rig, u32::MAX);
    register(rig, UPPER, owner, Share::Owner)
}

/// Polls once, and adds what each process has been given, each function once.
fn poll(rig: &mut Rig, seen: &mut HashMap<u32, Vec<Id>>) {
    let now = rig.now();
    rig.dispatcher.poll(now, &mut rig.events).unwrap();
    for process in rig.dispatcher.workers() {
        assert!(process.is_active || process.given.is_empty(), "{process:?}");
        let ids = seen.entry(process.pid).or_default();
        for id in process.given {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
}

/// The process of this group.
fn process_of(rig: &Rig, group: Group) -> Option<u32> {
    rig.dispatcher.workers().into_iter().find(|it| it.group == group).map(|it| it.pid)
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether this process maps the file with this inode.
fn is_mapped(inode: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()))
}

/// Functions of all shares and two owners, called at random: who meets whom in a process.
#[test]
fn functions_meet_in_a_process_as_their_shares_say() {
    for seats in [1, 2] {
        let mut rig = Rig::new(seats);
        let owners = [rig.owner, another(&mut rig, 100)];
        let mut groups = HashMap::new();
        let mut functions = Vec::new();
        for owner in owners {
            for share in Share::EACH.into_iter().flat_map(|share| [share; 2]) {
                let id = register(&mut rig, UPPER, owner, share);
                assert_eq!(rig.dispatcher.share(id), Some(share));
                let group = match share {
                    Share::Function => Group::Function(id),
                    Share::Owner => Group::Owner(owner),
                    Share::All => Group::All,
                };
                groups.insert(id, group);
                functions.push(id);
            }
        }
        let (mut random, mut seen, mut done) = (Random::of_this_run(), HashMap::new(), 0);
        let all: Vec<_> = (0..120).map(|_| functions[random.below(functions.len())]).collect();
        for id in &all {
            rig.call(*id, b"a");
        }
        while done < all.len() {
            poll(&mut rig, &mut seen);
            for event in rig.events.drain(..) {
                let Event::Done(it) = event else { panic!("{event:?}") };
                assert_eq!(it.outcome, reply("A"));
                done += 1;
            }
        }
        let mut met = HashMap::<_, usize>::new();
        for ids in seen.into_values().filter(|ids| !ids.is_empty()) {
            assert!(ids.iter().all(|id| groups[id] == groups[&ids[0]]), "{ids:?}");
            let most = met.entry(groups[&ids[0]]).or_default();
            *most = ids.len().max(*most);
        }
        // One group of all, two of owners, and four of one function.
        assert_eq!(met.len(), 7);
        for (group, most) in met {
            let functions = match group {
                Group::All => 4,
                Group::Owner(_) => 2,
                Group::Function(_) => 1,
            };
            assert_eq!(most, functions, "{group:?}");
        }
    }
}

/// Of others' images and memory, a process has those alone whose functions may meet its own.
#[test]
fn images_of_other_groups_are_not_in_a_process() {
    for share in [Share::Function, Share::Owner, Share::All] {
        let mut rig = Rig::new(1);
        let [mine, other] = [rig.owner, another(&mut rig, 100)];
        let wild = register(&mut rig, WILD, mine, share);
        let others: Vec<_> = (0..4).map(|_| register(&mut rig, UPPER, other, share)).collect();
        let entries: Vec<_> =
            others.iter().map(|id| rig.dispatcher.preload(*id).unwrap().entry).collect();
        let own = rig.dispatcher.preload(wild).unwrap().entry;
        let Outcome::Reply(first) = rig.outcome(wild, format!("{own:x}").as_bytes()) else {
            panic!("its own image is there")
        };
        assert_ne!(first, [0; 8]);
        let last = entries.into_iter().max().unwrap();
        let seen = rig.outcome(wild, format!("{last:x}").as_bytes());
        match share {
            Share::All => {
                assert!(matches!(&seen, Outcome::Reply(bytes) if *bytes != [0; 8]), "{seen:?}");
            }
            // Where each group has its first image, each function has its own.
            Share::Function => assert_eq!(last, own),
            Share::Owner => assert_eq!(seen, Outcome::Reply(vec![0; 8])),
        }
        let workers = rig.dispatcher.workers();
        let mut inodes: Vec<_> = workers.iter().map(|process| process.inode).collect();
        inodes.sort_unstable();
        inodes.dedup();
        assert_eq!(inodes.len(), workers.len());
    }
}

/// The process that is ended for another group is the one that was used least recently, and nothing of it
/// stays.
#[test]
fn a_process_is_ended_for_another_group_and_unmapped() {
    let mut rig = Rig::with(1, |workers| workers.processes = 3);
    let [first, second, third] = of_owners(&mut rig, UPPER);
    let all = rig.register(UPPER, |_| ());
    for id in [first, all, second] {
        assert_eq!(rig.outcome(id, b"a"), reply("A"));
    }
    let before = rig.dispatcher.workers();
    assert_eq!(before.len(), 3);
    let images = rig.dispatcher.resident().0;
    let given_up = before.iter().find(|process| process.group == Group::Owner(Owner(1))).unwrap();
    assert!(is_there(given_up.pid) && is_mapped(given_up.inode));
    assert_eq!(rig.outcome(third, b"a"), reply("A"));
    assert!(!is_there(given_up.pid) && !is_mapped(given_up.inode));
    let after = rig.dispatcher.workers();
    let groups: Vec<_> = after.iter().map(|process| process.group).collect();
    assert!(!groups.contains(&Group::Owner(Owner(1))) && groups.len() == 3, "{groups:?}");
    assert_eq!((rig.dispatcher.resident().0, rig.dispatcher.is_loaded(first)), (images, false));
    assert_eq!(rig.outcome(first, b"b"), reply("B"));
    assert_eq!(rig.dispatcher.counts(first).unwrap().cold, 2);
    assert!(!is_there(process_of(&rig, Group::All).unwrap_or(0)), "that was next");
}

/// A group waits for another one's calls no longer than so many of them take, however many there are.
#[test]
fn a_flood_of_one_group_does_not_starve_another() {
    let mut rig = Rig::new(1);
    let [flood] = of_owners(&mut rig, UPPER);
    let rare = often(&mut rig);
    for _ in 0..200 {
        rig.call(flood, b"a");
    }
    let mut most = 0;
    for round in 0..20 {
        let token = rig.call(rare, b"b");
        // Those that had ended before.
        let ended = rig.events.len();
        let mut before = 0;
        loop {
            let done = rig.done();
            if done.token == token {
                assert_eq!(done.outcome, reply("B"));
                break;
            }
            assert_eq!(done.outcome, reply("A"), "round {round}");
            before += 1;
            rig.call(flood, b"a");
        }
        most = most.max(before - ended);
    }
    // What is under way when the call comes, and one turn.
    assert!(most <= AHEAD + TURN, "{most}");
    assert!(most > 0);
}

/// Functions that go on all the time starve none of another group that has not begun.
#[test]
fn functions_that_go_on_do_not_starve_another_group() {
    let text = "pub fn handle(r: Request<'_>) -> Reply {\n\
                loop { partywall_fn::service::call(\"a\", \"/b/c\", r.body())?; } }";
    let mut rig = Rig::new(1);
    let floods: [Id; 3] = of_owners(&mut rig, text);
    let rare = often(&mut rig);
    let mut waiting = Vec::new();
    for flood in floods {
        for _ in 0..30 {
            rig.call(flood, b"a");
            let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
            waiting.push(outward.call);
        }
    }
    for call in waiting {
        rig.dispatcher.answer(call, 0, Vec::new());
    }
    let mut most = 0;
    for _ in 0..8 {
        let token = rig.call(rare, b"b");
        let ended = rig.events.len();
        let mut before = 0;
        loop {
            match rig.event() {
                Event::Outward(outward) => {
                    before += 1;
                    rig.dispatcher.answer(outward.call, 0, Vec::new());
                }
                Event::Done(done) => {
                    assert_eq!((done.token, done.outcome), (token, reply("B")));
                    break;
                }
                Event::Unwanted(call) => panic!("{call:?}"),
            }
        }
        most = most.max(before - ended);
    }
    assert!(most <= 3 * (AHEAD + TURN), "{most}");
}

/// Owners have CPU time by their shares also where their functions do not meet, on one CPU and on two.
#[test]
fn groups_have_cpu_time_by_their_owners_shares() {
    for seats in [1, 2] {
        let mut rig = Rig::new(seats);
        let functions = [300, 100].map(|share| {
            let owner = another(&mut rig, share);
            register(&mut rig, BURNS, owner, Share::Owner)
        });
        let mut had = [0, 0];
        let mut tokens = HashMap::new();
        let call = |rig: &mut Rig, at: usize| rig.call(functions[at], b"");
        for at in [0, 1] {
            for _ in 0..100 {
                tokens.insert(call(&mut rig, at), at);
            }
        }
        let mut switches = 0;
        let mut last = None;
        for round in 0..3000 {
            let done = rig.done();
            let at = tokens.remove(&done.token).unwrap();
            // All are equal at first.
            if round >= 400 {
                had[at] += done.cpu_ns;
            }
            switches += u32::from(last.replace(at) != Some(at));
            tokens.insert(call(&mut rig, at), at);
        }
        let part = had[0] as f64 / (had[0] + had[1]) as f64;
        println!("{seats} seats: {part:.3} of the time, {switches} switches");
        assert!((0.70..0.80).contains(&part), "{seats} seats: {had:?}");
    }
}

/// There are never more processes than there may be, and no call is lost for that, nor for a worker that is
/// killed. One whose second worker is killed too would be, so all that a kill may have begun again end before
/// the next one.
#[test]
fn processes_are_bounded_and_no_call_is_lost() {
    let mut rig = Rig::with(2, |workers| workers.processes = 3);
    let owner = rig.owner;
    let functions: Vec<_> =
        (0..12).map(|_| register(&mut rig, UPPER, owner, Share::Function)).collect();
    let (mut random, mut seen) = (Random::of_this_run(), HashMap::new());
    let mut open = HashSet::new();
    let mut polls = |rig: &mut Rig, open: &mut HashSet<_>| {
        poll(rig, &mut seen);
        assert!(rig.dispatcher.workers().len() <= 3);
        for event in rig.events.drain(..) {
            let Event::Done(it) = event else { panic!("{event:?}") };
            assert_eq!(it.outcome, reply("A"));
            assert!(open.remove(&it.token), "a call ends once");
        }
    };
    let mut kills = 0;
    for round in 0..600 {
        open.insert(rig.call(functions[random.below(12)], b"a"));
        if round % 50 == 25 {
            rig.dispatcher.kill_worker(random.below(rig.dispatcher.workers().len()));
            kills += 1;
            let before = open.clone();
            while !open.is_disjoint(&before) {
                polls(&mut rig, &mut open);
            }
        }
        for _ in 0..random.below(4) {
            polls(&mut rig, &mut open);
        }
    }
    while !open.is_empty() {
        polls(&mut rig, &mut open);
    }
    assert!(seen.len() > 3 + kills, "processes were ended for others");
    for ids in seen.into_values() {
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}

/// Where functions wait in all processes, a call waits for one for a while and then is told so.
#[test]
fn a_call_that_no_process_can_be_had_for_is_refused() {
    let mut rig = Rig::with(1, |workers| workers.processes = 1);
    let [asks] = of_owners(&mut rig, ASKS);
    let [upper] = of_owners(&mut rig, UPPER);
    let waits = |rig: &mut Rig| {
        let token = rig.call(asks, b"");
        let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
        (token, outward.call)
    };
    let polled = |rig: &mut Rig, now: u64| {
        rig.dispatcher.poll(now, &mut rig.events).unwrap();
        rig.events.pop()
    };
    let (held, call) = waits(&mut rig);
    let full = rig.dispatcher.preload(upper).unwrap_err();
    assert!(full.to_string().contains("`processes`"), "{full}");
    let token = rig.call(upper, b"a");
    let now = rig.now();
    assert!(polled(&mut rig, now).is_none());
    let until = now + HELD.as_nanos() as u64;
    assert!(rig.dispatcher.next_ns().unwrap() <= until);
    assert!(polled(&mut rig, until - 1).is_none());
    let Some(Event::Done(done)) = polled(&mut rig, until) else { panic!("it waits for ever") };
    assert_eq!((done.token, done.outcome), (token, Outcome::Held(Held::All { processes: 1 })));
    // Nobody waits for that any more.
    polled(&mut rig, until + 1);
    assert!(rig.dispatcher.next_ns().unwrap() > until + 1);
    // One that waits less than that has the process.
    let token = rig.call(upper, b"a");
    let now = rig.now();
    assert!(polled(&mut rig, now).is_none());
    rig.dispatcher.answer(call, 0, b"yes".to_vec());
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (held, reply("yes")));
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (token, reply("A")));
    let refused = Dispatcher::<u32>::new(
        Store::new(Layout::draw([1, 2]), 1).unwrap(),
        partywall_functions::dispatcher::Workers {
            processes: 1,
            ..host::workers(2, partywall_functions::clock::Exactness::Exact)
        },
    );
    assert!(refused.unwrap_err().to_string().contains("`processes`"));
}

/// A process in which a function waits stays, whoever else needs one, and the function goes on in it.
#[test]
fn functions_that_wait_keep_their_process_and_go_on_in_it() {
    let mut rig = Rig::with(1, |workers| workers.processes = 2);
    let [asks] = of_owners(&mut rig, ASKS);
    let group = Group::Owner(Owner(1));
    let others: [Id; 3] = of_owners(&mut rig, UPPER);
    for round in 0..3 {
        let token = rig.call(asks, b"");
        let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
        let process = process_of(&rig, group).unwrap();
        for other in others {
            assert_eq!(rig.outcome(other, b"a"), reply("A"));
            assert_eq!(process_of(&rig, group), Some(process));
        }
        let workers = rig.dispatcher.workers();
        let it = workers.iter().find(|it| it.pid == process).unwrap();
        assert_eq!((it.waiting, it.is_active, workers.len()), (1, false, 2), "round {round}");
        rig.dispatcher.answer(outward.call, 0, b"yes".to_vec());
        let mut seen = HashMap::new();
        while rig.events.is_empty() {
            poll(&mut rig, &mut seen);
        }
        assert_eq!(seen[&process], [asks]);
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (token, reply("yes")));
    }
    // One that ends while it sleeps is noticed, and its call is over.
    let token = rig.call(asks, b"");
    assert!(matches!(rig.event(), Event::Outward(_)));
    assert_eq!(rig.outcome(others[0], b"a"), reply("A"));
    let at = rig.dispatcher.workers().iter().position(|it| it.group == group).unwrap();
    rig.dispatcher.kill_worker(at);
    let done = rig.done();
    let lost = Outcome::Lost("signal: 9 (SIGKILL)".into());
    assert_eq!((done.token, done.outcome), (token, lost));
    assert_eq!(rig.outcome(others[1], b"a"), reply("A"));
}

/// A group whose last function has gone has no process any more; one that is replaced is another group.
#[test]
fn a_group_without_functions_has_no_process() {
    let mut rig = Rig::new(1);
    let owner = rig.owner;
    let (mut before, mut last) = (Vec::new(), None);
    for _ in 0..3 {
        let id = register(&mut rig, UPPER, owner, Share::Function);
        if let Some(last) = last.replace(id) {
            rig.dispatcher.remove(last).unwrap();
        }
        assert_eq!(rig.outcome(id, b"a"), reply("A"));
        let process = process_of(&rig, Group::Function(id)).unwrap();
        assert_eq!(rig.dispatcher.workers().len(), 2);
        assert!(before.iter().all(|pid| !is_there(*pid)));
        before.push(process);
    }
    rig.dispatcher.remove(last.unwrap()).unwrap();
    let now = rig.now();
    rig.dispatcher.poll(now, &mut rig.events).unwrap();
    let workers = rig.dispatcher.workers();
    assert_eq!((workers.len(), workers[0].group), (1, Group::All));
    let id = rig.register(UPPER, |_| ());
    assert_eq!(rig.outcome(id, b"b"), reply("B"));
}

/// The time that a process takes to begin is not its first function's.
#[test]
fn a_budget_begins_when_its_process_has_begun() {
    let slowly = "/bin/sleep 0.8; exec \"$@\"";
    let mut rig = Rig::with(1, |workers| {
        let begin = ["/bin/sh", "-c", slowly, "sh"].map(str::to_owned);
        workers.program.splice(0..0, begin);
    });
    let budget = Duration::from_millis(100);
    let owner = rig.owner;
    let upper = rig.register(UPPER, |registration| {
        (registration.owner, registration.share) = (owner, Share::Function);
        registration.budget = budget;
    });
    let token = rig.call(upper, b"a");
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (token, reply("A")));
    assert!(rig.begun.elapsed() >= Duration::from_millis(800));
    assert!(done.cpu_ns < 800_000_000, "{}", done.cpu_ns);
}

/// A process of one thread runs on the CPU of its seat and on no other, and so does one that follows it.
#[test]
fn a_process_of_one_thread_stays_on_its_cpu() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<_> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    for cpu in [cpus[0], *cpus.last().unwrap()] {
        let mut rig = Rig::with(1, |workers| workers.cpus = vec![Some(cpu)]);
        let [burns, other] = of_owners(&mut rig, BURNS);
        let mut killed = 0;
        for round in 0..100 {
            let id = [burns, other][round % 2];
            assert!(matches!(rig.outcome(id, b""), Outcome::Reply(_)));
            let workers = rig.dispatcher.workers();
            if round == 50 {
                killed = workers[1].pid;
                rig.dispatcher.kill_worker(1);
            }
            let live = workers.into_iter().filter(|it| it.has_begun && it.pid != killed);
            for process in live {
                // The last CPU that it has run on is field 39, counted from 1 (proc_pid_stat(5)).
                assert_eq!(stat(process.pid)[39 - 3], cpu.to_string(), "{process:?}");
                let status =
                    std::fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap();
                for line in [format!("Cpus_allowed_list:\t{cpu}\n"), "Threads:\t1\n".into()] {
                    assert!(status.contains(&line), "{process:?}: {status}");
                }
            }
        }
    }
}
