//! The conversation with a coordinator, and with what is none.

use super::conversation::Parts;
use super::links::Known;
use super::place::{Opened, Said, check_owner};
use super::*;
use partywall_abi::control::{EndMessage, Grant, ListMessage, MethodStats, SessionMessage};
use partywall_abi::security::Security;
use partywall_abi::version::{Capabilities, Versions};
use partywall_coordinator::{Coordinator, Policy};
use partywall_shm::socket;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};

mod memory;

/// What a coordinator that speaks these versions begins with.
fn challenge(versions: Versions, nonce: [u8; 16]) -> Message {
    let capabilities = Capabilities::NONE;
    SessionMessage::Challenge { versions, capabilities, nonce }.into()
}

const LONG: Duration = Duration::from_secs(10);

const POLICY: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n\
                      [service.far.call]\nanyone = ['*']\n[names]\nfar = 'http://h:1'\n";

fn name(text: &str) -> ServiceName {
    ServiceName::new(text).unwrap()
}

/// A coordinator and a conversation with it.
fn host() -> (tempfile::TempDir, Coordinator, Arc<Client>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let policy = Policy::parse("test", POLICY).unwrap();
    let coordinator = Coordinator::start(Some(&path), policy).unwrap();
    (dir, coordinator, get(&Place::Path(path), LONG).unwrap())
}

fn list(client: &Arc<Client>) -> Vec<LinkRow> {
    let (tx, mut rx) = oneshot::channel();
    let waiting = Waiting::Rows(Vec::new(), tx);
    client
        .ask(&mut lock(&client.state), waiting, |request| {
            Message::List(ListMessage::List { request })
        })
        .unwrap();
    operator::wait_here(&mut rx, LONG).unwrap()
}

/// Waits until none of the links that the coordinator knows is open.
fn wait_until_closed(client: &Arc<Client>, links: usize) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let rows = list(client);
        if rows.len() == links && rows.iter().all(|row| !row.open) {
            return;
        }
        assert!(Instant::now() < deadline, "{rows:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a server does with the next offer: adopts it, and opens it when its caller is ready.
async fn serve_one(registered: &mut Registered) -> (partywall_shm::link::Ends, Tracked) {
    let Some(Event::Offer(offer)) = registered.events.recv().await else { panic!("no offer") };
    let Offer { terms, memory, socket, tracked } = *offer;
    let adopted =
        partywall_shm::setup::Adopted::new(terms.link, terms.geometry, memory, socket).unwrap();
    tracked.adopted(Security::HIGHEST);
    let Some(Event::Open(_, callers)) = registered.events.recv().await else { panic!("no caller") };
    (adopted.open(callers).unwrap(), tracked)
}

/// Both ends of a link by the coordinator.
async fn link(
    client: &Arc<Client>,
    registered: &mut Registered,
) -> ((partywall_shm::link::Ends, Tracked), (partywall_shm::link::Ends, Tracked)) {
    tokio::join!(call_one(client.connect(&name("g")).unwrap()), serve_one(registered))
}

/// What a caller does with the answer to a connect.
async fn call_one(connecting: Connecting) -> (partywall_shm::link::Ends, Tracked) {
    let Ok(Connected::Link(linked)) = connecting.wait(LONG).await else { panic!("no link") };
    let (mut pending, tracked) = crate::link::caller::fill(*linked).unwrap();
    tracked.adopted(Security::HIGHEST);
    while !pending.poll().unwrap() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (pending.into_ends().unwrap(), tracked)
}

#[test]
fn redirect_without_a_waiter_is_closed() {
    let (_dir, _coordinator, client) = host();
    drop(client.connect(&name("far")).unwrap());
    let Ok(Connected::Redirect { tracked, .. }) =
        client.connect(&name("far")).unwrap().blocking(LONG)
    else {
        panic!("no redirect")
    };
    assert_eq!(list(&client).iter().filter(|row| row.open).count(), 1);
    drop(tracked);
    wait_until_closed(&client, 2);
}

#[tokio::test]
async fn offer_that_is_not_taken_is_reported_closed() {
    let (_dir, _coordinator, client) = host();
    let mut registered = client.register(&name("g"), 10).await.unwrap();
    let ends = link(&client, &mut registered).await;
    drop(ends);
    let connecting = client.connect(&name("g")).unwrap();
    let offer = registered.events.recv().await.unwrap();
    drop(offer);
    let refused = connecting.wait(LONG).await;
    assert!(matches!(refused, Err(Error::NotTaken { .. })));
    let connecting = client.connect(&name("g")).unwrap();
    // This one lies in the queue.
    drop(registered);
    assert!(connecting.wait(LONG).await.is_err());
    tokio::task::spawn_blocking(move || wait_until_closed(&client, 1)).await.unwrap();
}

#[tokio::test]
async fn a_registration_ends_with_its_value_and_with_who_waits_for_it() {
    let (_dir, coordinator, client) = host();
    let registered = client.register(&name("g"), 10).await.unwrap();
    drop(registered);
    let g = name("g");
    let mut registering = Box::pin(client.register(&g, 10));
    let waker = &mut std::task::Context::from_waker(std::task::Waker::noop());
    // Asked for; an answer that is there already ends with the value as well.
    drop(registering.as_mut().poll(waker));
    drop(registering);
    // Answers come in the order of the questions; the registrations were the first ones.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !matches!(
        client.connect(&name("g")).unwrap().wait(LONG).await,
        Err(Error::NotServed { .. })
    ) {
        assert!(Instant::now() < deadline);
    }
    assert!(coordinator.serving(&name("g")).recv_timeout(Duration::from_millis(20)).is_err());
}

