//! Where there is an operators' socket, operators' calls are taken there alone.

use partywall_abi::control::{GateMessage, TraceMessage};

use super::*;

/// A process that has connected to the operators' socket or to the common one, and what it is told first.
fn admitted(
    s: &mut State,
    at_operators: bool,
    facts: Facts,
    spoken: Spoken,
) -> (Conn, Vec<String>) {
    let usage = s.account(&facts);
    let socket = if at_operators { Socket::Operators } else { Socket::Common };
    let conn = s.opened_at(socket, facts, usage, spoken);
    let told = take(s).into_iter().filter_map(|e| match e {
        Effect::Send {
            message: Message::Session(SessionMessage::Operators { path, uid }), ..
        } => {
            assert_eq!(uid, 9);
            Some(path)
        }
        Effect::Send { message: Message::Session(SessionMessage::Welcome { .. }), .. } => {
            Some("welcome".into())
        }
        _ => None,
    });
    (conn, told.collect())
}

fn orders() -> [Message; 5] {
    [
        Message::List(ListMessage::List { request: 3 }),
        Message::List(ListMessage::Instances { request: 3 }),
        Message::Policy(PolicyMessage::Reload { request: 3 }),
        Message::Gate(GateMessage::Switch { request: 3, name: name(), open: false }),
        Message::Trace(TraceMessage::Trace { request: 3, link: 1 }),
    ]
}

#[test]
fn operators_calls_are_taken_at_their_socket_alone() {
    let mut s = state();
    s.separate_operators("/r/o.sock".into());
    for uid in [0, 9] {
        let (common, told) = admitted(&mut s, false, facts(uid), SPOKEN);
        assert_eq!(told, ["/r/o.sock", "welcome"]);
        for order in orders() {
            let effects = ask(&mut s, common, order);
            let (code, text) = refused(&effects);
            assert_eq!(code, PERMISSION_DENIED);
            assert!(text.contains("the operators' socket /r/o.sock alone"), "{text}");
        }
        let (operator, told) = admitted(&mut s, true, facts(uid), SPOKEN);
        assert_eq!(told, ["welcome"]);
        let [list, instances, reload, switch, trace] = orders();
        let effects = ask(&mut s, operator, trace);
        assert!(refused(&effects).1.contains("no open link"), "{effects:?}");
        assert_eq!(ask(&mut s, operator, reload), [Effect::Reload { conn: operator, request: 3 }]);
        let effects = ask(&mut s, operator, switch);
        assert!(refused(&effects).1.contains("serve"), "nobody does: {effects:?}");
        for order in [list, instances] {
            ask(&mut s, operator, order);
            assert!(s.is_due(operator));
            while s.is_due(operator) {
                s.room(operator);
            }
            assert!(matches!(
                &take(&mut s)[..],
                [.., Effect::Send { message: Message::List(ListMessage::Listed { .. }), .. }]
            ));
        }
    }
}

#[test]
fn the_operators_socket_makes_nobody_an_operator() {
    let mut s = state();
    s.separate_operators("/r/o.sock".into());
    let contained = Facts { contained: Some("it is".into()), ..facts(0) };
    let started = Facts { started_as: Some("web".into()), ..facts(9) };
    for who in [contained, started, facts(1)] {
        for at_operators in [false, true] {
            let (conn, told) = admitted(&mut s, at_operators, who.clone(), SPOKEN);
            assert_eq!(told, ["welcome"], "it is told of no operators' socket");
            for order in orders() {
                let effects = ask(&mut s, conn, order);
                let (code, text) = refused(&effects);
                assert_eq!(code, PERMISSION_DENIED);
                assert!(text.starts_with("only root and user 9 may "), "{text}");
            }
        }
    }
    // One of an older release cannot be told, and hears it when it asks.
    let older = Spoken { capabilities: Capabilities::NONE, ..SPOKEN };
    assert_eq!(admitted(&mut s, false, facts(9), older).1, ["welcome"]);
}
