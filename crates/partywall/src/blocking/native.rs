//! Calls of clients that `partywall-build` generates.

use tonic::Status;
use tonic::metadata::MetadataMap;

use super::{Answer, Channel, Message, Request, message_of};
use crate::stubs::message::{Outgoing, Settings, undecoded, unprefixed};
use crate::stubs::method::Method;
use crate::wire;

impl Channel {
    /// Calls a unary method. The metadata of the answer are what the service has set.
    ///
    /// # Errors
    /// As those of [`Channel::unary`].
    pub(crate) fn native<M, R>(
        &mut self,
        method: &'static Method,
        request: tonic::Request<M>,
        settings: Settings,
    ) -> Result<tonic::Response<R>, Status>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let (metadata, _extensions, message) = request.into_parts();
        let message = Outgoing::new(&message, settings.encoded)?;
        let mut headers = metadata.into_headers();
        wire::without_not_sent(&mut headers);
        let (path, message) = (method.path(), Message::ToEncode(message));
        let answer =
            self.exchange(&Request { path, method: Some(method), headers: &headers, message })?;
        let data = self.data_of(&answer);
        message_of(data)?;
        let message = R::decode(unprefixed(data, settings.decoded)?).map_err(undecoded)?;
        let metadata = own_metadata(answer);
        Ok(tonic::Response::from_parts(metadata, message, http::Extensions::new()))
    }
}

/// What the service has set.
fn own_metadata(mut answer: Answer) -> MetadataMap {
    match answer.plain {
        Some(_) => MetadataMap::new(),
        None => wire::without_https(MetadataMap::from_headers(answer.headers())),
    }
}
