use super::*;

fn reload(s: &mut State, policy: &str) -> Vec<Effect> {
    s.reload(Policy::parse("p", policy).unwrap(), None, Instant::now());
    take(s)
}

#[test]
fn lost_right_ends_its_links_at_both_ends_used_or_not() {
    let mut s = state();
    let (server, web, other) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 3));
    register(&mut s, server);
    let (webs, _) = link(&mut s, web);
    let (others, _) = link(&mut s, other);
    let e = reload(&mut s, &POLICY.replace("web = ['a.B/*']\n", ""));
    let told: Vec<(Conn, u64)> = e
        .iter()
        .filter_map(|e| match e {
            Effect::Send { to, message: Message::End(EndMessage::Ended { link, code, .. }) } => {
                assert_eq!(*code, PERMISSION_DENIED);
                Some((*to, *link))
            }
            _ => None,
        })
        .collect();
    assert_eq!(told, [(web, webs), (server, webs)]);
    assert!(s.links[&others].open && !s.links[&webs].open);
    assert_eq!(refused(&connect(&mut s, web)).0, PERMISSION_DENIED);
}

/// It said so, went on answering, and was passed by when its right went.
#[test]
fn a_server_that_says_that_a_link_is_over_keeps_no_caller() {
    for goes in [false, true] {
        let mut s = state();
        let (server, web) = (open(&mut s, 1), open(&mut s, 2));
        register(&mut s, server);
        let (number, _) = link(&mut s, web);
        let e = match goes {
            false => ask(&mut s, server, closed(number, Role::Server)),
            true => {
                s.closed(server, Instant::now());
                take(&mut s)
            }
        };
        let over = |e: &Effect| {
            let died = Message::End(EndMessage::Died { link: number, role: Role::Caller });
            matches!(e, Effect::Send { to, message } if (*to, message) == (web, &died))
        };
        assert!(e.iter().any(over), "{e:?}");
        // A caller that has not heard that yet.
        let e = reload(&mut s, &POLICY.replace("register = ['server']", "register = ['other']"));
        let ended = |e: &Effect| matches!(e, Effect::Send { to, message: Message::End(EndMessage::Ended { link, .. }) } if (*to, *link) == (web, number));
        assert!(e.iter().any(ended), "{e:?}");
        assert!(reload(&mut s, POLICY).iter().all(|e| !ended(e)));
    }
}

#[test]
fn changed_method_set_reaches_both_ends() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = link(&mut s, web);
    let e = reload(&mut s, &POLICY.replace("web = ['a.B/*']", "web = ['a.B/C']"));
    let mut told = Vec::new();
    for e in &e {
        let Effect::Send { to, message: Message::End(EndMessage::Allowed { link, methods, .. }) } =
            e
        else {
            panic!("{e:?}")
        };
        assert!(*link == number && methods.covers("/a.B/C") && !methods.covers("/a.B/D"));
        told.push(*to);
    }
    assert_eq!(told, [server, web]);
    assert!(reload(&mut s, &POLICY.replace("web = ['a.B/*']", "web = ['a.B/C']")).is_empty());
}

/// All of it was put into the queue of a server, which was closed for what it had not read.
#[test]
fn reload_of_many_links_is_sent_as_it_is_read() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let links: Vec<u64> = (0..40).map(|_| link(&mut s, web).0).collect();
    let mut e = reload(&mut s, &POLICY.replace("web = ['a.B/*']", "web = ['a.B/C']"));
    let told = |e: &[Effect]| -> Vec<u64> {
        let told = e.iter().filter_map(|e| match e {
            Effect::Send { to, message: Message::End(EndMessage::Allowed { link, role, .. }) }
                if *to == server =>
            {
                assert_eq!(*role, Role::Server);
                Some(*link)
            }
            _ => None,
        });
        told.collect()
    };
    let mut all = told(&e);
    assert!(all.len() < 20 && s.is_due(server), "{}", all.len());
    // One that ends meanwhile is told of no more.
    ask(&mut s, server, closed(links[39], Role::Server));
    ask(&mut s, web, closed(links[39], Role::Caller));
    while s.is_due(server) {
        s.room(server);
        e = take(&mut s);
        all.extend(told(&e));
    }
    assert_eq!(all, links[..39]);
}

#[test]
fn changed_principals_of_an_end_are_shown() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    link(&mut s, web);
    let e = reload(&mut s, &(POLICY.to_string() + "[principal.admin]\nuid = 2\n"));
    let shown = e.iter().find_map(|e| match e {
        Effect::Send { to, message: Message::End(EndMessage::Allowed { peer, .. }) }
            if *to == server =>
        {
            Some(peer.principals.clone())
        }
        _ => None,
    });
    assert_eq!(shown.unwrap(), ["admin", "web"]);
}

#[test]
fn name_is_unregistered_when_its_right_goes() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = link(&mut s, web);
    let e = reload(&mut s, &POLICY.replace("register = ['server']", "register = ['other']"));
    let over = |m: &Message| matches!(m, Message::Registry(RegistryMessage::Unregistered { .. }));
    assert!(
        e.iter()
            .any(|e| matches!(e, Effect::Send { to, message } if *to == server && over(message)))
    );
    assert_eq!(s.instances(&name()), 0);
    assert!(!s.links[&number].open);
}

