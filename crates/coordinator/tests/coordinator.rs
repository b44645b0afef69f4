//! The coordinator as processes meet it, some of them hostile: packets over its socket.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use partywall_abi::control::{Identity, LinkRow, LinkStats, Message};
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_coordinator::{Coordinator, Policy};
use partywall_shm::socket;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, UCred,
};

const OPEN: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n";

struct Host {
    socket: PathBuf,
    coordinator: Coordinator,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new(policy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let policy = Policy::parse("test", policy).unwrap();
        let coordinator = Coordinator::start(Some(&socket), policy).unwrap();
        Self { socket, coordinator, _dir: dir }
    }

    fn process(&self) -> Process {
        let mut p = Process::connect(&self.socket);
        let nonce = p.challenge();
        p.say(&Message::Proof { version: partywall_abi::VERSION, nonce });
        let Message::Welcome { you } = p.next().0 else { panic!("not welcomed") };
        p.you = Some(you);
        p
    }

    fn server(&self) -> Process {
        let p = self.process();
        p.say(&Message::Register { request: 1, name: name() });
        assert!(matches!(p.next().0, Message::Registered { request: 1, .. }));
        p
    }
}

/// One control socket, spoken by hand.
struct Process {
    socket: OwnedFd,
    you: Option<Identity>,
}

fn name() -> ServiceName {
    ServiceName::new("g").unwrap()
}

impl Process {
    fn connect(path: &Path) -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { socket, you: None }
    }

    fn challenge(&self) -> [u8; 16] {
        match self.next().0 {
            Message::Challenge { nonce, .. } => nonce,
            other => panic!("{other:?}"),
        }
    }

    fn say(&self, message: &Message) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(e) = socket::send(self.socket.as_fd(), &message.encode(), &[]) {
            assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
            assert!(Instant::now() < deadline, "the coordinator does not read");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn connect_to_g(&self, request: u32) {
        self.say(&Message::Connect { request, name: name() });
    }

    /// What is there now; none after a hang-up.
    fn now(&self) -> std::io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        let packet = socket::receive(self.socket.as_fd(), &mut buffer, false)?;
        if packet.len == 0 {
            return Ok(None);
        }
        Ok(Some((Message::decode(&buffer[..packet.len]).unwrap(), packet.fds)))
    }

    fn next(&self) -> (Message, Vec<OwnedFd>) {
        self.next_or_end().expect("the coordinator has closed the connection")
    }

    fn next_or_end(&self) -> Option<(Message, Vec<OwnedFd>)> {
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(socket::wait_readable(self.socket.as_fd(), deadline).unwrap(), "no answer");
        match self.now() {
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
            other => other.unwrap(),
        }
    }

    fn refused(&self) -> (u8, String) {
        match self.next().0 {
            Message::Refused { code, text, .. } => (code, text),
            other => panic!("{other:?}"),
        }
    }
}

/// A link of `caller`, and its number as `server` is told it.
fn link(caller: &Process, server: &Process) -> u64 {
    caller.connect_to_g(7);
    let Message::Offer { link, .. } = server.next().0 else { panic!("no offer") };
    let Message::Linked { link: told, .. } = caller.next().0 else { panic!("no link") };
    assert_eq!(link, told);
    link
}

/// The list; `server` answers the question for its counters.
fn list(operator: &Process, server: &Process) -> Vec<LinkRow> {
    operator.say(&Message::List { request: 9 });
    let Message::Query { request } = server.next().0 else { panic!("no query") };
    server.say(&Message::CountedAll { request });
    rows(operator)
}

