//! A process stops at each labelled step of the protocol and is killed there. Times are those of the
//! survivor, without what it waited for a CPU.

use std::io::BufRead;
use std::time::{Duration, Instant};

use partywall_interop::proto::SimpleResponse;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_shm::failpoint::LABELS;
use partywall_system_tests::{UNARY, is_answer, request};
use tonic::Code;

use partywall_testkit::{Held, Host, Moment, Process, alone};

use crate::{CLIENT, SERVER};

const SOON: Duration = Duration::from_millis(100);

/// Waits until the process says that it stopped; false when it does not come by in time.
fn stopped(process: &mut Process, label: &str, within: Duration) -> bool {
    let mut stderr = process.stderr();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        while stderr.read_line(&mut line).is_ok_and(|n| n > 0) {
            let _ = tx.send(std::mem::take(&mut line));
        }
    });
    let wanted = format!("stopped at {label}\n");
    let start = Instant::now();
    while let Some(left) = within.checked_sub(start.elapsed()) {
        match rx.recv_timeout(left) {
            Ok(line) if line == wanted => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

/// The victim is the server; the survivor calls by a blocking channel, whose sleep is a futex, or
/// by an async one, whose sleep is the doorbell.
#[test]
fn callers_get_an_answer_from_a_server_killed_at_each_step() {
    let _alone = alone();
    let mut never = Vec::new();
    for label in LABELS {
        let mut reached = false;
        for after in ["1", "7"] {
            for blocking in [true, false] {
                reached |= server_is_killed_at(label, after, blocking);
            }
        }
        if !reached {
            never.push(*label);
        }
    }
    // A caller fills a link's memory.
    assert_eq!(never, ["setup.filled"], "steps that no server came by");
}

/// Whether the server came by; the caller hears of its end soon.
fn server_is_killed_at(label: &str, after: &str, blocking: bool) -> bool {
    let (reached, took) = server_stops_at(label, after, blocking);
    assert!(took < SOON, "{label}: the caller heard of it after {took:?}");
    reached
}

/// Whether it came by, and when the caller heard of its end.
fn server_stops_at(label: &str, after: &str, blocking: bool) -> (bool, Duration) {
    let host = Host::open();
    let environment = [("PARTYWALL_FAILPOINT", label), ("PARTYWALL_FAILPOINT_AFTER", after)];
    let program = SERVER;
    let mut server = Process::start(program, &host.socket, &[], &environment, None);
    host.until_served();
    let socket = host.socket.clone();
    let survivor =
        std::thread::spawn(
            move || if blocking { call_blocking(socket) } else { call_async(socket) },
        );
    let reached = stopped(&mut server, label, Duration::from_millis(400));
    std::thread::sleep(Duration::from_millis(5));
    let killed = server.kill();
    let (code, at) = survivor.join().unwrap();
    assert_eq!(code, Code::Unavailable, "{label}");
    (reached, at.since(&killed))
}

/// Calls until that fails; the server may die while the link is made, too.
fn call_blocking(socket: std::path::PathBuf) -> (Code, Moment) {
    let channel = partywall::blocking::Channel::connect(
        partywall::Endpoint::from_static("partywall:///test").coordinator(socket),
    );
    let mut channel = match channel {
        Ok(channel) => channel,
        Err(error) => return (error.code(), Moment::here()),
    };
    loop {
        let asked = request(1, 700);
        let call = channel.unary::<_, SimpleResponse>(UNARY, tonic::Request::new(asked.clone()));
        match call {
            Ok(reply) => assert!(is_answer(&asked, reply.get_ref())),
            Err(status) => return (status.code(), Moment::here()),
        }
    }
}

fn call_async(socket: std::path::PathBuf) -> (Code, Moment) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = partywall::Endpoint::from_static("partywall:///test");
        let channel = match endpoint.coordinator(&socket).connect().await {
            Ok(channel) => channel,
            Err(error) => return (error.code(), Moment::here()),
        };
        let mut client = TestServiceClient::new(channel);
        loop {
            let asked = request(1, 700);
            match client.unary_call(asked.clone()).await {
                Ok(reply) => assert!(is_answer(&asked, reply.get_ref())),
                Err(status) => return (status.code(), Moment::here()),
            }
        }
    })
}

/// The victim is a client; the server goes on for a witness, and holds nothing of the dead.
#[test]
fn a_client_killed_at_each_step_leaves_the_server_as_it_was() {
    let _alone = alone();
    let host = Host::open();
    let server = host.start(SERVER, &[]);
    let mut witness = host.start(CLIENT, &["--mode", "measure"]);
    witness.ready();
    witness.say("32");
    // Calls have been answered, so the witness's link is whole.
    witness.line();
    let held = Held::by(server.pid());
    let mut never = Vec::new();
    for label in LABELS {
        let mut reached = false;
        for mode in ["flood", "blocking"] {
            for after in ["1", "9"] {
                let environment =
                    [("PARTYWALL_FAILPOINT", *label), ("PARTYWALL_FAILPOINT_AFTER", after)];
                let program = CLIENT;
                let arguments = ["--mode", mode];
                let mut victim =
                    Process::start(program, &host.socket, &arguments, &environment, None);
                reached |= stopped(&mut victim, label, Duration::from_millis(400));
                victim.kill();
                witness.say("32");
                witness.line();
                let took = held.wait_for(server.pid());
                assert!(took < SOON, "{label}: the server held something for {took:?}");
            }
        }
        if !reached {
            never.push(*label);
        }
    }
    // A server says that a link is open; services sleep in epoll, so no client wakes one by futex.
    assert_eq!(never, ["setup.sent", "notify.belled"], "steps that no client came by");
}
