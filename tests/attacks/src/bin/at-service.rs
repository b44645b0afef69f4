//! A service to be attacked: gRPC's test service by the stubs of either generator; `/a.B/C`, whose handler
//! never answers and takes nothing; and `/a.T/T`, which takes what is attached, and says in the message of
//! its status what that was, and `/a.T/Back`, which gives it back. It serves until its input ends.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use clap::Parser;
use partywall::parcel::{Attach as _, Attachment, Owned};
use partywall_attacks::{BACK, clock, taken};
use partywall_interop::proto::{SimpleRequest, SimpleResponse};
use partywall_interop::service::{Handle, native, test_service_with};
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::UnaryService;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
    /// The name to serve.
    #[arg(long, default_value = "test")]
    name: String,
    /// By the stubs of partywall-build.
    #[arg(long)]
    native: bool,
    /// Calls that one link may have open.
    #[arg(long)]
    streams: Option<u32>,
    /// Where the seed of each request is written before it is answered, a line each.
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// It ends when it asks for the time of day.
    #[arg(long)]
    without_clock: bool,
    /// It asks for the time of day when it is called.
    #[arg(long)]
    asks_the_time: bool,
}

/// Takes calls of `/a.B/C` and answers none.
#[derive(Clone)]
struct Never;

impl tonic::server::NamedService for Never {
    const NAME: &'static str = "a.B";
}

impl tower::Service<http::Request<Body>> for Never {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Kept;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Kept {
        Kept(request)
    }
}

/// A request that is kept and not read, and what is attached to it.
struct Kept(#[expect(dead_code, reason = "it is kept")] http::Request<Body>);

impl Future for Kept {
    type Output = Result<http::Response<Body>, Infallible>;

    fn poll(self: std::pin::Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

/// Takes what is attached to calls of `/a.T/T`, and gives back what is to those of `/a.T/Back`.
#[derive(Clone)]
struct Takes;

impl tonic::server::NamedService for Takes {
    const NAME: &'static str = "a.T";
}

impl tower::Service<http::Request<Body>> for Takes {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() == BACK {
            let mut server = tonic::server::Grpc::new(ProstCodec::default());
            return Box::pin(async move { Ok(server.unary(GivesBack, request).await) });
        }
        let said = taken(Request::from_http(request).attachments());
        Box::pin(std::future::ready(Ok(Status::new(Code::Aborted, said).into_http())))
    }
}

struct GivesBack;

impl UnaryService<SimpleRequest> for GivesBack {
    type Response = SimpleResponse;
    type Future = std::future::Ready<Result<Response<SimpleResponse>, Status>>;

    fn call(&mut self, request: Request<SimpleRequest>) -> Self::Future {
        std::future::ready(back(request))
    }
}

fn back(mut request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
    let came = request.attachments().map_err(|why| Status::invalid_argument(why.to_string()))?;
    let mut response = Response::new(SimpleResponse::default());
    for one in came {
        match one {
            Attachment::Lease(lease) => {
                for word in lease.words() {
                    word.fetch_add(1, Relaxed);
                }
                response.attach(lease);
            }
            Attachment::Owned(view) => {
                let mut copy =
                    Owned::new(view.len()).map_err(|why| Status::internal(why.to_string()))?;
                let read = copy.write(|bytes| view.read_at(0, bytes));
                read.map_err(|why| Status::aborted(why.to_string()))?;
                response.attach(&copy);
            }
            other => response.attach(other),
        }
    }
    Ok(response)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    partywall_attacks::log_to_stderr();
    let open = |path| OpenOptions::new().create(true).append(true).open(path);
    let ledger = arguments.ledger.map(open).transpose()?;
    let asks = arguments.asks_the_time;
    let handle = Handle::default().before(move |request| {
        if let (Some(ledger), Some(seed)) = (&ledger, request.metadata().get("x-seed")) {
            let line = [seed.as_bytes(), b"\n"].concat();
            std::io::Write::write_all(&mut &*ledger, &line).expect("a line of a file");
        }
        if asks {
            let _of_day = std::time::SystemTime::now();
        }
        Box::pin(std::future::ready(Ok(())))
    });
    let mut server = partywall::Server::builder().coordinator(arguments.socket);
    if let Some(most) = arguments.streams {
        server = server.max_concurrent_streams(most);
    }
    if arguments.without_clock {
        clock::forbid()?;
    }
    let router = match arguments.native {
        true => server.add_service(native(handle)),
        false => server.add_service(test_service_with(handle)),
    };
    let router = router.add_service(Never).add_service(Takes);
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(|| {
        let _read = std::io::stdin().read_to_end(&mut Vec::new());
        let _serves_no_more = tell.send(());
    });
    let end = async {
        let _told = told.await;
    };
    router.serve_with_shutdown(&arguments.name, end).await?;
    println!("ended");
    std::io::stdout().flush()?;
    Ok(())
}
