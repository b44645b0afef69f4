//! The books, asked one message at a time.

use super::list::{LIST_WAIT, ROWS};
use super::*;
use partywall_abi::control::LinkRow;

pub(super) fn facts(uid: u32) -> Facts {
    Facts {
        uid,
        gid: 0,
        pid: Some(uid + 1),
        digest: Digest::Unknown,
        digest_error: None,
        cgroup: String::new(),
        started_as: None,
        domain: None,
    }
}

pub(super) fn name() -> ServiceName {
    ServiceName::new("g").unwrap()
}

pub(super) fn state() -> State {
    let policy = "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
                  [service.g]\nregister = ['server']\n[service.g.call]\nweb = ['a.B/*']\n\
                  [service.far.call]\nweb = ['*']\n[names]\nfar = 'http://h:1'\n";
    State::new(Policy::parse("p", policy).unwrap(), 9)
}

pub(super) fn open(s: &mut State, uid: u32) -> Conn {
    let conn = s.opened(facts(uid));
    s.take_effects();
    conn
}

pub(super) fn ask(s: &mut State, conn: Conn, m: Message) -> Vec<Effect> {
    s.message(conn, m, Instant::now());
    s.take_effects()
}

pub(super) fn refused(effects: &[Effect]) -> (u8, &str) {
    match effects {
        [Effect::Send { message: Message::Refused { code, text, .. }, .. }] => (*code, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn denied_by_default_with_the_remedy() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let e = ask(&mut s, web, Message::Register { request: 1, name: name() });
    let (code, text) = refused(&e);
    assert_eq!(code, PERMISSION_DENIED);
    assert!(text.contains("[service.g] register") && text.contains("known as web"), "{text}");
    let e = ask(&mut s, server, Message::Connect { request: 1, name: name() });
    assert_eq!(refused(&e).0, PERMISSION_DENIED);
    let e = ask(&mut s, web, Message::Connect { request: 1, name: name() });
    assert_eq!(refused(&e).0, UNAVAILABLE);
}

fn introduced(effects: &[Effect]) -> (u64, Conn) {
    match effects {
        [Effect::Introduce(Introduction { link, server, .. })] => (*link, server.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn instances_take_turns_and_a_dead_one_is_out_at_once() {
    let mut s = state();
    let (a, b, web) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2));
    for conn in [a, b] {
        ask(&mut s, conn, Message::Register { request: 1, name: name() });
    }
    let mut turns =
        || introduced(&ask(&mut s, web, Message::Connect { request: 2, name: name() })).1;
    assert_eq!([turns(), turns(), turns(), turns()], [a, b, a, b]);
    s.closed(a);
    s.take_effects();
    for _ in 0..3 {
        let e = ask(&mut s, web, Message::Connect { request: 2, name: name() });
        assert_eq!(introduced(&e).1, b);
    }
}

#[test]
fn a_watcher_hears_of_each_change() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let count = |e: &[Effect]| -> Vec<u32> {
        e.iter()
            .filter_map(|e| match e {
                Effect::Send { to, message: Message::Watched { request: 5, instances } } => {
                    assert_eq!(*to, web);
                    Some(*instances)
                }
                _ => None,
            })
            .collect()
    };
    assert_eq!(count(&ask(&mut s, web, Message::Watch { request: 5, name: name() })), [0]);
    assert_eq!(count(&ask(&mut s, server, Message::Register { request: 1, name: name() })), [1]);
    s.closed(server);
    assert_eq!(count(&s.take_effects()), [0]);
    ask(&mut s, web, Message::Unwatch { request: 5 });
    let server = open(&mut s, 1);
    assert!(count(&ask(&mut s, server, Message::Register { request: 1, name: name() })).is_empty());
}

#[test]
fn a_name_elsewhere_is_a_redirect() {
    let mut s = state();
    let web = open(&mut s, 2);
    let far = ServiceName::new("far").unwrap();
    let e = ask(&mut s, web, Message::Connect { request: 1, name: far });
    assert!(
        matches!(&e[..], [Effect::Send { message: Message::Redirect { url, .. }, .. }] if url == "http://h:1")
    );
}

/// All that a connection with room for everything is sent.
fn told(s: &mut State, conn: Conn) -> (Vec<LinkRow>, usize) {
    let (mut rows, mut batches) = (Vec::new(), 0);
    while s.lists_to().any(|c| c == conn) {
        s.room(conn);
        batches += 1;
        let effects = s.take_effects();
        assert!(effects.len() <= ROWS + 1);
        for e in effects {
            match e {
                Effect::Send { message: Message::Row { row, .. }, .. } => rows.push(row),
                Effect::Send { message: Message::Listed { .. }, .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    (rows, batches)
}

#[test]
fn a_list_asks_the_servers_and_does_not_wait_for_ever() {
    let mut s = state();
    let (server, web, operator) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 9));
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    let (link, _) = introduced(&ask(&mut s, web, Message::Connect { request: 2, name: name() }));
    assert_eq!(refused(&ask(&mut s, web, Message::List { request: 3 })).0, PERMISSION_DENIED);
    let e = ask(&mut s, operator, Message::List { request: 3 });
    assert!(
        matches!(&e[..], [Effect::Send { to, message: Message::Query { .. } }] if *to == server)
    );
    let stats = LinkStats { calls: 5, ..LinkStats::default() };
    assert!(ask(&mut s, server, Message::Counted { request: 1, link, stats }).is_empty());
    assert!(
        ask(&mut s, web, Message::Counted { request: 1, link, stats: LinkStats::default() })
            .is_empty()
    );
    s.timeout(Instant::now());
    assert_eq!(told(&mut s, operator).1, 0, "too early");
    s.timeout(Instant::now() + LIST_WAIT);
    let (rows, _) = told(&mut s, operator);
    assert_eq!((rows.len(), rows[0].stats.calls, rows[0].open), (1, 5, true));
}

#[test]
fn a_long_list_is_told_in_batches_and_whole() {
    let mut s = state();
    let (server, operator) = (open(&mut s, 1), open(&mut s, 9));
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    let callers: Vec<Conn> = (0..3).map(|_| open(&mut s, 2)).collect();
    for i in 0..3 * LINKS_TO_ONE_NAME {
        ask(&mut s, callers[i % 3], Message::Connect { request: 2, name: name() });
    }
    ask(&mut s, operator, Message::List { request: 3 });
    ask(&mut s, server, Message::CountedAll { request: 1 });
    let (rows, batches) = told(&mut s, operator);
    let numbers: Vec<u64> = rows.iter().map(|r| r.link).collect();
    assert_eq!(numbers, (1..=3 * LINKS_TO_ONE_NAME as u64).collect::<Vec<_>>());
    assert_eq!(batches, 3 * LINKS_TO_ONE_NAME / ROWS);
}

fn open_links(s: &State) -> usize {
    s.links.values().filter(|l| l.open).count()
}

#[test]
fn only_the_servers_word_ends_a_link() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    let connect =
        |s: &mut State| introduced(&ask(s, web, Message::Connect { request: 2, name: name() }));
    let (first, _) = connect(&mut s);
    connect(&mut s);
    let stats = LinkStats { calls: 1, ..LinkStats::default() };
    ask(&mut s, web, Message::Closed { link: first, stats });
    assert_eq!((open_links(&s), s.links[&first].stats.calls), (2, 0));
    s.closed(web);
    assert_eq!(open_links(&s), 2, "hidden by a caller that hung up");
    ask(&mut s, server, Message::Closed { link: first, stats });
    assert_eq!((open_links(&s), s.links[&first].stats.calls), (1, 1));
    s.closed(server);
    assert_eq!(open_links(&s), 0, "kept by a server that is gone");
}

#[test]
fn a_redirect_ends_with_its_callers_word_or_its_caller() {
    let mut s = state();
    let web = open(&mut s, 2);
    let far = ServiceName::new("far").unwrap();
    for request in [1, 2] {
        ask(&mut s, web, Message::Connect { request, name: far.clone() });
    }
    ask(&mut s, web, Message::Closed { link: 1, stats: LinkStats::default() });
    assert_eq!(open_links(&s), 1);
    s.closed(web);
    assert_eq!(open_links(&s), 0);
}

#[test]
fn a_caller_has_so_many_links_to_a_name_and_no_more() {
    let mut s = state();
    let (server, web, other) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 2));
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    let connect = |s: &mut State, conn| ask(s, conn, Message::Connect { request: 2, name: name() });
    let (first, _) = introduced(&connect(&mut s, web));
    for _ in 1..LINKS_TO_ONE_NAME {
        introduced(&connect(&mut s, web));
    }
    let e = connect(&mut s, web);
    let (code, text) = refused(&e);
    assert_eq!(code, RESOURCE_EXHAUSTED);
    assert!(text.contains("1024 links to `g`") && text.contains("share a channel"), "{text}");
    introduced(&connect(&mut s, other));
    ask(&mut s, server, Message::Closed { link: first, stats: LinkStats::default() });
    introduced(&connect(&mut s, web));
    refused(&connect(&mut s, web));
}

#[test]
fn a_caller_has_so_many_links_in_all_and_no_more() {
    let names: Vec<ServiceName> =
        (0..5).map(|n| ServiceName::new(&format!("far{n}")).unwrap()).collect();
    let (mut calls, mut urls) = (String::new(), String::from("[names]\n"));
    for n in &names {
        calls += &format!("[service.{n}.call]\nanyone = ['*']\n");
        urls += &format!("{n} = 'http://h:1'\n");
    }
    let policy = Policy::parse("p", &(calls + &urls)).unwrap();
    let mut s = State::new(policy, 9);
    let web = open(&mut s, 2);
    for i in 0..LINKS {
        let name = names[i / LINKS_TO_ONE_NAME].clone();
        let e = ask(&mut s, web, Message::Connect { request: 1, name });
        assert!(matches!(&e[..], [Effect::Send { message: Message::Redirect { .. }, .. }]));
    }
    let e = ask(&mut s, web, Message::Connect { request: 1, name: names[4].clone() });
    let (code, text) = refused(&e);
    assert_eq!(code, RESOURCE_EXHAUSTED);
    assert!(text.contains("4096 links") && text.contains("share a channel"), "{text}");
}

#[test]
fn a_server_has_so_many_links_and_no_more() {
    let mut s = state();
    let server = open(&mut s, 1);
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    let connect = |s: &mut State| {
        let web = open(s, 2);
        let e = ask(s, web, Message::Connect { request: 2, name: name() });
        s.closed(web);
        e
    };
    for _ in 0..LINKS_OF_ONE_SERVER {
        introduced(&connect(&mut s));
    }
    let e = connect(&mut s);
    let (code, text) = refused(&e);
    assert_eq!(code, RESOURCE_EXHAUSTED);
    assert!(text.contains("start another instance"), "{text}");
    let second = open(&mut s, 1);
    ask(&mut s, second, Message::Register { request: 1, name: name() });
    for _ in 0..2 {
        assert_eq!(introduced(&connect(&mut s)).1, second);
    }
}

#[test]
fn a_process_serves_and_watches_so_many_names_and_no_more() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    for request in 0..64 {
        let e = ask(&mut s, server, Message::Register { request, name: name() });
        assert!(matches!(&e[..], [Effect::Send { message: Message::Registered { .. }, .. }]));
    }
    let e = ask(&mut s, server, Message::Register { request: 64, name: name() });
    assert_eq!(refused(&e), (RESOURCE_EXHAUSTED, "one process may serve at most 64 names"));
    for request in 0..64 {
        let e = ask(&mut s, web, Message::Watch { request, name: name() });
        assert!(matches!(&e[..], [Effect::Send { message: Message::Watched { .. }, .. }]));
    }
    let e = ask(&mut s, web, Message::Watch { request: 64, name: name() });
    assert_eq!(refused(&e), (RESOURCE_EXHAUSTED, "one process may watch at most 64 names"));
}

