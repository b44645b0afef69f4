use super::*;
use partywall_testkit::lingering;
use rustix::process::PidfdFlags;

const LINGER: Duration = Duration::from_secs(2);

#[test]
fn a_packet_carries_descriptors_and_its_sender() {
    let (a, b) = pair().unwrap();
    send(a.as_fd(), b"hello", &[a.as_fd(), b.as_fd()]).unwrap();
    let mut buffer = [0; 16];
    let p = receive(b.as_fd(), &mut buffer).unwrap();
    assert_eq!((&buffer[..p.len], p.fds.len(), p.truncated), (&b"hello"[..], 2, false));
    let mut b = Endpoint::new(b);
    b.pass_credentials().unwrap();
    send(a.as_fd(), b"hello", &[]).unwrap();
    let p = b.receive(&mut buffer).unwrap();
    assert_eq!(p.credentials.unwrap().pid, std::process::id());
    let mine = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    assert!(alive(mine.as_fd()));
}

#[test]
fn more_descriptors_than_a_packet_of_ours_has_are_noticed() {
    let (a, b) = pair().unwrap();
    let many = vec![a.as_fd(); limits::CONTROL_FDS];
    send(a.as_fd(), b"x", &many).unwrap();
    let p = receive(b.as_fd(), &mut [0; 4]).unwrap();
    assert_eq!((p.fds.len(), p.stripped), (limits::CONTROL_FDS, false));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(50))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let many = vec![a.as_fd(); 50];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
    let data = [io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&a, &data, &mut ancillary, SendFlags::empty()).unwrap();
    assert!(receive(b.as_fd(), &mut [0; 4]).unwrap().stripped);
}

