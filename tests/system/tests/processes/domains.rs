//! Unchanged services as domains of one launcher: their calls go through the gate.

use std::io::Read;
use std::time::{Duration, Instant};

use partywall::operator::LinkInfo;
use partywall_interop::Counts;
use partywall_system_tests::{Stubs, domain_programs, went, with};

use partywall_testkit::{Host, Process, alone, is_full};

/// Whether this is the emulated machine of `cargo xtask vm-test`.
fn is_emulated() -> bool {
    std::env::var("PARTYWALL_VM").as_deref() == Ok("1")
}

/// Each isolation that domains can have here; in the emulated machine, which is there for the sake of
/// protection keys, that with them alone.
fn isolations() -> Vec<&'static str> {
    let keys = is_emulated() || partywall_domain::machine::keys_usable().is_ok();
    let none = (!is_emulated()).then_some("none");
    none.into_iter().chain(keys.then_some("protection-keys")).collect()
}

/// Milliseconds that a visit may last in the emulated machine, where all takes longer.
const EMULATED_LIMIT: (&str, &str) = ("PARTYWALL_INLINE_LIMIT_MS", "1000");

fn launcher(host: &Host, isolation: &str, options: &[&str], mode: &str) -> Process {
    let limit = is_emulated().then_some(EMULATED_LIMIT);
    launcher_in(host, isolation, options, mode, limit.as_slice())
}

