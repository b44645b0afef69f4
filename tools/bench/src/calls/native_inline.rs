//! What unary calls need at least, in one thread and without a link: a message is encoded, copied as a
//! receiver copies it, and decoded; the handler is boxed, and finds its caller in the request's extensions.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tonic::Request;

use super::client::{Client, echoes};
use super::stubs::native::Service;
use super::stubs::native::proto::Blob;
use super::stubs::native::proto::bench_server::Bench;
use super::tonic_inline;
use super::tonic_net::runtime;
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Calls without a link.
pub const NATIVE_INLINE: Contender = Contender::new(
    Kind::Floor,
    "native-inline",
    "what a unary call needs without a link: encode, copy, decode, the handler, and back, in one thread",
    tonic_inline::TONIC_INLINE.cases,
    call,
);

fn call(seat: &mut Seat) -> Result<Figures> {
    runtime()?.block_on(echoes(Inline::default(), seat))
}

/// As large as what a link tells a handler of its caller, and shared like that.
#[derive(Clone, Debug, Default)]
struct Peer {
    _identity: Arc<()>,
    _link: u64,
    _security: [u8; 5],
    _proven: Option<Arc<()>>,
}

const _: () = assert!(size_of::<Peer>() == size_of::<partywall::Peer>());

/// Both ends.
#[derive(Clone, Debug, Default)]
struct Inline {
    service: Service,
    peer: Peer,
    /// In place of a link's memory.
    record: Vec<u8>,
}

impl Inline {
    /// The message as the other end has it.
    fn across<M: Message + Default>(&mut self, message: &M) -> Result<M> {
        self.record.clear();
        message.encode(&mut self.record)?;
        Ok(M::decode(Bytes::copy_from_slice(black_box(&self.record)))?)
    }
}

impl Client for Inline {
    async fn echo(&mut self, body: Bytes) -> Result<Bytes> {
        let mut request = Request::new(self.across(&Blob { body })?);
        request.extensions_mut().insert(self.peer.clone());
        // A box that the compiler sees through would cost nothing.
        let response = black_box(self.service.echo(request)).await?;
        Ok(self.across(&response.into_inner())?.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_request() {
        let body: Vec<u8> = (0..32).collect();
        let mut inline = Inline::default();
        let answer = runtime().expect("a runtime").block_on(inline.echo(body.clone().into()));
        assert_eq!(answer.expect("an answer"), body);
    }
}
