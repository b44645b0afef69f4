//! What a generated service answers by.
//!
//! # Its table
//!
//! ```text
//! unknown    the service is mounted: its calls go the ordinary way, with an offer in their extensions
//! full       it has offered its methods: they go natively
//! empty      it has answered without: its calls go the ordinary way for good
//! ```
//!
//! A table is written once, by the first request that comes to either; a second one at that time finds it so.
//! A first call that dies or is cancelled leaves it unknown.
//!
//! # A call
//!
//! ```text
//! Working    the handler is polled; its request is decoded first
//! Answered   with the length that its message says: encoded into the reserved record, or taken in pieces,
//!            after which that is none
//! Broken     the message is over the limit: a head, and then the reason
//! Failed     the handler's status, or that its request could not be decoded: trailers alone
//! ```
//!
//! In each of them the call may be dropped, and its handler with it: the caller has reset it or is dead, its
//! deadline has passed, the right to its method is gone, the link has ended. A panic of the handler or of a
//! message is the call's own: INTERNAL.

use std::any::TypeId;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use partywall_abi::frame::{self, ResponseHead, Trailers};
use partywall_shm::slot::SlotBuf;
use pin_project_lite::pin_project;
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::EnabledCompressionEncodings;
use tonic::codegen::{BoxFuture, StdError};
use tonic::metadata::MetadataMap;
use tonic::server::UnaryService;

use super::codec::{Carries, Codec, Decoded, Decodes};
use super::demand::Demand;
use super::gather::Gather;
use super::message::{self, Encode, Outgoing, Settings};
use crate::attach;
use crate::link::attached::{Attached, Attaching};
use crate::link::whole::Whole;
use crate::peer::{Deadline, Peer, security_of};
use crate::wire;

/// A generated service: its unary methods, to be called without HTTP.
pub trait Generated: Send + Sync + 'static {
    /// The methods. A method's number is its place here.
    fn methods(&self) -> &'static [Served];

    /// Limits of messages.
    fn settings(&self) -> Settings;

    /// Begins to answer a call of the method with this number.
    fn begin(&self, method: usize, request: Incoming) -> Begun;
}

/// A unary method as its service has it.
pub struct Served {
    path: &'static str,
    decodes: Decodes,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Served").field(&self.path).finish()
    }
}

impl Served {
    /// The method at this path, whose requests are messages of the type `M`.
    pub const fn new<M: Message + Default + 'static>(path: &'static str) -> Self {
        Self { path, decodes: Decodes::of::<M>() }
    }
}

/// One unary method of a generated service that is mounted.
pub(crate) struct Entry {
    service: Arc<dyn Generated>,
    method: usize,
    settings: Settings,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entry").field(&self.service.methods()[self.method]).finish()
    }
}

impl Entry {
    /// What puts a request together that comes in several records.
    pub(crate) fn gather(&self) -> Gather {
        Gather::new(self.settings.decoded)
    }

    /// Begins to answer a call.
    #[inline]
    pub(crate) fn begin(&self, call: Call) -> Begun {
        let request = Incoming(Came::Native(call, self.settings.decoded));
        let mut begun = self.service.begin(self.method, request);
        *begun.0.as_mut().project().most = self.settings.encoded;
        begun
    }
}

/// A request that has come, to be decoded where its handler is polled: not by who reads the link, and a panic
/// is the call's own.
pub struct Incoming(Came);

enum Came {
    /// With the limit of its message.
    Native(Call, Option<usize>),
    /// tonic has had it decoded.
    Ordinary(Box<tonic::Request<Decoded>>),
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Incoming")
    }
}

impl Incoming {
    /// The same, if it has come over what its method demands.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    pub fn demand(self, demand: &Demand) -> Result<Self, Status> {
        demand.check(match &self.0 {
            Came::Native(call, _) => call.peer.security(),
            Came::Ordinary(request) => security_of(request.extensions()),
        })?;
        Ok(self)
    }

    /// The request.
    ///
    /// # Errors
    /// Its message is over the limit, or is none.
    #[inline]
    pub fn decode<M: Message + Default + 'static>(self) -> Result<tonic::Request<M>, Status> {
        match self.0 {
            Came::Native(call, most) => {
                let (metadata, extensions, data) = call.into_parts(most)?;
                let message = M::decode(data).map_err(message::undecoded)?;
                Ok(tonic::Request::from_parts(metadata, extensions, message))
            }
            Came::Ordinary(request) => Ok(request.map(Decoded::into_message)),
        }
    }
}

