//! A process that is put into a container step by step: it says `ready`, then does what each line of its
//! input says, and answers each with a line.
//!
//! ```text
//! connect    connects, and waits until it is asked who it is: challenged
//! prove      answers: the policy's names for it, or why it is refused
//! list       asks for the list of links: listed, or why it is refused
//! reload     asks for the policy to be read again: reloaded, or why it is refused
//! gate NAME  asks for the gate of this name's domains to be closed: switched, or why it is refused
//! at PATH    leaves the coordinator, and takes another socket for what follows: left, or why there is none
//! crowd N    connects so often, or until it is refused, and says nothing: how often it was asked
//! ```

use std::io::BufRead;
use std::path::PathBuf;

use clap::Parser;
use partywall_abi::control::{GateMessage, ListMessage, Message, PolicyMessage, SessionMessage};
use partywall_abi::name::ServiceName;
use partywall_testkit::{Conversation, Result, proof};

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
}

fn main() -> Result<()> {
    let Arguments { mut socket } = Arguments::parse();
    let mut challenged = None;
    let mut crowd = Vec::new();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let said = match (line.as_str(), &challenged) {
            ("connect", _) => {
                let conversation = Conversation::connect(&socket)?;
                let nonce = conversation.challenge()?;
                challenged = Some((conversation, nonce));
                "challenged".into()
            }
            ("prove", Some((conversation, nonce))) => {
                conversation.say(&proof(*nonce))?;
                answer(conversation)?
            }
            ("list", Some((conversation, _))) => {
                conversation.say(&Message::List(ListMessage::List { request: 1 }))?;
                answer(conversation)?
            }
            ("reload", Some((conversation, _))) => {
                conversation.say(&Message::Policy(PolicyMessage::Reload { request: 1 }))?;
                answer(conversation)?
            }
            (line, Some((conversation, _))) if line.starts_with("gate ") => {
                let name = ServiceName::new(&line["gate ".len()..])?;
                conversation.say(&GateMessage::Switch { request: 1, name, open: false }.into())?;
                answer(conversation)?
            }
            (line, _) if line.starts_with("at ") => {
                socket = line["at ".len()..].into();
                challenged = None;
                match std::fs::metadata(&socket) {
                    Ok(_) => "left".into(),
                    Err(why) => why.to_string(),
                }
            }
            (line, _) => {
                let count = line.strip_prefix("crowd ").ok_or("no order")?.parse()?;
                while crowd.len() < count {
                    let conversation = Conversation::connect(&socket)?;
                    if conversation.challenge().is_err() {
                        break;
                    }
                    crowd.push(conversation);
                }
                format!("crowd {}", crowd.len())
            }
        };
        println!("{said}");
    }
    Ok(())
}

fn answer(conversation: &Conversation) -> Result<String> {
    let mut next = conversation.next()?.0;
    if let Message::Session(SessionMessage::Operators { .. }) = next {
        next = conversation.next()?.0;
    }
    Ok(match next {
        Message::Session(SessionMessage::Welcome { you }) => you.principals.join(","),
        Message::Session(SessionMessage::Refused { text, .. }) => text,
        Message::List(ListMessage::Listed { .. }) => "listed".into(),
        Message::Policy(PolicyMessage::Reloaded { .. }) => "reloaded".into(),
        Message::Gate(GateMessage::Switched { .. }) => "switched".into(),
        other => format!("{other:?}"),
    })
}
