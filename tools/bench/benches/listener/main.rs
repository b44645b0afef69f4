//! Our HTTP/2 listener beside tonic's: ten concurrent callers on one connection over TCP.
//!
//! ```sh
//! cargo bench -p partywall-bench --bench listener
//! ```
//!
//! Each server has a runtime of its own with one thread, the callers share another; the two are
//! measured in turns, and every answer is checked. It prints calls per second and the ratio of each
//! pair of turns, and fails where the ratio's median is shown to be below 0.95: where the upper end
//! of its 95 % interval is.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

#[path = "../pairs/summary.rs"]
mod summary;

/// Generated from `proto/bench.proto`.
#[allow(missing_docs, dead_code, clippy::all, reason = "generated")]
mod proto {
    tonic::include_proto!("partywall.bench.v1");
}

use proto::Blob;
use proto::bench_client::BenchClient;
use proto::bench_server::{Bench, BenchServer};
use summary::summary;

const CALLERS: usize = 10;
/// Calls of each caller in one turn.
const CALLS: usize = 300;
/// Pairs of turns, after some that count for nothing.
const PAIRS: usize = 31;
const WARM_UP: usize = 3;
/// Bytes of a message.
const SIZES: [usize; 2] = [32, 1024];
const WANTED: f64 = 0.95;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy)]
struct Echo;

#[tonic::async_trait]
impl Bench for Echo {
    async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn ends(&self, _: Request<Blob>) -> Result<Response<Blob>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn total(&self, _: Request<Blob>) -> Result<Response<proto::Answer>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn counts(&self, _: Request<Blob>) -> Result<Response<proto::Answer>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    type ChatStream = Streaming<Blob>;

    async fn chat(
        &self,
        _: Request<Streaming<Blob>>,
    ) -> Result<Response<Self::ChatStream>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    type PassStream = Streaming<Blob>;

    async fn pass(
        &self,
        _: Request<Streaming<Blob>>,
    ) -> Result<Response<Self::PassStream>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn drain(&self, _: Request<Streaming<Blob>>) -> Result<Response<proto::Answer>, Status> {
        Err(Status::unimplemented("not measured"))
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

async fn connect(address: SocketAddr) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let start = Instant::now();
    loop {
        match endpoint.connect().await {
            Err(_) if start.elapsed() < Duration::from_secs(10) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            connected => return Ok(connected?),
        }
    }
}

/// Calls per second of one turn.
async fn turn(channel: &Channel, size: usize) -> Result<f64, Error> {
    let start = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let mut client = BenchClient::new(channel.clone());
        callers.spawn(async move {
            let body = Bytes::from(vec![caller as u8; size]);
            for _ in 0..CALLS {
                let answer = client.echo(Blob { body: body.clone() }).await?.into_inner();
                if answer.body != body {
                    return Err(Status::data_loss("a wrong answer"));
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok((CALLERS * CALLS) as f64 / start.elapsed().as_secs_f64())
}

async fn measure(ours: &Channel, tonics: &Channel) -> Result<bool, Error> {
    let mut holds = true;
    for size in SIZES {
        let (mut rates, mut ratios) = ([vec![], vec![]], vec![]);
        for pair in 0..WARM_UP + PAIRS {
            // Who is first has what the other one left: they take turns at that as well.
            let (our_rate, tonics_rate) = if pair % 2 == 0 {
                let first = turn(ours, size).await?;
                (first, turn(tonics, size).await?)
            } else {
                let first = turn(tonics, size).await?;
                (turn(ours, size).await?, first)
            };
            if pair >= WARM_UP {
                rates[0].push(our_rate);
                rates[1].push(tonics_rate);
                ratios.push(our_rate / tonics_rate);
            }
        }
        let [median, low, high] = summary(ratios);
        let [our_rate, tonics_rate] = rates.map(|values| summary(values)[0]);
        let verdict = match () {
            () if low >= WANTED => "pass",
            () if high < WANTED => "FAIL",
            () => "undecided",
        };
        holds &= verdict != "FAIL";
        println!(
            "{size:>5} B: ours {our_rate:>7.0} calls/s, tonic's {tonics_rate:>7.0}; ratio \
             {median:.3} [{low:.3}, {high:.3}], wanted {WANTED}: {verdict}"
        );
    }
    Ok(holds)
}

fn main() -> Result<ExitCode, Error> {
    let (our_server, tonics_server, callers) = (runtime()?, runtime()?, runtime()?);
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    our_server.spawn(partywall::Server::builder().add_service(BenchServer::new(Echo)).serve(free));
    let tonics_address = tonics_server.block_on(async {
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = incoming.local_addr()?;
        let mut server = tonic::transport::Server::builder();
        let router = server.add_service(BenchServer::new(Echo));
        tokio::spawn(router.serve_with_incoming(incoming.with_nodelay(Some(true))));
        Ok::<_, Error>(address)
    })?;
    let measured = callers.spawn(async move {
        let (ours, tonics) = (connect(free).await?, connect(tonics_address).await?);
        measure(&ours, &tonics).await
    });
    let holds = callers.block_on(measured)??;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
