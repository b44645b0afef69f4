//! Ways in and out of a host: HTTP, limits, and services that functions call.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::{Rig, http, me, read, text};
use crate::{SHOUT, says};

/// A policy by which anybody on the network may call, and more of this user's rules.
pub fn open(more: &str) -> String {
    format!("[owner.\"{}\"]\ncall = [\"network\"]\n{more}\n", me())
}

#[test]
fn calls_over_http_have_the_codes_of_their_ends() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open("budget_us = 20000"));
    rig.deploy("shout", SHOUT, &[]);
    rig.deploy("spin", "pub fn handle(_: Request<'_>) -> Reply { loop {} }\n", &[]);
    rig.deploy("trip", "pub fn handle(_: Request<'_>) -> Reply { panic!(\"on purpose\") }\n", &[]);
    let fails = "pub fn handle(r: Request<'_>) -> Reply {\n\
         let code = r.text()?.parse().unwrap_or(2);\n\
         Err(Error::new(Code::of(code), \"as asked\"))\n}\n";
    rig.deploy("fail", fails, &[]);
    let reply = http(at, "POST /shout", b"hello");
    assert_eq!((reply.code, reply.body.as_str()), (200, "HELLO"));
    let call = reply.header("partywall-call").unwrap();
    assert!(rig.good(&["logs", "shout", "--call", call], "").contains("5 bytes"));
    for (body, code) in [("3", 400), ("5", 404), ("7", 403), ("8", 429), ("12", 501), ("14", 503)] {
        let failed = http(at, "POST /fail", body.as_bytes());
        assert_eq!((failed.code, failed.body.as_str()), (code, "as asked\n"), "{body}");
        assert_eq!(failed.header("partywall-status"), Some(body));
    }
    let spun = http(at, "POST /spin", b"");
    assert!(spun.code == 504 && spun.body.contains("its budget, which is 20000 us"), "{spun:?}");
    let tripped = http(at, "POST /trip", b"");
    assert!(tripped.code == 500 && tripped.body.contains("on purpose"), "{tripped:?}");
    assert!(rig.good(&["logs", "trip"], "").contains("ended: the function has panicked"));
    assert_eq!(http(at, "POST /none", b"").code, 404);
    assert_eq!(http(at, "POST /", b"").code, 404);
    let got = http(at, "GET /shout", b"");
    assert_eq!((got.code, got.header("allow")), (405, Some("POST")));
    let wrong = http(at, "POST /shout HTTP/1.1\r\npartywall-timeout-ms: soon\r\nx: y", b"");
    assert_eq!(wrong.code, 400, "{wrong:?}");
    let long = http(at, "POST /shout", &vec![b'x'; (8 << 20) + 1]);
    assert_eq!(long.code, 413, "{}", long.body);
}

#[test]
fn who_may_not_call_a_function_is_told_that_there_is_none() {
    let rig = Rig::new();
    let closed = format!("[owner.\"{}\"]\n", me());
    let (served, at) = rig.serve_http(&closed);
    rig.deploy("shout", SHOUT, &[]);
    let (unseen, none) = (http(at, "POST /shout", b""), http(at, "POST /other", b""));
    assert_eq!((unseen.code, none.code), (404, 404));
    assert_eq!(unseen.body.replace("shout", "other"), none.body);
    // A policy that is read again counts at once.
    rig.file("policy.toml", &open(""));
    served.signal(Signal::HUP);
    let until = Instant::now() + Duration::from_secs(10);
    while http(at, "POST /shout", b"").code != 200 {
        assert!(Instant::now() < until, "the policy is not read again");
        std::thread::sleep(Duration::from_millis(20));
    }
    // One that is none changes nothing; an owner who is no more has no calls.
    rig.file("policy.toml", "owner = 1");
    served.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(http(at, "POST /shout", b"").code, 200);
    rig.file("policy.toml", "[owner.other]\ncall = [\"network\"]\n");
    served.signal(Signal::HUP);
    while http(at, "POST /shout", b"").code != 404 {
        assert!(Instant::now() < until, "the policy is not read again");
        std::thread::sleep(Duration::from_millis(20));
    }
    let denied = rig.bad(&["deploy", "shout.rs"], "");
    assert!(denied.0 == 64 + 7 && denied.1.contains("may not deploy"), "{denied:?}");
}

