//! What somebody meets who uses the command for the first time.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use partywall_system_tests::domain_programs;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::domains::{DOMAIN, Run, lives};
use super::{command, partywall, text, two_looks};

/// A while that is long enough on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// One service: a shell that runs this, with these keys of Compose. A service's `$` is written `$$`.
fn shell(script: &str, keys: &str) -> Run {
    let script = script.replace('\'', "''");
    Run::of(&format!(
        "services:\n  a:\n{keys}    x-partywall: {{program: /bin/sh, args: ['-c', '{script}']}}\n"
    ))
}

pub(super) fn wait_for(what: impl Fn() -> bool, why: &str) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < LONG, "{why}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn json(out: &Output) -> Vec<serde_json::Value> {
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn up_prints_the_socket_that_links_ps_and_domain_use() {
    let run = Run::new(DOMAIN, DOMAIN, "flood");
    let up = run.begin();
    let said = up.said();
    let line = said.lines().find(|l| l.starts_with("export ")).unwrap();
    let socket = line.strip_prefix("export PARTYWALL_SOCKET=").unwrap();
    let asked = |arguments: &[&str]| {
        let out = command(arguments).env("PARTYWALL_SOCKET", socket).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let table = asked(&["links"]);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.lines().nth(1).unwrap().contains("  test  gate  none  "), "{table}");
    assert!(asked(&["links", "--wide"]).contains("TIME/CALL"));
    assert_eq!(
        asked(&["domain", "disable", "test"]),
        "`test`: callers go by the ring from now on\n"
    );
    let table = asked(&["ps"]);
    let words = |name: &str| {
        let line = table.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(words("test")[3..], ["domain", "running", "test", "-", "1", "1"], "{table}");
    assert_eq!(words("web")[3..], ["domain", "running", "-", "test", "0", "0"], "{table}");
    let pids: Vec<u32> = ["test", "web"].map(|name| words(name)[1].parse().unwrap()).into();
    assert!(pids.iter().all(|pid| lives(*pid)), "{table}");
    let mut bob = command(&["links", "--socket", socket]);
    let bob = text(&bob.env("PARTYWALL_COORDINATOR_UID", "bob").output().unwrap().stderr);
    let remedy =
        format!("set PARTYWALL_COORDINATOR_UID={} if", rustix::process::geteuid().as_raw());
    assert!(bob.contains("which is `bob`") && bob.contains(&remedy), "{bob}");
    // Whoever has not set it is told of this run.
    let lost = command(&["links"])
        .env_remove("PARTYWALL_SOCKET")
        .env("XDG_RUNTIME_DIR", run.dir.path())
        .output()
        .unwrap();
    assert!(text(&lost.stderr).contains(&format!("export PARTYWALL_SOCKET={socket}")));
    up.interrupt(&pids);
}

#[test]
fn links_ps_and_watch_tell_objects_with_the_promised_fields() {
    let run = Run::new("link: ring", "link: ring", "flood");
    let mut up = run.begin();
    let socket = up.socket().unwrap();
    let socket = socket.to_str().unwrap();
    let links = json(&partywall(&["links", "--json", "--socket", socket]));
    let [link] = &links[..] else { panic!("{links:?}") };
    assert_eq!(link["name"], "test");
    assert_eq!((&link["via"], &link["open"]), (&"ring".into(), &true.into()));
    assert_eq!(link["caller"]["principals"][0], "web");
    assert_eq!(link["server"]["evidence"], "started");
    assert!(link["calls"].as_u64().unwrap() > 0 && link["url"].is_null(), "{link}");
    let processes = json(&partywall(&["ps", "--json", "--socket", socket]));
    assert_eq!(processes.len(), 2, "{processes:?}");
    assert_eq!(processes[0]["service"], "test");
    assert_eq!(processes[0]["pid"], link["server"]["pid"]);
    // Each change is a line.
    let [first, second] = two_looks(&["--socket", socket]);
    assert_eq!(first["link"], second["link"]);
    assert!(second["calls"].as_u64() > first["calls"].as_u64(), "{first} {second}");
    up.wait_for(|links| links.len() == 1);
    up.interrupt(&[]);
}

#[test]
fn each_line_has_the_name_of_its_service_and_none_is_lost() {
    let many = "i=0; while [ $$i -lt 20000 ]; do echo $$i of ''NAME''; i=$$((i+1)); done; printf ''NAME''; \
                printf '' ends''; echo ''NAME errs'' >&2";
    let service = |name: &str| {
        format!(
            "  {name}:\n    x-partywall: {{program: /bin/sh, args: ['-c', '{}']}}\n",
            many.replace("NAME", name)
        )
    };
    let run = Run::of(&format!("services:\n{}{}", service("one"), service("three")));
    let (code, said, complained) = run.end();
    assert_eq!(code, Some(0), "{complained}");
    for name in ["one", "three"] {
        let label = format!("{name:<5}  | ");
        let lines: Vec<&str> = said.lines().filter_map(|l| l.strip_prefix(&label)).collect();
        assert_eq!(lines.len(), 20_001, "lines of {name}");
        for (n, line) in lines[..20_000].iter().enumerate() {
            assert_eq!(*line, format!("{n} of {name}"));
        }
        assert_eq!(lines[20_000], format!("{name} ends"), "a line without an end");
        assert!(complained.contains(&format!("{label}{name} errs\n")), "{complained}");
    }
    assert!(!said.contains('\x1b'), "no colour but on a terminal");
}

#[test]
fn output_that_nobody_takes_does_not_keep_up_from_ending() {
    let run = shell("while :; do echo yes yes yes yes yes yes yes; done", "");
    let mut up = run.spawn(Stdio::piped());
    wait_for(|| up.said().contains("running until"), "it does not start");
    std::thread::sleep(Duration::from_millis(300));
    up.signal(up.child.id(), Signal::TERM);
    wait_for(|| !lives(up.child.id()), "it waits for who does not read");
    assert!(up.said().contains("nobody reads it"), "{}", up.said());
    let _full = up.child.stdout.take();
    let (code, said) = up.end(&[]);
    assert_eq!(code, Some(143), "{said}");
}

#[test]
fn remarks_that_nobody_takes_do_not_keep_up_from_ending() {
    let run = shell("while :; do echo yes yes yes yes yes yes yes; done", "");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut up = run.command();
    up.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = up.spawn().unwrap();
    drop(up);
    // Until the pipe is full.
    std::thread::sleep(Duration::from_secs(2));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = |child: &mut std::process::Child| child.try_wait().unwrap().is_some();
    let begin = Instant::now();
    while !ended(&mut child) && begin.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(reader);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(begin.elapsed() < LONG, "it waits for who does not read");
}

/// A build that takes a minute: the file `begun` is there once it is under way.
fn long_build() -> Run {
    let run = Run::of("services:\n  a:\n    x-partywall: {package: slow}\n");
    let file = |name: &str, text: &str| fs::write(run.dir.path().join(name), text).unwrap();
    file("Cargo.toml", "[package]\nname = \"slow\"\nedition = \"2021\"\n[workspace]\n");
    file(
        "build.rs",
        "fn main() {\n    std::fs::write(\"begun\", \"\").unwrap();\n    \
         std::thread::sleep(std::time::Duration::from_secs(60));\n}\n",
    );
    fs::create_dir(run.dir.path().join("src")).unwrap();
    file("src/main.rs", "fn main() {}\n");
    run
}

#[test]
fn a_signal_ends_a_build_and_is_no_failure_of_it() {
    // To this process alone, and to all of its group, Cargo among them, as a terminal does.
    for (group, signal, code) in [(false, Signal::TERM, 143), (true, Signal::INT, 130)] {
        let run = long_build();
        let mut up = run.command();
        up.process_group(0).stdout(Stdio::null());
        let errors = run.dir.path().join("stderr");
        let target = run.dir.path().join("target");
        let up = up.stderr(fs::File::create(&errors).unwrap()).env("CARGO_TARGET_DIR", target);
        let mut child = up.spawn().unwrap();
        wait_for(|| run.dir.path().join("begun").exists(), "it does not build");
        let pid = Pid::from_child(&child);
        let (begin, all) = (Instant::now(), child_processes(child.id()));
        match group {
            true => kill_process_group(pid, signal).unwrap(),
            false => kill_process(pid, signal).unwrap(),
        }
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(begin.elapsed() < LONG, "it waits for the end of the build");
        let said = fs::read_to_string(errors).unwrap();
        assert!(!said.contains("failed"), "{said}");
        assert_eq!(all.len(), 1, "Cargo is its only child");
        wait_for(|| !lives(all[0]), "Cargo goes on");
        // What Cargo has started ends by itself, later; this is no place to wait for it.
        if !group {
            kill_process_group(pid, Signal::KILL).unwrap();
        }
    }
}

fn child_processes(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = tasks.map(|t| fs::read_to_string(t.unwrap().path().join("children")).unwrap());
    children
        .flat_map(|c| c.split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

#[test]
fn command_succeeds_when_the_reader_of_its_output_goes() {
    let run = Run::new("link: ring", "link: ring", "flood");
    let up = run.begin();
    let socket = up.socket().unwrap();
    let mut watch = command(&["watch", "--json", "--every", "0.1", "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with('{'), "{first}");
    let out = watch.wait_with_output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr).as_str()), (Some(0), ""));
    up.interrupt(&[]);
}

#[test]
fn waiting_for_a_service_is_announced() {
    let run = Run::of(
        "services:\n  a:\n    x-partywall: {program: /bin/sh, args: ['-c', 'exec sleep 60']}\n  b:\n    \
         depends_on: [a]\n    x-partywall: {program: /bin/sh, calls: ['a/*']}\n",
    );
    let up = run.spawn(Stdio::null());
    wait_for(|| up.said().contains("`b` waits until `a` serves its name, at most 30s"), "silent");
    up.interrupt(&[]);
}

#[test]
fn a_slow_reader_gets_all_that_was_said() {
    let run = shell("i=0; while [ $$i -lt 9000 ]; do echo line $$i; i=$$((i+1)); done", "");
    let mut up = run.spawn(Stdio::piped());
    // The service has ended by then, with its last lines in its pipe.
    std::thread::sleep(Duration::from_secs(2));
    let mut said = String::new();
    up.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.lines().filter(|l| l.starts_with("a  | line ")).count(), 9000);
    assert!(said.contains("Who called whom:"));
    assert_eq!(up.end(&[]).0, Some(0));
}

#[test]
fn lost_reader_ends_the_run_with_a_message() {
    let run = shell("while :; do echo yes; done", "");
    let mut up = run.spawn(Stdio::piped());
    let mut some = [0; 100];
    up.child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let (code, said) = up.end(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("standard output: Broken pipe"), "{said}");
}

#[test]
fn hang_up_or_quit_leaves_no_directory_and_prints_the_table() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let hang_up = u64::from_str_radix(ignored, 16).unwrap() & 1;
    assert_eq!(hang_up, 0, "SIGHUP is ignored, as under nohup(1), and so it would be by `up`");
    for (signal, status) in [(Signal::HUP, 129), (Signal::QUIT, 131)] {
        let run = Run::new("link: ring", "link: ring", "flood");
        let out = run.dir.path().join("stdout");
        let mut up = run.spawn(fs::File::create(&out).unwrap());
        up.wait_for(|links| links.iter().any(|l| l.stats.calls > 0));
        up.signal(up.child.id(), signal);
        let (code, said) = up.end(&[]);
        assert_eq!(code, Some(status), "{said}");
        let said = fs::read_to_string(out).unwrap();
        let table = said.split_once("Who called whom:").unwrap().1;
        // Told at the very end, when nothing is open any more.
        assert!(table.contains(" closed ") && !table.contains(" open "), "{table}");
    }
}

