//! The state machine, asked one message at a time.

use super::links::{OFFER_TIME, OPENING};
use super::*;
use crate::identity::Fades;
use crate::quota::{Account, Limits, Totals};
pub(super) use hardening::admit;
use partywall_abi::control::{
    Blame, EndMessage, Grant, LinkMessage, LinkMethods, LinkRow, LinkStats, ListMessage,
    PolicyMessage, RegistryMessage, SessionMessage,
};
use partywall_abi::layout::Geometry;
use std::time::Duration;

pub(super) fn facts(uid: u32) -> Facts {
    Facts {
        uid,
        gid: 0,
        pid: Some(uid + 1),
        digest: Digest::Unknown,
        digest_error: None,
        cgroup: String::new(),
        container: None,
        origin: None,
        origin_error: None,
        contained: None,
        started_as: None,
        signature: None,
        domain: None,
        user: uid,
        descends: false,
        fades: Fades::Nothing,
    }
}

pub(super) fn name() -> ServiceName {
    ServiceName::new("g").unwrap()
}

const POLICY: &str = "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
                      [principal.other]\nuid = 3\n\
                      [service.g]\nregister = ['server']\n[service.g.call]\nweb = ['a.B/*']\n\
                      other = ['a.B/*']\n[service.far.call]\nweb = ['*']\n\
                      [names]\nfar = 'http://h:1'\n";

pub(super) fn state() -> State {
    under(POLICY)
}

/// A state machine under a policy, with room for many.
pub(super) fn under(policy: &str) -> State {
    with_descriptors(1 << 20, policy)
}

/// A state machine under a policy, with room for what so many descriptors allow.
pub(super) fn with_descriptors(most: usize, policy: &str) -> State {
    let policy = Policy::parse("p", policy).unwrap();
    let quotas = Quotas::new(Totals::for_descriptors(most), Limits::default(), 9);
    let mut last = 0_u64;
    let token = move || {
        last += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&last.to_le_bytes());
        Token(bytes)
    };
    State::new(policy, quotas, 9, Instant::now(), token)
}

/// What an end has counted, of calls alone.
fn counted(calls: u64) -> LinkStats {
    let mut stats = LinkStats::default();
    stats.calls = calls;
    stats
}

pub(super) const SPOKEN: Spoken =
    Spoken { version: partywall_abi::VERSION, capabilities: Capabilities::OWN };

pub(super) fn open(s: &mut State, uid: u32) -> Conn {
    admit(s, facts(uid))
}

/// What is to be done, but for the audit log; what is due is told.
pub(super) fn take(s: &mut State) -> Vec<Effect> {
    for conn in s.take_due() {
        if s.connections.contains_key(&conn) && !s.listings.iter().any(|l| l.to == conn) {
            s.room(conn);
        }
    }
    while s.serve_question().is_some() {}
    let effects = s.take_effects();
    effects.into_iter().filter(|e| !matches!(e, Effect::Audit(_))).collect()
}

pub(super) fn ask(s: &mut State, conn: Conn, m: Message) -> Vec<Effect> {
    s.message(conn, m, Instant::now());
    take(s)
}

pub(super) fn register(s: &mut State, conn: Conn) -> Vec<Effect> {
    let message = RegistryMessage::Register { request: 1, name: name(), places: 1 << 20 };
    ask(s, conn, Message::Registry(message))
}

pub(super) fn connect(s: &mut State, conn: Conn) -> Vec<Effect> {
    ask(s, conn, Message::Link(LinkMessage::Connect { request: 2, name: name() }))
}

/// The link that is offered, and to whom.
fn offered(effects: &[Effect]) -> (u64, Conn) {
    match effects {
        [Effect::Offer { link, to, .. }] => (*link, *to),
        other => panic!("{other:?}"),
    }
}

