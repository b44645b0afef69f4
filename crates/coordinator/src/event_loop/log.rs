//! The way to the audit log.
//!
//! Receipts that there is no room for wait. Whose they are waits for the answer, and sends no others: so
//! there is one batch of each connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::EventLoop;
use crate::audit::Event;
use crate::state::Conn;

/// How often receipts are tried that there was no room for.
const AGAIN: Duration = Duration::from_millis(5);
/// How often lines that the audit log owes are tried.
const AUDIT: Duration = Duration::from_secs(1);

/// Receipts of a connection, and the number of its request.
type Batch = (Conn, u32, Vec<Event>);

/// Those that wait, oldest first, and until when.
#[derive(Default)]
pub(super) struct Receipts {
    waiting: VecDeque<Batch>,
    pub(super) at: Option<Instant>,
}

impl EventLoop {
    /// Writes a line.
    pub(super) fn log(&mut self, event: &Event) {
        tracing::debug!(?event, "audit");
        if let Some(telemetry) = &self.telemetry {
            telemetry.event(event);
        }
        if let Some(audit) = &mut self.audit {
            audit.event(event);
            if self.audit_at.is_none() && audit.owes() {
                self.audit_at = Some(Instant::now() + AUDIT);
            }
        }
    }

    /// Writes what is due.
    pub(super) fn write_due(&mut self, now: Instant) {
        if self.receipts.at.is_some_and(|at| at <= now) {
            self.keep_receipts();
        }
        if self.audit_at.is_some_and(|at| at <= now)
            && let Some(audit) = &mut self.audit
        {
            audit.due();
            self.audit_at = audit.owes().then(|| now + AUDIT);
        }
    }

    /// Has these written when there is room for them.
    pub(super) fn keep(&mut self, batch: Batch) {
        self.receipts.waiting.push_back(batch);
        self.keep_receipts();
    }

    /// Has those written that there is room for.
    pub(super) fn keep_receipts(&mut self) {
        for (conn, request, events) in std::mem::take(&mut self.receipts.waiting) {
            // Where there is no log no end is told to send any.
            if self.audit.as_mut().is_none_or(|audit| audit.keep(&events)) {
                if let Some(telemetry) = &self.telemetry {
                    events.iter().for_each(|event| telemetry.event(event));
                }
                self.state.kept(conn, request);
            } else if self.tokens.contains_key(&conn) {
                self.receipts.waiting.push_back((conn, request, events));
            }
        }
        let waits = !self.receipts.waiting.is_empty();
        self.receipts.at = waits.then(|| Instant::now() + AGAIN);
    }
}
