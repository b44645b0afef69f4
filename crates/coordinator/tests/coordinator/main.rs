//! The coordinator as processes meet it, some of them hostile: packets over its socket.

mod signed;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use partywall_abi::control::{
    Blame, Digest, EndMessage, LinkMessage, LinkRow, LinkStats, ListMessage, Message,
    RegistryMessage, Role, SessionMessage,
};
use partywall_abi::name::ServiceName;
use partywall_abi::version::{Capabilities, Versions};
use partywall_coordinator::launch;
use partywall_shm::link::Ends;
use partywall_shm::setup::Adopted;
use partywall_shm::socket;
use partywall_testkit::{Conversation, Host, proof};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

const OPEN: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n";

fn serve_on(host: &Host) -> Conversation {
    let p = host.process();
    p.say(&Message::Registry(RegistryMessage::Register {
        request: 1,
        name: name(),
        places: 20_000,
    }))
    .unwrap();
    assert!(matches!(
        p.next().unwrap().0,
        Message::Registry(RegistryMessage::Registered { request: 1, .. })
    ));
    p
}

fn name() -> ServiceName {
    ServiceName::new("g").unwrap()
}

fn connect_to_g(request: u32) -> Message {
    Message::Link(LinkMessage::Connect { request, name: name() })
}

/// Told why, and closed.
fn turned_away(process: &Conversation) {
    let (code, text) = refused(process);
    assert!(code == 14 && !text.is_empty(), "{code} {text}");
    assert!(process.next_or_end().unwrap().is_none());
}

fn refused(process: &Conversation) -> (u8, String) {
    match process.next().unwrap().0 {
        Message::Session(SessionMessage::Refused { code, text, .. }) => (code, text),
        other => panic!("{other:?}"),
    }
}

/// Both ends of a link, and its number.
fn open(caller: &Conversation, server: &Conversation) -> (u64, Ends, Ends) {
    partywall_testkit::open(caller, server, &connect_to_g(7)).unwrap()
}

/// A link of `caller`, made the whole way and dropped; its number.
fn link(caller: &Conversation, server: &Conversation) -> u64 {
    open(caller, server).0
}

fn closed(link: u64, role: Role) -> Message {
    Message::End(EndMessage::Closed {
        link,
        role,
        blame: Blame::Nobody,
        stats: LinkStats::default(),
    })
}

/// The list; `server` answers the question for its counters.
fn list(operator: &Conversation, server: &Conversation) -> Vec<LinkRow> {
    operator.say(&Message::List(ListMessage::List { request: 9 })).unwrap();
    let Message::List(ListMessage::Query { request }) = server.next().unwrap().0 else {
        panic!("no query")
    };
    server.say(&Message::List(ListMessage::CountedAll { request })).unwrap();
    rows(operator)
}

