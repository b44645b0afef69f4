//! kill -9 at random times, under load: every survivor gets UNAVAILABLE within 100 ms or a right
//! answer, and nothing is left behind: no descriptor, no mapping, no file; by the stubs of either generator.
//! Times are those of the survivor, without what it waited for a CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partywall_interop::Counts;
use partywall_system_tests::{
    Blocking, Caller, FLOOD, Load, Stubs, connect, counted, is_answer, request, went, with,
};
use rustix::process::Signal;
use tonic::Code;

use partywall_testkit::{Held, Host, Moment, OPEN, Process, Random, alone, trials};

use crate::{CLIENT, SERVER};

const SOON: Duration = Duration::from_millis(100);

/// Calls without end until one fails; how it failed and when.
async fn call_until_failure(
    mut caller: Caller,
    load: Load,
    seed: u64,
    in_flight: Arc<AtomicUsize>,
    done: Arc<AtomicU64>,
) -> (Code, Moment) {
    for n in 0.. {
        let asked = request(seed + n, load.bytes(n));
        in_flight.fetch_add(1, Ordering::SeqCst);
        let answer = caller.call(asked.clone()).await;
        in_flight.fetch_sub(1, Ordering::SeqCst);
        match answer {
            Ok(reply) => assert!(is_answer(&asked, reply.get_ref()), "a wrong answer"),
            Err(status) => return (status.code(), Moment::here()),
        }
        done.fetch_add(1, Ordering::SeqCst);
    }
    unreachable!("calls go on until one fails")
}

#[test]
fn a_killed_server_is_unavailable_at_once_and_leaves_nothing() {
    servers_are_killed(Stubs::Tonics, Load::Records);
}

#[test]
fn a_killed_native_server_is_unavailable_and_leaves_nothing() {
    servers_are_killed(Stubs::Native, Load::Records);
}

#[test]
fn a_killed_server_leaves_no_parcel_behind() {
    servers_are_killed(Stubs::Native, Load::Parcels);
}

/// A coordinator that lets descriptors cross.
pub(crate) fn granting() -> Host {
    Host::with(&granting_policy())
}

/// Its policy.
pub(crate) fn granting_policy() -> String {
    OPEN.replace("anyone = ['*']", "anyone = { methods = ['*'], descriptors = 1 }")
}