/// A client on a socket of its own, and the other end.
fn alone() -> (Arc<Client>, std::os::fd::OwnedFd) {
    alone_at(Capabilities::NONE)
}

/// The same, where the other end can do this.
fn alone_at(capabilities: Capabilities) -> (Arc<Client>, std::os::fd::OwnedFd) {
    let (ours, theirs) = socket::pair().unwrap();
    let client = Arc::new(Client::new(Place::Handed(3)));
    let said = Said { capabilities, operators: None };
    client.begin(Opened { socket: socket::Lingering::new(ours), said }).unwrap();
    (client, theirs)
}

/// What is known of a link without a promise.
fn known(token: partywall_abi::control::Token) -> Known {
    Known { token, security: Security::HIGHEST, promised: false }
}

/// A link's end, with a coordinator that the test plays.
pub(crate) fn tracked(link: u64) -> (Tracked, std::os::fd::OwnedFd) {
    let (client, theirs) = alone();
    let token = partywall_abi::control::Token([1; 16]);
    let role = partywall_abi::control::Role::Caller;
    (Tracked::new(&client, link, known(token), role, name("g")), theirs)
}

pub(crate) fn wait_for_adopted(coordinator: &std::os::fd::OwnedFd, link: u64) {
    let mut buffer = [0; 64];
    assert!(socket::wait_readable(coordinator.as_fd(), Instant::now() + LONG).unwrap());
    let len = socket::receive(coordinator.as_fd(), &mut buffer).unwrap().len;
    let said = Message::decode(&buffer[..len]).unwrap();
    let of_it = |m: &Message| matches!(m, Message::Link(LinkMessage::Adopted { link: l, .. }) if *l == link);
    assert!(of_it(&said), "{said:?}");
}

/// Whom this end of a link blames, when it says that the link is over.
pub(crate) fn blamed(coordinator: &std::os::fd::OwnedFd) -> partywall_abi::control::Blame {
    let mut buffer = [0; 256];
    assert!(socket::wait_readable(coordinator.as_fd(), Instant::now() + LONG).unwrap());
    let len = socket::receive(coordinator.as_fd(), &mut buffer).unwrap().len;
    match Message::decode(&buffer[..len]).unwrap() {
        Message::End(EndMessage::Closed { blame, .. }) => blame,
        other => panic!("{other:?}"),
    }
}

