//! Who has a socket that another process connected is not that process.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::host::{Host, alone};

#[test]
fn an_impostor_that_answers_for_another_process_is_refused() {
    let _alone = alone();
    let host = Host::new();
    // This process connects, as a victim of an exec would have; the child holds the socket.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(&host.socket).unwrap()).unwrap();
    let mut impostor = Command::new(env!("CARGO_BIN_EXE_st-impostor"))
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    impostor.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(impostor.wait().unwrap().success());
    assert_eq!(said.trim(), "refused");
}
