//! What one user may have, and what is left for the others.

use super::*;

#[test]
fn one_users_connections_share_its_links_and_its_places() {
    let mut s = state();
    let server = open(&mut s, 1);
    register(&mut s, server);
    // 17 processes of one user, and one of another.
    let crowd: Vec<Conn> = (0..17).map(|_| open(&mut s, 2)).collect();
    for i in 0..1024 {
        link(&mut s, crowd[i % 17]);
    }
    for conn in crowd {
        let e = connect(&mut s, conn);
        let (code, text) = refused(&e);
        assert_eq!(code, RESOURCE_EXHAUSTED);
        assert!(text.contains("user 2") && text.contains("share a channel"), "{text}");
    }
    let other = open(&mut s, 3);
    link(&mut s, other);
}

#[test]
fn a_server_with_few_places_keeps_a_share_for_each_new_user() {
    let mut s = under("[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n");
    let server = open(&mut s, 1);
    ask(
        &mut s,
        server,
        Message::Registry(RegistryMessage::Register { request: 1, name: name(), places: 64 }),
    );
    for (uid, share) in [(2, 32), (3, 16), (4, 8), (5, 4), (6, 2), (7, 1), (8, 1)] {
        let web = open(&mut s, uid);
        let mut had = 0;
        loop {
            let e = connect(&mut s, web);
            let [Effect::Offer { link, .. }] = e[..] else { break };
            ask(
                &mut s,
                server,
                Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }),
            );
            ask(
                &mut s,
                web,
                Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }),
            );
            had += 1;
        }
        assert_eq!(had, share, "user {uid}");
    }
}

#[test]
fn a_user_has_so_many_links_in_all_and_no_more() {
    let names: Vec<ServiceName> =
        (0..5).map(|n| ServiceName::new(&format!("far{n}")).unwrap()).collect();
    let (mut calls, mut urls) = (String::new(), String::from("[names]\n"));
    for n in &names {
        calls += &format!("[service.{n}.call]\nanyone = ['*']\n");
        urls += &format!("{n} = 'http://h:1'\n");
    }
    let mut s = under(&(calls + &urls));
    let crowd = [open(&mut s, 2), open(&mut s, 2)];
    let ask_for = |s: &mut State, i: usize| {
        let m = Message::Link(LinkMessage::Connect { request: 1, name: names[i % 5].clone() });
        ask(s, crowd[i % 2], m)
    };
    for i in 0..4096 {
        let e = ask_for(&mut s, i);
        assert!(matches!(
            &e[..],
            [Effect::Send { message: Message::Link(LinkMessage::Redirect { .. }), .. }]
        ));
    }
    let e = ask_for(&mut s, 4096);
    let (code, text) = refused(&e);
    assert_eq!(code, RESOURCE_EXHAUSTED);
    assert!(text.contains("4096 links") && text.contains("share a channel"), "{text}");
}

/// Reports of what is not there took all links from everybody.
#[test]
fn reported_links_take_nothing_from_other_shares() {
    let mut s = with_descriptors(1024, POLICY);
    let (server, web, other) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 3));
    register(&mut s, server);
    for i in 0..4096_u64 {
        let mut token = [7; 16];
        token[..8].copy_from_slice(&i.to_le_bytes());
        let (role, name) = (Role::Redirected, ServiceName::new("far").unwrap());
        ask(
            &mut s,
            web,
            Message::Link(LinkMessage::Report {
                request: 7,
                token: Token(token),
                role,
                name,
                security: Security::HIGHEST,
                grant: Grant::NONE,
            }),
        );
    }
    assert_eq!(s.connections[&web].standing.usage.used(Resource::Links), 4096);
    for _ in 0..50 {
        link(&mut s, other);
    }
}

