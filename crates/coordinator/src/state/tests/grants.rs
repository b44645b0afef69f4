//! Descriptors, and leases among them, cross where the policy grants it, and nowhere else.

use super::*;
use crate::identity::Domain;
use partywall_abi::security::Isolation;

/// So many descriptors, and no leases.
pub(super) fn plain(descriptors: u32) -> Grant {
    Grant { descriptors, leases: false }
}

/// So many descriptors, and leases among them.
pub(super) fn leasing(descriptors: u32) -> Grant {
    Grant { descriptors, leases: true }
}

/// A policy in which `web` may have this cross at `g`.
pub(super) fn granting(grant: Grant) -> Policy {
    let Grant { descriptors, leases } = grant;
    let text = format!(
        "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
         [service.g]\nregister = ['server']\n\
         [service.g.call.web]\nmethods = ['a.B/*']\ndescriptors = {descriptors}\nleases = {leases}\n\
         [service.g.call.anyone]\nmethods = ['a.B/C']\n"
    );
    Policy::parse("p", &text).unwrap()
}

/// A link by a policy: its ends, and what they are told.
struct Made {
    state: State,
    number: u64,
    /// The caller and the server.
    ends: [Conn; 2],
    /// What both can do, by the terms of each.
    terms: Vec<Capabilities>,
    granted: Vec<(Role, Grant)>,
}

/// A link by this policy, of a caller that can do this.
fn made(policy: Policy, server: Facts, caller: Facts, spoken: Capabilities) -> Made {
    let mut s = state();
    s.reload(policy, None, Instant::now());
    let (server, _) = (admit(&mut s, server), take(&mut s));
    let usage = s.account(&caller);
    let spoken = Spoken { version: partywall_abi::VERSION, capabilities: spoken };
    let caller = s.opened(caller, usage, spoken);
    take(&mut s);
    register(&mut s, server);
    let mut effects = connect(&mut s, caller);
    let (number, _) = offered(&effects);
    for conn in [server, caller] {
        let security = Security::HIGHEST;
        let adopted = Message::Link(LinkMessage::Adopted { link: number, security });
        effects.extend(ask(&mut s, conn, adopted));
    }
    let terms = effects.iter().filter_map(|e| match e {
        Effect::Offer { message: Message::Link(LinkMessage::Offer { terms, .. }), .. }
        | Effect::Link { message: Message::Link(LinkMessage::Linked { terms, .. }), .. } => {
            Some(terms.capabilities)
        }
        _ => None,
    });
    let terms = terms.collect();
    s.introduced(number);
    let ends = [caller, server];
    let granted = grants(&take(&mut s), number, ends);
    Made { state: s, number, ends, terms, granted }
}

/// What both ends of it are granted: the role of each, and what may cross.
fn granted(
    policy: Policy,
    server: Facts,
    caller: Facts,
    spoken: Capabilities,
) -> Vec<(Role, Grant)> {
    made(policy, server, caller, spoken).granted
}

pub(super) fn grants(effects: &[Effect], number: u64, ends: [Conn; 2]) -> Vec<(Role, Grant)> {
    let granted = effects.iter().filter_map(|e| match e {
        Effect::Grant { link, to } => {
            assert_eq!((*link, to.each_ref().map(|(conn, _)| *conn)), (number, ends));
            Some(to.iter().map(|(_, message)| match message {
                Message::Link(LinkMessage::Granted { link, role, grant }) => {
                    assert_eq!(*link, number);
                    (*role, *grant)
                }
                other => panic!("{other:?}"),
            }))
        }
        _ => None,
    });
    granted.flatten().collect()
}

fn both(grant: Grant) -> Vec<(Role, Grant)> {
    vec![(Role::Caller, grant), (Role::Server, grant)]
}

/// Facts of a process that is a domain.
fn in_launcher(uid: u32) -> Facts {
    let domain = Some(Domain { launcher: 1, isolation: Isolation::None });
    Facts { domain, ..facts(uid) }
}

/// Who is told that a link has ended, and why, in the order in which they are told.
fn ended(effects: &[Effect]) -> Vec<(Conn, u8, String)> {
    let ended = effects.iter().filter_map(|e| match e {
        Effect::Send { to, message: Message::End(EndMessage::Ended { code, text, .. }) } => {
            Some((*to, *code, text.clone()))
        }
        _ => None,
    });
    ended.collect()
}

#[test]
fn descriptors_cross_only_where_a_rule_of_the_caller_says_so() {
    let all = Capabilities::OWN;
    for grant in [plain(3), leasing(3)] {
        assert_eq!(granted(granting(grant), facts(1), facts(2), all), both(grant));
        // Another caller, by another rule.
        assert_eq!(granted(granting(grant), facts(1), facts(3), all), []);
        // An end that knows nothing of it.
        let older = all.without(Capabilities::PARCELS);
        assert_eq!(granted(granting(grant), facts(1), facts(2), older), []);
        // One that knows of descriptors, and of no leases.
        let older = all.without(Capabilities::ATTACHMENTS);
        assert_eq!(granted(granting(grant), facts(1), facts(2), older), both(plain(3)));
        // A domain's descriptors are its launcher's threads'.
        assert_eq!(granted(granting(grant), in_launcher(1), facts(2), all), []);
        assert_eq!(granted(granting(grant), facts(1), in_launcher(2), all), []);
    }
    assert_eq!(granted(granting(plain(0)), facts(1), facts(2), all), []);
}

