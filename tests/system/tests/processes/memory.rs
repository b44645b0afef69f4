//! Who holds the memory of a link, and a process whose memory is short.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::unprivileged::Apart;
use crate::{CLIENT, SERVER};
use partywall_testkit::{Held, Host, alone};

/// The outboxes that a process has mapped: number of the file, and the rights of the mapping. None
/// where this user may not look.
fn outboxes(pid: u32) -> Option<BTreeMap<u64, String>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let lines = maps.lines().filter(|line| line.contains("partywall-outbox"));
    let mapping = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields[4].parse().unwrap(), fields[1].to_owned())
    };
    Some(lines.map(mapping).collect())
}

/// Each direction of a link has memory of its own. One end has it mapped to write, the other one to
/// read, nobody else has it mapped, and neither end holds a descriptor of it.
#[test]
fn outboxes_are_mapped_by_the_two_ends_alone() {
    let _alone = alone();
    let host = Apart::new(&[]);
    let server = host.process(SERVER, &[]);
    let mut client = host.process(CLIENT, &["--mode", "idle"]);
    client.ready();
    let (of_client, of_server) = (outboxes(client.pid()), outboxes(server.pid()));
    let (of_client, of_server) = (of_client.unwrap(), of_server.unwrap());
    let rights = |of: &BTreeMap<u64, String>| of.values().cloned().collect::<Vec<_>>();
    assert_eq!(of_client.keys().collect::<Vec<_>>(), of_server.keys().collect::<Vec<_>>());
    let (mut both, mut others) = (rights(&of_client), rights(&of_server));
    assert_eq!(both.len(), 2, "{of_client:?}");
    others.reverse();
    assert_eq!(both, others, "what one writes the other one reads");
    both.sort();
    assert_eq!(both, ["r--s", "rw-s"]);
    let ends = [client.pid(), server.pid()];
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut looked = 0;
    for pid in pids.filter(|pid| !ends.contains(pid)) {
        let Some(mapped) = outboxes(pid) else { continue };
        looked += 1;
        let shared = mapped.keys().any(|file| of_client.contains_key(file));
        assert!(!shared, "process {pid} has the link's memory mapped");
    }
    assert!(looked >= 2, "neither the coordinator nor this process was looked at");
    // The coordinator keeps one of each, by which the kernel says who holds it.
    for (pid, kept) in [(client.pid(), 0), (server.pid(), 0), (host.coordinator.pid(), 2)] {
        assert_eq!(Held::by(pid).descriptors_of("partywall-outbox"), kept, "process {pid}");
    }
}

#[test]
fn a_link_without_memory_fails_alone() {
    let _alone = alone();
    let host = Host::open();
    let _server = host.start(SERVER, &[]);
    host.until_served();
    let mut client = host.start(CLIENT, &["--mode", "cramped"]);
    let why = client.line();
    let (count, why) = why.split_once(" links: ").unwrap();
    let count: usize = count.parse().unwrap();
    assert!((2..20).contains(&count), "{count} links in 4 MiB");
    assert!(why.contains("mmap") && why.contains("Cannot allocate memory"), "{why}");
    client.ready();
    // Of the one that failed the coordinator keeps nothing.
    let end = Instant::now() + Duration::from_secs(10);
    let open = || {
        let links = partywall::operator::links(Some(&host.socket)).unwrap();
        links.iter().filter(|link| link.open).count()
    };
    while open() != count + 1 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(open(), count + 1);
}