/// One caller had all the links that a server's user may have.
#[test]
fn caller_at_its_limit_leaves_others_server_places() {
    let mut s = with_descriptors(1024, POLICY);
    let (server, second, web, other) =
        (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2), open(&mut s, 3));
    register(&mut s, server);
    register(&mut s, second);
    let mut links = 0;
    let text = loop {
        let e = connect(&mut s, web);
        if let [
            Effect::Send {
                message: Message::Session(SessionMessage::Refused { text, .. }), ..
            },
        ] = &e[..]
        {
            break text.clone();
        }
        let (link, to) = offered(&e);
        ask(&mut s, to, Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }));
        ask(&mut s, web, Message::Link(LinkMessage::Adopted { link, security: Security::HIGHEST }));
        links += 1;
    };
    assert_eq!(links, 60);
    let said = "user 2 has 60 links to servers of user 1, its share of what the others leave";
    assert!(text.starts_with(said), "{text}");
    for _ in 0..30 {
        link(&mut s, other);
    }
}

#[test]
fn one_user_serves_and_watches_so_many_names_and_no_more() {
    let mut s = state();
    let (server, second, web) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2));
    for i in 0..512 {
        let e = register(&mut s, [server, second][i % 2]);
        assert!(matches!(
            &e[..],
            [Effect::Send { message: Message::Registry(RegistryMessage::Registered { .. }), .. }]
        ));
    }
    let e = register(&mut s, server);
    let text = "user 1 has 512 served names, the most that one may have";
    assert_eq!(refused(&e), (RESOURCE_EXHAUSTED, text));
    s.closed(second, Instant::now());
    take(&mut s);
    assert!(matches!(&register(&mut s, server)[..], [Effect::Send { .. }]));
    let crowd: Vec<Conn> = (0..1024).map(|_| open(&mut s, 2)).collect();
    for conn in crowd {
        ask(&mut s, conn, Message::Registry(RegistryMessage::Watch { request: 1, name: name() }));
    }
    let e =
        ask(&mut s, web, Message::Registry(RegistryMessage::Watch { request: 1, name: name() }));
    let text = "user 2 has 1024 watched names, the most that one may have";
    assert_eq!(refused(&e), (RESOURCE_EXHAUSTED, text));
}

/// Of a thousand links of this user, the bytes of all and how many have wide rings: the first ones.
fn a_thousand(s: &mut State, uid: u32) -> (u64, usize) {
    let conn = open(s, uid);
    let geometries: Vec<_> = (0..1000)
        .map(|_| {
            let number = link(s, conn).0;
            s.links[&number].geometry
        })
        .collect();
    let wide = geometries.iter().take_while(|g| **g == Geometry::WIDE).count();
    assert!(
        geometries[wide..].iter().all(|g| *g == Geometry::DEFAULT),
        "a wide one after narrow ones"
    );
    (geometries.iter().map(|g| 2 * g.outbox_bytes() as u64).sum(), wide)
}

#[test]
fn wide_links_are_few_and_a_thousand_links_stay_below_200_mib() {
    let begun = || {
        let mut s = under("[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n");
        let server = open(&mut s, 1);
        register(&mut s, server);
        s
    };
    let mut s = begun();
    let (bytes, wide) = a_thousand(&mut s, 2);
    assert_eq!(wide, 16, "half of those that there are");
    assert!(bytes < 200 << 20, "{bytes}");
    // Others have half of what is left, and the coordinator's user all.
    let each = [3, 4, 9, 5].map(|uid| a_thousand(&mut s, uid).1);
    assert_eq!(each, [8, 4, 4, 0]);
    for uid in [0, 9] {
        assert_eq!(a_thousand(&mut begun(), uid).1, 32, "user {uid}");
    }
}

