//! An impostor. Without arguments, it has a socket that another process connected, and answers for
//! that one. With a coordinator's path and a program, it connects, waits until it is asked who it
//! is, and becomes that program, which answers.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use partywall_abi::control::Message;
use partywall_shm::socket;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(path), Some(program)) => connect_and_become(&path, &program),
        _ => answer(),
    }
}

fn connect_and_become(path: &str, program: &str) -> Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    if !socket::wait_readable(socket.as_fd(), Instant::now() + Duration::from_secs(5))? {
        return Err("no challenge".into());
    }
    Err(Command::new(program).stdin(Stdio::from(socket)).exec().into())
}

fn answer() -> Result<()> {
    let stdin = std::io::stdin();
    let mut buffer = vec![0; 4096];
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut next = || -> Result<Option<Message>> {
        while Instant::now() < deadline {
            match socket::receive(stdin.as_fd(), &mut buffer, false) {
                Ok(packet) if packet.len == 0 => return Ok(None),
                Ok(packet) => return Ok(Some(Message::decode(&buffer[..packet.len])?)),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return Ok(None),
            }
        }
        Err("no answer in time".into())
    };
    let Some(Message::Challenge { version, nonce }) = next()? else {
        return Err("no challenge".into());
    };
    socket::send(stdin.as_fd(), &Message::Proof { version, nonce }.encode(), &[])?;
    match next()? {
        None => println!("refused"),
        Some(message) => println!("taken for somebody: {message:?}"),
    }
    Ok(())
}
