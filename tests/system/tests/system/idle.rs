//! What links cost that do nothing.

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
