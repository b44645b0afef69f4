use super::grants::{granting, leasing, plain};
use super::*;
use partywall_abi::security::Seal;

fn report(s: &mut State, conn: Conn, role: Role) -> Vec<Effect> {
    report_with(s, conn, role, Grant::NONE)
}

/// A report of an end that was granted this.
fn report_with(s: &mut State, conn: Conn, role: Role, grant: Grant) -> Vec<Effect> {
    let m = Message::Link(LinkMessage::Report {
        request: 7,
        token: Token([9; 16]),
        role,
        name: name(),
        security: Security::HIGHEST.with_seal(Seal::Off),
        grant,
    });
    ask(s, conn, m)
}

fn ended(e: &[Effect], conn: Conn) -> bool {
    e.iter()
        .any(|e| matches!(e, Effect::Send { to, message: Message::End(EndMessage::Ended { .. }) } if *to == conn))
}

#[test]
fn a_link_that_both_ends_report_goes_on_under_this_policy() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let e = report(&mut s, web, Role::Caller);
    assert!(matches!(
        &e[..],
        [Effect::Send { message: Message::Link(LinkMessage::Reported { .. }), .. }]
    ));
    assert_eq!(open_links(&s), 0);
    let e = report(&mut s, server, Role::Server);
    let allowed: Vec<Conn> = e
        .iter()
        .filter_map(|e| match e {
            Effect::Send { to, message: Message::End(EndMessage::Allowed { methods, .. }) } => {
                assert!(methods.covers("/a.B/C") && !methods.covers("/x.Y/Z"));
                Some(*to)
            }
            _ => None,
        })
        .collect();
    assert_eq!(allowed, [server, web]);
    assert_eq!(open_links(&s), 1);
    s.timeout(Instant::now() + super::super::reports::GRACE);
    assert!(take(&mut s).is_empty());
    let number = *s.links.keys().next().unwrap();
    ask(&mut s, server, closed(number, Role::Server));
    ask(&mut s, web, closed(number, Role::Caller));
    assert_eq!(s.connections[&web].standing.usage.used(Resource::Links), 0);
    assert_eq!(s.connections[&server].standing.usage.used(Resource::Served), 0);
}

#[test]
fn an_end_that_stays_alone_is_ended_after_the_grace() {
    for (uid, role) in [(2, Role::Caller), (1, Role::Server)] {
        let mut s = state();
        let conn = open(&mut s, uid);
        report(&mut s, conn, role);
        let grace = super::super::reports::GRACE;
        s.timeout(Instant::now() + grace / 2);
        assert!(!ended(&take(&mut s), conn));
        s.timeout(Instant::now() + grace);
        assert!(ended(&take(&mut s), conn));
        assert!(s.links.is_empty() && s.reported.is_empty());
    }
}

#[test]
fn report_of_a_denied_link_is_refused_and_ends_the_other() {
    let mut s = state();
    let (server, nobody) = (open(&mut s, 1), open(&mut s, 7));
    report(&mut s, server, Role::Server);
    let e = report(&mut s, nobody, Role::Caller);
    assert_eq!(refused(&e).0, PERMISSION_DENIED);
    let web = open(&mut s, 2);
    let e = report(&mut s, web, Role::Server);
    assert_eq!(refused(&e).0, PERMISSION_DENIED, "it may call, and not serve");
    s.timeout(Instant::now() + super::super::reports::GRACE);
    assert!(ended(&take(&mut s), server));
}

#[test]
fn reported_end_is_not_replaced() {
    let mut s = state();
    let (server, second, web) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2));
    report(&mut s, server, Role::Server);
    let e = report(&mut s, second, Role::Server);
    assert_eq!(refused(&e).0, FAILED_PRECONDITION);
    report(&mut s, web, Role::Caller);
    let e = report(&mut s, second, Role::Server);
    assert_eq!(refused(&e).0, FAILED_PRECONDITION);
    assert_eq!(open_links(&s), 1);
}

#[test]
fn reports_after_the_grace_period_are_refused() {
    let mut s = state();
    let web = open(&mut s, 2);
    let m = Message::Link(LinkMessage::Report {
        request: 7,
        token: Token([9; 16]),
        role: Role::Caller,
        name: name(),
        security: Security::HIGHEST,
        grant: Grant::NONE,
    });
    s.message(web, m, Instant::now() + super::super::reports::GRACE);
    assert_eq!(refused(&take(&mut s)).0, NOT_FOUND);
}

