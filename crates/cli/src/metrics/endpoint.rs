//! The metrics as an answer to `GET /metrics`, one on each connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_stream::{Stream, StreamExt};

/// The most connections: one more ends the oldest.
const MOST: usize = 8;
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(2);
/// How long an exchange may take, from the connection to the last byte of the answer.
const EXCHANGE: Duration = Duration::from_secs(5);
/// How long a text is shown before the next one is made.
const SHOWN: Duration = Duration::from_secs(1);
/// How long no connection is accepted after one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it is said that none is accepted.
const SAID: Duration = Duration::from_secs(60);
/// The smallest buffer that hyper has for a head.
const BUFFER: usize = 8192;

/// What is shown.
pub(super) struct Text {
    render: Box<dyn Fn() -> String + Send + Sync>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl Text {
    /// Which this makes.
    pub(super) fn new(render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { render: Box::new(render), last: Mutex::new(None) }
    }

    /// That of the last second, or a new one.
    fn now(&self) -> Bytes {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((made, text)) if made.elapsed() < SHOWN => text.clone(),
            _ => {
                let text = Bytes::from((self.render)());
                *last = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

/// Answers on each connection that comes.
pub(super) async fn serve<S>(
    mut incoming: impl Stream<Item = io::Result<S>> + Unpin + Send,
    text: Arc<Text>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    let mut said: Option<Instant> = None;
    while let Some(came) = incoming.next().await {
        let io = match came {
            Ok(io) => io,
            Err(error) => {
                if said.is_none_or(|at| at.elapsed() > SAID) {
                    said = Some(Instant::now());
                    tracing::warn!(%error, "metrics: no connection is accepted for a moment");
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() == MOST
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tokio::spawn(exchange(io, text.clone())).abort_handle());
        // Who asks has its answer, and who was ended its descriptor closed, before the next one comes.
        tokio::task::yield_now().await;
    }
}

/// One request and its answer, and the end of the connection.
async fn exchange<S>(io: S, text: Arc<Text>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| {
        let answer = answer(&request, &text);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(BUFFER).keep_alive(false);
    let served = http.serve_connection(TokioIo::new(io), service);
    match tokio::time::timeout(EXCHANGE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "metrics: a request failed"),
        Err(_) => tracing::debug!("metrics: a reader was too slow"),
    }
}

fn answer<B>(request: &Request<B>, text: &Text) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let (status, header, body) = if path != "/metrics" && path != "/" {
        (StatusCode::NOT_FOUND, None, "metrics are at /metrics\n".into())
    } else if request.method() != Method::GET {
        (StatusCode::METHOD_NOT_ALLOWED, Some((ALLOW, "GET")), Bytes::new())
    } else {
        (StatusCode::OK, Some((CONTENT_TYPE, "text/plain; version=0.0.4")), text.now())
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    if let Some((name, value)) = header {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    /// A text of which it is known how often it was made.
    fn counted(text: &str) -> (Arc<Text>, Arc<AtomicUsize>) {
        let (text, made) = (text.to_owned(), Arc::new(AtomicUsize::new(0)));
        let count = made.clone();
        let render = move || {
            count.fetch_add(1, Ordering::Relaxed);
            text.clone()
        };
        (Arc::new(Text::new(render)), made)
    }

    async fn ask(request: &str, text: &Arc<Text>) -> String {
        let (mut own, theirs) = UnixStream::pair().unwrap();
        let served = tokio::spawn(exchange(theirs, text.clone()));
        own.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        own.read_to_string(&mut answer).await.unwrap();
        served.await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_the_answer_to_get_at_their_path_alone() {
        let (text, _) = counted("a 1\n");
        for (request, status, body) in [
            ("GET /metrics", "200 OK", "\r\n\r\na 1\n"),
            ("GET /?x=y", "200 OK", "\r\n\r\na 1\n"),
            ("GET /other", "404 Not Found", "/metrics\n"),
            ("POST /metrics", "405 Method Not Allowed", "\r\n\r\n"),
        ] {
            let answer = ask(&format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n"), &text).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
            assert!(answer.ends_with(body), "{answer}");
        }
    }

    #[tokio::test]
    async fn text_is_shared_for_a_second_and_then_made_again() {
        let (text, made) = counted("a 1\n");
        let start = Instant::now();
        for _ in 0..20 {
            ask(GET, &text).await;
        }
        let whole = start.elapsed().as_secs() as usize;
        assert!(made.load(Ordering::Relaxed) <= 1 + whole, "{made:?} in {:?}", start.elapsed());
        let before = made.load(Ordering::Relaxed);
        tokio::time::sleep(SHOWN).await;
        ask(GET, &text).await;
        assert_eq!(made.load(Ordering::Relaxed), before + 1);
    }

    #[tokio::test]
    async fn reader_that_takes_nothing_is_cut_within_the_time() {
        let (text, _) = counted(&"a 1\n".repeat(4 << 20));
        let (mut own, theirs) = UnixStream::pair().unwrap();
        own.write_all(GET.as_bytes()).await.unwrap();
        tokio::time::timeout(2 * EXCHANGE, exchange(theirs, text)).await.unwrap();
        let mut answer = Vec::new();
        own.read_to_end(&mut answer).await.unwrap();
        assert!(
            answer.starts_with(b"HTTP/1.1 200 OK") && answer.len() < 4 << 20,
            "{}",
            answer.len()
        );
    }

    #[tokio::test]
    async fn head_that_does_not_end_is_cut_within_its_time() {
        let (text, _) = counted("");
        let (mut own, theirs) = UnixStream::pair().unwrap();
        own.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        tokio::time::timeout(EXCHANGE - Duration::from_secs(1), exchange(theirs, text))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn one_connection_more_than_the_most_ends_the_oldest() {
        let (text, _) = counted("a 1\n");
        let (mut own, theirs): (Vec<_>, Vec<_>) =
            (0..=MOST).map(|_| UnixStream::pair().unwrap()).unzip();
        let incoming = tokio_stream::iter(theirs.into_iter().map(Ok));
        serve(incoming, text).await;
        assert_eq!(own[0].read(&mut [0]).await.unwrap(), 0);
        for kept in &mut own[1..] {
            kept.write_all(GET.as_bytes()).await.unwrap();
            let mut answer = String::new();
            kept.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("a 1\n"), "{answer}");
        }
    }

    #[tokio::test]
    async fn acceptance_that_fails_pauses_and_goes_on() {
        let (text, _) = counted("a 1\n");
        let (mut own, theirs) = UnixStream::pair().unwrap();
        let short = || Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()));
        let incoming = tokio_stream::iter([short(), short(), Ok(theirs)]);
        let start = Instant::now();
        serve(incoming, text).await;
        assert!(start.elapsed() >= 2 * PAUSE, "{:?}", start.elapsed());
        own.write_all(GET.as_bytes()).await.unwrap();
        let mut answer = String::new();
        own.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("a 1\n"), "{answer}");
    }
}
