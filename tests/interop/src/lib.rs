//! gRPC's interoperability cases, written against any transport that tonic can use.
//!
//! [`service`] is the server side, [`cases`] the client side, and [`go_client`] points grpc-go's
//! own interoperability client at a server, [`python_client`] Python's grpcio. [`framing`] looks at the
//! messages inside HTTP bodies, which tonic hides from both sides. Stubs are those of tonic-prost-build and,
//! of the same messages, those of partywall-build ([`proto::native`]).

#![forbid(unsafe_code)]

pub mod cases;
pub mod framing;
pub mod go_client;
pub mod python_client;
pub mod service;
mod ways;

pub use ways::{Counts, Ways};

/// Messages, clients and servers of the `grpc.testing` package.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    tonic::include_proto!("grpc.testing");

    /// Its clients and servers by partywall-build.
    pub mod native {
        include!(concat!(env!("OUT_DIR"), "/native/grpc.testing.rs"));
    }
}

/// A boxed error, as tower and tonic use it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A boxed future that can move between threads.
pub type BoxFuture<V> = std::pin::Pin<Box<dyn Future<Output = V> + Send>>;
