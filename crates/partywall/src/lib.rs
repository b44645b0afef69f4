//! Call services on the same host through shared memory, with tonic's API.
//!
//! A caller of the name `greeter`:
//!
//! ```no_run
//! use tonic_health::pb::health_client::HealthClient; // or GreeterClient, or any other of tonic's
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let channel = partywall::Channel::connect("partywall:///greeter").await?;
//! let mut client = HealthClient::new(channel);
//! # let _ = client; Ok(()) }
//! ```
//!
//! A [`Channel`] is what a tonic-generated client takes in place of tonic's own; a [`Server`] takes
//! tonic-generated services as tonic's own does. Between them there is no HTTP/2 but a ring of
//! records in memory that only the two processes have. A name that is not served on this host is
//! reached over HTTP/2 when the coordinator's policy says where; [`Channel::route`] says which of
//! the two it is.
//!
//! The server under that name:
//!
//! ```no_run
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let (_reporter, service) = tonic_health::server::health_reporter(); // or GreeterServer::new(..)
//! partywall::Server::builder().add_service(service).serve("greeter").await?;
//! # Ok(()) }
//! ```
//!
//! Both in one process, without a coordinator, as in a test ([`Router::in_process`]):
//!
//! ```
//! use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (_reporter, service) = tonic_health::server::health_reporter();
//! let channel = partywall::Server::builder().add_service(service).in_process()?;
//! let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await?;
//! assert_eq!(answer.into_inner().status().as_str_name(), "SERVING");
//! # Ok(()) }
//! ```
//!
//! A unary call takes a shorter way by stubs of `partywall-build`, which are tonic's but for that: see the
//! project's docs/native-stubs.md. A channel whose service may start later is connected with
//! [`Endpoint::wait_for_ready`].
//!
//! # Policy
//!
//! Who may serve a name and which methods who may call there is the policy of the coordinator, which
//! denies what it does not list. A call that it does not allow ends with PERMISSION_DENIED, and the text
//! says what to write where; a handler finds its caller as [`Peer`]. The policy's form is in the
//! project's docs/policy.md.
//!
//! # Limits
//!
//! | what | most |
//! | --- | --- |
//! | a message | what tonic's client and server take: 4 MiB decoded unless set |
//! | a head (path, headers) or the trailers of a good answer | 20 KiB and 512 entries; the path 1,024 bytes |
//! | the trailers of a failed call | 7,900 bytes; message, details and metadata are cut to that, never the code |
//! | calls, and bytes of requests, of one caller | [`Server::max_calls_per_caller`], [`Server::max_request_bytes_per_caller`] |
//!
//! What is over a limit ends with RESOURCE_EXHAUSTED; a longer path is no method of anybody, UNIMPLEMENTED.
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PARTYWALL_FD` | the descriptor of a socket to the coordinator; `partywall up` sets it |
//! | `PARTYWALL_SOCKET` | where the coordinator listens |
//! | `XDG_RUNTIME_DIR` | else, `partywall/coordinator.sock` there, if that exists; else `/run/partywall/coordinator.sock` |
//! | `PARTYWALL_COORDINATOR_UID` | the user whose coordinator is trusted; unless set, this process's own and root |
//! | `PARTYWALL_INLINE_LIMIT_MS` | in a domain that calls: how many milliseconds a call may keep its thread, 10 unless set |
//!
//! # Features
//!
//! | feature | content | without it |
//! | --- | --- | --- |
//! | `http2` | addresses (`http://HOST:PORT`, `unix:/PATH`) to call and to serve at, `serve_with_incoming`, `Channel::into_tonic`; hyper and tonic's transport | addresses are refused with [`TargetError::NoHttp2`], also those that the policy has for a name |
//! | `blocking` | module `blocking` | |
//! | `domain` | the call gate, for programs that `partywall up` loads into a launcher | a program does not know whether it shares its address space with others, and says so: the confidentiality of its links is `space` at most |
//!
//! All are on unless `default-features = false`.
//!
//! # Processes that fork
//!
//! Channels and servers are those of the process that has made them. fork(2) copies their memory and their
//! sockets and none of their threads: a child that goes on without execve(2) must not use them, and not drop
//! those with calls under way, but end by `_exit`(2): what it writes, its parent's peers take for the
//! parent's. When the parent ends, others hear of that from the coordinator, however long the child
//! lives; only where the coordinator cannot see the parent's process (in another PID namespace) do they
//! hear of it when the child ends. What is executed (posix_spawn(3), [`std::process::Command`]) has
//! nothing of this.
#![deny(unsafe_code)]

// How it hangs together:
//
// Channel ─ http_calls ─ link::caller ─┐                   ┌─ link::service ─ http_calls ─ layers ─ Routes
// stubs ──────────────────┘            │                   │                    └─ generated services (stubs)
//                                      ├─ link (both sides) ─┤
//                                      └─── partywall_call ──┘
// coordinator::Client (one per process): the control socket

mod attach;
mod attachment;
mod backoff;
#[cfg(feature = "blocking")]
pub mod blocking;
mod buffer;
mod channel;
mod coordinator;
mod dispatch;
#[cfg_attr(not(feature = "domain"), path = "no_domain.rs")]
mod domain;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod harden;
mod http_calls;
mod link;
mod lock;
mod on_a_thread;
pub mod parcel;
mod peer;
mod pins;
mod server;
mod status;
#[doc(hidden)]
pub mod stubs;
mod target;
mod telemetry;
mod time;
#[cfg(feature = "http2")]
mod tls;
#[cfg(feature = "http2")]
mod unix;
mod waker;
mod wire;

pub use channel::{Balance, Channel, Endpoint, ResponseFuture, Route};
pub use coordinator::operator;
pub use dispatch::HttpService;
pub use error::{Blame, Error};
pub use partywall_abi::codec::DecodeError;
pub use partywall_abi::control::{Digest, Identity};
pub use partywall_abi::name::{NameError, ServiceName};
pub use partywall_abi::security::{
    Confidentiality, Evidence, Isolation, Seal, Security, Shortfall, Sign, UnknownLevel,
};
pub use partywall_shm::address::AddressError;
pub use partywall_shm::link::LinkError;
pub use partywall_shm::listen::ListenError;
pub use partywall_trust::{Pin, PinError};
pub use peer::{Deadline, Peer, security_of, spiffe_id_of};
pub use server::{Addresses, Bound, GrpcServer, Router, Routes, RoutesFuture, Server, Serving};
pub use target::{Target, TargetError};
pub use telemetry::record_metrics;

/// Lets the waits of this process spin for a learned budget before they sleep (the default), or
/// keeps them from it: for machines where CPU time matters more than latency. On the peer's own CPU
/// nobody spins; there a waiter hands the CPU over once before it sleeps, in either case.
///
/// ```
/// partywall::allow_spinning(false);
/// ```
pub fn allow_spinning(allow: bool) {
    partywall_shm::spin::allow(allow);
}
