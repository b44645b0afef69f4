//! Calls on a link whose messages are signed: the request goes with its signature, and the answer is taken
//! apart and checked when it has come to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_trust::message::SIGNATURE_BYTES;

use super::failed::Failed;
use super::open::{Call, Message, Open, Request};
use crate::coordinator::Room;
use crate::link::broken::Broken;
use crate::link::signed::{CERTIFIED, Signing, signed, verified};
use crate::wire::PREFIX;

/// How often a receipt is tried that there is no room for.
const AGAIN: Duration = Duration::from_millis(1);

impl Open {
    /// As [`Open::exchange`], where messages are signed.
    pub(super) fn exchange_signed(
        &mut self,
        signing: &Arc<Signing>,
        request: &Request<'_>,
        timeout: Option<Duration>,
        buffer: &mut Vec<u8>,
        call: &mut Call,
    ) -> Result<(), Failed> {
        let own = |call: &Call| {
            let left = |at: Instant| at.saturating_duration_since(Instant::now());
            let within = call.deadline.map_or(CERTIFIED, left).min(CERTIFIED);
            signing.client().certified_here(within).map_err(|why| Failed::Abort(why.into()))
        };
        let of_call = signing.call(request.path);
        let mut encoded = Vec::new();
        let message = match request.message {
            Message::Encoded(message) => message,
            Message::ToEncode(message) => {
                message.append_to(&mut encoded).map_err(Failed::Abort)?;
                &encoded
            }
        };
        let message = signed(&of_call, message, &*own(call)?).map_err(Failed::Abort)?;
        let message = Message::Encoded(&message);
        let request = Request { method: None, message, ..*request };
        let limit = call.limit;
        call.limit = limit.saturating_add(PREFIX + SIGNATURE_BYTES);
        self.exchange(&request, timeout, buffer, call)?;
        let data = match call.answer.plain {
            Some(len) => &self.payload[self.payload.len() - len..],
            None => call.answer.data(),
        };
        let checked = verified(&of_call, data, &*own(call)?);
        let checked = checked.map_err(|why| Failed::Link(Broken::Signed(why)))?;
        if signing.has_receipts() {
            for receipt in &checked.receipts {
                let room = loop {
                    match signing.client().room_for_receipt() {
                        Room::Now(Some(room)) => break room,
                        _ if call.deadline.is_some_and(|at| Instant::now() >= at) => {
                            return Err(Failed::Expired);
                        }
                        _ => std::thread::sleep(AGAIN),
                    }
                };
                signing.client().hand_in(receipt.to_bytes(), room);
            }
        }
        if checked.data.len() > limit {
            let status =
                crate::stubs::message::too_long(checked.data.len() - PREFIX, limit - PREFIX);
            return Err(Failed::Status(status));
        }
        match &mut call.answer.plain {
            Some(len) => (*len, self.payload) = (checked.data.len(), checked.data),
            None => (call.answer.data, call.answer.parcel) = (checked.data, None),
        }
        Ok(())
    }
}
