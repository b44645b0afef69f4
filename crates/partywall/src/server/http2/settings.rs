//! What a server sets for its HTTP/2 connections alone.

use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use super::unread::Timed;
use crate::server::Server;
use crate::wire;

/// What a server sets for its HTTP/2 connections alone; `None` is what hyper or the kernel has.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    http1: bool,
    stream_window: Option<u32>,
    connection_window: Option<u32>,
    adaptive_window: bool,
    keepalive_interval: Option<Duration>,
    keepalive_timeout: Duration,
    pending_resets: Option<usize>,
    error_resets: Option<usize>,
    header_list: u32,
    frame: Option<u32>,
    nodelay: bool,
    tcp_keepalive: Option<Duration>,
    tcp_keepalive_interval: Option<Duration>,
    tcp_keepalive_retries: Option<u32>,
    write_timeout: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            http1: false,
            stream_window: None,
            connection_window: None,
            adaptive_window: false,
            keepalive_interval: None,
            keepalive_timeout: Duration::from_secs(20),
            pending_resets: None,
            error_resets: None,
            header_list: wire::LIST_BYTES,
            frame: None,
            // A small answer must not wait until the caller has acknowledged the one before.
            nodelay: true,
            tcp_keepalive: None,
            tcp_keepalive_interval: None,
            tcp_keepalive_retries: None,
            write_timeout: None,
        }
    }
}

impl Settings {
    /// What serves connections of so many calls at a time.
    pub(super) fn builder(&self, streams: u32) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        if !self.http1 {
            builder = builder.http2_only();
        }
        // With a timer hyper bounds the time that the head of a request may take.
        builder.http1().timer(TokioTimer::new());
        let mut http2 = builder.http2();
        http2
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .max_concurrent_streams(streams)
            // A caller may give up all its calls at once, and the others that share its connection go on.
            .max_pending_accept_reset_streams(self.pending_resets.unwrap_or(streams as usize))
            .max_header_list_size(self.header_list)
            .max_frame_size(self.frame)
            .initial_stream_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout);
        // These replace what is above, or take what is not given for no limit.
        if self.adaptive_window {
            http2.adaptive_window(true);
        }
        if let Some(most) = self.error_resets {
            http2.max_local_error_reset_streams(most);
        }
        builder
    }

    /// The stream of a connection, with the time that its writes have.
    pub(super) fn timed<S: Unpin>(&self, stream: S) -> Timed<S> {
        Timed::new(stream, self.write_timeout)
    }

    /// The connections of a listener.
    pub(super) fn incoming(&self, listener: TcpListener) -> TcpIncoming {
        TcpIncoming::from(listener)
            .with_nodelay(Some(self.nodelay))
            .with_keepalive(self.tcp_keepalive)
            .with_keepalive_interval(self.tcp_keepalive_interval)
            .with_keepalive_retries(self.tcp_keepalive_retries)
    }
}

/// Settings of HTTP/2 connections, under tonic's names. A ring has no such thing, and they do nothing there.
impl<L> Server<L> {
    /// Accepts HTTP/1.1 beside HTTP/2, for services that speak gRPC-Web with browsers (by crate `tonic-web`,
    /// say): false unless set. Without it a connection over HTTP/1.1 is closed.
    #[must_use]
    pub fn accept_http1(mut self, accept: bool) -> Self {
        self.options.http2.http1 = accept;
        self
    }

    /// How many bytes of one call a caller may send before they are read: hyper's 1 MiB unless set. On a
    /// ring the windows are the release's own.
    #[must_use]
    pub fn initial_stream_window_size(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.options.http2.stream_window = bytes.into();
        self
    }

    /// How many bytes of all calls of a connection a caller may send before they are read: hyper's 1 MiB
    /// unless set. On a ring the windows are the release's own.
    #[must_use]
    pub fn initial_connection_window_size(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.options.http2.connection_window = bytes.into();
        self
    }

    /// Lets windows grow by what a connection is measured to carry, whatever
    /// [`Server::initial_stream_window_size`] and [`Server::initial_connection_window_size`] say: false
    /// unless set.
    #[must_use]
    pub fn http2_adaptive_window(mut self, enabled: Option<bool>) -> Self {
        self.options.http2.adaptive_window = enabled.unwrap_or_default();
        self
    }

    /// How often an HTTP/2 connection is asked whether its caller is there (PING): never unless set. A
    /// ring needs none: the kernel tells of the caller's death.
    #[must_use]
    pub fn http2_keepalive_interval(mut self, interval: Option<Duration>) -> Self {
        self.options.http2.keepalive_interval = interval;
        self
    }

