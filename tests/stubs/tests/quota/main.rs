//! The memory that this process makes for parcels counts against the quota of its account, and the next
//! coordinator hears of it. One test in a process of its own, as all of its memory is counted together.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use partywall::operator;
use partywall::parcel::{Draft, Lease, Owned, ParcelError};
use partywall::{Channel, Endpoint, Server};
use partywall_stubs_tests::ours::frames::Frame;
use partywall_stubs_tests::ours::frames::frames_client::FramesClient;
use partywall_stubs_tests::ours::frames::frames_server::{Frames, FramesServer};
use partywall_testkit::{Host, OPEN};
use tokio_stream::Stream;
use tonic::codegen::Bytes;
use tonic::{Request, Response, Status, Streaming};

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;
/// How long anything may take.
const LONG: Duration = Duration::from_secs(10);

struct Sink;

#[tonic::async_trait]
impl Frames for Sink {
    type PlayStream = std::pin::Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

    async fn turn(&self, frame: Request<Frame>) -> Result<Response<Frame>, Status> {
        let pixels = frame.into_inner().pixels;
        let number = pixels.iter().map(|byte| u64::from(*byte)).sum();
        Ok(Response::new(Frame { number, in_parcel: false, pixels: Bytes::new() }))
    }

    async fn play(&self, _: Request<Frame>) -> Result<Response<Self::PlayStream>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn store(&self, _: Request<Streaming<Frame>>) -> Result<Response<Frame>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }
}

/// A coordinator that lets parcels cross, and accounts have so many bytes of them.
fn host(socket: &Path, bytes: usize) -> Host {
    let policy = OPEN.replace("anyone = ['*']", "anyone = { methods = ['*'], descriptors = 1 }");
    Host::at(socket, &format!("{policy}\n[quota]\nparcel_bytes = {bytes}\n"))
}

/// Why no more memory is made.
fn refused<T: std::fmt::Debug>(made: Result<T, ParcelError>) -> String {
    match made {
        Err(why @ ParcelError::Quota(_)) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

/// What the coordinator says that this process has made.
async fn listed(socket: &Path) -> u64 {
    let socket = socket.to_owned();
    let rows = tokio::task::spawn_blocking(move || operator::instances(Some(&socket)));
    rows.await.unwrap().unwrap().first().map_or(0, |row| row.parcel_bytes)
}

/// Waits until the coordinator says that.
async fn until_listed(socket: &Path, bytes: impl Fn(u64) -> bool) -> u64 {
    let begin = Instant::now();
    loop {
        let listed = listed(socket).await;
        if bytes(listed) {
            return listed;
        }
        assert!(begin.elapsed() < LONG, "{listed}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Calls with so many bytes, and how many parcels the caller has sent since.
async fn parcels_of_calls(socket: &Path, channel: &Channel, calls: usize) -> u64 {
    let sent = || async {
        let socket = socket.to_owned();
        let rows = tokio::task::spawn_blocking(move || operator::links(Some(&socket)));
        let rows = rows.await.unwrap().unwrap();
        rows.iter().filter(|row| row.open).map(|row| row.caller_parcels.parcels).sum::<u64>()
    };
    let before = sent().await;
    let mut client = FramesClient::new(channel.clone());
    for _ in 0..calls {
        let pixels = vec![3; 200 * KIB].into();
        let frame = Frame { number: 1, pixels, in_parcel: false };
        assert_eq!(client.turn(frame).await.unwrap().into_inner().number, 3 * 200 * KIB as u64);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sent().await - before
}

/// What this process has logged.
static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGGED.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How often it was told that messages go as bytes, each time with the remedy.
fn told() -> usize {
    let logged = String::from_utf8(LOGGED.lock().unwrap().clone()).unwrap();
    let told = logged.lines().filter(|line| line.contains("long messages go as bytes"));
    told.inspect(|line| {
        assert!(line.contains("WARN") && line.contains("raise `parcel_bytes`"), "{line}")
    })
    .count()
}

#[tokio::test]
async fn memory_for_parcels_counts_against_its_account() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("coordinator.sock");
    drop(Owned::new(2 * MIB).expect("nobody keeps a quota yet"));
    let first = host(&socket, MIB);
    let server = Server::builder().coordinator(&socket).add_service(FramesServer::new(Sink));
    tokio::spawn(server.serve("test"));
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
    let channel = endpoint.wait_for_ready(true).connect().await.unwrap();

    // What a program makes itself, of each kind.
    for why in [
        refused(Owned::new(2 * MIB)),
        refused(Lease::new(2 * MIB)),
        refused(Draft::new(2 * MIB).map(|draft| draft.len())),
    ] {
        for part in ["parcel: user ", "bytes of parcels", "1048576", "`parcel_bytes`"] {
            assert!(why.contains(part), "{part} in {why}");
        }
    }
    let mut owned = Owned::new(512 * KIB).unwrap();
    owned.write(|bytes| bytes.fill(7));
    refused(Lease::new(512 * KIB));
    let lease = Lease::new(256 * KIB).unwrap();
    let sealed = Draft::new(128 * KIB).unwrap().seal().unwrap();
    let all = (512 + 4 + 256 + 128) * KIB as u64;
    assert_eq!(until_listed(&socket, |bytes| bytes > 0).await, all);

    // Messages go as bytes where there is no memory for them, and in parcels when there is some again.
    let begin = Instant::now();
    while told() == 0 {
        assert_eq!(parcels_of_calls(&socket, &channel, 5).await, 0);
        assert!(begin.elapsed() < LONG, "nobody is told");
    }
    assert_eq!(parcels_of_calls(&socket, &channel, 20).await, 0);
    assert_eq!(told(), 1, "not for each message");
    drop((lease, sealed));
    let begin = Instant::now();
    while parcels_of_calls(&socket, &channel, 2).await == 0 {
        assert!(begin.elapsed() < LONG, "no message in a parcel");
    }

    // The next coordinator hears of what there is, and the last one has less than that.
    let has = listed(&socket).await;
    assert!((516 * KIB as u64..=MIB as u64).contains(&has), "{has}");
    drop(first);
    let second = host(&socket, MIB);
    let again = until_listed(&socket, |bytes| bytes > 0).await;
    assert!((512 * KIB as u64..=has).contains(&again), "{again} of {has}");
    refused(Owned::new(MIB));
    drop(second);
    let third = host(&socket, 64 * KIB);
    let begin = Instant::now();
    while let Ok(made) = Owned::new(1) {
        drop(made);
        assert!(begin.elapsed() < LONG, "the third coordinator has given more than there is");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    refused(Owned::new(1));
    assert_eq!(owned.view().len(), 512 * KIB, "what there is stays");

    // Who may not wait is refused until there is an answer, which stays for it.
    drop(third);
    let _fourth = host(&socket, 512 * MIB);
    until_listed(&socket, |bytes| bytes > 0).await;
    let at_once = || Draft::at_once(200 * MIB).map(|draft| draft.len());
    let why = at_once();
    assert!(matches!(why, Err(ParcelError::Unanswered(_))), "{why:?}");
    let begin = Instant::now();
    while at_once().is_err() {
        assert!(begin.elapsed() < LONG, "there is no answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What is dropped is given back, but for 64 MiB beside what there is.
    let long = Owned::new(200 * MIB).unwrap();
    until_listed(&socket, |bytes| bytes > 200 * MIB as u64).await;
    drop(long);
    let left = until_listed(&socket, |bytes| bytes < 66 * MIB as u64).await;
    assert!(left >= 64 * MIB as u64, "{left}");
    drop(owned);
    drop(channel);
}