/// Offers the table of a service to whoever has sent this request.
pub fn offer<B, S: Generated + Clone>(request: &http::Request<B>, service: &S) {
    if let Some(Offer(slot)) = request.extensions().get()
        && slot.service == TypeId::of::<S>()
    {
        slot.fill(service);
    }
}

/// Where a service puts its table.
#[derive(Clone)]
pub(crate) struct Offer(pub(crate) Arc<Table>);

/// The table of a service that is mounted, once it has offered it.
#[derive(Debug)]
pub(crate) struct Table {
    service: TypeId,
    table: OnceLock<HashMap<&'static str, Arc<Entry>>>,
}

impl Table {
    /// For a service of the type `S`.
    pub(crate) fn of<S: 'static>() -> Self {
        Self { service: TypeId::of::<S>(), table: OnceLock::new() }
    }

    #[cold]
    fn fill<S: Generated + Clone>(&self, service: &S) {
        self.table.get_or_init(|| {
            let (settings, service) = (service.settings(), Arc::new(service.clone()));
            let entry = |(method, served): (usize, &'static Served)| {
                let service = Arc::<S>::clone(&service);
                (served.path, Arc::new(Entry { service, method, settings }))
            };
            service.methods().iter().enumerate().map(entry).collect()
        });
    }

    /// The service has answered: it has a table by now, or none.
    #[cold]
    pub(crate) fn settle(&self) {
        self.table.get_or_init(HashMap::new);
    }

    /// Whether it is known if the service has a table.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.table.get().is_some()
    }

    pub(crate) fn entry(&self, path: &str) -> Option<Arc<Entry>> {
        self.table.get()?.get(path).cloned()
    }
}

/// A call of a method in a table.
pub(crate) struct Call {
    /// One message; it counts against its caller's bounds until it is decoded.
    pub(crate) data: Whole,
    /// Its metadata, if it has some.
    pub(crate) headers: Option<Box<HeaderMap>>,
    pub(crate) peer: Peer,
    pub(crate) deadline: Option<Instant>,
    /// What is attached to it.
    pub(crate) attached: Option<Box<Attached>>,
}

impl Call {
    fn into_parts(
        mut self,
        most: Option<usize>,
    ) -> Result<(MetadataMap, tonic::Extensions, Bytes), Status> {
        let data = message::unprefixed(self.data.take().unwrap_or_default(), most)?;
        let mut extensions = tonic::Extensions::new();
        extensions.insert(self.peer);
        if let Some(at) = self.deadline {
            extensions.insert(Deadline(at));
        }
        attach::put(&mut extensions, self.attached);
        let metadata = match self.headers {
            Some(headers) => MetadataMap::from_headers(*headers),
            None => MetadataMap::new(),
        };
        Ok((metadata, extensions, data))
    }
}

/// What a response says beside its message.
struct Parts {
    metadata: MetadataMap,
    extensions: tonic::Extensions,
}

impl Parts {
    /// None where there is nothing.
    fn of(metadata: MetadataMap, extensions: tonic::Extensions) -> Option<Box<Self>> {
        let has_some = !metadata.is_empty() || !extensions.is_empty();
        has_some.then(|| Box::new(Self { metadata, extensions }))
    }
}

/// A handler at work, which becomes the message of its response, whatever its type is.
trait Handler: Send {
    /// Ready when there is a response; what it has beside its message.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>)
    -> Poll<Result<Option<Box<Parts>>, Status>>;

    /// The message, once there is one.
    fn message(&self) -> &dyn Encode;
}

pin_project! {
    #[project = Step]
    enum Unary<F, R> {
        Working {
            #[pin]
            future: F,
        },
        Done {
            message: R,
        },
    }
}

impl<F, R> Handler for Unary<F, R>
where
    R: Message,
    F: Future<Output = Result<tonic::Response<R>, Status>> + Send,
{
    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Box<Parts>>, Status>> {
        let Step::Working { future } = self.as_mut().project() else {
            unreachable!("polled after the end")
        };
        let (metadata, message, extensions) = ready!(future.poll(cx))?.into_parts();
        self.set(Self::Done { message });
        Poll::Ready(Ok(Parts::of(metadata, extensions)))
    }

    fn message(&self) -> &dyn Encode {
        match self {
            Self::Done { message } => message,
            Self::Working { .. } => unreachable!("a handler at work has no message"),
        }
    }
}

