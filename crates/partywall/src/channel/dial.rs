//! Addresses over the network, and the connections to them.
//!
//! ```text
//! connect: dial (again, if it is to wait for the server) -> HTTP/2 by tonic's own client
//! connect_once: dial -> HTTP/2, which says when it is over, and is not dialled again
//! ```
//!
//! A connection is dialled by hyper's connector for TCP, by a Unix socket's path, or by a connector of the
//! program's own.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use partywall_abi::security::Security;
use partywall_shm::address;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tonic::transport::{Channel as Transport, Endpoint};
use tower::{BoxError, Service, ServiceExt};

use super::Route;
use super::over::{Over, Watched};
use super::settings::Settings;
use crate::backoff::Backoff;
use crate::coordinator::{self, Place};
use crate::error::{Error, cause, chain};
use crate::lock::lock;
use crate::pins::Pins;
use crate::target::{Target, TargetError};
use crate::tls::Unpinned;
use crate::{tls, unix, wire};

/// Most bytes of a head or of trailers that are received, unless it is set: far more than a call may have,
/// so that what is too long is told and not cut.
const HEADS: u32 = 1 << 20;

/// The ports of addresses that have none.
const HTTP: u16 = 80;
const HTTPS: u16 = 443;

fn port_of(uri: &Uri, default: u16) -> u16 {
    uri.port_u16().unwrap_or(default)
}

/// The host and port that a target's addresses are asked by, if its host is a name.
pub(super) fn host_of(target: &Target) -> Option<(String, u16)> {
    let (url, default) = match target {
        Target::Http(url) => (url, HTTP),
        Target::Https(url) => (url, HTTPS),
        _ => return None,
    };
    let uri: Uri = url.parse().ok()?;
    let host = uri.host()?;
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    (!is_address).then(|| (host.to_owned(), port_of(&uri, default)))
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

type Dialled = Pin<Box<dyn Future<Output = io::Result<Box<dyn Socket>>> + Send>>;

/// What a server is to be certified for.
type Name = Arc<std::sync::Mutex<String>>;

/// What makes one connection.
#[derive(Clone)]
pub(super) struct Dialing(Arc<dyn Fn() -> Dialled + Send + Sync>);

impl Dialing {
    fn tcp(uri: Uri, http2: &Endpoint, local: Option<IpAddr>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(http2.get_tcp_nodelay());
        connector.set_keepalive(http2.get_tcp_keepalive());
        connector.set_keepalive_interval(http2.get_tcp_keepalive_interval());
        connector.set_keepalive_retries(http2.get_tcp_keepalive_retries());
        connector.set_local_address(local);
        Self::by(connector, uri)
    }

    /// By mutual TLS, with the certificate of this process at its coordinator; the server's is for that name.
    fn tls(self, (place, pins): (Place, Pins), name: Name) -> Self {
        Self(Arc::new(move || {
            let (connecting, place, name) = ((self.0)(), place.clone(), Arc::clone(&name));
            let pins = pins.clone();
            Box::pin(async move {
                let failed = |error: Error| io::Error::other(error.to_string());
                let patience = place.patience();
                let client = coordinator::get_async(&place, patience).await.map_err(failed)?;
                let own = client.certified(patience).await.map_err(failed)?;
                let name = lock(&name).clone();
                let stream = connecting.await?;
                Ok(Box::new(tls::connect((own, pins), &name, stream).await?) as _)
            })
        }))
    }

    fn unix(path: PathBuf) -> Self {
        Self(Arc::new(move || {
            let path = path.clone();
            Box::pin(async move { Ok(Box::new(unix::Stream::connect(&path).await?) as _) })
        }))
    }

    /// By a connector, to which connections are the same whoever asks.
    pub(super) fn by<C>(connector: C, uri: Uri) -> Self
    where
        C: Service<Uri> + Send + 'static,
        C::Response: Read + Write + Send + Unpin,
        C::Future: Send,
        BoxError: From<C::Error>,
    {
        let connector = Arc::new(Mutex::new(connector));
        Self(Arc::new(move || {
            let (connector, uri) = (Arc::clone(&connector), uri.clone());
            Box::pin(async move {
                let connecting = {
                    let mut connector = connector.lock().await;
                    let ready = connector.ready().await.map_err(failed)?;
                    ready.call(uri)
                };
                let connection = connecting.await.map_err(failed)?;
                Ok(Box::new(TokioIo::new(connection)) as _)
            })
        }))
    }
}

/// What a connector says, as the system's own error if there is one in it.
fn failed<E>(error: E) -> io::Error
where
    BoxError: From<E>,
{
    let error = BoxError::from(error);
    let system = chain(&*error).find_map(|e| e.downcast_ref::<io::Error>());
    match system {
        Some(system) => io::Error::new(system.kind(), system.to_string()),
        None => io::Error::other(cause(&*error)),
    }
}

/// The settings of HTTP/2 and TCP.
#[derive(Clone)]
pub(super) struct Network {
    /// By tonic's own type; its address stands for any.
    pub(super) http2: Endpoint,
    pub(super) local: Option<IpAddr>,
}

impl Default for Network {
    fn default() -> Self {
        let http2 = Endpoint::from_static("http://localhost").http2_max_header_list_size(HEADS);
        Self { http2, local: None }
    }
}

impl From<tonic::transport::Error> for Error {
    fn from(error: tonic::transport::Error) -> Self {
        Self::Http2(error.into())
    }
}

/// How to connect to an address.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// How long one attempt may take.
    pub(super) within: Duration,
    /// Whether the first connection is tried for until it is there.
    pub(super) first: bool,
    /// The same for those after it.
    pub(super) later: bool,
}

