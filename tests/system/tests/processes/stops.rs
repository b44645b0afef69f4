//! A process stops at each labelled step of the protocol and is killed there. Times are those of the
//! survivor, without what it waited for a CPU.

use std::io::BufRead;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use partywall_shm::failpoint::{LABELS, PARCEL_LABELS};
use partywall_system_tests::{
    Blocking, Caller, Load, Stubs, counted, is_answer, request, went, with,
};
use tonic::Code;

use partywall_testkit::{Held, Moment, Process, alone};

use crate::kills::granting;
use crate::{CLIENT, SERVER};

const SOON: Duration = Duration::from_millis(100);

/// Where processes stop: at each step, the first time and another one. The set-up of a link knows no stubs,
/// and its first call is none for native ones. Parcels have steps of their own.
fn stops(
    stubs: Stubs,
    load: Load,
    another: &'static str,
) -> Vec<(&'static str, Vec<&'static str>)> {
    let first = stubs == Stubs::Tonics || load == Load::Parcels;
    let times = if first { vec!["1", another] } else { vec![another] };
    let labels = if load == Load::Parcels { PARCEL_LABELS } else { LABELS };
    let has = |label: &&&str| stubs == Stubs::Tonics || !label.starts_with("setup.");
    labels.iter().filter(has).map(|label| (*label, times.clone())).collect()
}

/// What a process has said.
#[derive(Clone, Copy, Default)]
struct Said {
    /// It stops at the label.
    stopped: bool,
    /// It has answered a call of native stubs before.
    native: bool,
}

/// Waits until the process says that it stopped, or the time is over.
fn stopped(process: &mut Process, label: &str, within: Duration) -> Said {
    let mut stderr = process.stderr();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        while stderr.read_line(&mut line).is_ok_and(|n| n > 0) {
            let _ = tx.send(std::mem::take(&mut line));
        }
    });
    let wanted = format!("stopped at {label}\n");
    let (start, mut said) = (Instant::now(), Said::default());
    while let Some(left) = within.checked_sub(start.elapsed()) {
        match rx.recv_timeout(left) {
            Ok(line) if line == wanted => return Said { stopped: true, ..said },
            Ok(line) => said.native |= line == "native\n",
            Err(_) => break,
        }
    }
    said
}

/// The victim is the server; the survivor calls by a blocking channel, whose sleep is a futex, or
/// by an async one, whose sleep is the doorbell.
#[test]
fn callers_get_an_answer_from_a_server_killed_at_each_step() {
    servers_are_killed(Stubs::Tonics, Load::Records);
}

#[test]
fn native_callers_get_an_answer_from_a_server_killed() {
    servers_are_killed(Stubs::Native, Load::Records);
}

#[test]
fn callers_get_an_answer_from_a_server_killed_with_a_parcel() {
    servers_are_killed(Stubs::Native, Load::Parcels);
}

fn servers_are_killed(stubs: Stubs, load: Load) {
    let _alone = alone();
    let mut never = Vec::new();
    // How often a step is taken before the first native call depends on who else wants the CPU.
    let another = if stubs == Stubs::Native { "15" } else { "7" };
    for (label, times) in stops(stubs, load, another) {
        let (mut reached, mut native) = (false, false);
        for after in times {
            for blocking in [true, false] {
                let said = server_is_killed_at(label, after, blocking, (stubs, load));
                reached |= said.stopped;
                native |= said.native;
            }
        }
        // The first message in a parcel may come before.
        let is_native = stubs == Stubs::Native && load == Load::Records && reached;
        assert!(native || !is_native, "{label}: no native call before");
        if !reached {
            never.push(label);
        }
    }
    // A caller fills a link's memory.
    let expected: &[_] = if stubs == Stubs::Native { &[] } else { &["setup.filled"] };
    assert_eq!(never, expected, "steps that no server came by");
}

