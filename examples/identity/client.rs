//! One program with three roles. What it may do depends on who the policy says it is, and not on what
//! it says of itself.

use examples::notes_client::NotesClient;
use examples::{Note, ReadRequest};
use tonic::Code;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let connected = partywall::Channel::connect("partywall:///notes").await;
    match std::env::args().nth(1).as_deref() {
        Some("writer") => writer(NotesClient::new(connected?)).await,
        Some("reader") => reader(NotesClient::new(connected?)).await,
        // One who may call nothing gets no link at all.
        Some("stranger") => match connected {
            Err(error) if error.code() == Code::PermissionDenied => {
                println!("no link: {error}");
                Ok(())
            }
            other => Err(format!("a stranger is to be denied, and has {other:?}").into()),
        },
        _ => Err("write the role: writer, reader or stranger".into()),
    }
}

async fn writer(mut notes: NotesClient<partywall::Channel>) -> Result<()> {
    // The author that a caller names itself does not count.
    let note = Note { text: "mind the gap".into(), author: "somebody else".into() };
    notes.write(note).await?;
    println!("written");
    Ok(())
}

async fn reader(mut notes: NotesClient<partywall::Channel>) -> Result<()> {
    let note = notes.read(ReadRequest {}).await?.into_inner();
    println!("`{}`, by {}", note.text, note.author);
    match notes.write(Note::default()).await {
        Err(status) if status.code() == Code::PermissionDenied => {
            println!("denied: {}", status.message());
            Ok(())
        }
        other => Err(format!("a reader is not to write, and has {other:?}").into()),
    }
}