#[test]
fn only_an_operator_may_have_the_policy_read_again() {
    let mut s = state();
    let (web, operator) = (open(&mut s, 2), open(&mut s, 9));
    let e = ask(&mut s, web, Message::Policy(PolicyMessage::Reload { request: 4 }));
    assert_eq!(refused(&e).0, PERMISSION_DENIED);
    let e = ask(&mut s, operator, Message::Policy(PolicyMessage::Reload { request: 4 }));
    assert_eq!(e, [Effect::Reload { conn: operator, request: 4 }]);
    let started = admit(&mut s, Facts { started_as: Some("x".into()), ..facts(9) });
    let e = ask(&mut s, started, Message::Policy(PolicyMessage::Reload { request: 4 }));
    let (code, text) = refused(&e);
    assert_eq!(code, PERMISSION_DENIED);
    assert!(text.contains("you are service `x`"), "{text}");
}

#[test]
fn links_in_setup_survive_a_reload_that_leaves_them_the_same() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    connect(&mut s, web);
    assert!(reload(&mut s, POLICY).is_empty());
    // Its caller knows no link yet: it hears that its question is refused.
    let e = reload(&mut s, &POLICY.replace("web = ['a.B/*']", "web = ['a.B/C']"));
    let refused = e.iter().any(|e| {
        matches!(e, Effect::Send { to, message: Message::Session(SessionMessage::Refused { request: 2, .. }) } if *to == web)
    });
    assert!(refused, "{e:?}");
}

#[test]
fn a_redirect_whose_address_changes_is_ended() {
    let mut s = state();
    let web = open(&mut s, 2);
    ask(
        &mut s,
        web,
        Message::Link(LinkMessage::Connect { request: 2, name: ServiceName::new("far").unwrap() }),
    );
    assert!(reload(&mut s, POLICY).is_empty());
    let e = reload(&mut s, &POLICY.replace("http://h:1", "http://h:2"));
    assert!(
        matches!(&e[..], [Effect::Send { to, message: Message::End(EndMessage::Ended { role, .. }) }]
            if *to == web && *role == Role::Redirected),
        "{e:?}"
    );
}

#[test]
fn quotas_change_for_who_is_connected() {
    let mut s = state();
    let web = open(&mut s, 2);
    let account = |s: &State| s.connections[&web].standing.usage.account().to_string();
    let watch = |s: &mut State, n: u32, name: &str| {
        let m = Message::Registry(RegistryMessage::Watch {
            request: n,
            name: ServiceName::new(name).unwrap(),
        });
        let e = ask(s, web, m);
        !matches!(
            &e[..],
            [Effect::Send { message: Message::Session(SessionMessage::Refused { .. }), .. }]
        )
    };
    assert_eq!(account(&s), "user 2");
    reload(&mut s, &(POLICY.to_string() + "[principal.web.quota]\nwatches = 1\n"));
    assert_eq!(account(&s), "principal `web`");
    assert!(watch(&mut s, 1, "g") && !watch(&mut s, 2, "far"));
    reload(&mut s, &(POLICY.to_string() + "[principal.web.quota]\nwatches = 2\n"));
    assert!(watch(&mut s, 3, "far"));
}

/// It was the oldest of those that are remembered, and gone before it was looked at: a panic.
#[test]
fn reload_ends_a_redirect_after_many_forgotten_links() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    ask(
        &mut s,
        web,
        Message::Link(LinkMessage::Connect { request: 2, name: ServiceName::new("far").unwrap() }),
    );
    for _ in 0..REMEMBERED + 1 {
        let (number, _) = link(&mut s, web);
        ask(&mut s, server, closed(number, Role::Server));
        forgotten(&mut s, number);
    }
    let e = reload(&mut s, &POLICY.replace("http://h:1", "http://h:2"));
    assert!(
        matches!(&e[..], [Effect::Send { to, message: Message::End(EndMessage::Ended { .. }) }] if *to == web),
        "{e:?}"
    );
}

/// It calls nothing there, and wants to know whether it is alone.
#[test]
fn who_may_serve_a_name_may_watch_it_until_it_may_not() {
    let mut s = state();
    let server = open(&mut s, 1);
    register(&mut s, server);
    let watch = RegistryMessage::Watch { request: 5, name: name() };
    let counts = |effects: &[Effect]| {
        let count = |e: &Effect| match e {
            Effect::Send {
                message: Message::Registry(RegistryMessage::Watched { instances, .. }),
                ..
            } => Some(*instances),
            _ => None,
        };
        effects.iter().filter_map(count).collect::<Vec<_>>()
    };
    assert_eq!(counts(&ask(&mut s, server, Message::Registry(watch.clone()))), [1]);
    let second = open(&mut s, 1);
    assert_eq!(counts(&register(&mut s, second)), [2]);
    let e = reload(&mut s, &POLICY.replace("register = ['server']", "register = ['other']"));
    let is_refused = |e: &Effect| {
        let Effect::Send {
            to,
            message: Message::Session(SessionMessage::Refused { request, code, .. }),
        } = e
        else {
            return false;
        };
        (*to, *request, *code) == (server, 5, PERMISSION_DENIED)
    };
    assert!(e.iter().any(is_refused), "{e:?}");
    assert_eq!(refused(&ask(&mut s, server, Message::Registry(watch))).0, PERMISSION_DENIED);
}
