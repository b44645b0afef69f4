// The service that every contender of gRPC runs, and its client, by the stubs in `proto`.

use bytes::Bytes;
use partywall::parcel::{Attach as _, Attachment, ParcelError};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::proto::bench_client::BenchClient;
use super::proto::bench_server::{Bench, BenchServer};
use super::proto::{Answer, Blob};
use crate::calls::client::{Client, LongClient, TextClient};
use crate::calls::stubs::Transport;
use crate::case::Op;
use crate::error::Result;
use crate::meter;
use crate::transfer::chunks::Answerer;
use crate::words::count::{answer, answer_by_piece};

/// The service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service;

#[tonic::async_trait]
impl Bench for Service {
    async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn ends(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        let ends = meter::ends(&request.into_inner().body)
            .ok_or_else(|| Status::invalid_argument("too short"))?;
        Ok(Response::new(Blob { body: Bytes::copy_from_slice(&ends) }))
    }

    async fn total(&self, request: Request<Blob>) -> Result<Response<Answer>, Status> {
        count(Op::Total, request)
    }

    async fn counts(&self, request: Request<Blob>) -> Result<Response<Answer>, Status> {
        count(Op::Counts, request)
    }

    type ChatStream = Streaming<Blob>;

    async fn chat(
        &self,
        request: Request<Streaming<Blob>>,
    ) -> Result<Response<Self::ChatStream>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type PassStream = ReceiverStream<Result<Blob, Status>>;

    async fn pass(
        &self,
        request: Request<Streaming<Blob>>,
    ) -> Result<Response<Self::PassStream>, Status> {
        let (to, sent) = channel(1);
        tokio::spawn(async move {
            if let Err(status) = pass(request.into_inner(), &to).await {
                // Nobody listens where the client has gone.
                let _ = to.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(sent)))
    }

    async fn drain(&self, request: Request<Streaming<Blob>>) -> Result<Response<Answer>, Status> {
        let mut blobs = request.into_inner();
        let mut total = 0;
        while blobs.message().await?.is_some() {
            total += 1;
        }
        Ok(Response::new(Answer { total, ..Answer::default() }))
    }
}

/// Counts the text in the message, or in the parcel beside it.
fn count(op: Op, mut request: Request<Blob>) -> Result<Response<Answer>, Status> {
    let refused = |error: ParcelError| Status::invalid_argument(error.to_string());
    let answer = match request.attachments().map_err(refused)?.pop() {
        Some(Attachment::Owned(text)) => {
            let read = |at, to: &mut [u8]| Ok(text.read_at(at, to)?);
            answer_by_piece(op, text.len(), read).map_err(|e| Status::internal(e.to_string()))?
        }
        _ => answer(op, &request.get_ref().body),
    };
    let crate::text::Answer { total, distinct, checksum } = answer;
    Ok(Response::new(Answer { total, distinct, checksum }))
}

/// Answers blocks until the client has gone.
async fn pass(
    mut blobs: Streaming<Blob>,
    to: &Sender<Result<Blob, Status>>,
) -> Result<(), Status> {
    let first = blobs.message().await?.unwrap_or_default();
    let answerer = Answerer::new(&first.body);
    let mut answerer = answerer.map_err(|error| Status::invalid_argument(error.to_string()))?;
    while let Some(blob) = blobs.message().await? {
        for body in answerer.take(&blob.body) {
            let sent = to.send(Ok(Blob { body })).await;
            sent.map_err(|_| Status::cancelled("the client has gone"))?;
        }
    }
    Ok(())
}

/// The service with room for any text.
pub fn service() -> BenchServer<Service> {
    BenchServer::new(Service)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// A client with room for any text.
pub fn client<T: Transport>(transport: T) -> BenchClient<T> {
    BenchClient::new(transport)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

impl<T: Transport + Clone + 'static> Client for BenchClient<T> {
    async fn echo(&mut self, body: Bytes) -> Result<Bytes> {
        Ok(BenchClient::echo(self, Blob { body }).await?.into_inner().body)
    }
}

impl<T: Transport + Clone + 'static> LongClient for BenchClient<T> {
    async fn ends(&mut self, body: Bytes) -> Result<Bytes> {
        Ok(BenchClient::ends(self, Blob { body }).await?.into_inner().body)
    }
}

impl<T: Transport> TextClient for BenchClient<T> {
    async fn count(&mut self, op: Op, body: Bytes) -> Result<crate::text::Answer> {
        let reply = match op {
            Op::Total => self.total(Blob { body }).await?,
            Op::Counts => self.counts(Blob { body }).await?,
        };
        let Answer { total, distinct, checksum } = reply.into_inner();
        Ok(crate::text::Answer { total, distinct, checksum })
    }
}
