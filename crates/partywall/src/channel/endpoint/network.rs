//! What an endpoint sets for HTTP/2 and TCP.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use http::Uri;
use hyper::rt::{Executor, Read, Write};
use tower::{BoxError, Service};

use super::Endpoint;
use crate::channel::Channel;
use crate::channel::dial::Dialing;
use crate::channel::settings::{Spawn, Task};
use crate::error::Error;

impl Executor<Task> for Spawn {
    fn execute(&self, task: Task) {
        self.spawn(task);
    }
}

/// Setters of what tonic's own endpoint keeps.
macro_rules! of_http2 {
    ($($(#[$doc:meta])* $name:ident($value:ident: $type:ty);)*) => {
        /// Settings of HTTP/2 and TCP, with tonic's names and meaning. They have no effect on a ring.
        impl Endpoint {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $value: $type) -> Self {
                    self.network.http2 = self.network.http2.$name($value);
                    self
                }
            )*
        }
    };
}

of_http2! {
    /// Whether small packets are sent at once (TCP_NODELAY); true unless set.
    tcp_nodelay(enabled: bool);
    /// How long a TCP connection is idle before the kernel asks whether the other side is there; it does
    /// not ask unless set.
    tcp_keepalive(idle: Option<Duration>);
    /// How long between two such questions; the kernel's default unless set.
    tcp_keepalive_interval(interval: Option<Duration>);
    /// How many such questions without an answer end a connection; the kernel's default unless set.
    tcp_keepalive_retries(retries: Option<u32>);
    /// How many bytes of one answer the server may have under way (SETTINGS_INITIAL_WINDOW_SIZE); hyper's
    /// default unless set.
    initial_stream_window_size(bytes: impl Into<Option<u32>>);
    /// How many bytes of all answers of a connection the server may have under way; hyper's default unless
    /// set.
    initial_connection_window_size(bytes: impl Into<Option<u32>>);
    /// Whether the windows follow the measured bandwidth; hyper's default unless set.
    http2_adaptive_window(enabled: bool);
    /// How long between two PING frames that ask whether the server is there; none are sent unless set.
    http2_keep_alive_interval(interval: Duration);
    /// How long a PING may stay unanswered before the connection is given up; hyper's default unless set.
    keep_alive_timeout(within: Duration);
    /// Whether a connection without calls is asked as well; hyper's default unless set.
    keep_alive_while_idle(enabled: bool);
    /// Bytes of the table that compresses the heads of answers (SETTINGS_HEADER_TABLE_SIZE); 4,096 unless
    /// set.
    http2_header_table_size(bytes: u32);
    /// Most bytes of a head or of trailers that are received; 1 MiB unless set. Calls have limits of their
    /// own below that, which hold on each route.
    http2_max_header_list_size(bytes: u32);
    /// Most bytes of a frame that is received; hyper's default unless set.
    max_frame_size(bytes: impl Into<Option<u32>>);
    /// How many streams that this side has reset are remembered; hyper's default unless set.
    http2_max_concurrent_reset_streams(streams: usize);
    /// How long a stream that this side has reset is remembered; hyper's default unless set.
    http2_reset_stream_duration(duration: Duration);
    /// How many resets for errors of the server's a connection survives; hyper's default unless set,
    /// `None` for no limit.
    http2_max_local_error_reset_streams(streams: impl Into<Option<usize>>);
}

impl Endpoint {
    /// The IP address that connections over TCP come from; the kernel's choice unless set.
    pub fn local_address(mut self, address: Option<IpAddr>) -> Self {
        self.network.local = address;
        self
    }

    /// What runs the tasks of HTTP/2 connections and of the limits; `tokio::spawn` unless set. The tasks
    /// of a ring run in the tokio runtime in which it is connected.
    pub fn executor<E>(mut self, executor: E) -> Self
    where
        E: Executor<Pin<Box<dyn Future<Output = ()> + Send>>> + Send + Sync + 'static,
    {
        self.settings.spawn = Spawn::by(move |task| executor.execute(task));
        self.network.http2 = self.network.http2.executor(self.settings.spawn.clone());
        self
    }

    /// Whether small packets are sent at once.
    pub fn get_tcp_nodelay(&self) -> bool {
        self.network.http2.get_tcp_nodelay()
    }

    /// How long a TCP connection is idle before the kernel asks whether the other side is there.
    pub fn get_tcp_keepalive(&self) -> Option<Duration> {
        self.network.http2.get_tcp_keepalive()
    }

    /// How long between two such questions.
    pub fn get_tcp_keepalive_interval(&self) -> Option<Duration> {
        self.network.http2.get_tcp_keepalive_interval()
    }

    /// How many such questions without an answer end a connection.
    pub fn get_tcp_keepalive_retries(&self) -> Option<u32> {
        self.network.http2.get_tcp_keepalive_retries()
    }

    /// Connects to an address by a connector of the program's own, which makes the connections for HTTP/2;
    /// nothing is known of what protects them.
    ///
    /// # Errors
    /// As [`Endpoint::connect`]; [`Error::Setting`] for a name, which a connector cannot lead to.
    pub async fn connect_with_connector<C>(&self, connector: C) -> Result<Channel, Error>
    where
        C: Service<Uri> + Send + 'static,
        C::Response: Read + Write + Send + Unpin,
        C::Future: Send,
        BoxError: From<C::Error> + Send,
    {
        let dialing = Dialing::by(connector, self.uri.clone());
        self.connect_to(self.destination(Some(dialing))?).await
    }

    /// As [`Endpoint::connect_with_connector`], at the first call.
    pub fn connect_with_connector_lazy<C>(&self, connector: C) -> Channel
    where
        C: Service<Uri> + Send + 'static,
        C::Response: Read + Write + Send + Unpin,
        C::Future: Send,
        BoxError: From<C::Error> + Send,
    {
        let dialing = Dialing::by(connector, self.uri.clone());
        Channel::of(self, self.destination(Some(dialing)))
    }
}
