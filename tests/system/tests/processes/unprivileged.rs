//! A coordinator that is a process of its own, and not root's.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use partywall_abi::control::{LinkMessage, Message, RegistryMessage, SessionMessage};
use partywall_abi::name::ServiceName;
use partywall_testkit::{Conversation, Process, alone, cpu_time};

use crate::{CLIENT, SERVER};

/// The user `nobody`, for tests that root runs.
const NOBODY: u32 = 65534;

/// A coordinator in a process of its own, of another user if this one is root.
pub(super) struct Apart {
    socket: PathBuf,
    uid: u32,
    pub(super) coordinator: Process,
    _dir: tempfile::TempDir,
}

impl Apart {
    pub(super) fn new(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let socket = dir.path().join("c.sock");
        let own = rustix::process::geteuid();
        let uid = own.is_root().then_some(NOBODY);
        let program = env!("CARGO_BIN_EXE_st-coordinator");
        let mut coordinator = Process::start(program, &socket, arguments, &[], uid);
        coordinator.ready();
        Self { socket, uid: uid.unwrap_or(own.as_raw()), coordinator, _dir: dir }
    }

    pub(super) fn process(&self, program: &str, arguments: &[&str]) -> Process {
        let uid = self.uid.to_string();
        let environment = [("PARTYWALL_COORDINATOR_UID", uid.as_str())];
        Process::start(program, &self.socket, arguments, &environment, None)
    }
}

#[test]
fn a_coordinator_needs_no_root() {
    let _alone = alone();
    let host = Apart::new(&[]);
    let _server = host.process(SERVER, &[]);
    let mut client = host.process(CLIENT, &["--mode", "idle"]);
    client.ready();
}

#[test]
fn connections_beyond_the_descriptor_limit_wait_for_room() {
    let _alone = alone();
    // A process needs more than one descriptor, and any number of them may be what is left.
    for limit in 30..34_u32 {
        let host = Apart::new(&["--nofile", &limit.to_string()]);
        let first = Conversation::open(&host.socket).unwrap();
        let began = Instant::now();
        let crowd: Vec<_> = (0..16).map(|_| Conversation::connect(&host.socket).unwrap()).collect();
        let name = ServiceName::new("test").unwrap();
        first
            .say(&Message::Registry(RegistryMessage::Register { request: 1, name, places: 9 }))
            .unwrap();
        assert!(matches!(
            first.next().unwrap().0,
            Message::Registry(RegistryMessage::Registered { .. })
        ));
        std::thread::sleep(Duration::from_millis(100));
        let got = crowd.iter().map(Conversation::now);
        let (some, none): (Vec<_>, Vec<_>) = got.partition(Result::is_ok);
        let lost = some.iter().flatten().filter(|said| said.is_none()).count();
        assert!(began.elapsed() < Duration::from_secs(4), "too slow for the time of a proof");
        assert_eq!(lost, 0, "turned away at {limit} descriptors");
        assert!(some.len() >= 5, "{} taken at {limit} descriptors", some.len());
        assert!(!none.is_empty(), "{limit} descriptors are no limit");
        drop(crowd);
        Conversation::open(&host.socket).unwrap();
    }
}

#[test]
fn untaken_links_are_awaited_without_spinning_then_refused() {
    let _alone = alone();
    let host = Apart::new(&["--nofile", "256"]);
    let name = ServiceName::new("test").unwrap();
    let (server, callers) = (
        Conversation::open(&host.socket).unwrap(),
        [(); 3].map(|()| Conversation::open(&host.socket).unwrap()),
    );
    server
        .say(&Message::Registry(RegistryMessage::Register {
            request: 1,
            name: name.clone(),
            places: 99,
        }))
        .unwrap();
    assert!(matches!(
        server.next().unwrap().0,
        Message::Registry(RegistryMessage::Registered { .. })
    ));
    for caller in &callers {
        for request in 1..=16 {
            caller
                .say(&Message::Link(LinkMessage::Connect { request, name: name.clone() }))
                .unwrap();
        }
    }
    let before = cpu_time(host.coordinator.pid());
    std::thread::sleep(Duration::from_millis(500));
    let spent = cpu_time(host.coordinator.pid()) - before;
    assert!(spent < Duration::from_millis(100), "{spent:?} of CPU time in half a second");
    // Nobody is left without an answer.
    for caller in &callers {
        for _ in 0..16 {
            let Message::Session(SessionMessage::Refused { code, text, .. }) =
                caller.next().unwrap().0
            else {
                panic!("no refusal")
            };
            assert_eq!(code, 14, "{text}");
        }
    }
    Conversation::open(&host.socket).unwrap();
}
