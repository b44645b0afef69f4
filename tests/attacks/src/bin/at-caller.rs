//! A caller to be attacked, or to tell whether a service still answers. It does what the lines of its
//! input say, and answers each with one line:
//!
//! - `open`: a channel of its own, in place of the one it has; `open`, or why there is none;
//! - `call BYTES [MS]`: a unary call, and how long it may take; `ok` when the answer repeats its request,
//!   else its status;
//! - `seed N`: the same with the number in the request's metadata `x-seed`;
//! - `take`: a call, and what is attached to its answer, or its status;
//! - `give N`: so many calls with a lease and an owned parcel, that come back; how many have not come
//!   back, because their service has ended;
//! - `raw`: a call of `/a.B/C` with one byte for a body, whose answer is not read; its status, or
//!   `answered`.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::Parser;
use partywall::parcel::{Attach as _, Attachment, Lease, Owned};
use partywall::{Channel, Endpoint, blocking};
use partywall_attacks::{BACK, UNARY, clock, is_answer, request, taken};
use partywall_interop::proto::native::test_service_blocking::TestServiceClient as Blocking;
use partywall_interop::proto::native::test_service_client::TestServiceClient as Native;
use partywall_interop::proto::test_service_client::TestServiceClient as Ordinary;
use partywall_interop::proto::{SimpleRequest, SimpleResponse};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
    /// The name to call.
    #[arg(long, default_value = "test")]
    name: String,
    /// By the stubs of partywall-build.
    #[arg(long)]
    native: bool,
    /// On a thread without a runtime.
    #[arg(long)]
    blocking: bool,
    /// It ends when it asks for the time of day.
    #[arg(long)]
    without_clock: bool,
}

enum Caller {
    Ordinary(Channel),
    Native(Channel),
    Blocking(Box<blocking::Channel>),
    BlockingNative(Box<Blocking>),
}

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    partywall_attacks::log_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if arguments.without_clock {
        clock::forbid()?;
    }
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ended = sender.send(line);
        }
    });
    runtime.block_on(tokio::task::LocalSet::new().run_until(async move {
        let mut caller = None;
        while let Some(line) = lines.recv().await {
            let words: Vec<&str> = line.split_whitespace().collect();
            let said = match (&words[..], &mut caller) {
                (["open"], caller) => match open(&arguments).await {
                    Ok(opened) => {
                        *caller = Some(opened);
                        "open".into()
                    }
                    Err(error) => format!("{:?}: {error}", error.code()),
                },
                (["call", bytes, within @ ..], Some(caller)) => {
                    let within = within.first().map_or(Ok(5000), |within| within.parse())?;
                    shown(call(caller, bytes.parse()?, within, None).await)
                }
                (["seed", seed], Some(caller)) => shown(call(caller, 64, 5000, Some(seed)).await),
                (["take"], Some(caller)) => {
                    match answer(caller, Request::new(request(64, 64))).await {
                        Ok(mut answer) => taken(answer.attachments()),
                        Err(status) => shown(Err(status)),
                    }
                }
                (["give", count, bytes @ ..], Some(caller)) => {
                    let bytes = bytes.first().map_or(Ok(50_000), |bytes| bytes.parse())?;
                    give(&arguments, caller, count.parse()?, bytes).await?
                }
                (["raw"], Some(Caller::Ordinary(channel))) => match raw(channel.clone()).await {
                    Ok(answer) => {
                        tokio::task::spawn_local(async move {
                            let _kept = answer;
                            std::future::pending::<()>().await;
                        });
                        "answered".into()
                    }
                    Err(status) => shown(Err(status)),
                },
                _ => return Err(format!("what is `{line}`?").into()),
            };
            println!("{said}");
            std::io::stdout().flush()?;
        }
        Ok(())
    }))
}

async fn open(arguments: &Arguments) -> Result<Caller, partywall::Error> {
    let endpoint = Endpoint::new(format!("partywall:///{}", arguments.name))?;
    let endpoint = endpoint.coordinator(&arguments.socket).connect_timeout(Duration::from_secs(5));
    Ok(match (arguments.blocking, arguments.native) {
        (false, false) => Caller::Ordinary(endpoint.connect().await?),
        (false, true) => Caller::Native(endpoint.connect().await?),
        (true, false) => Caller::Blocking(Box::new(blocking::Channel::connect(&endpoint)?)),
        (true, true) => {
            let channel = blocking::Channel::connect(&endpoint)?;
            Caller::BlockingNative(Box::new(Blocking::new(channel)))
        }
    })
}

