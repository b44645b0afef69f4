//! What it takes to hand memory of a gibibyte over, on one processor: a lease and an owned parcel attached to
//! unary calls of native stubs, beside one file that both processes map.
//!
//! ```sh
//! cargo bench -p partywall-bench --bench crossing [-- BYTES]
//! ```
//!
//! | column | what |
//! |---|---|
//! | call | a call that carries it, once it is mapped; a lease goes there and back |
//! | map | the receiver takes it for the first time, which maps it |
//! | first read | the receiver reads eight bytes of each page for the first time after that |
//! | again | the same a second time |
//!
//! Medians over the rounds; each round has fresh memory. Both processes run on the first processor that this
//! program may use. The floor's memory is mapped by mmap(2) of an inherited descriptor.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use partywall::parcel::{Attach, Attachment, Lease, Owned};
use partywall::{Endpoint, Server, blocking};
use partywall_coordinator::{Coordinator, Policy};
use tonic::{Request, Response, Status, Streaming};

#[allow(missing_docs, unreachable_pub, dead_code)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/native/partywall.bench.v1.rs"));
}

/// Bare shared memory, as the floors of `transfer` have it.
#[allow(dead_code, unused_imports, reason = "it has more than a mapping, and tests")]
#[path = "../../src/sys"]
mod sys {
    pub mod futex;
    pub mod handoff;
    pub mod shared;
}

use pb::bench_blocking::BenchClient;
use pb::bench_server::{Bench, BenchServer};
use pb::{Answer, Blob};

type Error = Box<dyn std::error::Error>;

const PAGE: usize = 4096;
const ROUNDS: usize = 5;
/// Calls of a round once memory is mapped.
const CALLS: usize = 500;
const POLICY: &str = "[service.bench]\nregister = ['anyone']\n[service.bench.call]\n\
                      anyone = { methods = ['*'], descriptors = 1, leases = true }\n";
/// Where the child finds the coordinator's socket, and how long memory is.
const SOCKET: &str = "CROSSING_SOCKET";

fn main() -> Result<(), Error> {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return serve(Path::new(&socket));
    }
    let bytes = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(1 << 30);
    pin()?;
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("coordinator.sock");
    let _coordinator = Coordinator::start(Some(&socket), Policy::parse("bench", POLICY)?)?;
    println!("{bytes} bytes, medians of {ROUNDS} rounds");
    println!("{:12} {:>10} {:>10} {:>12} {:>12}", "", "call", "map", "first read", "again");
    for way in [Way::Lease, Way::Owned, Way::Floor] {
        let rounds = (0..ROUNDS).map(|_| round(&socket, way, bytes));
        let rounds = rounds.collect::<Result<Vec<_>, _>>()?;
        let median = |column: usize| {
            let mut all: Vec<u64> = rounds.iter().map(|round| round[column]).collect();
            all.sort_unstable();
            format!("{:.1} us", all[all.len() / 2] as f64 / 1000.0)
        };
        let [call, map, first, again] = [0, 1, 2, 3].map(median);
        println!("{:12} {call:>10} {map:>10} {first:>12} {again:>12}", way.name());
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Lease,
    Owned,
    Floor,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Owned => "owned",
            Self::Floor => "memfd-floor",
        }
    }
}

/// The processor that this thread and its children run on.
fn pin() -> Result<(), Error> {
    let may = rustix::thread::sched_getaffinity(None)?;
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| may.is_set(*cpu));
    let mut one = rustix::thread::CpuSet::new();
    one.set(first.ok_or("no processor")?);
    Ok(rustix::thread::sched_setaffinity(None, &one)?)
}