/// A link that is open, and who serves it.
pub(super) fn link(s: &mut State, caller: Conn) -> (u64, Conn) {
    let (link, server) = offered(&connect(s, caller));
    let e =
        ask(s, server, Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }));
    assert!(matches!(&e[..], [Effect::Link { to, .. }] if *to == caller), "{e:?}");
    let e =
        ask(s, caller, Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }));
    assert!(matches!(&e[..], [Effect::Open { to, .. }] if *to == server), "{e:?}");
    s.introduced(link);
    s.take_effects();
    (link, server)
}

/// An end says that its link is over.
fn closed(link: u64, role: Role) -> Message {
    Message::End(EndMessage::Closed {
        link,
        role,
        blame: Blame::Nobody,
        stats: LinkStats::default(),
    })
}

/// The kernel says that nobody holds the memory of a link.
fn forgotten(s: &mut State, link: u64) {
    for role in [Role::Caller, Role::Server] {
        s.let_go(link, role);
    }
}

pub(super) fn refused(effects: &[Effect]) -> (u8, &str) {
    match effects {
        [
            Effect::Send {
                message: Message::Session(SessionMessage::Refused { code, text, .. }),
                ..
            },
        ] => (*code, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn denied_by_default_with_the_remedy() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let e = register(&mut s, web);
    let (code, text) = refused(&e);
    assert_eq!(code, PERMISSION_DENIED);
    assert!(text.contains("[service.g] register") && text.contains("known as web"), "{text}");
    assert_eq!(refused(&connect(&mut s, server)).0, PERMISSION_DENIED);
    assert_eq!(refused(&connect(&mut s, web)).0, NOT_FOUND);
}

#[test]
fn instances_take_turns_and_a_dead_one_is_out_at_once() {
    let mut s = state();
    let (a, b, web) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2));
    for conn in [a, b] {
        register(&mut s, conn);
    }
    let mut turns = || link(&mut s, web).1;
    assert_eq!([turns(), turns(), turns(), turns()], [a, b, a, b]);
    s.closed(a, Instant::now());
    take(&mut s);
    for _ in 0..3 {
        assert_eq!(link(&mut s, web).1, b);
    }
}

#[test]
fn instance_without_an_answer_is_asked_last_until_it_answers() {
    let mut s = state();
    let (hung, good, web) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2));
    register(&mut s, hung);
    register(&mut s, good);
    let (first, to) = offered(&connect(&mut s, web));
    assert_eq!(to, hung);
    s.timeout(Instant::now() + OFFER_TIME);
    let e = take(&mut s);
    let told = |e: &Effect| matches!(e, Effect::Send { to, message: Message::End(EndMessage::Ended { link, .. }) } if (*to, *link) == (hung, first));
    assert!(e.iter().any(told), "{e:?}");
    let next = e.iter().find_map(|e| match e {
        Effect::Offer { link, to, .. } => Some((*link, *to)),
        _ => None,
    });
    assert_eq!(next.map(|n| n.1), Some(good));
    for _ in 0..3 {
        assert_eq!(link(&mut s, web).1, good);
    }
    // Too late: that offer is over.
    assert_eq!(
        ask(
            &mut s,
            hung,
            Message::Link(LinkMessage::Adopted { link: first, security: Security::HIGHEST })
        ),
        []
    );
    s.closed(good, Instant::now());
    take(&mut s);
    assert_eq!(link(&mut s, web).1, hung, "the only one left");
    let again = open(&mut s, 1);
    register(&mut s, again);
    let turns = [link(&mut s, web).1, link(&mut s, web).1];
    assert!(turns.contains(&hung), "it has answered: {turns:?}");
}