/// Waits until each end of a link has sent as many parcels.
fn await_parcels(host: &Host, parcels: u64) {
    let begin = Instant::now();
    loop {
        let links = partywall::operator::links(Some(&host.socket)).unwrap();
        let each = links
            .iter()
            .filter(|link| link.open)
            .map(|link| [link.caller_parcels.parcels, link.stats.parcels.parcels]);
        let each: Vec<_> = each.collect();
        if each.iter().any(|sent| sent.iter().all(|sent| *sent >= parcels)) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "parcels of open links: {each:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Which way the calls of this coordinator's links have gone so far, while so many are on their way.
fn counts(host: &Host, in_flight: u64) -> Counts {
    Counts::of_busy(&partywall::operator::links(Some(&host.socket)).unwrap(), in_flight)
}

fn servers_are_killed(stubs: Stubs, load: Load) {
    let _alone = alone();
    let mut random = Random::of_this_run();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let host = granting();
    let before_files = host.left_in_files();
    let trials = trials(200);
    let (mut struck, mut slowest, mut slowest_free) = (0, Duration::ZERO, Duration::ZERO);
    // What stays for the process (the reactor, the coordinator's socket) is there after one round.
    let mut held = None;
    for trial in 0..=trials {
        let threads = if trial % 2 == 0 { "1" } else { "2" };
        let server = host.start(SERVER, &with(stubs, &["--threads", threads]));
        let pause = Duration::from_micros(random.draw() % 20_000);
        runtime.block_on(async {
            // A channel that does not wait for the next server.
            connect(&host.socket).await;
            let endpoint = partywall::Endpoint::from_static("partywall:///test");
            let channel = endpoint.coordinator(&host.socket).connect().await.unwrap();
            let (in_flight, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
            let mut calls = tokio::task::JoinSet::new();
            for lane in 0..FLOOD {
                let caller = Caller::new(stubs, channel.clone());
                let (in_flight, done) = (Arc::clone(&in_flight), Arc::clone(&done));
                calls.spawn(call_until_failure(caller, load, lane * 1000, in_flight, done));
            }
            let enough = if load == Load::Records { 200 } else { 50 };
            while done.load(Ordering::SeqCst) < enough {
                assert!(calls.try_join_next().is_none(), "a call has failed");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::task::block_in_place(|| match load {
                Load::Records => went(counts(&host, FLOOD), stubs),
                Load::Parcels => await_parcels(&host, 10),
            });
            tokio::time::sleep(pause).await;
            struck += usize::from(in_flight.load(Ordering::SeqCst) > 0);
            let killed = tokio::task::spawn_blocking(move || server.kill()).await.unwrap();
            let all = async {
                while let Some(ended) = calls.join_next().await {
                    let (code, at) = ended.unwrap();
                    assert_eq!(code, Code::Unavailable);
                    slowest = slowest.max(at.since(&killed));
                }
            };
            tokio::time::timeout(Duration::from_secs(10), all).await.expect("a call hangs");
        });
        match &held {
            None => held = Some(Held::by(std::process::id())),
            Some(held) => slowest_free = slowest_free.max(held.wait_for(std::process::id())),
        }
    }
    let kills = trials + 1;
    println!(
        "{kills} kills of the server, {struck} with a call in flight, slowest {slowest:?}, nothing \
         left after {slowest_free:?}"
    );
    assert!(struck * 10 >= kills * 8, "only {struck} of {kills} struck a call");
    assert!(slowest < SOON, "a caller heard of it after {slowest:?}");
    assert!(slowest_free < SOON, "something was left for {slowest_free:?}");
    assert_eq!(host.left_in_files(), before_files);
}

/// Waits until a thread of this process sleeps in futex(2).
fn await_futex(tid: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/syscall", tid.as_raw_nonzero());
    let start = Instant::now();
    // 202 is futex(2) on x86-64; a thread that runs says `running`.
    while !std::fs::read_to_string(&path).unwrap().starts_with("202 ") {
        assert!(start.elapsed() < Duration::from_secs(10), "the caller does not sleep on a futex");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills `server` at a random moment, or while the thread `tid` sleeps until it answers.
fn strike(server: Process, tid: rustix::thread::Pid, asleep: bool, pause: Duration) -> Moment {
    std::thread::sleep(pause);
    if asleep {
        // It answers nothing any more, so a caller sleeps, after what it looks for itself.
        server.signal(Signal::STOP);
        await_futex(tid);
    }
    server.kill()
}

#[test]
fn a_killed_server_wakes_a_blocked_caller() {
    blocked_callers_are_woken(Stubs::Tonics);
}

#[test]
fn a_killed_native_server_wakes_a_blocked_caller() {
    blocked_callers_are_woken(Stubs::Native);
}

fn blocked_callers_are_woken(stubs: Stubs) {
    let _alone = alone();
    let mut random = Random::of_this_run();
    let host = Host::open();
    let (mut slowest, trials) = (Duration::ZERO, trials(100));
    for trial in 0..2 * trials {
        let server = host.start(SERVER, &with(stubs, &[]));
        let endpoint =
            partywall::Endpoint::from_static("partywall:///test").coordinator(&host.socket);
        let start = Instant::now();
        let channel = loop {
            match partywall::blocking::Channel::connect(&endpoint) {
                Ok(channel) => break channel,
                Err(e) => assert!(start.elapsed() < Duration::from_secs(10), "{e}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut caller = Blocking::new(stubs, channel);
        for n in 0..20 {
            caller.call(request(n, 500)).unwrap();
        }
        went(counts(&host, 0), stubs);
        let pause = Duration::from_micros(random.draw() % 20_000);
        let (tid, asleep) = (rustix::thread::gettid(), trial % 2 == 0);
        let killer = std::thread::spawn(move || strike(server, tid, asleep, pause));
        let failed = loop {
            let asked = request(1, 500);
            match caller.call(asked.clone()) {
                Ok(reply) => assert!(is_answer(&asked, &reply)),
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    break Moment::here();
                }
            }
        };
        slowest = slowest.max(failed.since(&killer.join().unwrap()));
    }
    println!("a blocked caller heard of the death within {slowest:?}, {trials} times asleep");
    assert!(slowest < SOON, "{slowest:?}");
}

#[test]
fn a_killed_client_disturbs_nobody_and_leaves_nothing() {
    clients_are_killed(Stubs::Tonics, Load::Records);
}

#[test]
fn a_killed_native_client_disturbs_nobody_and_leaves_nothing() {
    clients_are_killed(Stubs::Native, Load::Records);
}

#[test]
fn a_killed_client_leaves_no_parcel_behind() {
    clients_are_killed(Stubs::Native, Load::Parcels);
}

fn clients_are_killed(stubs: Stubs, load: Load) {
    let _alone = alone();
    let mut random = Random::of_this_run();
    let host = granting();
    let before_files = host.left_in_files();
    let mut server = host.start(SERVER, &with(stubs, &["--until-input-ends"]));
    let mut witness = host.start(CLIENT, &with(stubs, &["--mode", "measure"]));
    witness.ready();
    witness.say("32");
    // Calls have been answered, so the witness's link is whole.
    witness.line();
    let held = Held::by(server.pid());
    let noted = tempfile::NamedTempFile::new().unwrap();
    let path = noted.path().to_str().unwrap();
    let (trials, mut struck, mut slowest) = (trials(200), 0, Duration::ZERO);
    for trial in 0..trials {
        // A blocking client takes as long to make a long request as to send it.
        let every = if load == Load::Records { 4 } else { 8 };
        let mode = if trial % every == 3 { "blocking" } else { "flood" };
        let mut victim = with(stubs, &["--mode", mode, "--in-flight", path]);
        victim.extend((load == Load::Parcels).then_some("--long"));
        let mut victim = host.start(CLIENT, &victim);
        victim.ready();
        if load == Load::Parcels {
            await_parcels(&host, 10);
        }
        std::thread::sleep(Duration::from_micros(random.draw() % 20_000));
        witness.say("32");
        victim.kill();
        struck += usize::from(std::fs::read(path).unwrap() == b"1");
        // 300 right answers, or the witness has ended.
        witness.line();
        slowest = slowest.max(held.wait_for(server.pid()));
    }
    println!(
        "{trials} kills of a client, {struck} with a call in flight, nothing left after {slowest:?}"
    );
    assert!(struck * 10 >= trials * 8, "only {struck} of {trials} struck a call");
    assert!(slowest < SOON, "something was left for {slowest:?}");
    assert_eq!(host.left_in_files(), before_files);
    server.end_input();
    went(counted(&server.line()), stubs);
}

/// Sixteen calls whose handlers stay; who calls, and when all of them do.
fn stays(host: &Host, server: &mut Process, stubs: Stubs) -> Process {
    let client = host.start(CLIENT, &with(stubs, &["--mode", "stay"]));
    let way = if stubs == Stubs::Native { "native" } else { "ordinary" };
    for _ in 0..16 {
        assert_eq!(server.line(), format!("stays {way}"));
    }
    client
}

/// Of handlers that wait for ever: their callers hear of the end of their service, and they end with their
/// callers.
#[test]
fn handlers_that_stay_end_with_either_side() {
    let _alone = alone();
    for stubs in [Stubs::Tonics, Stubs::Native] {
        let host = Host::open();
        let mut server = host.start(SERVER, &with(stubs, &["--until-input-ends"]));
        host.until_served();
        host.start(CLIENT, &with(stubs, &["--mode", "few"])).succeed();
        let held = Held::by(server.pid());
        let free = held.wait_for(server.pid());
        for _ in 0..trials(40) {
            stays(&host, &mut server, stubs).kill();
            let free = free.max(held.wait_for(server.pid()));
            assert!(free < SOON, "something was left for {free:?}");
        }
        // It would wait for those that are at work for 30 s.
        let start = Instant::now();
        server.end_input();
        went(counted(&server.line()), stubs);
        server.succeed();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?} to drain", start.elapsed());
        for _ in 0..trials(40) {
            let mut server = host.start(SERVER, &with(stubs, &[]));
            let mut client = stays(&host, &mut server, stubs);
            let before = Moment::of(client.pid());
            server.kill();
            let ends: Vec<Result<(), Code>> = vec![Err(Code::Unavailable); 16];
            assert_eq!(client.line(), format!("{ends:?}"));
            let took = Moment::of(client.pid()).since(&before);
            assert!(took < SOON, "{stubs:?}: its callers heard of it after {took:?}");
            client.succeed();
        }
    }
}
