//! A client to be killed, or to be a load, or to be measured.

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Parser, ValueEnum};
use partywall::{Channel, Endpoint, Route, blocking};
use partywall_interop::Counts;
use partywall_interop::cases::{self, BARE_ANSWERED, BARE_ORDINARY, Env, LAYERED_ANSWERED, Stubs};
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{SimpleRequest, SimpleResponse};
use partywall_interop::service::DELAY_MS;
use partywall_system_tests::{Blocking, Caller, FLOOD, Load, UNARY, is_answer, request};
use tower::Service;

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket; else the one that was handed over.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// What to do.
    #[arg(long)]
    mode: Mode,
    /// Links to open.
    #[arg(long, default_value_t = 1)]
    links: usize,
    /// Whether unary calls are by native stubs.
    #[arg(long)]
    native: bool,
    /// Whether the messages of a flood are long enough for parcels.
    #[arg(long)]
    long: bool,
    /// Where to keep a byte that says whether a call is under way, for who kills this process.
    #[arg(long)]
    in_flight: Option<PathBuf>,
}

/// Says in a file whether a call is under way: `1` or `0`, changed only when that changes.
struct InFlight {
    calls: AtomicUsize,
    file: Option<File>,
}

impl InFlight {
    fn new(path: Option<&Path>) -> std::io::Result<Self> {
        Ok(Self { calls: AtomicUsize::new(0), file: path.map(File::create).transpose()? })
    }

    fn begin(&self) {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            self.write(b"1");
        }
    }

    fn end(&self) {
        if self.calls.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.write(b"0");
        }
    }

    fn write(&self, byte: &[u8]) {
        if let Some(file) = &self.file {
            file.write_all_at(byte, 0).expect("one byte of a file");
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Calls without end, 16 at a time, every answer checked.
    Flood,
    /// Calls until the end of its input, 16 at a time, of which each is made again while the service cannot
    /// be had; prints by which route answers come whenever that is another one, and at last how many calls
    /// there were, and how often one was made again.
    Persist,
    /// Calls without end by the blocking channel.
    Blocking,
    /// Opens links, calls twice on each, prints `ready`, sleeps.
    Idle,
    /// As idle, and begins a message that it does not finish.
    Half,
    /// On each link 1,024 calls that send all but the last byte of a message of 4 MiB; prints `ready`
    /// when they have begun.
    Hoard,
    /// As hoard, but with the last byte, in requests that do not end.
    Keep,
    /// On each link 1,024 calls of 30,000 bytes whose handlers wait for a minute; prints `ready` when the
    /// tasks for them are there.
    Crowd,
    /// Opens links until memory is short, prints why, and then, with memory again, `ready`.
    Cramped,
    /// For each number on a line of input: 300 calls with so many bytes, prints their median in
    /// nanoseconds.
    Measure,
    /// The same by the blocking channel.
    MeasureBlocking,
    /// Fifty calls, every answer checked.
    Few,
    /// Sixteen calls whose handlers stay; prints how all have ended, in one line.
    Stay,
    /// A link, at once or not at all.
    Once,
    /// Has the server open itself to other processes of its user.
    Open,
    /// Makes the server fail in every way, and calls it again each time.
    Fail,
    /// Calls a handler that computes for long, with a deadline of ten milliseconds, twenty times; prints how
    /// many microseconds after that each has come back.
    Late,
    /// The same by the blocking channel. At last calls a handler that never ends, with a deadline of twenty
    /// seconds; prints how that has ended, and after how many microseconds.
    LateBlocking,
    /// Prints what each end of a link says that protects it, of a link of tasks and of a blocking one.
    Security,
    /// Every interoperability case, of a server that is `--probed`; fails with those that did not
    /// hold.
    Interop,
    /// By native stubs the cases for a server that is `--native`; fails with those that did not hold, or when
    /// a call has not gone the native way that could.
    Bare,
    /// The same with the other cases, of a server that is `--probed`.
    Layered,
}

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let in_flight = InFlight::new(arguments.in_flight.as_deref())?;
    match arguments.mode {
        Mode::Blocking => block(&arguments, &in_flight),
        Mode::Cramped => cramp(arguments.socket.as_deref()),
        Mode::Flood => runtime.block_on(flood(&arguments, in_flight)),
        Mode::Persist => runtime.block_on(persist(&arguments)),
        Mode::Stay => runtime.block_on(stay(&arguments)),
        Mode::Idle | Mode::Half => runtime.block_on(idle(&arguments)),
        Mode::Hoard => runtime.block_on(hoard(&arguments, 1)),
        Mode::Keep => runtime.block_on(hoard(&arguments, 0)),
        Mode::Crowd => runtime.block_on(crowd(&arguments)),
        Mode::Once => runtime.block_on(once(arguments.socket.as_deref())),
        Mode::Open => runtime.block_on(open(&arguments)),
        Mode::Few => runtime.block_on(few(&arguments)),
        Mode::Fail => runtime.block_on(fail(&arguments)),
        Mode::Late => runtime.block_on(async {
            let mut client = arguments.caller().await?;
            let call = async |asked| Ok(client.call(asked).await?.into_inner());
            late(call, tokio::time::sleep).await
        }),
        Mode::LateBlocking => {
            let mut caller = arguments.blocking()?;
            without_a_runtime(late(async |asked| caller.call(asked), pause))?;
            without_a_runtime(cut_off(async |asked| caller.call(asked)))
        }
        Mode::Security => security(&runtime, arguments.socket.as_deref()),
        Mode::Interop | Mode::Bare | Mode::Layered => {
            runtime.block_on(interop(arguments.socket.as_deref(), arguments.mode))
        }
        Mode::Measure => runtime.block_on(async {
            let mut client = arguments.caller().await?;
            measure(async |asked| Ok(client.call(asked).await?.into_inner())).await
        }),
        Mode::MeasureBlocking => {
            let mut caller = arguments.blocking()?;
            without_a_runtime(measure(async |asked| caller.call(asked)))
        }
    }
}

