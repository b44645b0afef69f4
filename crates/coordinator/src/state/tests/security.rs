//! What protects links, what the policy requires of that, and what two ends have in common.

use super::hardening::admit_open;
use super::*;
use crate::identity::Domain;
use partywall_abi::security::{Confidentiality, Evidence, Isolation, Security};

const URL: &str = "http://h:1";

/// A policy in which `web` may call `g` over links that have these levels, and `g` may be elsewhere.
fn requiring(levels: &str, elsewhere: bool) -> String {
    let (fallback, names) = match elsewhere {
        true => ("fallback = true\n", "[names]\ng = 'http://h:1'\n"),
        false => ("", ""),
    };
    format!(
        "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
         [service.g]\nregister = ['server']\n{fallback}\
         [service.g.call.web]\nmethods = ['a.B/*']\nrequire = {{ {levels} }}\n{names}"
    )
}

/// A domain of a launcher, started by the coordinator.
fn domain(s: &mut State, uid: u32, isolation: Isolation) -> Conn {
    let domain = Some(Domain { launcher: 1, isolation });
    let digest = Digest::Started([1; 32]);
    admit(s, Facts { domain, digest, started_as: Some(uid.to_string()), ..facts(uid) })
}

fn text_of(effects: &[Effect], code: u8) -> &str {
    let (found, text) = refused(effects);
    assert_eq!(found, code, "{text}");
    text
}

fn security_of(s: &State, link: u64) -> Security {
    s.links[&link].security
}

#[test]
fn link_security_is_the_weaker_of_its_ends() {
    let started = Facts { digest: Digest::Started([1; 32]), ..facts(1) };
    let observed = Facts { digest: Digest::Observed([1; 32]), ..facts(2) };
    let in_domain =
        |isolation| Facts { domain: Some(Domain { launcher: 1, isolation }), ..started.clone() };
    let keys = in_domain(Isolation::ProtectionKeys);
    use Confidentiality::{Host, Space};
    for (one, other, expected) in [
        (&started, &started, Security::new(Isolation::Process, Host, Evidence::Started)),
        (&started, &observed, Security::new(Isolation::Process, Host, Evidence::Observed)),
        (&started, &facts(3), Security::new(Isolation::Process, Host, Evidence::Observed)),
        (&keys, &started, Security::new(Isolation::Process, Space, Evidence::Started)),
        (&keys, &keys, Security::new(Isolation::ProtectionKeys, Space, Evidence::Started)),
        (
            &keys,
            &in_domain(Isolation::None),
            Security::new(Isolation::None, Space, Evidence::Started),
        ),
    ] {
        assert_eq!(one.security_with(other), expected);
        assert_eq!(other.security_with(one), expected);
    }
}

#[test]
fn link_below_requirement_is_refused_with_field_and_levels() {
    for (levels, field, required, found) in [
        ("isolation = 'protection-keys'", "isolation", "protection-keys", "none"),
        ("confidentiality = 'host'", "confidentiality", "host", "space"),
        ("isolation = 'process', evidence = 'started'", "isolation", "process", "none"),
    ] {
        let mut s = under(&requiring(levels, false));
        let server = domain(&mut s, 1, Isolation::None);
        let web = domain(&mut s, 2, Isolation::None);
        register(&mut s, server);
        s.take_effects();
        s.message(
            web,
            Message::Link(LinkMessage::Connect { request: 2, name: name() }),
            Instant::now(),
        );
        while s.serve_question().is_some() {}
        let effects = s.take_effects();
        let denied = |e: &Effect| matches!(e, Effect::Audit(Event::Denied { text, .. }) if text.contains(field));
        assert!(effects.iter().any(denied), "{effects:?}");
        let said: Vec<Effect> =
            effects.into_iter().filter(|e| !matches!(e, Effect::Audit(_))).collect();
        let text = text_of(&said, PERMISSION_DENIED);
        let expected =
            format!("{field} `{required}` is required, and there is `{found}`; remedy: ");
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains("[service.g.call]"), "{text}");
    }
    let mut s = under(&requiring("evidence = 'started'", false));
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let effects = connect(&mut s, web);
    let text = text_of(&effects, PERMISSION_DENIED);
    assert!(text.contains("evidence `started` is required, and there is `observed`"), "{text}");
}

#[test]
fn instance_below_the_requirement_is_skipped_for_another() {
    let mut s = under(&requiring("isolation = 'process'", false));
    let web = domain(&mut s, 2, Isolation::None);
    let near = domain(&mut s, 1, Isolation::None);
    register(&mut s, near);
    let far = open(&mut s, 1);
    register(&mut s, far);
    for _ in 0..4 {
        assert_eq!(link(&mut s, web).1, far);
    }
}

