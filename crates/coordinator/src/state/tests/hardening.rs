//! Who is told to close itself to other processes of its user, and what comes of that for its links.

use super::*;
use crate::identity::Domain;
use partywall_abi::security::{Confidentiality, Isolation, Security};

const PROGRAM: &str = "1111111111111111111111111111111111111111111111111111111111111111";

/// A policy in which `web` may call `g` of `server` over links that nobody else of their users reads.
fn requiring_host(harden: &str) -> String {
    format!(
        "{harden}\n[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n[principal.root]\nuid = 0\n\
         [service.g]\nregister = ['server']\n\
         [service.g.call]\nroot = ['*']\n\
         [service.g.call.web]\nmethods = ['a.B/*']\nrequire = {{ confidentiality = 'host' }}\n"
    )
}

/// A process that does what it is told.
pub(in super::super) fn admit(s: &mut State, facts: Facts) -> Conn {
    let (conn, told) = admit_open(s, facts, SPOKEN);
    if told {
        ask(s, conn, SessionMessage::Hardened.into());
    }
    conn
}

/// A process that is open to others of its user, and whether it was told not to be before its welcome.
pub(super) fn admit_open(s: &mut State, facts: Facts, spoken: Spoken) -> (Conn, bool) {
    let usage = s.account(&facts);
    let conn = s.opened(facts, usage, spoken);
    let session = |e: &Effect| match e {
        Effect::Send { message: Message::Session(message), .. } => Some(message.clone()),
        _ => None,
    };
    let said: Vec<SessionMessage> = take(s).iter().filter_map(session).collect();
    match &said[..] {
        [SessionMessage::Welcome { .. }] => (conn, false),
        [SessionMessage::Harden, SessionMessage::Welcome { .. }] => (conn, true),
        other => panic!("{other:?}"),
    }
}

fn hardened() -> Message {
    SessionMessage::Hardened.into()
}

/// A process of this user that is told and does not do it.
fn stays_open(s: &mut State, uid: u32) -> Conn {
    admit_open(s, facts(uid), SPOKEN).0
}

fn confidentiality(s: &State, link: u64) -> Confidentiality {
    s.links[&link].security.confidentiality
}

#[test]
fn a_process_is_told_before_it_is_welcome() {
    let isolation = Isolation::ProtectionKeys;
    let domain = Facts { domain: Some(Domain { launcher: 1, isolation }), ..facts(1) };
    let fading = |fades| Facts { fades, ..facts(1) };
    let other = Facts { fades: Fades::Program, ..facts(2) };
    let observing =
        format!("[principal.a]\nuid = 1\nprogram = 'sha256:{PROGRAM}'\nevidence = 'observed'\n");
    for (policy, facts, told) in [
        (POLICY, facts(1), true),
        ("", facts(1), true),
        ("harden = false", facts(1), false),
        ("harden = true", facts(1), true),
        // Nothing is won.
        ("harden = true", facts(0), false),
        ("harden = true", domain, false),
        // They could not be known again.
        ("", fading(Fades::Program), true),
        (&observing, fading(Fades::Program), false),
        (&observing, fading(Fades::Nothing), true),
        (&observing, other, true),
        ("", fading(Fades::All), false),
        ("harden = true", fading(Fades::All), true),
    ] {
        let s = &mut under(policy);
        let said = format!("{policy}: {facts:?}");
        assert_eq!(admit_open(s, facts, SPOKEN).1, told, "{said}");
    }
    let older = Capabilities::from_bits(Capabilities::OWN.bits() & !Capabilities::HARDEN.bits());
    let older = Spoken { capabilities: older, ..SPOKEN };
    assert!(!admit_open(&mut state(), facts(1), older).1);
}

