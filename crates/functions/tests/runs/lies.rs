//! Workers that write what is not true, or end.

use std::time::Duration;

use partywall_functions::builder::Layer;
use partywall_functions::dispatcher::{Event, Id, MESSAGE, Outcome, Share};
use partywall_testkit::{Random, trials};
use rustix::process::{Pid, Signal, kill_process};

use super::host::{UPPER, builder, signed_by};
use super::rig::{Rig, reply};

const ASKS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
                    partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";
const BUDGET: Duration = Duration::from_millis(20);
/// What only the honest process has.
const SECRET: &str = "THE HONEST ONE'S";

/// Functions of workers that lie, and one of an honest one.
struct Lies {
    rig: Rig,
    lies: Id,
    asks: Id,
    behind: Id,
    honest: Id,
    /// The honest worker's.
    pid: u32,
    _directory: tempfile::TempDir,
}

impl Lies {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut rig = Rig::with(1, |workers| {
            workers.program = vec![
                env!("CARGO_BIN_EXE_functions-liar").to_owned(),
                directory.path().display().to_string(),
                env!("CARGO_BIN_EXE_functions-worker").to_owned(),
            ];
        });
        let lies = rig.register(UPPER, |it| (it.budget, it.strikes) = (BUDGET, u32::MAX));
        let asks = rig.register(ASKS, |it| (it.budget, it.strikes) = (BUDGET, u32::MAX));
        let behind = rig.register(UPPER, |_| ());
        let honest = rig.register(UPPER, |it| it.share = Share::Owner);
        assert_eq!(rig.outcome(honest, b"begins"), reply("BEGINS"));
        let pid = rig.dispatcher.workers().iter().find(|it| it.is_active).unwrap().pid;
        Self { rig, lies, asks, behind, honest, pid, _directory: directory }
    }

    /// Calls a function that lies, two behind it in its process, and one of the honest process: what comes of
    /// the first, and of the others. Each ends once.
    fn call(&mut self, id: Id, request: &str) -> (Outcome, [Outcome; 3]) {
        let Self { rig, behind, honest, .. } = self;
        let (behind, honest) = (*behind, *honest);
        let first = rig.call(id, request.as_bytes());
        let others = [(behind, "behind"), (behind, "next"), (honest, SECRET)];
        let others = others.map(|(id, request)| (rig.call(id, request.as_bytes()), None));
        let (mut it, mut others) = (None, others);
        while it.is_none() || others.iter().any(|(_, outcome)| outcome.is_none()) {
            let done = match rig.event() {
                Event::Done(done) => done,
                Event::Outward(outward) => {
                    assert!(outward.message.len() >= outward.service + outward.method);
                    rig.dispatcher.answer(outward.call, 0, b"lie reply far".to_vec());
                    continue;
                }
                Event::Unwanted(call) => panic!("{call:?}"),
            };
            let place = match others.iter_mut().find(|(token, _)| *token == done.token) {
                Some((_, place)) => place,
                None if done.token == first => &mut it,
                None => panic!("{request}: {done:?}"),
            };
            assert_eq!(*place, None, "{request}: {done:?}");
            *place = Some(done.outcome);
        }
        let now = rig.now();
        rig.dispatcher.poll(now, &mut rig.events).unwrap();
        assert!(rig.events.is_empty(), "{request}: {:?}", rig.events);
        (it.unwrap(), others.map(|(_, outcome)| outcome.unwrap()))
    }

    /// What has come of the honest process, which is still the same.
    fn check_honest(&self, what: &str, outcome: &Outcome) {
        assert_eq!(*outcome, reply(SECRET), "{what}");
        assert!(self.rig.dispatcher.workers().iter().any(|it| it.pid == self.pid), "{what}");
    }
}