impl Arguments {
    fn load(&self) -> Load {
        if self.long { Load::Parcels } else { Load::Records }
    }

    fn stubs(&self) -> Stubs {
        if self.native { Stubs::Native } else { Stubs::Tonics }
    }

    /// A caller on a link of its own.
    async fn caller(&self) -> Result<Caller, Error> {
        Ok(Caller::new(self.stubs(), connect(self.socket.as_deref()).await?))
    }

    /// One without a runtime, as soon as somebody serves. Its calls fail when nobody does any more.
    fn blocking(&self) -> Result<Blocking, Error> {
        let channel = connect_blocking_for_once(self.socket.as_deref())?;
        Ok(Blocking::new(self.stubs(), channel))
    }
}

type Asked = tonic::Request<SimpleRequest>;

/// What a call comes to.
type Answer = Result<SimpleResponse, tonic::Status>;

/// Runs what waits for nothing but on its own thread.
fn without_a_runtime<T>(does: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(does).poll(&mut context) {
        std::task::Poll::Ready(done) => done,
        std::task::Poll::Pending => unreachable!("it waits for a runtime"),
    }
}

async fn pause(time: Duration) {
    std::thread::sleep(time);
}

async fn connect(socket: Option<&Path>) -> Result<Channel, Error> {
    connect_to(socket, true).await
}

/// A channel whose calls fail at once when nobody serves any more.
async fn connect_for_once(socket: Option<&Path>) -> Result<Channel, Error> {
    let begin = std::time::Instant::now();
    loop {
        match connect_to(socket, false).await {
            Err(_) if begin.elapsed() < Duration::from_secs(30) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            done => return done,
        }
    }
}

fn endpoint(socket: Option<&Path>) -> Endpoint {
    let endpoint = Endpoint::from_static("partywall:///test");
    match socket {
        Some(socket) => endpoint.coordinator(socket),
        None => endpoint,
    }
}

async fn connect_to(socket: Option<&Path>, wait_for_ready: bool) -> Result<Channel, Error> {
    let endpoint = endpoint(socket).wait_for_ready(wait_for_ready);
    Ok(endpoint.connect_timeout(Duration::from_secs(30)).connect().await?)
}