fn rows(operator: &Process) -> Vec<LinkRow> {
    let mut rows = Vec::new();
    loop {
        match operator.next().0 {
            Message::Row { row, .. } => rows.push(row),
            Message::Listed { request: 9 } => return rows,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_policy_decides_who_serves_and_who_calls() {
    let uid = rustix::process::geteuid().as_raw();
    let host = Host::new(&format!(
        "[principal.other]\nuid = {}\n[service.g]\nregister = ['other']\n\
         [service.g.call]\nother = ['*']\n",
        uid + 1
    ));
    let p = host.process();
    assert_eq!(p.you.as_ref().unwrap().uid, uid);
    p.say(&Message::Register { request: 1, name: name() });
    let (code, text) = p.refused();
    assert_eq!(code, 7);
    assert!(text.contains("[service.g] register") && text.contains("no principal"), "{text}");
    p.connect_to_g(2);
    assert_eq!(p.refused().0, 7);
    p.say(&Message::Watch { request: 3, name: name() });
    assert_eq!(p.refused().0, 7);
    assert!(host.coordinator.serving(&name()).recv_timeout(Duration::from_millis(20)).is_err());
}

#[test]
fn instances_of_a_name_take_turns_and_a_dead_ones_place_is_free_at_once() {
    let host = Host::new(OPEN);
    let caller = host.process();
    let (a, b) = (host.server(), host.server());
    for server in [&a, &b, &a, &b] {
        link(&caller, server);
    }
    drop(a);
    // Its end may be seen after the next question, but not after an answer to another process.
    host.process();
    for _ in 0..3 {
        link(&caller, &b);
    }
    drop(b);
    host.process();
    caller.connect_to_g(8);
    let (code, text) = caller.refused();
    assert_eq!(code, 14);
    assert!(text.contains("nobody serves `g`"), "{text}");
    link(&caller, &host.server());
}

#[test]
fn who_says_to_be_another_process_is_not_believed() {
    let host = Host::new(OPEN);
    let p = Process::connect(&host.socket);
    let nonce = p.challenge();
    let proof = Message::Proof { version: partywall_abi::VERSION, nonce }.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let forged = UCred {
        pid: rustix::process::Pid::INIT,
        uid: rustix::process::geteuid(),
        gid: rustix::process::getegid(),
    };
    assert!(ancillary.push(SendAncillaryMessage::ScmCredentials(forged)));
    let data = [std::io::IoSlice::new(&proof)];
    match rustix::net::sendmsg(&p.socket, &data, &mut ancillary, SendFlags::empty()) {
        // Only root may try.
        Err(errno) => assert_eq!(errno, rustix::io::Errno::PERM),
        Ok(_) => assert!(p.next_or_end().is_none()),
    }
}

#[test]
fn a_wrong_nonce_and_a_message_before_the_proof_end_the_connection() {
    let host = Host::new(OPEN);
    let version = partywall_abi::VERSION;
    for wrong in
        [Message::Proof { version, nonce: [0; 16] }, Message::Register { request: 1, name: name() }]
    {
        let p = Process::connect(&host.socket);
        p.challenge();
        p.say(&wrong);
        assert!(p.next_or_end().is_none(), "{wrong:?}");
    }
    host.process();
}

#[test]
fn a_process_that_does_not_read_its_links_gets_a_few_and_the_rest_later() {
    const LINKS: usize = 300;
    let host = Host::new(OPEN);
    let (caller, server) = (host.process(), host.server());
    for request in 0..LINKS as u32 {
        caller.connect_to_g(request);
    }
    std::thread::sleep(Duration::from_millis(100));
    let mut early = 0;
    while let Ok(Some((_, fds))) = caller.now() {
        assert_eq!(fds.len(), 2);
        early += 1;
    }
    assert_eq!(early, 16, "descriptors under way");
    // The others are not held up by that.
    let start = Instant::now();
    host.process();
    assert!(start.elapsed() < Duration::from_secs(1));
    let (mut offers, mut linked) = (0, early);
    let deadline = Instant::now() + Duration::from_secs(10);
    while offers < LINKS || linked < LINKS {
        assert!(Instant::now() < deadline, "{offers} offers, {linked} links");
        while let Ok(Some((message, fds))) = server.now() {
            assert!(matches!(message, Message::Offer { .. }) && fds.len() == 2, "{message:?}");
            offers += 1;
        }
        while let Ok(Some((message, fds))) = caller.now() {
            assert!(matches!(message, Message::Linked { .. }) && fds.len() == 2, "{message:?}");
            linked += 1;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_link_that_nobody_takes_is_refused_in_the_end_and_leaves_no_open_row() {
    let host = Host::new(OPEN);
    let (caller, server, operator) = (host.process(), host.server(), host.process());
    for request in 0..17 {
        caller.connect_to_g(request);
    }
    for request in 0..16 {
        assert!(matches!(caller.next().0, Message::Linked { request: r, .. } if r == request));
    }
    let start = Instant::now();
    let (code, text) = caller.refused();
    assert_eq!(code, 14);
    assert!(text.contains("does not read"), "{text}");
    assert!(start.elapsed() > Duration::from_secs(3), "{:?}", start.elapsed());
    operator.say(&Message::List { request: 9 });
    assert_eq!(rows(&operator).iter().filter(|row| row.open).count(), 16);
    drop(server);
}

#[test]
fn a_caller_cannot_close_a_link_in_the_books_and_its_server_can() {
    let host = Host::new(OPEN);
    let (caller, server, operator) = (host.process(), host.server(), host.process());
    let link = link(&caller, &server);
    let stats = LinkStats::default();
    caller.say(&Message::Closed { link, stats });
    drop(caller);
    host.process();
    assert!(list(&operator, &server)[0].open);
    server.say(&Message::Closed { link, stats });
    operator.say(&Message::List { request: 9 });
    assert!(matches!(operator.next().0, Message::Row { row, .. } if !row.open));
}

#[test]
fn a_list_of_thousands_of_links_arrives_whole_at_a_slow_reader() {
    const CALLERS: usize = 4;
    const LINKS: usize = 600;
    let host = Host::new(OPEN);
    let (server, operator) = (host.server(), host.process());
    for _ in 0..CALLERS {
        let caller = host.process();
        for _ in 0..LINKS {
            link(&caller, &server);
        }
    }
    operator.say(&Message::List { request: 9 });
    let Message::Query { request } = server.next().0 else { panic!("no query") };
    server.say(&Message::CountedAll { request });
    std::thread::sleep(Duration::from_millis(300));
    let numbers: Vec<u64> = rows(&operator).iter().map(|row| row.link).collect();
    assert_eq!(numbers, (1..=(CALLERS * LINKS) as u64).collect::<Vec<_>>());
}

#[test]
fn descriptors_that_nobody_asked_for_are_refused_or_end_the_connection() {
    let host = Host::new(OPEN);
    let (_ours, theirs) = socket::pair().unwrap();
    let kernel_can = socket::refuse_descriptors(theirs.as_fd());
    let hostile = Process::connect(&host.socket);
    let nonce = hostile.challenge();
    let proof = Message::Proof { version: partywall_abi::VERSION, nonce }.encode();
    match socket::send(hostile.socket.as_fd(), &proof, &[theirs.as_fd()]) {
        Err(e) => assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error())),
        Ok(()) => {
            assert!(!kernel_can, "the coordinator's sockets let descriptors in");
            assert!(hostile.next_or_end().is_none());
        }
    }
    host.process();
}

#[test]
fn a_process_is_known_by_what_its_program_holds_when_the_policy_asks() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let digest = partywall_coordinator::identity::digest(&program);
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let host = Host::new(&format!(
        "[principal.me]\nprogram = 'sha256:{hex}'\nevidence = 'observed'\n\
         [principal.strong]\nprogram = 'sha256:{hex}'\n[service.g]\nregister = ['me']\n"
    ));
    assert_eq!(host.server().you.unwrap().principals, ["me"]);
}
