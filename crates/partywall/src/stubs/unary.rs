//! One unary call of a generated client: its messages, whose types nothing else knows of.

use bytes::Bytes;
use prost::{DecodeError, Message};
use tonic::Extensions;
use tonic::metadata::MetadataMap;

use super::codec::{Decoded, Decodes};
use super::message::Encode;
use super::method::Method;
use crate::attach;
use crate::link::attached::Attached;

/// A unary call with its request and, in the end, its answer.
#[derive(Debug)]
pub struct Unary<M, R> {
    method: &'static Method,
    request: Option<tonic::Request<M>>,
    response: Option<tonic::Response<R>>,
}

impl<M, R> Unary<M, R>
where
    M: Message + 'static,
    R: Message + Default + 'static,
{
    /// A call that is not made.
    #[inline]
    pub fn new(method: &'static Method, request: tonic::Request<M>) -> Self {
        Self { method, request: Some(request), response: None }
    }

    /// The answer.
    ///
    /// # Panics
    /// The call has not been made, or has failed.
    #[inline]
    pub fn response(self) -> tonic::Response<R> {
        self.response.expect("a call that has its answer")
    }

    /// It has this answer.
    #[cfg(feature = "blocking")]
    #[inline]
    pub(crate) fn succeed(&mut self, response: tonic::Response<R>) {
        self.response = Some(response);
    }

    fn request(&mut self) -> &mut tonic::Request<M> {
        self.request.as_mut().expect("a call that is not made")
    }
}

/// A unary call, whatever the types of its messages are.
pub(crate) trait Messages: Send {
    fn method(&self) -> &'static Method;

    /// Metadata and extensions of the request, and its message.
    fn metadata(&mut self) -> &mut MetadataMap;
    fn extensions(&mut self) -> &mut Extensions;
    fn message(&self) -> &dyn Encode;

    /// The request, for tonic's way.
    fn take(&mut self) -> tonic::Request<Box<dyn Encode>>;

    /// Decodes the answer's message; its metadata, to be filled in.
    ///
    /// # Errors
    /// There is no such message.
    fn decode(&mut self, message: Bytes) -> Result<&mut MetadataMap, DecodeError>;

    /// Puts what is attached to the answer there, once it is decoded.
    fn put(&mut self, attached: Option<Box<Attached>>);

    /// By which messages of the answer's type are decoded, and how such an answer is put in its place.
    fn decoder(&self) -> Decodes;
    fn answered(&mut self, response: tonic::Response<Decoded>);
}

impl<M, R> Messages for Unary<M, R>
where
    M: Message + 'static,
    R: Message + Default + 'static,
{
    fn method(&self) -> &'static Method {
        self.method
    }

    fn metadata(&mut self) -> &mut MetadataMap {
        self.request().metadata_mut()
    }

    fn extensions(&mut self) -> &mut Extensions {
        self.request().extensions_mut()
    }

    fn message(&self) -> &dyn Encode {
        self.request.as_ref().expect("a call that is not made").get_ref()
    }

    fn take(&mut self) -> tonic::Request<Box<dyn Encode>> {
        let request = self.request.take().expect("a call that is not made");
        request.map(|message| Box::new(message) as _)
    }

    fn decode(&mut self, message: Bytes) -> Result<&mut MetadataMap, DecodeError> {
        let response = self.response.insert(tonic::Response::new(R::default()));
        response.get_mut().merge(message)?;
        Ok(response.metadata_mut())
    }

    fn put(&mut self, attached: Option<Box<Attached>>) {
        if let Some(response) = &mut self.response {
            attach::put(response.extensions_mut(), attached);
        }
    }

    fn decoder(&self) -> Decodes {
        Decodes::of::<R>()
    }

    fn answered(&mut self, response: tonic::Response<Decoded>) {
        self.response = Some(response.map(Decoded::into_message));
    }
}
