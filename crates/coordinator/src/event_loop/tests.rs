//! The loop as a value.

use std::os::fd::AsFd;

use super::*;
use crate::trust::Clock;
use rustix::net::SocketType;

/// Who stopped the coordinator waited for whatever a process had sent that nobody had taken in.
#[test]
fn a_listener_that_goes_waits_for_nothing_that_was_sent_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let kind = SocketType::SEQPACKET;
    let (socket, _path) = partywall_shm::listen::listen(&path, kind, 4, |_| ()).unwrap();
    let begin = Begin {
        listener: Some(Lingering::new(socket)),
        operators: None,
        handed: true,
        policy: Policy::parse("test", "").unwrap(),
        trust: Trust::for_this_run("test", Clock::now()).unwrap(),
        file: None,
        audit: None,
        metrics: false,
        confines: false,
    };
    let (event_loop, _orders) = EventLoop::new(begin).unwrap();
    let linger = Duration::from_secs(5);
    let (slow, _other) = partywall_testkit::lingering(linger).unwrap();
    let sender = partywall_testkit::Conversation::connect(&path).unwrap();
    socket::send(sender.as_fd(), b"x", &[slow.as_fd()]).unwrap();
    drop((slow, sender));
    let start = Instant::now();
    drop(event_loop);
    assert!(start.elapsed() < linger / 2, "{:?}", start.elapsed());
}
