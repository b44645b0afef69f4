//! How calls end, as callers see it, and what a host says of itself and when it ends.

use std::time::{Duration, Instant};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::rig::{Rig, Served, http, me};
use crate::ways::open;
use crate::{SHOUT, says};

/// A function that ends as its request says.
const ENDS: &str = "fn deep(n: u64) -> u64 {\n\
     let room = core::hint::black_box([n; 512]);\n\
     if n == u64::MAX { 0 } else { deep(n + 1) + room[7] }\n}\n\
     pub fn handle(r: Request<'_>) -> Reply {\n\
     match r.text()? {\n\
     \"error\" => Err(Error::new(Code::of(9), \"not now\")),\n\
     \"panic\" => panic!(\"on purpose\"),\n\
     \"memory\" => Ok(vec![1; 64 << 20]),\n\
     \"stack\" => Ok(deep(0).to_le_bytes().to_vec()),\n\
     \"long\" => Ok(vec![0; (8 << 20) + 1]),\n\
     \"loop\" => loop {},\n\
     _ => Ok(b\"reply\".to_vec()) }\n}\n";

/// A host with two processes: in one `again` waits for `ask`, which may not meet it and may wait for `shout`.
fn with_two_processes(rig: &Rig) -> (Served, std::net::SocketAddr) {
    let policy = open("share = \"function\"\nservices = [\"functions/*\"]");
    let file = rig.file("policy.toml", &policy);
    let two = ["--processes", "1", "--cpus", "0", "--policy", &file, "--http", "127.0.0.1:0"];
    let served = rig.serve("state", &two);
    rig.deploy("shout", SHOUT, &[]);
    for (name, request) in [("ask", "\\x0a\\x05shout"), ("again", "\\x0a\\x03ask")] {
        let asks = format!(
            "pub fn handle(_: Request<'_>) -> Reply {{\n\
             let method = \"/partywall.functions.v1.Functions/Invoke\";\n\
             partywall_fn::service::call(\"functions\", method, b\"{request}\")\n}}\n"
        );
        rig.deploy(name, &asks, &[]);
    }
    let at = served.address("calls at http://");
    (served, at)
}

#[test]
fn each_end_of_fn_invoke_has_its_exit_status_and_text() {
    let rig = Rig::new();
    let _served = rig.serve("state", &[]);
    rig.deploy("ends", ENDS, &["--param", "a=b", "--budget", "1s"]);
    assert_eq!(rig.good(&["invoke", "ends"], ""), "reply");
    let whole = "x".repeat(8 << 20);
    for (request, code, said) in [
        ("error", 9, "FAILED_PRECONDITION: not now (call "),
        ("panic", 13, "INTERNAL: the function has panicked: "),
        ("memory", 13, "INTERNAL: the function needs more memory than one may have"),
        ("stack", 13, "INTERNAL: the function needs more stack than one may have"),
        ("long", 13, "INTERNAL: the function's reply has 8388609 bytes"),
        ("loop", 4, "DEADLINE_EXCEEDED: the function has used "),
        (&whole, 3, "INVALID_ARGUMENT: the request has 8388608 bytes, and `ends` takes 8388598"),
    ] {
        let ended = rig.bad(&["invoke", "ends"], request);
        let is_said = ended.1.starts_with(&format!("partywall: ends: {said}"));
        assert!(ended.0 == 64 + code && is_said, "{said}: {ended:?}");
    }
    let none = rig.bad(&["invoke", "none"], "");
    assert!(none.0 == 64 + 5 && none.1.contains("none: NOT_FOUND: there is no"), "{none:?}");
    rig.good(&["ban", "ends"], "");
    let banned = rig.bad(&["invoke", "ends"], "");
    assert!(banned.0 == 64 + 7 && banned.1.contains("PERMISSION_DENIED: the function is banned"));
    // What was no call.
    let long = rig.bad(&["invoke", "ends"], &format!("{whole}x"));
    assert!(long.0 == 1 && long.1.contains("standard input: a request has at most"), "{long:?}");
    let name = rig.bad(&["invoke", "No Name"], "");
    assert!(name.0 == 2 && name.1.contains("is no name of a function"), "{name:?}");
    let nobody = rig.bad(&["invoke", "ends", "--host", "nobody"], "");
    assert!(nobody.0 == 1 && nobody.1.contains("nobody"), "{nobody:?}");
}