    /// How long a caller may take to answer [`Server::http2_keepalive_interval`] before its connection is
    /// closed: 20 s unless set.
    #[must_use]
    pub fn http2_keepalive_timeout(mut self, timeout: Option<Duration>) -> Self {
        if let Some(timeout) = timeout {
            self.options.http2.keepalive_timeout = timeout;
        }
        self
    }

    /// How many calls that the caller has reset, and that are still to be taken in, a connection may have
    /// before it is closed: as many as [`Server::max_concurrent_streams`] unless set.
    #[must_use]
    pub fn http2_max_pending_accept_reset_streams(mut self, most: Option<usize>) -> Self {
        self.options.http2.pending_resets = most;
        self
    }

    /// How many calls of a connection may end by the caller's errors in HTTP/2 before it is closed: h2's
    /// 1,024 unless set.
    #[must_use]
    pub fn http2_max_local_error_reset_streams(mut self, most: Option<usize>) -> Self {
        self.options.http2.error_resets = most;
        self
    }

    /// The largest list of headers that is read, as HTTP/2 counts it (RFC 9113, section 6.5.2). A larger
    /// one is answered with 431. What is larger than a head may be on any route (see the limits of the
    /// crate) is refused in any case; with `None` that is the only limit, as it is unless set.
    #[must_use]
    pub fn http2_max_header_list_size(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.options.http2.header_list = bytes.into().unwrap_or(wire::LIST_BYTES);
        self
    }

    /// The largest HTTP/2 frame that is taken, from 16,384 to 16,777,215 bytes: 16,384 unless set.
    #[must_use]
    pub fn max_frame_size(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.options.http2.frame = bytes.into();
        self
    }

    /// How long all that is to be written to a connection may wait for its reader before the connection is
    /// closed: for ever unless set. A caller that reads little by little has no more time, so this is for
    /// servers whose answers are short.
    #[must_use]
    pub fn write_timeout(mut self, time: Option<Duration>) -> Self {
        self.options.http2.write_timeout = time;
        self
    }

    /// Sends small TCP segments without waiting for an acknowledgement (`TCP_NODELAY`): true unless set.
    /// Not for connections that the program accepts itself.
    #[must_use]
    pub fn tcp_nodelay(mut self, enabled: bool) -> Self {
        self.options.http2.nodelay = enabled;
        self
    }

    /// After how long without traffic the kernel asks whether a TCP caller is there (`TCP_KEEPIDLE`):
    /// never unless set. Not for connections that the program accepts itself.
    #[must_use]
    pub fn tcp_keepalive(mut self, time: Option<Duration>) -> Self {
        self.options.http2.tcp_keepalive = time;
        self
    }

    /// How long the kernel waits between such questions (`TCP_KEEPINTVL`), where
    /// [`Server::tcp_keepalive`] is set.
    #[must_use]
    pub fn tcp_keepalive_interval(mut self, interval: Option<Duration>) -> Self {
        self.options.http2.tcp_keepalive_interval = interval;
        self
    }

    /// How many such questions may go unanswered (`TCP_KEEPCNT`), where [`Server::tcp_keepalive`] is set.
    #[must_use]
    pub fn tcp_keepalive_retries(mut self, retries: Option<u32>) -> Self {
        self.options.http2.tcp_keepalive_retries = retries;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use tokio::net::TcpStream;
    use tokio_stream::StreamExt;

    async fn accepted(server: &Server) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut incoming = server.options.http2.incoming(listener);
        let _caller = TcpStream::connect(at).await.unwrap();
        incoming.next().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn sockets_of_tcp_callers_have_the_options_that_are_set() {
        let second = |n| Some(Duration::from_secs(n));
        let io = accepted(&Server::builder()).await;
        assert!(io.nodelay().unwrap() && !sockopt::socket_keepalive(&io).unwrap());
        let server = Server::builder().tcp_nodelay(false).tcp_keepalive(second(7));
        let server = server.tcp_keepalive_interval(second(3)).tcp_keepalive_retries(Some(5));
        let io = accepted(&server).await;
        assert!(!io.nodelay().unwrap() && sockopt::socket_keepalive(&io).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&io).unwrap(), Duration::from_secs(7));
        assert_eq!(sockopt::tcp_keepintvl(&io).unwrap(), Duration::from_secs(3));
        assert_eq!(sockopt::tcp_keepcnt(&io).unwrap(), 5);
    }
}
