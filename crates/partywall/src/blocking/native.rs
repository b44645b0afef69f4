//! Calls of clients that `partywall-build` generates.
//!
//! What does not depend on the types of the messages is compiled once, as in [`crate::stubs`].

use tonic::Status;

use super::open::{Message, Request};
use super::{Channel, Counted};
use crate::attach;
use crate::stubs::Unary;
use crate::stubs::demand::Requires;
use crate::stubs::message::{self, Outgoing, Settings};
use crate::stubs::native;
use crate::stubs::unary::Messages;
use crate::wire;

impl Channel {
    /// Makes a unary call. The metadata of the answer are what the service has set.
    ///
    /// # Errors
    /// As those of [`Channel::unary`].
    pub(crate) fn native<M, R>(
        &mut self,
        call: &mut Unary<M, R>,
        settings: Settings,
        requires: impl Requires,
    ) -> Result<(), Status>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let path = call.method().path();
        self.told(path, |channel, counted| {
            if let Some(message) = channel.exchange_messages(call, settings, requires, counted)? {
                let message = R::decode(message).map_err(message::undecoded)?;
                call.succeed(tonic::Response::new(message));
            }
            Ok(())
        })
    }

    /// Makes a call. Of an answer that is one message without metadata, that is returned, to be decoded from
    /// the buffer into which all records are copied.
    fn exchange_messages<'a>(
        &'a mut self,
        call: &mut dyn Messages,
        settings: Settings,
        requires: impl Requires,
        counted: &mut Counted,
    ) -> Result<Option<&'a [u8]>, Status> {
        let mut headers = std::mem::take(call.metadata()).into_headers();
        wire::without_not_sent(&mut headers);
        let attached = attach::attached(call.extensions())?;
        let (method, message) = (call.method(), Outgoing::new(call.message(), settings.encoded)?);
        counted.sent = Some(message.len());
        let message = Message::ToEncode(message);
        let request = Request {
            path: method.path(),
            method: Some(method),
            headers: &headers,
            attached: attached.as_deref(),
            message,
        };
        let most = settings.decoded.unwrap_or(self.message_limit);
        let answer = self.exchange(&request, requires, most)?;
        let plain = answer.plain.map(|len| self.last(len)).unwrap_or_default();
        if message::is_sole(plain) {
            counted.received = plain.len();
            return message::unprefixed(plain, Some(most)).map(Some);
        }
        let begun = answer.begun(plain);
        counted.received = native::whole_answer(call, begun, Some(most))?;
        Ok(None)
    }
}
