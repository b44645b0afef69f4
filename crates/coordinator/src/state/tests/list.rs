use super::grants::{granting, leasing, plain};
use super::*;
use crate::state::list::{LIST_WAIT, ROWS};
use partywall_abi::control::{MethodStats, PaceStats, ParcelStats};

/// What a server says that a link has counted.
pub(super) fn told_of(link: u64, stats: LinkStats, methods: LinkMethods) -> Message {
    Message::List(ListMessage::Counted { request: 1, link, stats, methods })
}

/// All that a connection with room for everything is sent.
fn told(s: &mut State, conn: Conn) -> (Vec<LinkRow>, usize) {
    let (mut rows, mut batches) = (Vec::new(), 0);
    while s.is_due(conn) {
        s.room(conn);
        batches += 1;
        let effects = s.take_effects();
        assert!(effects.len() <= ROWS + 1);
        for e in effects {
            match e {
                Effect::Send { message: Message::List(ListMessage::Row { row, .. }), .. } => {
                    rows.push(*row)
                }
                Effect::Send { message: Message::List(ListMessage::Listed { .. }), .. } => {}
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
    register(&mut s, server);
    let (link, _) = link(&mut s, web);
    assert_eq!(
        refused(&ask(&mut s, web, Message::List(ListMessage::List { request: 3 }))).0,
        PERMISSION_DENIED
    );
    let e = ask(&mut s, operator, Message::List(ListMessage::List { request: 3 }));
    assert!(
        matches!(&e[..], [Effect::Send { to, message: Message::List(ListMessage::Query { .. }) }] if *to == server)
    );
    let stats = counted(5);
    let methods = LinkMethods::new(vec![MethodStats::new("/a.B/C", 4, 1)], 0);
    assert!(ask(&mut s, server, told_of(link, stats, methods.clone())).is_empty());
    let nothing = told_of(link, LinkStats::default(), LinkMethods::default());
    assert!(ask(&mut s, web, nothing).is_empty());
    s.timeout(Instant::now());
    assert_eq!(told(&mut s, operator).1, 0, "too early");
    s.timeout(Instant::now() + LIST_WAIT);
    let (rows, _) = told(&mut s, operator);
    assert_eq!((rows.len(), rows[0].stats.calls, rows[0].open), (1, 5, true));
    assert_eq!(rows[0].methods, methods);
}

/// The rows that an operator is told once the servers have had their time.
pub(super) fn listed(s: &mut State, operator: Conn) -> Vec<LinkRow> {
    ask(s, operator, Message::List(ListMessage::List { request: 3 }));
    s.timeout(Instant::now() + LIST_WAIT);
    told(s, operator).0
}

#[test]
fn an_operator_of_an_older_build_is_told_of_no_methods() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (link, _) = link(&mut s, web);
    let methods = LinkMethods::new(vec![MethodStats::new("/a.B/C", 4, 1)], 2);
    ask(&mut s, server, told_of(link, counted(7), methods.clone()));
    // The last word of its server is remembered.
    ask(&mut s, server, closed(link, Role::Server));
    for (capabilities, expected) in
        [(Capabilities::ROOM, LinkMethods::default()), (Capabilities::WAYS, methods)]
    {
        let usage = s.account(&facts(9));
        let operator = s.opened(facts(9), usage, Spoken { capabilities, ..SPOKEN });
        take(&mut s);
        let rows = listed(&mut s, operator);
        assert_eq!((rows.len(), rows[0].open), (1, false));
        assert_eq!(rows[0].methods, expected, "{capabilities}");
    }
}

#[test]
fn what_is_kept_of_methods_is_bounded_for_each_account() {
    let mut s = state();
    let (server, operator) = (open(&mut s, 1), open(&mut s, 9));
    register(&mut s, server);
    let path = format!("/{}", "x".repeat(1023));
    let hostile = LinkMethods::new(vec![MethodStats::new(&path, 1, 1); 16], u32::MAX);
    let callers = [open(&mut s, 2), open(&mut s, 3)];
    let mut links = Vec::new();
    for _ in 0..200 {
        let (link, _) = link(&mut s, callers[0]);
        ask(&mut s, server, told_of(link, counted(2), hostile.clone()));
        links.push(link);
    }
    let used = |s: &State| s.connections[&server].standing.usage.used(Resource::Methods);
    // Half of what its server may have.
    assert!((500 << 10..=512 << 10).contains(&used(&s)), "{}", used(&s));
    let (others, _) = link(&mut s, callers[1]);
    let methods = LinkMethods::new(vec![MethodStats::new("/a.B/C", 4, 1)], 0);
    ask(&mut s, server, told_of(others, counted(5), methods.clone()));
    let rows = listed(&mut s, operator);
    assert_eq!(rows.len(), 201);
    assert_eq!(rows[0].methods.most_called.len(), 16);
    assert_eq!(rows[199].methods, LinkMethods::new(Vec::new(), u32::MAX));
    assert_eq!(rows[200].methods, methods);
    // What it says anew is in place of what it has said.
    for link in links {
        ask(&mut s, server, told_of(link, counted(2), LinkMethods::default()));
    }
    assert_eq!(used(&s), 64 + "/a.B/C".len());
    let few = LinkMethods::new(vec![MethodStats::new(&path, 1, 1); 3], 5);
    ask(&mut s, server, told_of(others, counted(5), few));
    assert_eq!(used(&s), 3 * (64 + 1024));
}

#[test]
fn long_list_is_sent_whole_in_batches() {
    let mut s = state();
    let (server, operator) = (open(&mut s, 1), open(&mut s, 9));
    register(&mut s, server);
    for uid in [2, 3] {
        let caller = open(&mut s, uid);
        for _ in 0..1024 {
            link(&mut s, caller);
        }
    }
    ask(&mut s, operator, Message::List(ListMessage::List { request: 3 }));
    ask(&mut s, server, Message::List(ListMessage::CountedAll { request: 1 }));
    let (rows, batches) = told(&mut s, operator);
    let numbers: Vec<u64> = rows.iter().map(|r| r.link).collect();
    assert_eq!(numbers, (1..=2048).collect::<Vec<_>>());
    assert_eq!(batches, 2048 / ROWS);
}

#[test]
fn each_end_is_asked_of_parcels_and_its_word_is_its_own() {
    let mut s = state();
    s.reload(granting(leasing(2)), None, Instant::now());
    let (server, web, operator) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 9));
    register(&mut s, server);
    let (link, _) = link(&mut s, web);
    let sent = |role, parcels| {
        let parcels = ParcelStats::new(parcels, 1000 * parcels);
        Message::List(ListMessage::Sent { request: 1, link, role, parcels })
    };
    let asked = ask(&mut s, operator, Message::List(ListMessage::List { request: 3 }));
    let queried = asked.iter().filter_map(|e| match e {
        Effect::Send { to, message: Message::List(ListMessage::Query { .. }) } => Some(*to),
        _ => None,
    });
    assert_eq!(queried.collect::<Vec<_>>(), [server, web]);
    for (conn, role, parcels) in [
        (web, Role::Caller, 2),
        (web, Role::Server, 99),
        (server, Role::Server, 5),
        (server, Role::Caller, 98),
        (operator, Role::Caller, 97),
    ] {
        assert!(ask(&mut s, conn, sent(role, parcels)).is_empty());
    }
    s.timeout(Instant::now() + LIST_WAIT);
    let row = told(&mut s, operator).0.remove(0);
    let all = (row.grant, row.caller_parcels, row.stats.parcels);
    assert_eq!(all, (leasing(2), ParcelStats::new(2, 2000), ParcelStats::new(5, 5000)));
    // Its last word stays, whoever says what afterwards.
    ask(&mut s, server, closed(link, Role::Server));
    ask(&mut s, web, closed(link, Role::Caller));
    assert_eq!(listed(&mut s, operator)[0].caller_parcels, ParcelStats::new(2, 2000));
    let usage = s.account(&facts(9));
    let older = Spoken { capabilities: Capabilities::CONTAINERS, ..SPOKEN };
    let older = s.opened(facts(9), usage, older);
    take(&mut s);
    assert_eq!(listed(&mut s, older)[0].grant, Grant::NONE);
    // One that takes the bit of leases for more descriptors.
    let usage = s.account(&facts(9));
    let without = Capabilities::OWN.without(Capabilities::ATTACHMENTS);
    let older = s.opened(facts(9), usage, Spoken { capabilities: without, ..SPOKEN });
    take(&mut s);
    assert_eq!(listed(&mut s, older)[0].grant, plain(2));
}

