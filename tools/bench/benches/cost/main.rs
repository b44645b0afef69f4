//! So many calls, for tools that count: one thread, one process, one runtime, and no spinning.
//!
//! ```sh
//! export RUSTFLAGS='--cfg rustix_use_libc'
//! cargo bench -p partywall-bench --bench cost --no-run --target-dir target/cost
//! valgrind --tool=callgrind target/cost/release/deps/cost-HASH native 3200
//! valgrind --tool=callgrind target/cost/release/deps/cost-HASH native 640
//! ```
//!
//! The difference of two runs is what the calls between cost: both sides together. Without the flag rustix
//! asks the kernel where the vDSO is, which valgrind does not map.
//!
//! | way | what is counted |
//! |---|---|
//! | `native`, `ordinary` | unary calls, with stubs of partywall-build or of tonic-prost-build |
//! | `stream` | messages of one call, each sent once the one before has come back |
//! | `stream-one-way` | messages of one call, sent as fast as they are taken; the service counts them |
//!
//! Streams have the stubs of partywall-build. A second argument is how many calls or messages there are,
//! `AT-ONCE` as a third one how many calls are under way, which share them.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes of a message.
const SIZE: usize = 32;

/// Stubs by both generators, with the same service.
macro_rules! stubs {
    ($module:ident, $file:expr) => {
        mod $module {
            use super::*;

            #[allow(missing_docs, unreachable_pub, dead_code)]
            mod pb {
                include!(concat!(env!("OUT_DIR"), $file));
            }
            use pb::bench_client::BenchClient;
            use pb::bench_server::{Bench, BenchServer};
            use pb::{Answer, Blob};
            use tonic::{Request, Response, Status, Streaming};

            struct Service;

            #[tonic::async_trait]
            impl Bench for Service {
                async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
                    Ok(Response::new(request.into_inner()))
                }

                async fn ends(&self, _: Request<Blob>) -> Result<Response<Blob>, Status> {
                    Err(Status::unimplemented("not here"))
                }

                async fn total(&self, _: Request<Blob>) -> Result<Response<Answer>, Status> {
                    Err(Status::unimplemented("not here"))
                }

                async fn counts(&self, _: Request<Blob>) -> Result<Response<Answer>, Status> {
                    Err(Status::unimplemented("not here"))
                }

                type ChatStream = Streaming<Blob>;

                async fn chat(
                    &self,
                    request: Request<Streaming<Blob>>,
                ) -> Result<Response<Self::ChatStream>, Status> {
                    Ok(Response::new(request.into_inner()))
                }

                type PassStream = Streaming<Blob>;

                async fn pass(
                    &self,
                    _: Request<Streaming<Blob>>,
                ) -> Result<Response<Self::PassStream>, Status> {
                    Err(Status::unimplemented("not here"))
                }

                async fn drain(
                    &self,
                    request: Request<Streaming<Blob>>,
                ) -> Result<Response<Answer>, Status> {
                    let mut blobs = request.into_inner();
                    let mut total = 0;
                    while blobs.message().await?.is_some() {
                        total += 1;
                    }
                    Ok(Response::new(Answer { total, ..Answer::default() }))
                }
            }

            pub(super) type Client = BenchClient<partywall::Channel>;

            /// Has so many callers go on at once.
            pub(super) async fn run<F>(at_once: usize, caller: impl Fn(Client) -> F)
            where
                F: Future<Output = ()> + Send + 'static,
            {
                let server = partywall::Server::builder().add_service(BenchServer::new(Service));
                let client = BenchClient::new(server.in_process().expect("a channel"));
                let callers: JoinSet<()> = (0..at_once).map(|_| caller(client.clone())).collect();
                callers.join_all().await;
            }

            pub(super) async fn unary(mut client: Client, calls: usize) {
                for _ in 0..calls {
                    let answer = client.echo(blob()).await.expect("an answer");
                    assert_eq!(answer.into_inner().body.len(), SIZE);
                }
            }

            pub(super) fn blob() -> Blob {
                Blob { body: Bytes::copy_from_slice(&[7; SIZE]) }
            }
        }
    };
}

stubs!(native, "/native/partywall.bench.v1.rs");
stubs!(ordinary, "/partywall.bench.v1.rs");

/// Messages that go there and back, one after the other.
async fn stream(mut client: native::Client, messages: usize) {
    let (next, blobs) = mpsc::channel(1);
    let echoes = client.chat(ReceiverStream::new(blobs)).await;
    let mut echoes = echoes.expect("an answer").into_inner();
    for _ in 0..messages {
        next.send(native::blob()).await.expect("a call under way");
        let echo = echoes.message().await.expect("no error").expect("a message");
        assert_eq!(echo.body.len(), SIZE);
    }
    drop(next);
    assert!(echoes.message().await.expect("no error").is_none());
}

/// Messages that go there only.
async fn stream_one_way(mut client: native::Client, messages: usize) {
    let blobs = tokio_stream::iter((0..messages).map(|_| native::blob()));
    let answer = client.drain(blobs).await.expect("an answer").into_inner();
    assert_eq!(answer.total, messages as u64);
}

/// Every way.
const WAYS: [&str; 4] = ["native", "ordinary", "stream", "stream-one-way"];

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let way = arguments.next();
    let ways = way.as_deref().map_or(WAYS.to_vec(), |way| vec![way]);
    let mut number = |usual| arguments.next().map_or(usual, |n| n.parse().expect("a number"));
    let (calls, at_once): (usize, usize) = (number(64), number(1));
    let each = calls / at_once;
    partywall::allow_spinning(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for way in ways {
            match way {
                "native" => native::run(at_once, |client| native::unary(client, each)).await,
                "ordinary" => ordinary::run(at_once, |client| ordinary::unary(client, each)).await,
                "stream" => native::run(at_once, |client| stream(client, each)).await,
                "stream-one-way" => {
                    native::run(at_once, |client| stream_one_way(client, each)).await
                }
                other => panic!("{other}: ways are {}", WAYS.join(", ")),
            }
        }
    });
}
