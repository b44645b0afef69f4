//! What a case runs against.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::{Code, Request, Status};

use super::check::{Failure, differs};
use super::client::Client;
use super::observer::Observer;
use super::{Stubs, Tap, Transport};
use crate::service::{CALL_TAG, Handle};
use crate::{BoxError, BoxFuture, Counts, Ways};

type Connect<T> = Arc<dyn Fn() -> BoxFuture<Result<T, BoxError>> + Send + Sync>;

/// A channel to a server, a way to open more, and the server's [`Handle`].
#[derive(Clone)]
pub struct Env<T> {
    channel: T,
    connect: Connect<T>,
    observer: Observer<T>,
    tonic_deadlines: bool,
    user_agent: &'static str,
    stubs: Stubs,
    ways: Ways,
}

impl<T: Transport> Env<T> {
    /// Cases use `channel` for their calls and `connect` where they need a fresh one; `handle`
    /// belongs to the service at the other end.
    pub fn new<F, Fut, E>(channel: T, handle: Handle, connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self::with(channel, Observer::Here(handle), connect)
    }

    /// As [`Env::new`], for a server elsewhere that has a [`Probe`](crate::service::Probe) as well.
    pub fn remote<F, Fut, E>(channel: T, connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let observer = Observer::There(channel.clone());
        Self::with(channel, observer, connect)
    }

    fn with<F, Fut, E>(channel: T, observer: Observer<T>, connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let connect: Connect<T> = Arc::new(move || {
            let connected = connect();
            Box::pin(async move { connected.await.map_err(Into::into) })
        });
        Self {
            channel,
            connect,
            observer,
            tonic_deadlines: false,
            user_agent: "tonic/",
            stubs: Stubs::default(),
            ways: Ways::default(),
        }
    }

    /// Whose stubs the cases call by; tonic's unless set.
    pub fn by(mut self, stubs: Stubs) -> Self {
        self.stubs = stubs;
        self
    }

    /// Which way the caller's end took unary calls, of those that were answered with a message, and not
    /// made through a [`Tap`].
    pub fn counts(&self) -> Counts {
        self.ways.counts()
    }

    /// What the user agent of the client's library has in it; `tonic/` unless set.
    pub fn names_itself(mut self, user_agent: &'static str) -> Self {
        self.user_agent = user_agent;
        self
    }

    pub(super) fn user_agent(&self) -> &'static str {
        self.user_agent
    }

    /// Also accepts the status which tonic's own transport gives after a deadline: CANCELLED,
    /// where gRPC asks for DEADLINE_EXCEEDED.
    pub fn tonic_deadlines(mut self) -> Self {
        self.tonic_deadlines = true;
        self
    }

    pub(super) fn stubs(&self) -> Stubs {
        self.stubs
    }

    pub(super) fn client(&self) -> Client<T> {
        self.client_of(self.channel.clone())
    }

    pub(super) fn client_of(&self, channel: T) -> Client<T> {
        Client::new(self.stubs, channel, self.ways.clone())
    }

    /// A client whose messages of HTTP are looked at, so that there have to be some.
    pub(super) fn tapped(&self, tap: &Tap<T>) -> Client<Tap<T>> {
        Client::new(self.stubs, tap.clone(), Ways::default())
    }

    pub(super) fn channel(&self) -> T {
        self.channel.clone()
    }

    pub(super) fn tap(&self) -> Tap<T> {
        Tap::new(self.channel.clone())
    }

    pub(super) fn handle(&self) -> Observer<T> {
        self.observer.clone()
    }

    pub(super) fn connect(&self) -> BoxFuture<Result<T, Failure>> {
        let connected = (self.connect)();
        Box::pin(async move { connected.await.map_err(|source| Failure::Connect { source }) })
    }

    /// Holds if `status` says that a deadline passed.
    pub(super) fn deadline_status(
        &self,
        what: &'static str,
        status: &Status,
    ) -> Result<(), Failure> {
        let tonics = status.code() == Code::Cancelled && status.message() == "Timeout expired";
        if status.code() == Code::DeadlineExceeded || (self.tonic_deadlines && tonics) {
            return Ok(());
        }
        Err(differs(what, status, Code::DeadlineExceeded))
    }
}

/// Gives the request a tag of its own and returns it.
pub(super) fn tag<M>(request: &mut Request<M>) -> Result<String, Failure> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let value = tag.parse().map_err(|_| differs("tag", &tag, "a metadata value"))?;
    request.metadata_mut().insert(CALL_TAG, value);
    Ok(tag)
}