#[test]
fn a_run_under_nohup_outlives_a_hang_up() {
    let run = shell("exec sleep 60", "");
    let errors = fs::File::create(run.dir.path().join("stderr")).unwrap();
    let mut child = std::process::Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_partywall"), "up"])
        .arg(run.dir.path().join("compose.yaml"))
        .env("XDG_RUNTIME_DIR", run.dir.path())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(run.dir.path().join("stderr")).unwrap();
    wait_for(|| said().contains("running until"), "it does not start");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "{}", said());
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_second_interrupt_waits_for_nobody() {
    let run = shell(
        "trap '' TERM; printf 'no end'; while :; do sleep 0.1; done",
        "    stop_grace_period: 1h\n",
    );
    let out = run.dir.path().join("stdout");
    let up = run.spawn(fs::File::create(&out).unwrap());
    wait_for(|| up.said().contains("running until"), "it does not start");
    std::thread::sleep(Duration::from_millis(300));
    up.signal(up.child.id(), Signal::INT);
    std::thread::sleep(Duration::from_millis(500));
    assert!(lives(up.child.id()), "the service has an hour");
    up.signal(up.child.id(), Signal::INT);
    let (code, said) = up.end(&[]);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("`a` has no more time to stop; it is killed"), "{said}");
    assert!(said.contains("stopping; a second time kills"), "{said}");
    let said = fs::read_to_string(out).unwrap();
    assert!(said.contains("a  | no end\n"), "what it said last is lost: {said}");
}