/// What cannot be true ends the worker; what can is believed of its own calls; no other call is worse for it.
#[test]
fn row_51_what_cannot_be_true_ends_the_worker() {
    let mut all = Lies::new();
    let why = all.rig.dispatcher.in_force().unwrap().why_not.unwrap();
    assert_eq!(why, "\u{fffd}".repeat(512), "of 4 GiB");
    let lost = |why: &str| Outcome::Lost(format!("it has {why}"));
    let more = lost("said that it has written more than it has room for");
    let log = lost("said more log lines than a function may write");
    let short = lost("said that more is short than is short");
    let text = lost("said a text that is longer than a text may be");
    let refused = lost("refused what it was given, or named an end that there is not");
    let cannot = lost("said that a function calls a service that cannot");
    let stopped = lost("said that it was stopped, and nobody has told it to stop");
    let full = lost("said that a reply has no room that has room");
    let honest = |what: &str| Outcome::Reply(what.as_bytes().to_vec());
    let table = [
        ("end 0", refused.clone()),
        ("end 11", refused.clone()),
        ("end 255", refused.clone()),
        ("refused", refused),
        ("reply 1 more", more.clone()),
        ("reply far", more.clone()),
        ("log far", more.clone()),
        ("log 1 more", more.clone()),
        ("both far", more.clone()),
        ("short 25", short.clone()),
        ("short far", more.clone()),
        ("short log", short),
        ("calls", cannot),
        ("calls far", more.clone()),
        ("stopped", stopped),
        ("room", full),
        ("panic 513", text.clone()),
        ("error all", text),
        ("exit", Outcome::Lost("exit status: 3".into())),
        ("number earlier", Outcome::Deaf),
        ("number far", Outcome::Deaf),
        ("number 0", Outcome::Deaf),
        // These can be true, or change nothing that the dispatcher reads.
        ("room far", Outcome::Long(u64::MAX)),
        ("panic", Outcome::Panic("\u{fffd}".repeat(512))),
        ("reply all", Outcome::Reply(vec![0xff; 4096])),
        ("words", honest("words")),
        ("lines", honest("lines")),
        ("shrink", honest("refused")),
    ];
    for (what, expected) in table {
        let (outcome, [behind, next, honest]) = all.call(all.lies, &format!("lie {what}"));
        assert_eq!(outcome, expected, "{what}");
        assert_eq!((behind, next), (reply("BEHIND"), reply("NEXT")), "{what}");
        all.check_honest(what, &honest);
    }
    // Those of a function that calls services; what it says after that is not run again.
    for (what, expected) in [
        ("calls service far", more.clone()),
        ("calls method far", more.clone()),
        ("calls body far", more.clone()),
        ("calls 1 more", more.clone()),
        ("log 1 more", log),
        ("calls", more.clone()),
        ("calls all", more),
    ] {
        let (outcome, [behind, next, honest]) = all.call(all.asks, &format!("lie {what}"));
        assert_eq!(outcome, expected, "{what}");
        assert_eq!((behind, next), (reply("BEHIND"), reply("NEXT")), "{what}");
        all.check_honest(what, &honest);
    }
}

/// What comes ahead of its submission, or after its call's time, is nobody's answer.
#[test]
fn row_51_what_comes_too_early_or_too_late_is_no_answer() {
    let mut all = Lies::new();
    let (lies, behind, honest) = (all.lies, all.behind, all.honest);
    let rig = &mut all.rig;
    for _ in 0..3 {
        assert_eq!(rig.outcome(lies, b"lie ahead"), Outcome::Reply(b"ahead".to_vec()));
        assert_eq!(rig.outcome(behind, b"is right"), reply("IS RIGHT"));
    }
    // Nobody ran when that was seen.
    assert_eq!(rig.dispatcher.strikes(lies), Some((false, 0)));
    assert_eq!(rig.dispatcher.strikes(behind), Some((false, 0)));
    for _ in 0..3 {
        let now = rig.now();
        let deadline = Some(now + 10_000_000);
        rig.dispatcher.call(lies, b"lie late".to_vec(), 0, (now, deadline)).unwrap();
        assert_eq!(rig.done().outcome, Outcome::Deadline);
        assert_eq!(rig.outcome(behind, b"is right"), reply("IS RIGHT"));
    }
    let outcome = rig.outcome(honest, SECRET.as_bytes());
    all.check_honest("late", &outcome);
}

/// Whatever a worker writes, each call ends once, and those of other processes are right.
#[test]
fn row_51_random_lies_end_no_other_call_wrongly() {
    let (mut all, mut random) = (Lies::new(), Random::of_this_run());
    for _ in 0..trials(1000) {
        let request = format!("lie {:x}", random.draw());
        let id = if random.below(2) == 0 { all.lies } else { all.asks };
        let (first, [behind, next, honest]) = all.call(id, &request);
        for outcome in [first, behind, next] {
            if let Outcome::Reply(bytes) = outcome {
                assert!(bytes.len() <= MESSAGE, "{request}");
                let mut parts = bytes.windows(SECRET.len());
                assert!(!parts.any(|part| part == SECRET.as_bytes()), "{request}");
            }
        }
        all.check_honest(&request, &honest);
    }
}

