//! What a program attaches to a request or an answer, and takes from one.

use std::sync::{Arc, Mutex};

use partywall_shm::parcel::ParcelError;
use tonic::{Extensions, Status};

use crate::attachment::Attachment;
use crate::link::attached::{Attached, Attaching};
use crate::lock::lock;

/// What is attached, in the extensions of a request or a response that is to be sent, until one of their
/// clones is.
#[derive(Clone, Debug)]
struct ToSend(Arc<Mutex<Option<Vec<Attachment>>>>);

/// The same of one that has come.
#[derive(Clone, Debug)]
struct Came(Arc<Mutex<Option<Attached>>>);

/// Requests and responses to which memory and files can be attached.
///
/// They cross on a link whose policy has `descriptors = n` for the caller, up to n with one message, and
/// leases where it has `leases = true`. Elsewhere a call to which something is attached fails with
/// FAILED_PRECONDITION, and is not sent: over HTTP/2, to a server that listens there, between domains.
/// So does a message that is handed on with what has come with it: take that, and attach it anew.
///
/// ```
/// use partywall::parcel::{Attach, Attachment, Owned};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut frame = Owned::new(3840 * 2160)?;
/// frame.write(|pixels| pixels.fill(7));
/// let mut request = tonic::Request::new(());
/// request.attach(&frame);
/// # Ok(())
/// # }
/// ```
///
/// A handler takes what has come, and a lease goes back with the answer:
///
/// ```
/// use partywall::parcel::{Attach, Attachment};
/// use tonic::{Request, Response, Status};
///
/// # fn look(mut request: Request<()>) -> Result<Response<u64>, Status> {
/// let (mut sum, mut back) = (0, Vec::new());
/// let came = request.attachments().map_err(|why| Status::invalid_argument(why.to_string()))?;
/// for one in came {
///     match one {
///         Attachment::Owned(view) => {
///             let read = view.read(|words| words.iter().fold(0, u64::wrapping_add));
///             sum += read.map_err(|changed| Status::aborted(changed.to_string()))?;
///         }
///         Attachment::Lease(mut lease) => {
///             lease.fill_at(0, lease.len(), 7);
///             back.push(lease);
///         }
///         _ => return Err(Status::invalid_argument("an owned parcel or a lease is wanted")),
///     }
/// }
/// let mut answer = Response::new(sum);
/// back.into_iter().for_each(|lease| answer.attach(lease));
/// # Ok(answer)
/// # }
/// ```
pub trait Attach {
    /// Attaches one more, which goes with the first clone of it that is sent. A lease is lost where the call
    /// fails, whether it was sent or not.
    fn attach(&mut self, attachment: impl Into<Attachment>);

    /// Takes what has come with it, in its order; nothing the second time. Until then it counts among the few
    /// messages with attachments that a peer may have unread: 4 on a link, or 1 where its process has many.
    /// Who keeps as many and waits for another one waits for ever.
    ///
    /// # Errors
    /// Something is not what its sender has said: the message is to be refused, and all of it is dropped. A
    /// handler answers INVALID_ARGUMENT.
    ///
    /// Where [`ParcelError::is_resource`], this process has no descriptor or no memory left: all of it stays
    /// for a second call. That fails where a sealed parcel could not be mapped, which is lost. A handler
    /// answers RESOURCE_EXHAUSTED.
    ///
    /// ```
    /// use partywall::parcel::Attach;
    /// use tonic::{Request, Status};
    ///
    /// fn how_many(request: &mut Request<()>) -> Result<usize, Status> {
    ///     let came = request.attachments().map_err(|why| match why.is_resource() {
    ///         true => Status::resource_exhausted(why.to_string()),
    ///         false => Status::invalid_argument(why.to_string()),
    ///     })?;
    ///     Ok(came.len())
    /// }
    /// # assert_eq!(how_many(&mut Request::new(())).unwrap(), 0);
    /// ```
    fn attachments(&mut self) -> Result<Vec<Attachment>, ParcelError>;
}

