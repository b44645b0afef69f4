//! What becomes of the parts of requests and answers.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use partywall::{Channel, Routes, Server};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;

use super::service::{Raw, ok, request};

fn serve(raw: Raw) -> Channel {
    Server::builder().add_routes(Routes::default().add_service(raw)).in_process().unwrap()
}

/// A body that begins and does not end.
fn endless(first: impl Into<Bytes>) -> Body {
    let first = tokio_stream::iter([Ok::<_, Status>(Frame::data(first.into()))]);
    let frames = tokio_stream::StreamExt::chain(first, tokio_stream::pending());
    Body::new(StreamBody::new(frames))
}

fn code(answer: &http::Response<Body>) -> Option<Code> {
    Some(Status::from_header_map(answer.headers())?.code())
}

/// A runtime that hangs is not waited for.
fn within(limit: Duration, work: impl Future<Output = ()> + Send + 'static) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let runtime = runtime.unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        work.await;
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(limit);
    runtime.shutdown_background();
    ended.expect("it hangs or has failed");
}

#[test]
fn a_refused_head_of_an_answer_that_has_the_request_blocks_nobody() {
    within(Duration::from_secs(20), async {
        let go = Arc::new(tokio::sync::Semaphore::new(0));
        let waits = Arc::clone(&go);
        let channel = serve(Raw::new(move |request| {
            let waits = Arc::clone(&waits);
            async move {
                waits.acquire().await.unwrap().forget();
                let mut answer = http::Response::new(request.into_body());
                answer.headers_mut().insert("x-long", "v".repeat(30 << 10).parse().unwrap());
                answer
            }
        }));
        let calls = (0..4).map(|_| {
            let mut channel = channel.clone();
            let body = endless(vec![0; 1000 << 10]);
            tokio::spawn(async move { channel.call(request("Echo", body)).await })
        });
        let calls: Vec<_> = calls.collect();
        // The unread data are there: their windows go back when the answers are dropped.
        tokio::time::sleep(Duration::from_millis(500)).await;
        go.add_permits(4);
        for call in calls {
            let answer = call.await.unwrap().unwrap();
            assert_eq!(code(&answer), Some(Code::ResourceExhausted));
        }
    });
}

/// Bytes that say when they are freed.
struct Watched(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

fn watched() -> (http::HeaderValue, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let bytes = Bytes::from_owner(Watched(vec![b'v'; 16 << 10], Arc::clone(&gone)));
    (http::HeaderValue::from_maybe_shared(bytes).unwrap(), gone)
}

#[tokio::test]
async fn heads_of_streams_are_freed_when_they_are_sent() {
    let (value, of_answer) = watched();
    let value = Mutex::new(Some(value));
    let mut channel = serve(Raw::new(move |request| {
        let value = value.lock().unwrap().take().expect("one call");
        async move {
            let (_, body) = request.into_parts();
            let mut answer = http::Response::new(Body::new(body.map_frame(|frame| frame)));
            answer.headers_mut().insert("x-kept", value);
            answer
        }
    }));
    let (value, of_request) = watched();
    let mut stream = request("Stream", endless(&b"\0\0\0\0\x01a"[..]));
    stream.headers_mut().insert("x-kept", value);
    let mut body = channel.call(stream).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    for _ in 0..1000 {
        if of_request.load(SeqCst) && of_answer.load(SeqCst) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("of the request {of_request:?}, of the answer {of_answer:?}");
}

struct PanicsAtDrop;

impl http_body::Body for PanicsAtDrop {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        false
    }
}

impl Drop for PanicsAtDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("at the drop of a body");
        }
    }
}

#[tokio::test]
async fn an_answer_that_panics_when_it_is_dropped_ends_no_other_call() {
    for kind in ["trailers only", "too large", "http status"] {
        let mut channel = serve(Raw::new(move |request| async move {
            if request.uri().path() == "/test.Raw/Good" {
                return ok();
            }
            let mut answer = http::Response::new(Body::new(PanicsAtDrop));
            let headers = answer.headers_mut();
            match kind {
                "trailers only" => drop(headers.insert("grpc-status", "0".parse().unwrap())),
                "too large" => {
                    drop(headers.insert("x-long", "v".repeat(30 << 10).parse().unwrap()))
                }
                _ => *answer.status_mut() = http::StatusCode::FORBIDDEN,
            }
            answer
        }));
        // So many that some are polled by the link's reader.
        for _ in 0..20 {
            let bad = channel.call(request("Bad", Body::empty()));
            let bad = bad.await.map(|answer| code(&answer));
            assert!(!matches!(bad, Ok(Some(Code::Ok))), "{kind}: {bad:?}");
            let good = channel.call(request("Good", Body::empty())).await.unwrap();
            assert_eq!(code(&good), Some(Code::Ok), "{kind}");
        }
    }
}