#[test]
fn every_rule_that_covers_a_caller_counts() {
    let policy = requiring("evidence = 'observed'", false)
        + "[service.g.call.anyone]\nmethods = ['Check']\nrequire = { isolation = 'process' }\n";
    let p = Policy::parse("p", &policy).unwrap();
    let both = Security::new(Isolation::Process, Confidentiality::Open, Evidence::Observed);
    assert_eq!(p.require(&["web".into()], &name()), both);
    let anyone = Security::new(Isolation::Process, Confidentiality::Open, Evidence::None);
    assert_eq!(p.require(&[], &name()), anyone);
    assert!(p.methods(&["web".into()], &name()).covers("/a.B/C"));
}

#[test]
fn redirect_below_requirement_is_refused_or_waits() {
    let mut s = under(&requiring("confidentiality = 'host'", true));
    let web = open(&mut s, 2);
    let effects = connect(&mut s, web);
    let text = text_of(&effects, NOT_FOUND);
    let why = "confidentiality `host` is required, and there is `open`";
    assert!(text.contains(why) && text.contains(URL), "{text}");
    let server = open(&mut s, 1);
    register(&mut s, server);
    link(&mut s, web);
    // Nobody may serve it here: waiting will not help.
    let only = requiring("evidence = 'observed'", true)
        .replace("register = ['server']\nfallback = true\n", "");
    let mut s = under(&only);
    let web = open(&mut s, 2);
    let effects = connect(&mut s, web);
    let text = text_of(&effects, PERMISSION_DENIED);
    assert!(text.contains("evidence `observed` is required, and there is `none`"), "{text}");
    let mut s = under(&only.replace("evidence = 'observed'", "isolation = 'process'"));
    let web = open(&mut s, 2);
    let effects = connect(&mut s, web);
    let redirect = |e: &Effect| {
        matches!(e, Effect::Send { message: Message::Link(LinkMessage::Redirect { .. }), .. })
    };
    assert!(effects.iter().any(redirect), "{effects:?}");
    assert_eq!(security_of(&s, 1), Security::NETWORK);
}

/// Those that were told of its end, and with which text.
fn told_of_end(effects: &[Effect], number: u64) -> Vec<(Conn, &str)> {
    let told = |e: &'_ Effect| matches!(e, Effect::Send { message: Message::End(EndMessage::Ended { link, .. }), .. } if *link == number);
    effects
        .iter()
        .filter(|e| told(e))
        .map(|e| match e {
            Effect::Send { to, message: Message::End(EndMessage::Ended { text, code, .. }) } => {
                assert_eq!(*code, PERMISSION_DENIED);
                (*to, text.as_str())
            }
            _ => unreachable!("filtered"),
        })
        .collect()
}

#[test]
fn reload_ends_links_and_redirects_below_the_requirement() {
    let mut s = under(&requiring("", true));
    let web = open(&mut s, 2);
    connect(&mut s, web);
    let redirect = 1;
    let server = open(&mut s, 1);
    register(&mut s, server);
    let (ring, _) = link(&mut s, web);
    let reload = |s: &mut State, levels: &str| {
        let policy = Policy::parse("p", &requiring(levels, true)).unwrap();
        let changed = s.reload(policy, None, Instant::now());
        (changed.ended, take(s))
    };
    // What both have.
    assert_eq!(reload(&mut s, "isolation = 'process'").0, 0);
    let (ended, effects) = reload(&mut s, "confidentiality = 'host'");
    assert_eq!(ended, 1);
    let told = told_of_end(&effects, redirect);
    assert!(
        matches!(told[..], [(to, text)] if to == web && text.contains("there is `open`")),
        "{told:?}"
    );
    assert!(s.links[&ring].open);
    let (ended, effects) = reload(&mut s, "evidence = 'started'");
    assert_eq!(ended, 1);
    let told = told_of_end(&effects, ring);
    let text = "evidence `started` is required, and there is `observed`";
    assert_eq!(told.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [web, server]);
    assert!(told.iter().all(|(_, said)| said.contains(text)), "{told:?}");
    assert!(!s.links[&ring].open);
}

#[test]
fn an_end_lowers_what_its_link_has_and_nobody_raises_it() {
    let lower = Security::new(Isolation::None, Confidentiality::Space, Evidence::Started);
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = offered(&connect(&mut s, web));
    let adopted = |security| Message::Link(LinkMessage::Adopted { link: number, security });
    // Whose word was not asked for says nothing.
    ask(&mut s, web, adopted(Security::LOWEST));
    let effects = ask(&mut s, server, adopted(lower));
    let expected = Security::new(Isolation::None, Confidentiality::Space, Evidence::Observed);
    let [Effect::Link { message: Message::Link(LinkMessage::Linked { terms, .. }), .. }] =
        &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(terms.security, expected);
    let effects = ask(&mut s, web, adopted(Security::HIGHEST));
    let [Effect::Open { message: Message::Link(LinkMessage::Open { security, .. }), .. }] =
        &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((*security, security_of(&s, number)), (expected, expected));
}

