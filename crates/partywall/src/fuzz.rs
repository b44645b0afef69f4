//! Bodies of the fuzz targets: a hostile caller against our service, a hostile service against
//! our callers. Services and callers are native stubs beside tonic's, as partywall-build generates them.
//! Each body returns whether it came to an accepting path.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use partywall_abi::control::Identity;
use partywall_abi::frame::{
    self, END, HEAD, Kind, PLAIN, PLAIN_REQUEST, PLAIN_RESPONSE, RequestHead, ResponseHead,
    TRAILERS, Trailers,
};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::MethodSet;
use partywall_abi::security::Security;
use partywall_shm::link::Ends;
use partywall_shm::setup::local_pair;
use prost::Message as _;
use tonic::Status;
use tonic::body::Body;

use crate::channel::Channel;
use crate::dispatch::{Limits, Services};
use crate::http_calls::service::HttpCalls;
use crate::link::account::{Accounts, Bounds};
use crate::link::{caller, service};
use crate::peer::Peer;
use crate::server::Routes;
use crate::stubs::demand::Nothing;
use crate::stubs::{self, Begun, Generated, Grpc, Incoming, Method, Served, Settings, Unary};

/// How often each path was taken that a driver is to take.
#[derive(Debug, Default)]
struct Reached {
    /// Requests that came to the service as HTTP has them; answers to such calls that the caller has read.
    ordinary: AtomicUsize,
    /// Messages that native stubs have decoded, and such that are none.
    decoded: AtomicUsize,
    refused: AtomicUsize,
    /// Plain frames that came to the hostile side.
    plain: AtomicUsize,
    /// Plain requests of the hostile side that something came of.
    served: AtomicUsize,
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Reached {
    /// What a native stub has made of a message.
    fn native<T>(&self, decoded: &Result<T, Status>) {
        match decoded {
            Ok(_) => count(&self.decoded),
            // As prost says, and as limits do.
            Err(status) if status.message().contains("decode") => count(&self.refused),
            Err(_) => {}
        }
    }

    /// A frame of ours.
    fn came(&self, flags: u8) {
        if flags & PLAIN != 0 {
            count(&self.plain);
        }
    }

    fn any(&self) -> bool {
        [&self.ordinary, &self.decoded].iter().any(|counter| counter.load(Ordering::Relaxed) > 0)
    }
}

/// A message with fields of each kind that a decoder treats apart.
#[derive(Clone, PartialEq, prost::Message)]
struct Note {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(bytes = "vec", tag = "2")]
    blob: Vec<u8>,
    #[prost(uint64, repeated, tag = "3")]
    numbers: Vec<u64>,
    #[prost(message, optional, boxed, tag = "4")]
    next: Option<Box<Self>>,
    #[prost(map = "string, sint32", tag = "5")]
    counts: HashMap<String, i32>,
}

const PATH: &str = "/a.B/C";
static METHOD: Method = Method::new("a.B", "C", PATH);

/// Limits of messages that some have more bytes than.
const SETTINGS: Settings = Settings { decoded: Some(30), encoded: None };

/// What partywall-build generates for a service with the method [`PATH`], which answers with its request.
#[derive(Clone)]
struct Server(Arc<Reached>);

impl Generated for Server {
    fn methods(&self) -> &'static [Served] {
        static METHODS: [Served; 1] = [Served::new::<Note>(PATH)];
        &METHODS
    }

    fn settings(&self) -> Settings {
        SETTINGS
    }

    fn begin(&self, _method: usize, request: Incoming) -> Begun {
        let reached = Arc::clone(&self.0);
        stubs::begin(async move {
            let request = request.decode::<Note>();
            reached.native(&request);
            Ok(tonic::Response::new(request?.into_inner()))
        })
    }
}

impl tonic::server::NamedService for Server {
    const NAME: &str = "a.B";
}

impl tower::Service<http::Request<Body>> for Server {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        stubs::offer(&request, self);
        count(&self.0.ordinary);
        Box::pin(async move {
            use http_body_util::BodyExt;
            let _all = request.into_body().collect().await;
            Ok(Status::ok("").into_http())
        })
    }
}