/// A server's address, and how it is spoken to.
#[derive(Clone)]
pub(super) struct Address {
    url: String,
    /// What protects a connection to it.
    security: Security,
    dialing: Dialing,
    /// What its server is to be certified for, if it is by TLS.
    name: Option<Name>,
    /// The settings of HTTP/2.
    http2: Endpoint,
}

impl Address {
    /// The address of a target that is no name; at one of those that its host has, if there is one.
    pub(super) fn of(
        (target, at): (&Target, Option<SocketAddr>),
        network: &Network,
        settings: &Settings,
        (place, pins): (&Place, &Pins),
    ) -> Result<Self, TargetError> {
        let http2 = network.http2.clone().buffer_size(settings.buffer_size);
        let (local, origin) = (network.local, settings.origin.as_ref());
        let (url, address) = match target {
            Target::Http(url) | Target::Https(url) => (url.clone(), address::Address::parse(url)?),
            Target::Unix(path) => {
                (format!("unix:{}", path.display()), address::Address::Unix(path.clone()))
            }
            Target::Name(name) => return Err(TargetError::Scheme { text: name.to_string() }),
        };
        let security = address.security();
        let mut name = None;
        // The connector for TCP takes no other scheme.
        let dialled = |uri: &Uri, port| {
            let at = match at {
                Some(at) => at.to_string(),
                None => format!("{}:{}", uri.host().unwrap_or_default(), port_of(uri, port)),
            };
            format!("http://{at}").parse().unwrap_or_else(|_| uri.clone())
        };
        let (dialing, uri) = match address {
            address::Address::Http(uri) => (Dialing::tcp(dialled(&uri, HTTP), &http2, local), uri),
            address::Address::Https(uri) => {
                let host = tls::name_of(uri.host().unwrap_or_default());
                let host = name.insert(Name::new(host.to_owned().into()));
                let tcp = Dialing::tcp(dialled(&uri, HTTPS), &http2, local);
                (tcp.tls((place.clone(), pins.clone()), Arc::clone(host)), uri)
            }
            address::Address::Unix(path) => {
                (Dialing::unix(path), Uri::from_static("http://localhost"))
            }
        };
        let http2 = http2.origin(origin.cloned().unwrap_or(uri));
        let http2 = http2.user_agent(wire::USER_AGENT).expect("a header's value");
        let url = at.map_or(url.clone(), |at| format!("{url} at {}", at.ip()));
        Ok(Self { url, security, dialing, name, http2 })
    }

