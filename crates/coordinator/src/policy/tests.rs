//! What a policy allows, and what is none.

mod pods;
mod signed;

use partywall_abi::security::{Confidentiality, Evidence, Isolation, Seal, Sign};

use super::*;
use crate::container::Container;
use crate::engine::Origin;
use crate::signatures::KEYS;
use partywall_trust::record::Suite;

fn facts() -> Facts {
    Facts {
        uid: 1000,
        gid: 100,
        pid: Some(1),
        digest: Digest::Observed([0xab; 32]),
        digest_error: None,
        cgroup: "/a".into(),
        container: None,
        origin: None,
        origin_error: None,
        contained: None,
        started_as: None,
        signature: None,
        domain: None,
        user: 1000,
        descends: false,
        fades: Fades::Nothing,
    }
}

fn name(n: &str) -> ServiceName {
    ServiceName::new(n).unwrap()
}

#[test]
fn nearest_is_only_given_when_close() {
    let known = ["package", "link", "args"];
    assert_eq!(nearest("lnk", known), Some("link"));
    assert_eq!(nearest("packge", known), Some("package"));
    assert_eq!(nearest("agrs", known), Some("args"));
    assert_eq!((nearest("colour", known), nearest("x", known)), (None, None));
    assert_eq!(did_you_mean("likn", known), " (did you mean `link`?)");
    assert_eq!(did_you_mean("colour", known), "");
}

#[test]
fn empty_policy_allows_nothing() {
    let p = Policy::parse("p", "").unwrap();
    assert!(p.principals(&facts()).is_empty());
    assert!(!p.may_register(&[], &name("a")));
    assert!(p.methods(&[], &name("a")).is_empty());
}

#[test]
fn all_facts_of_a_principal_must_hold() {
    let hex = "ab".repeat(32);
    let text = format!(
        "[principal.a]\nuid = 1000\ncgroup = '/a'\n[principal.b]\nuid = 1000\ngid = 5\n\
         [principal.weak]\nprogram = 'sha256:{hex}'\nevidence = 'observed'\n\
         [principal.strong]\nprogram = 'sha256:{hex}'\n[principal.s]\nstarted = 'x'\n"
    );
    let p = Policy::parse("p", &text).unwrap();
    assert_eq!(p.principals(&facts()), ["a", "weak"]);
    let strong = Facts { digest: Digest::Started([0xab; 32]), ..facts() };
    assert_eq!(p.principals(&strong), ["a", "strong", "weak"]);
    let started = Facts { started_as: Some("x".into()), uid: 0, ..facts() };
    assert_eq!(p.principals(&started), ["s", "weak"]);
}

#[test]
fn container_is_a_fact_by_the_begin_of_its_id() {
    let id = "0123456789abcdef".repeat(4);
    let text = format!(
        "[engine.docker]\n[principal.short]\ncontainer = '{}'\n[principal.whole]\ncontainer = '{id}'\n\
         [principal.of_user]\nuid = 5\ncontainer = '{id}'\n[principal.user]\nuid = 1000\n\
         [principal.other]\ncontainer = '{}'\n[principal.either]\ncontainer = ['{}', '{id}']\n\
         [principal.nobody]\ncontainer = []\n",
        &id[..12],
        "0123456789ac",
        "0123456789ac",
    );
    let p = Policy::parse("p", &text).unwrap();
    let inside = |id: String| {
        let container = Container { engine: "docker".into(), id, pod: None };
        Facts { container: Some(container), contained: Some("".into()), ..facts() }
    };
    assert_eq!(p.principals(&facts()), ["user"]);
    assert_eq!(p.principals(&inside(id.clone())), ["either", "short", "user", "whole"]);
    assert_eq!(p.principals(&inside("a".to_owned() + &id[..63])), ["user"]);
    assert_eq!(
        p.principals(&Facts { uid: 5, ..inside(id) }),
        ["either", "of_user", "short", "whole"]
    );
    assert!(Policy::parse("p", "").unwrap().engines().is_empty());
    assert!(!p.engines().is_empty());
}