/// A message with its prefix: arbitrary bytes, or a good one with one byte replaced, and a prefix that is
/// right or has one thing wrong.
fn message(op: &[u8]) -> Vec<u8> {
    let message = match op[0] & 1 {
        0 => op[4..].to_vec(),
        _ => {
            let counts = HashMap::from([("k".into(), i32::from(op[1]))]);
            let last = Note { text: "n".into(), counts, ..Note::default() };
            let (blob, numbers, next) = (op[4..8].to_vec(), vec![7, 300], Some(Box::new(last)));
            let note = Note { text: "n".into(), blob, numbers, next, ..Note::default() };
            let mut bytes = note.encode_to_vec();
            if op[0] & 2 == 0 {
                let at = usize::from(op[2]) % bytes.len();
                bytes[at] = op[3];
            }
            bytes
        }
    };
    let len = message.len() as u32;
    let (compressed, len) = match op[1] % 16 {
        0 => (1, len),
        1 => (0, len + 1),
        2 => (0, u32::from_le_bytes([op[0], op[1], op[2], op[3]])),
        _ => (0, len),
    };
    [&[compressed][..], &len.to_be_bytes(), &message].concat()
}

/// One record made of fuzz input: arbitrary, or honest with one thing wrong.
fn record(op: &[u8], response: bool) -> (u8, u8, u32, Vec<u8>) {
    let stream = u32::from(op[1] % 8);
    let mut payload = Vec::new();
    match op[0] % 10 {
        0 => return (op[2], op[3], u32::from(op[4]), op[5..].to_vec()),
        1 => return (Kind::Frame as u8, op[2] & 31, stream, op[3..].to_vec()),
        2 if op[6] & 1 == 0 => {
            let kind = [Kind::Limits, Kind::Room][usize::from(op[6] >> 1 & 1)];
            let len = op.len().min(10);
            return (kind as u8, 0, stream, op[2..len].to_vec());
        }
        2 => return (Kind::Window as u8, 0, stream, op[2..6].to_vec()),
        3 => frame::write_reset(&mut payload, op[2] % 17, ""),
        4 if !response && op[6] < 64 => {
            // In turn or not, with a path or without.
            let path = if op[3] < 200 { PATH.as_bytes() } else { &op[5..] };
            return (Kind::Method as u8, 0, u32::from(op[2] % 4), path.to_vec());
        }
        4..=6 if response => return (Kind::Frame as u8, PLAIN_RESPONSE, stream, message(&op[2..])),
        4..=6 => {
            let number = frame::Request::plain(u16::from(op[6].is_multiple_of(16)));
            payload = [&number[..], &message(&op[2..])].concat();
            return (Kind::Frame as u8, PLAIN_REQUEST, stream, payload);
        }
        _ => {
            frame::write_block(&mut payload, |out| {
                if response {
                    ResponseHead::write(out, 0);
                } else {
                    RequestHead::write(
                        out,
                        if op[2] < 128 { None } else { Some(Duration::from_millis(1)) },
                        PATH,
                        0,
                    );
                }
            });
            if response {
                frame::write_block(&mut payload, |out| Trailers::write(out, op[2] % 17, 0));
            }
            match op[6] & 1 {
                0 => payload.extend_from_slice(&op[3..]),
                _ => payload.extend_from_slice(&message(&op[2..])),
            }
            if op[3] == 0 {
                payload.truncate(usize::from(op[4]) % (payload.len() + 1));
            }
            let flags = if response { HEAD | TRAILERS | END } else { HEAD | (op[5] & END) };
            return (Kind::Frame as u8, flags, stream, payload);
        }
    }
    (Kind::Reset as u8, 0, stream, payload)
}

/// Sends a record as `hostile`, letting ours run afterwards; false when that is no more possible.
async fn send(hostile: &mut Ends, record: (u8, u8, u32, &[u8]), reached: &Reached) -> bool {
    let (kind, flags, stream, payload) = record;
    if !matches!(hostile.producer.try_push(kind, flags, stream, &[payload]), Ok(true)) {
        return false;
    }
    let Ok(wake) = hostile.producer.notify() else { return false };
    if hostile.bell.carry_out(wake).is_err() {
        return false;
    }
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    let came = take_all(hostile, reached);
    if flags & PLAIN != 0 && came.contains(&stream) {
        count(&reached.served);
    }
    true
}

/// Takes what ours has sent; the streams of which something came.
fn take_all(hostile: &mut Ends, reached: &Reached) -> Vec<u32> {
    let mut streams = Vec::new();
    while let Ok(Some(record)) = hostile.consumer.peek() {
        if record.kind == Kind::Frame as u8 {
            reached.came(record.flags);
            streams.push(record.stream);
        }
        hostile.consumer.release();
    }
    streams
}

