//! The generated stubs, and the loops that measure them over any transport.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, StdError};
use tonic::{Request, Response, Status};

use crate::case::Op;
use crate::error::Result;
use crate::meter::{self, BATCH, Meter};
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

/// Measures calls that each wait for their reply.
///
/// # Errors
/// Those of the calls.
pub async fn one_by_one<T>(mut client: BenchClient<T>, meter: &mut Meter) -> Result<()>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    if meter.looped() {
        return in_batches(client, meter).await;
    }
    let mut request = vec![0; meter.size()];
    loop {
        let seq = meter.fill(&mut request);
        meter.pace();
        let begun = meter.now();
        let blob = proto::Blob { body: Bytes::copy_from_slice(&request) };
        let reply = client.echo(blob).await?.into_inner().body;
        let ended = meter.now();
        meter.check(seq, &reply)?;
        if !meter.lap(begun, ended) {
            return Ok(());
        }
    }
}

async fn in_batches<T>(mut client: BenchClient<T>, meter: &mut Meter) -> Result<()>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    let size = meter.size();
    let mut requests = vec![0; size * BATCH];
    let mut replies = Vec::with_capacity(BATCH);
    loop {
        let first = meter.fill_batch(&mut requests);
        let begun = meter.now();
        for request in requests.chunks_exact(size) {
            let blob = proto::Blob { body: Bytes::copy_from_slice(request) };
            replies.push(client.echo(blob).await?.into_inner().body);
        }
        let ended = meter.now();
        for (seq, reply) in (first..).zip(replies.drain(..)) {
            meter.check(seq, &reply)?;
        }
        if !meter.batch(begun, ended) {
            return Ok(());
        }
    }
}

/// Measures long requests with short replies. The client gets its buffer back from the message once
/// the call is over.
///
/// # Errors
/// Those of the calls.
pub async fn bulk<T>(client: BenchClient<T>, meter: &mut Meter) -> Result<()>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
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
            return Ok(());
        }
    }
}

/// Measures a full window: as many tasks as calls may be in flight, each of which makes one call
/// after the other.
///
/// # Errors
/// Those of the calls.
pub async fn pipelined<T>(client: BenchClient<T>, meter: Meter) -> Result<Meter>
where
    T: GrpcService<Body> + Clone + 'static,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    let (window, size) = (meter.window(), meter.size());
    let shared = Rc::new(RefCell::new(meter));
    let tasks = tokio::task::LocalSet::new();
    let callers: Vec<_> = (0..window)
        .map(|_| {
            let (mut client, meter) = (client.clone(), Rc::clone(&shared));
            tasks.spawn_local(async move {
                let mut request = vec![0; size];
                loop {
                    let seq = meter.borrow_mut().fill(&mut request);
                    let blob = proto::Blob { body: Bytes::copy_from_slice(&request) };
                    let reply = client.echo(blob).await?.into_inner().body;
                    let mut meter = meter.borrow_mut();
                    meter.check(seq, &reply)?;
                    if !meter.answered(1) {
                        return Result::<()>::Ok(());
                    }
                }
            })
        })
        .collect();
    let ended = tasks.run_until(async {
        // The sample ends with the first caller that sees its end, or that fails.
        let mut callers = callers;
        std::future::poll_fn(|context| {
            for caller in &mut callers {
                let polled = std::pin::Pin::new(caller).poll(context);
                if polled.is_ready() {
                    return polled;
                }
            }
            std::task::Poll::Pending
        })
        .await
    });
    ended.await??;
    drop(tasks);
    Ok(Rc::try_unwrap(shared).map_err(|_| "a caller is still running")?.into_inner())
}
