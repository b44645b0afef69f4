//! Response streams written as plain async code.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::Stream;
use tonic::Status;

use super::handle::Call;
use crate::BoxFuture;

/// A stream fed by a future which it owns and polls itself, so that dropping the stream drops
/// the future at once. The future is at most one item ahead of the reader.
pub struct Producer<M> {
    work: Option<BoxFuture<Result<(), Status>>>,
    items: mpsc::Receiver<M>,
    failure: Option<Status>,
}

impl<M> Producer<M> {
    /// Streams what `body` sends, then the error it returns, if any. At `deadline` the future is
    /// dropped and the stream ends with DEADLINE_EXCEEDED: tonic's own server stops watching the
    /// deadline once a response has begun.
    pub(super) fn new<F, Fut>(deadline: Option<Instant>, call: Call, body: F) -> Self
    where
        F: FnOnce(mpsc::Sender<M>) -> Fut,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (sender, items) = mpsc::channel(1);
        let body = body(sender);
        let watched = async move {
            let result = body.await;
            call.finish();
            result
        };
        let work = async move {
            match deadline {
                None => watched.await,
                Some(at) => timeout_at(at, watched)
                    .await
                    .unwrap_or_else(|_| Err(Status::deadline_exceeded("deadline passed"))),
            }
        };
        Self { work: Some(Box::pin(work)), items, failure: None }
    }
}

impl<M> Stream for Producer<M> {
    type Item = Result<M, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Poll::Ready(Some(item)) = this.items.poll_recv(cx) {
                return Poll::Ready(Some(Ok(item)));
            }
            let Some(work) = &mut this.work else {
                // Not by `poll_recv`, which may say that nothing is there because this task has had
                // its turn.
                let last = this.items.try_recv().ok().map(Ok);
                return Poll::Ready(last.or_else(|| this.failure.take().map(Err)));
            };
            match work.as_mut().poll(cx) {
                Poll::Ready(result) => {
                    this.work = None;
                    this.failure = result.err();
                }
                Poll::Pending => match this.items.poll_recv(cx) {
                    Poll::Ready(Some(item)) => return Poll::Ready(Some(Ok(item))),
                    _ => return Poll::Pending,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_stream::StreamExt;
    use tonic::Code;
    use tonic::metadata::MetadataMap;

    use super::super::Handle;
    use super::*;

    fn call(handle: &Handle) -> Call {
        handle.begin(&MetadataMap::new())
    }

    #[tokio::test]
    async fn items_come_before_the_error() {
        let handle = Handle::default();
        let stream = Producer::new(None, call(&handle), |out| async move {
            for n in 0..5 {
                out.send(n).await.map_err(|_| Status::cancelled("reader gone"))?;
            }
            Err(Status::aborted("enough"))
        });
        let items: Vec<_> = stream.map(|item| item.map_err(|s| s.code())).collect().await;
        assert_eq!(items, [Ok(0), Ok(1), Ok(2), Ok(3), Ok(4), Err(Code::Aborted)]);
        assert_eq!((handle.finished(), handle.dropped()), (1, 0));
    }

    /// It was lost when the task had used up its turn just then.
    #[tokio::test]
    async fn the_last_item_comes_however_much_the_task_has_done() {
        let handle = Handle::default();
        for had in 0..200 {
            let mut stream = Producer::new(None, call(&handle), |out| async move {
                out.send(1).await.map_err(|_| Status::cancelled("reader gone"))
            });
            // A task of its own begins with a whole turn, of which this much is used.
            let came = tokio::spawn(async move {
                for _ in 0..had {
                    tokio::task::coop::consume_budget().await;
                }
                std::future::poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await
            });
            assert_eq!(came.await.unwrap().unwrap().unwrap(), 1, "after {had} steps");
        }
    }

    #[tokio::test]
    async fn the_deadline_drops_the_work() {
        let handle = Handle::default();
        let at = Instant::now() + Duration::from_millis(20);
        let mut stream = Producer::new(Some(at), call(&handle), |out| async move {
            out.send(1).await.map_err(|_| Status::cancelled("reader gone"))?;
            std::future::pending().await
        });
        assert_eq!(stream.next().await.unwrap().unwrap(), 1);
        assert_eq!(stream.next().await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
        assert!(stream.next().await.is_none());
        assert_eq!((handle.finished(), handle.dropped()), (0, 1));
    }

    #[tokio::test]
    async fn dropping_the_stream_drops_the_work() {
        let handle = Handle::default();
        let stream = Producer::<()>::new(None, call(&handle), |_| std::future::pending());
        assert_eq!(handle.live(), 1);
        drop(stream);
        assert_eq!((handle.live(), handle.dropped()), (0, 1));
    }
}
