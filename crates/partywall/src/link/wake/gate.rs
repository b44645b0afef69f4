//! Through the call gate: the caller's own thread takes the request off the service's ring.
//!
//! [`crate::domain`] describes the visit. Only a whole request is worth one, of a
//! method whose handlers do not wait ([`super::predictor`]) and with time for it; for all else, and
//! whenever the service takes nothing, the bell is rung.

use std::sync::Mutex;

use partywall_shm::ring::Wake;

use super::predictor::Predictor;
use super::{Sent, Tell};
use crate::domain::{self, Visited};
use crate::link::Link;
use crate::link::broken::Broken;
use crate::lock::lock;

/// The way into a peer of the same launcher.
pub(in crate::link) struct Gate {
    gate: domain::Gate,
    predictor: Mutex<Predictor>,
}

impl Gate {
    pub(in crate::link) fn new(gate: domain::Gate) -> Self {
        Self { gate, predictor: Mutex::new(Predictor::new()) }
    }
}

impl Tell for Gate {
    fn tell(&self, link: &Link, sent: Option<Sent<'_>>) -> Result<(), Broken> {
        let Some(sent) = sent.filter(|sent| domain::has_time(sent.due)) else {
            return link.wake_peer(Wake::Doorbell);
        };
        let Some(method) = lock(&self.predictor).predict(sent.path) else {
            return link.wake_peer(Wake::Doorbell);
        };
        // An answer that is there when this thread comes back needs no bell.
        if link.inbound.needs_wakeup()
            && let Some(mut rx) = link.inbound.try_lock()
        {
            link.inbound.awake(&mut rx);
        }
        let mut seen = None;
        loop {
            let Visited { taken, waits } = self.gate.visit(sent.stream).map_err(Broken::Callee)?;
            if let Some(waits) = waits {
                lock(&self.predictor).learn(method, waits);
            }
            if !taken {
                return link.wake_peer(Wake::Doorbell);
            }
            // What others have put there while this thread was inside, and found no other way in.
            let mut tx = link.outbound.lock();
            let Some(taken) = tx.untaken()? else { return Ok(()) };
            drop(tx);
            let taken = Some(taken);
            // The service says that it takes records, and takes none.
            if std::mem::replace(&mut seen, taken) == taken || link.closed().is_some() {
                return link.wake_peer(Wake::Doorbell);
            }
        }
    }
}
