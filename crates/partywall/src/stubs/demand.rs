//! What a `.proto` file demands of the link that a call travels over, and its check at both ends.
//!
//! ```text
//! caller    natively        the link is picked, checked and used: one value, so nothing comes between
//!           without runtime the same, and again for each link that the call is offered to
//!           another way     the request carries the demand to its channel (`Demanded`), to check the link
//!                           or the address as it begins the call there
//! service   natively        where the request is decoded (`Incoming::demand`)
//!           another way     where the request comes to its method, or is decoded (`refused`)
//! ```
//!
//! Each end checks by itself, against what it knows of the link: a service that demands refuses callers whose
//! stubs do not, and the other way round. What is not known counts as the lowest: a request without a
//! [`Peer`](crate::Peer) has the security of its connection, and one that has come by other means than a
//! [`Server`](crate::Server) has none.
//!
//! # Channels that nobody knows
//!
//! A generated client takes any channel, with interceptors and layers around it. So a request that goes
//! another way takes a [`Pass`] along, which only a [`Channel`](crate::Channel) gives, once it has checked:
//!
//! ```text
//! closed   the messages of the request are kept back
//!            -> open     the channel has checked the link and begins the call on it
//!            -> asked    somebody asks for a message: the channel is another one. The call is dropped
//! open     messages pass. A channel that begins the call anew checks again
//! asked    FAILED_PRECONDITION
//! ```
//!
//! An answer that comes while it is closed fails the call as well. tonic's own channel gets no request at
//! all. Of another one behind layers of the program's own, the head may have gone out, and no message: its
//! service sees a call that is cancelled before the first message. An interceptor that drops the extensions
//! of a request drops the demand, and the pass with it: the call fails.
//!
//! # What it costs
//!
//! A call without a demand has nothing of this: [`Nothing`] is checked at compile time, natively and without
//! a runtime, and its generated code is as it was. Another way looks once for the extension, in a map that
//! tonic has made already. A call with a demand compares five bytes at each end natively; another way it
//! takes two allocations more, the pass and the box of its extension.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use partywall_abi::security::{Evidence, Seal, Security, Shortfall, Sign};
use pin_project_lite::pin_project;
use tokio::sync::Notify;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::codegen::tokio_stream::Stream;

use crate::peer::security_of;

/// What the `.proto` file of a method demands of the links of its calls.
#[derive(Debug)]
pub struct Demand {
    /// The method, with its service and package.
    method: &'static str,
    least: Security,
}

impl Demand {
    /// That of this method, such as `shop.v1.Billing/Charge`, which demands nothing yet.
    pub const fn of(method: &'static str) -> Self {
        Self { method, least: Security::LOWEST }
    }

    /// The link has to be sealed.
    #[must_use]
    pub const fn sealed(self) -> Self {
        Self { least: self.least.with_seal(Seal::Sealed), ..self }
    }

    /// Messages have to be signed.
    #[must_use]
    pub const fn signed(self) -> Self {
        Self { least: self.least.with_sign(Sign::Signed), ..self }
    }

    /// The programs of both ends have to be observed.
    #[must_use]
    pub const fn observed(self) -> Self {
        Self { least: self.least.with_evidence(Evidence::Observed), ..self }
    }

    /// The images of the containers of both ends have to be known, or more.
    #[must_use]
    pub const fn image(self) -> Self {
        Self { least: self.least.with_evidence(Evidence::Image), ..self }
    }

    /// The programs of both ends have to be started by the coordinator.
    #[must_use]
    pub const fn started(self) -> Self {
        Self { least: self.least.with_evidence(Evidence::Started), ..self }
    }

    /// Whether this protection is enough.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    #[inline]
    pub(super) fn check(&self, found: Security) -> Result<(), Status> {
        found.shortfall(&self.least).map_or(Ok(()), |short| Err(self.refuse(&short)))
    }

    #[cold]
    fn refuse(&self, short: &Shortfall) -> Status {
        let (method, remedy) = (self.method, remedy(short.field));
        Status::failed_precondition(format!(
            "{short} on the link of this call, by the .proto file of {method}; remedy: {remedy}"
        ))
    }

