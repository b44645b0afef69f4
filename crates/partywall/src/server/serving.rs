//! A server at work.

use std::future::{Future, Pending};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::watch;

use crate::error::Error;

/// A server at work; ready when it has ended. Dropping it ends the server at once.
///
/// It borrows nothing, so it can be spawned:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_reporter, service) = tonic_health::server::health_reporter();
/// let router = partywall::Server::builder().add_service(service);
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let serving = router.serve_with_shutdown("http://127.0.0.1:0", async { drop(stopped.await) });
/// let task = tokio::spawn(serving);
/// drop(stop);
/// task.await??;
/// # Ok(()) }
/// ```
#[must_use = "a server serves while it is polled"]
pub struct Serving<F = Pending<()>> {
    running: Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>,
    shutdown: Option<Pin<Box<F>>>,
    stop: watch::Sender<bool>,
}

impl<F> Serving<F> {
    pub(super) fn new<R>(run: impl FnOnce(watch::Sender<bool>) -> R, shutdown: F) -> Self
    where
        R: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let stop = watch::Sender::new(false);
        let running = Box::pin(run(stop.clone()));
        Self { running, shutdown: Some(Box::pin(shutdown)), stop }
    }
}

impl<F> std::fmt::Debug for Serving<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("stopping", &*self.stop.borrow()).finish()
    }
}

impl<F: Future<Output = ()>> Future for Serving<F> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let this = &mut *self;
        if let Some(shutdown) = &mut this.shutdown
            && shutdown.as_mut().poll(cx).is_ready()
        {
            this.shutdown = None;
            this.stop.send_replace(true);
        }
        this.running.as_mut().poll(cx)
    }
}