async fn once(socket: Option<&Path>) -> Result<(), Error> {
    endpoint(socket).connect_timeout(Duration::from_secs(1)).connect().await?;
    Ok(())
}

fn ready() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()
}

async fn flood(arguments: &Arguments, in_flight: InFlight) -> Result<(), Error> {
    let channel = connect_for_once(arguments.socket.as_deref()).await?;
    ready()?;
    let in_flight = Arc::new(in_flight);
    let mut calls = tokio::task::JoinSet::new();
    for lane in 0..FLOOD {
        let mut client = Caller::new(arguments.stubs(), channel.clone());
        let (in_flight, load) = (Arc::clone(&in_flight), arguments.load());
        calls.spawn(async move {
            for n in 0.. {
                let asked = request(lane * 1000 + n, load.bytes(n));
                in_flight.begin();
                let answer = client.call(asked.clone()).await;
                in_flight.end();
                match answer {
                    Ok(reply) => assert!(is_answer(&asked, reply.get_ref()), "a wrong answer"),
                    Err(status) => panic!("{status}"),
                }
            }
        });
    }
    while let Some(ended) = calls.join_next().await {
        ended?;
    }
    Ok(())
}

/// How long a call of `persist` is made again before it counts as lost.
const PERSISTENCE: Duration = Duration::from_secs(10);

async fn persist(arguments: &Arguments) -> Result<(), Error> {
    let channel = connect_for_once(arguments.socket.as_deref()).await?;
    let (calls, again) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (tell, mut told) = tokio::sync::watch::channel(false);
    std::thread::spawn(move || {
        let _read = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _nobody_calls = tell.send(true);
    });
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..FLOOD {
        let mut client = Caller::new(arguments.stubs(), channel.clone());
        let (calls, again) = (Arc::clone(&calls), Arc::clone(&again));
        let (load, over) = (arguments.load(), told.clone());
        lanes.spawn(async move {
            for n in 0.. {
                if *over.borrow() {
                    break;
                }
                let asked = request(lane * 1000 + n, load.bytes(n));
                let begin = Instant::now();
                let reply = loop {
                    match client.call(asked.clone()).await {
                        Ok(reply) => break reply,
                        Err(status) if status.code() == tonic::Code::Unavailable => {
                            assert!(begin.elapsed() < PERSISTENCE, "a call is lost: {status}");
                            again.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                        Err(status) => panic!("a call is lost: {status}"),
                    }
                };
                assert!(is_answer(&asked, reply.get_ref()), "a wrong answer");
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut before = String::new();
    while !*told.borrow() {
        let route = match channel.route() {
            Some(Route::Ring { .. }) => "ring".to_owned(),
            Some(Route::Http2 { url, security }) => format!("{url} {}", security.seal),
            _ => before.clone(),
        };
        // Only once a call has come back by it.
        let so_far = calls.load(Ordering::Relaxed);
        let _changed = tokio::time::timeout(Duration::from_millis(20), told.changed()).await;
        if route != before && calls.load(Ordering::Relaxed) > so_far + FLOOD as usize {
            println!("{route}");
            before = route;
        }
    }
    while let Some(ended) = lanes.join_next().await {
        ended?;
    }
    println!("calls {} again {}", calls.load(Ordering::Relaxed), again.load(Ordering::Relaxed));
    Ok(())
}

async fn open(arguments: &Arguments) -> Result<(), Error> {
    let mut asking = tonic::Request::new(request(1, 32));
    asking.metadata_mut().insert("x-fail", "open".parse()?);
    arguments.caller().await?.call(asking).await?;
    Ok(())
}

/// Sixteen calls, after one that makes sure that the others can go natively.
async fn stay(arguments: &Arguments) -> Result<(), Error> {
    let mut caller =
        Caller::new(arguments.stubs(), connect_for_once(arguments.socket.as_deref()).await?);
    caller.call(request(0, 32)).await?;
    let mut calls = tokio::task::JoinSet::new();
    for n in 1..=16 {
        let mut caller = caller.clone();
        let mut staying = tonic::Request::new(request(n, 32));
        staying.metadata_mut().insert("x-fail", "stay".parse()?);
        calls.spawn(async move { caller.call(staying).await.map_err(|status| status.code()) });
    }
    let ends: Vec<_> = calls.join_all().await.into_iter().map(|end| end.map(drop)).collect();
    println!("{ends:?}");
    Ok(())
}

fn block(arguments: &Arguments, in_flight: &InFlight) -> Result<(), Error> {
    let channel = blocking::Channel::connect(endpoint(arguments.socket.as_deref()))?;
    let mut caller = Blocking::new(arguments.stubs(), channel);
    ready()?;
    for n in 0.. {
        let asked = request(n, arguments.load().bytes(n));
        in_flight.begin();
        let answer = caller.call(asked.clone());
        in_flight.end();
        assert!(is_answer(&asked, &answer?), "a wrong answer");
    }
    Ok(())
}

fn connect_blocking_for_once(socket: Option<&Path>) -> Result<blocking::Channel, Error> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match blocking::Channel::connect(endpoint(socket)) {
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            done => return Ok(done?),
        }
    }
}

fn cramp(socket: Option<&Path>) -> Result<(), Error> {
    let connect = || blocking::Channel::connect(endpoint(socket));
    let call = |channel: &mut blocking::Channel| -> Result<bool, Error> {
        let asked = request(1, 100_000);
        let reply: SimpleResponse =
            channel.unary(UNARY, tonic::Request::new(asked.clone()))?.into_inner();
        Ok(is_answer(&asked, &reply))
    };
    let mut links = vec![connect_blocking_for_once(socket)?];
    assert!(call(&mut links[0])?, "a wrong answer");
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).ok_or("no VmSize")?;
    let used: u64 = size.trim().trim_end_matches(" kB").parse()?;
    // Room for some links, not for many.
    limit_memory(Some(used * 1024 + (4 << 20)))?;
    let failed = loop {
        match connect() {
            Ok(link) if links.len() < 100 => links.push(link),
            other => break other,
        }
    };
    limit_memory(None)?;
    let why = failed.err().ok_or("memory was never short")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} links: {why}", links.len())?;
    // Those it has are whole, and with memory there are more.
    links.push(connect()?);
    for link in &mut links {
        assert!(call(link)?, "a wrong answer");
    }
    writeln!(out, "ready")?;
    out.flush()?;
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn limit_memory(bytes: Option<u64>) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::As).maximum;
    Ok(setrlimit(Resource::As, Rlimit { current: bytes.or(maximum), maximum })?)
}