#[test]
fn the_numbers_of_others_are_worth_nothing() {
    let mut s = state();
    let (server, web, third) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 2));
    let e = ask(&mut s, server, Message::Register { request: 1, name: name() });
    let [Effect::Send { message: Message::Registered { registration, .. }, .. }] = e[..] else {
        panic!("{e:?}")
    };
    let e = ask(&mut s, web, Message::Connect { request: 2, name: name() });
    let (link, _) = introduced(&e);
    let stats = LinkStats { calls: 9, ..LinkStats::default() };
    for m in [
        Message::Unregister { registration },
        Message::Counted { request: 1, link, stats },
        Message::Closed { link, stats },
    ] {
        assert_eq!(ask(&mut s, third, m), []);
    }
    assert_eq!((s.instances(&name()), open_links(&s), s.links[&link].stats.calls), (1, 1, 0));
}

#[test]
fn a_failed_introduction_is_told_to_the_caller() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    let e = ask(&mut s, web, Message::Connect { request: 2, name: name() });
    let [Effect::Introduce(introduction)] = &e[..] else { panic!("{e:?}") };
    s.introduction_failed(introduction, "no memory");
    assert_eq!(refused(&s.take_effects()), (UNAVAILABLE, "no link to `g`: no memory"));
    assert_eq!(open_links(&s), 0);
}

