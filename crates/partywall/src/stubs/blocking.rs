//! What a generated client without a runtime calls by.

use prost::Message;
use tonic::Status;

use super::demand::{Demand, Nothing, Requires};
use super::message::Settings;
use super::method::Method;
use super::unary::Unary;
use crate::blocking::Channel;

/// The calls of a client on a channel of its own.
#[derive(Debug)]
pub struct Blocking {
    channel: Channel,
    settings: Settings,
}

impl Blocking {
    /// A client of a service.
    pub fn new(channel: Channel) -> Self {
        Self { channel, settings: Settings::default() }
    }

    /// The channel.
    pub fn into_inner(self) -> Channel {
        self.channel
    }

    /// Limits messages that are received.
    #[must_use]
    pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
        self.settings.decoded = Some(limit);
        self
    }

    /// Limits messages that are sent.
    #[must_use]
    pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
        self.settings.encoded = Some(limit);
        self
    }

    /// A unary call of messages of prost's.
    ///
    /// # Errors
    /// The status of the call.
    pub fn call<M, R>(
        &mut self,
        method: &'static Method,
        request: tonic::Request<M>,
    ) -> Result<tonic::Response<R>, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        self.unary(method, request, Nothing)
    }

    /// The same with a demand.
    ///
    /// # Errors
    /// The status of the call; FAILED_PRECONDITION.
    pub fn demanding<M, R>(
        &mut self,
        demand: &'static Demand,
        method: &'static Method,
        request: tonic::Request<M>,
    ) -> Result<tonic::Response<R>, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        self.unary(method, request, demand)
    }

    fn unary<M, R>(
        &mut self,
        method: &'static Method,
        request: tonic::Request<M>,
        requires: impl Requires,
    ) -> Result<tonic::Response<R>, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut call = Unary::new(method, request);
        self.channel.native(&mut call, self.settings, requires)?;
        Ok(call.response())
    }
}