#[test]
fn a_service_stops_by_its_signal_and_runs_in_its_directory() {
    let run = shell(
        "pwd; trap 'echo got usr1; exit 0' USR1; while :; do sleep 0.05; done",
        "    stop_signal: SIGUSR1\n    working_dir: sub\n",
    );
    fs::create_dir(run.dir.path().join("sub")).unwrap();
    let out = run.dir.path().join("stdout");
    let up = run.spawn(fs::File::create(&out).unwrap());
    wait_for(|| fs::read_to_string(&out).unwrap().contains("/sub\n"), "not in its directory");
    std::thread::sleep(Duration::from_millis(100));
    up.interrupt(&[]);
    let said = fs::read_to_string(&out).unwrap();
    assert!(said.contains("a  | got usr1"), "{said}");
}

#[test]
fn a_service_is_started_again_as_its_file_says() {
    let (code, said, complained) = shell("echo again; exit 3", "    restart: on-failure:2\n").end();
    assert_eq!(code, Some(3), "{complained}");
    assert_eq!(said.matches("a  | again").count(), 3, "{said}");
    assert!(complained.contains("started again in 200ms"), "{complained}");
    let (code, said, _) = shell("echo once", "    restart: on-failure\n").end();
    assert_eq!((code, said.matches("once").count()), (Some(0), 1));
    let run = shell("echo always", "    restart: always\n");
    let out = run.dir.path().join("stdout");
    let up = run.spawn(fs::File::create(&out).unwrap());
    wait_for(
        || fs::read_to_string(&out).unwrap().matches("always").count() > 2,
        "not started again",
    );
    up.interrupt(&[]);
}