#[test]
fn bans_long_replies_and_no_process_have_their_codes_over_http() {
    let rig = Rig::new();
    let (_served, at) = with_two_processes(&rig);
    rig.deploy("ends", ENDS, &["--budget", "1s"]);
    let long = http(at, "POST /ends", b"long");
    assert!(long.code == 500 && long.body.contains("reply has 8388609 bytes"), "{}", long.head);
    let whole = "pub fn handle(_: Request<'_>) -> Reply { Ok(vec![b'x'; 8 << 20]) }\n";
    rig.deploy("whole", whole, &["--budget", "1s"]);
    let whole = http(at, "POST /whole", b"");
    assert_eq!((whole.code, whole.body.len()), (200, 8 << 20), "{}", whole.head);
    rig.good(&["ban", "ends"], "");
    let banned = http(at, "POST /ends", b"");
    assert_eq!((banned.code, banned.header("partywall-status")), (403, Some("7")), "{banned:?}");
    assert!(banned.body.contains("the function is banned"), "{banned:?}");
    // What waits for nobody itself has the second one.
    assert_eq!(http(at, "POST /ask", b"").code, 200);
    let held = http(at, "POST /again", b"");
    assert_eq!((held.code, held.header("partywall-status")), (503, Some("14")), "{held:?}");
    assert!(held.body.contains("wait for services in 1 of 2 worker processes"), "{held:?}");
    let held = rig.bad(&["invoke", "again"], "");
    assert!(held.0 == 64 + 14 && held.1.contains("again: UNAVAILABLE: "), "{held:?}");
}

/// A call has 4 KiB for its lines and their lengths: the first ones are there, the last of them is cut, and a
/// line behind says how many are not.
#[test]
fn of_a_log_beyond_4_kib_the_first_lines_are_there() {
    let rig = Rig::new();
    let _served = rig.serve("state", &[]);
    let logs = "pub fn handle(_: Request<'_>) -> Reply {\n\
         let rest = \"x\".repeat(96);\n\
         for number in 0..100 { log!(\"{number:03} {rest}\"); }\n\
         Ok(b\"replied\".to_vec())\n}\n";
    rig.deploy("logs", logs, &[]);
    assert_eq!(rig.good(&["invoke", "logs"], ""), "replied", "a log is no reason to fail");
    let shown = rig.good(&["logs", "logs"], "");
    let texts = shown.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap());
    let mut texts: Vec<_> = texts.collect();
    let says = texts.pop().unwrap();
    assert_eq!(says, "(the log is full: 61 lines had no room, or not all of it)");
    for (number, text) in texts.iter().enumerate() {
        let line = format!("{number:03} {}", "x".repeat(96));
        let is_last = number + 1 == texts.len();
        assert!(if is_last { line.starts_with(text) } else { line == *text }, "{text}");
    }
    let bytes = texts.iter().map(|text| 4 + text.len()).sum::<usize>();
    assert_eq!((texts.len(), bytes), (40, 4 << 10), "{shown}");
}

#[test]
fn a_secret_is_in_no_image() {
    let rig = Rig::new();
    let served = rig.serve("state", &[]);
    let value = "a-value-that-is-nowhere-else";
    let key = format!("key=@{}", rig.file("secret", value));
    let tells = "pub fn handle(r: Request<'_>) -> Reply {\n\
         Ok(r.parameter(\"key\").map_or(0, <[u8]>::len).to_string().into_bytes())\n}\n";
    rig.deploy("tells", tells, &["--secret", &key]);
    assert_eq!(rig.good(&["invoke", "tells"], ""), value.len().to_string());
    rig.good(&["pull", "tells", "--output", "tells.pwfn"], "");
    served.stop();
    let has = |file: &str| {
        let bytes = std::fs::read(rig.path(file)).unwrap();
        bytes.windows(value.len()).any(|part| part == value.as_bytes())
    };
    assert!(has("state/registry.redb"), "that is where it is kept");
    assert!(!has("tells.pwfn"));
    let _served = rig.serve("state", &[]);
    rig.good(&["push", "tells.pwfn"], "");
    assert_eq!(rig.good(&["invoke", "tells"], ""), "0", "an image brings no secrets along");
}

