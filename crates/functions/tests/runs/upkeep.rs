//! What a dispatcher does between calls: images that come and go, functions that are replaced, workers that
//! are replaced, and what is left when it ends itself.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_functions::dispatcher::{Event, Id, Outcome, Registration, Share};
use partywall_testkit::{Random, trials};
use rustix::process::{Pid, Signal, kill_process};

use super::host::{UPPER, signed};
use super::rig::{Rig, reply};

const ENDLESS: &str =
    "pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }";
const ASKS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
                    partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";

fn signal(rig: &Rig, signal: Signal) {
    let pid = Pid::from_raw(rig.dispatcher.workers()[0].pid as i32).unwrap();
    kill_process(pid, signal).unwrap();
}

/// To preload what is loaded is to use it, as a call does: another one goes first.
#[test]
fn images_that_are_preloaded_again_stay_longer() {
    let mut rig = Rig::new(1);
    let one = rig.register(UPPER, |_| ());
    rig.dispatcher.preload(one).unwrap();
    let (_, bytes) = rig.dispatcher.resident();
    let mut rig = Rig::with(1, |workers| workers.resident = 3 * bytes);
    let all: Vec<_> = (0..5).map(|_| rig.register(UPPER, |_| ())).collect();
    for id in &all[..4] {
        assert_eq!(rig.outcome(*id, b"a"), reply("A"));
    }
    // The fourth has taken the first one's room, and the others were not called since.
    rig.dispatcher.preload(all[2]).unwrap();
    assert_eq!(rig.outcome(all[4], b"a"), reply("A"));
    let loaded: Vec<_> = all.iter().map(|id| rig.dispatcher.is_loaded(*id)).collect();
    assert_eq!(loaded, [false, false, true, true, true]);
}

/// What was not called for the longest time is unloaded, never what is in use, and is loaded for its next
/// call.
#[test]
fn images_beyond_the_limit_are_unloaded_and_come_back() {
    let mut rig = Rig::new(1);
    let one = rig.register(UPPER, |_| ());
    rig.dispatcher.preload(one).unwrap();
    let (_, bytes) = rig.dispatcher.resident();
    let mut rig = Rig::with(1, |workers| workers.resident = 3 * bytes);
    let all: Vec<_> = (0..6).map(|_| rig.register(UPPER, |_| ())).collect();
    let cold = |rig: &Rig, at: usize| rig.dispatcher.counts(all[at]).unwrap().cold;
    for at in [0, 1, 2, 0, 1, 2, 0, 1] {
        assert_eq!(rig.outcome(all[at], b"a"), reply("A"));
    }
    assert_eq!([0, 1, 2].map(|at| cold(&rig, at)), [1, 1, 1]);
    assert_eq!(rig.dispatcher.resident(), (3, 3 * bytes));
    // The hand has passed all three before it takes one.
    assert_eq!(rig.outcome(all[3], b"a"), reply("A"));
    assert_eq!(rig.outcome(all[1], b"a"), reply("A"));
    assert_eq!(rig.outcome(all[4], b"a"), reply("A"));
    assert_eq!((cold(&rig, 1), cold(&rig, 2)), (1, 1));
    assert_eq!(rig.outcome(all[2], b"a"), reply("A"));
    assert_eq!(cold(&rig, 2), 2);
    for round in 0..100 {
        assert_eq!(rig.outcome(all[round % 6], b"a"), reply("A"));
        assert!(rig.dispatcher.resident().1 <= 3 * bytes);
    }
    // Those that wait hold all the room.
    let asks: Vec<_> = (0..20).map(|_| rig.register(ASKS, |_| ())).collect();
    let mut waiting = Vec::new();
    for id in asks {
        rig.call(id, b"");
        match rig.event() {
            Event::Outward(outward) => waiting.push(outward.call),
            Event::Done(done) => {
                let why =
                    "all that is loaded is in use, and there is no room beside it: give images \
                     more memory (`fn serve --memory`)"
                        .into();
                assert_eq!(done.outcome, Outcome::NotLoaded(why));
                assert!(!waiting.is_empty());
                for call in waiting {
                    rig.dispatcher.answer(call, 0, Vec::new());
                    assert_eq!(rig.done().outcome, reply(""));
                }
                assert_eq!(rig.outcome(all[0], b"a"), reply("A"));
                return;
            }
            Event::Unwanted(call) => panic!("{call:?}"),
        }
    }
    panic!("more is loaded than there is room for");
}

