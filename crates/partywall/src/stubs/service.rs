//! What a generated service answers by.

use std::any::TypeId;
use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
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
use tonic::metadata::MetadataMap;

use super::message::{self, Outgoing, Settings};
use crate::link::whole::Whole;
use crate::peer::{Deadline, Peer};
use crate::wire;

/// A generated service: its unary methods, to be called without HTTP.
pub trait Generated: 'static {
    /// Its methods, with its settings as they are.
    fn table(&self) -> Vec<Entry>;
}

/// One unary method of a generated service.
pub struct Entry {
    path: &'static str,
    begin: Begin,
}

type Begin = Box<dyn Fn(Call) -> Pin<Box<dyn Answering>> + Send + Sync>;

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entry").field(&self.path).finish()
    }
}

impl Entry {
    /// Begins to answer a call.
    pub(crate) fn begin(&self, call: Call) -> Pin<Box<dyn Answering>> {
        (self.begin)(call)
    }
}

/// A request that has come, to be decoded where its handler is polled: not by who reads the link, and a panic
/// is the call's own.
pub struct Incoming<M> {
    call: Call,
    most: Option<usize>,
    message: PhantomData<fn() -> M>,
}

impl<M> std::fmt::Debug for Incoming<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Incoming")
    }
}

impl<M: Message + Default> Incoming<M> {
    /// The request.
    ///
    /// # Errors
    /// Its message is over the limit, or is none.
    #[inline]
    pub fn decode(self) -> Result<tonic::Request<M>, Status> {
        self.call.request(self.most)
    }
}

/// The method at this path, which `handler` answers.
pub fn entry<M, R, F>(
    path: &'static str,
    settings: Settings,
    handler: impl Fn(Incoming<M>) -> F + Send + Sync + 'static,
) -> Entry
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<tonic::Response<R>, Status>> + Send + 'static,
{
    let begin = move |call: Call| -> Pin<Box<dyn Answering>> {
        let incoming = Incoming { call, most: settings.decoded, message: PhantomData };
        Box::pin(Unary::Handler { future: handler(incoming), most: settings.encoded })
    };
    Entry { path, begin: Box::new(begin) }
}

/// Offers the table of a service to whoever has sent this request.
pub fn offer<B, S: Generated>(request: &http::Request<B>, service: &S) {
    if let Some(Offer(slot)) = request.extensions().get()
        && slot.service == TypeId::of::<S>()
    {
        slot.fill(service);
    }
}

/// Where a service puts its table.
#[derive(Clone)]
pub(crate) struct Offer(pub(crate) Arc<Slot>);

/// The table of a service that is mounted, once it has offered it.
#[derive(Debug)]
pub(crate) struct Slot {
    service: TypeId,
    table: OnceLock<HashMap<&'static str, Arc<Entry>>>,
}