/// Whose functions meet is the policy's, also of one that is read again.
#[test]
fn functions_meet_as_the_policy_says_and_as_it_says_again() {
    let rig = Rig::new();
    let policy = |share: &str| format!("[owner.\"{}\"]\nshare = \"{share}\"\n", me());
    let file = rig.file("policy.toml", &policy("function"));
    let served = rig.serve("state", &["--cpus", "0", "--policy", &file]);
    for name in ["f", "g"] {
        rig.deploy(name, &says(name), &[]);
    }
    // One process is there for all that share with all.
    for (share, processes) in [("function", 3), ("owner", 2), ("all", 1)] {
        rig.file("policy.toml", &policy(share));
        served.signal(rustix::process::Signal::HUP);
        let until = Instant::now() + Duration::from_secs(10);
        let has = |name: &str| {
            assert_eq!(rig.good(&["invoke", name], ""), name);
            let listed = rig.good(&["ls"], "");
            let row = listed.lines().find(|row| row.starts_with(name)).unwrap();
            row.split_whitespace().nth(3) == Some(share)
        };
        while !(has("f") && has("g") && served.children().len() == processes) {
            assert!(Instant::now() < until, "{share}: {:?}", served.children());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const PKEY_ALLOC: i64 = 330;
const FALLOCATE: i64 = 285;

/// From here on the kernel refuses a system call of this thread and of what it starts.
fn refuse(call: i64, why: rustix::io::Errno) {
    let refused = SeccompAction::Errno(why.raw_os_error() as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let calls = [(call, Vec::new())].into();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Where the kernel gives no protection keys, a host says so; one that is to have them does not start.
#[test]
fn a_host_says_what_isolation_is_in_force_or_why_it_does_not_start() {
    const LINE: &str = "functions are kept from their workers' memory by: ";
    let rig = Rig::new();
    let line = |served: &Served| {
        let line = served.said.iter().find_map(|line| line.strip_prefix(LINE));
        line.unwrap_or_else(|| panic!("{:?}", served.said)).to_owned()
    };
    let served = rig.serve("state", &["--isolation", "none"]);
    assert!(line(&served).starts_with("none"), "{:?}", served.said);
    served.stop();
    let served = rig.serve("state", &[]);
    let has_keys = line(&served) == "protection-keys";
    served.stop();
    let required = ["serve", "--directory", "state", "--isolation", "protection-keys"];
    if has_keys {
        let served = rig.serve("state", &["--isolation", "protection-keys"]);
        assert_eq!(line(&served), "protection-keys");
        served.stop();
    }
    let without_keys = || {
        refuse(PKEY_ALLOC, rustix::io::Errno::NOSPC);
        let served = rig.serve("state", &[]);
        let said = line(&served);
        served.stop();
        (said, rig.bad(&required, ""))
    };
    let (said, refused) = std::thread::scope(|scope| scope.spawn(without_keys).join().unwrap());
    let why = said.strip_prefix("none (").and_then(|rest| rest.strip_suffix(')'));
    let why = why.unwrap_or_else(|| panic!("{said}"));
    assert!(refused.0 == 1 && refused.1.contains("a worker of functions does not begin: "));
    assert!(!why.is_empty() && refused.1.contains(why), "{why}: {}", refused.1);
}

/// A host whose dispatcher cannot go on, here since the kernel cleans no cell.
#[test]
fn a_host_ends_with_the_reason_when_its_dispatcher_has_ended() {
    let rig = Rig::new();
    let before = rig.serve("state", &[]);
    let large = "pub fn handle(_: Request<'_>) -> Reply {\n\
         Ok(core::hint::black_box(vec![1; 4 << 20]).split_off(4 << 20))\n}\n";
    rig.deploy("shout", SHOUT, &[]);
    rig.deploy("large", large, &[]);
    before.stop();
    let ends = || {
        refuse(FALLOCATE, rustix::io::Errno::IO);
        let served = rig.serve("state", &[]);
        assert_eq!(rig.good(&["invoke", "shout"], "on"), "ON");
        assert_ne!(rig.bad(&["invoke", "large"], "").0, 0);
        served.ended()
    };
    let (status, said) = std::thread::scope(|scope| scope.spawn(ends).join().unwrap());
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("the dispatcher of functions has ended: Input/output error"), "{said}");
}
