//! What many links cost the quiet one among them.

use std::slice;

use partywall_interop::Counts;
use partywall_system_tests::{Stubs, went, with};
use rustix::process::Signal;

use crate::{CLIENT, SERVER, client_of};
use partywall_testkit::{Host, Process, alone};

const ROUNDS: usize = 15;

/// A server with a quiet client, and one that floods it while it is let.
struct Busy {
    host: Host,
    server: Process,
    quiet: Process,
    flood: Process,
}

impl Busy {
    fn new(stubs: Stubs, flooded: impl FnOnce(&Host, &[&str]) -> Process) -> Self {
        let host = Host::open();
        // A quarter of its descriptors is no place for links, and a user takes half of the rest.
        let server = host.start(SERVER, &with(stubs, &["--nofile", "2048"]));
        let mut quiet = host.start(CLIENT, &with(stubs, &["--mode", "measure"]));
        quiet.ready();
        // The first call of a service is none for native stubs.
        measure(&mut quiet);
        let mut flood = flooded(&host, &with(stubs, &["--mode", "flood"]));
        flood.ready();
        flood.signal(Signal::STOP);
        Self { host, server, quiet, flood }
    }
}

/// The median of 300 calls, in nanoseconds.
fn measure(quiet: &mut Process) -> u64 {
    quiet.say("32");
    quiet.line().parse().unwrap()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort();
    values[values.len() / 2]
}

fn shared_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|l| l.starts_with("Shmem:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// 1,000 links of 50 processes of 5 users to one server, one flooding it, one with half a message. A
/// call on the quiet one of them is compared, in turn, with one
///
/// - to a server with two links, this one and one that floods it: what the other 998 cost;
/// - to a server with one link, while the flood goes on elsewhere: what sharing a server costs, beside
///   the same load that does not touch it.
#[test]
fn a_quiet_link_among_a_thousand() {
    quiet_among_a_thousand(Stubs::Tonics);
}

/// The same with native calls, on each of the links.
#[test]
fn a_quiet_native_link_among_a_thousand() {
    quiet_among_a_thousand(Stubs::Native);
}

fn quiet_among_a_thousand(stubs: Stubs) {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, for clients of five users");
    let elsewhere = Host::open();
    let _undisturbed = elsewhere.start(SERVER, &with(stubs, &["--nofile", "1024"]));
    let mut undisturbed = elsewhere.start(CLIENT, &with(stubs, &["--mode", "measure"]));
    undisturbed.ready();
    let mut few = Busy::new(stubs, |host, flood| host.start(CLIENT, flood));
    let before = shared_memory();
    let mut many = Busy::new(stubs, |host, flood| client_of(host, 2003, flood));
    let client = |uid, mode, links| {
        client_of(&many.host, uid, &with(stubs, &["--mode", mode, "--links", links]))
    };
    let mut clients: Vec<Process> =
        (0..48_u32).map(|n| client(2001 + n % 5, "idle", "20")).collect();
    clients.push(client(2001, "half", "20"));
    clients.push(client(2002, "idle", "18"));
    clients.iter_mut().for_each(Process::ready);
    let used = shared_memory().saturating_sub(before);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", many.server.pid())).unwrap();
    let links = maps.lines().filter(|l| l.contains("partywall-outbox")).count() / 2;

    let (mut among, mut alone, mut among_two) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        many.flood.signal(Signal::CONT);
        among.push(measure(&mut many.quiet));
        alone.push(measure(&mut undisturbed));
        many.flood.signal(Signal::STOP);
        few.flood.signal(Signal::CONT);
        among_two.push(measure(&mut few.quiet));
        few.flood.signal(Signal::STOP);
    }
    let [among, alone, among_two] = [among, alone, among_two].map(median);
    println!(
        "{links} links: {} MiB shared, quiet call {among} ns; one of two links {among_two} ns; alone, \
         with the same load elsewhere, {alone} ns",
        used >> 20
    );
    assert_eq!(links, 1000);
    let listed = partywall::operator::links(Some(&many.host.socket)).unwrap();
    let natively = listed.iter().filter(|link| Counts::of(slice::from_ref(link)).native > 0);
    assert_eq!(natively.count(), if stubs == Stubs::Native { 1000 } else { 0 });
    went(Counts::of(&listed), stubs);
    // One for each link, and those that it has without any.
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", many.server.pid())).unwrap().count();
    assert!((1000..1024).contains(&descriptors), "{descriptors} descriptors");
    assert!(used < 200 << 20, "{used} bytes of shared memory");
    let (of_links, of_sharing) = (among as f64 / among_two as f64, among as f64 / alone as f64);
    assert!(of_links <= 1.5, "998 links cost a quiet one {of_links:.2} times its call");
    assert!(of_sharing <= 1.5, "sharing the server costs {of_sharing:.2} times a call");
}