/// Callers were refused for good after eight of its instances, each of which took a second.
#[test]
fn silent_instances_keep_no_caller_from_those_of_other_accounts() {
    let mut s = under(&POLICY.replace("['server']", "['server', 'other']"));
    let web = open(&mut s, 2);
    let silent: Vec<Conn> = (0..30).map(|_| open(&mut s, 3)).collect();
    silent.iter().for_each(|conn| drop(register(&mut s, *conn)));
    let good = open(&mut s, 1);
    register(&mut s, good);
    let offer = |e: &[Effect]| {
        e.iter().find_map(|e| match e {
            Effect::Offer { link, to, .. } => Some((*link, *to)),
            _ => None,
        })
    };
    let mut now = Instant::now();
    let mut asked_in_vain = 0;
    for request in 0..20 {
        s.message(web, Message::Link(LinkMessage::Connect { request, name: name() }), now);
        let mut e = take(&mut s);
        let taken = loop {
            let (link, to) = offer(&e).unwrap_or_else(|| panic!("request {request}: {e:?}"));
            if to == good {
                break link;
            }
            asked_in_vain += 1;
            now += OFFER_TIME;
            s.timeout(now);
            e = take(&mut s);
        };
        s.message(
            good,
            Message::Link(LinkMessage::Adopted { link: taken, security: Security::HIGHEST }),
            now,
        );
        s.message(
            web,
            Message::Link(LinkMessage::Adopted { link: taken, security: Security::HIGHEST }),
            now,
        );
        take(&mut s);
    }
    // Two of them, until what they did not do is a while ago.
    assert!(asked_in_vain <= 4, "{asked_in_vain}");
}

#[test]
fn caller_is_refused_when_no_instance_answers() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    connect(&mut s, web);
    s.timeout(Instant::now() + OFFER_TIME);
    let e = take(&mut s);
    let refusal = e.iter().find(|e| matches!(e, Effect::Send { to, .. } if *to == web));
    let (code, text) = refused(std::slice::from_ref(refusal.expect("an answer")));
    assert_eq!(code, UNAVAILABLE);
    assert!(text.contains("process 2 does not answer within 1s; remedy: look"), "{text}");
}

#[test]
fn watcher_gets_the_latest_count_once() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let count = |e: &[Effect]| -> Vec<u32> {
        e.iter()
            .filter_map(|e| match e {
                Effect::Send {
                    to,
                    message: Message::Registry(RegistryMessage::Watched { request: 5, instances }),
                } => {
                    assert_eq!(*to, web);
                    Some(*instances)
                }
                _ => None,
            })
            .collect()
    };
    assert_eq!(
        count(&ask(
            &mut s,
            web,
            Message::Registry(RegistryMessage::Watch { request: 5, name: name() })
        )),
        [0]
    );
    let e =
        ask(&mut s, web, Message::Registry(RegistryMessage::Watch { request: 6, name: name() }));
    assert_eq!(refused(&e).0, ALREADY_EXISTS);
    assert_eq!(count(&register(&mut s, server)), [1]);
    // It does not take what it is told: a thousand changes are one value.
    for i in 0..1000 {
        s.message(
            server,
            Message::Registry(RegistryMessage::Unregister { registration: 1 + i }),
            Instant::now(),
        );
        let register =
            Message::Registry(RegistryMessage::Register { request: 1, name: name(), places: 1 });
        s.message(server, register, Instant::now());
    }
    let before: Vec<_> = s.take_effects();
    assert_eq!(count(&before), [0; 0]);
    assert_eq!(count(&take(&mut s)), [1]);
    s.closed(server, Instant::now());
    assert_eq!(count(&take(&mut s)), [0]);
    ask(&mut s, web, Message::Registry(RegistryMessage::Unwatch { request: 5 }));
    let server = open(&mut s, 1);
    assert!(count(&register(&mut s, server)).is_empty());
}

fn open_links(s: &State) -> usize {
    s.links.values().filter(|l| l.open).count()
}

#[test]
fn only_the_servers_report_ends_a_link() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (first, _) = link(&mut s, web);
    link(&mut s, web);
    let stats = counted(1);
    let over =
        |role| Message::End(EndMessage::Closed { link: first, role, blame: Blame::Nobody, stats });
    assert_eq!(ask(&mut s, web, over(Role::Server)), [], "that it is not");
    assert_eq!(
        ask(&mut s, web, over(Role::Caller)),
        [Effect::Over { link: first, said: [true, false] }]
    );
    assert_eq!((open_links(&s), s.links[&first].stats.calls), (2, 0));
    s.closed(web, Instant::now());
    assert_eq!(open_links(&s), 2, "hidden by a caller that hung up");
    ask(&mut s, server, over(Role::Server));
    assert_eq!((open_links(&s), s.links[&first].stats.calls), (1, 1));
    s.closed(server, Instant::now());
    assert_eq!(open_links(&s), 0, "kept by a server that is gone");
}

