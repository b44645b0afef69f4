//! The way to the audit log.
//!
//! Receipts that there is no room for wait. Whose they are waits for the answer, and sends no others: so
//! there is one batch of each connection. Each is made into lines once, when it comes.

use std::time::{Duration, Instant, SystemTime};

use super::EventLoop;
use crate::audit::{Event, Receipts};
use crate::state::Conn;

/// How often receipts are tried that there was no room for.
const AGAIN: Duration = Duration::from_millis(5);
/// How often lines that the audit log owes are tried.
const AUDIT: Duration = Duration::from_secs(1);

/// Receipts that wait, oldest first, whose and in answer to what, and until when.
#[derive(Default)]
pub(super) struct Waiting {
    batches: Vec<(Conn, u32, Receipts)>,
    pub(super) at: Option<Instant>,
}

impl EventLoop {
    /// Writes a line.
    pub(super) fn log(&mut self, event: &Event) {
        tracing::debug!(?event, "audit");
        if let Some(telemetry) = &self.telemetry {
            telemetry.event(event, 1);
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
            self.receipts.at = None;
            for (conn, request, receipts) in std::mem::take(&mut self.receipts.batches) {
                if self.tokens.contains_key(&conn) {
                    self.keep(conn, request, receipts);
                }
            }
        }
        if self.audit_at.is_some_and(|at| at <= now)
            && let Some(audit) = &mut self.audit
        {
            audit.due();
            self.audit_at = audit.owes().then(|| now + AUDIT);
        }
    }

    /// Has receipts written, now or when there is room for them.
    pub(super) fn hand_in(&mut self, conn: Conn, request: u32, events: Vec<Event>) {
        match Receipts::new(events, SystemTime::now()) {
            Some(receipts) => self.keep(conn, request, receipts),
            None => self.state.kept(conn, request),
        }
    }

    fn keep(&mut self, conn: Conn, request: u32, mut receipts: Receipts) {
        let now = Instant::now();
        // Where there is no log no end is told to send any.
        if self.audit.as_mut().is_none_or(|audit| audit.keep(&mut receipts, now)) {
            if let Some(telemetry) = &self.telemetry {
                telemetry.event(&receipts.one, receipts.count.into());
            }
            self.state.kept(conn, request);
        } else {
            self.receipts.batches.push((conn, request, receipts));
            self.receipts.at.get_or_insert(now + AGAIN);
        }
    }
}