impl Slot {
    /// For a service of the type `S`.
    pub(crate) fn of<S: 'static>() -> Self {
        Self { service: TypeId::of::<S>(), table: OnceLock::new() }
    }

    #[cold]
    fn fill(&self, service: &impl Generated) {
        self.table.get_or_init(|| {
            service.table().into_iter().map(|entry| (entry.path, Arc::new(entry))).collect()
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
}

impl Call {
    fn request<M: Message + Default>(
        mut self,
        most: Option<usize>,
    ) -> Result<tonic::Request<M>, Status> {
        let message = message::decode(self.data.take().unwrap_or_default(), most)?;
        let mut extensions = tonic::Extensions::new();
        extensions.insert(self.peer);
        if let Some(at) = self.deadline {
            extensions.insert(Deadline(at));
        }
        let metadata = match self.headers {
            Some(headers) => MetadataMap::from_headers(*headers),
            None => MetadataMap::new(),
        };
        Ok(tonic::Request::from_parts(metadata, extensions, message))
    }
}

/// A call that is answered: first a handler at work, then what it says.
pub(crate) trait Answering: Send {
    /// Ready when there is an answer. The others are asked after that.
    fn poll_answer(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
    fn has_head(&self) -> bool;
    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status>;
    fn take_data(self: Pin<&mut Self>) -> Option<Result<Bytes, Status>>;
    fn whole(&self) -> Option<usize>;
    fn write_whole(&self, out: &mut SlotBuf<'_>) -> bool;
    /// Whether it is a message without metadata.
    fn is_plain(&self) -> bool;
    fn write_trailers(&self, block: &mut Vec<u8>) -> u8;
}

enum Answer<R> {
    /// A head, and a message.
    Message(HeaderMap, Outgoing<R>),
    /// A head, and why there is no message.
    Broken(HeaderMap, Option<Box<Status>>),
    Status(Box<Status>),
}

pin_project! {
    #[project = Step]
    enum Unary<F, R> {
        Handler {
            #[pin]
            future: F,
            most: Option<usize>,
        },
        Answered {
            answer: Answer<R>,
        },
    }
}

impl<F, R> Unary<F, R> {
    fn answer(&self) -> Option<&Answer<R>> {
        match self {
            Self::Handler { .. } => None,
            Self::Answered { answer } => Some(answer),
        }
    }
}

impl<F, R> Answering for Unary<F, R>
where
    R: Message,
    F: Future<Output = Result<tonic::Response<R>, Status>> + Send,
{
    fn poll_answer(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Step::Handler { future, most } = self.as_mut().project() else {
            return Poll::Ready(());
        };
        let answer = match ready!(future.poll(cx)) {
            Err(status) => Answer::Status(Box::new(status)),
            Ok(response) => {
                let (metadata, message, _) = response.into_parts();
                let mut headers = metadata.into_headers();
                wire::without_not_sent(&mut headers);
                match Outgoing::new(message, *most) {
                    Ok(message) => Answer::Message(headers, message),
                    Err(status) => Answer::Broken(headers, Some(Box::new(status))),
                }
            }
        };
        self.set(Self::Answered { answer });
        Poll::Ready(())
    }

    fn has_head(&self) -> bool {
        !matches!(self.answer(), Some(Answer::Status(_)))
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        match self.answer() {
            Some(Answer::Message(headers, _) | Answer::Broken(headers, _))
                if !headers.is_empty() =>
            {
                wire::write_response_head(block, headers)
            }
            _ => {
                frame::write_block(block, |out| ResponseHead::write(out, 0));
                Ok(())
            }
        }
    }

    fn take_data(self: Pin<&mut Self>) -> Option<Result<Bytes, Status>> {
        match self.project() {
            Step::Answered { answer: Answer::Message(_, message) } => message.take(),
            Step::Answered { answer: Answer::Broken(_, status) } => {
                status.take().map(|status| Err(*status))
            }
            _ => None,
        }
    }

    fn whole(&self) -> Option<usize> {
        match self.answer() {
            Some(Answer::Message(_, message)) => Some(message.len()),
            _ => None,
        }
    }

    fn write_whole(&self, out: &mut SlotBuf<'_>) -> bool {
        match self.answer() {
            Some(Answer::Message(_, message)) => message.encode_in_place(out),
            _ => unreachable!("it has no message"),
        }
    }

    fn is_plain(&self) -> bool {
        matches!(self.answer(), Some(Answer::Message(headers, _)) if headers.is_empty())
    }

    fn write_trailers(&self, block: &mut Vec<u8>) -> u8 {
        match self.answer() {
            Some(Answer::Status(status)) => wire::write_status(block, status),
            _ => {
                frame::write_block(block, |out| Trailers::write(out, 0, 0));
                0
            }
        }
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

    #[test]
    fn a_message_is_decoded_where_its_handler_is_polled() {
        let echo = |request: Incoming<Panics>| async move {
            Ok::<_, Status>(tonic::Response::new(request.decode()?.into_inner()))
        };
        let entry = entry("/a.B/C", Settings::default(), echo);
        let data = Whole::of(Bytes::from_static(b"\0\0\0\0\x02\x08\x01"));
        let (headers, peer) = (None, crate::fuzz::stranger());
        // This is the reader of a link, which goes on for others.
        let mut answering = entry.begin(Call { data, headers, peer, deadline: None });
        let polled = std::panic::AssertUnwindSafe(|| {
            answering.as_mut().poll_answer(&mut Context::from_waker(Waker::noop()))
        });
        assert!(std::panic::catch_unwind(polled).is_err());
    }
}