#[test]
fn what_a_container_was_made_of_is_a_fact() {
    let image = |digit: char| format!("sha256:{}", digit.to_string().repeat(64));
    let text = format!(
        "[engine.docker]\napi = '/run/docker.sock'\n[principal.image]\nimage = '{a}'\n\
         [principal.images]\nimage = ['{b}', '{a}']\n[principal.service]\ncompose = 'shop/web'\n\
         [principal.services]\ncompose = ['shop/db', 'shop/web']\n\
         [principal.both]\nimage = '{a}'\ncompose = 'shop/web'\n\
         [principal.of_user]\nuid = 5\ncompose = 'shop/web'\n[principal.nobody]\ncompose = []\n",
        a = image('a'),
        b = image('b'),
    );
    let p = Policy::parse("p", &text).unwrap();
    let container = Container { engine: "docker".into(), id: "0a".repeat(32), pod: None };
    let inside = Facts { container: Some(container), ..facts() };
    let made = |digit, compose: Option<&str>| {
        let compose = compose.map(str::to_owned);
        p.principals(&inside.clone().told(Ok(Origin {
            image: image(digit),
            compose,
            signature: None,
        })))
    };
    assert_eq!(made('a', Some("shop/web")), ["both", "image", "images", "service", "services"]);
    assert_eq!(made('b', Some("shop/db")), ["images", "services"]);
    assert_eq!(made('c', Some("shop/web")), ["service", "services"]);
    assert_eq!(made('a', None), ["image", "images"]);
    assert_eq!(made('c', Some("other/web")), [""; 0]);
    // What nobody has said is not so.
    assert_eq!(p.principals(&inside.clone().told(Err("why".into()))), [""; 0]);
    assert_eq!(p.principals(&facts()), [""; 0]);
    assert_eq!(p.engines().api("docker").unwrap().to_str(), Some("/run/docker.sock"));
    assert_eq!(p.engines().api("podman"), None);
}

#[test]
fn engine_is_asked_only_where_its_word_could_count() {
    let asks = |principals: &str, facts: &Facts| {
        let text = format!("[engine.docker]\napi = '/run/docker.sock'\n{principals}");
        Policy::parse("p", &text).unwrap().asks_engine(facts)
    };
    assert!(asks("[principal.a]\ncompose = 'a/b'\nuid = 1000", &facts()));
    assert!(asks("[principal.a]\ncompose = 'a/b'\nuid = 5\n[principal.b]\nimage = []", &facts()));
    assert!(!asks("[principal.a]\ncompose = 'a/b'\nuid = 5", &facts()));
    assert!(!asks(
        "[principal.a]\nuid = 1000\n[principal.b]\ncontainer = '0123456789ab'",
        &facts()
    ));
}

#[test]
fn calls_are_granted_by_method() {
    let p = Policy::parse(
        "p",
        "[principal.web]\nuid = 1\n[service.g]\nregister = ['anyone']\n\
         [service.g.call]\nweb = ['a.B/C']\nanyone = ['grpc.health.v1.Health/*']\n\
         [names]\nfar = 'http://h:1'",
    )
    .unwrap();
    let web = p.methods(&["web".into()], &name("g"));
    assert!(web.covers("/a.B/C") && web.covers("/grpc.health.v1.Health/Check"));
    let other = p.methods(&[], &name("g"));
    assert!(!other.covers("/a.B/C") && other.covers("/grpc.health.v1.Health/Watch"));
    assert!(p.may_register(&[], &name("g")));
    assert_eq!(p.url(&name("far")), Some("http://h:1"));
}

#[test]
fn rule_is_a_list_of_methods_or_a_table_with_requirements() {
    let p = Policy::parse(
        "p",
        "[principal.web]\nuid = 1\n[principal.other]\nuid = 2\n[service.g.call]\n\
         other = ['a.B/C']\nweb = { methods = ['a.B/*'], require = { isolation = 'process', \
         evidence = 'started' } }\n",
    )
    .unwrap();
    let of = |who: &str| (vec![who.to_string()], name("g"));
    let (web, g) = of("web");
    let least = Security::new(Isolation::Process, Confidentiality::Open, Evidence::Started);
    assert_eq!(p.require(&web, &g), least);
    assert_eq!(p.explain(&web, &g, "/a.B/C").require, least);
    assert!(p.methods(&web, &g).covers("/a.B/D"));
    assert_eq!(p.require(&of("other").0, &g), Security::LOWEST);
}