/// What the server said until it was killed; the caller hears of its end soon.
fn server_is_killed_at(
    label: &str,
    after: &str,
    blocking: bool,
    (stubs, load): (Stubs, Load),
) -> Said {
    let host = granting();
    let environment = [("PARTYWALL_FAILPOINT", label), ("PARTYWALL_FAILPOINT_AFTER", after)];
    let arguments = with(stubs, &[]);
    let mut server = Process::start(SERVER, &host.socket, &arguments, &environment, None);
    host.until_served();
    let socket = host.socket.clone();
    let call = if blocking { call_blocking } else { call_async };
    let survivor = std::thread::spawn(move || call(socket, stubs, load));
    let said = stopped(&mut server, label, Duration::from_millis(400));
    std::thread::sleep(Duration::from_millis(5));
    let killed = server.kill();
    let (code, at) = survivor.join().unwrap();
    assert_eq!(code, Code::Unavailable, "{label}");
    let took = at.since(&killed);
    assert!(took < SOON, "{label}: the caller heard of it after {took:?}");
    said
}

/// Calls until that fails; the server may die while the link is made, too.
fn call_blocking(socket: PathBuf, stubs: Stubs, load: Load) -> (Code, Moment) {
    let channel = partywall::blocking::Channel::connect(
        partywall::Endpoint::from_static("partywall:///test").coordinator(socket),
    );
    let mut caller = match channel {
        Ok(channel) => Blocking::new(stubs, channel),
        Err(error) => return (error.code(), Moment::here()),
    };
    for n in 1.. {
        let asked = request(n, load.bytes(n));
        match caller.call(asked.clone()) {
            Ok(reply) => assert!(is_answer(&asked, &reply)),
            Err(status) => return (status.code(), Moment::here()),
        }
    }
    unreachable!("calls go on until one fails")
}

fn call_async(socket: PathBuf, stubs: Stubs, load: Load) -> (Code, Moment) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = partywall::Endpoint::from_static("partywall:///test");
        let channel = match endpoint.coordinator(&socket).connect().await {
            Ok(channel) => channel,
            Err(error) => return (error.code(), Moment::here()),
        };
        let mut caller = Caller::new(stubs, channel);
        for n in 1.. {
            let asked = request(n, load.bytes(n));
            match caller.call(asked.clone()).await {
                Ok(reply) => assert!(is_answer(&asked, reply.get_ref())),
                Err(status) => return (status.code(), Moment::here()),
            }
        }
        unreachable!("calls go on until one fails")
    })
}

/// The victim is a client; the server goes on for a witness, and holds nothing of the dead.
#[test]
fn a_client_killed_at_each_step_leaves_the_server_as_it_was() {
    clients_are_killed(Stubs::Tonics, Load::Records);
}

#[test]
fn a_native_client_killed_leaves_the_server_as_it_was() {
    clients_are_killed(Stubs::Native, Load::Records);
}

#[test]
fn a_client_killed_with_a_parcel_leaves_the_server_as_it_was() {
    clients_are_killed(Stubs::Native, Load::Parcels);
}

fn clients_are_killed(stubs: Stubs, load: Load) {
    let _alone = alone();
    let host = granting();
    let mut server = host.start(SERVER, &with(stubs, &["--until-input-ends"]));
    let mut witness = host.start(CLIENT, &with(stubs, &["--mode", "measure"]));
    witness.ready();
    witness.say("32");
    // Calls have been answered, so the witness's link is whole.
    witness.line();
    let held = Held::by(server.pid());
    let mut never = Vec::new();
    for (label, times) in stops(stubs, load, "9") {
        let mut reached = false;
        for mode in ["flood", "blocking"] {
            for after in &times {
                let environment =
                    [("PARTYWALL_FAILPOINT", label), ("PARTYWALL_FAILPOINT_AFTER", after)];
                let mut arguments = with(stubs, &["--mode", mode]);
                arguments.extend((load == Load::Parcels).then_some("--long"));
                let mut victim =
                    Process::start(CLIENT, &host.socket, &arguments, &environment, None);
                reached |= stopped(&mut victim, label, Duration::from_millis(400)).stopped;
                victim.kill();
                witness.say("32");
                witness.line();
                let took = held.wait_for(server.pid());
                assert!(took < SOON, "{label}: the server held something for {took:?}");
            }
        }
        if !reached {
            never.push(label);
        }
    }
    // A server says that a link is open; services sleep in epoll, so no client wakes one by futex.
    let expected: &[_] = match (stubs, load) {
        (_, Load::Parcels) => &[],
        (Stubs::Native, _) => &["notify.belled"],
        (Stubs::Tonics, _) => &["setup.sent", "notify.belled"],
    };
    assert_eq!(never, expected, "steps that no client came by");
    server.end_input();
    went(counted(&server.line()), stubs);
}
