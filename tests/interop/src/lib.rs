//! gRPC's interoperability cases, written against any transport that tonic can use.
//!
//! [`service`] is the server side, [`cases`] the client side, and [`go_client`] points grpc-go's
//! own interoperability client at a server, [`python_client`] Python's grpcio. [`framing`] looks at the
//! messages inside HTTP bodies, which tonic hides from both sides.

#![forbid(unsafe_code)]

pub mod cases;
pub mod framing;
pub mod go_client;
pub mod python_client;
pub mod service;

/// Messages, clients and servers of the `grpc.testing` package.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    tonic::include_proto!("grpc.testing");
}

/// A boxed error, as tower and tonic use it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A boxed future that can move between threads.
pub type BoxFuture<V> = std::pin::Pin<Box<dyn Future<Output = V> + Send>>;