#[test]
fn services_are_handed_what_is_to_be_logged() {
    let run = shell("echo $$RUST_LOG $$PARTYWALL_LOG", "");
    let ran = |run: &Run, own: &str, general: &str| {
        let out =
            run.command().env("PARTYWALL_LOG", own).env("RUST_LOG", general).output().unwrap();
        (text(&out.stdout), text(&out.stderr))
    };
    assert!(ran(&run, "error", "trace").0.contains("a  | trace error\n"));
    // What the file says of a service wins.
    let own = shell("echo $$RUST_LOG", "    environment: {RUST_LOG: info}\n");
    assert!(ran(&own, "error", "trace").0.contains("a  | info\n"));
    // The command itself hears both, and its own first.
    let debug = |own: &str, general: &str| ran(&run, own, general).1.contains("DEBUG");
    assert!(debug("", "debug") && debug("debug", "error") && !debug("error", "debug"));
    let (_, wrong) = ran(&run, "a=b=c", "error");
    assert!(wrong.contains("PARTYWALL_LOG=`a=b=c`"), "{wrong}");
}

#[test]
fn a_service_has_the_variables_that_the_help_says_and_no_others() {
    let run = shell("env", "    environment: {OWN: 'yes'}\n");
    let said = |log: Option<&str>| {
        let mut up = run.command();
        up.env("SECRET", "of up").env("HOME", "/somewhere").env("LANG", "C").env_remove("RUST_LOG");
        up.env_remove("PARTYWALL_LOG")
            .env_remove("RUST_BACKTRACE")
            .envs(log.map(|l| ("RUST_LOG", l)));
        let out = text(&up.output().unwrap().stdout);
        let names = out.lines().filter_map(|l| l.strip_prefix("a  | ")?.split_once('='));
        // What the shell sets by itself.
        let own = ["PWD", "OLDPWD", "SHLVL", "_"];
        let mut names: Vec<_> = names.map(|(name, _)| name.to_owned()).collect();
        names.retain(|name| !own.contains(&name.as_str()));
        names.sort();
        names
    };
    let all = ["HOME", "LANG", "OWN", "PARTYWALL_FD", "PARTYWALL_RUN_DIR", "PATH"];
    assert_eq!(said(None), all);
    assert!(said(Some("warn")).contains(&"RUST_LOG".to_owned()));
}

#[test]
fn denial_under_up_names_the_compose_file_and_ends_the_run() {
    let [server, client] = domain_programs().each_ref().map(|p| p.to_str().unwrap());
    let services = |calls: &str| {
        Run::of(&format!(
            "services:\n  test:\n    x-partywall: {{program: {server}}}\n  web:\n    depends_on: \
             [test]\n    x-partywall: {{program: {client}, args: [--mode, few]{calls}}}\n"
        ))
    };
    // Nobody's `calls` name the server: that it serves is seen when it does.
    let (code, _, complained) = services("").end();
    assert_eq!(code, Some(1), "{complained}");
    let remedy = "`test/*`, under `calls` in the x-partywall of service `web` of ";
    let names_the_file = |complained: &str| {
        assert!(complained.contains(remedy), "{complained}");
        assert!(
            complained.contains("compose.yaml") && !complained.contains("[service."),
            "{complained}"
        );
    };
    names_the_file(&complained);
    let (code, _, complained) = services(", calls: [test/some.Other/Method]").end();
    assert_eq!(code, Some(1), "{complained}");
    assert!(complained.contains("does not let this caller call /"), "{complained}");
    names_the_file(&complained);
}