#[test]
fn the_terms_say_whether_a_grant_is_to_come() {
    let all = Capabilities::OWN;
    let attachments = Capabilities::ATTACHMENTS;
    let (server, web, other) = (facts(1), facts(2), facts(3));
    for (grant, server, caller, spoken, promised) in [
        (plain(1), server.clone(), web.clone(), all, true),
        (leasing(1), server.clone(), web.clone(), all, true),
        (plain(0), server.clone(), web.clone(), all, false),
        (plain(1), server.clone(), other, all, false),
        (plain(1), server.clone(), web.clone(), all.without(Capabilities::PARCELS), false),
        (plain(1), server.clone(), web.clone(), all.without(attachments), false),
        (plain(1), in_launcher(1), web, all, false),
        (plain(1), server, in_launcher(2), all, false),
    ] {
        let told = made(granting(grant), server, caller, spoken);
        let rest = spoken.without(attachments);
        let expected = if promised { all } else { rest };
        assert_eq!(told.terms, [expected; 2], "{grant}");
        assert!(!promised || !told.granted.is_empty(), "who waits for a grant gets one");
    }
}

/// The terms of one end would have said something else than those of the other, or than what came.
#[test]
fn a_link_being_made_is_refused_when_its_promise_changes() {
    for adopted in [false, true] {
        for (before, now, goes_on) in [
            (plain(0), plain(2), false),
            (plain(2), plain(0), false),
            (plain(2), plain(1), true),
            (plain(1), leasing(1), true),
            (plain(0), plain(0), true),
        ] {
            let mut s = state();
            s.reload(granting(before), None, Instant::now());
            let (server, web) = (open(&mut s, 1), open(&mut s, 2));
            register(&mut s, server);
            let (link, _) = offered(&connect(&mut s, web));
            if adopted {
                let security = Security::HIGHEST;
                ask(&mut s, server, Message::Link(LinkMessage::Adopted { link, security }));
            }
            s.reload(granting(now), None, Instant::now());
            let told = take(&mut s);
            let says = format!("{told:?}").contains("the policy has changed; ask again");
            assert_eq!(says, !goes_on, "{before} {now}: {told:?}");
            assert_eq!(s.links[&link].is_being_made(), goes_on, "{before} {now}");
        }
    }
}

#[test]
fn a_reload_grants_at_once_and_takes_back_by_ending_the_link() {
    let mut s = state();
    s.reload(granting(plain(0)), None, Instant::now());
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = link(&mut s, web);
    let mut reload = |grant| {
        s.reload(granting(grant), None, Instant::now());
        take(&mut s)
    };
    let ends = [web, server];
    assert_eq!(grants(&reload(plain(2)), number, ends), both(plain(2)));
    assert!(reload(plain(2)).is_empty(), "it is granted once");
    assert!(reload(leasing(5)).is_empty(), "its ends have a socket, and know the first number");
    let ended = ended(&reload(leasing(1)));
    assert_eq!(
        ended.iter().map(|(to, code, _)| (*to, *code)).collect::<Vec<_>>(),
        [(web, UNAVAILABLE), (server, UNAVAILABLE)]
    );
    assert!(ended[0].2.contains("1 with leases by the policy, 2 on this link"), "{}", ended[0].2);
    assert!(!s.links[&number].open);
}

#[test]
fn a_link_with_leases_ends_when_the_policy_has_none_any_more() {
    let made = made(granting(leasing(2)), facts(1), facts(2), Capabilities::OWN);
    let Made { mut state, number, ends: [web, server], .. } = made;
    let mut reload = |grant| {
        state.reload(granting(grant), None, Instant::now());
        take(&mut state)
    };
    for same in [leasing(2), leasing(3)] {
        let told = reload(same);
        assert!(ended(&told).is_empty() && grants(&told, number, [web, server]).is_empty());
    }
    let ended = ended(&reload(plain(3)));
    let text =
        "descriptors beside a message: 3 by the policy, 2 with leases on this link; ask again";
    let told = |to| (to, UNAVAILABLE, text.to_owned());
    assert_eq!(ended, [told(web), told(server)]);
    assert!(!state.links[&number].open);
}

/// Its calls would have waited for a grant that nobody sends.
#[test]
fn a_link_whose_ends_wait_for_a_socket_in_vain_ends() {
    let older = Capabilities::OWN.without(Capabilities::ATTACHMENTS);
    for (spoken, waits) in [(Capabilities::OWN, true), (older, false)] {
        let made = made(granting(plain(2)), facts(1), facts(2), spoken);
        let Made { mut state, number, ends, .. } = made;
        state.not_granted(number, &std::io::Error::other("no room"));
        let ended = ended(&take(&mut state));
        let text = "no descriptor socket for a link to `g`: no room; ask again".to_owned();
        let told: Vec<_> = ends.map(|to| (to, UNAVAILABLE, text.clone())).into();
        assert_eq!(ended, if waits { told } else { vec![] });
        assert_eq!(state.links[&number].open, !waits);
        state.reload(granting(plain(2)), None, Instant::now());
        let again = if waits { vec![] } else { both(plain(2)) };
        assert_eq!(grants(&take(&mut state), number, ends), again, "it has none, and may have one");
    }
}