#[test]
fn what_may_cross_is_the_most_that_a_rule_of_the_caller_has() {
    let p = Policy::parse(
        "p",
        "[principal.a]\nuid = 1\n[principal.b]\nuid = 2\n[principal.c]\nuid = 3\n\
         [service.g.call]\na = { methods = ['*'], descriptors = 4 }\n\
         b = { methods = ['*'], descriptors = 1, leases = true }\n\
         c = { methods = ['*'], descriptors = 2, leases = false }\n\
         anyone = { methods = ['*'], leases = false }\n\
         [service.h.call]\nanyone = { methods = ['*'], descriptors = 3, leases = true }\n",
    )
    .unwrap();
    let of = |who: &[&str], at: &str| {
        let who: Vec<String> = who.iter().map(|who| who.to_string()).collect();
        let grant = p.grant(&who, &name(at));
        assert_eq!(p.explain(&who, &name(at), "/a.B/C").grant, grant);
        grant
    };
    let grant = |descriptors, leases| Grant { descriptors, leases };
    assert_eq!(of(&[], "g"), Grant::NONE);
    assert_eq!(of(&["a"], "g"), grant(4, false));
    assert_eq!(of(&["b"], "g"), grant(1, true));
    assert_eq!(of(&["a", "b", "c"], "g"), grant(4, true));
    assert_eq!(of(&["a", "c"], "g"), grant(4, false));
    assert_eq!(of(&["a"], "h"), grant(3, true), "by the rule of everybody");
    assert_eq!(of(&["b"], "far"), Grant::NONE);
}