fn rows(operator: &Conversation) -> Vec<LinkRow> {
    let mut rows = Vec::new();
    loop {
        match operator.next().unwrap().0 {
            Message::List(ListMessage::Row { row, .. }) => rows.push(*row),
            Message::List(ListMessage::Listed { request: 9 }) => return rows,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_policy_decides_who_serves_and_who_calls() {
    let uid = rustix::process::geteuid().as_raw();
    let host = Host::with(&format!(
        "[principal.other]\nuid = {}\n[service.g]\nregister = ['other']\n\
         [service.g.call]\nother = ['*']\n",
        uid + 1
    ));
    let p = host.process();
    assert_eq!(p.you().uid, uid);
    p.say(&Message::Registry(RegistryMessage::Register {
        request: 1,
        name: name(),
        places: 20_000,
    }))
    .unwrap();
    let (code, text) = refused(&p);
    assert_eq!(code, 7);
    assert!(text.contains("[service.g] register") && text.contains("no principal"), "{text}");
    p.say(&connect_to_g(2)).unwrap();
    assert_eq!(refused(&p).0, 7);
    p.say(&Message::Registry(RegistryMessage::Watch { request: 3, name: name() })).unwrap();
    assert_eq!(refused(&p).0, 7);
    assert!(host.coordinator.serving(&name()).recv_timeout(Duration::from_millis(20)).is_err());
}

#[test]
fn instances_take_turns_and_a_dead_one_gives_its_place_back() {
    let host = Host::with(OPEN);
    let caller = host.process();
    let (a, b) = (serve_on(&host), serve_on(&host));
    for server in [&a, &b, &a, &b] {
        link(&caller, server);
    }
    let told = |links: u32| {
        for _ in 0..links {
            let told = caller.next().unwrap().0;
            assert!(
                matches!(told, Message::End(EndMessage::Died { role: Role::Caller, .. })),
                "{told:?}"
            );
        }
    };
    drop(a);
    // Its end may be seen after the next question, but not after an answer to another process.
    host.process();
    told(2);
    for _ in 0..3 {
        link(&caller, &b);
    }
    drop(b);
    host.process();
    told(5);
    caller.say(&connect_to_g(8)).unwrap();
    let (code, text) = refused(&caller);
    assert_eq!(code, 5);
    assert!(text.contains("nobody serves `g`"), "{text}");
    link(&caller, &serve_on(&host));
}

/// What comes of it where the kernel lets it pass, as it does for root, is in the tests that need root.
#[test]
fn forged_credentials_need_privilege() {
    let host = Host::with(OPEN);
    let tries = || {
        // Root has rights that its thread can do without.
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).unwrap();
        let mut p = Conversation::connect(&host.socket).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let forged = UCred {
            pid: rustix::process::Pid::INIT,
            uid: rustix::process::geteuid(),
            gid: rustix::process::getegid(),
        };
        assert!(ancillary.push(SendAncillaryMessage::ScmCredentials(forged)));
        let data = [std::io::IoSlice::new(b"x")];
        let sent = rustix::net::sendmsg(&p, &data, &mut ancillary, SendFlags::empty());
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
        p.prove().unwrap();
        assert_eq!(p.you().pid, Some(std::process::id()));
    };
    std::thread::scope(|scope| scope.spawn(tries).join().unwrap());
}

#[test]
fn wrong_nonce_or_message_before_the_proof_ends_the_connection() {
    let host = Host::with(OPEN);
    for wrong in [
        proof([0; 16]),
        Message::Registry(RegistryMessage::Register { request: 1, name: name(), places: 20_000 }),
    ] {
        let p = Conversation::connect(&host.socket).unwrap();
        p.challenge().unwrap();
        p.say(&wrong).unwrap();
        turned_away(&p);
    }
    host.process();
}

/// A proof with these versions; what the coordinator says to it.
fn answered(versions: (u16, u16), version: u16, capabilities: Capabilities) -> Message {
    let host = Host::with(OPEN);
    let p = Conversation::connect(&host.socket).unwrap();
    let nonce = p.challenge().unwrap();
    let versions = Versions::new(versions.0, versions.1).unwrap();
    p.say(&SessionMessage::Proof { versions, version, capabilities, nonce }.into()).unwrap();
    let mut answer = p.next().unwrap().0;
    if let Message::Session(SessionMessage::Harden) = answer {
        answer = p.next().unwrap().0;
    }
    host.process();
    answer
}

#[test]
fn process_with_more_versions_and_no_capabilities_is_admitted() {
    let own = partywall_abi::VERSION;
    for versions in [(own, own), (1, own), (own, own + 7), (1, u16::MAX)] {
        for capabilities in [Capabilities::NONE, Capabilities::from_bits(u64::MAX)] {
            let answer = answered(versions, own, capabilities);
            let welcome = matches!(answer, Message::Session(SessionMessage::Welcome { .. }));
            assert!(welcome, "{versions:?}: {answer:?}");
        }
    }
}

#[test]
fn version_without_agreement_is_refused_with_reason() {
    let own = partywall_abi::VERSION;
    let told = |versions, version| match answered(versions, version, Capabilities::OWN) {
        Message::Session(SessionMessage::Refused { text, .. }) => text,
        other => panic!("{other:?}"),
    };
    for (versions, older) in [((1, own - 1), "program"), ((own + 1, own + 2), "coordinator")] {
        let text = told(versions, 0);
        let range = Versions::new(versions.0, versions.1).unwrap();
        let ranges = format!("coordinator speaks {} of", Versions::OWN);
        let remedy = format!("and this program {range}; remedy: update the {older}");
        assert!(text.contains(&ranges) && text.ends_with(&remedy), "{text}");
    }
    for (versions, chosen) in [((own, own + 2), own + 1), ((1, own), own - 1), ((own, own), 0)] {
        let text = told(versions, chosen);
        assert!(text.contains(&format!("chose version {chosen} of")), "{text}");
        assert!(text.ends_with(&format!("so that version {own} was to be chosen")), "{text}");
    }
}

#[test]
fn a_proof_with_a_range_that_is_none_ends_the_connection() {
    let host = Host::with(OPEN);
    let p = Conversation::connect(&host.socket).unwrap();
    let mut packet = proof(p.challenge().unwrap()).encode();
    packet[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
    partywall_shm::socket::send(p.as_fd(), &packet, &[]).unwrap();
    let (_, text) = refused(&p);
    assert!(text.ends_with("no message: lowest version: 65535 has no meaning here"), "{text}");
    assert!(p.next_or_end().unwrap().is_none());
    host.process();
}

#[test]
fn process_that_does_not_read_gets_few_links_and_the_rest_later() {
    const LINKS: usize = 300;
    let host = Host::with(OPEN);
    let (caller, server) = (host.process(), serve_on(&host));
    for request in 0..LINKS as u32 {
        caller.say(&connect_to_g(request)).unwrap();
    }
    let mut adopted: Vec<_> = (0..16).map(|_| server.adopt().unwrap()).collect();
    std::thread::sleep(Duration::from_millis(100));
    assert!(server.now().is_err(), "more than sixteen under way");
    // The others are not held up by that.
    let start = Instant::now();
    host.process();
    assert!(start.elapsed() < Duration::from_secs(1));
    let (mut opened, mut ends) = (0, Vec::new());
    while opened < LINKS {
        ends.push(caller.fill().unwrap().1);
        let (link, callers) = server.opened().unwrap();
        ends_of(&mut adopted, link).open(callers).unwrap();
        opened += 1;
        if opened + adopted.len() < LINKS {
            adopted.push(server.adopt().unwrap());
        }
    }
}

fn ends_of(adopted: &mut Vec<Adopted>, link: u64) -> Adopted {
    let at = adopted.iter().position(|a| a.link() == link).unwrap();
    adopted.remove(at)
}

#[test]
fn link_that_nobody_takes_is_refused_and_leaves_no_open_row() {
    let host = Host::with(OPEN);
    let (caller, server, operator) = (host.process(), serve_on(&host), host.process());
    for request in 0..17 {
        caller.say(&connect_to_g(request)).unwrap();
    }
    let adopted: Vec<_> = (0..16).map(|_| server.adopt().unwrap()).collect();
    // The sixteen are never filled.
    let start = Instant::now();
    for _ in 0..16 {
        assert!(matches!(caller.next().unwrap().0, Message::Link(LinkMessage::Linked { .. })));
    }
    let mut over = 0;
    while over < 16 {
        match caller.next().unwrap().0 {
            Message::End(EndMessage::Ended { .. }) => over += 1,
            Message::Session(SessionMessage::Refused { code: 14, text, .. }) => {
                assert!(text.contains("does not read"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(start.elapsed() > Duration::from_secs(3), "{:?}", start.elapsed());
    operator.say(&Message::List(ListMessage::List { request: 9 })).unwrap();
    assert_eq!(rows(&operator).len(), 0);
    drop((server, adopted));
}

#[test]
fn link_reported_filled_but_empty_never_opens() {
    let host = Host::with(OPEN);
    let (caller, server, operator) = (host.process(), serve_on(&host), host.process());
    caller.say(&connect_to_g(2)).unwrap();
    let adopted = server.adopt().unwrap();
    let Message::Link(LinkMessage::Linked { terms, .. }) = caller.next().unwrap().0 else {
        panic!()
    };
    caller
        .say(&Message::Link(LinkMessage::Adopted { link: terms.link, security: terms.security }))
        .unwrap();
    for end in [&caller, &server] {
        let told = end.next().unwrap().0;
        assert!(
            matches!(told, Message::End(EndMessage::Ended { link, .. }) if link == terms.link),
            "{told:?}"
        );
    }
    operator.say(&Message::List(ListMessage::List { request: 9 })).unwrap();
    assert_eq!(rows(&operator).len(), 0);
    drop(adopted);
}

/// A descriptor of an outbox that is not sealed can be opened for writing, by its owner's user, through
/// /proc/self/fd: nobody but its writer ever has one.
#[test]
fn an_outbox_that_is_not_sealed_is_handed_to_nobody() {
    let host = Host::with(OPEN);
    let (caller, server) = (host.process(), serve_on(&host));
    caller.say(&connect_to_g(2)).unwrap();
    let (terms, _own, _end) = server.offered().unwrap();
    server
        .say(&Message::Link(LinkMessage::Adopted { link: terms.link, security: terms.security }))
        .unwrap();
    assert_eq!(refused(&caller).0, 14);
    let Message::End(EndMessage::Ended { text, .. }) = server.next().unwrap().0 else { panic!() };
    assert!(text.contains("an outbox is ready, and it is not"), "{text}");
    // Sealed, it can still be opened, and not be written.
    let (caller, server) = (host.process(), serve_on(&host));
    caller.say(&connect_to_g(2)).unwrap();
    let _adopted = server.adopt().unwrap();
    let (_terms, _own, servers, _end) = caller.linked().unwrap();
    let path = format!("/proc/self/fd/{}", servers.as_raw_fd());
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path);
    match again {
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::PermissionDenied),
        // That it cannot be mapped for writing either is in the tests of `memory`.
        Ok(again) => assert!(rustix::io::write(&again, b"x").is_err()),
    }
}

#[test]
fn server_closes_a_listed_link_and_its_caller_cannot() {
    let host = Host::with(OPEN);
    let (caller, server, operator) = (host.process(), serve_on(&host), host.process());
    let (link, callers, servers) = open(&caller, &server);
    caller.say(&closed(link, Role::Caller)).unwrap();
    caller.say(&closed(link, Role::Server)).unwrap();
    drop(caller);
    host.process();
    assert!(list(&operator, &server)[0].open);
    server.say(&closed(link, Role::Server)).unwrap();
    operator.say(&Message::List(ListMessage::List { request: 9 })).unwrap();
    assert!(
        matches!(operator.next().unwrap().0, Message::List(ListMessage::Row { row, .. }) if !row.open)
    );
    drop((callers, servers));
}

/// The ends say nothing; the kernel does.
#[test]
fn link_closes_when_its_server_drops_the_memory() {
    let host = Host::with(OPEN);
    let (caller, server, operator) = (host.process(), serve_on(&host), host.process());
    let (link, callers, servers) = open(&caller, &server);
    caller.say(&closed(link, Role::Caller)).unwrap();
    host.process();
    assert!(list(&operator, &server)[0].open, "its server holds it");
    drop((callers, servers));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        operator.say(&Message::List(ListMessage::List { request: 9 })).unwrap();
        match operator.next().unwrap().0 {
            Message::List(ListMessage::Row { row, .. }) if !row.open => return,
            Message::List(ListMessage::Row { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(matches!(operator.next().unwrap().0, Message::List(ListMessage::Listed { .. })));
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_list_of_a_thousand_links_arrives_whole_at_a_slow_reader() {
    const CALLERS: usize = 4;
    const LINKS: usize = 250;
    // Both ends of each link are held here.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .unwrap();
    let host = Host::with(OPEN);
    let (server, operator) = (serve_on(&host), host.process());
    let callers: Vec<_> = (0..CALLERS).map(|_| host.process()).collect();
    let _held: Vec<_> = callers
        .iter()
        .flat_map(|caller| std::iter::repeat_n(caller, LINKS))
        .map(|caller| open(caller, &server))
        .collect();
    operator.say(&Message::List(ListMessage::List { request: 9 })).unwrap();
    let Message::List(ListMessage::Query { request }) = server.next().unwrap().0 else {
        panic!("no query")
    };
    server.say(&Message::List(ListMessage::CountedAll { request })).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let numbers: Vec<u64> = rows(&operator).iter().map(|row| row.link).collect();
    assert_eq!(numbers, (1..=(CALLERS * LINKS) as u64).collect::<Vec<_>>());
}

#[test]
fn unexpected_descriptors_are_refused_or_end_the_connection() {
    let host = Host::with(OPEN);
    let (_ours, theirs) = socket::pair().unwrap();
    let kernel_can = socket::refuse_descriptors(theirs.as_fd());
    let hostile = Conversation::connect(&host.socket).unwrap();
    let nonce = hostile.challenge().unwrap();
    let proof = proof(nonce).encode();
    match socket::send(hostile.as_fd(), &proof, &[theirs.as_fd()]) {
        Err(e) => assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error())),
        Ok(()) => {
            assert!(!kernel_can, "the coordinator's sockets let descriptors in");
            assert!(hostile.next_or_end().unwrap().is_none());
        }
    }
    host.process();
}

#[test]
fn process_is_known_by_its_digest_when_the_policy_asks() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let digest = partywall_coordinator::identity::digest(&program);
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let host = Host::with(&format!(
        "[principal.me]\nprogram = 'sha256:{hex}'\nevidence = 'observed'\n\
         [principal.strong]\nprogram = 'sha256:{hex}'\n[service.g]\nregister = ['me']\n"
    ));
    assert_eq!(serve_on(&host).you().principals, ["me"]);
}

#[test]
fn started_service_has_longer_to_prove_itself() {
    let host = Host::with(OPEN);
    let service = launch::Service {
        name: "slow".into(),
        program: std::env::current_exe().unwrap(),
        args: Vec::new(),
        environment: Vec::new(),
        directory: "/".into(),
        signatures: None,
    };
    // The program that is known runs already: this one.
    let prepared = launch::prepare(&service).unwrap();
    let pid = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let pid = pid.as_raw_nonzero().get() as u32;
    prepared.known.started(&host.coordinator, pid, pidfd, None);
    let mut started = Conversation::from(prepared.socket);
    let stranger = Conversation::connect(&host.socket).unwrap();
    let _nonce = stranger.challenge().unwrap();
    std::thread::sleep(Duration::from_secs(6));
    turned_away(&stranger);
    started.prove().unwrap();
    assert!(matches!(started.you().digest, Digest::Started(_)), "{:?}", started.you());
}