pin_project! {
    /// A call that is answered: first a handler at work, then what it says. A message has at most so many
    /// bytes, and there may be something beside it, and something attached.
    struct Answering<H: ?Sized> {
        state: State,
        most: Option<usize>,
        parts: Option<Box<Parts>>,
        attached: Option<Box<Attaching>>,
        #[pin]
        handler: H,
    }
}

enum State {
    Working,
    /// With the length that its message says, until that has been taken in pieces.
    Answered(Option<u32>),
    /// There is a head, and no message; why, until it has been asked for.
    Broken(Option<Status>),
    Failed(Status),
}

/// A call that has begun.
pub struct Begun(Pin<Box<Answering<dyn Handler>>>);

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Begun")
    }
}

/// Begins to answer a call by a future that is its handler.
pub fn begin<R, F>(future: F) -> Begun
where
    R: Message + 'static,
    F: Future<Output = Result<tonic::Response<R>, Status>> + Send + 'static,
{
    let (handler, state) = (Unary::Working { future }, State::Working);
    Begun(Box::pin(Answering { state, most: None, parts: None, attached: None, handler }))
}

/// The native way of a call that is answered.
impl Begun {
    /// Ready when there is an answer. The others are asked after that.
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.0.as_mut().project();
        if !matches!(this.state, State::Working) {
            return Poll::Ready(());
        }
        *this.state = match ready!(this.handler.as_mut().poll(cx)) {
            Err(status) => State::Failed(status),
            Ok(mut parts) => {
                if let Some(parts) = &mut parts {
                    match attach::attached(&mut parts.extensions) {
                        Ok(attached) => *this.attached = attached,
                        Err(status) => {
                            *this.state = State::Failed(status);
                            return Poll::Ready(());
                        }
                    }
                    let mut headers = std::mem::take(&mut parts.metadata).into_headers();
                    wire::without_not_sent(&mut headers);
                    parts.metadata = MetadataMap::from_headers(headers);
                }
                *this.parts = parts.filter(|parts| !parts.metadata.is_empty());
                match Outgoing::new(this.handler.message(), *this.most) {
                    Ok(message) => State::Answered(Some(message.said())),
                    Err(status) => State::Broken(Some(status)),
                }
            }
        };
        Poll::Ready(())
    }

    #[inline]
    fn outgoing(&self) -> Option<Outgoing<'_>> {
        match self.0.state {
            State::Answered(Some(said)) => {
                Some(Outgoing::again(self.0.handler.message(), said, self.0.most))
            }
            _ => None,
        }
    }

    pub(crate) fn has_head(&self) -> bool {
        !matches!(self.0.state, State::Failed(_))
    }

    pub(crate) fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        match &self.0.parts {
            Some(parts) => wire::write_response_head(block, parts.metadata.as_ref()),
            None => {
                frame::write_block(block, |out| ResponseHead::write(out, 0));
                Ok(())
            }
        }
    }

    /// What is attached to its head.
    pub(crate) fn attached(&self) -> Option<&Attaching> {
        self.0.attached.as_deref()
    }

    pub(crate) fn head_sent(&mut self) {
        *self.0.as_mut().project().attached = None;
    }

    /// The message in pieces, once; or why there is none.
    pub(crate) fn take_data(&mut self) -> Option<Result<Bytes, Status>> {
        let bytes = self.outgoing().map(|message| message.bytes());
        match self.0.as_mut().project().state {
            State::Answered(said) => {
                *said = None;
                bytes
            }
            State::Broken(status) => status.take().map(Err),
            State::Working | State::Failed(_) => None,
        }
    }

    /// Bytes of the message that can be encoded in place, with its prefix.
    #[inline]
    pub(crate) fn whole(&self) -> Option<usize> {
        self.outgoing().map(|message| message.len())
    }

    #[inline]
    pub(crate) fn write_whole(&self, out: &mut SlotBuf<'_>) -> bool {
        self.outgoing().is_some_and(|message| message.encode_in_place(out))
    }

    /// The message has been encoded elsewhere.
    pub(crate) fn encoded(&mut self) {
        if let State::Answered(said) = self.0.as_mut().project().state {
            *said = None;
        }
    }

    /// Whether it is a message alone.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let has_more = self.0.parts.is_some() || self.0.attached.is_some();
        !has_more && matches!(self.0.state, State::Answered(Some(_)))
    }

    pub(crate) fn write_trailers(&self, block: &mut Vec<u8>) -> u8 {
        match &self.0.state {
            State::Failed(status) => wire::write_status(block, status),
            _ => {
                frame::write_block(block, |out| Trailers::write(out, 0, 0));
                0
            }
        }
    }
}