/// A function that ends its worker has a strike each time; one whose worker is ended from outside has none.
#[test]
fn who_ends_its_worker_has_a_strike_and_no_other() {
    let mut rig = Rig::new(1);
    // Another architecture's way into the kernel, and that which the filter lets through.
    let text = "pub fn handle(r: Request<'_>) -> Reply { let mut result = 231_u64; unsafe {\n\
         if r.body().is_empty() { core::arch::asm!(\"int 0x80\", inout(\"rax\") result) }\n\
         else { core::arch::asm!(\"syscall\", inout(\"rax\") result, in(\"rdi\") 0, out(\"rcx\") _, out(\"r11\") _) } }\n\
         Ok(result.to_le_bytes().to_vec()) }";
    let without = builder(&[Layer::Lexer, Layer::Lint, Layer::Verifier]);
    let ends = rig.register(UPPER, |it| {
        (it.image, it.strikes) = (signed_by(&without, text).into(), 7);
    });
    let upper = rig.register(UPPER, |_| ());
    for (round, request, why) in [
        (1, &b""[..], "signal: 31 (SIGSYS) (core dumped)"),
        (2, b"x", "exit status: 0"),
        (3, b"x", "exit status: 0"),
    ] {
        let (first, second) = (rig.call(ends, request), rig.call(upper, b"behind"));
        let mut done = [rig.done(), rig.done()];
        done.sort_by_key(|done| done.token);
        let [ended, behind] = done;
        assert_eq!((behind.token, behind.outcome), (second, reply("BEHIND")));
        let Outcome::Lost(said) = ended.outcome else { panic!("{ended:?}") };
        assert!(ended.token == first && why.starts_with(&said), "{said}");
        // It has run twice.
        assert_eq!(rig.dispatcher.strikes(ends), Some((false, 2 * round)));
    }
    rig.call(ends, b"x");
    let Outcome::Lost(_) = rig.done().outcome else { panic!("it has not ended its worker") };
    assert_eq!(rig.dispatcher.strikes(ends), Some((true, 8)));
    assert_eq!(rig.dispatcher.strikes(upper), Some((false, 0)));
    // It ends no worker any more, and the last one is there for others.
    let refused = rig.dispatcher.call(ends, b"x".to_vec(), 0, (0, None)).unwrap_err();
    assert_eq!(refused.outcome, Outcome::Banned);
    assert_eq!(rig.outcome(upper, b"after"), reply("AFTER"));
    let worker = rig.dispatcher.workers()[0].pid;
    assert!(rig.dispatcher.call(ends, b"x".to_vec(), 0, (0, None)).is_err());
    assert_eq!(rig.outcome(upper, b"again"), reply("AGAIN"));
    assert_eq!(rig.dispatcher.workers()[0].pid, worker);

    let endless = "pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }";
    let endless = rig.register(endless, |it| it.budget = Duration::from_secs(60));
    for signal in [Signal::KILL, Signal::TERM, Signal::USR1] {
        rig.call(endless, b"");
        let mut last = 0;
        for _ in 0..2 {
            last = loop {
                let now = rig.now();
                rig.dispatcher.poll(now, &mut rig.events).unwrap();
                let workers = rig.dispatcher.workers();
                let given = workers
                    .iter()
                    .find(|it| it.pid != last && it.has_begun && it.given == [endless]);
                if let Some(given) = given {
                    break given.pid;
                }
            };
            kill_process(Pid::from_raw(last as i32).unwrap(), signal).unwrap();
        }
        let Outcome::Lost(why) = rig.done().outcome else { panic!("it goes on") };
        assert!(why.starts_with(&format!("signal: {}", signal.as_raw())), "{why}");
        assert_eq!(rig.dispatcher.strikes(endless), Some((false, 0)));
    }
}

/// A signal of a fault that somebody has sent is no fault, neither of the function that runs nor of its
/// worker.
#[test]
fn signals_of_faults_from_outside_are_nobodys() {
    let mut rig = Rig::new(1);
    let slow = "pub fn handle(_: Request<'_>) -> Reply {\n\
                for n in 0..200_000_000_u64 { core::hint::black_box(n); } Ok(b\"done\".to_vec()) }";
    let (slow, upper) = (rig.register(slow, |_| ()), rig.register(UPPER, |_| ()));
    assert_eq!(rig.outcome(upper, b"a"), reply("A"));
    let pid = rig.dispatcher.workers()[0].pid;
    let worker = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let faults = [Signal::SEGV, Signal::BUS, Signal::ILL, Signal::FPE, Signal::TRAP, Signal::SYS];
    let send = || faults.iter().for_each(|signal| kill_process(worker, *signal).unwrap());
    for _ in 0..3 {
        rig.call(slow, b"");
        let now = rig.now();
        rig.dispatcher.poll(now, &mut rig.events).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        send();
        assert_eq!(rig.done().outcome, reply("done"));
        send();
        assert_eq!(rig.outcome(upper, b"next"), reply("NEXT"));
    }
    assert_eq!(
        (rig.dispatcher.strikes(slow), rig.dispatcher.workers()[0].pid),
        (Some((false, 0)), pid)
    );
}
