//! A process that is put into a container step by step: it says `ready`, then does what each line of its
//! input says, and answers each with a line.
//!
//! ```text
//! connect    connects, and waits until it is asked who it is: challenged
//! prove      answers: the policy's names for it, or why it is refused
//! list       asks for the list of links: listed, or why it is refused
//! crowd N    connects so often, or until it is refused, and says nothing: how often it was asked
//! ```

use std::io::BufRead;
use std::path::PathBuf;

use clap::Parser;
use partywall_abi::control::{ListMessage, Message, SessionMessage};
use partywall_testkit::{Conversation, Result, proof};

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
}

fn main() -> Result<()> {
    let Arguments { socket } = Arguments::parse();
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
    Ok(match conversation.next()?.0 {
        Message::Session(SessionMessage::Welcome { you }) => you.principals.join(","),
        Message::Session(SessionMessage::Refused { text, .. }) => text,
        Message::List(ListMessage::Listed { .. }) => "listed".into(),
        other => format!("{other:?}"),
    })
}
