//! `partywall fn` as processes: hosts, and commands that ask them.

mod ends;
mod grpc;
mod hostile;
mod lists;
mod rig;
mod ways;

use rig::{Rig, exists, me};
use rustix::process::{Resource, getrlimit};

const SHOUT: &str = "pub fn handle(request: Request<'_>) -> Reply {\n\
     log!(\"{} bytes\", request.body().len());\n\
     Ok(request.text()?.to_uppercase().into_bytes())\n}\n";

/// A function that answers with this text.
fn says(text: &str) -> String {
    format!("pub fn handle(_: Request<'_>) -> Reply {{ Ok(b\"{text}\".to_vec()) }}\n")
}

#[test]
fn a_function_is_written_tried_deployed_and_called() {
    let rig = Rig::new();
    let served = rig.serve("state", &[]);
    assert!(rig.good(&["new", "shout"], "").contains("shout.rs"));
    let again = rig.bad(&["new", "shout"], "");
    assert!(again.0 == 1 && again.1.contains("there is such a file already"), "{again:?}");
    assert!(rig.good(&["new", "whisper.rs"], "").starts_with("whisper.rs: "), "a file is meant");
    let gone = rig.bad(&["test", "shuot.rs"], "");
    assert!(gone.0 == 1 && gone.1.contains("shuot.rs: there is no such file; name"), "{gone:?}");
    let tried = rig.run(&["test", "shout.rs", "--request", "hello"], "");
    assert_eq!(rig::text(&tried.stdout), "HELLO");
    let said = rig::text(&tried.stderr);
    assert!(said.contains("built in 1 try") && said.contains("log: a request with 5"), "{said}");
    let deployed = rig.good(&["deploy", "shout.rs"], "");
    assert!(deployed.starts_with(&format!("shout version 1 of {}: ", me())), "{deployed}");
    assert_eq!(rig.good(&["invoke", "shout"], "hello"), "HELLO");
    let invoked = rig.run(&["invoke", "shout", "--request", "you", "--verbose"], "");
    assert_eq!(rig::text(&invoked.stdout), "YOU");
    let said = rig::text(&invoked.stderr);
    let call = said.lines().find_map(|line| line.strip_prefix("call: ")).unwrap().to_owned();
    let log = rig.good(&["logs", "shout", "--call", &call], "");
    assert!(log.ends_with(&format!(" {call} a request with 3 bytes\n")), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    assert_eq!(rig.good(&["logs", "shout"], "").lines().count(), 2);
    for (of, said) in
        [(&["--call", "77"][..], "no lines of `shout` of this call: a"), (&["--lines", "0"], "")]
    {
        let log = rig.run(&[&["logs", "shout"], of].concat(), "");
        assert!(log.status.success() && rig::text(&log.stderr).contains(said), "{log:?}");
        assert_eq!(log.stdout.is_empty(), !said.is_empty(), "{log:?}");
        assert_eq!(log.stderr.is_empty(), said.is_empty(), "{log:?}");
    }
    let unread = rig.bad(&["logs", "other"], "");
    assert!(
        unread.0 == 69 && unread.1.contains("`logs` in the policy of the function host"),
        "{unread:?}"
    );
    let listed = rig.good(&["ls"], "");
    let row: Vec<_> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..6], ["shout", "1", &me(), "owner", "loaded", "2"], "{listed}");
    let nobody = rig.bad(&["invoke", "other"], "");
    assert!(nobody.0 == 69 && nobody.1.contains("there is no function `other`"), "{nobody:?}");
    assert_eq!(served.stop(), 0);
    let gone = rig.bad(&["invoke", "shout"], "");
    assert!(gone.0 != 0 && gone.1.contains("functions"), "{gone:?}");
}

#[test]
fn errors_of_the_compiler_are_the_same_here_and_there() {
    let rig = Rig::new();
    let _served = rig.serve("state", &[]);
    let unknown = "pub fn handle(r: Request<'_>) -> Reply {\n    Ok(r.nothing())\n}\n";
    let forbidden = "pub fn handle(_: Request<'_>) -> Reply {\n    unsafe { panic!() }\n}\n";
    for (name, source, said) in [
        ("unknown", unknown, "main.rs:2:10"),
        ("forbidden", forbidden, "main.rs:2"),
        ("none", "pub fn other() {}\n", "no function to call"),
    ] {
        let file = rig.file(&format!("{name}.rs"), source);
        let here = rig.bad(&["test", &file], "");
        let there = rig.bad(&["deploy", &file], "");
        assert_eq!((here.0, there.0), (1, 64 + 3), "{here:?} {there:?}");
        assert!(here.1.contains(said) && there.1.contains(said), "{here:?} {there:?}");
        // But for who says it and the indentation.
        let words = |text: &str, before: &str| {
            let text = text.strip_prefix(before).unwrap_or_else(|| panic!("{text}"));
            text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            words(&here.1, "partywall: "),
            words(&there.1, "partywall: fn deploy: INVALID_ARGUMENT: ")
        );
        for host in ["/build", "/toolchain", "/root", "/work", "/tmp", "/home"] {
            assert!(!there.1.contains(host), "{host}: {}", there.1);
        }
    }
    assert_eq!(rig.good(&["ls"], "").lines().count(), 1, "what is not built is no version");
}