async fn idle(arguments: &Arguments) -> Result<(), Error> {
    let mut channels = Vec::new();
    for n in 0..arguments.links {
        let channel = connect(arguments.socket.as_deref()).await?;
        let mut caller = Caller::new(arguments.stubs(), channel.clone());
        for _ in 0..2 {
            caller.call(request(n as u64, 32)).await?;
        }
        channels.push(channel);
    }
    let half = matches!(arguments.mode, Mode::Half);
    let mut call = std::pin::pin!(async {
        if half {
            // A message of 1,000 bytes of which 10 come, and then nothing.
            let half = HalfBody { first: Some(Bytes::from_static(b"\0\0\0\x03\xe8half a mes")) };
            let mut request = http::Request::new(tonic::body::Body::new(half));
            *request.uri_mut() = http::Uri::from_static(UNARY);
            let _never = channels[0].clone().call(request).await;
        }
        std::future::pending::<()>().await;
    });
    // The half message is on its way before this process says that it is ready.
    tokio::time::timeout(Duration::from_millis(50), &mut call).await.unwrap_err();
    ready()?;
    call.await;
    Ok(())
}

/// Calls that send a message of 4 MiB but for the last `missing` bytes, and do not end.
async fn hoard(arguments: &Arguments, missing: usize) -> Result<(), Error> {
    const LEN: usize = 4 << 20;
    let request = prost::Message::encode_to_vec(&request(1, LEN - 64));
    let mut message = vec![0];
    message.extend_from_slice(&u32::try_from(request.len())?.to_be_bytes());
    message.extend_from_slice(&request);
    message.truncate(message.len() - missing);
    let message = Bytes::from(message);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..arguments.links {
        let channel = connect(arguments.socket.as_deref()).await?;
        for _ in 0..1024 {
            let body = HalfBody { first: Some(message.clone()) };
            let mut request = http::Request::new(tonic::body::Body::new(body));
            *request.uri_mut() = http::Uri::from_static(UNARY);
            calls.spawn(channel.clone().call(request));
        }
    }
    ready()?;
    while calls.join_next().await.is_some() {}
    std::future::pending().await
}