#[test]
fn an_end_that_lowers_its_link_below_the_requirement_loses_it() {
    let space = Security::new(Isolation::Process, Confidentiality::Space, Evidence::Started);
    for by_server in [true, false] {
        let mut s = under(&requiring("confidentiality = 'host'", false));
        let (server, web) = (open(&mut s, 1), open(&mut s, 2));
        register(&mut s, server);
        let (number, _) = offered(&connect(&mut s, web));
        let adopted = |security| Message::Link(LinkMessage::Adopted { link: number, security });
        let effects = if by_server {
            ask(&mut s, server, adopted(space))
        } else {
            ask(&mut s, server, adopted(Security::HIGHEST));
            ask(&mut s, web, adopted(space))
        };
        let why = "confidentiality `host` is required, and there is `space`";
        let says = |e: &Effect| format!("{e:?}").contains(why);
        assert!(effects.iter().any(says), "{by_server}: {effects:?}");
        assert!(!effects.iter().any(|e| matches!(e, Effect::Link { .. } | Effect::Open { .. })));
        assert!(!s.links.get(&number).is_some_and(|link| link.open));
    }
}

#[test]
fn reports_of_both_ends_lower_what_a_new_coordinator_finds() {
    let said = |isolation| Security::new(isolation, Confidentiality::Space, Evidence::Started);
    let mut s = state();
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    for (conn, role, isolation) in
        [(web, Role::Caller, Isolation::Process), (server, Role::Server, Isolation::None)]
    {
        let (token, security) = (Token([9; 16]), said(isolation));
        let report = LinkMessage::Report {
            request: 7,
            token,
            role,
            name: name(),
            security,
            grant: Grant::NONE,
        };
        ask(&mut s, conn, report.into());
    }
    let number = *s.links.keys().next().unwrap();
    let expected = Security::new(Isolation::None, Confidentiality::Space, Evidence::Observed);
    assert_eq!(security_of(&s, number), expected);
    assert!(s.links[&number].open);
}

#[test]
fn a_link_that_is_reported_and_below_is_ended() {
    let mut s = under(&requiring("evidence = 'started'", false));
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    let mut effects = Vec::new();
    for (conn, role) in [(web, Role::Caller), (server, Role::Server)] {
        let (token, security) = (Token([9; 16]), Security::HIGHEST);
        let report = LinkMessage::Report {
            request: 7,
            token,
            role,
            name: name(),
            security,
            grant: Grant::NONE,
        };
        effects = ask(&mut s, conn, report.into());
    }
    assert_eq!(told_of_end(&effects, 1).len(), 2, "{effects:?}");
}

fn admit_with(s: &mut State, uid: u32, spoken: Spoken) -> Conn {
    admit_open(s, facts(uid), spoken).0
}

#[test]
fn terms_have_the_capabilities_of_both_ends_known_or_not() {
    let newer = Capabilities::from_bits(Capabilities::ROOM.bits() | 1 << 40);
    for (servers, webs, common) in [
        (newer, newer, newer),
        (newer, Capabilities::ROOM, Capabilities::ROOM),
        (Capabilities::NONE, newer, Capabilities::NONE),
    ] {
        let mut s = state();
        let server = admit_with(&mut s, 1, Spoken { capabilities: servers, ..SPOKEN });
        let web = admit_with(&mut s, 2, Spoken { capabilities: webs, ..SPOKEN });
        register(&mut s, server);
        let effects = connect(&mut s, web);
        let [Effect::Offer { message: Message::Link(LinkMessage::Offer { terms, .. }), .. }] =
            &effects[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!(terms.capabilities, common);
    }
}

#[test]
fn processes_without_a_common_version_get_no_link() {
    let mut s = state();
    let newer = Spoken { version: SPOKEN.version + 1, ..SPOKEN };
    let server = admit_with(&mut s, 1, newer);
    let (web, other) = (open(&mut s, 2), admit_with(&mut s, 3, newer));
    register(&mut s, server);
    let effects = connect(&mut s, web);
    let text = text_of(&effects, FAILED_PRECONDITION);
    for version in [SPOKEN.version, newer.version] {
        assert!(text.contains(&format!("version {version}")), "{text}");
    }
    assert!(text.contains("remedy"), "{text}");
    assert_eq!(link(&mut s, other).1, server);
    let same = open(&mut s, 1);
    register(&mut s, same);
    assert_eq!(link(&mut s, web).1, same);
}