#[test]
fn link_charge_ends_when_nobody_holds_its_memory() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let usage = |s: &State, conn: Conn| Arc::clone(&s.connections[&conn].standing.usage);
    let (callers, servers) = (usage(&s, web), usage(&s, server));
    let charged = || (callers.used(Resource::Links), servers.used(Resource::Served));
    register(&mut s, server);
    let (number, _) = link(&mut s, web);
    ask(&mut s, web, closed(number, Role::Caller));
    ask(&mut s, server, closed(number, Role::Server));
    assert_eq!(charged(), (1, 1), "the ends say that it is over");
    s.let_go(number, Role::Caller);
    assert_eq!(charged(), (0, 1), "what the server keeps is the server's");
    s.holds(number, Role::Caller);
    assert_eq!(charged(), (1, 1), "it has kept something after all");
    s.let_go(number, Role::Server);
    assert_eq!(charged(), (1, 0));
    s.let_go(number, Role::Caller);
    assert_eq!(charged(), (0, 0));
    let (number, _) = link(&mut s, web);
    s.closed(web, Instant::now());
    s.closed(server, Instant::now());
    assert_eq!(charged(), (1, 1), "they are gone, and somebody else may have the memory");
    forgotten(&mut s, number);
    assert_eq!(charged(), (0, 0));
}

#[test]
fn redirect_ends_by_its_callers_report_or_end() {
    let mut s = state();
    let web = open(&mut s, 2);
    let far = ServiceName::new("far").unwrap();
    for request in [1, 2] {
        ask(&mut s, web, Message::Link(LinkMessage::Connect { request, name: far.clone() }));
    }
    ask(&mut s, web, closed(1, Role::Caller));
    assert_eq!(open_links(&s), 1);
    let usage = Arc::clone(&s.connections[&web].standing.usage);
    assert_eq!(usage.used(Resource::Links), 1);
    s.closed(web, Instant::now());
    assert_eq!((open_links(&s), usage.used(Resource::Links)), (0, 0));
}

/// What is left of a server's places, for one account.
fn places_left(s: &State, server: Conn, uid: u32) -> bool {
    s.connections[&server].places.has_room_for(&Account::User(uid))
}

#[test]
fn server_place_is_freed_whichever_end_reports_the_end() {
    let mut s = under("[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n");
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    ask(
        &mut s,
        server,
        Message::Registry(RegistryMessage::Register { request: 1, name: name(), places: 1 }),
    );
    for round in 0..3 {
        let (number, _) = link(&mut s, web);
        assert!(!places_left(&s, server, 3), "round {round}");
        match round {
            0 => drop(ask(&mut s, server, closed(number, Role::Server))),
            // The kernel says it before the server does.
            1 => s.let_go(number, Role::Server),
            // The server ends it, and says so as well.
            _ => {
                ask(&mut s, server, closed(number, Role::Server));
                ask(&mut s, server, closed(number, Role::Server));
            }
        }
        forgotten(&mut s, number);
        assert!(places_left(&s, server, 3), "round {round}");
    }
}

#[test]
fn failed_creation_leaves_no_charge() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = offered(&connect(&mut s, web));
    s.faulty(number, Fault::Ours, "no descriptors", Instant::now());
    let e = take(&mut s);
    assert!(e.iter().any(|e| matches!(e, Effect::Over { link, .. } if *link == number)), "{e:?}");
    // There is no memory that the kernel could tell of.
    forgotten(&mut s, number);
    let used = |s: &State, conn: Conn, what| s.connections[&conn].standing.usage.used(what);
    assert_eq!(used(&s, web, Resource::Links) + used(&s, server, Resource::Served), 0);
    assert!(s.links.is_empty());
}