async fn crowd(arguments: &Arguments) -> Result<(), Error> {
    let asked = SimpleRequest { response_size: 1, ..request(1, 30_000) };
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..arguments.links {
        let mut caller = arguments.caller().await?;
        caller.call(request(1, 32)).await?;
        for _ in 0..1024 {
            let (mut caller, mut waiting) = (caller.clone(), tonic::Request::new(asked.clone()));
            waiting.metadata_mut().insert(DELAY_MS, "60000".parse()?);
            calls.spawn(async move { caller.call(waiting).await });
        }
    }
    ready()?;
    while calls.join_next().await.is_some() {}
    std::future::pending().await
}

async fn call_fifty_times(call: &mut impl AsyncFnMut(Asked) -> Answer) -> Result<(), Error> {
    for n in 0..50 {
        let asked = request(n, 32);
        let reply = call(tonic::Request::new(asked.clone())).await?;
        assert!(is_answer(&asked, &reply), "a wrong answer");
    }
    Ok(())
}

async fn few(arguments: &Arguments) -> Result<(), Error> {
    let mut client = arguments.caller().await?;
    call_fifty_times(&mut async |asked| Ok(client.call(asked).await?.into_inner())).await
}

/// Calls a handler that fails in a caller's thread, until it has; how that has ended, and after what time.
async fn failing(
    call: &mut impl AsyncFnMut(Asked) -> Answer,
    how: &str,
    pause: impl AsyncFn(Duration),
) -> Result<(tonic::Status, Duration), Error> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let mut failing = tonic::Request::new(request(1, 32));
        failing.metadata_mut().insert("x-fail", how.parse()?);
        failing.set_timeout(Duration::from_secs(20));
        let start = Instant::now();
        let status = call(failing).await.err().ok_or("it has answered")?;
        // The service's reader was awake and has taken the call itself: it is to sleep first.
        if status.code() != tonic::Code::Aborted {
            return Ok((status, start.elapsed()));
        }
        if Instant::now() > end {
            return Err("no call has gone in".into());
        }
        pause(Duration::from_millis(5)).await;
    }
}

async fn cut_off(mut call: impl AsyncFnMut(Asked) -> Answer) -> Result<(), Error> {
    let (status, took) = failing(&mut call, "spin", pause).await?;
    println!("cut off {:?} {}", status.code(), took.as_micros());
    Ok(())
}

async fn fail(arguments: &Arguments) -> Result<(), Error> {
    let mut client = arguments.caller().await?;
    let mut call = async |asked| Ok(client.call(asked).await?.into_inner());
    for how in ["abort", "overflow", "spin", "exit"] {
        call_fifty_times(&mut call).await?;
        let (status, took) = failing(&mut call, how, tokio::time::sleep).await?;
        let mut next = tonic::Request::new(request(2, 32));
        next.set_timeout(Duration::from_secs(20));
        let start = Instant::now();
        call(next).await?;
        let mut out = std::io::stdout().lock();
        let (code, again) = (status.code(), start.elapsed());
        writeln!(out, "{how}: {code:?} after {took:?}, the next call works after {again:?}")?;
        out.flush()?;
    }
    Ok(())
}

async fn late(
    mut call: impl AsyncFnMut(Asked) -> Answer,
    pause: impl AsyncFn(Duration),
) -> Result<(), Error> {
    for (how, deadline, times) in [("burn", 10, 20), ("sleep", 60, 10)] {
        let deadline = Duration::from_millis(deadline);
        for _ in 0..times {
            call_fifty_times(&mut call).await?;
            // The service's reader sleeps then, and would be visited.
            pause(Duration::from_millis(5)).await;
            let mut hurried = tonic::Request::new(request(1, 32));
            hurried.metadata_mut().insert("x-fail", how.parse()?);
            hurried.set_timeout(deadline);
            let start = Instant::now();
            let status = call(hurried).await.err().ok_or("it has answered")?;
            let took = start.elapsed();
            assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
            println!("late {how} {}", took.saturating_sub(deadline).as_micros());
        }
    }
    call_fifty_times(&mut call).await
}

