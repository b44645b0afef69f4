//! What ties services together, and what is noted.

use super::*;

#[test]
fn calls() {
    let ok = |text: &str| {
        let file = format!("      package: p\n      calls: [{text}]\n");
        good(&with_extension(&file)).services[0].calls[0].clone()
    };
    assert_eq!(ok("wordcount/a.b.C/D").method.to_string(), "a.b.C/D");
    assert!(ok("wordcount/*").method.covers("/a.b.C/D"));

    let at = |bad: &str| {
        error(&with_extension(&format!("      package: p\n      calls:\n      - {bad}\n")))
    };
    assert_eq!(
        at("x"),
        "compose.yaml:6: services.client.x-partywall.calls[0]: `x` is no call: write \
         `service/method`, with the service's name in this file"
    );
    for bad in
        ["wordcount/", "wordcount/a.B", "wordcount/a/b/c", "wordcount/*/Total", "'wordcount/a b'"]
    {
        let error = at(bad);
        assert!(
            error.starts_with("compose.yaml:6: services.client.x-partywall.calls[0]: `wordcount/"),
            "{error}"
        );
        assert!(error.contains("is no method pattern: write"), "{error}");
    }
    assert!(at("/Total").contains("`/Total` is no call"));
    assert_eq!(
        at("wordcont/Total"),
        "compose.yaml:6: services.client.x-partywall.calls[0]: no service `wordcont` in this file; \
         it has `client`, `wordcount` (did you mean `wordcount`?)"
    );
    assert_eq!(
        error("services:\n  a:\n    x-partywall: {package: a, calls: [db/*]}\n  db: {image: db}\n"),
        "compose.yaml:3: services.a.x-partywall.calls[0]: service `db` cannot be called, for it \
         has no `x-partywall`; add one to `db`"
    );
}

/// Services without anything but `depends_on` and a package.
fn graph(waits: &[(&str, &str)]) -> String {
    let mut text = String::from("services:\n");
    for (name, on) in waits {
        text.push_str(&format!(
            "  {name}:\n    x-partywall: {{package: p}}\n    depends_on: {on}\n"
        ));
    }
    text
}

#[test]
fn start_order() {
    let order = |waits: &[(&str, &str)]| names(&good(&graph(waits))).join(" ");
    assert_eq!(order(&[("a", "[]"), ("b", ""), ("c", "[]")]), "a b c");
    assert_eq!(order(&[("a", "[c]"), ("b", "[a]"), ("c", "[]")]), "c a b");
    assert_eq!(order(&[("a", "{c: {condition: service_healthy}}"), ("b", ""), ("c", "")]), "b c a");
}

#[test]
fn dependencies_in_both_forms() {
    let compose = good(
        "services:
  a:
    x-partywall: {package: p}
    depends_on:
      b: {condition: service_healthy, restart: true}
      c: {condition: service_completed_successfully}
      d: {condition: service_started}
      e: {condition: service_started, required: false}
  b:
    x-partywall: {package: p}
  c:
    x-partywall: {package: p}
    depends_on: [d, b]
  d:
    x-partywall: {package: p}
",
    );
    let a = compose.services.iter().find(|service| service.name == "a").unwrap();
    let waits: Vec<_> = a.depends_on.iter().map(|d| (d.service.as_str(), d.condition)).collect();
    assert_eq!(
        waits,
        [
            ("b", Condition::Healthy),
            ("c", Condition::CompletedSuccessfully),
            ("d", Condition::Started)
        ]
    );
    assert_eq!(
        compose.notes,
        [
            "compose.yaml:5: services.a.depends_on.b.restart: not used: `up` starts no service anew by \
             hand",
            "compose.yaml:8: services.a.depends_on.e: not in this file and not required; not awaited",
            "compose.yaml:5: services.a.depends_on.b: no healthcheck is run; awaited is, as with \
             service_started, that the service serves its name, if another one's `calls` name it"
        ]
    );
}

