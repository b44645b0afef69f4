//! Instances are there while they are served, and references while callers hold links by the kernel's word.

use partywall_abi::control::InstanceRow;
use partywall_abi::security::Isolation;

use super::*;
use crate::identity::Domain;
use crate::state::list::ROWS;

/// What an operator is told, and in how many batches.
pub(super) fn told(s: &mut State, operator: Conn) -> (Vec<InstanceRow>, usize) {
    assert_eq!(ask(s, operator, Message::List(ListMessage::Instances { request: 3 })), []);
    let (mut rows, mut batches, mut listed) = (Vec::new(), 0, 0);
    while s.is_due(operator) {
        s.room(operator);
        batches += 1;
        for e in s.take_effects() {
            match e {
                Effect::Send {
                    to,
                    message: Message::List(ListMessage::Instance { row, request: 3 }),
                } => {
                    assert_eq!(to, operator);
                    rows.push(*row);
                }
                Effect::Send {
                    message: Message::List(ListMessage::Listed { request: 3 }), ..
                } => {
                    listed += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(listed, 1);
    (rows, batches)
}

/// Links, callers and outboxes of default size, of each instance.
fn references(s: &mut State, operator: Conn) -> Vec<(u32, u32, u64)> {
    let outbox = Geometry::WIDE.outbox_bytes() as u64;
    let rows = told(s, operator).0.into_iter();
    rows.map(|row| (row.links, row.callers, row.memory / outbox)).collect()
}

#[test]
fn an_instance_is_there_while_it_is_served_called_or_not() {
    let mut s = state();
    let (server, other, operator) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 9));
    assert_eq!(told(&mut s, operator).0, []);
    let registered = register(&mut s, server);
    register(&mut s, other);
    let rows = told(&mut s, operator).0;
    assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["g", "g"]);
    assert_eq!((rows[0].server.uid, rows[0].links, rows[0].callers, rows[0].memory), (1, 0, 0, 0));
    let [
        Effect::Send {
            message: Message::Registry(RegistryMessage::Registered { registration, .. }),
            ..
        },
    ] = &registered[..]
    else {
        panic!("{registered:?}");
    };
    let over = RegistryMessage::Unregister { registration: *registration };
    ask(&mut s, server, Message::Registry(over));
    assert_eq!(told(&mut s, operator).0.len(), 1);
    s.closed(other, Instant::now());
    assert_eq!(told(&mut s, operator).0, []);
}

#[test]
fn a_reference_counts_until_the_kernel_says_that_it_is_let_go() {
    let mut s = state();
    let (server, web, other) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 3));
    let operator = open(&mut s, 9);
    register(&mut s, server);
    let (first, _) = link(&mut s, web);
    let (second, _) = link(&mut s, web);
    let (third, _) = link(&mut s, other);
    assert_eq!(references(&mut s, operator), [(3, 2, 6)]);
    // Its word alone changes nothing.
    ask(&mut s, web, closed(first, Role::Caller));
    assert_eq!(references(&mut s, operator), [(3, 2, 6)]);
    s.let_go(first, Role::Caller);
    assert_eq!(references(&mut s, operator), [(2, 2, 6)]);
    s.let_go(first, Role::Server);
    assert_eq!(references(&mut s, operator), [(2, 2, 4)]);
    // Nor does the end of its connection.
    s.closed(web, Instant::now());
    take(&mut s);
    assert_eq!(references(&mut s, operator), [(2, 2, 4)]);
    s.let_go(second, Role::Caller);
    assert_eq!(references(&mut s, operator), [(1, 1, 4)]);
    s.let_go(third, Role::Caller);
    s.holds(third, Role::Caller);
    assert_eq!(references(&mut s, operator), [(1, 1, 4)]);
}

#[test]
fn instances_come_in_batches_and_each_one_once() {
    let policy = "[service.'a*']\nregister = ['anyone']\n";
    let policy =
        (0..100).fold(String::new(), |text, n| text + &policy.replace("'a*'", &format!("a{n}")));
    let mut s = under(&policy);
    let operator = open(&mut s, 9);
    let mut wanted = Vec::new();
    for uid in [1, 2, 9] {
        let conn = open(&mut s, uid);
        // One that serves a name twice is one instance.
        for n in (0..100).chain([5, 6]) {
            let name = ServiceName::new(&format!("a{n}")).unwrap();
            let message = RegistryMessage::Register { request: 1, name, places: 1 };
            let answer = ask(&mut s, conn, Message::Registry(message));
            assert!(matches!(
                &answer[..],
                [Effect::Send {
                    message: Message::Registry(RegistryMessage::Registered { .. }),
                    ..
                }]
            ));
        }
        wanted.extend((0..100).map(|n| (uid, format!("a{n}"))));
    }
    let (rows, batches) = told(&mut s, operator);
    let mut rows: Vec<_> = rows.into_iter().map(|row| (row.server.uid, row.name)).collect();
    rows.sort();
    wanted.sort();
    assert_eq!(rows, wanted);
    assert_eq!(batches, 300_usize.div_ceil(ROWS));
}

#[test]
fn instances_are_told_to_operators_with_what_protects_them() {
    let mut s = state();
    let unhardened = |s: &mut State, facts: Facts| {
        let usage = s.account(&facts);
        let conn = s.opened(facts, usage, SPOKEN);
        take(s);
        conn
    };
    let server = unhardened(&mut s, facts(1));
    let (web, operator) = (open(&mut s, 2), open(&mut s, 9));
    register(&mut s, server);
    let effects = ask(&mut s, web, Message::List(ListMessage::Instances { request: 3 }));
    let refused = refused(&effects);
    assert!(refused.0 == PERMISSION_DENIED && refused.1.contains("list instances"), "{refused:?}");
    let security = |s: &mut State| told(s, operator).0[0].security;
    let found = security(&mut s);
    assert_eq!(
        (found.isolation, found.confidentiality),
        (Isolation::Process, Confidentiality::User)
    );
    ask(&mut s, server, Message::Session(SessionMessage::Hardened));
    assert_eq!(security(&mut s).confidentiality, Confidentiality::Host);
    s.closed(server, Instant::now());
    take(&mut s);
    let domain = Some(Domain { launcher: 1, isolation: Isolation::None });
    let domain = unhardened(&mut s, Facts { domain, ..facts(1) });
    register(&mut s, domain);
    let found = security(&mut s);
    assert_eq!((found.isolation, found.confidentiality), (Isolation::None, Confidentiality::Space));
}
