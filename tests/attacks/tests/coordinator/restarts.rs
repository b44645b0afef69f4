//! Row 32: a coordinator that is killed at each step of the protocol, and started again.
//!
//! Who speaks by hand stops at a step; the coordinator is killed there. What the hand has from the old
//! coordinator is worth nothing at the new one: numbers of links, of registrations and of requests. Services,
//! callers and their links go on.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use partywall_abi::control::{
    Blame, EndMessage, Grant, LinkMessage, LinkStats, Message, RegistryMessage, Role, Setup, Terms,
    Token,
};
use partywall_abi::frame::{END, HEAD, Kind};
use partywall_attacks::{Hand, Town, Victim, call_head, name, register};
use partywall_shm::memory;
use partywall_shm::socket::{self, Endpoint};
use partywall_testkit::{Conversation, Held, PATIENCE, proof};

use super::{OPEN, PERMISSION_DENIED, PROGRAMS, closed, connect, refused, until_open};

/// What a hand has when its coordinator dies.
struct Stale {
    conversation: Conversation,
    /// Of the link that it has begun.
    terms: Option<Terms>,
    end: Option<Endpoint>,
    hand: Option<Hand>,
    _memory: Vec<OwnedFd>,
}

/// The steps of a caller; it stops behind one of them.
const CALLERS: [&str; 8] =
    ["connected", "challenged", "proven", "asked", "linked", "filled", "adopted", "open"];

fn call_until(step: &str, town: &Town) -> Stale {
    let mut stale = Stale {
        conversation: Conversation::connect(&town.socket()).unwrap(),
        terms: None,
        end: None,
        hand: None,
        _memory: Vec::new(),
    };
    let by = &stale.conversation;
    if step == "connected" {
        return stale;
    }
    let nonce = by.challenge().unwrap();
    if step == "challenged" {
        return stale;
    }
    by.say(&proof(nonce)).unwrap();
    by.next().unwrap();
    if step == "proven" {
        return stale;
    }
    if step == "open" {
        stale.hand = Some(Hand::calling(by, "test").unwrap());
        return stale;
    }
    by.say(&connect(7, "test")).unwrap();
    if step == "asked" {
        return stale;
    }
    let (terms, own, servers, end) = by.linked().unwrap();
    if step != "linked" {
        let outbox = memory::adopt(own.as_fd(), terms.geometry).unwrap();
        memory::fill_own(&outbox).unwrap();
        memory::begin(&outbox, terms.geometry);
        let inbox = memory::accept(servers.as_fd(), terms.geometry).unwrap();
        memory::fill_peers(&inbox).unwrap();
    }
    if step == "adopted" {
        by.say(&adopted(&terms)).unwrap();
    }
    stale._memory.extend([own, servers]);
    (stale.terms, stale.end) = (Some(terms), Some(end));
    stale
}

fn adopted(terms: &Terms) -> Message {
    Message::Link(LinkMessage::Adopted { link: terms.link, security: terms.security })
}

/// Says to a coordinator whatever the old one's numbers are good for.
fn goes_on(town: &Town, terms: Option<&Terms>, security: partywall::Security) {
    let hostile = town.hostile();
    let first = 1;
    let link = terms.map_or(first, |terms| terms.link);
    let security = terms.map_or(security, |terms| terms.security);
    hostile.say(&Message::Link(LinkMessage::Adopted { link, security })).unwrap();
    hostile.say(&Message::Link(LinkMessage::Cancel { request: 7 })).unwrap();
    hostile.say(&RegistryMessage::Unregister { registration: first }.into()).unwrap();
    for role in [Role::Caller, Role::Server] {
        let (blame, stats) = (Blame::Peer, LinkStats::default());
        hostile.say(&Message::End(EndMessage::Closed { link, role, blame, stats })).unwrap();
    }
    // And it is still there.
    hostile.say(&connect(9, "nobody")).unwrap();
    assert_eq!(refused(&hostile).0, PERMISSION_DENIED);
}

/// Links that a coordinator lists as open, by their callers' numbers.
fn open_links(town: &Town) -> Vec<Option<u32>> {
    let links = partywall::operator::links(Some(&town.socket())).unwrap();
    links.iter().filter(|link| link.open).map(|link| link.caller.pid).collect()
}

