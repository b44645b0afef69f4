//! Partywall's parcels, attached to unary calls of native stubs: the client's block with the request, the
//! server's with the answer. The client's calls are those of blocking channels, one for each client; the
//! server has one thread, or one for each CPU where there are several clients.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use partywall::blocking::Channel;
use partywall::parcel::{Attach, Attachment, Draft, Lease, Owned};
use tokio::runtime::Builder;
use tonic::{Request, Response, Status, Streaming};

use super::chunks::{greeted, greeting};
use super::drive::{End, measure};
use super::turn::{PAGE, Reader, Turn};
use super::{clients, sleeping_here_and_contained};
use crate::calls::partywall::{coordinate, endpoint, serve_on};
use crate::calls::stubs::native::proto::bench_blocking::BenchClient;
use crate::calls::stubs::native::proto::bench_server::{Bench, BenchServer};
use crate::calls::stubs::native::proto::{Answer, Blob};
use crate::calls::tonic_net::runtime;
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Sealed parcels: a fresh one for each block.
pub const SEALED: Contender = Contender::new(
    Kind::Ours,
    "partywall-sealed",
    "sealed parcels attached to calls of native stubs, a fresh one for each block",
    sleeping_here_and_contained,
    |seat| call(seat, Way::Sealed),
)
.attended(coordinate)
.served(|seat| serve(seat, Way::Sealed));

/// Owned parcels: each side has one, which it sets again and again.
pub const OWNED: Contender = Contender::new(
    Kind::Ours,
    "partywall-owned",
    "owned parcels attached to calls of native stubs, one of each side",
    sleeping_here_and_contained,
    |seat| call(seat, Way::Owned),
)
.attended(coordinate)
.served(|seat| serve(seat, Way::Owned));

/// One lease, which goes back and forth.
pub const LEASE: Contender = Contender::new(
    Kind::Ours,
    "partywall-lease",
    "one lease attached to calls of native stubs, back and forth",
    sleeping_here_and_contained,
    |seat| call(seat, Way::Lease),
)
.attended(coordinate)
.served(|seat| serve(seat, Way::Lease));

#[derive(Clone, Copy)]
enum Way {
    Sealed,
    Owned,
    Lease,
}

/// What one side sets its blocks in.
struct Block {
    way: Way,
    bytes: usize,
    owned: Option<Owned>,
    lease: Option<Lease>,
}

impl Block {
    fn new(way: Way, bytes: usize) -> Self {
        Self { way, bytes, owned: None, lease: None }
    }

    /// Sets all bytes for `turn`: what is to be attached.
    fn set(&mut self, turn: Turn) -> Result<Attachment> {
        match self.way {
            Way::Sealed => {
                let mut draft = Draft::new(self.bytes)?;
                turn.fill(&mut draft);
                Ok(draft.seal()?.into())
            }
            Way::Owned => {
                let owned = match &mut self.owned {
                    Some(owned) => owned,
                    none => none.insert(Owned::new(self.bytes)?),
                };
                owned.write(|block| turn.fill(block));
                Ok((&*owned).into())
            }
            Way::Lease => {
                let mut lease = match self.lease.take() {
                    Some(lease) => lease,
                    None => Lease::new(self.bytes)?,
                };
                for number in 0..lease.len() / PAGE {
                    let word = u64::from_ne_bytes(turn.word(number));
                    lease.fill_at(number * PAGE, PAGE, word);
                }
                Ok(lease.into())
            }
        }
    }

    /// Reads what has come.
    fn read(&mut self, came: Attachment, reader: &mut Reader) -> Result<()> {
        match came {
            Attachment::Sealed(sealed) => reader.read(&sealed),
            Attachment::Owned(view) => {
                view.read(|words| reader.read_words(words.len(), |number| words.get(number)))?;
            }
            Attachment::Lease(lease) => {
                let words = lease.words();
                reader.read_words(words.len(), |number| words[number].load(Relaxed));
                self.lease = Some(lease);
            }
            other => return Err(format!("something else has come: {other:?}").into()),
        }
        Ok(())
    }
}

