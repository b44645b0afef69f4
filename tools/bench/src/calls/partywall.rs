//! Partywall itself: the bare link, the blocking channel, and generated stubs over the async channel:
//! those of tonic-prost-build, and those of partywall-build, whose unary calls take a way of their own.
//!
//! The coordinator is a third process ([`Contender::attend`]) whose policy lets anyone do
//! anything: authorisation is in force, with one entry. With sides in containers it knows the users of both.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use partywall_abi::layout::Geometry;
use partywall_coordinator::{Coordinator, Policy};
use partywall_shm::link::{Link, LinkError};
use partywall_shm::memory::{self, OutboxError};
use partywall_shm::setup::{Adopted, Pending};
use partywall_shm::socket::{self, Endpoint};
use tokio::runtime::Runtime;

use super::client::{LongClient, measure};
use super::stubs::native::proto::bench_blocking::BenchClient;
use super::stubs::ordinary::proto;
use super::stubs::{native, ordinary};
use super::tonic_net::{closed, runtime};
use super::{contained, spinning_or_sleeping};
use crate::case::{Case, Place, USERS, Wait};
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::pattern::copy;
use crate::row::Figures;
use crate::seat::Seat;

/// Stubs over the async channel against the async server.
pub const TONIC: Contender = Contender::new(
    Kind::Ours,
    "partywall-tonic",
    "tonic's generated stubs over Partywall's channel, as programs use it",
    || [spinning_or_sleeping(), contained()].concat(),
    |seat| call_stubs(seat, ordinary::client),
)
.attended(coordinate)
.served(serve);

/// Native stubs on both sides, over the async channel against the async server.
pub const NATIVE: Contender = Contender::new(
    Kind::Ours,
    "partywall-native",
    "partywall-build's generated stubs over Partywall's channel, as programs use it",
    || [spinning_or_sleeping(), contained()].concat(),
    |seat| call_stubs(seat, native::client),
)
.attended(coordinate)
.served(serve_native);

/// The blocking channel against the async server.
pub const BLOCKING: Contender = Contender::new(
    Kind::Ours,
    "partywall-blocking",
    "Partywall's blocking channel against the async server",
    // One call at a time is all it does.
    || spinning_or_sleeping().into_iter().filter(|case| !case.is_pipelined()).collect(),
    call_blocking,
)
.attended(coordinate)
.served(serve);

/// Native stubs on both sides, over the blocking channel against the async server.
pub const NATIVE_BLOCKING: Contender = Contender::new(
    Kind::Ours,
    "partywall-native-blocking",
    "partywall-build's generated stubs over Partywall's blocking channel, against the async server",
    || spinning_or_sleeping().into_iter().filter(|case| !case.is_pipelined()).collect(),
    call_native_blocking,
)
.attended(coordinate)
.served(serve_native);

/// The link without calls: messages of bytes.
pub const RAW: Contender = Contender::new(
    Kind::Ours,
    "partywall-raw",
    "Partywall's link without gRPC: messages of bytes",
    || [spinning_or_sleeping(), contained()].concat(),
    call_raw,
)
.opened(ends)
.served(serve_raw);

/// The coordinator's socket in the directory of a sample.
pub const SOCKET: &str = "coordinator.sock";
/// The name that is served.
pub const NAME: &str = "bench";
const POLICY: &str = "[service.bench]\nregister = ['anyone']\n\
                      [service.bench.call]\nanyone = { methods = ['*'], descriptors = 1, \
                      leases = true }\n";
const LIMIT: usize = 1 << 30;

/// The same for these two users.
fn policy_of(server: u32, client: u32) -> String {
    format!(
        "[principal.server]\nuid = {server}\n[principal.client]\nuid = {client}\n\
         [service.bench]\nregister = ['server']\n[service.bench.call]\n\
         client = {{ methods = ['*'], descriptors = 1, leases = true }}\n"
    )
}

/// What the sides of a sample may do.
fn policy(place: Place) -> String {
    let [server, client] = USERS;
    match place {
        Place::Host => POLICY.to_owned(),
        Place::ClientInContainer => policy_of(rustix::process::geteuid().as_raw(), client),
        Place::TwoContainers => policy_of(server, client),
    }
}

