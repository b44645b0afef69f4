//! The memory of a link, for an operator who looks into it.

use partywall_abi::control::Message;

use super::EventLoop;
use crate::state::Conn;

impl EventLoop {
    /// Hands both outboxes of a link to an operator, for reading.
    pub(super) fn trace(&mut self, link: u64, (to, request): (Conn, u32), message: &Message) {
        match self.memories.for_operator(link) {
            Ok(parts) => self.send(to, message, parts),
            Err(why) => self.state.not_traced((to, request), &why),
        }
    }
}