#[test]
fn a_script_is_refused_with_the_interpreter_as_the_remedy() {
    let run = Run::of("services:\n  a:\n    x-partywall: {program: run.sh}\n");
    fs::write(run.dir.path().join("run.sh"), "#!/bin/sh\necho hi\n").unwrap();
    let (code, _, complained) = run.end();
    assert_eq!(code, Some(1));
    assert!(complained.contains("services.a.x-partywall.program: "), "{complained}");
    assert!(complained.contains("name the interpreter here"), "{complained}");
}

#[test]
fn coordinator_error_names_the_socket_and_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let links = |variable: Option<&str>, arguments: &[&str]| {
        let mut command = command(&[&["links"], arguments].concat());
        command.env("XDG_RUNTIME_DIR", dir.path()).env_remove("PARTYWALL_SOCKET");
        command.envs(variable.map(|value| ("PARTYWALL_SOCKET", value)));
        let out = command.output().unwrap();
        assert!(!out.status.success());
        text(&out.stderr)
    };
    let empty = links(Some(""), &[]);
    assert!(empty.contains("PARTYWALL_SOCKET is set, and empty"), "{empty}");
    assert!(empty.contains(dir.path().to_str().unwrap()), "where else it was looked for: {empty}");
    let flag = links(Some("/x"), &["--socket", "/etc/passwd"]);
    assert!(flag.contains("/etc/passwd (given by --socket): this is a file"), "{flag}");
    // What may follow is where other runs of this user are.
    assert!(!flag.lines().next().unwrap().contains("PARTYWALL_SOCKET"), "{flag}");
    let variable = links(Some("/no/such"), &[]);
    assert!(
        variable.contains("/no/such (given by PARTYWALL_SOCKET): nothing is there"),
        "{variable}"
    );
    let long = links(None, &["--socket", &"x".repeat(120)]);
    assert!(long.contains("120 bytes") && long.contains("at most 107"), "{long}");
    let policy: PathBuf = dir.path().join("p.toml");
    fs::write(&policy, "").unwrap();
    let typo = dir.path().join("rnu/partywall/c.sock");
    let out =
        command(&["coordinator", "--policy"]).arg(&policy).arg("--socket").arg(&typo).output();
    let said = text(&out.unwrap().stderr);
    assert!(said.contains("there is no directory") && !dir.path().join("rnu").exists(), "{said}");
}

#[test]
fn mistyped_principal_is_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    fs::write(&policy, "[principal.web]\nuid = 1\n[service.g.call]\nweb = ['*']\n").unwrap();
    let explain = ["policy", "explain", "--policy", policy.to_str().unwrap()];
    let out = partywall(&[&explain[..], &["wbe", "g", "a.B/C"]].concat());
    let said = text(&out.stderr);
    assert!(said.contains("it has web") && said.contains("did you mean `web`?"), "{said}");
}

#[test]
fn help_has_examples_and_environment_and_shell_completion() {
    let help = text(&partywall(&["--help"]).stdout);
    for part in
        ["Examples:", "Environment:", "PARTYWALL_COORDINATOR_UID", "partywall up compose.yaml"]
    {
        assert!(help.contains(part), "{part}");
    }
    assert!(text(&partywall(&["links", "--help"]).stdout).contains("FORWARDS/CALL"));
    assert!(text(&partywall(&["up", "--help"]).stdout).contains("stop_grace_period"));
    assert!(text(&partywall(&["--version"]).stdout).starts_with("partywall "));
    let completions = text(&partywall(&["completions", "bash"]).stdout);
    assert!(completions.contains("doctor") && completions.contains("--json"));
    let manual = text(&partywall(&["manual"]).stdout);
    assert!(manual.starts_with(".ie") && manual.contains(".SH \"PARTYWALL LINKS\""), "{manual}");
    assert!(
        manual.contains("FORWARDS/CALL") && manual.contains("Keys of `x\\-partywall`"),
        "{manual}"
    );
    let doctor =
        text(&command(&["doctor"]).env("PARTYWALL_SOCKET", "/no/such").output().unwrap().stdout);
    assert!(doctor.contains("Coordinator:\n  no coordinator at /no/such"), "{doctor}");
    assert!(doctor.contains("not used by this version"), "{doctor}");
}