/// The calls of a function that is replaced go on with what they began with; later ones have the new one.
#[test]
fn row_53_a_function_is_replaced_while_it_is_called() {
    let mut rig = Rig::new(1);
    let old = rig.register(ASKS, |_| ());
    let first = rig.call(old, b"old");
    let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
    let new = rig.register(UPPER, |_| ());
    rig.dispatcher.remove(old).unwrap();
    assert_eq!(rig.outcome(new, b"new"), reply("NEW"));
    let refused = rig.dispatcher.call(old, Vec::new(), 0, (0, None)).unwrap_err();
    assert_eq!(refused.outcome, Outcome::Gone);
    assert_eq!(rig.dispatcher.resident().0, 2);
    rig.dispatcher.answer(outward.call, 0, b"done".to_vec());
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (first, reply("done")));
    assert_eq!((rig.dispatcher.resident().0, rig.dispatcher.counts(old)), (1, None));
    rig.dispatcher.remove(new).unwrap();
    assert_eq!(rig.dispatcher.resident(), (0, 0));
    // Another one has its place and is not taken for it.
    let next = rig.register(UPPER, |_| ());
    rig.dispatcher.remove(old).unwrap();
    assert_eq!(rig.dispatcher.strikes(new), None);
    assert_eq!(rig.outcome(next, b"g"), reply("G"));
}

#[test]
fn a_worker_that_has_given_up_many_functions_is_replaced() {
    let mut rig = Rig::with(1, |workers| workers.recycle = 5);
    let budget = Duration::from_millis(1);
    let endless = rig.register(ENDLESS, |registration| registration.budget = budget);
    let asks = rig.register(ASKS, |_| ());
    let first = rig.dispatcher.workers()[0].pid;
    let waits = rig.call(asks, b"");
    let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
    for _ in 0..5 {
        assert_eq!(rig.outcome(endless, b""), Outcome::Budget(budget));
    }
    // It leaves only when its last call is over.
    let last = rig.call(endless, b"");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(2));
        let now = rig.now();
        rig.dispatcher.poll(now, &mut rig.events).unwrap();
    }
    assert_eq!((rig.dispatcher.workers()[0].pid, rig.events.len()), (first, 0));
    rig.dispatcher.answer(outward.call, 0, b"yes".to_vec());
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (waits, reply("yes")));
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (last, Outcome::Budget(budget)));
    assert_ne!(rig.dispatcher.workers()[0].pid, first);
}

/// A worker that gets no CPU is ended, which is nobody's fault, and its calls run elsewhere.
#[test]
fn row_53_a_worker_that_is_stopped_is_ended_and_its_calls_go_on() {
    let mut rig = Rig::new(1);
    let budget = Duration::from_millis(1);
    let endless = rig.register(ENDLESS, |registration| registration.budget = budget);
    let upper = rig.register(UPPER, |_| ());
    assert_eq!(rig.outcome(upper, b"a"), reply("A"));
    signal(&rig, Signal::STOP);
    let (first, second) = (rig.call(endless, b""), rig.call(upper, b"b"));
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (first, Outcome::Budget(budget)));
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (second, reply("B")));
    assert_eq!(rig.dispatcher.strikes(endless), Some((false, 1)));
}

/// Where no worker can be started, calls wait until one can be, or until their time is over.
#[test]
fn workers_that_cannot_be_started_are_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("worker");
    // A copy would be busy where another thread starts a process while it is written.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_functions-worker"), &program).unwrap();
    let mut rig = Rig::with(1, |workers| workers.program = vec![program.display().to_string()]);
    let upper = rig.register(UPPER, |_| ());
    assert_eq!(rig.outcome(upper, b"a"), reply("A"));
    std::fs::rename(&program, directory.path().join("elsewhere")).unwrap();
    signal(&rig, Signal::KILL);
    let now = rig.now();
    rig.dispatcher.call(upper, Vec::new(), 0, (now, Some(now + 250_000_000))).unwrap();
    let Outcome::Unstarted(why) = rig.done().outcome else { panic!("it ends by its deadline") };
    assert!(why.contains("No such file or directory"), "{why}");
    let next = rig.call(upper, b"b");
    assert!(rig.dispatcher.next_ns().is_some_and(|next| next < rig.now() + 100_000_000));
    std::fs::rename(directory.path().join("elsewhere"), &program).unwrap();
    let done = rig.done();
    assert_eq!((done.token, done.outcome), (next, reply("B")));
}