#[test]
fn beyond_an_owners_limits_is_429_and_resource_exhausted() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open("rate = 1\nburst = 2\nfunctions = 1"));
    rig.deploy("f", &says("x"), &[]);
    let answers: Vec<_> = (0..8).map(|_| http(at, "POST /f", b"")).collect();
    let refused: Vec<_> = answers.iter().filter(|answer| answer.code == 429).collect();
    assert!(refused.len() >= 4 && answers[0].code == 200, "{answers:?}");
    let again = refused[0].header("retry-after").unwrap().parse::<u64>().unwrap();
    assert!((1..=8).contains(&again), "{again}");
    let over = rig.bad(&["invoke", "f"], "");
    assert!(over.0 == 64 + 8 && over.1.contains("1 calls a second"), "{over:?}");
    let listed = rig.good(&["ls"], "");
    let rows: Vec<Vec<_>> = listed.lines().map(|row| row.split_whitespace().collect()).collect();
    let refused = (rows[0][8], rows[1][8].parse::<usize>().unwrap());
    assert_eq!(refused, ("REFUSED", answers.iter().filter(|a| a.code == 429).count() + 1));
    let file = rig.file("g.rs", &says("y"));
    let full = rig.bad(&["deploy", &file], "");
    assert!(full.0 == 64 + 8 && full.1.contains("its limit is 1"), "{full:?}");
    let high = rig.bad(&["deploy", &rig.file("f.rs", &says("z")), "--budget", "2s"], "");
    assert!(high.0 == 64 + 3 && high.1.contains("at most 1000000 us"), "{high:?}");
}

/// A function may call what its owner may: here the host itself, as a service that runs `shout`.
#[test]
fn a_function_calls_what_its_owners_rules_allow() {
    let rig = Rig::new();
    let allowed = "services = [\"functions/partywall.functions.v1.Functions/Invoke\"]";
    let (_served, at) = rig.serve_http(&open(allowed));
    rig.deploy("shout", SHOUT, &[]);
    // The message `InvokeRequest { function: "shout", body: <request> }`, and its reply's body.
    let asks = "pub fn handle(r: Request<'_>) -> Reply {\n\
         let mut message = vec![10, 5];\n\
         message.extend_from_slice(b\"shout\");\n\
         message.extend([18, r.body().len() as u8]);\n\
         message.extend_from_slice(r.body());\n\
         let method = \"/partywall.functions.v1.Functions/METHOD\";\n\
         Ok(partywall_fn::service::call(\"functions\", method, &message)?[2..].to_vec())\n}\n";
    rig.deploy("ask", &asks.replace("METHOD", "Invoke"), &[]);
    assert_eq!(rig.good(&["invoke", "ask"], "through"), "THROUGH");
    assert_eq!(http(at, "POST /ask", b"both").body, "BOTH");
    rig.deploy("list", &asks.replace("METHOD", "List"), &[]);
    let denied = rig.bad(&["invoke", "list"], "");
    assert!(
        denied.0 == 64 + 7 && denied.1.contains("may not call functions/partywall"),
        "{denied:?}"
    );
    rig.deploy("bare", &asks.replace("\"/partywall", "\"partywall"), &[]);
    let bare = rig.bad(&["invoke", "bare"], "");
    assert!(bare.0 == 64 + 3 && bare.1.contains("write `/package.Service/Method`"), "{bare:?}");
}

#[test]
fn a_slow_head_and_a_gone_caller_hold_nothing_up() {
    use std::io::Write as _;
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open("most_budget_us = 10000000"));
    rig.deploy("shout", SHOUT, &[]);
    rig.deploy("spin", "pub fn handle(_: Request<'_>) -> Reply { loop {} }\n", &["--budget", "8s"]);
    let mut slow: Vec<_> = (0..50).map(|_| std::net::TcpStream::connect(at).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"POST /shout HTTP/1.1\r\nx: ").unwrap();
    }
    let begun = Instant::now();
    let mut gone = std::net::TcpStream::connect(at).unwrap();
    gone.write_all(b"POST /spin HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").unwrap();
    // Its function runs by then.
    std::thread::sleep(Duration::from_millis(300));
    drop(gone);
    assert_eq!(http(at, "POST /shout", b"ok").body, "OK");
    assert!(begun.elapsed() < Duration::from_secs(6), "the function of who is gone is ended");
    let timed = {
        let mut stream = std::net::TcpStream::connect(at).unwrap();
        let head =
            "POST /spin HTTP/1.1\r\nhost: x\r\nconnection: close\r\npartywall-timeout-ms: 100\r\n";
        write!(stream, "{head}content-length: 0\r\n\r\n").unwrap();
        read(&mut stream)
    };
    assert!(timed.code == 504 && timed.body.contains("the call's time is over"), "{timed:?}");
}

