//! A note that says who has written it. The handler does not ask its caller: a `Peer` is what the
//! kernel and the policy say. The example runs by
//!
//! ```sh
//! cargo run -- up --debug examples/identity/compose.yaml
//! ```

use std::sync::{Mutex, PoisonError};

use examples::notes_server::{Notes, NotesServer};
use examples::{Note, ReadRequest, WriteReply};
use partywall::Peer;
use tonic::{Request, Response, Status};

#[derive(Default)]
struct Service(Mutex<Note>);

#[tonic::async_trait]
impl Notes for Service {
    async fn read(&self, _: Request<ReadRequest>) -> Result<Response<Note>, Status> {
        let note = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Response::new(note))
    }

    async fn write(&self, request: Request<Note>) -> Result<Response<WriteReply>, Status> {
        // Over HTTP/2 there is none: nobody vouches for such a caller.
        let peer = request.extensions().get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| Status::unauthenticated("write over a ring"))?;
        println!("written by {peer}");
        let author = peer.principals().join("+");
        let note = Note { author, ..request.into_inner() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = note;
        Ok(Response::new(WriteReply {}))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = partywall::Server::builder();
    server.add_service(NotesServer::new(Service::default())).serve("notes").await?;
    Ok(())
}