impl<T> Attach for tonic::Request<T> {
    fn attach(&mut self, attachment: impl Into<Attachment>) {
        attach(self.extensions_mut(), attachment.into());
    }

    fn attachments(&mut self) -> Result<Vec<Attachment>, ParcelError> {
        take(self.extensions_mut())
    }
}

impl<T> Attach for tonic::Response<T> {
    fn attach(&mut self, attachment: impl Into<Attachment>) {
        attach(self.extensions_mut(), attachment.into());
    }

    fn attachments(&mut self) -> Result<Vec<Attachment>, ParcelError> {
        take(self.extensions_mut())
    }
}

fn attach(extensions: &mut Extensions, attachment: Attachment) {
    let none = || ToSend(Arc::new(Mutex::new(Some(Vec::new()))));
    let to_send = extensions.get_or_insert_with(none);
    // A clone of what was sent fails as a whole.
    if let Some(attachments) = &mut *lock(&to_send.0) {
        attachments.push(attachment);
    }
}

fn take(extensions: &mut Extensions) -> Result<Vec<Attachment>, ParcelError> {
    let Some(came) = extensions.remove::<Came>() else { return Ok(Vec::new()) };
    let Some(mut attached) = lock(&came.0).take() else { return Ok(Vec::new()) };
    let opened = attached.open();
    if opened.as_ref().is_err_and(ParcelError::is_resource) {
        *lock(&came.0) = Some(attached);
        extensions.insert(came);
    }
    opened
}

/// Whether something has come with it that nobody has taken; it is dropped.
fn has_come(extensions: &mut Extensions) -> bool {
    extensions.remove::<Came>().is_some_and(|came| lock(&came.0).is_some())
}

/// What is attached to a request or a response that is sent.
///
/// # Errors
/// It went with another clone of it, or has come with it from elsewhere.
pub(crate) fn attached(extensions: &mut Extensions) -> Result<Option<Box<Attaching>>, Status> {
    if extensions.is_empty() {
        return Ok(None);
    }
    if has_come(extensions) {
        return Err(Status::failed_precondition(
            "what is attached to this message has come with it from elsewhere, and does not go on with it; \
             remedy: take it (`Attach::attachments`) and attach it anew",
        ));
    }
    let Some(to_send) = extensions.remove::<ToSend>() else { return Ok(None) };
    match lock(&to_send.0).take() {
        Some(attachments) => Ok(Attaching::of(attachments)),
        None => Err(Status::failed_precondition(
            "what was attached to this message went with an earlier copy of it; remedy: no layer that sends a \
             call again, or attach it to each",
        )),
    }
}

/// How many of the extensions are such.
#[inline]
pub(crate) fn count(extensions: &Extensions) -> usize {
    usize::from(extensions.get::<ToSend>().is_some())
}

/// Puts what has come into a request or a response.
pub(crate) fn put(extensions: &mut Extensions, attached: Option<Box<Attached>>) {
    if let Some(attached) = attached {
        extensions.insert(Came(Arc::new(Mutex::new(Some(*attached)))));
    }
}

/// Nothing can be attached over HTTP/2, nor can what has come elsewhere go on; why a call fails where
/// something is.
#[cfg(feature = "http2")]
pub(crate) fn refuse_over_http2(extensions: &mut Extensions) -> Result<(), Status> {
    let came = has_come(extensions);
    match attached(extensions)? {
        None if !came => Ok(()),
        _ => Err(Status::failed_precondition(
            "memory or a file is attached to this call, and no descriptor crosses over HTTP/2; remedy: call the \
             service by its name, over a ring, or send the bytes in the message",
        )),
    }
}

/// Why a call fails to which something is attached, on a link where nothing can be.
#[cold]
pub(crate) fn cannot_here() -> Status {
    Status::failed_precondition(
        "memory or a file is attached to this call, and no descriptor crosses on this link; remedy: `descriptors = \
         1` or more in the caller's rule, and a new link where this one is older than that; or send the bytes in \
         the message",
    )
}