#[test]
fn methods_are_told_to_a_coordinator_that_takes_them() {
    struct Counting(LinkMethods);
    impl End for Counting {
        fn stats(&self) -> LinkStats {
            LinkStats::default()
        }
        fn methods(&self) -> LinkMethods {
            self.0.clone()
        }
        fn end(&self, _: tonic::Status) {}
        fn peer_died(&self) {}
        fn allow(&self, _: partywall_abi::control::Identity, _: partywall_abi::name::MethodSet) {}
    }
    let counted = LinkMethods::new(vec![MethodStats::new("/a.B/C", 2, 1)], 0);
    let (link, stats) = (7, LinkStats::default());
    let told = |request, methods: &LinkMethods| {
        let methods = methods.clone();
        Message::List(ListMessage::Counted { request, link, stats, methods })
    };
    let (role, blame) = (Role::Server, Blame::Nobody);
    let closed = Message::End(EndMessage::Closed { link, role, blame, stats });
    let all = Message::List(ListMessage::CountedAll { request: 5 });
    for (capabilities, expected) in [
        (Capabilities::ROOM, vec![told(5, &LinkMethods::default()), all.clone(), closed.clone()]),
        (Capabilities::OWN, vec![told(5, &counted), all, told(0, &counted), closed]),
    ] {
        let (client, theirs) = alone_at(capabilities);
        let token = partywall_abi::control::Token([1; 16]);
        let tracked = Tracked::new(&client, link, known(token), role, name("g"));
        let end = Arc::new(Counting(counted.clone()));
        let reached: Arc<dyn End> = Arc::clone(&end) as _;
        tracked.attach(Arc::downgrade(&reached));
        client.take(Message::List(ListMessage::Query { request: 5 }), Parts::none());
        tracked.count(stats, end.methods());
        tracked.close(blame, stats);
        let mut said = Vec::new();
        let mut buffer = [0; 256];
        while socket::wait_readable(theirs.as_fd(), Instant::now()).unwrap() {
            let len = socket::receive(theirs.as_fd(), &mut buffer).unwrap().len;
            said.push(Message::decode(&buffer[..len]).unwrap());
        }
        assert_eq!(said, expected, "{capabilities}");
    }
}

#[test]
fn a_grant_reaches_the_open_end_and_the_next_coordinator() {
    /// Keeps what it is granted, or is not open yet: another one is attached before it says so.
    #[derive(Default)]
    struct Granted(Mutex<Option<Grant>>, Option<Box<dyn Fn() + Send + Sync>>);
    impl End for Granted {
        fn stats(&self) -> LinkStats {
            LinkStats::default()
        }
        fn end(&self, _: tonic::Status) {}
        fn peer_died(&self) {}
        fn allow(&self, _: partywall_abi::control::Identity, _: partywall_abi::name::MethodSet) {}
        fn grant(&self, socket: socket::Passed, grant: Grant) -> Option<socket::Passed> {
            if let Some(attach) = &self.1 {
                attach();
                return Some(socket);
            }
            *lock(&self.0) = Some(grant);
            None
        }
    }
    let grant = Grant { descriptors: 3, leases: true };
    // The end is attached before the grant comes, afterwards, or just then.
    for attached in ["before", "after", "meanwhile"] {
        let (client, _theirs) = alone_at(Capabilities::OWN);
        let token = partywall_abi::control::Token([1; 16]);
        let tracked = Arc::new(Tracked::new(&client, 7, known(token), Role::Caller, name("g")));
        let open = Arc::new(Granted::default());
        let reached: Arc<dyn End> = Arc::clone(&open) as _;
        let attach = {
            let (tracked, reached) = (Arc::downgrade(&tracked), Arc::downgrade(&reached));
            move || tracked.upgrade().unwrap().attach(reached.clone())
        };
        let opening: Arc<dyn End> =
            Arc::new(Granted(Mutex::default(), Some(Box::new(attach.clone()))));
        match attached {
            "before" => attach(),
            "meanwhile" => tracked.attach(Arc::downgrade(&opening)),
            _ => {}
        }
        let (socket, _peers) = socket::descriptor_pair().unwrap();
        tracked.entry.grant(socket, grant);
        if attached == "after" {
            assert_eq!(*lock(&open.0), None);
            attach();
        }
        assert_eq!(*lock(&open.0), Some(grant), "{attached}");

        // A coordinator that takes grants is told of it, and another one of none.
        for (capabilities, told) in [(Capabilities::OWN, grant), (Capabilities::ROOM, Grant::NONE)]
        {
            let (client, theirs) = alone_at(capabilities);
            let mut state = lock(&client.state);
            state.lost.push(Arc::clone(&tracked.entry));
            client.tell_all(&mut state);
            let mut buffer = [0; 256];
            assert!(socket::wait_readable(theirs.as_fd(), Instant::now() + LONG).unwrap());
            let len = socket::receive(theirs.as_fd(), &mut buffer).unwrap().len;
            let said = Message::decode(&buffer[..len]).unwrap();
            let Message::Link(LinkMessage::Report { grant, .. }) = said else { panic!("{said:?}") };
            assert_eq!(grant, told, "{capabilities}");
        }
    }
}

