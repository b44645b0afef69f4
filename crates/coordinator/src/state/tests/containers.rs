//! Processes of containers, and those that services have started: no operators, and accounts of their own.

use super::*;
use crate::container::Container;
use crate::engine::Origin;
use partywall_abi::control::GateMessage;

/// A process of this user in the container of this letter.
fn inside(uid: u32, letter: char) -> Facts {
    let id = letter.to_string().repeat(64);
    let container = Container { engine: "docker".into(), id, pod: None };
    let contained = Some(format!("it is in {container}").into());
    Facts { container: Some(container), contained, ..facts(uid) }
}

/// The same, of which its engine has said more.
fn made_of(facts: Facts, compose: &str) -> Facts {
    let origin = Origin { image: image(), compose: Some(compose.into()), signature: None };
    facts.told(Ok(origin))
}

fn image() -> String {
    format!("sha256:{}", "1f".repeat(32))
}

/// A process of this user in other namespaces, of which no engine is known.
fn elsewhere(uid: u32) -> Facts {
    let how = "it is in another PID namespace than the coordinator";
    Facts { contained: Some(how.into()), ..facts(uid) }
}

fn account(s: &State, conn: Conn) -> Account {
    s.connections[&conn].standing.usage.account().clone()
}

#[test]
fn root_of_a_container_is_no_operator() {
    let mut s = state();
    let list = || Message::from(ListMessage::List { request: 1 });
    let reload = || Message::from(PolicyMessage::Reload { request: 1 });
    let gate = || {
        let switch = GateMessage::Switch { request: 1, name: name(), open: false };
        Message::from(switch)
    };
    for (uid, how) in [(0, "container aaaaaaaaaaaa of docker"), (9, "another PID namespace")] {
        let of_host = open(&mut s, uid);
        for order in [list(), reload(), gate()] {
            let e = ask(&mut s, of_host, order);
            let denied = |e: &Effect| {
                let Effect::Send { message, .. } = e else { return false };
                matches!(message, Message::Session(SessionMessage::Refused { code, .. })
                    if *code == PERMISSION_DENIED)
            };
            assert!(!e.iter().any(denied), "{e:?}");
        }
        let contained = if uid == 0 { inside(0, 'a') } else { elsewhere(9) };
        let contained = admit(&mut s, contained);
        for order in [list(), reload(), gate()] {
            let e = ask(&mut s, contained, order);
            let (code, text) = refused(&e);
            assert_eq!(code, PERMISSION_DENIED);
            assert!(text.contains(how) && text.contains("remedy: do it outside"), "{text}");
        }
    }
    let user = admit(&mut s, elsewhere(5));
    assert!(refused(&ask(&mut s, user, list())).1.ends_with("you are user 5"));
}

#[test]
fn container_is_an_account_whoever_its_users_are() {
    let mut s = state();
    let conns = [inside(0, 'a'), inside(2, 'a'), inside(9, 'b'), facts(2), facts(0)];
    let [a, same, b, user, root] = conns.map(|facts| admit(&mut s, facts));
    assert_eq!(account(&s, a).to_string(), "container aaaaaaaaaaaa of docker");
    assert_eq!(account(&s, a), account(&s, same));
    assert_eq!(account(&s, b).to_string(), "container bbbbbbbbbbbb of docker");
    assert_eq!([user, root].map(|conn| account(&s, conn)), [Account::User(2), Account::User(0)]);
    // Of what no engine is known, root and the coordinator's user have no share of the host's.
    let conns = [elsewhere(0), elsewhere(9), elsewhere(2)].map(|facts| admit(&mut s, facts));
    let accounts = [Account::Contained(0), Account::Contained(9), Account::User(2)];
    assert_eq!(conns.map(|conn| account(&s, conn)), accounts);
    // A uid that is lent to the coordinator's user counts for that one's range.
    let lent = admit(&mut s, Facts { user: 100_000, ..elsewhere(100_005) });
    assert_eq!(account(&s, lent), Account::User(100_000));
}

#[test]
fn root_of_a_container_has_no_share_of_roots() {
    for contained in [inside(0, 'a'), elsewhere(0), elsewhere(9)] {
        let policy = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n";
        let mut s = with_descriptors(1024, policy);
        let total = |s: &State, facts: &Facts| {
            let usage = s.account(facts);
            let charges: Vec<_> =
                std::iter::from_fn(|| usage.charge(Resource::Links, 1).ok()).collect();
            (charges.len(), charges)
        };
        let (others, _charges) = total(&s, &contained);
        let (roots, _) = total(&s, &facts(0));
        // 240 links: one account has half of them, and root all that is left.
        assert_eq!((others, roots), (120, 120), "{contained:?}");
        let contained = admit(&mut s, contained);
        assert!(!s.connections[&contained].standing.usage.is_privileged());
    }
}

const QUOTAS: &str = "[engine.docker]\napi = '/run/docker.sock'\n[principal.web]\nuid = 2\n[principal.web.quota]\nlinks = 3\n\
                      [principal.known]\ncontainer = 'bbbbbbbbbbbb'\n\
                      [principal.known.quota]\nlinks = 5\n\
                      [principal.made]\ncompose = 'shop/web'\n[principal.made.quota]\nlinks = 7\n";