/// What a function did is counted, and the time in which its calls ended.
#[test]
fn calls_are_counted_by_function() {
    let mut rig = Rig::new(1);
    let budget = Duration::from_millis(1);
    let picks = rig.register(
        "pub fn handle(r: Request<'_>) -> Reply { match r.text()? {\n\
         \"loop\" => loop { core::hint::black_box(0); }, \"panic\" => panic!(),\n\
         \"error\" => Err(Error::invalid(\"no\")), _ => Ok(vec![]) } }",
        |registration| registration.budget = budget,
    );
    for what in ["loop", "panic", "error", "", "loop", ""] {
        rig.outcome(picks, what.as_bytes());
    }
    rig.dispatcher.ban(picks, true);
    assert!(rig.dispatcher.call(picks, Vec::new(), 0, (0, None)).is_err());
    let counts = rig.dispatcher.counts(picks).unwrap();
    assert_eq!([counts.calls, counts.replies, counts.errors], [6, 2, 1]);
    assert_eq!([counts.overruns, counts.failures, counts.refused, counts.cold], [2, 1, 1, 1]);
    assert!(counts.cpu_ns >= 2_000_000, "{counts:?}");
    assert!(counts.quantile(1.0).unwrap() >= budget, "{counts:?}");
    assert!(counts.quantile(0.5) <= counts.quantile(1.0), "{counts:?}");
}

/// Whenever a worker is killed, or stopped for a while, each call has one end: the right reply, or that it is
/// lost where it must not run again.
#[test]
fn row_53_workers_are_killed_and_stopped_at_every_step() {
    let mut rig = Rig::new(1);
    let (upper, asks) = (rig.register(UPPER, |_| ()), rig.register(ASKS, |_| ()));
    let mut random = Random::of_this_run();
    let (mut killed, mut stopped, mut lost) = (0, 0, 0);
    for round in 0..trials(2000) {
        let mut open = HashMap::new();
        for call in 0..8 {
            let is_upper = call % 2 == 0;
            let id = if is_upper { upper } else { asks };
            open.insert(rig.call(id, format!("call {round} {call}").as_bytes()), (is_upper, call));
        }
        // Of a few steps or of thousands, each as often.
        let most = 1 << random.below(13);
        let (at, kills) = (random.below(most), random.below(2) == 0);
        let mut is_killed = false;
        for step in 0.. {
            if open.is_empty() {
                break;
            }
            if step == at && kills {
                rig.dispatcher.kill_worker(0);
                (is_killed, killed) = (true, killed + 1);
            } else if step == at {
                signal(&rig, Signal::STOP);
                std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
                signal(&rig, Signal::CONT);
                stopped += 1;
            }
            let now = rig.now();
            rig.dispatcher.poll(now, &mut rig.events).unwrap();
            for event in std::mem::take(&mut rig.events) {
                match event {
                    Event::Outward(outward) => {
                        let names = outward.service + outward.method;
                        let answer = outward.message[names..].to_ascii_uppercase();
                        rig.dispatcher.answer(outward.call, 0, answer);
                    }
                    Event::Unwanted(_) => assert!(is_killed),
                    Event::Done(done) => {
                        let (is_upper, call) = open.remove(&done.token).expect("told twice");
                        if !is_upper && is_killed && matches!(done.outcome, Outcome::Lost(_)) {
                            lost += 1;
                        } else {
                            assert_eq!(done.outcome, reply(&format!("CALL {round} {call}")));
                        }
                    }
                }
            }
            assert!(rig.begun.elapsed() < Duration::from_secs(600), "{open:?}");
        }
    }
    println!("{killed} killed, {stopped} stopped, {lost} calls lost");
    assert!(killed > 0 && stopped > 0 && lost > 0);
}

