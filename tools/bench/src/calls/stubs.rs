//! The generated stubs, and the loops that measure them over any transport.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::task::{JoinSet, LocalSet};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, StdError};
use tonic::{Request, Response, Status, Streaming};

use crate::case::{Mode, Op};
use crate::error::Result;
use crate::meter::{self, Meter};
use crate::row::Figures;
use crate::seat::Seat;
use crate::words::count::answer;

/// Generated from `proto/bench.proto`.
#[allow(missing_docs, reason = "generated")]
pub mod proto {
    tonic::include_proto!("partywall.bench.v1");
}

pub use proto::bench_client::BenchClient;
pub use proto::bench_server::{Bench, BenchServer};

/// The service every gRPC contender runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service;

#[tonic::async_trait]
impl Bench for Service {
    async fn echo(&self, request: Request<proto::Blob>) -> Result<Response<proto::Blob>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn ends(&self, request: Request<proto::Blob>) -> Result<Response<proto::Blob>, Status> {
        let ends = meter::ends(&request.into_inner().body)
            .ok_or_else(|| Status::invalid_argument("too short"))?;
        Ok(Response::new(proto::Blob { body: Bytes::copy_from_slice(&ends) }))
    }

    async fn total(
        &self,
        request: Request<proto::Blob>,
    ) -> Result<Response<proto::Answer>, Status> {
        Ok(Response::new(count(Op::Total, &request.into_inner())))
    }

    async fn counts(
        &self,
        request: Request<proto::Blob>,
    ) -> Result<Response<proto::Answer>, Status> {
        Ok(Response::new(count(Op::Counts, &request.into_inner())))
    }

    type ChatStream = Streaming<proto::Blob>;

    async fn chat(
        &self,
        request: Request<Streaming<proto::Blob>>,
    ) -> Result<Response<Self::ChatStream>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn drain(
        &self,
        request: Request<Streaming<proto::Blob>>,
    ) -> Result<Response<proto::Answer>, Status> {
        let mut blobs = request.into_inner();
        let mut total = 0;
        while blobs.message().await?.is_some() {
            total += 1;
        }
        Ok(Response::new(proto::Answer { total, ..proto::Answer::default() }))
    }
}

fn count(op: Op, text: &proto::Blob) -> proto::Answer {
    let answer = answer(op, &text.body);
    proto::Answer { total: answer.total, distinct: answer.distinct, checksum: answer.checksum }
}

/// The service with room for any text.
pub fn service() -> BenchServer<Service> {
    BenchServer::new(Service)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// What stubs can send their requests through.
pub trait Transport:
    GrpcService<
        Body,
        Error: Into<StdError>,
        ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
    >
{
}

impl<T> Transport for T where
    T: GrpcService<
            Body,
            Error: Into<StdError>,
            ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
        >
{
}

/// Measures the case of `seat` over `transport`.
pub async fn measure(transport: impl Transport + Clone + 'static, seat: &Seat) -> Result<Figures> {
    let (client, meter) = (BenchClient::new(transport), seat.meter()?);
    match seat.case().mode {
        Some(Mode::Pipelined) => pipelined(client, meter).await,
        Some(Mode::Bulk) => bulk(client, meter).await,
        _ => one_by_one(client, meter).await,
    }
}

async fn echo(client: &mut BenchClient<impl Transport>, request: &[u8]) -> Result<Bytes> {
    let blob = proto::Blob { body: Bytes::copy_from_slice(request) };
    Ok(client.echo(blob).await?.into_inner().body)
}

/// Measures calls that each wait for their reply.
pub async fn one_by_one(mut client: BenchClient<impl Transport>, meter: Meter) -> Result<Figures> {
    meter.one_by_one_async(async |request: &[u8]| echo(&mut client, request).await).await
}

/// Measures long requests with short replies. The client gets its buffer back from the message once
/// the call is over.
async fn bulk(client: BenchClient<impl Transport>, mut meter: Meter) -> Result<Figures> {
    let mut client = client.max_encoding_message_size(usize::MAX);
    let mut request = BytesMut::from(&meter.long_request()[..]);
    loop {
        meter.stamp(&mut request);
        let body = request.freeze();
        let begun = meter.now();
        let reply = client.ends(proto::Blob { body: body.clone() }).await?.into_inner().body;
        let ended = meter.now();
        meter.check_ends(&body, &reply)?;
        request = body.try_into_mut().map_err(|_| "a message is still held")?;
        if !meter.lap(begun, ended) {
            return Ok(meter.figures());
        }
    }
}

/// Measures a full window: as many tasks as calls may be in flight, each of which makes one call
/// after the other.
async fn pipelined<T>(client: BenchClient<T>, meter: Meter) -> Result<Figures>
where
    T: Transport + Clone + 'static,
{
    let (window, size) = (meter.window(), meter.size());
    let shared = Rc::new(RefCell::new(meter));
    let tasks = LocalSet::new();
    let mut callers = JoinSet::new();
    for _ in 0..window {
        let (mut client, meter) = (client.clone(), Rc::clone(&shared));
        let caller = async move {
            let mut request = vec![0; size];
            loop {
                let seq = meter.borrow_mut().fill(&mut request);
                let reply = echo(&mut client, &request).await?;
                let mut meter = meter.borrow_mut();
                meter.check(seq, &reply)?;
                if !meter.answered(1) {
                    return Result::<()>::Ok(());
                }
            }
        };
        callers.spawn_local_on(caller, &tasks);
    }
    // The sample ends with the first caller that sees its end, or that fails.
    tasks.run_until(callers.join_next()).await.ok_or("nobody calls")???;
    Ok(shared.borrow().figures())
}