#[test]
fn quota_of_a_container_is_that_of_who_names_it() {
    let s = under(QUOTAS);
    for (facts, expected, links) in [
        (facts(2), "principal `web`", 3),
        (inside(2, 'a'), "container aaaaaaaaaaaa of docker", 4096),
        (inside(2, 'b'), "principal `known`", 5),
        (inside(7, 'b'), "principal `known`", 5),
        (made_of(inside(2, 'a'), "shop/web"), "principal `made`", 7),
        (made_of(inside(2, 'a'), "shop/db"), "container aaaaaaaaaaaa of docker", 4096),
    ] {
        let usage = s.account(&facts);
        assert_eq!(usage.account().to_string(), expected);
        assert_eq!(usage.limit(Resource::Links), links, "{expected}");
    }
}

#[test]
fn operator_is_told_of_containers_if_its_build_takes_them() {
    let mut s = state();
    let (server, web) = (admit(&mut s, inside(1, 'a')), open(&mut s, 2));
    register(&mut s, server);
    link(&mut s, web);
    let other = admit(&mut s, inside(3, 'b'));
    link(&mut s, other);
    for (capabilities, ids) in [
        (Capabilities::WAYS, [["", ""], ["", ""]].map(|of_link| of_link.map(String::from))),
        (
            Capabilities::CONTAINERS,
            [[String::new(), "a".repeat(64)], ["b".repeat(64), "a".repeat(64)]],
        ),
    ] {
        let usage = s.account(&facts(9));
        let operator = s.opened(facts(9), usage, Spoken { capabilities, ..SPOKEN });
        take(&mut s);
        let rows = list::listed(&mut s, operator);
        let told = rows.iter().map(|row| {
            [&row.caller, row.server.as_ref().unwrap()].map(|end| end.container.clone())
        });
        assert_eq!(told.collect::<Vec<_>>(), ids, "{capabilities}");
    }
}

#[test]
fn operator_is_told_of_origins_if_its_build_takes_them() {
    let mut s = state();
    let server = admit(&mut s, made_of(inside(1, 'a'), "shop/store"));
    register(&mut s, server);
    let caller = admit(&mut s, made_of(inside(3, 'b'), "shop/web"));
    link(&mut s, caller);
    let told = |end: &Identity| [end.image.clone(), end.compose.clone()];
    let of = |compose: &str| [image(), compose.to_owned()];
    let none = [String::new(), String::new()];
    for (capabilities, ends) in [
        (Capabilities::OWN, [of("shop/web"), of("shop/store")]),
        (Capabilities::OWN.without(Capabilities::ORIGINS), [none.clone(), none]),
    ] {
        let usage = s.account(&facts(9));
        let operator = s.opened(facts(9), usage, Spoken { capabilities, ..SPOKEN });
        take(&mut s);
        let rows = list::listed(&mut s, operator);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        let server = row.server.as_ref().unwrap();
        assert_eq!([told(&row.caller), told(server)], ends, "{capabilities}");
        assert_eq!(server.container, "a".repeat(64));
        let instances = instances::told(&mut s, operator).0;
        assert_eq!(told(&instances[0].server), ends[1], "{capabilities}");
    }
}

#[test]
fn refusal_says_why_an_engine_has_not_said_more() {
    let policy = "[engine.docker]\napi = '/run/docker.sock'\n[principal.web]\ncompose = 'shop/web'\n\
                  [service.g]\nregister = ['web']\n";
    let mut s = under(policy);
    let known = admit(&mut s, made_of(inside(1, 'a'), "shop/web"));
    register(&mut s, known);
    let unknown = admit(&mut s, inside(1, 'b').told(Err("no answer; remedy: wait".into())));
    let effects = register(&mut s, unknown);
    let (code, text) = refused(&effects);
    assert_eq!(code, PERMISSION_DENIED);
    assert!(
        text.contains("what its container was made of is unknown: no answer; remedy"),
        "{text}"
    );
}

#[test]
fn admission_of_a_container_is_in_the_audit_log() {
    let mut s = state();
    let mut said = |facts: Facts| {
        let usage = s.account(&facts);
        s.opened(facts, usage, SPOKEN);
        let effects = s.take_effects();
        let event = effects.into_iter().find_map(|effect| match effect {
            Effect::Audit(event) => Some(serde_json::to_value(event).unwrap()),
            _ => None,
        });
        event.unwrap()
    };
    let known = said(inside(0, 'a'));
    assert_eq!(known["container"], "a".repeat(64));
    assert_eq!(known["account"], "container aaaaaaaaaaaa of docker");
    assert_eq!(known.get("contained"), None);
    let asked = said(made_of(inside(0, 'a'), "shop/web"));
    assert_eq!([&asked["image"], &asked["compose"]], [image().as_str(), "shop/web"]);
    assert_eq!([known.get("image"), known.get("compose"), known.get("no_origin")], [None; 3]);
    let refused = said(inside(0, 'a').told(Err("the engine is away; remedy: start it".into())));
    assert_eq!(refused["no_origin"], "the engine is away; remedy: start it");
    assert_eq!([refused.get("image"), refused.get("compose")], [None; 2]);
    let unknown = said(elsewhere(0));
    assert_eq!(unknown.get("container"), None);
    assert_eq!(unknown["contained"], "it is in another PID namespace than the coordinator");
    let host = said(facts(0));
    assert_eq!([host.get("container"), host.get("contained")], [None; 2]);
}

#[test]
fn descendants_of_services_are_no_operators_and_one_account() {
    let mut s = state();
    let operator = open(&mut s, 9);
    let started = admit(&mut s, Facts { descends: true, ..facts(9) });
    let account = |conn| s.connections[&conn].standing.usage.account().clone();
    assert_eq!([operator, started].map(account), [Account::User(9), Account::Descendants]);
    let e = ask(&mut s, started, Message::List(ListMessage::List { request: 1 }));
    assert_eq!(refused(&e).0, PERMISSION_DENIED);
}
