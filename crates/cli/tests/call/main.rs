//! `partywall call` as a process, against a service with every kind of method.

mod ps;
mod service;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use partywall_testkit::Host;
use prost_reflect::prost_types::source_code_info::Location;
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MessageOptions,
    MethodDescriptorProto, ServiceDescriptorProto, SourceCodeInfo,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use service::{Reflection, Running, proto};

const LONG: Duration = Duration::from_secs(20);

/// `partywall call` with the name `test`, or over HTTP/2.
fn call(socket: &Path, target: &str, arguments: &[&str]) -> Command {
    // The tests may run in the background, where a shell has interrupts ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_partywall")]);
    command.args(["call", target]).args(arguments);
    if !target.contains(':') {
        command.arg("--socket").arg(socket);
    }
    command.env_remove("PARTYWALL_LOG").env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Running {
    /// Both routes, as targets.
    fn targets(&self) -> [String; 2] {
        ["test".into(), format!("unix:{}", self.path.display())]
    }

    fn call(&self, target: &str, arguments: &[&str]) -> Output {
        call(&self.host.socket, target, arguments).output().unwrap()
    }

    fn good(&self, target: &str, arguments: &[&str]) -> String {
        let out = self.call(target, arguments);
        assert_eq!(out.status.code(), Some(0), "{arguments:?}: {}", text(&out.stderr));
        text(&out.stdout)
    }

    /// The exit status, and what is on standard error.
    fn bad(&self, target: &str, arguments: &[&str]) -> (i32, String) {
        let out = self.call(target, arguments);
        assert_eq!(text(&out.stdout), "", "{arguments:?}");
        (out.status.code().unwrap(), text(&out.stderr))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every kind of field, as proto3 writes it in JSON.
fn all() -> Value {
    json!({
        "text": "täxt\n", "small": -1, "big": "-9223372036854775808",
        "bigger": "18446744073709551615", "ratio": 0.5, "yes": true, "raw": "AAH/", "colour": "GREEN",
        "inner": {"text": "in", "inner": {"other": 3}}, "words": ["a", "b"], "counts": {"x": 1, "y": 2},
        "numbered": {"7": {"text": "seven"}}, "one": "1", "when": "2001-02-03T04:05:06.007Z",
        "long": "1.500s", "free": {"a": [1.0, null, "x", {"b": false}]}, "maybe": "",
        "any": {"@type": "type.googleapis.com/test.All", "text": "packed"}, "value": [true], "set": 0,
    })
}

#[test]
fn services_and_methods_are_listed_and_described() {
    let running = Running::start(Reflection::V1);
    for target in running.targets() {
        let listed = running.good(&target, &[]);
        assert_eq!(listed, "grpc.reflection.v1.ServerReflection\ntest.Kinds\n");
        let methods = running.good(&target, &["test.Kinds"]);
        assert!(methods.contains("test.Kinds/Echo (test.All) returns (test.All)\n"), "{methods}");
        let chat = "test.Kinds/Chat (stream test.All) returns (stream test.All)\n";
        assert!(methods.contains(chat), "{methods}");
    }
    let out = running.call("test", &["test.Kinds/Echo", "--describe"]);
    assert!(text(&out.stderr).contains("test.All.choice: one of `one`, `other`"));
    let template: Value = serde_json::from_slice(&out.stdout).unwrap();
    let named = all();
    let fields = named.as_object().unwrap().keys();
    for field in fields.filter(|field| !["any", "inner"].contains(&field.as_str())) {
        assert!(template.get(field).is_some(), "{field} is not in {template}");
    }
    // What is described is what the method takes.
    running.good("test", &["test.Kinds/Echo", "--data", &template.to_string()]);
}

#[test]
fn methods_of_each_kind_answer_on_each_route_with_each_schema() {
    let (all, proto) = (all().to_string(), proto());
    let proto = proto.to_str().unwrap();
    let sources: [(Reflection, &[&str]); 3] = [
        (Reflection::V1, &[]),
        (Reflection::V1Alpha, &[]),
        (Reflection::None, &["--proto", proto]),
    ];
    for (reflection, source) in sources {
        let running = Running::start(reflection);
        for target in running.targets() {
            let good = |method: &str, data: &str| {
                let arguments = [&[method, "--data", data], source].concat();
                lines(&running.good(&target, &arguments))
            };
            assert_eq!(good("test.Kinds/Echo", &all), [self::all()]);
            assert_eq!(good("/test.Kinds/Echo", ""), [json!({})]);
            assert_eq!(good("test.Kinds/Thrice", "{\"small\": 1}"), vec![json!({"small": 1}); 3]);
            let two = "{\"small\": 1}{\"small\": 2}\n";
            assert_eq!(good("test.Kinds/Last", two), [json!({"small": 2})]);
            assert_eq!(good("test.Kinds/Chat", two), [json!({"small": 1}), json!({"small": 2})]);
            assert_eq!(good("test.Kinds/Chat", ""), [Value::Null; 0]);
        }
    }
}

#[test]
fn messages_come_from_a_file_and_from_standard_input() {
    let running = Running::start(Reflection::V1);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.json");
    std::fs::write(&file, "{\"text\": \"file\"}").unwrap();
    let at = format!("@{}", file.display());
    let said = running.good("test", &["test.Kinds/Echo", "--data", &at]);
    assert_eq!(said, "{\"text\":\"file\"}\n");
    for arguments in [&["test.Kinds/Echo"][..], &["test.Kinds/Echo", "--data", "@-"]] {
        let mut command = call(&running.host.socket, "test", arguments);
        command.stdin(std::fs::File::open(&file).unwrap());
        assert_eq!(text(&command.output().unwrap().stdout), "{\"text\":\"file\"}\n");
    }
}

#[test]
fn answers_are_written_while_the_input_is_open() {
    let running = Running::start(Reflection::V1);
    for target in running.targets() {
        let mut child = begin(&running, &target, &["test.Kinds/Chat"]);
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        for number in 1..4 {
            write!(input, "{{\"small\": {number}}}").unwrap();
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{{\"small\":{number}}}\n"));
        }
        // A mistake later on ends the call; what came before has been answered.
        writeln!(input, "\n{{\"smal\": 4}}").unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        let said = text(&out.stderr);
        assert!(said.contains("standard input, line 2, column 8"), "{said}");
        drop(input);
    }
}

fn begin(running: &Running, target: &str, arguments: &[&str]) -> Child {
    call(&running.host.socket, target, arguments).stdin(Stdio::piped()).spawn().unwrap()
}

#[test]
fn failed_call_shows_code_message_details_and_exits_with_code() {
    let running = Running::start(Reflection::V1);
    for target in running.targets() {
        let (code, said) = running.bad(&target, &["test.Kinds/Fail", "--data", "{}"]);
        assert_eq!(code, 64 + 5, "{said}");
        assert!(said.contains("test.Kinds/Fail: NOT_FOUND: nothing of that name\n"), "{said}");
        assert!(said.contains("\"reason\":\"GONE\""), "{said}");
        let slow = ["test.Kinds/Wait", "--data", "{}", "--timeout", "300ms"];
        let (code, said) = running.bad(&target, &slow);
        assert_eq!(code, 64 + 4, "{said}");
        assert!(said.contains("test.Kinds/Wait: DEADLINE_EXCEEDED: "), "{said}");
        assert_eq!(running.calls.recv_timeout(LONG), Ok("begun"));
        assert_eq!(running.calls.recv_timeout(LONG), Ok("dropped"));
    }
}

#[test]
fn an_answer_is_as_long_as_is_said_at_most() {
    let running = Running::start(Reflection::V1);
    let data = json!({"text": "long".repeat(50)}).to_string();
    for target in running.targets() {
        let echo = ["test.Kinds/Echo", "--data", &data, "--max-answer"];
        let (code, said) = running.bad(&target, &[&echo[..], &["200"]].concat());
        assert_eq!(code, 64 + 11, "{said}");
        assert!(said.contains("OUT_OF_RANGE: ") && said.contains("\nremedy: "), "{said}");
        assert!(said.contains("--max-answer BYTES"), "{said}");
        assert_eq!(running.good(&target, &[&echo[..], &["300"]].concat()), format!("{data}\n"));
    }
}

/// Valgrind gives a program no vDSO (vdso(7)).
#[test]
fn a_program_with_a_link_runs_under_valgrind() {
    let running = Running::start(Reflection::V1);
    let plain = call(&running.host.socket, "test", &["test.Kinds/Echo", "--data", "{}"]);
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--trace-children=yes", "--error-exitcode=99"])
        .arg(plain.get_program());
    let out = command.args(plain.get_args()).output().expect("valgrind runs");
    assert_eq!((text(&out.stdout).as_str(), out.status.code()), ("{}\n", Some(0)), "{out:?}");
}

#[test]
fn packed_message_is_decoded_if_any_source_knows_its_type() {
    let running = Running::start(Reflection::V1);
    let packed = lines(&running.good("test", &["test.Kinds/Pack", "--data", "{}"]));
    let parcel = json!({"@type": "type.googleapis.com/packed.Parcel", "content": "far"});
    assert_eq!(packed, [json!({"any": parcel})]);
    for (method, arguments, part) in [
        ("test.Kinds/Strange", &[][..], "Any of type `no.Such`, which is not known"),
        ("test.Kinds/Bury", &[], "more than 8 Any inside one another"),
        ("test.Kinds/Pack", &["--proto", proto().to_str().unwrap()], "`packed.Parcel`"),
    ] {
        let (code, said) = running.bad("test", &[&[method, "--data", "{}"], arguments].concat());
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_file_with_demands_needs_no_directory_for_their_import() {
    let running = Running::start(Reflection::None);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kinds.proto");
    let text = "syntax = \"proto3\"; package test; import \"partywall/security.proto\"; message None {}\n\
                service Kinds { rpc Echo(None) returns (None) {\n\
                option (partywall.method_security).seal = REQUIRED; } }";
    std::fs::write(&file, text).unwrap();
    let arguments = ["test.Kinds/Echo", "--data", "{}", "--proto", file.to_str().unwrap()];
    assert_eq!(running.good("test", &arguments), "{}\n");
}

#[test]
fn an_interrupt_ends_the_call() {
    let running = Running::start(Reflection::V1);
    for target in running.targets() {
        let mut child = begin(&running, &target, &["test.Kinds/Wait", "--data", "{}"]);
        assert_eq!(running.calls.recv_timeout(LONG), Ok("begun"));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert_eq!(running.calls.recv_timeout(LONG), Ok("dropped"));
        assert_eq!(child.wait().unwrap().code(), None);
    }
}

#[test]
fn verbose_shows_route_security_and_metadata() {
    let running = Running::start(Reflection::V1);
    let routes = ["route: ring to ", "route: HTTP/2 to "];
    for (target, route) in running.targets().iter().zip(routes) {
        let metadata = ["--metadata", "User: me", "--metadata", "data-bin: AAEC"];
        let arguments = [&["test.Kinds/Echo", "--data", "{}", "--verbose"][..], &metadata].concat();
        let out = running.call(target, &arguments);
        let said = text(&out.stderr);
        assert_eq!(text(&out.stdout), "{}\n", "{said}");
        for part in [route, "\nsecurity: process, ", "\nheader: user: me\n", "data-bin: AAEC\n"] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(said.contains("\ntime: "), "{said}");
    }
}

#[test]
fn missing_or_denied_reflection_names_the_remedy() {
    let running = Running::start(Reflection::None);
    for target in running.targets() {
        let (code, said) = running.bad(&target, &["test.Kinds/Echo"]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("has no reflection; name its .proto by --proto"), "{said}");
    }
    let policy =
        "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['test.Kinds/*']\n";
    let running = Running::at(Host::with(policy), Reflection::V1);
    let (code, said) = running.bad("test", &["test.Kinds/Echo"]);
    assert_eq!(code, 64 + 7, "{said}");
    assert!(said.contains("reflection: PERMISSION_DENIED: the policy does not let"), "{said}");
    assert!(said.contains("allow `grpc.reflection.v1.ServerReflection/*`"), "{said}");
    let proto = proto();
    let with = ["test.Kinds/Echo", "--data", "{}", "--proto", proto.to_str().unwrap()];
    assert_eq!(running.good("test", &with), "{}\n");
}

#[test]
fn malformed_reflection_is_an_error_within_bounds() {
    for (files, part) in [
        (&[][..], "no file that it tells has `test.Kinds`"),
        (&[("a", "google/protobuf/any.proto")], "no file that it tells has `test.Kinds`"),
        (&[("a", "b"), ("b", "a")], "reflection: "),
        (&[("a", "a")], "reflection: "),
        (&[("a", "b")], "it does not tell `b`"),
        (&[("N", "N")], "64 rounds of questions"),
    ] {
        let running = Running::start(Reflection::Lies(files));
        let (code, said) = running.bad("test", &["test.Kinds/Echo"]);
        assert_eq!(code, 1, "{files:?}: {said}");
        assert!(said.contains(part), "{files:?}: {said}");
    }
}

/// A file of `package test` with the service `Kinds`, whose method `Echo` takes and returns this message.
fn file(message: DescriptorProto) -> FileDescriptorProto {
    let kind = Some(format!(".test.{}", message.name()));
    let echo = MethodDescriptorProto {
        name: Some("Echo".into()),
        input_type: kind.clone(),
        output_type: kind,
        ..Default::default()
    };
    let name = Some("Kinds".into());
    let service = ServiceDescriptorProto { name, method: vec![echo], ..Default::default() };
    FileDescriptorProto {
        name: Some("kinds.proto".into()),
        package: Some("test".into()),
        syntax: Some("proto3".into()),
        message_type: vec![message],
        service: vec![service],
        ..Default::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.into()), field, ..Default::default() }
}

/// Refused for its file, which makes prost-reflect panic when it is shown.
fn map_without_value() -> Vec<FileDescriptorProto> {
    let field = |name: &str, type_name: Option<&str>| FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(1),
        label: Some(if type_name.is_some() { 3 } else { 1 }),
        r#type: Some(if type_name.is_some() { 11 } else { 9 }),
        type_name: type_name.map(String::from),
        ..Default::default()
    };
    let mut entry = message("XEntry", vec![field("key", None)]);
    entry.options = Some(MessageOptions { map_entry: Some(true), ..Default::default() });
    let mut maps = message("Maps", vec![field("x", Some(".test.Maps.XEntry"))]);
    maps.nested_type.push(entry);
    vec![file(maps)]
}

/// Three files, of which each is as large as an answer may be.
fn large() -> Vec<FileDescriptorProto> {
    let mut all = file(message("All", Vec::new()));
    all.name = None;
    all.dependency = vec!["1".into(), "2".into(), "3".into()];
    all.source_code_info = Some(SourceCodeInfo {
        location: vec![Location {
            leading_comments: Some("x".repeat(3 << 20)),
            ..Default::default()
        }],
    });
    vec![all]
}

fn renamed() -> Vec<FileDescriptorProto> {
    let mut all = file(message("All", Vec::new()));
    all.service[0].method[0].name = Some(service::HOSTILE.into());
    vec![all]
}

/// Of which prost-reflect panics, when it is to say what is wrong.
fn syntax() -> Vec<FileDescriptorProto> {
    let mut all = file(message("All", Vec::new()));
    all.syntax = Some("proto9".into());
    vec![all]
}

fn imports() -> Vec<FileDescriptorProto> {
    let mut all = file(message("All", Vec::new()));
    all.dependency.push(service::HOSTILE.into());
    vec![all]
}

#[test]
fn hostile_reflection_is_an_error_in_one_line() {
    let kinds: &[&str] = &["test.Kinds"];
    for (services, files, part) in [
        (kinds, map_without_value as fn() -> Vec<_>, "`XEntry` is no entry of a map"),
        (kinds, large, "4194304 bytes of answers"),
        (kinds, renamed, r"`\u001b[2J\u009b31m\u009d0;t\u009c\u007f\u202e\u2066\u000a` is no name"),
        (kinds, syntax, "the server has types that cannot be worked with ("),
        (kinds, imports, r"it does not tell `\u001b[2J"),
        (&[service::HOSTILE], renamed, r"a service: `\u001b[2J"),
    ] {
        let running = Running::start(Reflection::Hostile(services, files));
        for arguments in [&["test.Kinds/Echo"][..], &["test.Kinds/Echo", "--describe"]] {
            let (code, said) = running.bad("test", arguments);
            assert_eq!(code, 1, "{said}");
            assert!(said.contains(part) && said.lines().count() == 1, "{part}: {said}");
            assert!(!said.trim_end().contains(char::is_control), "{said:?}");
        }
    }
}

#[test]
fn text_of_a_peer_is_escaped_in_statuses_and_answers() {
    let running = Running::start(Reflection::V1);
    let (_, said) = running.bad("test", &["test.Kinds/Shout", "--data", "{}"]);
    let shout = r"INTERNAL: a\u009b2J\u000apartywall: all is well\u202e";
    assert_eq!(said, format!("partywall: test.Kinds/Shout: {shout}\n"));
    let said = running.good("test", &["test.Kinds/Paint", "--data", "{}"]);
    assert!(!said.trim_end().contains(char::is_control), "{said:?}");
    assert!(!said.contains(['\u{202e}', '\u{2066}']), "{said:?}");
    assert_eq!(lines(&said), [json!({"text": service::HOSTILE})]);
}

/// A reader that takes nothing holds up the one who writes.
#[test]
fn time_bounds_a_command_whose_output_nobody_takes() {
    let running = Running::start(Reflection::V1);
    let long = "x".repeat(1 << 20);
    let data = json!({"text": long}).to_string();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), data).unwrap();
    let data = format!("@{}", dir.path().join("data").display());
    let arguments = ["test.Kinds/Thrice", "--data", &data, "--timeout", "1s"];
    let mut child = begin(&running, "test", &arguments);
    assert_eq!(child.wait().unwrap().code(), Some(64 + 4));
    let out = child.wait_with_output().unwrap();
    assert!(text(&out.stderr).contains("the time of --timeout is over"), "{}", text(&out.stderr));
}

#[test]
fn a_name_that_nobody_serves_fails_and_is_waited_for_on_demand() {
    let host = Host::open();
    let arguments = ["test.Kinds/Echo", "--data", "{}"];
    let out = call(&host.socket, "test", &arguments).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("test"), "{}", text(&out.stderr));
    let soon = [&arguments[..], &["--wait", "--timeout", "200ms"]].concat();
    let out = call(&host.socket, "test", &soon).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("no answer within 200ms"), "{}", text(&out.stderr));
    let mut waiting = call(&host.socket, "test", &[&arguments[..], &["--wait"]].concat());
    let child = waiting.spawn().unwrap();
    let _running = Running::at(host, Reflection::V1);
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), "{}\n", "{}", text(&out.stderr));
}

