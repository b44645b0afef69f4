//! One call in the service: its handler, then its answer.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use partywall_call::Key;
use tokio::time::Sleep;
use tonic::{Code, Status};

use super::inline::Inside;
use super::{Dispatch, Method, Service};
use crate::link::sender::{SendError, Sender};
use crate::status;

pub(super) enum Step<H: Future> {
    Handle(H),
    // It is large, and a call is moved a few times.
    Answer(Box<Sender<H::Output>>),
    Done,
}

/// One call.
pub(super) struct Task<D: Dispatch> {
    pub(super) service: Arc<Service<D>>,
    pub(super) key: Key,
    pub(super) method: Arc<Method<D::Method>>,
    pub(super) step: Step<D::Handler>,
    pub(super) deadline: Option<Pin<Box<Sleep>>>,
    /// Its request came in one record.
    pub(super) whole: bool,
    /// It runs in a task of its own.
    pub(super) spawned: bool,
    /// Its handler has not been polled.
    pub(super) first: bool,
    /// Its reference to the call is gone.
    pub(super) released: bool,
}

impl<D: Dispatch> Future for Task<D> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            // Nobody can have reset a call whose head is being delivered.
            if this.spawned && this.service.link.calls.poll_stopped(this.key, cx).is_ready() {
                return this.end(Code::Cancelled as u8);
            }
            // Polled by who reads, a call is ready at once, or its timer is set in its task.
            if let Some(deadline) = &mut this.deadline
                && if this.spawned {
                    deadline.as_mut().poll(cx).is_ready()
                } else {
                    deadline.deadline() <= tokio::time::Instant::now()
                }
            {
                this.deadline = None;
                this.answer_with(status::expired_in_service());
            }
            match &mut this.step {
                Step::Handle(handler) => {
                    // Only the polls that are made in a task are measured: see `inline`.
                    let start = (this.first && this.spawned).then(Instant::now);
                    this.first = false;
                    let beside = this.spawned && this.service.hands_on;
                    let inside = beside.then(|| Inside::enter(&this.service, false));
                    let polled =
                        std::panic::catch_unwind(AssertUnwindSafe(|| Pin::new(handler).poll(cx)));
                    drop(inside);
                    if let Some(start) = start {
                        this.method.history.first_poll_took(start.elapsed());
                    }
                    let mut answer = match polled {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(answer)) => answer,
                        Err(_) => {
                            this.answer_with(status::panicked());
                            continue;
                        }
                    };
                    let (link, key) = (&this.service.link, this.key);
                    let send = AssertUnwindSafe(|| link.send_plain_answer(key, &mut answer));
                    match std::panic::catch_unwind(send) {
                        Ok(Ok(true)) => {
                            this.released = true;
                            contained(move || drop(answer));
                            return this.end(Code::Ok as u8);
                        }
                        Ok(Ok(false)) => {
                            this.step = Step::Answer(Box::new(Sender::answer(answer)));
                        }
                        Ok(Err(why)) => {
                            this.released = true;
                            this.service.close(&why);
                            return this.end(Code::Unavailable as u8);
                        }
                        Err(_) => {
                            contained(move || drop(answer));
                            link.send_control(link.calls.reset(key, status::panicked()));
                            return this.end(Code::Internal as u8);
                        }
                    }
                }
                Step::Answer(sender) => {
                    let (link, key) = (&this.service.link, this.key);
                    let sent =
                        std::panic::catch_unwind(AssertUnwindSafe(|| sender.poll(cx, link, key)));
                    match sent {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(Ok(()))) => {
                            let code = sender.code();
                            return this.end(code);
                        }
                        Ok(Poll::Ready(Err(SendError::Broken(why)))) => {
                            this.service.close(&why);
                            return this.end(Code::Unavailable as u8);
                        }
                        Ok(Poll::Ready(Err(_))) => return this.end(Code::Cancelled as u8),
                        Err(_) => {
                            link.send_control(link.calls.reset(key, status::panicked()));
                            return this.end(Code::Internal as u8);
                        }
                    }
                }
                Step::Done => return Poll::Ready(()),
            }
        }
    }
}

/// Drops what a handler has left, which ends as it likes: this may be the link's reader.
fn contained(drop: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(drop)).is_err() {
        tracing::debug!("an answer panicked when it was dropped");
    }
}

impl<D: Dispatch> Task<D> {
    /// A status of our own making takes the handler's place.
    #[cold]
    fn answer_with(&mut self, status: Status) {
        let sender = Box::new(Sender::status(status));
        contained(|| self.step = Step::Answer(sender));
    }

    fn end(&mut self, code: u8) -> Poll<()> {
        contained(|| self.step = Step::Done);
        self.service.ended(code);
        Poll::Ready(())
    }
}

impl<D: Dispatch> Drop for Task<D> {
    fn drop(&mut self) {
        let link = &self.service.link;
        if !self.whole && !self.released {
            // What came for a handler that never read it goes back to the link's window.
            link.send_control(link.calls.discard(self.key));
        }
        if !matches!(self.step, Step::Done) {
            // Dropped by the runtime's end or a panic, or because the caller has gone.
            let text = "the call was given up in the service";
            link.send_control(link.calls.reset(self.key, Status::unavailable(text)));
            self.service.ended(Code::Cancelled as u8);
        }
        if !self.released {
            link.release(self.key);
        }
        if link.calls.is_draining() {
            self.service.idle.notify_waiters();
        }
    }
}