    /// The same address, whose server is to be certified for this name, if it is certified.
    pub(super) fn certified_for(self, name: &str) -> Self {
        self.name.iter().for_each(|own| *lock(own) = name.to_owned());
        self
    }

    /// The same address by a connector of which nothing is known.
    pub(super) fn by(self, dialing: Dialing) -> Self {
        Self { security: Security::LOWEST, dialing, ..self }
    }

    /// The address, as it was written, and which one of its host's it is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// As calls of a channel travel to it.
    pub(super) fn route(&self) -> Route {
        Route::Http2 { url: self.url.clone(), security: self.security }
    }

    /// A connected channel.
    pub(super) async fn connect(&self, patience: Patience) -> Result<Transport, Error> {
        let connected = self.http2.connect_with_connector(self.connector(patience)).await;
        connected.map_err(|error| Self::failed(error, patience.within))
    }

    /// A channel over one connection, which is not made again: its calls fail when that is over.
    pub(super) async fn connect_once(
        &self,
        within: Duration,
        over: Arc<Over>,
    ) -> Result<Transport, Error> {
        let (address, mut first) = (self.clone(), true);
        let connector = tower::service_fn(move |_| {
            let (address, over) = (address.clone(), Arc::clone(&over));
            let first = std::mem::replace(&mut first, false);
            Box::pin(async move {
                if !first {
                    over.set();
                    let text = format!("{}: the connection is over", address.url);
                    return Err(io::Error::new(io::ErrorKind::NotConnected, text));
                }
                let socket = address.dial(within, false).await?;
                Ok(TokioIo::new(Watched::new(socket, over)))
            })
        });
        let connected = self.http2.connect_with_connector(connector).await;
        connected.map_err(|error| Self::failed(error, within))
    }

    fn failed(error: tonic::transport::Error, within: Duration) -> Error {
        if let Some(unpinned) = chain(&error).find_map(Unpinned::of) {
            return Error::NotPinned { text: unpinned.to_string() };
        }
        let timed_out = chain(&error)
            .filter_map(|e| e.downcast_ref::<io::Error>())
            .any(|e| e.kind() == io::ErrorKind::TimedOut);
        if timed_out { Error::TimedOut(within) } else { error.into() }
    }

    /// A channel that connects at its first call.
    pub(super) fn lazy(&self, patience: Patience) -> Transport {
        self.http2.connect_with_connector_lazy(self.connector(patience))
    }

    fn connector(
        &self,
        patience: Patience,
    ) -> impl Service<
        Uri,
        Response = TokioIo<Box<dyn Socket>>,
        Error = io::Error,
        Future = impl Future<Output = io::Result<TokioIo<Box<dyn Socket>>>> + Send + Unpin,
    > + Send
    + 'static {
        let address = self.clone();
        let mut waits = patience.first;
        tower::service_fn(move |_| {
            let (address, waits) = (address.clone(), std::mem::replace(&mut waits, patience.later));
            Box::pin(async move { address.dial(patience.within, waits).await.map(TokioIo::new) })
        })
    }

    async fn dial(&self, within: Duration, waits: bool) -> io::Result<Box<dyn Socket>> {
        let mut backoff = Backoff::new();
        loop {
            let why = match tokio::time::timeout(within, (self.dialing.0)()).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(e)) => match Unpinned::of(&e) {
                    // No waiting mends that.
                    Some(unpinned) => return Err(unpinned.at(&self.url)),
                    None => io::Error::new(e.kind(), format!("{}: {e}", self.url)),
                },
                Err(_) => {
                    let text = format!("{}: no answer within {within:?}", self.url);
                    io::Error::new(io::ErrorKind::TimedOut, text)
                }
            };
            if !waits {
                return Err(why);
            }
            tracing::debug!(%why, "not connected; it is tried again");
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}