async fn call(
    caller: &mut Caller,
    bytes: usize,
    within: u64,
    seed: Option<&str>,
) -> Result<(), Status> {
    let asked = request(bytes as u64, bytes);
    let mut message = Request::new(asked.clone());
    message.set_timeout(Duration::from_millis(within));
    if let Some(seed) = seed {
        message.metadata_mut().insert("x-seed", seed.parse().expect("a number"));
    }
    match is_answer(&asked, answer(caller, message).await?.get_ref()) {
        true => Ok(()),
        false => Err(Status::unknown("a wrong answer")),
    }
}

async fn answer(
    caller: &mut Caller,
    message: Request<SimpleRequest>,
) -> Result<Response<SimpleResponse>, Status> {
    match caller {
        Caller::Ordinary(channel) => Ordinary::new(channel.clone()).unary_call(message).await,
        Caller::Native(channel) => Native::new(channel.clone()).unary_call(message).await,
        Caller::Blocking(channel) => channel.unary::<SimpleRequest, SimpleResponse>(UNARY, message),
        Caller::BlockingNative(client) => client.unary_call(message),
    }
}

/// Each call goes on with the lease that has come back, or a new one of so many bytes.
async fn give(
    arguments: &Arguments,
    caller: &mut Caller,
    count: u64,
    bytes: usize,
) -> Result<String, Error> {
    let (mut owned, mut held, mut lost) = (Owned::new(100_000)?, None, 0);
    for number in 0..count {
        owned.write(|bytes| bytes.fill(number as u8));
        let lease = held.take().map_or_else(|| Lease::new(bytes), Ok)?;
        lease.words().iter().for_each(|word| word.store(number, Relaxed));
        let mut message = Request::new(SimpleRequest::default());
        message.attach(lease);
        message.attach(&owned);
        let answer: Result<Response<SimpleResponse>, Status> = match caller {
            Caller::Ordinary(channel) => {
                let mut client = tonic::client::Grpc::new(channel.clone());
                match client.ready().await {
                    Ok(()) => client.unary(message, BACK.parse()?, ProstCodec::default()).await,
                    Err(error) => Err(error),
                }
            }
            Caller::Blocking(channel) => channel.unary(BACK, message),
            _ => return Err("native stubs have no such method".into()),
        };
        match answer {
            Ok(mut answer) => {
                let came = answer.attachments()?;
                let [Attachment::Lease(lease), Attachment::Owned(copy)] =
                    <[_; 2]>::try_from(came).map_err(|came| format!("{came:?} has come"))?
                else {
                    return Err("something else has come".into());
                };
                let mut copied = vec![0; copy.len()];
                copy.read_at(0, &mut copied)?;
                let right = lease.words().iter().all(|word| word.load(Relaxed) == number + 1);
                if !right || copied != vec![number as u8; 100_000] {
                    return Err(format!("what has come back of call {number} is wrong").into());
                }
                held = Some(lease);
            }
            Err(status) if status.code() == Code::Unavailable => {
                lost += 1;
                while let Err(error) = open(arguments).await.map(|opened| *caller = opened) {
                    eprintln!("no channel now: {error}");
                }
            }
            Err(status) => return Err(format!("call {number}: {status:?}").into()),
        }
    }
    Ok(format!("lost {lost}"))
}

/// The answer's body is with the value.
async fn raw(mut channel: Channel) -> Result<http::Response<tonic::body::Body>, Status> {
    let body = tonic::body::Body::new(http_body_util::Full::new(bytes::Bytes::from_static(b"x")));
    let request = http::Request::post("http://a/a.B/C").body(body).expect("a request");
    std::future::poll_fn(|cx| tower::Service::poll_ready(&mut channel, cx))
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    let answer = tower::Service::call(&mut channel, request).await;
    answer.map_err(|error| Status::from_error(error.into()))
}

fn shown(ended: Result<(), Status>) -> String {
    match ended {
        Ok(()) => "ok".into(),
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    }
}