#[test]
fn wrong_input_names_place_field_and_remedy_and_calls_nothing() {
    let running = Running::start(Reflection::V1);
    let deep = format!("{}{}", "{\"inner\":".repeat(300), "}".repeat(300));
    for (data, parts) in [
        ("{", &["line 1, column 1", "EOF"][..]),
        ("[1]", &["line 1, column 1", "expected a map"]),
        ("{\"text\": 1}", &["line 1, column 11", "field `text`", "expected a string"]),
        ("{\n \"inner\": {\"small\": \"x\"}}", &["line 2, column 23", "field `inner.small`"]),
        ("{\"small\": 2147483648}", &["field `small`", "out of range"]),
        ("{\"raw\": \"*\"}", &["field `raw`", "invalid base64"]),
        ("{\"colour\": \"BLUE\"}", &["field `colour`", "unrecognized enum value 'BLUE'"]),
        ("{\"txt\": 1}", &["unrecognized field name 'txt'", "--describe"]),
        ("{\"one\": \"a\", \"other\": 1}", &["choice"]),
        ("{\"when\": \"yesterday\"}", &["field `when`"]),
        ("{\"words\": [\"a\", 1]}", &["field `words[1]`"]),
        ("{\"counts\": {\"x\": true}}", &["field `counts.x`"]),
        ("{\"any\": {\"@type\": \"a/no.Such\"}}", &["field `any`", "'no.Such' not found"]),
        ("{\"any\": {}}", &["field `any`", "@type"]),
        ("{} {}", &["column 4", "something follows the message"]),
        (&deep, &["recursion limit"]),
    ] {
        let (code, said) = running.bad("test", &["test.Kinds/Echo", "--data", data]);
        assert_eq!(code, 1, "{data}: {said}");
        assert!(said.starts_with("partywall: --data, line "), "{data}: {said}");
        for part in parts {
            assert!(said.contains(part), "{data}: {part:?} is not in {said}");
        }
        assert_eq!(running.came.load(Ordering::SeqCst), 0, "{data}: it is a call");
    }
    // Half of a stream is not taken for the whole.
    let half = ["test.Kinds/Last", "--data", "{\"small\": 1}\n{\"smal\": 2}"];
    let (code, said) = running.bad("test", &half);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--data, line 2, column 8: unrecognized field name 'smal'"), "{said}");
    running.good("test", &["test.Kinds/Echo", "--data", "{}"]);
    assert!(running.came.load(Ordering::SeqCst) > 0, "a call is counted");
}