/// A server of its own: a call, then what it has measured.
fn round(socket: &Path, way: Way, bytes: usize) -> Result<[u64; 4], Error> {
    let memory = Lease::new(bytes)?;
    (0..bytes / PAGE).for_each(|page| memory.words()[page * PAGE / 8].store(1, Relaxed));
    // Of the child's standard input it is the memory's descriptor.
    let inherited = memory.as_fd().try_clone_to_owned()?;
    let mut child = Command::new(std::env::current_exe()?)
        .env(SOCKET, socket)
        .stdin(Stdio::from(inherited))
        .spawn()?;
    let endpoint = Endpoint::new("partywall:///bench")?.coordinator(socket).wait_for_ready(true);
    let mut client = BenchClient::new(blocking::Channel::connect(&endpoint)?);
    let mut owned = match way {
        Way::Owned => Some(Owned::new(bytes)?),
        _ => None,
    };
    if let Some(owned) = &mut owned {
        owned.write(|bytes| bytes.chunks_mut(PAGE).for_each(|page| page[0] = 1));
    }
    let mut held = Some(memory);
    let mut call = |body: &'static [u8]| -> Result<Bytes, Error> {
        let mut request = Request::new(Blob { body: Bytes::from_static(body) });
        match (way, &owned) {
            (Way::Lease, _) => request.attach(held.take().ok_or("the lease has not come back")?),
            (_, Some(owned)) => request.attach(owned),
            _ => {}
        }
        let mut response = client.echo(request)?;
        if let Some(Attachment::Lease(back)) = response.attachments()?.pop() {
            held = Some(back);
        }
        Ok(response.into_inner().body)
    };
    let said = call(if way == Way::Floor { b"floor" } else { b"read" })?;
    let (words, _) = said.as_chunks::<8>();
    let [map, first, again] = words else { return Err("the server has not measured".into()) };
    let mut calls = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begin = Instant::now();
        call(b"")?;
        calls.push(begin.elapsed().as_nanos() as u64);
    }
    calls.sort_unstable();
    child.kill()?;
    child.wait()?;
    let [map, first, again] = [map, first, again].map(|word| u64::from_le_bytes(*word));
    Ok([calls[CALLS / 2], map, first, again])
}

fn serve(socket: &Path) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Server::builder().coordinator(socket).add_service(BenchServer::new(Measures));
    Ok(runtime.block_on(server.serve("bench"))?)
}

struct Measures;

fn nanoseconds<T>(what: impl FnOnce() -> T) -> (T, u64) {
    let begin = Instant::now();
    let done = what();
    (done, begin.elapsed().as_nanos() as u64)
}

/// Reads a word of each page; all are as they were set.
fn read(words: usize, word: impl Fn(usize) -> u64) -> u64 {
    let (sum, took) =
        nanoseconds(|| (0..words).step_by(PAGE / 8).map(&word).fold(0, u64::wrapping_add));
    assert_eq!(sum as usize, words.div_ceil(PAGE / 8), "each page has a one");
    took
}

impl Measures {
    fn measure(mut request: Request<Blob>) -> Result<Response<Blob>, Error> {
        let (came, map) = nanoseconds(|| request.attachments());
        let came = came?.pop();
        let mut response = Response::new(Blob::default());
        let reads = match (&request.get_ref().body[..], &came) {
            (b"read", Some(Attachment::Lease(lease))) => {
                let words = lease.words();
                [0, 1].map(|_| read(words.len(), |number| words[number].load(Relaxed)))
            }
            (b"read", Some(Attachment::Owned(view))) => {
                let read = || view.read(|words| read(words.len(), |number| words.get(number)));
                // With the look for holes.
                let (first, took) = nanoseconds(read);
                first?;
                [took, read()?]
            }
            (b"floor", _) => return Self::floor(),
            _ => [0; 2],
        };
        if let Some(Attachment::Lease(lease)) = came {
            response.attach(lease);
        }
        response.get_mut().body = [map, reads[0], reads[1]].map(u64::to_le_bytes).concat().into();
        Ok(response)
    }

    /// One mapping of the inherited memory, as any program makes it.
    fn floor() -> Result<Response<Blob>, Error> {
        let file = std::io::stdin().as_fd().try_clone_to_owned()?;
        let (mapped, map) = nanoseconds(|| sys::shared::Shared::map(&file));
        let mapped = mapped?;
        let word = |number: usize| mapped.long(number * 8).load(Relaxed);
        let reads = [0, 1].map(|_| read(mapped.len() / 8, word));
        let body = [map, reads[0], reads[1]].map(u64::to_le_bytes).concat().into();
        Ok(Response::new(Blob { body }))
    }
}

#[tonic::async_trait]
impl Bench for Measures {
    async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        Self::measure(request).map_err(|error| Status::internal(error.to_string()))
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

    async fn chat(&self, _: Request<Streaming<Blob>>) -> Result<Response<Streaming<Blob>>, Status> {
        Err(Status::unimplemented("not here"))
    }

    type PassStream = Streaming<Blob>;

    async fn pass(&self, _: Request<Streaming<Blob>>) -> Result<Response<Streaming<Blob>>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn drain(&self, _: Request<Streaming<Blob>>) -> Result<Response<Answer>, Status> {
        Err(Status::unimplemented("not here"))
    }
}
