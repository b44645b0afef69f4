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
pub(crate) struct Gate {
    gate: domain::Gate,
    predictor: Mutex<Predictor>,
}

/// The end of a link whose thread goes in.
pub(crate) trait Visitor {
    /// Takes back its need-wakeup flag: an answer that is there when the thread comes back needs no bell.
    fn awake(&mut self);

    /// How many records the peer has taken, if it sleeps and there are others.
    fn untaken(&mut self) -> Result<Option<u64>, Broken>;

    /// Rings the bell.
    fn ring(&mut self) -> Result<(), Broken>;

    fn is_closed(&self) -> bool;
}

impl Gate {
    pub(crate) fn new(gate: domain::Gate) -> Self {
        Self { gate, predictor: Mutex::new(Predictor::new()) }
    }

    /// Tells the peer of a record, the last of `end`'s.
    pub(crate) fn tell_of(
        &self,
        end: &mut impl Visitor,
        sent: Option<Sent<'_>>,
    ) -> Result<(), Broken> {
        let Some(sent) = sent.filter(|sent| domain::has_time(sent.due)) else { return end.ring() };
        let Some(method) = lock(&self.predictor).predict(sent.path) else { return end.ring() };
        end.awake();
        let mut seen = None;
        loop {
            let Visited { taken, waits } = self.gate.visit(sent.stream).map_err(Broken::Callee)?;
            if let Some(waits) = waits {
                lock(&self.predictor).learn(method, waits);
            }
            if !taken {
                return end.ring();
            }
            // What others have put there while this thread was inside, and found no other way in.
            let Some(taken) = end.untaken()? else { return Ok(()) };
            let taken = Some(taken);
            // The service says that it takes records, and takes none.
            if std::mem::replace(&mut seen, taken) == taken || end.is_closed() {
                return end.ring();
            }
        }
    }
}

impl Tell for Gate {
    fn tell(&self, link: &Link, sent: Option<Sent<'_>>) -> Result<(), Broken> {
        self.tell_of(&mut &*link, sent)
    }
}

impl Visitor for &Link {
    fn awake(&mut self) {
        if self.inbound.needs_wakeup()
            && let Some(mut rx) = self.inbound.try_lock()
        {
            self.inbound.awake(&mut rx);
        }
    }

    fn untaken(&mut self) -> Result<Option<u64>, Broken> {
        Ok(self.outbound.lock().untaken()?)
    }

    fn ring(&mut self) -> Result<(), Broken> {
        self.wake_peer(Wake::Doorbell)
    }

    fn is_closed(&self) -> bool {
        self.closed().is_some()
    }
}