#[test]
fn wrong_arguments_are_refused_with_the_choices() {
    let running = Running::start(Reflection::V1);
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.proto");
    std::fs::write(&broken, "syntax = \"proto3\";\nmessage A { strin a = 1 }\n").unwrap();
    let broken = broken.to_str().unwrap();
    for (target, arguments, status, part) in [
        (
            "test",
            &["test.Kind/Echo"][..],
            1,
            "it tells of: grpc.reflection.v1.ServerReflection, test.Kinds; remedy: if the server has it",
        ),
        (
            "test",
            &["test.Kinds/Ech"],
            1,
            "it has Echo, Thrice, Last, Chat, Fail, Pack, Strange, Bury, Shout, Paint, Wait",
        ),
        ("test", &["test.Kinds", "--describe"], 1, "write a method"),
        ("test", &["test.Kinds/Echo", "--data", "@/no/such"], 1, "--data @/no/such: No such file"),
        ("test", &["test.Kinds/Echo", "--proto", "/no/such.proto"], 1, "/no/such.proto"),
        ("test", &["test.Kinds/Echo", "--proto", broken], 1, "broken.proto:2:"),
        ("te st", &[], 1, "te st"),
        ("ftp://x", &[], 1, "http://HOST:PORT"),
        ("http://127.0.0.1:1", &[], 1, "refused"),
        ("test", &["a.B/C", "--timeout", "1"], 2, "write a time such as"),
        ("test", &["a.B/C", "--metadata", "x"], 2, "write KEY: VALUE"),
        ("test", &["a.B/C", "--include", "x"], 2, "--proto"),
    ] {
        let (code, said) = running.bad(target, arguments);
        assert_eq!(code, status, "{target} {arguments:?}: {said}");
        assert!(said.contains(part), "{target} {arguments:?}: {part:?} is not in {said}");
    }
}
