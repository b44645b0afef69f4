use super::*;

fn report(s: &mut State, conn: Conn, role: Role) -> Vec<Effect> {
    let m = Message::Report { request: 7, token: Token([9; 16]), role, name: name() };
    ask(s, conn, m)
}

fn ended(e: &[Effect], conn: Conn) -> bool {
    e.iter()
        .any(|e| matches!(e, Effect::Send { to, message: Message::Ended { .. } } if *to == conn))
}

#[test]
fn a_link_that_both_ends_report_goes_on_under_this_policy() {
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let e = report(&mut s, web, Role::Caller);
    assert!(matches!(&e[..], [Effect::Send { message: Message::Reported { .. }, .. }]));
    assert_eq!(open_links(&s), 0);
    let e = report(&mut s, server, Role::Server);
    let allowed: Vec<Conn> = e
        .iter()
        .filter_map(|e| match e {
            Effect::Send { to, message: Message::Allowed { methods, .. } } => {
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
fn who_may_not_any_more_is_refused_and_the_other_end_is_alone() {
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
fn nobody_takes_the_place_of_an_end_that_has_reported() {
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
fn a_coordinator_that_is_not_new_hears_no_reports() {
    let mut s = state();
    let web = open(&mut s, 2);
    let m = Message::Report { request: 7, token: Token([9; 16]), role: Role::Caller, name: name() };
    s.message(web, m, Instant::now() + super::super::reports::GRACE);
    assert_eq!(refused(&take(&mut s)).0, NOT_FOUND);
}
