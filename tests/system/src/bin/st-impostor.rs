//! An impostor: it has a socket that another process connected, and answers for that one.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use partywall_abi::control::Message;
use partywall_shm::socket;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stdin = std::io::stdin();
    let mut buffer = vec![0; 4096];
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut next = || -> Result<Option<Message>, Box<dyn std::error::Error>> {
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