#[test]
fn versions_are_rolled_back_with_their_parameters() {
    let rig = Rig::new();
    let served = rig.serve("state", &[]);
    let source = "pub fn handle(r: Request<'_>) -> Reply {\n\
         let of = |name| r.parameter(name).unwrap_or(b\"-\").to_vec();\n\
         Ok([of(\"colour\"), of(\"key\")].join(&b' '))\n}\n";
    let secret = rig.file("secret", "s3cret");
    let key = format!("key=@{secret}");
    rig.deploy("paint", source, &["--param", "colour=red", "--secret", &key]);
    rig.deploy("paint", source, &["--param", "colour=blue", "--budget", "5ms"]);
    assert_eq!(rig.good(&["invoke", "paint"], ""), "blue -");
    let listed = rig.good(&["ls", "--versions"], "");
    assert!(!listed.contains("s3cret") && !listed.contains("blue"), "{listed}");
    let rows: Vec<Vec<_>> = listed.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!((rows[1][1], rows[1][4], rows[1][7], rows[1][8]), ("2*", "5000us", "colour", "-"));
    assert_eq!((rows[2][1], rows[2][8]), ("1", "key"));
    assert_eq!(rows[1][5], rows[2][5], "the same sources");
    assert!(rig.good(&["rollback", "paint"], "").starts_with("paint version 1 of "));
    assert_eq!(rig.good(&["invoke", "paint"], ""), "red s3cret");
    let none = rig.bad(&["rollback", "paint"], "");
    assert!(none.0 == 64 + 9 && none.1.contains("it has 1, 2"), "{none:?}");
    rig.good(&["rollback", "paint", "2"], "");
    assert_eq!(served.stop(), 0);
    // Another host finds what the last one had.
    let _served = rig.serve("state", &[]);
    assert_eq!(rig.good(&["invoke", "paint"], ""), "blue -");
    rig.good(&["rm", "paint"], "");
    assert_eq!(rig.bad(&["invoke", "paint"], "").0, 69);
    assert_eq!(rig.good(&["ls"], "").lines().count(), 1);
}

#[test]
fn a_deployment_is_whole_or_not_there_whenever_a_host_dies() {
    let rig = Rig::new();
    let mut least = 0;
    let rounds = partywall_testkit::trials(30).clamp(3, 30) as u32;
    for round in 0..rounds {
        let served = rig.serve("state", &[]);
        if round > 0 {
            let said: u32 = rig.good(&["invoke", "f"], "").parse().unwrap();
            assert!(said >= least, "{said} is older than {least}, which was deployed");
            assert!(said <= least + 1, "{said} was never deployed");
            least = said;
        }
        // One that is acknowledged, and one under way when the host dies.
        let next = least + 1;
        rig.deploy("f", &says(&next.to_string()), &[]);
        assert_eq!(rig.good(&["invoke", "f"], ""), next.to_string());
        least = next;
        let file = rig.file("f.rs", &says(&(next + 1).to_string()));
        let mut under_way = rig.command(&["deploy", &file]).spawn().unwrap();
        // Within the build, within the commit, and behind it.
        let after = 1500 * u64::from(round) / u64::from(rounds - 1);
        std::thread::sleep(std::time::Duration::from_millis(after));
        served.kill();
        if under_way.wait().unwrap().success() {
            least = next + 1;
        }
    }
}

#[test]
fn calls_have_one_version_or_the_other_while_it_changes() {
    let rig = Rig::new();
    let _served = rig.serve("state", &[]);
    rig.deploy("f", &says("0"), &[]);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut seen = Vec::new();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                seen.push(rig.good(&["invoke", "f"], "").parse::<u32>().unwrap());
            }
            seen
        });
        for version in 1..4 {
            rig.deploy("f", &says(&version.to_string()), &[]);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        calls.join().unwrap()
    });
    assert!(seen.is_sorted() && seen.len() > 3 && seen[0] == 0, "{seen:?}");
    assert_eq!(rig.good(&["invoke", "f"], ""), "3");
}