#[test]
fn parcels_of_a_link_without_a_grant_are_not_heard() {
    let mut s = state();
    let (server, web, operator) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 9));
    register(&mut s, server);
    let (link, _) = link(&mut s, web);
    for (conn, role) in [(web, Role::Caller), (server, Role::Server)] {
        let parcels = ParcelStats::new(1, 1);
        ask(&mut s, conn, Message::List(ListMessage::Sent { request: 1, link, role, parcels }));
    }
    let row = listed(&mut s, operator).remove(0);
    let nothing = ParcelStats::default();
    assert_eq!((row.grant, row.caller_parcels, row.stats.parcels), (Grant::NONE, nothing, nothing));
}

#[test]
fn the_audit_log_says_whether_descriptors_may_cross() {
    let says = |grant: Grant| {
        let mut s = state();
        s.reload(granting(grant), None, Instant::now());
        let (server, web) = (open(&mut s, 1), open(&mut s, 2));
        register(&mut s, server);
        let (link, _) = offered(&connect(&mut s, web));
        for conn in [server, web] {
            let security = Security::HIGHEST;
            ask(&mut s, conn, Message::Link(LinkMessage::Adopted { link, security }));
        }
        s.introduced(link);
        let introduced = logged(&s.take_effects());
        s.reload(granting(leasing(3)), None, Instant::now());
        (introduced, logged(&s.take_effects()))
    };
    let (introduced, later) = says(leasing(2));
    assert!(introduced[0].contains("\"event\":\"introduced\""), "{introduced:?}");
    assert!(introduced[0].contains("\"descriptors\":2,\"leases\":true"), "{introduced:?}");
    assert!(!later.iter().any(|line| line.contains("granted")), "{later:?}");
    let (introduced, later) = says(plain(0));
    assert!(introduced[0].contains("\"descriptors\":0,\"leases\":false"), "{introduced:?}");
    assert!(introduced[0].contains("\"seal\":\"off\",\"sign\":\"off\"}"), "{introduced:?}");
    let granted = later.iter().find(|line| line.contains("\"event\":\"granted\"")).unwrap();
    let what = "\"descriptors\":3,\"leases\":true";
    assert!(granted.contains(what) && granted.contains("\"uid\":2"), "{granted}");
}