/// Functions are registered, called, loaded, unloaded and removed at random: each call has the reply of the
/// function that it was for, also of one that is removed meanwhile.
#[test]
fn row_53_functions_come_and_go_while_they_are_called() {
    let lower =
        "pub fn handle(r: Request<'_>) -> Reply { Ok(r.text()?.to_lowercase().into_bytes()) }";
    let images = [UPPER, lower].map(|text| Arc::new(signed(text)));
    let mut rig = Rig::new(1);
    let sizes = [UPPER, lower].map(|text| {
        let (id, before) = (rig.register(text, |_| ()), rig.dispatcher.resident().1);
        rig.dispatcher.preload(id).unwrap();
        rig.dispatcher.resident().1 - before
    });
    // Room for three, of which at most two are in use.
    let most = 3 * sizes.into_iter().max().unwrap();
    let mut rig = Rig::with(2, |workers| workers.resident = most);
    let mut random = Random::of_this_run();
    let mut functions: Vec<(Id, bool)> = Vec::new();
    let (mut open, mut gone, mut most_loaded) = (HashMap::new(), 0, 0);
    for step in 0..trials(100_000) {
        let is_last = open.len() == 2;
        match random.below(10) {
            0 if functions.len() < 10 => {
                let is_upper = random.below(2) == 0;
                let registration = Registration {
                    owner: rig.owner,
                    image: images[usize::from(!is_upper)].clone(),
                    parameters: Vec::new(),
                    budget: Duration::from_secs(2),
                    idempotent: false,
                    share: Share::All,
                    strikes: 1000,
                };
                functions.push((rig.dispatcher.register(registration).unwrap(), is_upper));
            }
            1 if functions.len() > 5 => {
                let (id, _) = functions.swap_remove(random.below(functions.len()));
                rig.dispatcher.remove(id).unwrap();
                gone += open.values().filter(|(of, _)| *of == id).count();
            }
            2.. if !is_last && !functions.is_empty() => {
                let (id, is_upper) = functions[random.below(functions.len())];
                let text = format!("Call {step}");
                let expected = if is_upper { text.to_uppercase() } else { text.to_lowercase() };
                open.insert(rig.call(id, text.as_bytes()), (id, expected));
            }
            _ => {}
        }
        let now = rig.now();
        rig.dispatcher.poll(now, &mut rig.events).unwrap();
        while open.len() == 2 && is_last || !rig.events.is_empty() {
            let done = rig.done();
            let (_, expected) = open.remove(&done.token).expect("told twice");
            assert_eq!(done.outcome, reply(&expected), "step {step}");
        }
        let (loaded, bytes) = rig.dispatcher.resident();
        assert!(bytes <= most, "{loaded} images");
        most_loaded = most_loaded.max(loaded);
    }
    println!("{gone} calls of functions that were removed meanwhile");
    assert!(gone > 0 && most_loaded == 3, "{gone} {most_loaded}");
}

/// In the environment of the process that is killed.
const KILLED: &str = "PARTYWALL_TEST_IS_KILLED";

/// A process with a dispatcher is killed while a function runs and another one waits: none of its workers is
/// left.
#[test]
fn row_53_workers_end_with_a_dispatcher_that_is_killed() {
    if std::env::var_os(KILLED).is_some() {
        let mut rig = Rig::with(2, |workers| workers.processes = 3);
        let (endless, asks) = (
            rig.register(ENDLESS, |it| it.budget = Duration::from_secs(60)),
            rig.register(ASKS, |it| it.share = Share::Function),
        );
        rig.call(asks, b"");
        let Event::Outward(_) = rig.event() else { panic!("it does not ask") };
        rig.call(endless, b"");
        let now = rig.now();
        rig.dispatcher.poll(now, &mut rig.events).unwrap();
        let pids = rig.dispatcher.workers().into_iter().map(|worker| worker.pid.to_string());
        println!("\nworkers {}", pids.collect::<Vec<_>>().join(" "));
        rig.done();
        panic!("this process is not killed");
    }
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new(me)
        .args([
            "--exact",
            "upkeep::row_53_workers_end_with_a_dispatcher_that_is_killed",
            "--nocapture",
        ])
        .env(KILLED, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let workers = lines.find_map(|line| line.strip_prefix("workers ").map(str::to_owned));
    let workers = workers.expect("it has begun");
    let is_there = |pid: &&str| match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // One that nobody has waited for yet has ended all the same.
        Ok(stat) => !stat.rsplit_once(')').unwrap().1.starts_with(" Z"),
        Err(_) => false,
    };
    let workers: Vec<_> = workers.split(' ').collect();
    assert!(workers.len() == 3 && workers.iter().all(is_there), "{workers:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while workers.iter().any(is_there) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{workers:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