#[test]
fn images_go_to_hosts_that_trust_their_key() {
    let rig = Rig::new();
    let sender = rig.serve("one", &[]);
    rig.deploy("shout", SHOUT, &[]);
    rig.good(&["pull", "shout", "--output", "shout.pwfn"], "");
    sender.stop();
    // A host without a compiler.
    let without = ["--rustc", "/nonexistent/rustc"];
    let receiver = rig.serve("two", &without);
    assert!(
        receiver.said.iter().any(|line| line.contains("only signed images")),
        "{receiver:?}",
        receiver = receiver.said
    );
    let built = rig.bad(&["deploy", "shout.rs"], "");
    assert!(built.0 == 64 + 9 && built.1.contains("has no compiler"), "{built:?}");
    let untrusted = rig.bad(&["push", "shout.pwfn"], "");
    assert!(untrusted.0 == 64 + 9 && untrusted.1.contains("fn push: "), "{untrusted:?}");
    assert!(untrusted.1.contains("`trusted` in this host's directory"), "{untrusted:?}");
    receiver.stop();
    std::fs::create_dir(rig.path("two/trusted")).unwrap();
    std::fs::copy(rig.path("one/builder.pub"), rig.path("two/trusted/one.pub")).unwrap();
    let _receiver = rig.serve("two", &without);
    let renamed = rig.bad(&["push", "shout.pwfn", "--name", "other"], "");
    assert!(renamed.1.contains("is signed as `shout`"), "{renamed:?}");
    assert!(rig.good(&["push", "shout.pwfn"], "").starts_with("shout version 1 of "));
    assert_eq!(rig.good(&["invoke", "shout"], "far"), "FAR");
    let mut bytes = std::fs::read(rig.path("shout.pwfn")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(rig.path("shout.pwfn"), bytes).unwrap();
    let altered = rig.bad(&["push", "shout.pwfn"], "");
    assert!(altered.0 == 64 + 9 && altered.1.contains("SHA-256"), "{altered:?}");
}

#[test]
fn a_banned_function_is_called_by_nobody_until_it_is_not() {
    let rig = Rig::new();
    let served = rig.serve("state", &[]);
    rig.deploy("shout", SHOUT, &[]);
    rig.good(&["preload", "shout"], "");
    assert!(rig.good(&["ls"], "").contains(" loaded "));
    rig.good(&["ban", "shout"], "");
    let banned = rig.bad(&["invoke", "shout"], "");
    assert!(banned.0 == 64 + 7 && banned.1.contains("is banned"), "{banned:?}");
    assert!(rig.good(&["ls"], "").contains(" banned "));
    served.stop();
    let _served = rig.serve("state", &[]);
    assert_eq!(rig.bad(&["invoke", "shout"], "").0, 64 + 7, "another host keeps the ban");
    rig.good(&["unban", "shout"], "");
    assert_eq!(rig.good(&["invoke", "shout"], "again"), "AGAIN");
}

#[test]
fn a_host_says_what_is_wrong_with_where_it_is_to_be() {
    let rig = Rig::new();
    let _served = rig.serve("state", &[]);
    let taken = rig.bad(&["serve", "--directory", "state"], "");
    assert!(taken.1.contains("another function host has this directory"), "{taken:?}");
    // Another directory, and the same name.
    let begun = std::time::Instant::now();
    let second = rig.bad(&["serve", "--directory", "second"], "");
    assert!(second.0 == 1 && begun.elapsed().as_secs() >= 1, "{second:?}");
    let said = "another process serves `functions` at this coordinator";
    assert!(second.1.contains(said) && second.1.contains("--name functions2"), "{second:?}");
    assert_eq!(rig.good(&["ls"], "").lines().count(), 1, "the first one serves on");
    let policy = rig.file("policy.toml", "[owner.x]\nrates = 1\n");
    let wrong = rig.bad(&["serve", "--directory", "other", "--policy", &policy], "");
    assert!(
        wrong.1.contains("policy.toml:2:1: unknown key `rates`; there are functions,"),
        "{wrong:?}"
    );
    assert_eq!(rig.bad(&["policy", "check", &policy], ""), wrong, "the same without a start");
    assert!(!exists(&rig.path("other")));
    let nowhere = rig.path("none.sock").display().to_string();
    let nowhere = rig.bad(&["serve", "--directory", "other", "--socket", &nowhere], "");
    assert!(nowhere.1.contains("no coordinator at"), "{nowhere:?}");
}

#[test]
fn doctor_says_what_functions_need() {
    let rig = Rig::new();
    let doctor = |path: Option<&str>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_partywall"));
        command.arg("doctor").env("PARTYWALL_SOCKET", &rig.host.socket);
        command.envs(path.map(|path| ("PATH", path)));
        let said = rig::text(&command.output().unwrap().stdout);
        let lines = said.lines().skip_while(|line| !line.starts_with("Functions on it")).skip(1);
        lines.take(8).map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    // This machine builds functions and runs them: other tests do.
    let found = doctor(None);
    assert!(found[0].starts_with("compiler               yes  "), "{found:?}");
    assert!(found[1].starts_with("rustc 1."), "{found:?}");
    assert!(found[2].starts_with("program of workers     yes  "), "{found:?}");
    assert!(found[3].ends_with("/partywall-worker"), "{found:?}");
    assert!(found[4].starts_with("sandbox                yes  "), "{found:?}");
    assert!(found[6].starts_with("protection keys        "), "{found:?}");
    let served = rig.serve("state", &[]);
    let kept = served.said.iter().find(|line| line.contains("workers' memory")).unwrap();
    let has_keys = kept.contains("by: protection-keys");
    assert_eq!(found[6].contains(" yes "), has_keys, "{found:?} {kept}");
    let without = doctor(Some("/no/such"));
    assert!(without[0].starts_with("compiler               no   "), "{without:?}");
    assert!(without[1].contains("`rustc`") && without[1].contains("install Rust"), "{without:?}");
    assert_eq!(without[2..], found[2..]);
}

/// Few descriptors, and a parent that has the ends of children ignored: a host builds all the same, uses what
/// descriptors it may have, and has another worker for one that was killed.
#[test]
fn a_host_outlives_what_its_parent_has_left_it() {
    let rig = Rig::new();
    let served = rig.serve_after("trap '' CHLD; ulimit -S -n 100; ulimit -H -n 200", "state");
    assert!(!served.said.iter().any(|line| line.contains("only signed")), "{:?}", served.said);
    let limits = served.proc("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("200"), "{files}");
    rig.deploy("shout", SHOUT, &[]);
    for _ in 0..3 {
        assert_eq!(rig.good(&["invoke", "shout"], "one"), "ONE");
        assert!(served.kill_workers() > 0);
    }
    assert_eq!(rig.good(&["invoke", "shout"], "last"), "LAST");
    assert_eq!(served.stop(), 0);
}

/// A host whose disk is full, for which a limit of its files' length stands in: what is deployed is called, a
/// deployment says why it is refused, and the next one that has room is there.
#[test]
fn a_host_goes_on_while_its_disk_is_full() {
    let rig = Rig::new();
    let sender = rig.serve("one", &[]);
    let large = "static LARGE: [u8; 1 << 20] = [7; 1 << 20];\n\
                 pub fn handle(r: Request<'_>) -> Reply {\n\
                 Ok(vec![core::hint::black_box(&LARGE)[r.body().len()]])\n}\n";
    let names: Vec<_> = (0..8).map(|number| format!("large{number}")).collect();
    rig.deploy("shout", SHOUT, &[]);
    for name in ["shout"].into_iter().chain(names.iter().map(String::as_str)) {
        if name != "shout" {
            rig.deploy(name, large, &[]);
        }
        rig.good(&["pull", name, "--output", &format!("{name}.pwfn")], "");
    }
    sender.stop();
    // Where nothing is built: a builder's files have the limit too.
    rig.serve("two", &[]).stop();
    std::fs::create_dir(rig.path("two/trusted")).unwrap();
    std::fs::copy(rig.path("one/builder.pub"), rig.path("two/trusted/one.pub")).unwrap();
    let served = rig.serve("two", &[]);
    rig.good(&["push", "shout.pwfn"], "");
    assert_eq!(rig.good(&["invoke", "shout"], "before"), "BEFORE");
    served.limit_files(Some(std::fs::metadata(rig.path("two/registry.redb")).unwrap().len()));
    let push = |name: &str| rig.run(&["push", &format!("{name}.pwfn")], "");
    // Until what is free in the file is used up.
    let refused = names.iter().find_map(|name| {
        let out = push(name);
        (!out.status.success()).then_some((name, out))
    });
    let (name, out) = refused.expect("there is no end of room");
    let said = rig::text(&out.stderr);
    assert_eq!(out.status.code(), Some(64 + 13), "{said}");
    assert!(said.contains("the registry of functions: ") && said.contains("make room"), "{said}");
    assert!(!said.contains("redb"), "where it is is nothing to callers: {said}");
    for _ in 0..3 {
        assert_eq!(rig.good(&["invoke", "shout"], "meanwhile"), "MEANWHILE");
        assert_eq!(rig.bad(&["invoke", name], "").0, 69, "what was refused is not there");
        assert_eq!(push(name).status.code(), Some(64 + 13));
    }
    served.limit_files(getrlimit(Resource::Fsize).maximum);
    assert!(push(name).status.success());
    assert_eq!(rig.good(&["invoke", name], ""), "\u{7}");
    let listed = rig.good(&["ls"], "").lines().count();
    assert_eq!(served.stop(), 0);
    let _again = rig.serve("two", &[]);
    assert_eq!(rig.good(&["ls"], "").lines().count(), listed);
    assert_eq!(rig.good(&["invoke", "shout"], "after"), "AFTER");
}
