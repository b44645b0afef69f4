mod keys;
mod signed;
mod ties;
mod types;

use std::fs;

use super::*;

/// A `client` whose `x-partywall` is `extension`, which starts on line 4, and a `wordcount`.
fn with_extension(extension: &str) -> String {
    format!(
        "services:\n  client:\n    x-partywall:\n{extension}  wordcount:\n    x-partywall: \
         {{package: wordcount}}\n"
    )
}

fn vars(name: &str) -> Option<String> {
    match name {
        "RUN_DIR" => Some("/run/x".into()),
        "USER" => Some("ann".into()),
        _ => None,
    }
}

fn load_text(text: &str) -> Result<Compose, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("compose.yaml");
    fs::write(&path, text).unwrap();
    let prefix = format!("{}/", dir.path().display());
    match load(&path, &vars) {
        Ok(mut compose) => {
            compose.notes.iter_mut().for_each(|note| *note = note.replace(&prefix, ""));
            Ok(compose)
        }
        Err(error) => Err(error.to_string().replace(&prefix, "")),
    }
}

fn good(text: &str) -> Compose {
    load_text(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn error(text: &str) -> String {
    load_text(text).map(|_| text).unwrap_err()
}

fn built(service: &Service) -> (&At<String>, &At<String>) {
    match &service.program {
        Program::Built { package, bin } => (package, bin),
        other => panic!("{other:?}"),
    }
}

fn names(compose: &Compose) -> Vec<&str> {
    compose.services.iter().map(|service| service.name.as_str()).collect()
}

const WHOLE: &str = r#"
name: example
services:
  client:
    image: example/client
    command: ["client", "text.txt"]
    depends_on: [wordcount]
    environment:
      LEVEL: 1.10
      WHO: ${USER}
      PRICE: $$5
      USER:
      ABSENT:
    x-partywall:
      package: example
      bin: client
      args: [text.txt, "unix://${RUN_DIR}/w.sock", 200, "${SPEED:-fast}"]
      link: domain
      calls:
        - wordcount/example.v1.WordCount/Total
        - wordcount/Counts
        - wordcount/example.v1.WordCount/*
        - wordcount/*
  wordcount:
    environment: ["A=b=c", "USER", "ABSENT", "A=d"]
    x-partywall:
      package: wordcount
networks:
  default: {}
"#;

#[test]
fn whole_file_is_read() {
    let compose = good(WHOLE);
    assert_eq!(names(&compose), ["wordcount", "client"]);
    assert_eq!(compose.notes, Vec::<String>::new());
    let [wordcount, client] = &compose.services[..] else { unreachable!() };

    let (package, bin) = built(client);
    assert_eq!((package.value.as_str(), bin.value.as_str()), ("example", "client"));
    assert_eq!(client.args, ["text.txt", "unix:///run/x/w.sock", "200", "fast"]);
    assert!(matches!(&client.link, Link::Domain(at) if at.value == Wanted::ProtectionKeys));
    let calls: Vec<_> =
        client.calls.iter().map(|c| format!("{}/{}", c.service, c.method)).collect();
    assert_eq!(
        calls,
        [
            "wordcount/example.v1.WordCount/Total",
            "wordcount/Counts",
            "wordcount/example.v1.WordCount/*",
            "wordcount/*",
        ]
    );
    assert_eq!(
        client.environment,
        [("LEVEL", "1.10"), ("WHO", "ann"), ("PRICE", "$5"), ("USER", "ann")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    assert_eq!(client.depends_on[0].service, "wordcount");
    assert_eq!(client.depends_on[0].condition, Condition::Started);
    assert_eq!(client.place.line, 4);
    assert_eq!(package.place.line, 15);
    assert_eq!(bin.place.key, "services.client.x-partywall.bin");
    assert_eq!(client.calls[2].place.line, 22);

    let (_, bin) = built(wordcount);
    assert_eq!(bin.value, "wordcount");
    assert_eq!(bin.place.key, "services.wordcount.x-partywall.package");
    assert_eq!(wordcount.link, Link::Ring);
    assert!(wordcount.args.is_empty() && wordcount.calls.is_empty());
    assert_eq!(
        wordcount.environment,
        [("USER", "ann"), ("A", "d")].map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn the_directory_of_the_file() {
    let compose =
        |path: &str| Compose { path: path.into(), services: vec![], signers: None, notes: vec![] };
    assert_eq!(compose("a/b/compose.yaml").dir(), Path::new("a/b"));
    assert_eq!(compose("compose.yaml").dir(), Path::new("."));
}

#[test]
fn unreadable_files() {
    let missing = load(Path::new("no/such/compose.yaml"), &vars).unwrap_err().to_string();
    assert!(missing.starts_with("no/such/compose.yaml: cannot read it: No such file"));
    assert!(missing.ends_with("check the path and its permissions"));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("compose.yaml");
    fs::write(&path, b"a: \xff\n").unwrap();
    assert!(load(&path, &vars).unwrap_err().to_string().contains("UTF-8"));
    assert!(load(dir.path(), &vars).unwrap_err().to_string().contains("cannot read it"));
}

#[test]
fn files_with_nothing_to_run() {
    assert_eq!(
        error(""),
        "compose.yaml:1: the file is empty; add `services` with the services to start"
    );
    assert_eq!(error("\nname: x\n"), "compose.yaml:2: no `services`; add the services to start");
    assert_eq!(
        error("services:\n  db:\n    image: db\n"),
        "compose.yaml:1: nothing to run; give at least one service an `x-partywall`"
    );
}

#[test]
fn syntax_and_duplicates() {
    assert!(error("services:\n  a: {\n").starts_with("compose.yaml:"));
    assert!(error("services:\n  a: 'x\n").contains("not valid YAML"));
    assert_eq!(
        error("services:\n  a:\n    image: x\n    image: y\n"),
        "compose.yaml:4: services.a.image: duplicate key; it is already on line 3, keep one of \
         the two"
    );
    assert_eq!(
        error("services:\n  a: {}\n  a: {}\n"),
        "compose.yaml:3: services.a: duplicate key; it is already on line 2, keep one of the two"
    );
}

#[test]
fn unknown_keys() {
    assert_eq!(
        error(&with_extension("      package: p\n      lnk: ring\n")),
        "compose.yaml:5: services.client.x-partywall.lnk: unknown key; known keys are package, \
         bin, \
         program, args, link, isolation, calls, descriptors, leases, proto, proto_path (did you mean \
         `link`?)"
    );
    assert_eq!(
        error(&with_extension("      colour: red\n")),
        "compose.yaml:4: services.client.x-partywall.colour: unknown key; known keys are package, \
         bin, program, args, link, isolation, calls, descriptors, leases, proto, proto_path"
    );
    assert_eq!(
        error("services:\n  a:\n    x-partywall: {bin: b}\n"),
        "compose.yaml:3: services.a.x-partywall: `package` is missing; add the Cargo package that \
         has the binary, or a `program` file"
    );
}

#[test]
fn proto_files_and_their_imports_begin_at_the_directory_of_the_file() {
    let read = |keys: &str| {
        let compose = good(&with_extension(&format!("      package: p\n{keys}")));
        let protos = compose.services.into_iter().flat_map(|service| service.protos);
        protos.map(|p| (p.files, p.directories, p.place.line)).collect::<Vec<_>>()
    };
    assert!(read("").is_empty());
    let [(files, directories, line)] = &read("      proto: [a/b.proto, /c.proto]\n")[..] else {
        panic!("one service")
    };
    assert!(files[0].ends_with("a/b.proto") && files[0].is_absolute(), "{files:?}");
    assert_eq!((&files[1], *line), (&"/c.proto".into(), 5));
    assert!(directories[0].ends_with("a") && directories[1].ends_with("/"), "{directories:?}");
    let of_path = &read("      proto: [a/b.proto]\n      proto_path: [a, d]\n")[0].1;
    assert!(of_path.len() == 2 && of_path[1].ends_with("d"), "{of_path:?}");
    assert_eq!(
        error(&with_extension("      package: p\n      proto_path: [a]\n")),
        "compose.yaml:5: services.client.x-partywall.proto_path: `proto_path` is where imports of `proto` are \
         looked for; write that as well, or remove it"
    );
}

#[test]
fn links() {
    let link =
        |link: &str| load_text(&with_extension(&format!("      package: p\n      link: {link}\n")));
    assert_eq!(link("ring").unwrap().services[0].link, Link::Ring);
    assert_eq!(
        link("tcp").unwrap_err(),
        "compose.yaml:5: services.client.x-partywall.link: no link `tcp`; there are `ring` \
         and `domain`"
    );
    let mistyped = link("dmain").unwrap_err();
    assert!(mistyped.ends_with("`ring` and `domain` (did you mean `domain`?)"), "{mistyped}");
    let http2 = link("http2").unwrap_err();
    assert!(http2.starts_with("compose.yaml:5: services.client.x-partywall.link: "), "{http2}");
    assert!(http2.contains("[names] of a policy"), "{http2}");
}

#[test]
fn isolation_goes_with_domains_and_is_fault_unless_written() {
    let file = |keys: &str| load_text(&with_extension(&format!("      package: p\n{keys}")));
    let wanted = |keys: &str| match file(keys).unwrap().services.remove(0).link {
        Link::Domain(At { value, place }) => (value, place.line),
        other => panic!("{other:?}"),
    };
    assert_eq!(wanted("      link: domain\n"), (Wanted::ProtectionKeys, 5));
    for (word, value) in [
        ("protection-keys", Wanted::ProtectionKeys),
        ("prefer", Wanted::Prefer),
        ("none", Wanted::None),
    ] {
        assert_eq!(wanted(&format!("      isolation: {word}\n      link: domain\n")), (value, 5));
        assert_eq!(wanted(&format!("      link: domain\n      isolation: {word}\n")), (value, 6));
    }
    assert_eq!(
        file("      link: domain\n      isolation: some\n").unwrap_err(),
        "compose.yaml:6: services.client.x-partywall.isolation: no isolation `some`; there are \
         `protection-keys`, `prefer` and `none`"
    );
    let error = file("      link: domain\n      isolation: fault\n").unwrap_err();
    assert!(error.ends_with("no isolation `fault`; it is `protection-keys` now"), "{error}");
    for link in ["", "      link: ring\n"] {
        let error = file(&format!("{link}      isolation: none\n")).unwrap_err();
        assert!(error.contains("x-partywall.isolation: `isolation` goes with"), "{error}");
    }
}

#[test]
fn leases_cross_among_descriptors_only() {
    let file = |keys: &str| load_text(&with_extension(&format!("      package: p\n{keys}")));
    let grant = |keys: &str| file(keys).map(|compose| compose.services[0].grant);
    let of = |descriptors, leases| Ok(Grant { descriptors, leases });
    assert_eq!(grant(""), of(0, false));
    assert_eq!(grant("      descriptors: 2\n"), of(2, false));
    assert_eq!(grant("      leases: false\n"), of(0, false));
    for keys in [
        "      descriptors: 2\n      leases: true\n",
        "      leases: ${LEASES:-true}\n      descriptors: 2\n",
    ] {
        assert_eq!(grant(keys), of(2, true), "{keys}");
    }
    for (keys, line) in [("", 5), ("      descriptors: 0\n", 6)] {
        let place = format!("compose.yaml:{line}: services.client.x-partywall.leases: ");
        let error = grant(&format!("{keys}      leases: true\n")).unwrap_err();
        assert!(error.starts_with(&place) && error.contains("add `descriptors: 1`"), "{error}");
        let error = grant(&format!("{keys}      leases: some\n")).unwrap_err();
        assert!(error.starts_with(&place) && error.contains("`true` or `false`"), "{error}");
    }
}

#[test]
fn program_path_is_relative_to_the_file_and_excludes_package() {
    let file = |keys: &str| load_text(&with_extension(keys));
    let services = file("      program: bin/a\n      args: [x]\n").unwrap().services;
    let Program::File(At { value, place }) = &services[0].program else { panic!("{services:?}") };
    assert!(value.is_absolute() && value.ends_with("bin/a"), "{value:?}");
    assert_eq!((place.line, place.key.as_str()), (4, "services.client.x-partywall.program"));
    let services = file("      program: /bin/true\n").unwrap().services;
    let Program::File(At { value, .. }) = &services[0].program else { panic!("{services:?}") };
    assert_eq!(value, Path::new("/bin/true"));
    assert_eq!(
        file("      program: a\n      package: p\n").unwrap_err(),
        "compose.yaml:4: services.client.x-partywall.program: `program` and `package` exclude \
         each other; keep one of the two"
    );
    assert_eq!(
        file("      program: a\n      bin: b\n").unwrap_err(),
        "compose.yaml:5: services.client.x-partywall.bin: `bin` is a binary of a `package`, and \
         `program` is none; remove it"
    );
    assert!(file("      program: ''\n").unwrap_err().contains("found an empty text"));
}

#[test]
fn names_must_be_partywall_names() {
    for (name, ok) in [
        ("a", true),
        ("9.a_b-c", true),
        ("Word", false),
        ("-a", false),
        (".a", false),
        ("wörd", false),
        (&"a".repeat(63), true),
        (&"a".repeat(64), false),
    ] {
        let text = format!("services:\n  {name}:\n    x-partywall: {{package: p}}\n");
        match load_text(&text) {
            Ok(_) => assert!(ok, "{name}"),
            Err(error) => {
                assert!(!ok, "{name}");
                assert!(
                    error.starts_with(&format!("compose.yaml:2: services.{name}: `{name}` is no"))
                );
            }
        }
    }
    // A service that is not started may have any name.
    good("services:\n  DB: {image: db}\n  a:\n    x-partywall: {package: p}\n");
}

#[test]
fn malformed_variables_name_their_place() {
    assert_eq!(
        error(&with_extension("      package: p\n      args:\n        - a\n        - ${X\n")),
        "compose.yaml:7: services.client.x-partywall.args[1]: malformed variable in `${X`: after \
         `${X` belongs `}`, or `:-` and a default, `:?` and a message, or `:+` and a replacement"
    );
    assert_eq!(
        error(
            "services:\n  a:\n    environment:\n      PRICE: 5$\n    x-partywall: {package: p}\n"
        ),
        "compose.yaml:4: services.a.environment.PRICE: malformed variable in `5$`: `$` without a \
         name; write `$$` for a dollar sign"
    );
    assert_eq!(
        error(&with_extension("      package: p\n      args: ['${DIR:?set DIR}']\n")),
        "compose.yaml:5: services.client.x-partywall.args[0]: variable `DIR` must be set: set DIR"
    );
}

#[test]
fn anchors_and_merge_keys_work() {
    let compose = good(
        "x-base: &base\n  package: p\n  args: [x]\nservices:\n  a:\n    x-partywall: {<<: *base, \
         bin: b}\n  c:\n    x-partywall: *base\n",
    );
    assert_eq!(built(&compose.services[0]).1.value, "b");
    assert_eq!(compose.services[0].args, ["x"]);
    assert_eq!(built(&compose.services[1]).0.place.line, 2);
}

#[test]
fn the_word_count_example() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/wordcount/compose.yaml");
    let vars = |name: &str| (name == "PARTYWALL_RUN_DIR").then(|| "/private".to_owned());
    let compose = load(&path, &vars).unwrap();
    assert_eq!(names(&compose), ["wordcount", "client"]);
    assert!(
        compose.notes.iter().all(|n| n.contains(": `volumes`: for containers")),
        "{:?}",
        compose.notes
    );
    assert_eq!(compose.services[0].args, ["wordcount,unix:/private/wordcount.sock"]);
    assert_eq!(
        compose.services[1].args,
        ["--text=text.txt", "partywall:///wordcount", "unix:///private/wordcount.sock"]
    );
    assert!(compose.dir().join("text.txt").is_file());
    let calls = &compose.services[1].calls;
    assert!(calls.iter().all(|call| call.service == "wordcount"));
    for method in ["Total", "Counts"] {
        let path = format!("/partywall.wordcount.v1.WordCount/{method}");
        assert_eq!(calls.iter().filter(|call| call.method.covers(&path)).count(), 1);
    }
}

#[test]
fn documented_keys_are_those_that_are_read() {
    let heading = "Keys of `x-partywall`";
    let mut documented = partywall_testkit::documented_keys("compose.md", heading);
    documented.sort();
    let mut read = error::KEYS.map(str::to_owned);
    read.sort();
    assert_eq!(documented, read);
}