/// Sends what `data` says as `hostile`, letting `ours` run in between.
async fn play(hostile: &mut Ends, data: &[u8], response: bool, reached: &Reached) {
    for op in data.chunks(24).filter(|op| op.len() > 12) {
        let (kind, flags, stream, payload) = record(op, response);
        if !send(hostile, (kind, flags, stream, &payload), reached).await {
            return;
        }
    }
    tokio::time::sleep(Duration::from_micros(200)).await;
    let _streams = take_all(hostile, reached);
}

/// Somebody of whom next to nothing is known, on link 1.
pub(crate) fn stranger() -> Peer {
    Peer::new(identity(), 1, Security::HIGHEST)
}

pub(crate) fn identity() -> Identity {
    Identity::new(0, 0)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Our service against a caller whose records come from `data`.
///
/// # Panics
/// When an own invariant breaks: that is what fuzzing looks for.
pub fn hostile_caller(data: &[u8]) -> bool {
    let reached = Arc::default();
    call(data, &reached);
    reached.any()
}

fn call(data: &[u8], reached: &Arc<Reached>) {
    let Some((first, data)) = data.split_first() else { return };
    runtime().block_on(async {
        let (ours, mut hostile) = local_pair(Geometry::DEFAULT).expect("a link");
        let routes = Routes::default().add_service(Server(Arc::clone(reached)));
        let calls = HttpCalls::of(&Services::new(routes, Limits::default()));
        let account = Accounts::new(Bounds::default()).open(0, None);
        let caller = (stranger(), account);
        let _link = service::start(ours, calls, caller, MethodSet::all(), None).expect("a link");
        if first % 8 != 0 {
            // The service is known by its table, and the method has a number.
            let mut head = Vec::new();
            frame::write_block(&mut head, |out| RequestHead::write(out, None, PATH, 0));
            let named = (Kind::Method as u8, 0, 0, PATH.as_bytes());
            let request = (Kind::Frame as u8, HEAD | END, 9, &head[..]);
            assert!(send(&mut hostile, named, reached).await, "an empty ring has room");
            assert!(send(&mut hostile, request, reached).await, "there is room for two");
        }
        play(&mut hostile, data, false, reached).await;
    });
}

/// Our callers against a service whose records come from `data`.
///
/// # Panics
/// As [`hostile_caller`].
pub fn hostile_service(data: &[u8]) -> bool {
    let reached = Arc::default();
    serve(data, &reached);
    #[cfg(feature = "blocking")]
    blocking::serve(data, &reached);
    reached.any()
}

/// What it says first.
fn limits() -> [u8; 8] {
    frame::Limits { streams: 8, window: limits::FIRST_WINDOW }.encode()
}

fn serve(data: &[u8], reached: &Arc<Reached>) {
    runtime().block_on(async {
        let (ours, mut hostile) = local_pair(Geometry::DEFAULT).expect("a link");
        let pushed = hostile.producer.try_push(Kind::Limits as u8, 0, 0, &[&limits()]);
        assert!(matches!(pushed, Ok(true)), "an empty ring has room");
        let link = caller::start(ours, None).expect("a link");
        tokio::task::yield_now().await;
        let channel = Channel::on(link, stranger());
        let mut calls = Vec::new();
        for _ in 0..3 {
            calls.push(tokio::spawn(ordinary(channel.clone(), Arc::clone(reached))));
            calls.push(tokio::spawn(native(channel.clone(), Arc::clone(reached))));
            tokio::task::yield_now().await;
        }
        play(&mut hostile, data, true, reached).await;
        drop(hostile);
        for call in calls {
            // Whatever the service does, its end ends every call.
            let done = tokio::time::timeout(Duration::from_secs(5), call).await;
            done.expect("a call hangs").expect("a call panics");
        }
    });
}

/// A call of tonic's stubs.
async fn ordinary(mut channel: Channel, reached: Arc<Reached>) {
    use http_body_util::BodyExt;
    use tower::Service;
    let mut request = http::Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static(PATH);
    let Ok(response) = channel.call(request).await else { return };
    if response.into_body().collect().await.is_ok() {
        count(&reached.ordinary);
    }
}

/// Calls of native stubs, one after the other.
async fn native(channel: Channel, reached: Arc<Reached>) {
    let mut client = Grpc::new(channel).max_decoding_message_size(30);
    for _ in 0..3 {
        let request = tonic::Request::new(Note::default());
        let mut call = Unary::<Note, Note>::new(&METHOD, request);
        let answer = client.call(&mut call).await;
        reached.native(&answer.map(|()| call.response()));
    }
}

#[cfg(feature = "blocking")]
mod blocking {
    use partywall_abi::frame::Kind;
    use partywall_shm::link::{Ends, Link};
    use partywall_shm::ring::Wake;

    use super::*;
    use crate::blocking::Channel;

    /// A blocking channel against a service whose records come from `data`.
    pub(super) fn serve(data: &[u8], reached: &Arc<Reached>) {
        let (ours, mut hostile) = local_pair(Geometry::DEFAULT).expect("a link");
        let pushed = hostile.producer.try_push(Kind::Limits as u8, 0, 0, &[&limits()]);
        assert!(matches!(pushed, Ok(true)), "an empty ring has room");
        let mut channel = Channel::over(Link::new(ours).expect("a link"), stranger());
        channel.max_decoding_message_size(30);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(hostile, data, reached));
            for call in 0..4 {
                if call == 2 && channel.call_bytes(PATH, b"").is_ok() {
                    count(&reached.ordinary);
                }
                let mut call =
                    Unary::<Note, Note>::new(&METHOD, tonic::Request::new(Note::default()));
                let answer = channel.native(&mut call, SETTINGS, Nothing);
                reached.native(&answer.map(|()| call.response()));
            }
        });
    }

    /// Answers each request with the next record, and hangs up.
    fn answer(mut hostile: Ends, data: &[u8], reached: &Reached) {
        let mut stream = 0;
        for op in data.chunks(24).filter(|op| op.len() > 12) {
            // Until there is another one, or nothing comes of the last record.
            for _ in 0..10 {
                let Ok(came) = hostile.consumer.peek() else { return };
                match came {
                    Some(record) => {
                        hostile.consumer.release();
                        if record.kind == Kind::Frame as u8 {
                            stream = record.stream;
                            reached.came(record.flags);
                            break;
                        }
                    }
                    None => std::thread::sleep(Duration::from_micros(20)),
                }
            }
            let (kind, flags, other, payload) = record(op, true);
            // Most are for the call that waits.
            let stream = if op[7] % 8 == 0 { other } else { stream };
            let pushed = hostile.producer.try_push(kind, flags, stream, &[&payload]);
            let (Ok(true), Ok(wake)) = (pushed, hostile.producer.notify()) else { return };
            if !matches!(wake, Wake::Done) && hostile.bell.carry_out(wake).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Once;

    thread_local! {
        static PANICS: Cell<usize> = const { Cell::new(0) };
    }

    /// How many panics there were in this thread. The runtime swallows those of tasks, as which a link's
    /// end reads; all tasks of a link run in the thread that made its runtime, and other tests in others.
    fn panics() -> usize {
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.set(PANICS.get() + 1);
                before(panic);
            }));
        });
        PANICS.get()
    }

    /// Each path that both sides have was reached; how often one was that a caller alone has.
    fn drive(body: fn(&[u8], &Arc<Reached>), trials: usize) -> usize {
        let before = panics();
        let mut random = partywall_testkit::Random::new(1);
        let (mut accepted, mut times, mut all_served) = (0, [0; 4], 0);
        for _ in 0..trials {
            let data = random.bytes(240);
            let reached = Arc::default();
            body(&data, &reached);
            assert_eq!(panics(), before, "a task of the link panics at {data:?}");
            accepted += usize::from(reached.any());
            let Reached { ordinary, decoded, refused, plain, served } = &*reached;
            all_served += served.load(Ordering::Relaxed);
            for (sum, times) in times.iter_mut().zip([ordinary, decoded, refused, plain]) {
                *sum += times.load(Ordering::Relaxed);
            }
        }
        assert!(accepted > trials / 50, "only {accepted} inputs reached the accepting path");
        assert!(accepted < trials, "nothing was refused");
        assert!(times.iter().all(|times| *times > trials / 50), "{times:?}");
        all_served
    }

    #[test]
    fn fuzz_hostile_caller() {
        let served = drive(super::call, 500);
        assert!(served > 10, "{served} plain requests were answered");
    }

    #[test]
    fn fuzz_hostile_service() {
        drive(super::serve, 500);
        #[cfg(feature = "blocking")]
        drive(super::blocking::serve, 500);
    }
}