#[test]
fn an_endpoint_takes_no_descriptors() {
    let (a, b) = pair().unwrap();
    let errno = rustix::io::Errno::PERM.raw_os_error();
    let b = Endpoint::new(b);
    match send(a.as_fd(), b"x", &[a.as_fd()]) {
        Err(e) => assert_eq!((e.raw_os_error(), b.socket.plain), (Some(errno), true)),
        Ok(()) => {
            assert!(!b.socket.plain);
            assert_eq!(b.receive(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}

#[test]
fn on_an_old_kernel_a_packet_with_descriptors_is_never_received() {
    for credentials in [false, true] {
        let (a, b) = pair().unwrap();
        let mut b = Endpoint::of(Lingering::new(b));
        if credentials {
            b.pass_credentials().unwrap();
        }
        send(a.as_fd(), b"data", &[]).unwrap();
        send(a.as_fd(), b"more", &[a.as_fd(), a.as_fd()]).unwrap();
        let mut buffer = [0; 8];
        let p = b.receive(&mut buffer).unwrap();
        assert_eq!((p.len, &buffer[..4], p.stripped), (4, &b"data"[..], false));
        assert_eq!(p.credentials.is_some(), credentials);
        for _ in 0..3 {
            let e = b.receive(&mut buffer).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        }
    }
}

#[test]
fn unreceived_bytes_are_counted() {
    let (a, b) = pair().unwrap();
    assert_eq!(unread(a.as_fd()).unwrap(), 0);
    send(a.as_fd(), b"hello", &[]).unwrap();
    assert!(unread(a.as_fd()).unwrap() > 0);
    receive(b.as_fd(), &mut [0; 8]).unwrap();
    assert_eq!(unread(a.as_fd()).unwrap(), 0);
}

#[test]
fn a_wait_ends_with_the_deadline_or_with_data() {
    let (a, b) = pair().unwrap();
    let start = Instant::now();
    assert!(!wait_readable(b.as_fd(), start + Duration::from_millis(20)).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
    send(a.as_fd(), b"x", &[]).unwrap();
    assert!(wait_readable(b.as_fd(), start + Duration::from_secs(60)).unwrap());
}

#[test]
fn bells_are_counted_and_a_hang_up_is_seen() {
    let (a, b) = pair().unwrap();
    for _ in 0..5 {
        ring(a.as_fd()).unwrap();
    }
    assert_eq!(drain(b.as_fd(), 3).unwrap(), 3);
    assert_eq!(drain(b.as_fd(), 100).unwrap(), 2);
    drop(a);
    assert_eq!(drain(b.as_fd(), 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(ring(b.as_fd()).is_err());
}

#[test]
fn a_bell_with_a_descriptor_ends_the_link_and_holds_nobody_up() {
    for old_kernel in [false, true] {
        let (a, b) = pair().unwrap();
        let link = if old_kernel { Endpoint::of(Lingering::new(b)) } else { Endpoint::new(b) };
        for _ in 0..3 {
            ring(a.as_fd()).unwrap();
        }
        assert_eq!(link.drain(100).unwrap(), 3);
        for _ in 0..3 {
            ring(a.as_fd()).unwrap();
        }
        assert_eq!(link.drain(2).unwrap(), 2);
        let (slow, _other) = lingering(LINGER).unwrap();
        let sent = send(a.as_fd(), b"x", &[slow.as_fd()]);
        // And one more, which stays unread.
        let again = send(a.as_fd(), b"x", &[slow.as_fd()]);
        assert_eq!((sent.is_err(), again.is_err()), (link.socket.plain, link.socket.plain));
        let start = Instant::now();
        if link.socket.plain {
            assert_eq!(link.drain(100).unwrap(), 1);
            drop(a);
            let end = link.drain(100).unwrap_err();
            assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
            continue;
        }
        // The link's is the last one.
        drop(slow);
        assert_eq!(link.drain(1).unwrap(), 1);
        assert_eq!(link.drain(100).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(link);
        assert!(wait_readable(a.as_fd(), start + Duration::from_secs(1)).unwrap());
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    }
}

#[test]
fn an_empty_packet_hides_no_descriptor() {
    let (a, b) = pair().unwrap();
    let b = Endpoint::of(Lingering::new(b));
    let (slow, _other) = lingering(LINGER).unwrap();
    send(a.as_fd(), b"", &[slow.as_fd()]).unwrap();
    drop(slow);
    let start = Instant::now();
    assert_eq!(b.drain(100).unwrap_err().kind(), io::ErrorKind::InvalidData);
    drop(b);
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
}

#[test]
fn a_descriptor_that_is_not_taken_is_closed_elsewhere() {
    let (a, b) = pair().unwrap();
    let (end, other_end) = pair().unwrap();
    let (slow, _other) = lingering(LINGER).unwrap();
    send(other_end.as_fd(), b"x", &[slow.as_fd()]).unwrap();
    drop(slow);
    send(a.as_fd(), b"x", &[end.as_fd()]).unwrap();
    drop(end);
    let packet = receive(b.as_fd(), &mut [0; 4]).unwrap();
    let start = Instant::now();
    drop(packet);
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    assert!(wait_readable(other_end.as_fd(), start + Duration::from_secs(1)).unwrap());
}

#[test]
fn descriptor_without_memory_is_refused() {
    let (a, b) = pair().unwrap();
    send(a.as_fd(), b"x", &[a.as_fd()]).unwrap();
    let packet = receive(b.as_fd(), &mut [0; 4]).unwrap();
    assert!(packet.fds.into_iter().next().unwrap().memory().is_err());
}

#[test]
fn full_socket_is_no_error_and_holds_all_unread_bells() {
    let (a, b) = pair().unwrap();
    for _ in 0..10_000 {
        ring(a.as_fd()).unwrap();
    }
    assert!(drain(b.as_fd(), 10_000).unwrap() > 4 * limits::UNREAD_BELLS);
}

#[test]
fn inherited_descriptor_of_wrong_kind_is_refused() {
    assert!(inherited(0).is_err());
    assert!(inherited(1_000_000).is_err());
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(inherited(file.as_raw_fd()).is_err());
}