impl Carries for Begun {
    fn message(&self) -> &dyn Encode {
        self.0.handler.message()
    }
}

/// Answers a request of HTTP by the method with this number, as tonic does.
pub fn ordinary<S, B>(
    service: S,
    method: usize,
    [taken, sent]: [EnabledCompressionEncodings; 2],
    request: http::Request<B>,
) -> BoxFuture<http::Response<Body>, Infallible>
where
    S: Generated,
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    Box::pin(async move {
        let Settings { decoded, encoded } = service.settings();
        let codec = Codec::<Begun>::new(service.methods()[method].decodes);
        let mut grpc = tonic::server::Grpc::new(codec)
            .apply_compression_config(taken, sent)
            .apply_max_message_size_config(decoded, encoded);
        Ok(grpc.unary(Ordinary { service, method }, request).await)
    })
}

/// A method as tonic's way calls it.
struct Ordinary<S> {
    service: S,
    method: usize,
}

impl<S: Generated> UnaryService<Decoded> for Ordinary<S> {
    type Response = Begun;
    type Future = Responding;

    fn call(&mut self, request: tonic::Request<Decoded>) -> Responding {
        let request = Incoming(Came::Ordinary(Box::new(request)));
        Responding(Some(self.service.begin(self.method, request)))
    }
}

/// A handler at work, for tonic's way.
struct Responding(Option<Begun>);

impl Future for Responding {
    type Output = Result<tonic::Response<Begun>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let begun = self.0.as_mut().expect("polled after the end");
        let parts = ready!(begun.0.as_mut().project().handler.poll(cx))?;
        let begun = self.0.take().expect("it was there");
        Poll::Ready(Ok(match parts {
            Some(parts) => tonic::Response::from_parts(parts.metadata, begun, parts.extensions),
            None => tonic::Response::new(begun),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Buf, BufMut};
    use prost::DecodeError;
    use prost::encoding::{DecodeContext, WireType};
    use std::task::Waker;

    /// A message of a program's own making, which panics when it is decoded.
    #[derive(Debug, Default)]
    struct Panics;

    impl Message for Panics {
        fn encode_raw(&self, _out: &mut impl BufMut) {}

        fn merge_field(
            &mut self,
            _tag: u32,
            _wire_type: WireType,
            _from: &mut impl Buf,
            _context: DecodeContext,
        ) -> Result<(), DecodeError> {
            panic!("as it was asked")
        }

        fn encoded_len(&self) -> usize {
            0
        }

        fn clear(&mut self) {}
    }

    struct Echo;

    impl Generated for Echo {
        fn methods(&self) -> &'static [Served] {
            static METHODS: [Served; 1] = [Served::new::<Panics>("/a.B/C")];
            &METHODS
        }

        fn settings(&self) -> Settings {
            Settings::default()
        }

        fn begin(&self, _method: usize, request: Incoming) -> Begun {
            begin(async { Ok(tonic::Response::new(request.decode::<Panics>()?.into_inner())) })
        }
    }

    #[test]
    fn a_message_is_decoded_where_its_handler_is_polled() {
        let (service, settings) = (Arc::new(Echo), Settings::default());
        let entry = Entry { service, method: 0, settings };
        let data = Whole::of(Bytes::from_static(b"\0\0\0\0\x02\x08\x01"));
        let (headers, peer) = (None, crate::fuzz::stranger());
        // This is the reader of a link, which goes on for others.
        let call = Call { data, headers, peer, deadline: None, attached: None };
        let mut answering = entry.begin(call);
        let polled = std::panic::AssertUnwindSafe(|| {
            answering.poll_answer(&mut Context::from_waker(Waker::noop()))
        });
        assert!(std::panic::catch_unwind(polled).is_err());
    }
}