/// The one thing that is attached.
fn sole(attachments: Vec<Attachment>) -> Result<Attachment> {
    let [sole] = <[Attachment; 1]>::try_from(attachments).map_err(|all| format!("{all:?}"))?;
    Ok(sole)
}

fn call(seat: &mut Seat, way: Way) -> Result<Figures> {
    let (case, endpoint) = (seat.case(), endpoint(seat)?);
    let make = |client| {
        let endpoint = endpoint.clone();
        move || {
            let calls = BenchClient::new(Channel::connect(&endpoint)?);
            let (block, greeting) = (Block::new(way, case.bytes()), greeting(case.bytes(), client));
            Ok(Caller { calls, block, greeting, next: None })
        }
    };
    measure(seat, (0..clients(&case)).map(make).collect())
}

struct Caller {
    calls: BenchClient,
    block: Block,
    greeting: Bytes,
    /// What the next call is made with.
    next: Option<Attachment>,
}

impl End for Caller {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        self.next = Some(self.block.set(turn)?);
        Ok(())
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        let mut request = Request::new(Blob { body: self.greeting.clone() });
        request.attach(self.next.take().ok_or("no block is set")?);
        let mut response = self.calls.echo(request)?;
        self.block.read(sole(response.attachments()?)?, reader)?;
        Ok(true)
    }
}

fn serve(seat: &mut Seat, way: Way) -> Result<()> {
    seat.note_idle()?;
    let several = clients(&seat.case()) > 1;
    let threads =
        if several { Builder::new_multi_thread().enable_all().build()? } else { runtime()? };
    serve_on(&threads, seat, BenchServer::new(Passing { way, clients: Mutex::default() }))
}

/// The server's side of a client.
struct Callee {
    block: Block,
    turn: Turn,
}

/// Answers each block with one.
struct Passing {
    way: Way,
    clients: Mutex<HashMap<usize, Arc<Mutex<Callee>>>>,
}

impl Passing {
    fn pass(&self, mut request: Request<Blob>) -> Result<Response<Blob>> {
        let came = sole(request.attachments()?)?;
        let (bytes, client) = greeted(&request.get_ref().body)?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let callee = clients.entry(client).or_insert_with(|| {
            let (block, turn) = (Block::new(self.way, bytes), Turn::first(client));
            Arc::new(Mutex::new(Callee { block, turn }))
        });
        let callee = Arc::clone(callee);
        drop(clients);
        let mut callee = callee.lock().unwrap_or_else(PoisonError::into_inner);
        let Callee { block, turn } = &mut *callee;
        let mut reader = Reader::new(*turn, bytes);
        block.read(came, &mut reader)?;
        let answer = turn.next();
        *turn = answer.next();
        let mut response = Response::new(Blob::default());
        response.attach(block.set(if reader.is_right() { answer } else { answer.spoilt() })?);
        Ok(response)
    }
}

#[tonic::async_trait]
impl Bench for Passing {
    async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        self.pass(request).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    async fn ends(&self, _: Request<Blob>) -> Result<Response<Blob>, Status> {
        Err(other())
    }

    async fn total(&self, _: Request<Blob>) -> Result<Response<Answer>, Status> {
        Err(other())
    }

    async fn counts(&self, _: Request<Blob>) -> Result<Response<Answer>, Status> {
        Err(other())
    }

    type ChatStream = Streaming<Blob>;

    async fn chat(&self, _: Request<Streaming<Blob>>) -> Result<Response<Streaming<Blob>>, Status> {
        Err(other())
    }

    type PassStream = Streaming<Blob>;

    async fn pass(&self, _: Request<Streaming<Blob>>) -> Result<Response<Streaming<Blob>>, Status> {
        Err(other())
    }

    async fn drain(&self, _: Request<Streaming<Blob>>) -> Result<Response<Answer>, Status> {
        Err(other())
    }
}

fn other() -> Status {
    Status::unimplemented("this server passes blocks only")
}