/// What becomes of a link whose ends were granted this, under a policy that has `now`: what both are granted
/// anew, or why the link has ended.
fn reported_with(
    [callers, servers]: [Grant; 2],
    now: Grant,
) -> Result<Vec<Grant>, Vec<(Conn, String)>> {
    let mut s = state();
    s.reload(granting(now), None, Instant::now());
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let mut effects = report_with(&mut s, web, Role::Caller, callers);
    effects.extend(report_with(&mut s, server, Role::Server, servers));
    let number = *s.links.keys().next().unwrap();
    let ended: Vec<_> = effects
        .iter()
        .filter_map(|e| match e {
            Effect::Send { to, message: Message::End(EndMessage::Ended { code, text, .. }) } => {
                assert_eq!(*code, UNAVAILABLE);
                Some((*to, text.clone()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(open_links(&s), usize::from(ended.is_empty()));
    if !ended.is_empty() {
        assert_eq!(ended.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [web, server]);
        return Err(ended);
    }
    assert_eq!(s.links[&number].grant, if callers.is_none() { now } else { callers });
    let grants = super::grants::grants(&effects, number, [web, server]);
    Ok(grants.into_iter().map(|(_, grant)| grant).collect())
}

#[test]
fn a_reported_link_keeps_its_descriptors_by_this_policy_only() {
    let none = Grant::NONE;
    let [two, three, leases] = [plain(2), plain(3), leasing(3)];
    let why = |ends, now| reported_with(ends, now).unwrap_err().remove(0).1;
    for same in [three, leases] {
        assert_eq!(reported_with([same; 2], same), Ok(vec![]), "it has its socket");
        assert_eq!(reported_with([none; 2], same), Ok(vec![same; 2]), "it is granted now");
    }
    assert_eq!(reported_with([none; 2], none), Ok(vec![]));
    assert_eq!(reported_with([three; 2], leases), Ok(vec![]), "it goes on without leases");
    assert!(why([three; 2], none).contains("0 by the policy, 3 on this link"));
    assert!(why([three; 2], two).contains("2 by the policy, 3 on this link"));
    assert!(why([leases; 2], none).contains("0 by the policy, 3 with leases on this link"));
    assert!(why([leases; 2], three).contains("3 by the policy, 3 with leases on this link"));
    for ends in [[three, none], [none, three], [two, three], [leases, three], [three, leases]] {
        for now in [none, three, leases] {
            assert!(why(ends, now).contains("do not say the same"), "{ends:?} {now}");
        }
    }
}

/// The one who came first had the shares of all.
#[test]
fn false_reports_leave_other_links_alone() {
    let policy = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n";
    let mut s = with_descriptors(1024, policy);
    let liar = open(&mut s, 4);
    let mut last = 0_u64;
    let mut token = || {
        last += 1;
        let mut bytes = [9; 16];
        bytes[..8].copy_from_slice(&last.to_le_bytes());
        Token(bytes)
    };
    let report = |s: &mut State, conn: Conn, token: Token, role: Role| {
        let e = ask(
            s,
            conn,
            Message::Link(LinkMessage::Report {
                request: 7,
                token,
                role,
                name: name(),
                security: Security::HIGHEST,
                grant: Grant::NONE,
            }),
        );
        e.iter().any(|e| {
            matches!(e, Effect::Send { message: Message::Link(LinkMessage::Reported { .. }), .. })
        })
    };
    for role in [Role::Caller, Role::Server] {
        for _ in 0..10_000 {
            report(&mut s, liar, token(), role);
        }
    }
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    for n in 0..200 {
        let token = token();
        assert!(report(&mut s, server, token, Role::Server), "link {n}");
        assert!(report(&mut s, web, token, Role::Caller), "link {n}");
    }
    assert_eq!(open_links(&s), 200);
    let used = |conn: Conn, what| s.connections[&conn].standing.usage.used(what);
    assert_eq!((used(web, Resource::Links), used(server, Resource::Served)), (200, 200));
    assert_eq!((used(web, Resource::Reported), used(server, Resource::Reported)), (0, 0));
}
