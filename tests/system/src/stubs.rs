//! Callers by the stubs of either generator.

use partywall::{Channel, blocking};
use partywall_interop::cases::Client;
pub use partywall_interop::cases::Stubs;
use partywall_interop::proto::native::test_service_blocking;
use partywall_interop::proto::{SimpleRequest, SimpleResponse};
use partywall_interop::{Counts, Ways};
use tonic::codec::CompressionEncoding;
use tonic::{IntoRequest, Response, Status};

use crate::UNARY;

/// Arguments of a program whose calls, or whose service, are by these stubs.
pub fn with<'a>(stubs: Stubs, arguments: &[&'a str]) -> Vec<&'a str> {
    let native = (stubs == Stubs::Native).then_some("--native");
    arguments.iter().copied().chain(native).collect()
}

/// Looks at which way calls have gone at a service: by its native stubs nearly all are native, and by tonic's
/// none. Ordinary are the first, and those that find the ring nearly full, in pieces.
///
/// # Panics
/// When they have gone otherwise.
pub fn went(counts: Counts, stubs: Stubs) {
    let Counts { native, ordinary } = counts;
    match stubs {
        Stubs::Tonics => assert_eq!(native, 0, "native calls by tonic's stubs"),
        Stubs::Native => assert!(native > 9 * ordinary, "{native} native calls, {ordinary} others"),
    }
}

/// What a server has said at its end of the calls that native stubs have answered.
///
/// # Panics
/// When it has said something else.
pub fn counted(line: &str) -> Counts {
    let words: Vec<_> = line.split_whitespace().collect();
    let ["native", native, "ordinary", ordinary] = words[..] else { panic!("{line}") };
    Counts { native: native.parse().expect(line), ordinary: ordinary.parse().expect(line) }
}

/// A caller on one link: each call goes the way of its stubs, or it panics. The first one may wait for a
/// place, which only the ordinary way does: the service says how many there are when the link is there.
#[derive(Clone, Debug)]
pub struct Caller {
    client: Client<Channel>,
    ways: Ways,
    stubs: Stubs,
}

impl Caller {
    /// A caller on this channel.
    pub fn new(stubs: Stubs, channel: Channel) -> Self {
        let ways = Ways::default();
        Self { client: Client::new(stubs, channel, ways.clone()), ways, stubs }
    }

    /// One whose calls go the ordinary way at any service, which could compress their answers.
    pub fn ordinary(channel: Channel) -> Self {
        let Self { client, ways, stubs } = Self::new(Stubs::Tonics, channel);
        Self { client: client.accept_compressed(CompressionEncoding::Gzip), ways, stubs }
    }

    /// A call.
    ///
    /// # Errors
    /// Its status.
    ///
    /// # Panics
    /// When it has gone the other way.
    pub async fn call(
        &mut self,
        request: impl IntoRequest<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        let answer = self.client.unary_call(request).await;
        let Counts { native, ordinary } = self.ways.counts();
        let other = match self.stubs {
            Stubs::Tonics => native,
            Stubs::Native => ordinary.saturating_sub(1),
        };
        assert_eq!(other, 0, "calls by {:?} stubs have gone the other way", self.stubs);
        answer
    }
}

/// A caller without a runtime.
#[derive(Debug)]
pub enum Blocking {
    /// By the channel itself.
    Tonics(Box<blocking::Channel>),
    /// By native stubs.
    Native(Box<test_service_blocking::TestServiceClient>),
}

impl Blocking {
    /// A caller on this channel.
    pub fn new(stubs: Stubs, channel: blocking::Channel) -> Self {
        match stubs {
            Stubs::Tonics => Self::Tonics(Box::new(channel)),
            Stubs::Native => {
                Self::Native(Box::new(test_service_blocking::TestServiceClient::new(channel)))
            }
        }
    }

    /// A call.
    ///
    /// # Errors
    /// Its status.
    pub fn call(
        &mut self,
        request: impl IntoRequest<SimpleRequest>,
    ) -> Result<SimpleResponse, Status> {
        let answer = match self {
            Self::Tonics(channel) => channel.unary(UNARY, request.into_request()),
            Self::Native(client) => client.unary_call(request),
        };
        answer.map(Response::into_inner)
    }
}