/// Callers that do not wait for each other have an answer of one version or the other, always.
#[test]
fn no_call_fails_while_versions_change() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open(""));
    for version in ["1", "2"] {
        rig.deploy("f", &says(version), &[]);
    }
    let is_over = AtomicBool::new(false);
    let calls = || {
        let mut count = [0, 0];
        while !is_over.load(Ordering::Relaxed) {
            let answer = http(at, "POST /f", b"");
            assert_eq!(answer.code, 200, "{answer:?}");
            count[usize::from(answer.body == "2")] += 1;
            assert!(["1", "2"].contains(&&*answer.body), "{answer:?}");
        }
        count
    };
    let seen = std::thread::scope(|scope| {
        let callers = [0, 1, 2].map(|_| scope.spawn(calls));
        for round in 0..30 {
            rig.good(&["rollback", "f", if round % 2 == 0 { "1" } else { "2" }], "");
        }
        is_over.store(true, Ordering::Relaxed);
        callers.map(|caller| caller.join().unwrap())
    });
    let all = [0, 1].map(|version| seen.iter().map(|count| count[version]).sum::<u32>());
    assert!(all.iter().all(|count| *count > 30), "{seen:?}");
}

#[test]
fn the_page_shows_what_the_list_shows() {
    let rig = Rig::new();
    let served = rig.serve("state", &["--page", "127.0.0.1:0"]);
    let at = served.address("page at http://");
    let ends = "pub fn handle(r: Request<'_>) -> Reply {\n\
         match r.text()? { \"error\" => Err(Error::invalid(\"no\")), \"panic\" => panic!(), \"loop\" => loop {},\n\
         _ => Ok(vec![]) }\n}\n";
    rig.deploy("ends", ends, &[]);
    for request in ["x", "error", "panic", "loop", "x", "x"] {
        rig.run(&["invoke", "ends"], request);
    }
    let page = http(at, "GET /", b"");
    assert!(page.code == 200 && page.body.contains("<title>Functions</title>"), "{page:?}");
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    for part in ["/page.js", "/page.css"] {
        assert!(page.body.contains(&part[1..]), "{part}");
        assert_eq!(http(at, &format!("GET {part}"), b"").code, 200);
    }
    let shown = http(at, "GET /functions.json", b"");
    let shown: serde_json::Value = serde_json::from_str(&shown.body).unwrap();
    let (one, owner) = (&shown["functions"][0], &shown["owners"][0]);
    let listed = rig.good(&["ls"], "");
    let mut row = listed.lines().nth(1).unwrap().split_whitespace();
    let number = |key: &str| one[key].as_u64().unwrap_or_else(|| panic!("{key}: {one}"));
    for key in ["name", "version", "owner", "share", "state", "calls"] {
        let shown = one[key].as_str().map_or_else(|| one[key].to_string(), str::to_owned);
        assert_eq!(Some(&*shown), row.next(), "{key}: {one}\n{listed}");
    }
    assert_eq!((number("calls"), number("errors"), number("failures")), (6, 1, 1), "{one}");
    let failed = (number("errors") + number("failures")).to_string();
    assert_eq!(Some(&*failed), row.next(), "{one}\n{listed}");
    for key in ["overruns", "refused", "strikes", "cold"] {
        assert_eq!(Some(&*number(key).to_string()), row.next(), "{key}: {one}\n{listed}");
    }
    assert_eq!((number("overruns"), number("strikes")), (1, 1), "{one}");
    for key in ["p50_ns", "p99_ns"] {
        let text = row.next().unwrap();
        let (digits, unit) = text.split_at(text.find(char::is_alphabetic).unwrap());
        let unit = match unit {
            "us" => 1e3,
            "ms" => 1e6,
            _ => 1e9,
        };
        let listed = digits.parse::<f64>().unwrap() * unit;
        // As many digits as are shown.
        assert!((listed - number(key) as f64).abs() <= 0.051 * unit, "{key}: {one} {text}");
    }
    assert_eq!(Some(&*format!("{}us", number("cpu_us"))), row.next(), "{one}\n{listed}");
    assert!(number("p99_ns") > number("p50_ns") && number("cpu_us") >= 10_000, "{one}");
    // An owner has what its only function has.
    assert_eq!((&owner["name"], &owner["functions"]), (&me().into(), &1.into()));
    for key in ["calls", "errors", "failures", "overruns", "cold", "cpu_us", "p50_ns", "p99_ns"] {
        assert_eq!(owner[key], one[key], "{key}");
    }
    assert_eq!(http(at, "POST /functions.json", b"").code, 405, "nothing is changed here");
}

