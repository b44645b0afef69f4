//! Ctrl-C: a flag that the driver looks at between and during samples.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Set once the user has asked for an end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Starts to listen for SIGINT, SIGTERM and SIGHUP.
    pub fn listen() -> io::Result<Self> {
        let stop = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut interrupt, mut terminate, mut hangup) = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            )
        };
        let flag = stop.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            flag.0.store(true, Relaxed);
        })?;
        Ok(stop)
    }

    /// Whether an end was asked for.
    pub fn requested(&self) -> bool {
        self.0.load(Relaxed)
    }
}
