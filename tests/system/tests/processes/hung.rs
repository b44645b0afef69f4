//! A server that hangs, and another one that answers.

use std::path::Path;
use std::time::{Duration, Instant};

use partywall::Endpoint;
use partywall::blocking::Channel;
use partywall_abi::control::{Message, SessionMessage};
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{SimpleRequest, SimpleResponse};
use partywall_system_tests::{Load, connect, is_answer, request};
use partywall_testkit::{Conversation, proof};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use partywall_testkit::{Host, Moment, Process, alone};

use crate::SERVER;
use crate::kills::granting_policy;

/// Each instance is asked in turn, so that some of these meet the one that hangs.
const CONNECTS: u32 = 6;

/// How late the end of a call may be; emulation is slow.
fn late() -> Duration {
    let emulated = std::env::var("PARTYWALL_VM").as_deref() == Ok("1");
    Duration::from_millis(if emulated { 1000 } else { 100 })
}

#[test]
fn a_connect_to_an_instance_that_hangs_is_tried_with_the_next() {
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(tried_with_the_next(&Host::open()));
}

async fn tried_with_the_next(host: &Host) {
    let hung = host.start(SERVER, &[]);
    host.until_served();
    drop(connect(&host.socket).await);
    kill_process(Pid::from_raw(hung.pid() as i32).unwrap(), Signal::STOP).unwrap();
    let _other = host.start(SERVER, &[]);
    // Once it serves, somebody answers; until then a connect waits.
    let start = Instant::now();
    for n in 0..CONNECTS {
        let channel = connect(&host.socket).await;
        let mut call = tonic::Request::new(request(u64::from(n), 32));
        call.set_timeout(Duration::from_secs(5));
        TestServiceClient::new(channel).unary_call(call).await.unwrap();
    }
    // One offer is waited for, for a second; then the instance is asked last.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

/// The call fails when its deadline passes, and not before.
fn ends_with(deadline: Duration, call: impl FnOnce() -> tonic::Status) {
    let (begin, moment) = (Instant::now(), Moment::here());
    let ended = call();
    let (took, own) = (begin.elapsed(), Moment::here().since(&moment));
    assert_eq!(ended.code(), tonic::Code::DeadlineExceeded, "{ended}");
    assert!(took >= deadline, "{took:?}: {ended}");
    assert!(own < deadline + late(), "{own:?} of {took:?}");
}

/// A coordinator and a server in processes of their own, and a channel to that server.
fn linked(socket: &Path) -> (Process, Process, Channel) {
    linked_under(socket, &[])
}

fn linked_under(socket: &Path, policy: &[&str]) -> (Process, Process, Channel) {
    let start = |program, arguments: &[_]| Process::start(program, socket, arguments, &[], None);
    let mut coordinator = start(env!("CARGO_BIN_EXE_st-coordinator"), policy);
    coordinator.ready();
    let server = start(SERVER, &[]);
    let begin = Instant::now();
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(socket);
    loop {
        match Channel::connect(&endpoint) {
            Ok(channel) => return (coordinator, server, channel),
            Err(e) => assert!(begin.elapsed() < Duration::from_secs(10), "{e}"),
        }
    }
}

/// Stops it. Until all its threads have stopped it hears of what happens, and answers.
fn stop(coordinator: &Process) {
    coordinator.signal(Signal::STOP);
    let pid = WaitId::Pid(Pid::from_raw(coordinator.pid() as i32).unwrap());
    waitid(pid, WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).unwrap().unwrap();
}

/// Each of them waited a second for memory that a coordinator was to allow, and was too late.
#[test]
fn long_calls_are_in_time_while_the_coordinator_is_stopped() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let policy = dir.path().join("policy.toml");
    std::fs::write(&policy, format!("harden = false\n{}", granting_policy())).unwrap();
    let (coordinator, _server, mut channel) =
        linked_under(&socket, &["--policy", policy.to_str().unwrap()]);
    let mut call = || {
        let asked = request(1, Load::Parcels.bytes(1));
        let mut call = tonic::Request::new(asked.clone());
        call.set_timeout(Duration::from_millis(700));
        let path = "/grpc.testing.TestService/UnaryCall";
        let reply = channel.unary::<SimpleRequest, SimpleResponse>(path, call).unwrap();
        assert!(is_answer(&asked, reply.get_ref()));
    };
    let sent = || {
        let links = partywall::operator::links(Some(&socket)).unwrap();
        links.iter().map(|link| link.caller_parcels.parcels).sum::<u64>()
    };
    // The first long message of a link has no memory made.
    call();
    stop(&coordinator);
    (0..5).for_each(|_| call());
    coordinator.signal(Signal::CONT);
    let begin = Instant::now();
    while sent() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "no message in a parcel");
        call();
    }
}

/// It had the time of a connect, 5 s.
#[test]
fn blocking_call_ends_at_its_deadline_without_a_link() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let (coordinator, server, mut channel) = linked(&socket);
    let mut call = |within| {
        let mut call = tonic::Request::new(request(1, 32));
        call.set_timeout(within);
        channel.unary::<SimpleRequest, SimpleResponse>("/grpc.testing.TestService/UnaryCall", call)
    };
    call(Duration::from_secs(10)).unwrap();
    stop(&coordinator);
    server.kill();
    let deadline = Duration::from_millis(500);
    // The dead server has not taken the first one, which asks for another link as the second does.
    for _ in 0..2 {
        ends_with(deadline, || call(deadline).unwrap_err());
    }
    coordinator.signal(Signal::CONT);
}

/// Proving itself to one that never answers took 5 s, and the question as long as it may; any error would do
/// here, at once as well, or after two seconds.
#[test]
fn blocking_call_ends_at_its_deadline_without_the_coordinator() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let (coordinator, server, mut channel) = linked(&socket);
    coordinator.kill();
    server.kill();
    // One that lets processes connect, and says nothing.
    let kind = rustix::net::SocketType::SEQPACKET;
    let _silent = partywall_shm::listen::listen(&socket, kind, 64, |_| ()).unwrap();
    for _ in 0..4 {
        let mut call = tonic::Request::new(request(1, 32));
        let deadline = Duration::from_millis(300);
        call.set_timeout(deadline);
        let path = "/grpc.testing.TestService/UnaryCall";
        ends_with(deadline, || {
            channel.unary::<SimpleRequest, SimpleResponse>(path, call).unwrap_err()
        });
    }
}

/// The 5 s that a process has for its proof ran while the coordinator did not.
#[test]
fn a_proof_that_came_while_the_coordinator_was_late_is_in_time() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let mut coordinator =
        Process::start(env!("CARGO_BIN_EXE_st-coordinator"), &socket, &[], &[], None);
    coordinator.ready();
    let [proves, silent] = [(); 2].map(|()| Conversation::connect(&socket).unwrap());
    let nonce = proves.challenge().unwrap();
    silent.challenge().unwrap();
    coordinator.signal(Signal::STOP);
    proves.say(&proof(nonce)).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    coordinator.signal(Signal::CONT);
    let welcome = proves.next().unwrap().0;
    assert!(matches!(welcome, Message::Session(SessionMessage::Welcome { .. })), "{welcome:?}");
    let refused = silent.next().unwrap().0;
    assert!(
        matches!(&refused, Message::Session(SessionMessage::Refused { text, .. }) if text.contains("in time")),
        "{refused:?}"
    );
}