/// What has begun goes on with its owner's rights when it is replaced, and when it is removed.
#[test]
fn a_replaced_function_still_calls_services() {
    let rig = Rig::new();
    let allowed = "services = [\"functions/*\"]\nbudget_us = 1000000";
    let (_served, at) = rig.serve_http(&open(allowed));
    let slow = "pub fn handle(_: Request<'_>) -> Reply {\n\
         let begun = partywall_fn::clock::monotonic();\n\
         while (partywall_fn::clock::monotonic() - begun).as_millis() < 100 {}\n\
         Ok(b\"x\".to_vec())\n}\n";
    rig.deploy("slow", slow, &[]);
    // The message `InvokeRequest { function: "slow" }`, 40 times: for 4 s.
    let asks = "pub fn handle(_: Request<'_>) -> Reply {\n\
         let method = \"/partywall.functions.v1.Functions/Invoke\";\n\
         for _ in 0..40 {\n\
         partywall_fn::service::call(\"functions\", method, b\"\\x0a\\x04slow\")?;\n\
         }\n\
         Ok(b\"all\".to_vec())\n}\n";
    rig.deploy("ask", asks, &[]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| http(at, "POST /ask", b""));
        std::thread::sleep(Duration::from_millis(300));
        rig.deploy("ask", &says("new"), &[]);
        assert_eq!(http(at, "POST /ask", b"").body, "new");
        assert!(!first.is_finished(), "it was to be replaced while it runs");
        rig.good(&["rm", "ask"], "");
        let first = first.join().unwrap();
        assert_eq!((first.code, first.body.as_str()), (200, "all"));
    });
}

/// Who goes away while something of it is built has no second build until that has ended.
#[test]
fn a_build_has_its_place_until_it_has_ended() {
    let rig = Rig::new();
    let _served = rig.serve("state", &[]);
    let endless = "#[allow(long_running_const_eval)] const N: u64 = { let mut n = 0_u64;\n\
         while n != u64::MAX { n = n.wrapping_add(1) } n };\n\
         pub fn handle(_: Request<'_>) -> Reply { Ok(vec![N as u8]) }\n";
    let (endless, short) = (rig.file("endless.rs", endless), rig.file("f.rs", &says("x")));
    let begin = || rig.command(&["deploy", &endless]).stderr(Stdio::null()).spawn().unwrap();
    let mut gone = begin();
    let is_refused = || {
        let out = rig.run(&["deploy", &short], "");
        let is_refused = out.status.code() == Some(64 + 8);
        assert!(is_refused || out.status.success(), "{}", text(&out.stderr));
        is_refused
    };
    while !is_refused() {
        // It may have been refused itself, while the short one was built.
        if gone.try_wait().unwrap().is_some() {
            gone = begin();
        }
    }
    gone.kill().unwrap();
    gone.wait().unwrap();
    // The host has heard of that by then.
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_refused(), "what is built for nobody still takes a CPU");
}

/// A change whose caller goes away is made or is not: what is listed can be removed.
#[test]
fn a_change_is_whole_whenever_its_caller_goes() {
    let rig = Rig::new();
    let _served = rig.serve("state", &[]);
    rig.deploy("f", &says("x"), &[]);
    rig.good(&["pull", "f", "--output", "f.pwfn"], "");
    let rounds = partywall_testkit::trials(100).clamp(30, 100) as u64;
    for round in 0..rounds {
        rig.good(&["push", "f.pwfn"], "");
        let mut gone = rig.command(&["rm", "f"]).spawn().unwrap();
        // Before it is asked for, within the commit, and behind it.
        std::thread::sleep(Duration::from_micros(40_000 * round / rounds));
        gone.kill().unwrap();
        gone.wait().unwrap();
        let out = rig.run(&["rm", "f"], "");
        // It was removed before, or is now.
        assert!([0, 69].contains(&out.status.code().unwrap()), "{}", text(&out.stderr));
        let listed = rig.good(&["ls"], "");
        assert_eq!(listed.lines().count(), 1, "round {round}: {listed}");
    }
}
