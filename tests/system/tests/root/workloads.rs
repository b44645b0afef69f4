//! Another user floods the Workload API, and keeps nobody from an SVID.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partywall_testkit::{Host, alone};
use partywall_workload::Limits;
use partywall_workload::proto::X509svidRequest;
use partywall_workload::proto::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use tonic::transport::Endpoint;
use tonic::{Code, Request};

/// Descriptors that the coordinator, the server and the floods have together.
const DESCRIPTORS: u64 = 16_384;
/// Connections that a flood holds.
const HELD: usize = 1000;

/// What a flood says on each connection.
type Say = fn(&mut UnixStream) -> std::io::Result<()>;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn nothing(_: &mut UnixStream) -> std::io::Result<()> {
    Ok(())
}

fn half_a_preface(stream: &mut UnixStream) -> std::io::Result<()> {
    stream.write_all(&PREFACE[..11])
}

/// The answer to the challenge, and then frames that are as long as they can be and do not end.
fn frames_without_end(stream: &mut UnixStream) -> std::io::Result<()> {
    stream.write_all(PREFACE)?;
    let mut asked = [0; 26];
    stream.read_exact(&mut asked)?;
    stream.write_all(b"\0\0\0\x04\x01\0\0\0\0\0\0\x08\x06\x01\0\0\0\0")?;
    stream.write_all(&asked[18..])?;
    // Settings, each of which is answered.
    stream.write_all(&b"\0\0\0\x04\0\0\0\0\0".repeat(1000))?;
    stream.write_all(b"\0\x40\0\x01\0\0\0\0\x01and so on")
}

/// A connection, unless as many wait to be accepted as can.
fn connects_at_once(path: &Path) -> Option<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok()?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    Some(stream)
}

/// Connects and speaks as a user until it is told to stop; how many connections there were.
fn floods(
    path: &Path,
    (uid, say): (u32, Say),
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<usize> {
    let (path, stop) = (path.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        let other = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
        let (mut held, mut count) = (Vec::new(), 0);
        while !stop.load(Ordering::Relaxed) {
            let Some(mut stream) = connects_at_once(&path) else { continue };
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            let _turned_away = say(&mut stream);
            count += 1;
            if held.len() == HELD {
                held.clear();
            }
            held.push(stream);
        }
        count
    })
}

/// An SVID over a connection of its own, and how long that took.
async fn fetch(path: &Path) -> (Result<String, Code>, Duration) {
    let start = Instant::now();
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    let fetched = async {
        // As libraries do, when as many wait to be accepted as can.
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(_full) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let mut client = SpiffeWorkloadApiClient::new(channel);
        let mut request = Request::new(X509svidRequest {});
        request.metadata_mut().insert("workload.spiffe.io", "true".parse().unwrap());
        let mut stream = client.fetch_x509svid(request).await.map_err(|e| e.code())?.into_inner();
        let svids = stream.message().await.map_err(|e| e.code())?.unwrap().svids;
        Ok(svids[0].spiffe_id.clone())
    };
    let fetched = tokio::time::timeout(Duration::from_secs(30), fetched).await.expect("an answer");
    (fetched, start.elapsed())
}

#[test]
fn a_flood_of_other_users_keeps_nobody_from_an_svid() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, to be other users");
    let before = getrlimit(Resource::Nofile);
    let most = before.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..before }).unwrap();
    let host = Host::with("[principal.shop]\nuid = 0\n");
    let path = host.socket.with_file_name("workload.sock");
    let serving =
        partywall_workload::serve(&path, host.coordinator.workloads(), Limits::default()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let ways: [(u32, Say); 3] =
        [(2001, nothing), (2002, half_a_preface), (2003, frames_without_end)];
    let threads = ways.map(|way| floods(&path, way, &stop));
    let mut worst = Duration::ZERO;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // So that the floods are under way, and hold what they may.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..20 {
            let (id, took) = fetch(&path).await;
            assert_eq!(id.as_deref(), Ok("spiffe://partywall.local/service/shop"));
            worst = worst.max(took);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    stop.store(true, Ordering::Relaxed);
    let counts = threads.map(|thread| thread.join().unwrap());
    println!("connections {counts:?}, the slowest SVID after {worst:?}");
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    assert!(worst < Duration::from_secs(3), "{worst:?}");
    drop(serving);
    setrlimit(Resource::Nofile, before).unwrap();
}
