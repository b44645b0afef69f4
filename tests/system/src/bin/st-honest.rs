//! A program that only wants to work, and says how long that takes. For each number on a line of
//! input it does so many rounds of
//!
//! - `admit`: a new connection to the coordinator, until it is welcome;
//! - `register`: on that, a name of its own (`own`), until it is registered;
//! - `link`: a new link to `test`, until it is open;
//! - `call`: a call on a link that is open all the time, which its service takes the ordinary way as well;
//! - `native`: a call by native stubs on another such link;
//! - `round`: all of these and a pause, as the thread sees it that also connects to who cannot be trusted;
//!
//! and prints, for each of the six, its name and the median, the 99th percentile and the maximum in
//! microseconds, in one line. For a line `burst` with a number it opens so many links to `test` at once,
//! and prints how many microseconds passed until all were open. What fails ends the program.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use partywall::{Channel, Endpoint};
use partywall_abi::control::{Message, RegistryMessage};
use partywall_abi::name::ServiceName;
use partywall_system_tests::{Caller, Stubs, is_answer, request};
use partywall_testkit::Conversation;

/// Between rounds.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
    /// A name whose server cannot be trusted: it is connected to beside all else, again and again, on
    /// the same thread.
    #[arg(long)]
    beside: Option<String>,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(work(arguments)))
}

async fn work(arguments: Arguments) -> Result<(), Error> {
    let mut open = [
        Caller::ordinary(connect(&arguments.socket, true).await?),
        Caller::new(Stubs::Native, connect(&arguments.socket, true).await?),
    ];
    if let Some(name) = arguments.beside.clone() {
        tokio::task::spawn_local(try_again(arguments.socket.clone(), name));
    }
    println!("ready");
    // Input is read on a thread of its own: the runtime's goes on meanwhile.
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ended = sender.send(line);
        }
    });
    while let Some(line) = lines.recv().await {
        if let Some(links) = line.strip_prefix("burst ") {
            println!("burst {}", burst(&arguments.socket, links.parse()?).await?.as_micros());
            continue;
        }
        let mut took: [Vec<Duration>; 6] = Default::default();
        for _ in 0..line.trim().parse()? {
            let start = Instant::now();
            let [admit, register, link, call, native] = round(&arguments.socket, &mut open).await?;
            tokio::time::sleep(PAUSE).await;
            let steps = [admit, register, link, call, native, start.elapsed()];
            took.iter_mut().zip(steps).for_each(|(all, one)| all.push(one));
        }
        let words: Vec<String> = ["admit", "register", "link", "call", "native", "round"]
            .iter()
            .zip(took)
            .map(|(name, took)| figures(name, took))
            .collect();
        println!("{}", words.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn figures(name: &str, mut took: Vec<Duration>) -> String {
    took.sort();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_micros();
    format!("{name} {} {} {}", at(0.5), at(0.99), at(1.0))
}

async fn connect(socket: &Path, wait_for_ready: bool) -> Result<Channel, Error> {
    let endpoint = Endpoint::new("partywall:///test")?.coordinator(socket);
    let endpoint = endpoint.wait_for_ready(wait_for_ready);
    Ok(endpoint.connect_timeout(Duration::from_secs(5)).connect().await?)
}

async fn round(socket: &Path, open: &mut [Caller; 2]) -> Result<[Duration; 5], Error> {
    let path = socket.to_owned();
    let by_hand = tokio::task::spawn_blocking(move || -> Result<_, Error> {
        let start = Instant::now();
        let conversation = Conversation::open(&path)?;
        let admit = start.elapsed();
        let start = Instant::now();
        let name = ServiceName::new("own")?;
        conversation.say(&Message::Registry(RegistryMessage::Register {
            request: 1,
            name,
            places: 1,
        }))?;
        match conversation.next()?.0 {
            Message::Registry(RegistryMessage::Registered { .. }) => Ok((admit, start.elapsed())),
            other => Err(format!("{other:?}").into()),
        }
    });
    let (admit, register) = by_hand.await??;
    let start = Instant::now();
    let channel = connect(socket, false).await?;
    let link = start.elapsed();
    drop(channel);
    let [ordinary, native] = open;
    Ok([admit, register, link, call(ordinary).await?, call(native).await?])
}

async fn call(by: &mut Caller) -> Result<Duration, Error> {
    let (start, asked) = (Instant::now(), request(1, 32));
    let reply = by.call(asked.clone()).await?;
    let took = start.elapsed();
    if !is_answer(&asked, reply.get_ref()) {
        return Err("a wrong answer".into());
    }
    Ok(took)
}

async fn burst(socket: &Path, links: usize) -> Result<Duration, Error> {
    let start = Instant::now();
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..links {
        let socket = socket.to_owned();
        opening.spawn_local(async move { connect(&socket, false).await });
    }
    let open: Result<Vec<Channel>, Error> = opening.join_all().await.into_iter().collect();
    let took = start.elapsed();
    open.map(|_all| took)
}

async fn try_again(socket: PathBuf, name: String) {
    loop {
        let endpoint = Endpoint::new(format!("partywall:///{name}")).expect("a name");
        let connect = endpoint.coordinator(&socket).connect_timeout(Duration::from_millis(200));
        let _whatever_comes = connect.connect().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