/// Spinning or sleeping, as the case says.
pub fn settle_waits(seat: &Seat) {
    partywall::allow_spinning(seat.case().wait == Some(Wait::Spin));
}

/// Runs the coordinator.
pub fn coordinate(seat: &mut Seat) -> Result<()> {
    coordinate_by(seat, &policy(seat.case().place))
}

/// Runs the coordinator with this policy.
pub fn coordinate_by(seat: &Seat, policy: &str) -> Result<()> {
    let policy = Policy::parse("bench", policy)?;
    let coordinator = Coordinator::start(Some(&seat.dir().join(SOCKET)), policy)?;
    seat.ready();
    coordinator.join();
    Ok(())
}

/// Serves the bench's service at its name until the client has gone.
pub fn serve(seat: &mut Seat) -> Result<()> {
    serve_by(seat, ordinary::service())
}

/// The same by native stubs.
pub fn serve_native(seat: &mut Seat) -> Result<()> {
    serve_by(seat, native::service())
}

fn serve_by(seat: &mut Seat, service: impl partywall::GrpcServer) -> Result<()> {
    serve_on(&runtime()?, seat, service)
}

/// Serves this at the bench's name until the client has gone.
pub fn serve_on(
    threads: &Runtime,
    seat: &mut Seat,
    service: impl partywall::GrpcServer,
) -> Result<()> {
    settle_waits(seat);
    threads.block_on(async {
        let gone = closed(seat.lifeline()?)?;
        let router =
            partywall::Server::builder().coordinator(seat.dir().join(SOCKET)).add_service(service);
        seat.ready();
        Ok(router.serve_with_shutdown(NAME, gone).await?)
    })
}

/// Where the sample's server is reached.
pub fn endpoint(seat: &Seat) -> Result<partywall::Endpoint> {
    endpoint_of(seat, NAME)
}

/// Where this name of the sample's server is reached.
pub fn endpoint_of(seat: &Seat, name: &str) -> Result<partywall::Endpoint> {
    settle_waits(seat);
    let endpoint = partywall::Endpoint::new(format!("partywall:///{name}"))?;
    // The server registers in its own time.
    Ok(endpoint.coordinator(seat.dir().join(SOCKET)).wait_for_ready(true))
}

/// Connects to a server of [`serve`].
pub async fn connect(seat: &Seat) -> Result<partywall::Channel> {
    Ok(endpoint(seat)?.connect().await?)
}

fn call_stubs<C: LongClient>(
    seat: &mut Seat,
    client: fn(partywall::Channel) -> C,
) -> Result<Figures> {
    call_checked(seat, client, |_| Ok(()))
}

/// Measures a client of which `check` has seen the channel.
pub fn call_checked<C: LongClient>(
    seat: &mut Seat,
    client: fn(partywall::Channel) -> C,
    check: fn(&partywall::Channel) -> Result<()>,
) -> Result<Figures> {
    let runtime = runtime()?;
    let channel = seat.admitted(|seat| runtime.block_on(connect(seat)))?;
    check(&channel)?;
    runtime.block_on(measure(client(channel), seat))
}

fn call_blocking(seat: &mut Seat) -> Result<Figures> {
    let connect = |seat: &Seat| Ok(partywall::blocking::Channel::connect(&endpoint(seat)?)?);
    let mut channel = seat.admitted(connect)?;
    seat.meter()?.one_by_one(|request, reply| {
        let blob = proto::Blob { body: bytes::Bytes::copy_from_slice(request) };
        let answer: proto::Blob = channel
            .unary("/partywall.bench.v1.Bench/Echo", tonic::Request::new(blob))?
            .into_inner();
        copy(&answer.body, reply)
    })
}

fn call_native_blocking(seat: &mut Seat) -> Result<Figures> {
    let connect = |seat: &Seat| Ok(partywall::blocking::Channel::connect(&endpoint(seat)?)?);
    let mut client = BenchClient::new(seat.admitted(connect)?);
    seat.meter()?.one_by_one(|request, reply| {
        let blob = native::proto::Blob { body: bytes::Bytes::copy_from_slice(request) };
        copy(&client.echo(blob)?.into_inner().body, reply)
    })
}