fn launcher_in(
    host: &Host,
    isolation: &str,
    options: &[&str],
    mode: &str,
    environment: &[(&str, &str)],
) -> Process {
    let [server, client] = domain_programs().each_ref().map(|path| path.to_str().unwrap());
    let arguments = ["--server", server, "--client", client, "--mode", mode];
    let arguments = [&arguments[..], &["--isolation", isolation], options].concat();
    let environment = [&[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")], environment].concat();
    let launcher = env!("CARGO_BIN_EXE_st-launcher");
    let mut launcher = Process::start(launcher, &host.socket, &arguments, &environment, None);
    let found = launcher.line();
    let found = found.strip_prefix("isolation ").expect("what came of it");
    // Before Linux 6.12 signal stacks are shared.
    let less = isolation == "protection-keys" && found == "shared-signal-stacks";
    assert!(found == isolation || less, "{found}, not {isolation}");
    launcher
}

/// What the launcher says in the end: calls through the gate, system calls forwarded, the client's
/// exit status.
fn end(launcher: &mut Process) -> (u64, u64, String) {
    let line = launcher.line();
    let words: Vec<_> = line.split_whitespace().collect();
    let ["called", calls, "forwarded", forwards, "client", status] = words[..] else {
        panic!("{line}");
    };
    (calls.parse().unwrap(), forwards.parse().unwrap(), status.to_owned())
}

/// Rounds of 300 right answers to calls with so many bytes, and a deadline in milliseconds if there is
/// one; visits and system calls forwarded.
fn measure(isolation: &str, options: &[&str], rounds: u32, bytes: &str) -> (u64, u64) {
    let limit = is_emulated().then_some(EMULATED_LIMIT);
    measure_in(isolation, options, rounds, bytes, limit.as_slice())
}

fn measure_in(
    isolation: &str,
    options: &[&str],
    rounds: u32,
    bytes: &str,
    environment: &[(&str, &str)],
) -> (u64, u64) {
    let (links, calls, forwards) =
        measured("measure", isolation, options, rounds, bytes, environment);
    let stubs = if options.contains(&"--native") { Stubs::Native } else { Stubs::Tonics };
    went(Counts::of(&links), stubs);
    (calls, forwards)
}

/// The same in this mode of the client, and the links that there are then.
fn measured(
    mode: &str,
    isolation: &str,
    options: &[&str],
    rounds: u32,
    bytes: &str,
    environment: &[(&str, &str)],
) -> (Vec<LinkInfo>, u64, u64) {
    let host = Host::open();
    let mut launcher = launcher_in(&host, isolation, options, mode, environment);
    assert!(launcher.line().starts_with("server "));
    launcher.ready();
    for _ in 0..rounds {
        launcher.say(bytes);
        let line = launcher.line();
        let Ok(median) = line.trim().parse::<u64>() else {
            let mut said = String::new();
            launcher.stderr().read_to_string(&mut said).unwrap();
            panic!("{line}{said}");
        };
        println!("{isolation}, {options:?}, {bytes} bytes: {median} ns");
    }
    let links = partywall::operator::links(Some(&host.socket)).unwrap();
    launcher.end_input();
    let (calls, forwards, status) = end(&mut launcher);
    println!("{isolation}, {options:?}: {calls} visits, {forwards} system calls forwarded");
    assert_eq!(status, "Some(0)");
    (links, calls, forwards)
}

#[test]
fn requests_longer_than_a_record_ring_the_bell() {
    let _alone = alone();
    for isolation in isolations() {
        // What a visitor could do is to wake a task, by a forwarded system call.
        assert_eq!(measure(isolation, &["--threads", "1"], 2, "100000"), (0, 0));
    }
}

/// For both ways of calls.
fn ways() -> impl Iterator<Item = (&'static str, Stubs)> {
    let both = |isolation| [Stubs::Tonics, Stubs::Native].map(|stubs| (isolation, stubs));
    isolations().into_iter().flat_map(both)
}

#[test]
fn handlers_that_wait_are_seldom_gone_in_for() {
    let _alone = alone();
    for (isolation, stubs) in ways() {
        let options = with(stubs, &["--threads", "1", "--waits"]);
        let (calls, forwards) = measure(isolation, &options, 10, "32");
        // Some 24 for 3,000 calls, more if a visit takes so long that it says nothing.
        let most = if is_full() { 60 } else { 300 };
        assert!((8..most).contains(&calls), "{calls} visits");
        assert!(forwards < 2 * most, "{forwards} system calls forwarded");
    }
}

#[test]
fn stubs_call_another_domain_through_the_gate() {
    let _alone = alone();
    // Emulated, handlers take so long that callers soon ring.
    let rounds = if is_emulated() { 2 } else { 10 };
    for ((isolation, stubs), threads) in ways().flat_map(|way| [(way, "1"), (way, "2")]) {
        let options = with(stubs, &["--threads", threads]);
        let (calls, forwards) = measure(isolation, &options, rounds, "32");
        enough(calls, forwards, 300 * rounds);
    }
}

/// Looks at how many of all calls went in. There are fewer visits and more forwards when others keep a thread
/// from running in the middle of a call.
fn enough(calls: u64, forwards: u64, all: u32) {
    let (least, most) = match (is_emulated(), is_full()) {
        (true, _) => (10, 600),
        (false, true) => (2_700, 300),
        (false, false) => (1_000, 1_000),
    };
    assert!(calls >= least, "{calls} visits for {all} calls");
    assert!(forwards <= most, "{forwards} system calls forwarded for {all} calls");
}

/// The clients that partywall-build generates for plain threads, and the blocking channel itself.
#[test]
fn blocking_clients_call_another_domain_through_the_gate() {
    let _alone = alone();
    let rounds = if is_emulated() { 2 } else { 10 };
    let limit = is_emulated().then_some(EMULATED_LIMIT);
    let all = 300 * rounds;
    for ((isolation, stubs), threads) in ways().flat_map(|way| [(way, "1"), (way, "2")]) {
        let options = with(stubs, &["--threads", threads]);
        let (links, calls, forwards) =
            measured("measure-blocking", isolation, &options, rounds, "32", limit.as_slice());
        enough(calls, forwards, all);
        // The launcher has counted, and the service's end of the only link as well.
        let [link] = &links[..] else { panic!("{links:?}") };
        enough(link.stats.visits, link.stats.forwards, all);
        let all = u64::from(all);
        let wanted = match stubs {
            Stubs::Native => Counts { native: all - 1, ordinary: 1 },
            Stubs::Tonics => Counts { native: 0, ordinary: all },
        };
        assert_eq!(Counts::of(&links), wanted, "{isolation}, {options:?}");
    }
}

#[test]
fn the_limit_of_visits_is_what_the_environment_says() {
    let _alone = alone();
    // A call goes in when twice the limit and a quarter of a second are left until its deadline: with 10 ms
    // and 400 ms each does, with 76 ms none.
    let measured = |isolation: &str, limit: &str| {
        let limit = [("PARTYWALL_INLINE_LIMIT_MS", limit)];
        measure_in(isolation, &["--threads", "1"], 2, "32 400", &limit).0
    };
    for isolation in isolations() {
        let calls = measured(isolation, "10");
        assert!(calls > 200, "{calls} visits for 600 calls");
        assert_eq!(measured(isolation, "76"), 0);
        // What is no limit leaves the usual one, of 10 ms.
        let calls = measured(isolation, "0");
        assert!(calls > 200, "{calls} visits for 600 calls, where the variable is none");
    }
}

/// What the API of both ends says and what the list says. The coordinator has not started the launcher: the
/// ends tell it that they share an address space.
#[test]
fn ends_and_list_agree_on_the_security_between_domains() {
    let _alone = alone();
    for isolation in isolations() {
        let host = Host::open();
        let mut launcher = launcher(&host, isolation, &["--threads", "1"], "security");
        assert!(launcher.line().starts_with("server "));
        let said = super::security::said_by_all(&host, &mut launcher);
        let known = match isolation {
            "none" => vec!["none, space, observed"],
            _ => vec!["protection-keys, space, observed", "shared-signal-stacks, space, observed"],
        };
        assert!(known.contains(&said.as_str()), "{isolation}: {said}");
        assert!(end(&mut launcher).2 == "Some(0)");
    }
}

/// Runs cases between two domains of one launcher: so many hold, with more visits of the service than these.
fn cases_between_domains(server: &[&str], mode: &str, cases: usize, least: u64) {
    let threads: &[&str] = if is_emulated() { &["1"] } else { &["1", "2"] };
    let pairs = |i| threads.iter().map(move |threads| (i, *threads));
    for ways in isolations().into_iter().flat_map(pairs) {
        cases_between_domains_of(&Host::open(), ways, (server, mode), cases, least);
    }
}

/// The same at one isolation, with so many threads of the server.
fn cases_between_domains_of(
    host: &Host,
    (isolation, threads): (&str, &str),
    (server, mode): (&[&str], &str),
    cases: usize,
    least: u64,
) {
    let options = [&["--threads", threads], server].concat();
    // One case has a status of a mebibyte, which takes some 10 ms in a program that is not optimized.
    let limit = if is_emulated() { EMULATED_LIMIT } else { (EMULATED_LIMIT.0, "200") };
    let mut launcher = launcher_in(host, isolation, &options, mode, &[limit]);
    assert!(launcher.line().starts_with("server "));
    let (mut held, mut last) = (0, launcher.line());
    while last.starts_with("case ") {
        println!("{last}");
        held += usize::from(last.contains(" ok "));
        last = launcher.line();
    }
    let mut said = String::new();
    launcher.stderr().read_to_string(&mut said).unwrap();
    let words: Vec<_> = last.split_whitespace().collect();
    let ["called", visits, .., status] = words[..] else { panic!("{last}") };
    assert_eq!(status, "Some(0)", "{said}");
    assert_eq!(held, cases);
    let visits: u64 = visits.parse().unwrap();
    println!("{isolation}, {options:?}, {mode}: {visits} visits");
    // Emulated, handlers take so long that callers soon ring.
    let least = if is_emulated() { least / 5 } else { least };
    assert!(visits > least, "{visits} visits");
}

/// The test body of every route.
#[test]
fn every_case_between_domains() {
    let _alone = alone();
    // 48 of gRPC's, 16 of deadlines, 19 of heads. Visits are short calls of methods whose handlers do not
    // wait, some 200.
    cases_between_domains(&["--probed"], "interop", 83, 50);
}

/// Records of a link whose callers come in by the gate are sealed as well.
#[test]
fn every_case_between_domains_whose_links_are_sealed() {
    let _alone = alone();
    let uid = rustix::process::geteuid().as_raw();
    let host = Host::with(&format!(
        "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nseal = 'required'\n\
         [service.test.call]\nme = ['*']\n"
    ));
    let isolation = isolations()[0];
    cases_between_domains_of(&host, (isolation, "2"), (&["--native", "--probed"], "bare"), 63, 50);
}

#[test]
fn every_case_by_native_stubs_between_domains() {
    let _alone = alone();
    cases_between_domains(&["--native", "--probed"], "bare", 63, 50);
    // Nine where others have the processors.
    cases_between_domains(&["--probed"], "layered", 20, 3);
}

/// Calls with deadlines by a client in this mode, most of which end in time; the launcher, and the first line
/// that it says afterwards.
fn deadlines_are_kept(host: &Host, mode: &str, isolation: &str, stubs: Stubs) -> (Process, String) {
    let mut launcher = launcher(host, isolation, &with(stubs, &["--threads", "1"]), mode);
    assert!(launcher.line().starts_with("server "));
    let (mut burning, mut sleeping) = (Vec::new(), Vec::new());
    let mut next = launcher.line();
    while let Some(late) = next.trim().strip_prefix("late ") {
        let (how, microseconds) = late.split_once(' ').unwrap();
        let series = if how == "burn" { &mut burning } else { &mut sleeping };
        series.push(microseconds.parse::<u64>().unwrap());
        next = launcher.line();
    }
    println!("{isolation}, {stubs:?}: microseconds after the deadline: {burning:?}, {sleeping:?}");
    // Who waits for the handler is late each time: by 40 ms, or by 190. Beside other tests others have
    // the processors for some milliseconds now and then.
    for (series, all) in [(burning, 20), (sleeping, 10)] {
        let in_time = series.iter().filter(|late| **late <= 5_000).count();
        let wanted = if is_full() { all * 3 / 4 } else { all / 4 };
        assert!(series.len() == all && in_time >= wanted, "{series:?}, {next}");
    }
    (launcher, next)
}

/// The client has ended well, and the service had native calls or had none.
fn ended_well(launcher: &mut Process, last: &str, stubs: Stubs) {
    let mut said = String::new();
    launcher.stderr().read_to_string(&mut said).unwrap();
    assert!(last.trim().ends_with("client Some(0)"), "{last}{said}");
    assert_eq!(said.contains("native"), stubs == Stubs::Native, "{said}");
}

/// The caller's thread was in the service until that had its limit, or its system call came back.
#[test]
fn deadline_in_a_domain_is_reported_in_time_and_ends_no_service() {
    let _alone = alone();
    let host = Host::open();
    for (isolation, stubs) in ways() {
        let (mut launcher, last) = deadlines_are_kept(&host, "late", isolation, stubs);
        ended_well(&mut launcher, &last, stubs);
    }
}

/// A call with little time left is not inside, and one inside ends with the limit of visits.
#[test]
fn deadline_of_a_blocking_client_in_a_domain_is_in_time() {
    let _alone = alone();
    let host = Host::open();
    for (isolation, stubs) in ways() {
        let (mut launcher, next) = deadlines_are_kept(&host, "late-blocking", isolation, stubs);
        let words: Vec<_> = next.split_whitespace().collect();
        let ["cut", "off", code, microseconds] = words[..] else { panic!("{next}") };
        println!("{isolation}, {stubs:?}: cut off after {microseconds} microseconds");
        // The limit is 10 ms, and the deadline was in 20 s.
        assert_eq!(code, "DeadlineExceeded");
        let after = microseconds.parse::<u64>().unwrap();
        assert!((10_000..5_000_000).contains(&after), "{after}");
        let last = launcher.line();
        ended_well(&mut launcher, &last, stubs);
    }
}

#[test]
fn a_domain_that_is_killed_fails_its_callers_and_nobody_else() {
    let _alone = alone();
    let host = Host::open();
    let mut visits = 0;
    let trials: u64 = if is_emulated() { 4 } else { 12 };
    for (trial, (isolation, stubs)) in
        (0..trials).zip(ways().collect::<Vec<_>>().into_iter().cycle())
    {
        let options = with(stubs, &["--threads", "1"]);
        let mut launcher = launcher(&host, isolation, &options, "flood");
        let pid = launcher.line();
        let pid: i32 = pid.trim().strip_prefix("server ").unwrap().parse().unwrap();
        launcher.ready();
        let slower = if is_emulated() { 100 } else { 1 };
        std::thread::sleep(slower * Duration::from_millis(20 + 7 * (trial / 2)));
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let start = Instant::now();
        let (calls, _, status) = end(&mut launcher);
        let in_time = Duration::from_millis(match (is_emulated(), is_full()) {
            (true, _) => 10_000,
            (false, true) => 100,
            (false, false) => 1_000,
        });
        assert!(start.elapsed() < in_time, "{:?}", start.elapsed());
        assert_eq!(status, "Some(1)");
        visits += calls;
        // The client ends with the first status that is not OK.
        let mut said = String::new();
        launcher.stderr().read_to_string(&mut said).unwrap();
        assert!(said.contains("The service is currently unavailable"), "{said}");
        assert_eq!(said.contains("native\n"), stubs == Stubs::Native, "{said}");
    }
    println!("{visits} visits before the kills");
    assert!(visits > 0);
}
