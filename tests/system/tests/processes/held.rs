//! What looks for things that are left behind finds them.

use std::os::fd::AsFd;

use partywall_testkit::{Held, Host, alone};

#[test]
fn whatever_a_process_holds_more_is_found() {
    let _alone = alone();
    let host = Host::open();
    let pid = std::process::id();
    let (before, files) = (Held::by(pid), host.left_in_files());
    assert_eq!(Held::by(pid).beyond(&before), [""; 0]);
    let geometry = partywall_abi::layout::Geometry::WIDE;
    let memory = partywall_shm::memory::create(geometry).unwrap();
    let found = Held::by(pid).beyond(&before);
    assert!(found.len() == 1 && found[0].contains("partywall-outbox"), "{found:?}");
    let mapped = partywall_shm::memory::adopt(memory.writer.as_fd(), geometry).unwrap();
    drop(memory);
    let found = Held::by(pid).beyond(&before);
    assert!(found.len() == 1 && found[0].ends_with("mapped outboxes"), "{found:?}");
    drop(mapped);
    let pair = partywall_shm::socket::pair().unwrap();
    assert_eq!(Held::by(pid).beyond(&before), ["2 of socket"]);
    drop(pair);
    assert_eq!(Held::by(pid).beyond(&before), [""; 0]);
    std::fs::write(host.socket.with_file_name("forgotten"), "").unwrap();
    assert_ne!(host.left_in_files(), files);
}
