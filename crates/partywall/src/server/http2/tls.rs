//! Connections by mutual TLS: who calls, and what that one may.
//!
//! ```text
//! accepted   -> its task reads or writes: the handshake, with the certificate of now    CLOSED where it
//! fails certified  -> what the policy lets the SPIFFE ID call at the server's names: asked, and asked
//! again by a
//!               call that comes [`AGAIN`] later
//! a call     -> covered: the services; else PERMISSION_DENIED
//! ```
//!
//! A handshake takes place in the connection's own task, so one that takes its time holds nobody up; one that
//! says nothing is closed as any silent connection is. Where the coordinator has gone, what it has said last
//! counts.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use partywall_abi::name::{MethodSet, ServiceName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::transport::server::Connected;

use crate::coordinator::Client;
use crate::error;
use crate::lock::lock;
use crate::peer::CertifiedAs;
use crate::pins::Pins;
use crate::tls;

/// How long the coordinator may take to certify this process, or to say who may call what.
const WITHIN: Duration = Duration::from_secs(5);
/// How long what the policy lets a caller call is not asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// What the connections of a listener have in common.
#[derive(Clone)]
pub(in crate::server) struct Terms {
    pub(in crate::server) client: Arc<Client>,
    /// The names whose methods are called.
    pub(in crate::server) names: Arc<Vec<ServiceName>>,
    /// The keys that callers' certificates must be by.
    pub(in crate::server) pins: Pins,
}

impl Terms {
    /// Of a server that serves these names as well; without any, of all that it may serve.
    ///
    /// # Errors
    /// The process cannot be certified.
    pub(in crate::server) async fn new(
        client: Arc<Client>,
        names: &[ServiceName],
        pins: &Pins,
    ) -> Result<Self, error::Error> {
        let own = client.certified(WITHIN).await?;
        let may = own.certified.dns.iter().filter_map(|name| ServiceName::new(name).ok());
        let names = match names {
            [] => may.filter(|name| name.as_str() != "localhost").collect(),
            names => names.to_vec(),
        };
        Ok(Self { client, names: Arc::new(names), pins: pins.clone() })
    }
}

/// Who calls on a connection, once that is known.
#[derive(Clone)]
pub(super) struct Caller(Arc<Inner>);

struct Inner {
    terms: Terms,
    certified: OnceLock<CertifiedAs>,
    /// What it may call, and since when that is known.
    methods: Mutex<Option<(MethodSet, Instant)>>,
}

impl Caller {
    fn new(terms: Terms) -> Self {
        let (certified, methods) = (OnceLock::new(), Mutex::new(None));
        Self(Arc::new(Inner { terms, certified, methods }))
    }

    /// Who it is, if the policy lets it call that.
    pub(super) async fn may_call(&self, path: &str) -> Result<CertifiedAs, Status> {
        let certified = self.0.certified.get();
        let certified = certified.ok_or_else(|| Status::internal("a call before its handshake"))?;
        let id = &*certified.0;
        let known = lock(&self.0.methods).clone();
        let methods = match known {
            Some((methods, at)) if at.elapsed() < AGAIN => methods,
            known => match self.ask(id).await {
                Ok(methods) => methods,
                // It has gone, or does not answer.
                Err(why) => known.map(|(methods, _)| methods).ok_or(why)?,
            },
        };
        if methods.covers(path) {
            return Ok(certified.clone());
        }
        Err(error::denied(id, path, &methods))
    }

    async fn ask(&self, id: &str) -> Result<MethodSet, Status> {
        let Terms { client, names, .. } = &self.0.terms;
        let mut all = MethodSet::default();
        for name in names.iter() {
            let methods = client.may_call(name, id, WITHIN).await.map_err(Status::from)?;
            // To be listed at one name is enough: the first.
            if all.remedy().is_empty() {
                all = all.with_remedy(methods.remedy().to_owned());
            }
            methods.patterns().iter().for_each(|pattern| all.add(pattern.clone()));
        }
        *lock(&self.0.methods) = Some((all.clone(), Instant::now()));
        Ok(all)
    }
}

type Opening = Pin<Box<dyn Future<Output = io::Result<TlsStream<TcpStream>>> + Send>>;

enum State {
    Opening(Opening),
    Open(Box<TlsStream<TcpStream>>),
    Closed,
}

/// A connection; its handshake takes place when it is read or written first.
pub(super) struct Stream {
    state: State,
    caller: Caller,
}

impl Stream {
    pub(super) fn new(terms: Terms, tcp: TcpStream) -> Self {
        let caller = Caller::new(terms.clone());
        let known = caller.clone();
        let opening = async move {
            let own = terms.client.certified(WITHIN).await;
            let own = own.map_err(|why| io::Error::other(why.to_string()))?;
            let (stream, certified) = tls::accept((own, terms.pins), tcp).await?;
            known.0.certified.get_or_init(|| CertifiedAs(certified.id.as_str().into()));
            Ok(stream)
        };
        Self { state: State::Opening(Box::pin(opening)), caller }
    }

    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let State::Opening(opening) = &mut self.state {
            self.state = match ready!(opening.as_mut().poll(cx)) {
                Ok(stream) => State::Open(Box::new(stream)),
                Err(why) => {
                    tracing::debug!(%why, "a TLS connection was not opened");
                    self.state = State::Closed;
                    return Poll::Ready(Err(why));
                }
            };
        }
        match &mut self.state {
            State::Open(stream) => Poll::Ready(Ok(Pin::new(&mut **stream))),
            State::Opening(_) | State::Closed => {
                Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, to)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Open(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            State::Opening(_) | State::Closed => Poll::Ready(Ok(())),
        }
    }
}

impl Connected for Stream {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}