/// How an end was ended.
#[derive(Default)]
struct Over(Mutex<Option<tonic::Status>>);

impl End for Over {
    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
    fn end(&self, status: tonic::Status) {
        *lock(&self.0) = Some(status);
    }
    fn peer_died(&self) {}
    fn allow(&self, _: partywall_abi::control::Identity, _: partywall_abi::name::MethodSet) {}
    fn grant(&self, _: socket::Passed, _: Grant) -> Option<socket::Passed> {
        None
    }
}

/// The kernel drops the socket of a grant that comes to a process without a free descriptor.
#[test]
fn a_grant_that_comes_without_its_socket_ends_the_link() {
    let (client, _theirs) = alone_at(Capabilities::OWN);
    let token = partywall_abi::control::Token([1; 16]);
    let known = Known { promised: true, ..known(token) };
    let tracked = Tracked::new(&client, 7, known, Role::Caller, name("g"));
    let end = Arc::new(Over::default());
    let reached: Arc<dyn End> = Arc::clone(&end) as _;
    tracked.attach(Arc::downgrade(&reached));
    let grant = Grant { descriptors: 1, leases: false };
    let granted = LinkMessage::Granted { link: 7, role: Role::Caller, grant };
    client.take(granted.into(), Parts::none());
    let status = lock(&end.0).take().expect("it is ended");
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(status.message().contains("`ulimit -n`"), "{status}");
}