/// With more accounts than a pass looks at at once, the coordinator spun.
#[test]
fn many_accounts_that_wait_for_room_are_looked_at_in_a_while() {
    let mut s = under("[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n");
    let server = open(&mut s, 1);
    register(&mut s, server);
    let crowd: Vec<Conn> = (0..80).map(|n| open(&mut s, 100 + n)).collect();
    for conn in &crowd {
        for request in 0..3 {
            ask(&mut s, *conn, Message::Link(LinkMessage::Connect { request, name: name() }));
        }
    }
    for _ in 0..100 {
        while s.serve_question().is_some() {}
    }
    let now = Instant::now();
    assert!(s.next_timeout().unwrap() + Duration::from_secs(1) > now, "{:?}", s.next_timeout());
    assert!(s.serve_question().is_none() && s.hungry.rests(), "it goes on without a cause");
}

#[test]
fn a_hostile_server_uses_up_nothing_but_its_own() {
    let mut s = under("[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n");
    let (bad, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, bad);
    // It says nothing of the ends of its links; the caller lets go of each.
    let mut refusals = 0;
    for _ in 0..2000 {
        let e = connect(&mut s, web);
        let [Effect::Offer { link, .. }] = e[..] else {
            refusals += 1;
            continue;
        };
        ask(&mut s, bad, Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }));
        ask(&mut s, web, Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }));
        ask(&mut s, web, closed(link, Role::Caller));
        s.let_go(link, Role::Caller);
    }
    assert_eq!(refusals, 2000 - 1024, "its places are taken");
    let good = open(&mut s, 3);
    ask(
        &mut s,
        good,
        Message::Registry(RegistryMessage::Register { request: 1, name: name(), places: 100 }),
    );
    assert_eq!(link(&mut s, web).1, good);
    assert_eq!(s.connections[&web].standing.usage.used(Resource::Links), 1);
}

/// A name that one process served 500 times made each question for it cost 500 offers, all in the time
/// of who asked.
#[test]
fn question_goes_to_a_few_instances_that_do_not_answer() {
    let mut s = state();
    let web = open(&mut s, 2);
    for _ in 0..100 {
        let server = open(&mut s, 1);
        register(&mut s, server);
    }
    let mut e = connect(&mut s, web);
    let mut offers = 0;
    while let Some((link, to)) = e.iter().find_map(|e| match e {
        Effect::Offer { link, to, .. } => Some((*link, *to)),
        _ => None,
    }) {
        offers += 1;
        e = ask(&mut s, to, closed(link, Role::Server));
    }
    assert_eq!(offers, 8);
    let told = |e: &Effect| match e {
        Effect::Send {
            message: Message::Session(SessionMessage::Refused { text, .. }), ..
        } => Some(text.clone()),
        _ => None,
    };
    let told = e.iter().find_map(told).unwrap();
    assert!(told.starts_with("none of 8 instances that were asked of `g` has taken"), "{told}");
}

/// An end could fill the log with its peer's name, and use up the lines that the peer's user has.
#[test]
fn blame_is_recorded_once_and_charged_to_its_sender() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    for (role, by, accused) in [(Role::Caller, web, server), (Role::Server, server, web)] {
        let (number, _) = link(&mut s, web);
        let mut blamed = Vec::new();
        for _ in 0..100 {
            let (blame, stats) = (Blame::Peer, LinkStats::default());
            s.message(
                by,
                Message::End(EndMessage::Closed { link: number, role, blame, stats }),
                Instant::now(),
            );
            let event = |e| match e {
                Effect::Audit(event @ Event::Blamed { .. }) => Some(event),
                _ => None,
            };
            blamed.extend(s.take_effects().into_iter().filter_map(event));
        }
        let [event] = &blamed[..] else { panic!("{blamed:?}") };
        let account = |conn: Conn| s.connections[&conn].standing.usage.account().clone();
        assert_eq!(event.account(), Some(account(by)));
        let text = serde_json::to_value(event).unwrap();
        assert_eq!(text["account"], account(accused).to_string());
        assert_eq!(text["said_by"], account(by).to_string());
    }
}

