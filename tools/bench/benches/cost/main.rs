//! So many calls, for tools that count: one thread, one process, one runtime, and no spinning.
//!
//! ```sh
//! cargo bench -p partywall-bench --bench cost --no-run
//! valgrind --tool=callgrind target/release/deps/cost-HASH native 3200
//! valgrind --tool=callgrind target/release/deps/cost-HASH native 640
//! ```
//!
//! The difference of two runs is what the calls between cost: both sides together. Ways are `native` (stubs
//! of partywall-build), `ordinary` (of tonic-prost-build) and `stream` (messages there and back, in one call);
//! `AT-ONCE` as a third argument is how many calls are under way.

use bytes::Bytes;
use tokio::task::JoinSet;

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
            use tonic::{Request, Response, Status};

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
            }

            pub(super) async fn run(calls: usize, at_once: usize) {
                let server = partywall::Server::builder().add_service(BenchServer::new(Service));
                let client = BenchClient::new(server.in_process().expect("a channel"));
                let mut callers = JoinSet::new();
                for _ in 0..at_once {
                    let mut client = client.clone();
                    callers.spawn(async move {
                        for _ in 0..calls / at_once {
                            let body = Bytes::copy_from_slice(&[7; 32]);
                            let answer = client.echo(Blob { body }).await.expect("an answer");
                            assert_eq!(answer.into_inner().body.len(), 32);
                        }
                    });
                }
                callers.join_all().await;
            }
        }
    };
}

stubs!(native, "/native/partywall.bench.v1.rs");
stubs!(ordinary, "/partywall.bench.v1.rs");

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let way = arguments.next();
    let mut number = |usual| arguments.next().map_or(usual, |n| n.parse().expect("a number"));
    let (calls, at_once) = (number(64), number(1));
    partywall::allow_spinning(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match way.as_deref() {
            Some("native") => native::run(calls, at_once).await,
            Some("ordinary") => ordinary::run(calls, at_once).await,
            None => {
                native::run(calls, at_once).await;
                ordinary::run(calls, at_once).await;
            }
            Some(other) => panic!("{other}: ways are native and ordinary"),
        }
    });
}
