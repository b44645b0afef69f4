//! The conversation with a coordinator, and with what is none.

use super::*;
use partywall_coordinator::{Coordinator, Policy};

const POLICY: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n\
                      [service.far.call]\nanyone = ['*']\n[names]\nfar = 'http://h:1'\n";

fn name(text: &str) -> ServiceName {
    ServiceName::new(text).unwrap()
}

/// A coordinator and a conversation with it.
fn host() -> (tempfile::TempDir, Coordinator, Arc<Agent>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let policy = Policy::parse("test", POLICY).unwrap();
    let coordinator = Coordinator::start(Some(&path), policy).unwrap();
    (dir, coordinator, get(&Place::Path(path)).unwrap())
}

/// Waits until none of the links that the coordinator knows is open.
fn wait_until_closed(agent: &Agent, links: usize) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let rows = agent.list().unwrap();
        assert_eq!(rows.len(), links);
        if rows.iter().all(|row| !row.open) {
            return;
        }
        assert!(Instant::now() < deadline, "{rows:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_redirect_that_nobody_waits_for_any_more_is_closed_in_the_books() {
    let (_dir, _coordinator, agent) = host();
    drop(agent.connect(&name("far")).unwrap());
    wait_until_closed(&agent, 1);
    let Ok(Connected::Redirect { booked, .. }) =
        agent.connect(&name("far")).unwrap().blocking(HANDSHAKE)
    else {
        panic!("no redirect")
    };
    assert!(agent.list().unwrap()[1].open);
    drop(booked);
    wait_until_closed(&agent, 2);
}

#[tokio::test]
async fn an_offer_that_is_not_taken_is_closed_in_the_books() {
    let (_dir, _coordinator, agent) = host();
    let mut registered = agent.register(&name("g")).await.unwrap();
    let Ok(Connected::Link(_linked)) = agent.connect(&name("g")).unwrap().wait().await else {
        panic!("no link")
    };
    drop(registered.offers.recv().await.unwrap());
    let Ok(Connected::Link(_linked)) = agent.connect(&name("g")).unwrap().wait().await else {
        panic!("no link")
    };
    // This one lies in the queue.
    drop(registered);
    tokio::task::spawn_blocking(move || wait_until_closed(&agent, 2)).await.unwrap();
}

#[tokio::test]
async fn a_registration_ends_with_its_value_and_with_who_waits_for_it() {
    let (_dir, coordinator, agent) = host();
    let registered = agent.register(&name("g")).await.unwrap();
    drop(registered);
    let g = name("g");
    let mut registering = Box::pin(agent.register(&g));
    let waker = &mut std::task::Context::from_waker(std::task::Waker::noop());
    // Asked for; an answer that is there already ends with the value as well.
    drop(registering.as_mut().poll(waker));
    drop(registering);
    let deadline = Instant::now() + Duration::from_secs(5);
    // Answers come in the order of the questions; the registrations were the first ones.
    while let Ok(connected) = agent.connect(&name("g")).unwrap().wait().await {
        assert!(matches!(connected, Connected::Link(_)) && Instant::now() < deadline);
    }
    assert!(coordinator.serving(&name("g")).recv_timeout(Duration::from_millis(20)).is_err());
}

#[test]
fn who_sends_does_not_wait_for_a_coordinator_that_does_not_read() {
    let (ours, theirs) = socket::pair().unwrap();
    let agent = Agent::start(ours).unwrap();
    let start = Instant::now();
    for request in 0..5_000 {
        agent.send(&Message::Unwatch { request }).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let mut buffer = [0; 64];
    for expected in 0..5_000 {
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(socket::wait_readable(theirs.as_fd(), deadline).unwrap());
        let len = socket::receive(theirs.as_fd(), &mut buffer, false).unwrap().len;
        let message = Message::decode(&buffer[..len]).unwrap();
        assert_eq!(message, Message::Unwatch { request: expected });
    }
    assert!(lock(&agent.outgoing).packets.is_empty());
}

#[test]
fn a_coordinator_that_never_reads_is_given_up() {
    let (ours, _theirs) = socket::pair().unwrap();
    let agent = Agent::start(ours).unwrap();
    let (tx, rx) = oneshot::channel();
    agent.begin(Waiting::Answer(tx)).unwrap();
    let unwatch = Message::Unwatch { request: 1 };
    let sent = (0..2 * OUTGOING).take_while(|_| agent.send(&unwatch).is_ok()).count();
    assert!((OUTGOING..OUTGOING + 1_000).contains(&sent), "{sent}");
    assert!(matches!(rx.blocking_recv().unwrap(), Err(Error::CoordinatorGone(_))));
}

#[test]
fn a_coordinator_of_a_third_user_is_not_believed() {
    let place = Place::Path("/c.sock".into());
    let own = rustix::process::geteuid().as_raw();
    check_owner(&place, own).unwrap();
    check_owner(&place, 0).unwrap();
    let error = check_owner(&place, own + 1).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::WrongCoordinator { found, .. } if found == own + 1));
    assert!(text.contains("/c.sock"), "{text}");
}