/// Its calls would have waited for a grant that no later coordinator knew of.
#[test]
fn a_promise_that_dies_with_its_coordinator_ends_the_link() {
    for (promised, granted) in [(true, false), (true, true), (false, false)] {
        let (client, _theirs) = alone_at(Capabilities::OWN);
        let known = Known { promised, ..known(partywall_abi::control::Token([1; 16])) };
        let tracked = Tracked::new(&client, 7, known, Role::Caller, name("g"));
        let end = Arc::new(Over::default());
        let reached: Arc<dyn End> = Arc::clone(&end) as _;
        tracked.attach(Arc::downgrade(&reached));
        if granted {
            let (socket, _peers) = socket::descriptor_pair().unwrap();
            tracked.entry.grant(socket, Grant { descriptors: 1, leases: false });
        }
        let conversation = lock(&client.state).conversation.clone().unwrap();
        client.ended(&conversation);
        let goes_on = !promised || granted;
        let kept = lock(&client.state).lost.iter().any(|e| Arc::ptr_eq(e, &tracked.entry));
        assert_eq!(kept, goes_on, "{promised} {granted}");
        let code = lock(&end.0).as_ref().map(tonic::Status::code);
        assert_eq!(code, (!goes_on).then_some(tonic::Code::Unavailable), "{promised} {granted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_are_promised_what_they_are_granted() {
    let leases = Grant { descriptors: 2, leases: true };
    for (rule, grant) in
        [("['*']", Grant::NONE), ("{ methods = ['*'], descriptors = 2, leases = true }", leases)]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.sock");
        let policy = POLICY.replacen("['*']", rule, 1);
        let policy = Policy::parse("test", &policy).unwrap();
        let _coordinator = Coordinator::start(Some(&path), policy).unwrap();
        let client = get(&Place::Path(path), LONG).unwrap();
        let mut registered = client.register(&name("g"), 10).await.unwrap();
        let (caller, server) = link(&client, &mut registered).await;
        for tracked in [caller.1, server.1] {
            assert_eq!(tracked.entry.promised, !grant.is_none(), "{grant}");
            let deadline = Instant::now() + LONG;
            while tracked.entry.waits_for_grant() {
                assert!(Instant::now() < deadline, "{grant} does not come");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(tracked.entry.granted(), grant);
        }
    }
}

#[test]
fn send_does_not_block_on_a_stalled_coordinator() {
    let (client, theirs) = alone();
    let start = Instant::now();
    for request in 0..5_000 {
        client.say(RegistryMessage::Unwatch { request });
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let mut buffer = [0; 64];
    for expected in 0..5_000 {
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(socket::wait_readable(theirs.as_fd(), deadline).unwrap());
        let len = socket::receive(theirs.as_fd(), &mut buffer).unwrap().len;
        let message = Message::decode(&buffer[..len]).unwrap();
        assert_eq!(message, Message::Registry(RegistryMessage::Unwatch { request: expected }));
    }
}

#[test]
fn a_coordinator_that_never_reads_is_given_up() {
    let (client, _theirs) = alone();
    let connecting = client.connect(&name("g")).unwrap();
    for request in 0..2 * OUTGOING as u32 {
        client.say(RegistryMessage::Unwatch { request });
    }
    assert!(matches!(connecting.blocking(LONG), Err(Error::CoordinatorGone(_))));
    assert!(matches!(client.connect(&name("g")), Err(Error::CoordinatorGone(_))));
}

/// The new link had the number of the one from before it, and passed for that; the question had no bound.
#[tokio::test(flavor = "multi_thread")]
async fn new_coordinator_gets_names_links_watches_and_questions() {
    let (dir, coordinator, client) = host();
    let path = dir.path().join("c.sock");
    let mut registered = client.register(&name("g"), 10).await.unwrap();
    let (caller, server) = link(&client, &mut registered).await;
    let mut watching = client.watch(&name("g")).unwrap();
    watching.instances.wait_for(|n| *n == 1).await.unwrap();
    drop(coordinator);
    assert!(matches!(registered.events.recv().await, Some(Event::Lost)));
    watching.instances.wait_for(|n| *n == 0).await.unwrap();
    let question = client.connect(&name("g")).unwrap();
    let question = tokio::spawn(call_one(question));
    let start = Instant::now();
    let coordinator = Coordinator::start(Some(&path), Policy::parse("test", POLICY).unwrap());
    let coordinator = coordinator.unwrap();
    watching.instances.wait_for(|n| *n == 1).await.unwrap();
    // The question that was asked in the gap, and the link from before it.
    let served = tokio::time::timeout(LONG, serve_one(&mut registered)).await.unwrap();
    let asked = question.await.unwrap();
    let answered = start.elapsed();
    loop {
        let numbers: BTreeSet<_> = [caller.1.link(), asked.1.link()].into();
        let open: BTreeSet<_> =
            list(&client).iter().filter(|row| row.open).map(|row| row.link).collect();
        // The new coordinator counts from one again: two of one number are one link.
        if numbers.len() == 2 && numbers == open {
            break;
        }
        assert!(start.elapsed() < LONG, "{numbers:?} are there, and {open:?} told");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let all = start.elapsed();
    assert!(all < Duration::from_secs(1), "{all:?}; name, watch and question {answered:?}");
    assert_eq!(caller.1.link(), server.1.link());
    drop((asked, served));
    drop((caller, server));
    drop(coordinator);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_coordinator_that_forbids_a_link_ends_it() {
    struct Over(tokio::sync::Notify);
    impl End for Over {
        fn stats(&self) -> LinkStats {
            LinkStats::default()
        }
        fn end(&self, status: tonic::Status) {
            assert_eq!(status.code(), tonic::Code::PermissionDenied);
            self.0.notify_one();
        }
        fn peer_died(&self) {}
        fn allow(&self, _: partywall_abi::control::Identity, _: partywall_abi::name::MethodSet) {}
    }
    let (dir, coordinator, client) = host();
    let mut registered = client.register(&name("g"), 10).await.unwrap();
    let (caller, _server) = link(&client, &mut registered).await;
    let over = Arc::new(Over(tokio::sync::Notify::new()));
    let end: Arc<dyn End> = Arc::clone(&over) as _;
    caller.1.attach(Arc::downgrade(&end));
    drop(coordinator);
    let policy = Policy::parse("test", "[service.g]\nregister = ['anyone']\n").unwrap();
    let path = dir.path().join("c.sock");
    let _coordinator = Coordinator::start(Some(&path), policy).unwrap();
    tokio::time::timeout(LONG, over.0.notified()).await.unwrap();
}

#[test]
fn missing_coordinator_fails_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::Path(dir.path().join("none.sock"));
    let start = Instant::now();
    assert!(matches!(get(&place, LONG), Err(Error::NoCoordinator { .. })));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn ended_coordinator_has_questions_wait_until_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    // Killed: its socket is there still.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let start = Instant::now();
    let client = get(&Place::Path(path), LONG).unwrap();
    let within = Duration::from_millis(300);
    let error = client.connect(&name("g")).unwrap().blocking(within).err().unwrap();
    assert!(matches!(error, Error::NoCoordinator { .. }), "{error}");
    assert!(start.elapsed() >= within);
}

/// A socket that was handed over, and its other end. The number stays open as long as this process
/// runs: clients are known by it, and another test's socket is not to have it.
fn handed() -> (Place, OwnedFd) {
    let (ours, theirs) = socket::pair().unwrap();
    (Place::Handed(ours.into_raw_fd()), theirs)
}

#[test]
fn closed_inherited_socket_is_given_up() {
    let (place, theirs) = handed();
    drop(theirs);
    for _ in 0..2 {
        let error = get(&place, LONG).err().unwrap();
        assert!(matches!(error, Error::NotAdmitted { .. }), "{error:?}");
        assert!(!error.may_pass());
    }
}

/// A coordinator begins with these versions; what becomes of the process, and what it has said.
fn met_with(lowest: u16, highest: u16) -> (Error, Message) {
    let (place, theirs) = handed();
    let challenge = challenge(Versions::new(lowest, highest).unwrap(), [7; 16]);
    socket::send(theirs.as_fd(), &challenge.encode(), &[]).unwrap();
    let error = get(&place, LONG).err().unwrap();
    let mut buffer = [0; 256];
    let len = socket::receive(theirs.as_fd(), &mut buffer).unwrap().len;
    (error, Message::decode(&buffer[..len]).unwrap())
}

#[test]
fn coordinator_without_common_version_is_refused_with_ranges() {
    let own = partywall_abi::VERSION;
    for (lowest, highest, older) in
        [(1, own - 1, "coordinator"), (own + 1, own + 4, "program"), (own + 1, own + 1, "program")]
    {
        let (error, said) = met_with(lowest, highest);
        assert!(matches!(error, Error::NotAdmitted { .. }) && !error.may_pass(), "{error:?}");
        let theirs = Versions::new(lowest, highest).unwrap();
        let both = format!(
            "the coordinator speaks {theirs} of Partywall's protocol, and this program {}; remedy: \
             update the {older}",
            Versions::OWN
        );
        assert!(error.to_string().ends_with(&both), "{error}");
        let proof =
            |m: &Message| matches!(m, Message::Session(SessionMessage::Proof { version: 0, .. }));
        assert!(proof(&said), "{said:?}");
    }
}

#[test]
fn coordinator_of_more_versions_uses_the_common_one() {
    let (place, theirs) = handed();
    let versions = Versions::new(1, partywall_abi::VERSION + 5).unwrap();
    for message in [
        challenge(versions, [7; 16]),
        SessionMessage::Welcome { you: partywall_abi::control::Identity::new(0, 0) }.into(),
    ] {
        socket::send(theirs.as_fd(), &message.encode(), &[]).unwrap();
    }
    get(&place, LONG).unwrap();
    let mut buffer = [0; 256];
    let len = socket::receive(theirs.as_fd(), &mut buffer).unwrap().len;
    let said = Message::decode(&buffer[..len]).unwrap();
    let Message::Session(SessionMessage::Proof { version, capabilities, .. }) = said else {
        panic!("{said:?}")
    };
    assert_eq!((version, capabilities), (partywall_abi::VERSION, Capabilities::OWN));
}

#[test]
fn coordinator_with_a_reversed_range_of_versions_is_refused() {
    let (place, theirs) = handed();
    let mut packet = challenge(Versions::OWN, [7; 16]).encode();
    packet[8..10].copy_from_slice(&9_u16.to_le_bytes());
    socket::send(theirs.as_fd(), &packet, &[]).unwrap();
    let error = get(&place, LONG).err().unwrap();
    assert!(error.to_string().contains("lowest version: 9 has no meaning here"), "{error}");
}

#[test]
fn threads_that_come_at_once_prove_the_process_once() {
    let (place, theirs) = handed();
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..16).map(|_| s.spawn(|| get(&place, LONG).map(drop))).collect();
        let nonce = [7; 16];
        let (versions, version) = (Versions::OWN, partywall_abi::VERSION);
        let capabilities = Capabilities::OWN;
        let challenge = challenge(versions, nonce);
        socket::send(theirs.as_fd(), &challenge.encode(), &[]).unwrap();
        let heard = |wait| {
            let mut buffer = [0; 256];
            let come = socket::wait_readable(theirs.as_fd(), Instant::now() + wait).unwrap();
            come.then(|| {
                let len = socket::receive(theirs.as_fd(), &mut buffer).unwrap().len;
                Message::decode(&buffer[..len]).unwrap()
            })
        };
        assert_eq!(
            heard(LONG),
            Some(Message::Session(SessionMessage::Proof {
                versions,
                version,
                capabilities,
                nonce
            }))
        );
        assert_eq!(heard(Duration::from_millis(50)), None, "another thread's proof");
        let you = partywall_abi::control::Identity::new(0, 0);
        let welcome = Message::Session(SessionMessage::Welcome { you });
        socket::send(theirs.as_fd(), &welcome.encode(), &[]).unwrap();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
}

/// A link was adopted and never opened: the end of one from before the restart, which had the same
/// number, came in between.
#[test]
fn old_end_reports_nothing_on_a_new_link_of_its_number() {
    let (client, theirs) = alone();
    let tracked = |token: u8| {
        let token = partywall_abi::control::Token([token; 16]);
        Tracked::new(&client, 4, known(token), Role::Server, name("g"))
    };
    let early = tracked(1);
    {
        // As when the coordinator goes.
        let mut state = lock(&client.state);
        let links = std::mem::take(&mut state.links);
        state.lost.extend(links.into_values());
    }
    let late = tracked(2);
    lock(&client.state).adopted.insert(4, 1);
    early.adopted(Security::HIGHEST);
    drop(early);
    assert_eq!(lock(&client.state).adopted.get(&4), Some(&1));
    let soon = Instant::now() + Duration::from_millis(50);
    assert!(!socket::wait_readable(theirs.as_fd(), soon).unwrap(), "of the other one");
    late.adopted(Security::HIGHEST);
    wait_for_adopted(&theirs, 4);
    drop(late);
    assert!(lock(&client.state).adopted.is_empty());
}

#[test]
fn process_that_is_not_admitted_gets_the_reason() {
    for handed in [false, true] {
        let (ours, theirs) = socket::pair().unwrap();
        let refused = Message::Session(SessionMessage::Refused {
            request: 0,
            code: 14,
            text: "user 5 has 7".into(),
        });
        socket::send(theirs.as_fd(), &refused.encode(), &[]).unwrap();
        drop(theirs);
        let place = match handed {
            true => Place::Handed(ours.as_raw_fd()),
            false => Place::Path("c.sock".into()),
        };
        let error = place.prove(ours.as_fd(), Instant::now() + LONG).unwrap_err();
        assert!(error.to_string().contains("user 5 has 7"), "{error}");
        assert_eq!((error.may_pass(), error.code()), (!handed, tonic::Code::Unavailable));
    }
}

#[test]
fn a_socket_of_a_third_user_is_no_coordinator() {
    let place = Place::Path("/c.sock".into());
    let own = rustix::process::geteuid().as_raw();
    check_owner(&place, own).unwrap();
    check_owner(&place, 0).unwrap();
    let found = own + 1;
    let error = check_owner(&place, found).unwrap_err();
    assert!(matches!(error, Error::WrongCoordinator { found: f, .. } if f == found));
    // Root's own, and root's: that was "0 or 0".
    let expected = if own == 0 { "user 0".into() } else { format!("user {own} or 0") };
    let text = format!(
        "the coordinator at /c.sock runs as user {found}; expected {expected} (set \
         PARTYWALL_COORDINATOR_UID={found} if user {found} is right)"
    );
    assert_eq!(error.to_string(), text);
}
