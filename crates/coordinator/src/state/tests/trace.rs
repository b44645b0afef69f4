//! Who may look into which links, what the audit log has of it, and when it ends.

use partywall_abi::control::TraceMessage;
use partywall_abi::security::Confidentiality;

use super::*;

const OWN: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n\
                   [service.far.call]\nanyone = ['*']\n[names]\nfar = 'http://h:1'\n";

fn trace(s: &mut State, conn: Conn, request: u32, link: u64) -> Vec<Effect> {
    s.message(conn, TraceMessage::Trace { request, link }.into(), Instant::now());
    s.take_effects()
}

fn is_traced(effects: &[Effect], link: u64, to: Conn) -> bool {
    let [Effect::Audit(event), handed] = effects else { return false };
    let line = serde_json::to_value(event).unwrap();
    assert_eq!(
        (&line["event"], &line["link"], &line["name"]),
        (&"traced".into(), &link.into(), &"g".into())
    );
    matches!(
        handed,
        Effect::Trace { link: of, to: (conn, _), message: Message::Trace(TraceMessage::Traced { .. }), .. }
            if (*of, *conn) == (link, to)
    )
}

/// Links between two processes of these users, of which the first one is closed to others of its user or not.
fn linked(s: &mut State, uids: [u32; 2], hardened: [bool; 2]) -> u64 {
    let [caller, server] = uids.map(|uid| hardening::admit_open(s, facts(uid), SPOKEN).0);
    for (conn, hardened) in [caller, server].into_iter().zip(hardened) {
        if hardened {
            ask(s, conn, SessionMessage::Hardened.into());
        }
    }
    register(s, server);
    let (number, _) = link(s, caller);
    ask(
        s,
        server,
        Message::Registry(RegistryMessage::Unregister { registration: s.next_registration - 1 }),
    );
    number
}

#[test]
fn an_operator_traces_what_it_could_read_otherwise() {
    let mut s = under(OWN);
    let (root, operator, other) = (open(&mut s, 0), open(&mut s, 9), open(&mut s, 2));
    for (uids, hardened, may) in [
        ([9, 9], [false, false], true),
        ([9, 9], [true, false], true),
        ([9, 9], [true, true], false),
        ([9, 2], [false, false], false),
        ([2, 9], [false, false], false),
        ([2, 2], [false, false], false),
    ] {
        let link = linked(&mut s, uids, hardened);
        let is_host = s.links[&link].security.confidentiality == Confidentiality::Host;
        assert_eq!(is_host, hardened == [true, true]);
        assert!(is_traced(&trace(&mut s, root, 1, link), link, root), "{uids:?}");
        let effects = trace(&mut s, operator, 1, link);
        if may {
            assert!(is_traced(&effects, link, operator), "{uids:?} {effects:?}");
        } else {
            let [Effect::Audit(denied), refusal] = &effects[..] else { panic!("{effects:?}") };
            let line = serde_json::to_value(denied).unwrap();
            assert_eq!(
                (&line["event"], &line["what"]),
                (&"denied".into(), &"look into links".into())
            );
            let (code, text) = refused(std::slice::from_ref(refusal));
            assert_eq!(code, PERMISSION_DENIED);
            assert!(
                text.contains("only root may") && text.ends_with("remedy: do it as root"),
                "{text}"
            );
        }
        let effects = trace(&mut s, other, 1, link);
        assert!(!effects.iter().any(|e| matches!(e, Effect::Trace { .. })), "{effects:?}");
        for conn in [root, operator] {
            s.message(conn, TraceMessage::Untrace { request: 1 }.into(), Instant::now());
        }
    }
}

#[test]
fn a_link_without_memory_of_this_coordinator_is_not_traced() {
    let mut s = under(OWN);
    let (root, web) = (open(&mut s, 0), open(&mut s, 2));
    let far = ServiceName::new("far").unwrap();
    ask(&mut s, web, LinkMessage::Connect { request: 2, name: far }.into());
    let number = *s.links.keys().next().unwrap();
    for (number, code, word) in
        [(number, FAILED_PRECONDITION, "leads to http://h:1"), (77, NOT_FOUND, "no open link 77")]
    {
        let effects = trace(&mut s, root, 1, number);
        let (found, text) = refused(&effects);
        assert_eq!(found, code);
        assert!(text.contains(word), "{text}");
    }
    let number = linked(&mut s, [2, 2], [false; 2]);
    s.links.get_mut(&number).unwrap().forget_memory();
    let effects = trace(&mut s, root, 1, number);
    assert!(refused(&effects).1.contains("another coordinator, before this one"));
}

#[test]
fn who_traces_a_link_is_told_of_its_end_once() {
    let over = |effects: &[Effect]| {
        let is_over = |e: &&Effect| {
            matches!(e, Effect::Send { message: Message::Trace(TraceMessage::Over { .. }), .. })
        };
        effects.iter().filter(is_over).count()
    };
    let mut s = under(OWN);
    let (root, gone) = (open(&mut s, 0), open(&mut s, 0));
    let link = linked(&mut s, [2, 2], [false; 2]);
    let server = s.links[&link].server_conn().unwrap();
    trace(&mut s, root, 1, link);
    trace(&mut s, root, 2, link);
    trace(&mut s, gone, 1, link);
    s.message(root, TraceMessage::Untrace { request: 2 }.into(), Instant::now());
    s.closed(gone, Instant::now());
    s.take_effects();
    assert_eq!(over(&ask(&mut s, server, closed(link, Role::Server))), 1);
    s.let_go(link, Role::Server);
    s.let_go(link, Role::Caller);
    assert_eq!(over(&s.take_effects()), 0);
    // There is an end to how many one process has.
    let link = linked(&mut s, [2, 2], [false; 2]);
    for request in 0..LISTINGS as u32 {
        assert!(is_traced(&trace(&mut s, root, request, link), link, root));
    }
    let effects = trace(&mut s, root, 9, link);
    assert_eq!(refused(&effects).0, RESOURCE_EXHAUSTED);
    // The coordinator has no descriptors left: the operator is told, and nothing of it stays.
    s.not_traced((root, 0), "no memory of it");
    let told = s.take_effects();
    assert_eq!(refused(&told), (UNAVAILABLE, "no memory of it"));
    assert!(is_traced(&trace(&mut s, root, 9, link), link, root));
}