/// Index of the server's first descriptor of a link, and of the client's.
pub const SERVERS: usize = 0;
pub const CLIENTS: usize = 3;

/// The descriptors of a link: each end's socket, its outbox, the other's for reading.
pub fn ends(_: &Case) -> Result<Ends> {
    let (near, far) = socket::pair()?;
    // As a coordinator gives them to its first links.
    let (ours, theirs) = (memory::create(Geometry::WIDE)?, memory::create(Geometry::WIDE)?);
    Ok(Ends(vec![
        (Side::Server, far),
        (Side::Server, theirs.writer),
        (Side::Server, ours.reader),
        (Side::Client, near),
        (Side::Client, ours.writer),
        (Side::Client, theirs.reader),
    ]))
}

/// How long the other end may take to have its part ready.
const READY: Duration = Duration::from_secs(10);

/// Opens a link on three of the descriptors of [`ends`]: the server's are the first. What a
/// coordinator tells the two ends, they see for themselves here.
pub fn link(seat: &mut Seat, first: usize) -> Result<Link> {
    settle_waits(seat);
    let g = Geometry::WIDE;
    let deadline = Instant::now() + READY;
    let socket = Endpoint::new(seat.take(first)?);
    let (own, peers) = (seat.take(first + 1)?, seat.take(first + 2)?);
    let wait_for = |ready: &dyn Fn() -> std::result::Result<(), OutboxError>| loop {
        match ready() {
            Err(why) if Instant::now() > deadline => break Err(why),
            Err(_) => std::thread::sleep(Duration::from_micros(50)),
            Ok(()) => break Ok(()),
        }
    };
    let ends = if first == SERVERS {
        let seen = own.try_clone()?;
        let adopted = Adopted::new(1, g, own, socket)?;
        wait_for(&|| {
            memory::sealed(peers.as_fd(), g)?;
            memory::whole(peers.as_fd(), g)?;
            memory::whole(seen.as_fd(), g)
        })?;
        adopted.open(peers)?
    } else {
        wait_for(&|| memory::sealed(peers.as_fd(), g))?;
        Pending::new(1, g, own, peers, socket)?.wait(deadline)?
    };
    Ok(Link::new(ends)?)
}

fn serve_raw(seat: &mut Seat) -> Result<()> {
    seat.ready();
    let mut link = link(seat, SERVERS)?;
    let mut message = Vec::new();
    loop {
        match link.receive(&mut message, LIMIT, None) {
            Ok(()) => link.send(&message, None)?,
            Err(LinkError::Dead) => return Ok(()),
            Err(other) => return Err(other.into()),
        }
    }
}

/// Messages under way at once, and their bytes: less than a ring's slots and arena.
const IN_FLIGHT: usize = 64;
const IN_FLIGHT_BYTES: usize = 80_000;

fn take(link: &mut Link, message: &mut Vec<u8>, reply: Option<&mut [u8]>) -> Result<()> {
    link.receive(message, LIMIT, None)?;
    let reply = reply.ok_or("more replies than requests")?;
    copy(message, reply)
}

fn call_raw(seat: &mut Seat) -> Result<Figures> {
    let mut link = link(seat, CLIENTS)?;
    let size = seat.case().bytes();
    let mut message = Vec::with_capacity(size);
    let meter = seat.meter()?;
    if !seat.case().is_pipelined() {
        return meter.one_by_one(|request, reply| {
            link.send(request, None)?;
            take(&mut link, &mut message, Some(reply))
        });
    }
    let in_flight = (IN_FLIGHT_BYTES / (size + 64)).clamp(1, IN_FLIGHT);
    meter.by_window(|requests, replies| {
        let mut replies = replies.chunks_exact_mut(size);
        let mut taken = 0;
        for (sent, request) in requests.chunks_exact(size).enumerate() {
            // What is under way fits the server's ring as well, so nobody gets stuck.
            while sent - taken >= in_flight {
                take(&mut link, &mut message, replies.next())?;
                taken += 1;
            }
            link.send(request, None)?;
        }
        replies.try_for_each(|reply| take(&mut link, &mut message, Some(reply)))
    })
}
