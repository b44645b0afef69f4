//! What processes say of links.

use std::time::Instant;

use partywall_abi::control::{EndMessage, LinkMessage};

use super::State;
use crate::state::Conn;
use crate::state::reports::Claim;

impl State {
    pub(in crate::state) fn link_message(
        &mut self,
        conn: Conn,
        message: LinkMessage,
        now: Instant,
    ) {
        match message {
            LinkMessage::Connect { request, name } => self.connect(conn, request, name, now),
            LinkMessage::Cancel { request } => self.cancel(conn, request, now),
            LinkMessage::Adopted { link, security } => self.adopted(conn, (link, security), now),
            LinkMessage::Report { request, token, role, name, security, grant } => {
                let claim = Claim { token, role, name, security, grant };
                self.report(conn, request, claim, now);
            }
            _ => self.breaks_rule(conn),
        }
    }

    pub(in crate::state) fn end_message(&mut self, conn: Conn, message: EndMessage, now: Instant) {
        match message {
            EndMessage::Closed { link, role, blame, stats } => {
                self.end_says_closed((conn, role), link, blame, stats, now);
            }
            _ => self.breaks_rule(conn),
        }
    }
}