/// Waits until the service gives a link up that was not open; or has opened it, when the coordinator has
/// said so before its end.
fn until_over(step: &str, end: &Endpoint) {
    use rustix::event::{PollFd, PollFlags};
    let begin = Instant::now();
    loop {
        let mut fds = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).unwrap();
        let found = fds[0].revents();
        if found.contains(PollFlags::HUP) || step == "adopted" && found.contains(PollFlags::IN) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{step}: the link is held");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn row_32_a_caller_at_each_step_has_nothing_of_it_afterwards() {
    let mut town = Town::new(*PROGRAMS, OPEN);
    let service = town.service(&[]);
    let mut witness = town.witness();
    let held = Held::by(service.pid());
    for step in CALLERS {
        let mut stale = call_until(step, &town);
        let registered = town.events("registered").len();
        town.restart();
        // Links go on without a coordinator, and with the new one.
        assert_eq!(witness.asked("call 100"), "ok");
        while stale.conversation.next_or_end().unwrap().is_some() {}
        town.until("the service is registered again", || {
            town.events("registered").len() > registered
        });
        goes_on(&town, stale.terms.as_ref(), partywall::Security::HIGHEST);
        if let Some(end) = stale.end.take() {
            until_over(step, &end);
        }
        if let Some(mut hand) = stale.hand.take() {
            hand.say(Kind::Frame as u8, HEAD | END, 1, &call_head("/x.Y/Z", b"")).unwrap();
            assert_eq!(hand.status(1).unwrap().0, 12);
        }
        drop(stale);
        until_open(&town, &mut witness);
        assert_eq!(witness.asked("call 100"), "ok");
        held.wait_for(service.pid());
        // What is listed is the witness's, and nobody else's.
        let own = [Some(witness.pid())];
        town.until("the list of links", || open_links(&town) == own);
    }
}

/// The steps of a service.
const SERVICES: [&str; 6] = ["proven", "registered", "offered", "adopted", "opened", "open"];

fn serve_until(step: &str, town: &Town, caller: &mut Victim) -> Stale {
    let mut stale = Stale {
        conversation: town.hostile(),
        terms: None,
        end: None,
        hand: None,
        _memory: Vec::new(),
    };
    let by = &stale.conversation;
    if step == "proven" {
        return stale;
    }
    register(by, "bad").unwrap();
    if step == "registered" {
        return stale;
    }
    caller.say("open");
    if step == "open" {
        stale.hand = Some(Hand::serving(by).unwrap());
        assert_eq!(caller.line(), "open");
        return stale;
    }
    let (terms, own, end) = by.offered().unwrap();
    if step != "offered" {
        drop(memory::adopt(own.as_fd(), terms.geometry).unwrap());
        by.say(&adopted(&terms)).unwrap();
    }
    if step == "opened" {
        by.opened().unwrap();
    }
    stale._memory.push(own);
    (stale.terms, stale.end) = (Some(terms), Some(end));
    stale
}

#[test]
fn row_32_a_service_at_each_step_has_nothing_of_it_afterwards() {
    let kinds: [&[&str]; 2] = [&["--name", "bad"], &["--name", "bad", "--blocking"]];
    for step in SERVICES {
        for kind in kinds {
            let mut town = Town::new(*PROGRAMS, OPEN);
            let _other = town.service(&[]);
            let mut witness = town.witness();
            let mut caller = town.caller(kind);
            let stale = serve_until(step, &town, &mut caller);
            town.restart();
            assert_eq!(witness.asked("call 100"), "ok");
            let _honest = town.service(&["--name", "bad"]);
            if let (Some(terms), Some(end)) = (&stale.terms, &stale.end) {
                // The link is nobody's, whatever its server says now.
                goes_on(&town, Some(terms), terms.security);
                let _said = socket::send(end.as_fd(), &Setup { link: terms.link }.encode(), &[]);
                let said = caller.line();
                assert!(said == "open" || said.starts_with("Unavailable: "), "{said}");
            }
            if let Some(mut hand) = stale.hand {
                caller.say("call 100");
                hand.answer().unwrap();
                assert_eq!(caller.line(), "ok");
            }
            until_open(&town, &mut caller);
            assert_eq!(caller.asked("call 100"), "ok");
        }
    }
}

/// What the old policy allowed ends with the grace of the new coordinator. Who reports such a link is
/// refused, and so is a report of a link that there never was.
#[test]
fn row_32_a_link_of_the_old_policy_ends_under_the_new_one() {
    let mut town = Town::new(*PROGRAMS, OPEN);
    let service = town.service(&[]);
    let mut witness = town.witness();
    let held = Held::by(service.pid());
    let hostile = town.hostile();
    let hand = Hand::calling(&hostile, "test").unwrap();
    std::fs::write(town.file("policy.toml"), format!("harden = false\n{}", closed())).unwrap();
    let registered = town.events("registered").len();
    town.restart();
    town.until("the service is registered again", || town.events("registered").len() > registered);
    let hostile = town.hostile();
    for token in [hand.terms.token, Token([7; 16])] {
        let report = LinkMessage::Report {
            request: 3,
            token,
            role: Role::Caller,
            name: name("test"),
            security: hand.terms.security,
            grant: Grant::NONE,
        };
        hostile.say(&Message::Link(report)).unwrap();
        assert_eq!(refused(&hostile).0, PERMISSION_DENIED);
    }
    // A hostile end reports nothing, and the service's is alone until the grace of 10 s is over.
    let begin = Instant::now();
    while !hand.is_ended().unwrap() {
        assert!(begin.elapsed() < Duration::from_secs(12), "the link of the old policy goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(hand);
    assert_eq!(witness.asked("call 100"), "ok");
    held.wait_for(service.pid());
}