#[test]
fn wrong_dependencies() {
    let mistyped = error(&graph(&[("a", "{b: {conditon: service_healthy}}"), ("b", "[]")]));
    assert_eq!(
        mistyped,
        "compose.yaml:4: services.a.depends_on.b.conditon: Compose has no such key; remove it, or begin \
         it with `x-` (did you mean `condition`?)"
    );
    assert_eq!(
        error(&graph(&[("alpha", "[]"), ("b", "[alpa]")])),
        "compose.yaml:7: services.b.depends_on[0]: no service `alpa` in this file; it has `alpha`, `b` \
         (did you mean `alpha`?)"
    );
    assert_eq!(
        error(&graph(&[("a", "{b: {condition: service_started}}")])),
        "compose.yaml:4: services.a.depends_on.b: no service `b` in this file; it has `a`"
    );
    assert_eq!(
        error(&graph(&[("a", "b")])),
        "compose.yaml:4: services.a.depends_on: expected a list of services or a mapping from \
         services to conditions, found the text `b`"
    );
    assert_eq!(
        error(&graph(&[("a", "[[b]]")])),
        "compose.yaml:4: services.a.depends_on[0]: expected the name of a service, found a list"
    );
    assert_eq!(
        error(&graph(&[("a", "{b: {condition: ready}}"), ("b", "")])),
        "compose.yaml:4: services.a.depends_on.b.condition: expected `service_started`, \
         `service_healthy` or `service_completed_successfully`, found the text `ready`"
    );
    assert_eq!(
        error(&graph(&[("a", "{b: {required: maybe}}"), ("b", "")])),
        "compose.yaml:4: services.a.depends_on.b.required: expected `true` or `false`, found the \
         text `maybe`"
    );
}

#[test]
fn cycles_print_their_path() {
    assert_eq!(
        error(&graph(&[("x", "[b]"), ("a", "[c]"), ("b", "[a]"), ("c", "[b]")])),
        "compose.yaml:7: services.a.depends_on[0]: cycle a -> c -> b -> a; remove one of these \
         dependencies"
    );
    assert_eq!(
        error(&graph(&[("a", "{a: {condition: service_started}}")])),
        "compose.yaml:4: services.a.depends_on.a: cycle a -> a; remove one of these dependencies"
    );
    // A service that is not started can still be part of a cycle.
    assert!(
        error(
            "services:\n  a:\n    x-partywall: {package: p}\n    depends_on: [b]\n  b:\n    \
             depends_on: [a]\n"
        )
        .contains("cycle a -> b -> a")
    );
}

#[test]
fn service_not_started_has_a_note() {
    let compose = good(
        "include: [other.yaml]
services:
  db:
    image: db
    depends_on: [b]
  a:
    env_file: .env
    extends: {service: b}
    depends_on: [db]
    x-partywall: {package: p, args: [$NO, $NO]}
  b:
    x-partywall: {package: p}
",
    );
    // The order holds across a service that is not started.
    assert_eq!(names(&compose), ["b", "a"]);
    assert!(compose.services[1].depends_on.is_empty());
    assert_eq!(
        compose.notes,
        [
            "compose.yaml:1: include: not read; services of other files do not take part",
            "compose.yaml:3: services.db: not started: it has no `x-partywall`",
            "compose.yaml:7: services.a.env_file: not read; put the variables under `environment`",
            "compose.yaml:8: services.a.extends: not read; only what stands in this service counts",
            "compose.yaml:10: services.a.x-partywall.args[0]: variable `NO` is not set; an empty \
             text replaces it",
            "compose.yaml:10: services.a.x-partywall.args[1]: variable `NO` is not set; an empty \
             text replaces it",
            "compose.yaml:9: services.a.depends_on[0]: not started and so not awaited",
        ]
    );
}

#[test]
fn a_dotenv_file_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".env"), "A=b\n").unwrap();
    let path = dir.path().join("compose.yaml");
    fs::write(&path, "services:\n  a:\n    x-partywall: {package: p}\n").unwrap();
    let notes = load(&path, &vars).unwrap().notes;
    assert_eq!(notes.len(), 1);
    assert!(notes[0].ends_with(".env: not read; export the variables before the command"));
}
