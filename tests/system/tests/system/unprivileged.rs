//! A coordinator that is a process of its own, and not root's.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use partywall_abi::control::Message;
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_shm::socket;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::host::{Process, alone};

/// The user `nobody`, for tests that root runs.
const NOBODY: u32 = 65534;

pub(super) struct Host {
    socket: PathBuf,
    uid: u32,
    pub(super) coordinator: Process,
    _dir: tempfile::TempDir,
}

impl Host {
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
    let host = Host::new(&[]);
    let _server = host.process(env!("CARGO_BIN_EXE_st-server"), &[]);
    let mut client = host.process(env!("CARGO_BIN_EXE_st-client"), &["--mode", "idle"]);
    client.ready();
}

/// A control socket, spoken by hand.
struct Raw(OwnedFd);

fn connect(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

impl Raw {
    fn open(path: &Path) -> Self {
        let raw = Self(connect(path));
        let Message::Challenge { version, nonce } = raw.next() else { panic!("no challenge") };
        raw.say(&Message::Proof { version, nonce });
        assert!(matches!(raw.next(), Message::Welcome { .. }));
        raw
    }

    fn say(&self, message: &Message) {
        socket::send(self.0.as_fd(), &message.encode(), &[]).unwrap();
    }

    fn next(&self) -> Message {
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(socket::wait_readable(self.0.as_fd(), deadline).unwrap(), "no answer");
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        let packet = socket::receive(self.0.as_fd(), &mut buffer, false).unwrap();
        Message::decode(&buffer[..packet.len]).unwrap()
    }
}

/// User and system time of a process so far.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let field = |n: usize| after_name.split(' ').nth(n - 3).unwrap().parse::<u64>().unwrap();
    let ticks = field(14) + field(15);
    Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second())
}

#[test]
fn connections_beyond_the_limit_of_descriptors_are_taken_when_there_is_room() {
    let _alone = alone();
    // A process needs more than one descriptor, and any number of them may be what is left.
    for limit in 30..34_u32 {
        let host = Host::new(&["--nofile", &limit.to_string()]);
        let first = Raw::open(&host.socket);
        let began = Instant::now();
        let crowd: Vec<OwnedFd> = (0..40).map(|_| connect(&host.socket)).collect();
        let name = ServiceName::new("test").unwrap();
        first.say(&Message::Register { request: 1, name });
        assert!(matches!(first.next(), Message::Registered { .. }));
        std::thread::sleep(Duration::from_millis(100));
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        let got = crowd.iter().map(|c| socket::receive(c.as_fd(), &mut buffer, false));
        let (some, none): (Vec<_>, Vec<_>) = got.partition(Result::is_ok);
        let lost = some.iter().flatten().filter(|p| p.len == 0).count();
        assert!(began.elapsed() < Duration::from_secs(4), "too slow for the time of a proof");
        assert_eq!(lost, 0, "turned away at {limit} descriptors");
        assert!(some.len() >= 5, "{} taken at {limit} descriptors", some.len());
        assert!(!none.is_empty(), "{limit} descriptors are no limit");
        drop(crowd);
        Raw::open(&host.socket);
    }
}

#[test]
fn too_many_descriptors_under_way_are_waited_for_without_spinning() {
    let _alone = alone();
    let host = Host::new(&["--nofile", "48"]);
    let name = ServiceName::new("test").unwrap();
    let (server, callers) = (Raw::open(&host.socket), [(); 3].map(|()| Raw::open(&host.socket)));
    server.say(&Message::Register { request: 1, name: name.clone() });
    assert!(matches!(server.next(), Message::Registered { .. }));
    // The server reads and none of the callers does: 96 descriptors would be under way to them.
    for caller in &callers {
        for request in 1..=16 {
            caller.say(&Message::Connect { request, name: name.clone() });
        }
    }
    let deadline = Instant::now() + Duration::from_millis(500);
    while socket::wait_readable(server.0.as_fd(), deadline).unwrap() {
        assert!(matches!(server.next(), Message::Offer { .. }));
    }
    let unread = |raw: &Raw| {
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        std::iter::from_fn(|| socket::receive(raw.0.as_fd(), &mut buffer, false).ok()).count()
    };
    let before = cpu_time(host.coordinator.pid());
    std::thread::sleep(Duration::from_millis(500));
    let spent = cpu_time(host.coordinator.pid()) - before;
    assert!(spent < Duration::from_millis(100), "{spent:?} of CPU time in half a second");
    let got = callers.each_ref().map(unread);
    assert!(got.iter().sum::<usize>() < 48, "the limit was not reached: {got:?}");
    // Room for those that waited.
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut links = got.iter().sum::<usize>();
    while links < 48 {
        assert!(Instant::now() < deadline, "{links} links");
        links += callers.iter().map(unread).sum::<usize>();
        unread(&server);
        std::thread::sleep(Duration::from_millis(1));
    }
}