#[test]
fn closed_links_are_kept_up_to_a_limit_for_each_user() {
    let mut s = state();
    let (server, web, other) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 3));
    register(&mut s, server);
    let close = |s: &mut State, conn, calls| {
        let (number, _) = link(s, conn);
        let stats = counted(calls);
        let (role, blame) = (Role::Server, Blame::Nobody);
        ask(s, server, Message::End(EndMessage::Closed { link: number, role, blame, stats }));
        forgotten(s, number);
        number
    };
    let telling = close(&mut s, other, 0);
    let own = close(&mut s, web, 1);
    for _ in 0..REMEMBERED + 50 {
        close(&mut s, web, 0);
    }
    assert_eq!(s.links.len(), REMEMBERED);
    assert!(s.links.contains_key(&telling), "hidden behind the links of another user");
    assert!(s.links.contains_key(&own), "hidden behind the caller's own empty links");
    for _ in 0..REMEMBERED {
        close(&mut s, web, 1);
    }
    assert!(!s.links.contains_key(&own) && s.links.contains_key(&telling), "the oldest goes");
    // What was never open is not remembered.
    connect(&mut s, web);
    ask(&mut s, web, Message::Link(LinkMessage::Cancel { request: 2 }));
    let last = *s.links.keys().last().unwrap();
    forgotten(&mut s, last);
    assert_eq!(s.links.len(), REMEMBERED);
}

#[test]
fn stalled_process_has_few_links_under_way() {
    let mut s = state();
    let (server, slow, other) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 3));
    register(&mut s, server);
    let mut begun = Vec::new();
    for request in 0..100 {
        let e = ask(&mut s, slow, Message::Link(LinkMessage::Connect { request, name: name() }));
        begun.extend(e.into_iter().map(|e| offered(&[e]).0));
    }
    assert_eq!(begun.len(), OPENING);
    for link in &begun {
        ask(
            &mut s,
            server,
            Message::Link(LinkMessage::Adopted { link: *link, security: Security::HIGHEST }),
        );
    }
    link(&mut s, other);
    // One of them goes on, and the next question is taken.
    let e = ask(
        &mut s,
        slow,
        Message::Link(LinkMessage::Adopted { link: begun[0], security: Security::HIGHEST }),
    );
    assert!(e.iter().any(|e| matches!(e, Effect::Offer { .. })), "{e:?}");
    // The others wait, but not for ever.
    let mut refusals = 0;
    for i in 1..15 {
        s.timeout(Instant::now() + i * Duration::from_secs(6));
        let e = take(&mut s);
        refusals += e
            .iter()
            .filter(|e| matches!(e, Effect::Send { to, message: Message::Session(SessionMessage::Refused { .. }) } if *to == slow))
            .count();
    }
    // Of a hundred, one is open, fifteen were begun and are over.
    assert_eq!(refusals, 84);
    // What the server was offered since, it has not received.
    for number in s.links.keys().copied().filter(|n| *n != begun[0]).collect::<Vec<_>>() {
        forgotten(&mut s, number);
    }
    let e = ask(&mut s, slow, Message::Link(LinkMessage::Connect { request: 1000, name: name() }));
    assert!(matches!(&e[..], [Effect::Offer { .. }]), "{e:?}");
}

/// Each of them stayed in the server's queue with its descriptors, charged to the server's user, whose
/// other servers then took no links.
#[test]
fn stalled_server_is_offered_few_links() {
    let mut s = with_descriptors(1024, POLICY);
    let (stopped, web, other) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 3));
    register(&mut s, stopped);
    let mut offers = Vec::new();
    for request in 0..1000 {
        let e = ask(&mut s, web, Message::Link(LinkMessage::Connect { request, name: name() }));
        offers.extend(e.iter().filter_map(|e| match e {
            Effect::Offer { link, .. } => Some(*link),
            _ => None,
        }));
        ask(&mut s, web, Message::Link(LinkMessage::Cancel { request }));
    }
    assert_eq!(offers.len(), 16, "half of those that may be under way at one server");
    assert_eq!(s.connections[&stopped].standing.usage.used(Resource::Served), 16);
    // Another caller has its share, and the first one has its own again when the server has read.
    assert!(matches!(connect(&mut s, other)[..], [Effect::Offer { .. }]));
    for link in offers {
        forgotten(&mut s, link);
    }
    assert!(matches!(connect(&mut s, web)[..], [Effect::Offer { .. }]));
}
