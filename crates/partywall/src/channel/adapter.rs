//! A channel as tonic's own type, for crates that take no other.
//!
//! ```text
//! tonic's Channel -- HTTP/2 over memory --> our HTTP/2 server -- Channel --> ring, or the network
//! ```
//!
//! Each connection of tonic's channel is a pair of pipes in memory, served by a task that ends with
//! it. A call that tonic drops is dropped here as well.

use std::convert::Infallible;

use hyper_util::rt::TokioIo;
use partywall_abi::security::Security;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower::{Service, service_fn};

use super::Channel;
use crate::dispatch::{Answer, HttpDispatch};
use crate::server::{Connection, Options, serve_connection};
use crate::wire;

/// Bytes under way in each direction of a connection.
const PIPE_BYTES: usize = 256 * 1024;
/// Bytes of data that tonic takes before they are read: of one stream, and of all.
const WINDOWS: (u32, u32) = (1 << 20, 4 << 20);

/// In builds with the feature `http2`.
impl Channel {
    /// This channel as tonic's own type, for crates that take no other.
    ///
    /// Its calls go to an HTTP/2 server in this process, over memory, and from there where this
    /// channel's go. So they cost what HTTP/2 costs, and tonic's own rules hold at that end: the
    /// code of a deadline that passes before the answer begins may be CANCELLED. Must be called
    /// inside a tokio runtime, which drives both ends.
    ///
    /// What is attached ([`crate::parcel::Attach`]) does not pass it: a request goes without, and an answer
    /// with something attached is FAILED_PRECONDITION.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let channel = partywall::Channel::connect("partywall:///collector").await?;
    /// let channel: tonic::transport::Channel = channel.into_tonic();
    /// # let _ = channel; Ok(()) }
    /// ```
    pub fn into_tonic(self) -> tonic::transport::Channel {
        let connector = service_fn(move |_| {
            let (theirs, ours) = tokio::io::duplex(PIPE_BYTES);
            let forward = std::sync::Arc::new(Forward(self.clone()));
            tokio::spawn(async move {
                let (_never, stopped) = watch::channel(false);
                let ours = (ours, Security::IN_PROCESS);
                serve_connection(ours, forward, &Options::default(), stopped, Connection::alone())
                    .await;
            });
            std::future::ready(Ok::<_, Infallible>(TokioIo::new(theirs)))
        });
        Endpoint::from_static("http://localhost")
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .http2_max_header_list_size(wire::LIST_BYTES)
            .connect_with_connector_lazy(connector)
    }
}

/// Sends each request on.
struct Forward(Channel);

impl HttpDispatch for Forward {
    fn call(&self, request: http::Request<Body>) -> Answer {
        let answer = self.0.clone().call(request);
        Box::pin(async move { answer.await.unwrap_or_else(|status| status.into_http()) })
    }
}
