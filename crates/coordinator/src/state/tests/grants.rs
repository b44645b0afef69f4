//! Descriptors cross where the policy grants it, and nowhere else.

use super::*;
use crate::identity::Domain;
use partywall_abi::security::Isolation;

/// A policy in which `web` may have so many descriptors cross at `g`.
pub(super) fn granting(descriptors: u32) -> Policy {
    let text = format!(
        "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
         [service.g]\nregister = ['server']\n\
         [service.g.call.web]\nmethods = ['a.B/*']\ndescriptors = {descriptors}\n\
         [service.g.call.anyone]\nmethods = ['a.B/C']\n"
    );
    Policy::parse("p", &text).unwrap()
}

/// A link by this policy, and what both ends are granted: the role of each, and how many descriptors.
fn granted(policy: Policy, server: Facts, caller: Facts, spoken: Capabilities) -> Vec<(Role, u32)> {
    let mut s = state();
    s.reload(policy, None, Instant::now());
    let (server, _) = (admit(&mut s, server), take(&mut s));
    let usage = s.account(&caller);
    let spoken = Spoken { version: partywall_abi::VERSION, capabilities: spoken };
    let caller = s.opened(caller, usage, spoken);
    take(&mut s);
    register(&mut s, server);
    let (number, _) = offered(&connect(&mut s, caller));
    for conn in [server, caller] {
        let security = Security::HIGHEST;
        ask(&mut s, conn, Message::Link(LinkMessage::Adopted { link: number, security }));
    }
    s.introduced(number);
    grants(&take(&mut s), number, [caller, server])
}

pub(super) fn grants(effects: &[Effect], number: u64, ends: [Conn; 2]) -> Vec<(Role, u32)> {
    let granted = effects.iter().filter_map(|e| match e {
        Effect::Grant { link, to } => {
            assert_eq!((*link, to.each_ref().map(|(conn, _)| *conn)), (number, ends));
            Some(to.iter().map(|(_, message)| match message {
                Message::Link(LinkMessage::Granted { link, role, descriptors }) => {
                    assert_eq!(*link, number);
                    (*role, *descriptors)
                }
                other => panic!("{other:?}"),
            }))
        }
        _ => None,
    });
    granted.flatten().collect()
}

#[test]
fn descriptors_cross_only_where_a_rule_of_the_caller_says_so() {
    let both = vec![(Role::Caller, 3), (Role::Server, 3)];
    let all = Capabilities::OWN;
    assert_eq!(granted(granting(3), facts(1), facts(2), all), both);
    assert_eq!(granted(granting(0), facts(1), facts(2), all), []);
    // Another caller, by another rule.
    assert_eq!(granted(granting(3), facts(1), facts(3), all), []);
    // An end that knows nothing of it.
    let older = Capabilities::from_bits(all.bits() & !Capabilities::PARCELS.bits());
    assert_eq!(granted(granting(3), facts(1), facts(2), older), []);
    // A domain's descriptors are its launcher's threads'.
    let domain = Some(Domain { launcher: 1, isolation: Isolation::None });
    let in_launcher = |uid| Facts { domain, ..facts(uid) };
    assert_eq!(granted(granting(3), in_launcher(1), facts(2), all), []);
    assert_eq!(granted(granting(3), facts(1), in_launcher(2), all), []);
}

#[test]
fn a_reload_grants_at_once_and_takes_back_by_ending_the_link() {
    let mut s = state();
    s.reload(granting(0), None, Instant::now());
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = link(&mut s, web);
    let mut reload = |descriptors| {
        s.reload(granting(descriptors), None, Instant::now());
        take(&mut s)
    };
    let ends = [web, server];
    let both = |n| vec![(Role::Caller, n), (Role::Server, n)];
    assert_eq!(grants(&reload(2), number, ends), both(2));
    assert!(reload(2).is_empty(), "it is granted once");
    assert!(reload(5).is_empty(), "its ends have a socket, and know the first number");
    let ended: Vec<_> = reload(1)
        .into_iter()
        .filter_map(|e| match e {
            Effect::Send { to, message: Message::End(EndMessage::Ended { code, text, .. }) } => {
                Some((to, code, text))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        ended.iter().map(|(to, code, _)| (*to, *code)).collect::<Vec<_>>(),
        [(web, UNAVAILABLE), (server, UNAVAILABLE)]
    );
    assert!(ended[0].2.contains("1 by the policy, 2 on this link"), "{}", ended[0].2);
    assert!(!s.links[&number].open);
}
