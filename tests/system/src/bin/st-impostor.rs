//! An impostor. Without arguments, it has a socket that another process connected, and answers for
//! that one. With a coordinator's path and a program, it connects, waits until it is asked who it
//! is, and becomes that program, which answers.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use partywall_abi::control::{Message, SessionMessage};
use partywall_shm::socket;
use partywall_testkit::{Conversation, PATIENCE, Result, proof};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(path), Some(program)) => connect_and_become(&path, &program),
        _ => answer(),
    }
}

fn connect_and_become(path: &str, program: &str) -> Result<()> {
    let conversation = Conversation::connect(Path::new(path))?;
    if !socket::wait_readable(conversation.as_fd(), Instant::now() + PATIENCE)? {
        return Err("no challenge".into());
    }
    let socket = conversation.as_fd().try_clone_to_owned()?;
    Err(Command::new(program).stdin(Stdio::from(socket)).exec().into())
}

fn answer() -> Result<()> {
    let conversation = Conversation::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let nonce = conversation.challenge()?;
    conversation.say(&proof(nonce))?;
    match conversation.next_or_end()? {
        Some((Message::Session(SessionMessage::Refused { .. }), _)) | None => println!("refused"),
        Some((Message::Session(message), _)) => println!("taken for somebody: {message:?}"),
        Some((message, _)) => println!("not a word on who it is: {message:?}"),
    }
    Ok(())
}