#[test]
fn a_process_that_plays_the_coordinator_is_closed() {
    let mut s = state();
    let web = open(&mut s, 2);
    let e = ask(&mut s, web, Message::Listed { request: 1 });
    assert!(matches!(&e[..], [Effect::Close { .. }]));
}

#[test]
fn a_few_links_are_wide_and_a_thousand_stay_below_200_mib() {
    let mut s = state();
    let server = open(&mut s, 1);
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    let mut bytes = 0;
    let geometry = |s: &mut State| {
        let web = open(s, 2);
        let effects = ask(s, web, Message::Connect { request: 2, name: name() });
        let introduced = effects.into_iter().find_map(|e| match e {
            Effect::Introduce(i) => Some(i),
            _ => None,
        });
        introduced.expect("an introduction").geometry
    };
    for i in 0..1000 {
        let g = geometry(&mut s);
        assert_eq!(g == Geometry::WIDE, i < WIDE_LINKS);
        bytes += 2 * g.outbox_bytes();
    }
    assert!(bytes < 200 << 20, "{bytes}");
    assert_eq!(geometry(&mut s), Geometry::DEFAULT);
    let all: Vec<u64> = s.links.keys().copied().collect();
    for link in all {
        ask(&mut s, server, Message::Closed { link, stats: LinkStats::default() });
    }
    assert_eq!(geometry(&mut s), Geometry::WIDE);
}

#[test]
fn closed_links_are_remembered_in_bounds() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    ask(&mut s, server, Message::Register { request: 1, name: name() });
    for _ in 0..REMEMBERED + 50 {
        let (link, _) =
            introduced(&ask(&mut s, web, Message::Connect { request: 2, name: name() }));
        ask(&mut s, server, Message::Closed { link, stats: LinkStats::default() });
    }
    assert_eq!(s.links.len(), REMEMBERED);
}