#[test]
fn a_link_is_as_closed_as_the_more_open_of_its_ends() {
    let policy = requiring_host("").replace("require = { confidentiality = 'host' }", "");
    use Confidentiality::{Host, User};
    for (server_says, web_says, expected) in
        [(true, true, Host), (true, false, User), (false, true, User), (false, false, User)]
    {
        let mut s = under(&policy);
        let (server, web) = (stays_open(&mut s, 1), stays_open(&mut s, 2));
        for (conn, says) in [(server, server_says), (web, web_says)] {
            if says {
                assert_eq!(ask(&mut s, conn, hardened()), []);
            }
        }
        register(&mut s, server);
        let (number, _) = link(&mut s, web);
        assert_eq!(confidentiality(&s, number), expected, "{server_says} {web_says}");
        // To root, what is root's is open anyway.
        let root = stays_open(&mut s, 0);
        let (number, _) = link(&mut s, root);
        let expected = if server_says { Host } else { User };
        assert_eq!(confidentiality(&s, number), expected, "{server_says}");
    }
}

#[test]
fn host_is_refused_where_an_end_is_open_to_its_user() {
    for (harden, remedy) in
        [("harden = false", "drop `harden = false`"), ("", "see that both ends are hardened")]
    {
        let mut s = under(&requiring_host(harden));
        let (server, web) = (stays_open(&mut s, 1), stays_open(&mut s, 2));
        register(&mut s, server);
        let effects = connect(&mut s, web);
        let (code, text) = refused(&effects);
        assert_eq!(code, PERMISSION_DENIED);
        let why = "confidentiality `host` is required, and there is `user`; remedy: ";
        assert!(text.contains(&format!("{why}{remedy}")), "{text}");
        ask(&mut s, web, hardened());
        assert_eq!(refused(&connect(&mut s, web)).0, PERMISSION_DENIED, "its server is open");
        ask(&mut s, server, hardened());
        link(&mut s, web);
    }
}

#[test]
fn a_reload_hardens_processes_and_raises_no_link() {
    let policy = |harden: &str| format!("{harden}\n{POLICY}");
    let mut s = under(&policy("harden = false"));
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (before, _) = link(&mut s, web);
    assert_eq!(confidentiality(&s, before), Confidentiality::User);
    let reload = |s: &mut State, harden: &str| -> Vec<Conn> {
        s.reload(Policy::parse("p", &policy(harden)).unwrap(), None, Instant::now());
        let told = |e: &Effect| match e {
            Effect::Send { to, message: Message::Session(SessionMessage::Harden) } => Some(*to),
            _ => None,
        };
        take(s).iter().filter_map(told).collect()
    };
    assert_eq!(reload(&mut s, "harden = true"), [server, web]);
    for conn in [server, web] {
        ask(&mut s, conn, hardened());
    }
    assert!(reload(&mut s, "").is_empty());
    let (after, _) = link(&mut s, web);
    let found = [before, after].map(|number| confidentiality(&s, number));
    assert_eq!(found, [Confidentiality::User, Confidentiality::Host]);
}

/// Of a link that another coordinator has made, the ends have said that it was closed.
#[test]
fn a_reported_link_is_open_where_an_end_is_open_now() {
    for (says, expected) in [(true, Confidentiality::Host), (false, Confidentiality::User)] {
        let mut s = state();
        let (server, web) = (open(&mut s, 1), stays_open(&mut s, 2));
        if says {
            ask(&mut s, web, hardened());
        }
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
            ask(&mut s, conn, report.into());
        }
        assert_eq!(confidentiality(&s, *s.links.keys().next().unwrap()), expected);
    }
}

/// It can lower what its link has, whatever it has said of itself before.
#[test]
fn an_end_that_has_opened_itself_again_lowers_its_link() {
    let mut s = under(&requiring_host(""));
    let (server, web) = (open(&mut s, 1), open(&mut s, 2));
    register(&mut s, server);
    let (number, _) = offered(&connect(&mut s, web));
    let mut security = Security::HIGHEST;
    security.confidentiality = Confidentiality::User;
    let effects = ask(&mut s, server, LinkMessage::Adopted { link: number, security }.into());
    let why = "confidentiality `host` is required, and there is `user`";
    assert!(effects.iter().any(|e| format!("{e:?}").contains(why)), "{effects:?}");
}
