//! What links cost that do nothing.

use std::time::Duration;

use partywall_system_tests::{Stubs, with};
use partywall_testkit::{Host, Process, alone};

use crate::{CLIENT, SERVER};

#[test]
fn a_hundred_idle_links_make_no_context_switch() {
    let _alone = alone();
    let host = Host::open();
    let server = host.start(SERVER, &["--native"]);
    let idle = |stubs| host.start(CLIENT, &with(stubs, &["--mode", "idle", "--links", "25"]));
    let mut clients: Vec<Process> =
        [Stubs::Tonics, Stubs::Native, Stubs::Tonics, Stubs::Native].map(idle).into();
    clients.iter_mut().for_each(Process::ready);
    std::thread::sleep(Duration::from_millis(500));
    let count = || -> Vec<u64> {
        clients.iter().chain([&server]).map(Process::voluntary_switches).collect()
    };
    let before = count();
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(count(), before, "voluntary context switches of 4 clients and the server");
}