#[test]
fn mistakes_name_file_key_and_remedy() {
    let at = |text: &str| Policy::parse("policy.toml", text).unwrap_err().to_string();
    for (text, part) in [
        ("[principal.a]\nuidd = 1", "policy.toml:2: unknown key `uidd`; there are uid, gid, "),
        ("[principal.a]\nuidd = 1", "(did you mean `uid`?)"),
        ("\nx = 1\n", "policy.toml:2: unknown key `x`; there are harden, principal, service, "),
        ("[principal.a\n", "policy.toml:1: "),
        ("\n\n[principal.a]", "policy.toml:3: principal.a: no fact"),
        ("\n[engine.dokcer]", "policy.toml:2: engine.dokcer: no engine of this name is known"),
        ("[engine.Docker]", "policy.toml:1: engine.Docker: "),
        ("[engine.docker]\ngroups = ['/docker']", "engine.docker: `/docker`: it has one `{id}`"),
        ("[engine.docker]\ngroups = '/docker/{id}'", "policy.toml:2: `groups`: invalid type"),
        (
            "[engine.docker]\nparent = '/'",
            "policy.toml:2: unknown key `parent`; there are groups, api here",
        ),
        ("[principal.a]\ncontainer = '0123456789ab'", "add [engine.docker]"),
        (
            "[engine.docker]\n[principal.a]\ncontainer = '0123456789a'",
            "12 to 64 hexadecimal digits",
        ),
        (
            "[engine.docker]\n[principal.a]\ncontainer = '0123456789AB'",
            "12 to 64 hexadecimal digits",
        ),
        (
            "[engine.docker]\n[principal.a]\ncontainer = ['0123456789ab', 'web']",
            "policy.toml:2: principal.a: `web`",
        ),
        (
            "[engine.docker]\n[principal.a]\ncontainer = 1",
            "policy.toml:3: `container`: a text, or a list of texts",
        ),
        ("[engine.docker]\n[principal.a]\ncontainer = 'web'", "policy.toml:2: principal.a: `web`"),
        (
            "[engine.docker]\napi = 'tcp://h:2375'",
            "engine.docker: `api`: `tcp://h:2375`: write the absolute path",
        ),
        (
            "[engine.docker]\n[principal.a]\ncompose = 'a/b'",
            "`compose` is what an engine says, and none",
        ),
        (
            "[engine.docker]\n[principal.a]\nimage = []",
            "`image` is what an engine says, and none can be asked; add `api = \"/run/docker.sock\"`",
        ),
        (
            "[principal.a]\nimage = 'shop/web:1'",
            "principal.a: `shop/web:1`: write an image's id, whole",
        ),
        (
            "[principal.a]\nimage = ['sha256:0123456789ab']",
            "docker image inspect --format '{{.Id}}'",
        ),
        ("[principal.a]\ncompose = ['a/b', 'web']", "principal.a: `web`: write PROJECT/SERVICE"),
        ("[principal.a]\ncompose = 'a/b/c'", "`a/b/c`: write PROJECT/SERVICE"),
        ("[principal.anyone]\nuid = 1", "cannot be defined"),
        (
            "[service.a.call]\nanyone = { methods = ['*'], descriptors = 17 }",
            "policy.toml:2: service.a.call.anyone.descriptors: a message has at most 16",
        ),
        (
            "[service.a.call.anyone]\nmethods = ['*']\nleases = true",
            "policy.toml:3: service.a.call.anyone.leases: a lease crosses as a descriptor, and this rule has \
             none; remedy: add `descriptors = 1`, or more, beside it, or drop `leases`",
        ),
        (
            "[service.a.call]\nanyone = { methods = ['*'], leases = true, descriptors = 0 }",
            "policy.toml:2: service.a.call.anyone.leases: a lease crosses as a descriptor",
        ),
        (
            "[service.a.call]\nanyone = { methods = ['*'], descriptors = 1, leases = 1 }",
            "policy.toml:2: `leases`: invalid type",
        ),
        (
            "[service.a.call]\nanyone = { methods = ['*'], descriptors = 1, lease = true }",
            "policy.toml:2: unknown key `lease`; there are methods, require, descriptors, leases, seal, sign here (did \
             you mean `leases`?)",
        ),
        ("[principal.a]\nuid = 1\nevidence = 'observed'", "add `program`"),
        ("[principal.a]\nprogram = 'sha1:00'", "sha256: and 64"),
        ("[service.g]\nregister = ['nobody']", "add [principal.nobody]"),
        ("[service.G]", "service.G"),
        ("[principal.web]\nuid = 1\n[service.g]\nregister = ['wbe']", "did you mean `web`?"),
        ("[principal.a]\nuid = 1\n[service.g]\nregister = [\n'a',\n'b']", "policy.toml:6:"),
        (
            "[service.g]\nregister = ['anyone']\n[names]\ng = 'http://h:1'",
            "policy.toml:4: names.g: anyone may serve",
        ),
        ("[service.g]\nregister = ['anyone']\nfallback = true", "no address to fall back to"),
        ("[quota]\nlinkz = 1", "linkz"),
        (
            "[authority]\ndomain = 'Shop'",
            "policy.toml:2: authority.domain: `Shop` is no SPIFFE ID: a trust domain has the letters a-z",
        ),
        (
            "[authority]\ndirectory = 'ca'",
            "policy.toml:2: authority.directory: write an absolute path",
        ),
        (
            "[authority]\nlife_seconds = 9",
            "policy.toml:2: authority.life_seconds: a certificate holds for 10 to 2592000 seconds",
        ),
        (
            "[sealing]\nsuite = 'aes-128-gmc'",
            "policy.toml:2: sealing.suite: no suite `aes-128-gmc`; there are `aes-128-gcm`, `aes-256-gcm`, \
             `chacha20-poly1305` (did you mean `aes-128-gcm`?)",
        ),
        (
            "[service.g]\nseal = 'prefer'\n[service.g.call]\nanyone = { methods = ['*'], descriptors = 1 }",
            "policy.toml:4: service.g.call.anyone.descriptors: what crosses as a descriptor is neither sealed",
        ),
        ("[service.g]\nseal = 'on'", "policy.toml:2: `seal`: unknown variant `on`"),
        ("[service.g.call]\nanyone = ['a/b/c']", "service.g.call.anyone"),
        (
            "[names]\nx = 'ftp://h'",
            "names.x: `ftp://h`: write http://HOST:PORT, https://HOST:PORT or unix:/PATH",
        ),
        (
            "[names]\nx = ['https://h:1', 'http://g:1']",
            "policy.toml:2: names.x: `https://h:1` and `http://g:1` are not protected alike",
        ),
        ("[names]\nx = []", "names.x: no address; write one address, or a list of https://"),
        ("[names]\nx = 1", "a text, or a list of texts"),
        ("[names]\nx = 'http://h:port'", "names.x: `http://h:port`: the port is no number"),
        (
            "[principal.a]\nuid = -1",
            "policy.toml:2: `uid`: found integer `-1`; write a whole number",
        ),
        ("[principal.a]\nuid = 'me'", "policy.toml:2: `uid`: found string \"me\"; write"),
        ("[principal.a]\nquota = { links = 'x' }", "policy.toml:2: `links`: found string \"x\"; "),
        (
            "[quota]\nparcel_bytes = '1G'",
            "policy.toml:2: `parcel_bytes`: found string \"1G\"; write a whole number from 0 on, without quotes or a unit",
        ),
        (
            "[quota]\nparcel_bytes = 1G",
            "policy.toml:2: `parcel_bytes`: neither a number nor a text",
        ),
        ("[quota]\nparcel_bytes = 1.5", "found floating point `1.5`; "),
        ("[quota]\nlinks = 99999999999999999999", "999`, which is too large; write"),
        ("[service.g]\nfallback = 1", "policy.toml:2: `fallback`: invalid type"),
        (
            "[service.g.call.anyone]\nmethods = ['*']\nrequire = { isolation = 'fault' }",
            "policy.toml:3: service.g.call.anyone.require: no isolation `fault`; there are `none`, \
             `shared-signal-stacks`, `protection-keys`, `process`; `fault` is now `protection-keys`",
        ),
        (
            "[service.g.call.anyone]\nmethods = ['*']\nrequire = { isolaton = 'none' }",
            "policy.toml:3: unknown key `isolaton`; there are isolation, confidentiality, evidence",
        ),
        ("[service.g.call.anyone]\nmethod = ['*']", "policy.toml:2: unknown key `method`"),
        ("[service.g.call.anyone]\nrequire = {}", "missing field `methods`"),
        ("[service.g.call]\nanyone = '*'", "a list of methods, or a table with `methods`"),
    ] {
        let message = at(text);
        assert!(message.starts_with("policy.toml:"), "{message}");
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn a_started_principal_is_neither_everybody_nor_another_one() {
    let mut p = Policy::parse("p", "[principal.web]\nuid = 1\n").unwrap();
    p.add_started("greeter").unwrap();
    for (name, part) in [("anyone", "every process"), ("web", "is one"), ("greeter", "is one")] {
        let error = p.add_started(name).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
    let web = Facts { uid: 1, ..facts() };
    assert_eq!(p.principals(&web), ["web"]);
}

#[test]
fn programs_are_observed_only_for_a_principal_that_says_so() {
    let section = |evidence: &str| {
        let hex = "ab".repeat(32);
        let text = format!("[principal.a]\nprogram = 'sha256:{hex}'\n{evidence}");
        Policy::parse("p", &text).unwrap().observes_programs()
    };
    assert!(section("evidence = 'observed'"));
    assert!(!section("evidence = 'started'") && !section(""));
}

#[test]
fn fuzz_policy_accepts_and_refuses() {
    let seeds =
        ["[principal.a]\nuid = 1\n[service.g]\nregister = ['a']\n", "[names]\na = 'http://h:1'\n"];
    let mut random = partywall_testkit::Random::new(1);
    let mut accepted = [0, 0];
    for _ in 0..2_000 {
        accepted[usize::from(fuzz_policy(&random.mutated(&seeds)))] += 1;
    }
    assert!(accepted[0] > 50 && accepted[1] > 50, "{accepted:?}");
}

#[test]
fn served_name_takes_the_network_only_with_fallback() {
    let both = "[service.g]\nregister = ['anyone']\nFALLBACK\n[names]\ng = 'http://h:1'";
    assert!(Policy::parse("p", &both.replace("FALLBACK", "")).is_err());
    let p = Policy::parse("p", &both.replace("FALLBACK", "fallback = true")).unwrap();
    assert_eq!(p.url(&name("g")), Some("http://h:1"));
    let two = both
        .replace("FALLBACK", "fallback = true")
        .replace("'http://h:1'", "['http://h:1', 'http://i:1']");
    assert_eq!(Policy::parse("p", &two).unwrap().url(&name("g")), Some("http://h:1, http://i:1"));
    let elsewhere = "[service.g.call]\nanyone = ['*']\n[names]\ng = 'http://h:1'";
    assert!(Policy::parse("p", elsewhere).is_ok(), "nobody may serve it here");
}

#[test]
fn method_sets_too_long_for_a_message_are_refused_on_reading() {
    let many = |n: usize, len: usize| {
        let methods: Vec<String> =
            (0..n).map(|i| format!("'p{i}.{}/M'", "S".repeat(len))).collect();
        let text = format!("[service.g.call]\nanyone = [{}]", methods.join(","));
        Policy::parse("p", &text).map(drop).map_err(|e| e.to_string())
    };
    many(256, 100).unwrap();
    for refused in [many(257, 1), many(200, 900)] {
        let text = refused.unwrap_err();
        assert!(
            text.contains("p:1: service.g.call") && text.contains("package.Service/*"),
            "{text}"
        );
    }
}

#[test]
fn explain_says_who_may_call_what_and_why() {
    let p = Policy::parse(
        "p",
        "[principal.web]\nuid = 1\n[principal.s]\nuid = 2\n[service.g]\nregister = ['s']\n\
         [service.g.call]\nweb = ['a.B/*']\nanyone = ['Check']",
    )
    .unwrap();
    let web = ["web".to_string()];
    let e = p.explain(&web, &name("g"), "/a.B/Check");
    let by = |p: &str, m: &str| (p.to_string(), m.to_string());
    assert_eq!(e.allowed_by, [by("anyone", "Check"), by("web", "a.B/*")]);
    assert_eq!(e.served_by, ["s"]);
    assert!(p.explain(&[], &name("g"), "/a.B/C").allowed_by.is_empty());
}

#[test]
fn a_program_is_measured_only_where_that_could_make_a_principal() {
    let hex = "ab".repeat(32);
    let p = Policy::parse(
        "p",
        &format!("[principal.a]\nuid = 5\nprogram = 'sha256:{hex}'\nevidence = 'observed'"),
    )
    .unwrap();
    let of = |uid| Facts { uid, ..facts() };
    assert!(p.observes(&of(5)) && !p.observes(&of(6)));
    let text = format!(
        "[engine.docker]\n[principal.a]\ncontainer = '{}'\nprogram = 'sha256:{hex}'\n\
         evidence = 'observed'",
        "a".repeat(12)
    );
    let p = Policy::parse("p", &text).unwrap();
    let id = |letter: &str| {
        let container = Container { engine: "docker".into(), id: letter.repeat(64), pod: None };
        Facts { container: Some(container), ..facts() }
    };
    assert!(p.observes(&id("a")) && !p.observes(&id("b")) && !p.observes(&facts()));
}

#[test]
fn denial_says_what_to_write_in_which_file() {
    let [greeter, gretter] = ["greeter", "gretter"].map(|n| ServiceName::new(n).unwrap());
    let client = ["client".to_string()];
    let mut policy = Policy::parse(
        "p.toml",
        "[principal.client]\nuid = 1\n[service.greeter.call]\nclient = ['*']\n",
    )
    .unwrap();
    let toml = policy.remedy_to_call(&client, &gretter);
    assert!(toml.contains("[service.gretter.call]"), "{toml}");
    assert!(toml.ends_with("(did you mean `greeter`?)"), "{toml}");
    let stranger = policy.remedy_to_call(&[], &gretter);
    assert!(!stranger.contains("greeter"), "who may call nothing there learns no name: {stranger}");
    assert!(policy.remedy_to_serve(&client, &greeter).contains("[service.greeter] register"));
    for stranger in [stranger, policy.remedy_to_serve(&[], &greeter)] {
        assert!(stranger.starts_with("add [principal.NAME] with `uid = N`, and "), "{stranger}");
        assert!(
            stranger.contains("or for `anyone`") || stranger.contains("or `anyone`"),
            "{stranger}"
        );
    }
    policy.comes_from_compose("a/compose.yaml");
    let compose = policy.remedy_to_call(&client, &greeter);
    assert_eq!(
        compose,
        "list `greeter/package.Service/Method`, or `greeter/*`, under `calls` in the x-partywall of \
         service `client` of a/compose.yaml"
    );
    let served = policy.remedy_to_serve(&client, &greeter);
    assert!(served.contains("serve `client`, which is its name in a/compose.yaml"), "{served}");
    for none in [policy.remedy_to_call(&[], &greeter), policy.remedy_to_serve(&[], &greeter)] {
        assert!(none.contains("service of a/compose.yaml") || none.contains("service `greeter`"));
        assert!(!none.contains("[service"), "{none}");
    }
}

/// Of a service and of all rules that cover a caller the strictest wish counts, and is required as such.
#[test]
fn a_link_is_sealed_as_the_strictest_rule_wants() {
    let policy = Policy::parse(
        "p",
        "[principal.a]\nuid = 1\n[principal.b]\nuid = 2\n[principal.c]\nuid = 3\n\
         [service.g]\nregister = ['c']\nseal = 'prefer'\n[service.g.call]\na = ['*']\n\
         b = { methods = ['*'], seal = 'required' }\n\
         [service.h.call]\na = ['*']\nanyone = { methods = ['*'], seal = 'off' }\n\
         [sealing]\nsuite = 'chacha20-poly1305'\nclasses = true",
    )
    .unwrap();
    let of = |principals: &[&str], name: &str| {
        let principals: Vec<_> = principals.iter().map(|p| (*p).to_string()).collect();
        let name = ServiceName::new(name).unwrap();
        (policy.seal(&principals, &name), policy.require(&principals, &name).seal)
    };
    assert_eq!(of(&["a"], "g"), (Wish::Prefer, Seal::Off));
    assert_eq!(of(&["b"], "g"), (Wish::Required, Seal::Sealed));
    assert_eq!(of(&["a", "b"], "g"), (Wish::Required, Seal::Sealed));
    assert_eq!(of(&["a"], "h"), (Wish::Off, Seal::Off));
    assert_eq!(of(&["a"], "nobody"), (Wish::Off, Seal::Off));
    assert_eq!(policy.form(), (Suite::ChaCha20Poly1305, true));
    assert_eq!(Policy::default().form(), (Suite::Aes128Gcm, false));
    let principals = ["a", "c"].map(String::from);
    assert_eq!(policy.certified_as(&principals), Some("c"), "it may serve a name");
    assert_eq!(policy.certified_as(&principals[..1]), Some("a"));
    assert_eq!(policy.certified_as(&[]), None);
    assert_eq!(policy.names_served_by(&principals, &[]), ["g"]);
    assert!(policy.names_served_by(&principals[..1], &[]).is_empty());
}

/// The keys of a table that the parser reads, as its message about another key lists them.
fn keys_read(table: &str) -> BTreeSet<String> {
    let text = Policy::parse("p", &format!("{table}\nzzz = 1")).unwrap_err().to_string();
    let (_, known) = text.split_once("there are ").expect(&text);
    let (known, _) = known.split_once(" here").expect(&text);
    known.split(", ").map(str::to_owned).collect()
}

#[test]
fn documented_keys_are_those_that_the_parser_reads() {
    let tables = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    for (heading, table, further) in [
        (
            "The top of the file",
            "",
            &[
                "principal",
                "engine",
                "service",
                "names",
                "quota",
                "authority",
                "sealing",
                "signatures",
            ][..],
        ),
        ("`[principal.NAME]`", "[principal.a]", &["quota"]),
        ("`[engine.NAME]`", "[engine.docker]", &[]),
        ("`[service.NAME]`", "[service.a]", &["call"]),
        ("`[authority]`", "[authority]", &[]),
        ("`[sealing]`", "[sealing]", &[]),
        ("`[signatures]`", "[signatures]", &[]),
        ("`[quota]` and `[principal.NAME.quota]`", "[quota]", &[]),
    ] {
        let documented = partywall_testkit::documented_keys("policy.md", heading);
        let documented = documented.into_iter().chain(tables(further)).collect::<BTreeSet<_>>();
        assert_eq!(documented, keys_read(table), "{heading}");
    }
    let rules = partywall_testkit::documented_keys("policy.md", "`[service.NAME.call]`");
    let is_key = |key: &String| key.bytes().all(|b| b.is_ascii_lowercase());
    let rules = rules.into_iter().filter(is_key).collect::<BTreeSet<_>>();
    let mut read = keys_read("[service.a.call.anyone]");
    read.extend(keys_read(
        "[service.a.call.anyone]\nmethods = []\n[service.a.call.anyone.require]",
    ));
    assert_eq!(rules, read);
}

#[test]
fn documented_levels_are_those_that_the_parser_reads() {
    let rows = partywall_testkit::documented_rows("policy.md", "`[service.NAME.call]`");
    let levels =
        |key: &str| rows.iter().find(|row| row[0] == format!("`{key}`")).unwrap()[1].clone();
    let words = |words: &[&str]| format!("`{}`", words.join("`, `"));

    let isolation: Vec<_> = Isolation::ALL.iter().map(|l| l.word()).collect();
    let confidentiality: Vec<_> = Confidentiality::ALL.iter().map(|l| l.word()).collect();
    let evidence: Vec<_> = Evidence::ALL.iter().map(|l| l.word()).collect();
    assert_eq!(levels("isolation"), words(&isolation));
    assert_eq!(levels("confidentiality"), words(&confidentiality));
    assert_eq!(levels("evidence"), words(&evidence));
}

#[test]
fn documented_quotas_are_the_defaults() {
    let heading = "`[quota]` and `[principal.NAME.quota]`";
    let mut text = "[quota]\n".to_owned();
    for row in partywall_testkit::documented_rows("policy.md", heading) {
        text += &format!("{} = {}\n", row[0].trim_matches('`'), row[1]);
    }
    assert_eq!(Policy::parse("p", &text).unwrap().limits(), &Limits::default());
}

#[test]
fn hardening_that_hides_an_observed_program_is_refused() {
    let observed = |more: &str| {
        let hex = "ab".repeat(32);
        format!("[principal.a]\n{more}program = 'sha256:{hex}'\nevidence = 'observed'\n")
    };
    let text = observed("uid = 1000\n");
    let parse = |blind, text: &str| Policy::parse_for(blind, "p", text);
    let error = parse(Some(1000), &format!("\nharden = true\n{text}")).unwrap_err().to_string();
    let says = "p:2: harden: principal `a` goes by `evidence = \"observed\"`, and a coordinator of user 1000";
    assert!(error.starts_with(says), "{error}");
    assert!(error.contains("remedy: drop `harden = true`"), "{error}");
    assert!(parse(Some(1000), &format!("harden = true\n{}", observed(""))).is_err());
    for (blind, text) in [
        (None, format!("harden = true\n{text}")),
        (Some(1000), format!("harden = false\n{text}")),
        (Some(1000), text.clone()),
        // Which it could not read before either.
        (Some(999), format!("harden = true\n{text}")),
        (Some(1000), "harden = true\n".into()),
    ] {
        assert!(parse(blind, &text).is_ok(), "{blind:?} {text}");
    }
}

#[test]
fn a_demand_holds_for_all_callers_of_a_name_and_lowers_nothing() {
    let text = "[principal.a]\nuid = 1\n[principal.b]\nuid = 2\n[service.s]\nregister = ['a']\n\
                [service.s.call]\na = { methods = ['*'], require = { evidence = 'started' } }\nb = ['*']\n\
                [service.t.call]\nb = { methods = ['*'], descriptors = 1 }\n";
    let mut policy = Policy::parse("p", text).unwrap();
    let [s, t] = ["s", "t"].map(|name| ServiceName::new(name).unwrap());
    let of = |policy: &Policy, who: &str, name| {
        let principals = [who.to_owned()];
        (policy.require(&principals, name).to_string(), policy.seal(&principals, name))
    };
    let least = Security::LOWEST.with_evidence(Evidence::Observed);
    policy.demand(&s, least.with_seal(Seal::Sealed)).unwrap();
    policy.demand(&s, least).unwrap();
    let required = |words: &str| (words.to_owned(), Wish::Required);
    assert_eq!(of(&policy, "a", &s), required("none, open, started, sealed"));
    assert_eq!(of(&policy, "b", &s), required("none, open, observed, sealed"));
    // What crosses as a descriptor is not sealed.
    policy.demand(&t, least).unwrap();
    assert_eq!(policy.demand(&t, least.with_seal(Seal::Sealed)), Err("b".into()));
    assert_eq!(of(&policy, "b", &t), ("none, open, observed".into(), Wish::Off));
    // Links with signed messages are sealed as well, and the demand need not say so.
    let signed = Security::LOWEST.with_sign(Sign::Signed);
    assert_eq!(policy.demand(&t, signed), Err("b".into()));
    policy.demand(&s, signed).unwrap();
    let principals = ["b".to_owned()];
    assert!(policy.sign(&principals, &s) && !policy.sign(&principals, &t));
    assert_eq!(policy.require(&principals, &s).sign, Sign::Signed);
}