#[test]
fn a_cancelled_question_leaves_nothing() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = offered(&connect(&mut s, web));
    let e = ask(&mut s, web, Message::Link(LinkMessage::Cancel { request: 2 }));
    assert!(
        matches!(&e[..], [Effect::Send { to, message: Message::End(EndMessage::Ended { .. }) }, Effect::Over { .. }] if *to == server),
        "{e:?}"
    );
    forgotten(&mut s, number);
    let usage = &s.connections[&web].standing.usage;
    for resource in [Resource::Links, Resource::Opening, Resource::Waiting] {
        assert_eq!(usage.used(resource), 0, "{resource}");
    }
    assert!(s.links.is_empty() && s.deadlines.is_empty());
    assert_eq!(s.connections[&web].opening, 0);
}

#[test]
fn an_end_that_lies_about_its_memory_is_blamed() {
    let mut s = state();
    let (server, good, web) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    register(&mut s, good);
    let (number, to) = offered(&connect(&mut s, web));
    ask(
        &mut s,
        to,
        Message::Link(LinkMessage::Adopted { link: number, security: Security::HIGHEST }),
    );
    s.faulty(number, Fault::Of(Role::Server), "no seal", Instant::now());
    let mut effects = s.take_effects();
    assert!(effects.iter().any(|e| matches!(e, Effect::Audit(Event::Blamed { .. }))));
    effects.extend(take(&mut s));
    let next = effects.iter().find_map(|e| match e {
        Effect::Offer { to, .. } => Some(*to),
        _ => None,
    });
    assert_eq!(next, Some(good), "the caller gets another instance");
}

#[test]
fn numbers_of_other_connections_have_no_effect() {
    let mut s = state();
    let (server, web, third) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 2));
    let e = register(&mut s, server);
    let [
        Effect::Send {
            message: Message::Registry(RegistryMessage::Registered { registration, .. }),
            ..
        },
    ] = e[..]
    else {
        panic!("{e:?}")
    };
    let (number, _) = offered(&connect(&mut s, web));
    let stats = counted(9);
    for m in [
        Message::Registry(RegistryMessage::Unregister { registration }),
        list::told_of(number, stats, LinkMethods::default()),
        closed(number, Role::Server),
        closed(number, Role::Caller),
        Message::Link(LinkMessage::Adopted { link: number, security: Security::HIGHEST }),
        Message::Link(LinkMessage::Cancel { request: 2 }),
    ] {
        assert_eq!(ask(&mut s, third, m), []);
    }
    assert_eq!(
        ask(
            &mut s,
            web,
            Message::Link(LinkMessage::Adopted { link: number, security: Security::HIGHEST })
        ),
        [],
        "not its turn"
    );
    assert_eq!((s.instances(&name()), s.links[&number].stats.calls), (1, 0));
}

#[test]
fn failed_creation_is_reported_to_the_caller() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = offered(&connect(&mut s, web));
    s.faulty(number, Fault::Ours, "no memory", Instant::now());
    let e = take(&mut s);
    let refusal = e.iter().find(|e| matches!(e, Effect::Send { to, .. } if *to == web));
    assert_eq!(
        refused(std::slice::from_ref(refusal.unwrap())),
        (UNAVAILABLE, "no link to `g`: no memory")
    );
    assert_eq!(open_links(&s), 0);
}

#[test]
fn process_that_sends_messages_of_a_coordinator_is_closed() {
    let mut s = state();
    let web = open(&mut s, 2);
    let e = ask(&mut s, web, Message::List(ListMessage::Listed { request: 1 }));
    assert!(matches!(&e[..], [Effect::Close { .. }]));
}

mod containers;
mod grants;
mod hardening;
mod instances;
mod list;
mod memory;
mod operators;
mod redirects;
mod reload;
mod reports;
mod sealing;
mod security;
mod shares;
mod signatures;
mod trace;
