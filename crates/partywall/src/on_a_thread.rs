//! What blocks, from async code.

use partywall_shm::threads;
use tokio::sync::oneshot;

use crate::error::Error;

/// Runs what blocks on a thread of its own: one of the runtime's would linger, and wake up to end, and it may
/// have none left.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (tx, rx) = oneshot::channel();
    let thread = std::thread::Builder::new().name(name.into());
    threads::spawn(thread, move || drop(tx.send(run())))
        .map_err(|source| Error::Io { what: "starting a thread".into(), source })?;
    rx.await.unwrap_or(Err(Error::CoordinatorGone("the attempt to connect panicked")))
}
