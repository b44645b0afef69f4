//! The codec by which tonic's ordinary way carries messages whose types it does not know.

use std::any::Any;
use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::message::{self, Encode};

/// A message that has come.
pub(crate) struct Decoded {
    message: Box<dyn Any + Send + Sync>,
    /// Bytes that it had.
    pub(super) len: usize,
}

impl Decoded {
    /// As what its decoder has made it.
    pub(super) fn into_message<M: 'static>(self) -> M {
        *self.message.downcast().expect("a message by the decoder of its type")
    }
}

/// How messages of one type are decoded.
#[derive(Clone, Copy)]
pub(crate) struct Decodes(fn(Bytes) -> Result<Box<dyn Any + Send + Sync>, DecodeError>);

impl Decodes {
    pub(super) const fn of<M: Message + Default + 'static>() -> Self {
        Self(|data| {
            let mut message = Box::new(M::default());
            message.merge(data)?;
            Ok(message)
        })
    }
}

impl Decoder for Decodes {
    type Item = Decoded;
    type Error = Status;

    fn decode(&mut self, data: &mut DecodeBuf<'_>) -> Result<Option<Decoded>, Status> {
        let len = data.remaining();
        let message = (self.0)(data.copy_to_bytes(len)).map_err(message::undecoded)?;
        Ok(Some(Decoded { message, len }))
    }
}

/// What a message travels in.
pub(super) trait Carries: Send + 'static {
    fn message(&self) -> &dyn Encode;
}

impl Carries for Box<dyn Encode> {
    fn message(&self) -> &dyn Encode {
        &**self
    }
}

/// Encodes messages in what they travel in.
pub(super) struct Encodes<C>(PhantomData<fn(C)>);

impl<C: Carries> Encoder for Encodes<C> {
    type Item = C;
    type Error = Status;

    fn encode(&mut self, item: C, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let message = item.message();
        // tonic checks its length when it is there.
        let reserve = |out: &mut EncodeBuf<'_>, len| out.reserve(len);
        message::append(out, reserve, message, message.said(), |_| Ok(())).map(drop)
    }
}

/// Sends messages in `C`, and takes those that are decoded so.
pub(super) struct Codec<C>(Decodes, PhantomData<fn(C)>);

impl<C> Codec<C> {
    pub(super) fn new(decodes: Decodes) -> Self {
        Self(decodes, PhantomData)
    }
}

impl<C: Carries> tonic::codec::Codec for Codec<C> {
    type Encode = C;
    type Decode = Decoded;
    type Encoder = Encodes<C>;
    type Decoder = Decodes;

    fn encoder(&mut self) -> Encodes<C> {
        Encodes(PhantomData)
    }

    fn decoder(&mut self) -> Decodes {
        self.0
    }
}
