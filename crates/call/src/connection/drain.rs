//! A service's wish for no more calls, and its caller's word that none come.

use std::time::Instant;

use super::{Connection, DRAIN_TIME, Drain};
use crate::control::Control;

impl<T: Default> Connection<T> {
    /// Asks the caller for no more calls.
    pub fn drain(&mut self, now: Instant) {
        debug_assert!(!self.caller, "a service drains");
        if self.drain == Drain::No {
            self.drain = Drain::Asked(now);
            self.push(Control::Drain);
        }
    }

    /// Tells a draining service that no more calls come, once all heads are on the ring.
    pub(super) fn acknowledge(&mut self) {
        if self.caller && self.drain == Drain::Refusing && self.unbegun == 0 {
            self.drain = Drain::Acknowledged;
            self.push(Control::Drain);
        }
    }

    /// Whether the service wants no more calls.
    pub fn is_draining(&self) -> bool {
        self.drain != Drain::No
    }

    /// Whether no more calls come, and none is open.
    pub fn is_drained(&self) -> bool {
        matches!(self.drain, Drain::Refusing | Drain::Acknowledged) && self.open.is_empty()
    }

    /// When [`Connection::handle_timeout`] is due.
    pub fn timeout(&self) -> Option<Instant> {
        match self.drain {
            Drain::Asked(at) => Some(at + DRAIN_TIME),
            _ => None,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timeout().is_some_and(|at| now >= at) {
            self.drain = Drain::Refusing;
        }
    }
}
