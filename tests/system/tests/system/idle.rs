//! What links cost that do nothing, and what many links cost the quiet one among them.

use std::time::Duration;

use super::host::{Host, Process, alone};

#[test]
fn a_hundred_idle_links_make_no_context_switch() {
    let _alone = alone();
    let host = Host::new();
    let server = host.server(&[]);
    let mut clients: Vec<Process> =
        (0..4).map(|_| host.client(&["--mode", "idle", "--links", "25"])).collect();
    clients.iter_mut().for_each(Process::ready);
    std::thread::sleep(Duration::from_millis(500));
    let count = || -> Vec<u64> {
        clients.iter().chain([&server]).map(Process::voluntary_switches).collect()
    };
    let before = count();
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(count(), before, "voluntary context switches of 4 clients and the server");
}

/// 1,000 links of 50 processes of 5 users, one flooding, one with half a message.
#[test]
fn a_quiet_link_among_a_thousand() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, for clients of five users");
    let host = Host::new();
    let shmem = || -> u64 {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find(|l| l.starts_with("Shmem:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    let median = |process: &mut Process| -> u64 {
        let mut all: Vec<u64> = (0..15)
            .map(|_| {
                process.say("32");
                process.line().parse().unwrap()
            })
            .collect();
        all.sort();
        all[all.len() / 2]
    };
    // The same load on the CPUs, by processes that do not touch the server.
    let alone_ns = {
        let _server = host.server(&["--nofile", "1024"]);
        let mut quiet = host.client(&["--mode", "measure"]);
        quiet.ready();
        let other = Host::new();
        let _other_server = other.server(&[]);
        let mut flood = other.client(&["--mode", "flood"]);
        flood.ready();
        median(&mut quiet)
    };
    let before = shmem();
    let server = host.server(&["--nofile", "1024"]);
    let mut quiet = host.client(&["--mode", "measure"]);
    quiet.ready();
    let mut clients: Vec<Process> = (0..48_u32)
        .map(|n| host.client_of(2001 + n % 5, &["--mode", "idle", "--links", "20"]))
        .collect();
    clients.push(host.client_of(2001, &["--mode", "half", "--links", "20"]));
    clients.iter_mut().for_each(Process::ready);
    let mut last = host.client_of(2002, &["--mode", "idle", "--links", "18"]);
    last.ready();
    let mut flood = host.client_of(2003, &["--mode", "flood"]);
    flood.ready();
    let used = shmem().saturating_sub(before);
    let among_ns = median(&mut quiet);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    let links = maps.lines().filter(|l| l.contains("partywall-outbox")).count() / 2;
    println!(
        "{links} links: {} MiB shared, quiet call {among_ns} ns, alone under the same load {alone_ns} ns",
        used >> 20
    );
    assert_eq!(links, 1000);
    assert!(used < 200 << 20, "{used} bytes of shared memory");
    let ratio = among_ns as f64 / alone_ns as f64;
    assert!(ratio <= 1.5, "ratio {ratio:.2}");
}