/// The lines of the audit log, without their times.
fn logged(effects: &[Effect]) -> Vec<String> {
    let line = |e: &Effect| match e {
        Effect::Audit(event) => Some(serde_json::to_string(event).unwrap()),
        _ => None,
    };
    effects.iter().filter_map(line).collect()
}

#[test]
fn the_ends_of_a_names_links_measure_and_each_says_its_own() {
    let policy = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n\
                  [service.h]\nregister = ['anyone']\n[service.h.call]\nanyone = ['*']\n";
    let mut s = under(policy);
    let older = Spoken { capabilities: Capabilities::WAYS, ..SPOKEN };
    let (server, web, operator) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 9));
    register(&mut s, server);
    let (number, _) = link(&mut s, web);
    let usage = s.account(&facts(3));
    let old = s.opened(facts(3), usage, older);
    take(&mut s);
    let (with_old, _) = link(&mut s, old);
    // A link to another name.
    let far = ServiceName::new("h").unwrap();
    let (elsewhere, caller) = (open(&mut s, 4), open(&mut s, 5));
    let register = RegistryMessage::Register { request: 1, name: far.clone(), places: 9 };
    ask(&mut s, elsewhere, Message::Registry(register));
    let (other, _) = offered(&ask(
        &mut s,
        caller,
        Message::Link(LinkMessage::Connect { request: 2, name: far }),
    ));
    for conn in [elsewhere, caller] {
        let security = Security::HIGHEST;
        ask(&mut s, conn, Message::Link(LinkMessage::Adopted { link: other, security }));
    }
    s.introduced(other);
    s.take_effects();

    let observe = || Message::List(ListMessage::Observe { request: 3, name: name() });
    assert_eq!(refused(&ask(&mut s, web, observe())).0, PERMISSION_DENIED);
    let asked = ask(&mut s, operator, observe());
    let asked = asked.into_iter().map(|e| match e {
        Effect::Send { to, message: Message::List(ListMessage::Measure { name, .. }) } => {
            (to, Some(name.to_string()))
        }
        Effect::Send { to, message: Message::List(ListMessage::Query { .. }) } => (to, None),
        other => panic!("{other:?}"),
    });
    let measures = Some("g".to_string());
    let wanted = [(server, measures.clone()), (web, measures), (old, None)];
    assert_eq!(asked.collect::<Vec<_>>(), wanted);
    let pace = |n| PaceStats::new(n, n, n);
    for (conn, role, n) in [
        (web, Role::Caller, 2),
        (web, Role::Server, 99),
        (server, Role::Server, 5),
        (operator, Role::Caller, 98),
    ] {
        let pace = pace(n);
        let said = ListMessage::Measured { request: 1, link: number, role, pace };
        assert!(ask(&mut s, conn, Message::List(said)).is_empty());
    }
    s.timeout(Instant::now() + LIST_WAIT);
    s.room(operator);
    let told = s.take_effects().into_iter().map(|e| match e {
        Effect::Send { message: Message::List(ListMessage::Row { row, .. }), .. } => {
            format!("row {}", row.link)
        }
        Effect::Send { message: Message::List(ListMessage::Unable { link, role, .. }), .. } => {
            format!("unable {link} {role:?}")
        }
        Effect::Send {
            message: Message::List(ListMessage::Pace { link, caller, server, .. }),
            ..
        } => {
            let ended = |pace: Option<PaceStats>| pace.map(|pace| pace.ended);
            format!("pace {link} {:?} {:?}", ended(caller), ended(server))
        }
        Effect::Send { message: Message::List(ListMessage::Listed { .. }), .. } => "listed".into(),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            format!("row {number}"),
            format!("pace {number} Some(2) Some(5)"),
            format!("row {with_old}"),
            format!("unable {with_old} Caller"),
            format!("pace {with_old} None None"),
            "listed".into(),
        ]
    );
}
