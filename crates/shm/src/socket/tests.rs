use super::*;
use rustix::process::PidfdFlags;

#[test]
fn a_packet_carries_descriptors_and_its_sender() {
    let (a, b) = pair().unwrap();
    pass_credentials(b.as_fd()).unwrap();
    send(a.as_fd(), b"hello", &[a.as_fd(), b.as_fd()]).unwrap();
    let mut buffer = [0; 16];
    let p = receive(b.as_fd(), &mut buffer, false).unwrap();
    assert_eq!((&buffer[..p.len], p.fds.len(), p.truncated), (&b"hello"[..], 2, false));
    let me = std::process::id();
    assert_eq!(p.credentials.unwrap().pid, me);
    let mine = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    assert!(alive(mine.as_fd()));
    if let Some(pidfd) = p.pidfd {
        assert_ne!(same_process(pidfd.as_fd(), mine.as_fd()), Some(false));
    }
}

/// Sends a packet with as many copies of one descriptor.
fn send_copies(socket: &OwnedFd, fd: &OwnedFd, copies: usize) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let many = vec![fd.as_fd(); copies];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
    let data = [io::IoSlice::new(b"x")];
    rustix::net::sendmsg(socket, &data, &mut ancillary, SendFlags::empty())?;
    Ok(())
}

#[test]
fn every_descriptor_of_a_packet_comes_to_the_receiver() {
    let (a, b) = pair().unwrap();
    pass_credentials(b.as_fd()).unwrap();
    send_copies(&a, &a, PACKET_FDS).unwrap();
    let p = receive(b.as_fd(), &mut [0; 4], false).unwrap();
    assert_eq!((p.fds.len(), p.truncated), (PACKET_FDS, false));
    assert!(p.credentials.is_some());
}

#[test]
fn a_socket_that_refuses_descriptors_takes_none() {
    let (a, b) = pair().unwrap();
    if refuse_descriptors(b.as_fd()) {
        let errno = rustix::io::Errno::PERM.raw_os_error();
        assert_eq!(send_copies(&a, &a, 1).unwrap_err().raw_os_error(), Some(errno));
    } else {
        send_copies(&a, &a, 1).unwrap();
        assert_eq!(receive(b.as_fd(), &mut [0; 4], false).unwrap().fds.len(), 1);
    }
    send(a.as_fd(), b"data", &[]).unwrap();
    assert_eq!(receive(b.as_fd(), &mut [0; 4], false).unwrap().len, 4);
}

#[test]
fn a_lingering_descriptor_is_closed_elsewhere() {
    let (slow, _other) = lingering();
    let (ours, theirs) = pair().unwrap();
    let start = Instant::now();
    assert!(discard(vec![slow]));
    assert!(discard(vec![theirs]));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    // The second one does not wait for the first.
    assert!(wait_readable(ours.as_fd(), start + Duration::from_millis(1500)).unwrap());
}

#[test]
fn more_unwanted_descriptors_than_the_bound_are_reported() {
    let (ours, theirs) = pair().unwrap();
    let many = (0..=UNWANTED).map(|_| theirs.try_clone().unwrap()).collect();
    drop(theirs);
    assert!(!discard(many));
    assert!(wait_readable(ours.as_fd(), Instant::now() + Duration::from_secs(10)).unwrap());
}

#[test]
fn what_the_peer_has_not_received_is_known() {
    let (a, b) = pair().unwrap();
    assert_eq!(unread(a.as_fd()).unwrap(), 0);
    send(a.as_fd(), b"hello", &[]).unwrap();
    assert!(unread(a.as_fd()).unwrap() > 0);
    receive(b.as_fd(), &mut [0; 8], false).unwrap();
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

/// A descriptor whose closing takes two seconds while the other one is there.
fn lingering() -> (OwnedFd, OwnedFd) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut out = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&out, Some(Duration::from_secs(2))).unwrap();
    out.set_nonblocking(true).unwrap();
    while out.write(&[0; 65536]).is_ok() {}
    (out.into(), other.into())
}

#[test]
fn a_bell_with_a_descriptor_ends_the_link_and_holds_nobody_up() {
    for kernel_helps in [true, false] {
        let (a, b) = pair().unwrap();
        let mut link = LinkSocket::new(b);
        if kernel_helps {
            link.refuse_descriptors().unwrap();
        }
        for _ in 0..3 {
            ring(a.as_fd()).unwrap();
        }
        assert_eq!(link.drain(100).unwrap(), 3);
        for _ in 0..3 {
            ring(a.as_fd()).unwrap();
        }
        assert_eq!(link.drain(2).unwrap(), 2);
        let (slow, _other) = lingering();
        let sent = send(a.as_fd(), b"x", &[slow.as_fd()]);
        // And one more, which stays unread.
        let again = send(a.as_fd(), b"x", &[slow.as_fd()]);
        assert_eq!(sent.is_err(), link.plain);
        assert_eq!(again.is_err(), link.plain);
        let start = Instant::now();
        if link.plain {
            assert_eq!(link.drain(100).unwrap(), 1);
            drop(a);
            let end = link.drain(100).unwrap_err();
            assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
            continue;
        }
        // The link's is the last one.
        drop(slow);
        assert_eq!(link.drain(100).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(link);
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    }
}

#[test]
fn an_empty_packet_hides_no_descriptor() {
    for with_descriptor in [false, true] {
        let (a, b) = pair().unwrap();
        let (slow, _other) = lingering();
        let fds = [slow.as_fd()];
        send(a.as_fd(), b"", if with_descriptor { &fds } else { &[] }).unwrap();
        send(a.as_fd(), b"x", &fds).unwrap();
        drop(slow);
        let start = Instant::now();
        let mut link = LinkSocket::new(b);
        let refused = link.refuse_descriptors();
        if refused.is_ok() {
            // A kernel that cannot: then it is seen when bells are drained.
            link.drain(100).unwrap_err();
        }
        assert!(!link.plain);
        drop(link);
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    }
}

#[test]
fn a_full_socket_is_no_error_and_holds_more_than_the_unread_bells() {
    let (a, b) = pair().unwrap();
    for _ in 0..10_000 {
        ring(a.as_fd()).unwrap();
    }
    assert!(drain(b.as_fd(), 10_000).unwrap() > 4 * limits::UNREAD_BELLS);
}

#[test]
fn what_was_not_handed_over_is_refused() {
    assert!(inherited(0).is_err());
    assert!(inherited(1_000_000).is_err());
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(inherited(file.as_raw_fd()).is_err());
}