    /// The call goes over a channel of which nothing is known.
    #[cold]
    pub(super) fn refuse_unknown(&self) -> Status {
        let method = self.method;
        let short = Security::LOWEST.shortfall(&self.least);
        let short = short.map_or_else(String::new, |short| format!("{short}, "));
        Status::failed_precondition(format!(
            "{short}by the .proto file of {method}: nothing is known of what protects this channel; remedy: make the \
             client of a partywall::Channel, with layers that leave its requests' messages and extensions alone"
        ))
    }
}

/// What to do about a field that is too low.
fn remedy(field: &str) -> &'static str {
    match field {
        "seal" => {
            "`seal = \"required\"` under the [service.NAME] that is called, in the policy, or the file under `proto` of \
             its x-partywall (`partywall up`); over a network an address of https://"
        }
        "sign" => "`sign = \"required\"` under the [service.NAME] that is called, in the policy",
        _ => {
            "`require = { evidence = .. }` for the caller under the [service.NAME.call] that is called, in the policy, \
             and ends that the coordinator starts (`partywall up`), in containers of images that it knows, or observes"
        }
    }
}

/// What a call needs of its link.
pub(crate) trait Requires: Copy {
    /// Whether a link with this protection is good enough.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    fn check(self, found: impl FnOnce() -> Security) -> Result<(), Status>;
}

/// Nothing, for which nothing is compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nothing;

impl Requires for Nothing {
    #[inline(always)]
    fn check(self, _found: impl FnOnce() -> Security) -> Result<(), Status> {
        Ok(())
    }
}

impl Requires for &'static Demand {
    #[inline]
    fn check(self, found: impl FnOnce() -> Security) -> Result<(), Status> {
        Demand::check(self, found())
    }
}

/// Refuses a request that has come over less than its method demands.
pub fn refused<B>(
    demand: &Demand,
    request: &http::Request<B>,
) -> Option<BoxFuture<http::Response<Body>, std::convert::Infallible>> {
    let refused = demand.check(security_of(request.extensions())).err()?;
    Some(Box::pin(std::future::ready(Ok(refused.into_http()))))
}

/// A demand in the extensions of a request, for the channel that it goes to.
#[derive(Clone, Debug)]
pub(crate) struct Demanded {
    demand: &'static Demand,
    pass: Arc<Pass>,
}

impl Demanded {
    pub(super) fn new(demand: &'static Demand) -> (Self, Arc<Pass>) {
        let pass = Arc::new(Pass::default());
        (Self { demand, pass: Arc::clone(&pass) }, pass)
    }
}

/// Whether a call with these extensions may begin over what is protected so; its messages pass from now on.
///
/// # Errors
/// FAILED_PRECONDITION.
#[inline]
pub(crate) fn may_begin(
    extensions: &http::Extensions,
    found: impl FnOnce() -> Security,
) -> Result<(), Status> {
    let Some(Demanded { demand, pass }) = extensions.get() else { return Ok(()) };
    demand.check(found())?;
    pass.open.store(true, Ordering::Release);
    Ok(())
}

/// Whether the messages of a request pass.
#[derive(Debug, Default)]
pub(super) struct Pass {
    open: AtomicBool,
    /// Somebody wants a message while they do not.
    asked: Notify,
}

impl Pass {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until somebody wants a message of a request whose messages do not pass.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }
}

pin_project! {
    /// The messages of a request, which are kept back until they may pass.
    pub(super) struct Kept<S> {
        #[pin]
        messages: S,
        pass: Arc<Pass>,
    }
}

impl<S> Kept<S> {
    pub(super) fn new(messages: S, pass: Arc<Pass>) -> Self {
        Self { messages, pass }
    }
}

impl<S: Stream> Stream for Kept<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.project();
        if !this.pass.is_open() {
            // Whoever makes the call drops it, and this with it.
            this.pass.asked.notify_one();
            return Poll::Pending;
        }
        this.messages.poll_next(cx)
    }
}