fn security(runtime: &tokio::runtime::Runtime, socket: Option<&Path>) -> Result<(), Error> {
    let asking = || -> Result<_, Error> {
        let mut asking = tonic::Request::new(request(1, 32));
        asking.metadata_mut().insert("x-fail", "security".parse()?);
        Ok(asking)
    };
    let said = |end: &str, callers: partywall::Security, status: Option<tonic::Status>| {
        println!("{end} caller {callers}");
        println!("{end} service {}", status.ok_or("it has answered")?.message());
        Ok::<(), Error>(())
    };
    let ask = async {
        let channel = connect(socket).await?;
        let route = channel.route().ok_or("no route")?;
        let status = TestServiceClient::new(channel).unary_call(asking()?).await.err();
        said("task", route.security(), status)
    };
    runtime.block_on(ask)?;
    let mut channel = blocking::Channel::connect(endpoint(socket))?;
    let status = channel.unary::<_, SimpleResponse>(UNARY, asking()?).err();
    said("blocking", channel.server().ok_or("no link")?.security(), status)
}

async fn interop(socket: Option<&Path>, mode: Mode) -> Result<(), Error> {
    let channel = connect(socket).await?;
    let at = socket.map(Path::to_path_buf);
    let again = move || {
        let socket = at.clone();
        async move { connect(socket.as_deref()).await.map_err(|e| e.to_string()) }
    };
    let env = Env::remote(channel, again).names_itself("partywall/1");
    let natively = |native| Counts { native, ordinary: 0 };
    let (stubs, cases, wanted) = match mode {
        Mode::Bare => (Stubs::Native, cases::bare(), natively(BARE_ANSWERED)),
        Mode::Layered => (Stubs::Native, cases::layered(), natively(LAYERED_ANSWERED)),
        _ => {
            let cases = cases::bare().into_iter().chain(cases::layered()).collect();
            let ordinary = BARE_ANSWERED + LAYERED_ANSWERED;
            (Stubs::Tonics, cases, Counts { native: 0, ordinary })
        }
    };
    let env = env.by(stubs);
    let failed = cases::run("case", cases, &env).await;
    let mut texts: Vec<_> = failed.iter().map(ToString::to_string).collect();
    let caller = env.counts();
    if caller != wanted {
        texts.push(format!("caller: {caller:?}, not {wanted:?}"));
    }
    if let Mode::Bare = mode {
        // One request is too long for any handler.
        let (service, most) = (Counts::of(&partywall::operator::links(socket)?), BARE_ORDINARY + 1);
        if !cases::are_bare(service, most) {
            texts.push(format!("service: {service:?}, not {most} ordinary"));
        }
    }
    if texts.is_empty() { Ok(()) } else { Err(texts.join("\n").into()) }
}

async fn measure(mut call: impl AsyncFnMut(Asked) -> Answer) -> Result<(), Error> {
    ready()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let bytes = words.next().ok_or("how many bytes?")?.parse()?;
        let within = words.next().map(|ms| ms.parse().map(Duration::from_millis)).transpose()?;
        let mut times = Vec::new();
        for n in 0..300 {
            let asked = request(n, bytes);
            let mut hurried = tonic::Request::new(asked.clone());
            within.into_iter().for_each(|within| hurried.set_timeout(within));
            let start = Instant::now();
            let reply = call(hurried).await?;
            times.push(start.elapsed());
            assert!(is_answer(&asked, &reply), "a wrong answer");
        }
        times.sort();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", times[times.len() / 2].as_nanos())?;
        out.flush()?;
    }
    Ok(())
}

/// A body that gives a part of its message and then nothing for ever.
struct HalfBody {
    first: Option<Bytes>,
}

impl http_body::Body for HalfBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        match self.first.take() {
            Some(first) => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(first)))),
            None => std::task::Poll::Pending,
        }
    }
}
