//! Calls over HTTP/2 that their server gives back are sent again, and no others. The server is written by
//! frames, because it says of calls that it has taken what servers say of calls that they have not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use partywall::Channel;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Service, ServiceExt};

use super::service::request;

/// As the module that sends again has it.
const KEPT: usize = 64 * 1024;
const LONG: Duration = Duration::from_secs(30);

// Frames of HTTP/2: RFC 9113, section 6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
/// `:status: 200` of the static table of RFC 7541, then two headers in full.
const ANSWER: &[u8] = b"\x88\0\x0ccontent-type\x10application/grpc\0\x0bgrpc-status\x010";

/// What the server does with a call.
#[derive(Clone, Copy, Debug)]
enum Does {
    Answer,
    /// The stream is reset with this code.
    Reset(h2::Reason),
    /// The connection takes no calls beyond that one, or none beyond the one before it.
    GoAway {
        takes_it: bool,
    },
    /// The connection ends without a word.
    Close,
}

const REFUSE: Does = Does::Reset(h2::Reason::REFUSED_STREAM);
const CROSS: Does = Does::GoAway { takes_it: false };

/// A server that does this with its first calls, and answers all others.
struct Scripted {
    url: String,
    /// The requests of all calls, as far as they were read.
    came: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Ends when this is dropped.
    _tasks: JoinSet<()>,
}

/// What the connections of a server share.
#[derive(Clone)]
struct Script {
    /// A piece of a request is enough.
    early: bool,
    steps: Arc<Mutex<Vec<Does>>>,
    came: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Scripted {
    async fn new(early: bool, steps: &[Does]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let steps = Arc::new(Mutex::new(steps.iter().rev().copied().collect()));
        let script = Script { early, steps, came: Arc::default() };
        let came = Arc::clone(&script.came);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let script = script.clone();
                // A caller that goes ends its connection.
                connections.spawn(async move { drop(serve(stream, script).await) });
            }
        });
        Self { url, came, _tasks: tasks }
    }

    /// How often a call came, all with this body.
    fn runs(&self, body: &[u8]) -> usize {
        let came = self.came.lock().unwrap();
        assert!(came.iter().all(|one| one == body), "a body is not as it was sent");
        came.len()
    }
}

async fn write(
    stream: &mut TcpStream,
    kind: u8,
    flags: u8,
    id: u32,
    payload: &[u8],
) -> std::io::Result<()> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend(payload);
    stream.write_all(&frame).await
}

async fn serve(mut stream: TcpStream, script: Script) -> std::io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    // Windows that take each request whole: SETTINGS_INITIAL_WINDOW_SIZE, and the connection's.
    write(&mut stream, SETTINGS, 0, 0, &[0, 4, 0, 16, 0, 0]).await?;
    write(&mut stream, WINDOW_UPDATE, 0, 0, &[0, 16, 0, 0]).await?;
    let mut body = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let id = u32::from_be_bytes(id);
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await?;
        if kind == SETTINGS && flags & ACK == 0 {
            write(&mut stream, SETTINGS, ACK, 0, &[]).await?;
        }
        if kind == DATA {
            body.extend(payload);
        }
        let is_whole = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        if !(is_whole || kind == DATA && script.early) {
            continue;
        }
        script.came.lock().unwrap().push(std::mem::take(&mut body));
        let step = script.steps.lock().unwrap().pop();
        match step.unwrap_or(Does::Answer) {
            Does::Answer => {
                write(&mut stream, HEADERS, END_STREAM | END_HEADERS, id, ANSWER).await?;
            }
            Does::Reset(reason) => {
                let code = u32::from(reason).to_be_bytes();
                write(&mut stream, RST_STREAM, 0, id, &code).await?;
            }
            Does::GoAway { takes_it } => {
                let last = if takes_it { id } else { id.saturating_sub(2) };
                let payload = [last.to_be_bytes(), [0; 4]].concat();
                write(&mut stream, GOAWAY, 0, 0, &payload).await?;
                if takes_it {
                    return Ok(());
                }
            }
            Does::Close => return Ok(()),
        }
    }
}

/// Bytes that differ from place to place.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A body in two pieces.
fn whole(body: &[u8]) -> Body {
    let (first, second) = body.split_at(body.len() / 3);
    let frames =
        [first, second].map(|piece| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(piece))));
    Body::new(StreamBody::new(tokio_stream::iter(frames)))
}

/// A body of which more could come.
fn begun(body: &[u8]) -> Body {
    let piece = Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(body)));
    Body::new(StreamBody::new(tokio_stream::once(piece).chain(tokio_stream::pending())))
}

async fn call(channel: &Channel, body: Body) -> Code {
    let mut channel = channel.clone();
    let calling = async { channel.ready().await?.call(request("Call", body)).await };
    let answer = tokio::time::timeout(LONG, calling).await.expect("an end of the call");
    match answer {
        Ok(answer) => Status::from_header_map(answer.headers()).expect("a status").code(),
        Err(status) => status.code(),
    }
}

#[tokio::test]
async fn a_call_that_its_server_has_not_taken_is_sent_again_whole_up_to_the_kept_bound() {
    for given_back in [REFUSE, CROSS] {
        for (len, code) in
            [(0, Code::Ok), (1000, Code::Ok), (KEPT, Code::Ok), (KEPT + 1, Code::Unavailable)]
        {
            let server = Scripted::new(false, &[given_back, given_back]).await;
            let channel = Channel::connect(&server.url).await.unwrap();
            let body = bytes(len);
            assert_eq!(call(&channel, whole(&body)).await, code, "{given_back:?}, {len} bytes");
            let runs = if code == Code::Ok { 3 } else { 1 };
            assert_eq!(server.runs(&body), runs, "{given_back:?}, {len} bytes");
        }
    }
}

#[tokio::test]
async fn a_call_that_its_server_may_have_seen_is_sent_once() {
    let ends = [
        (Does::Reset(h2::Reason::INTERNAL_ERROR), Code::Internal),
        (Does::Reset(h2::Reason::CANCEL), Code::Cancelled),
        (Does::GoAway { takes_it: true }, Code::Unavailable),
        (Does::Close, Code::Unavailable),
    ];
    for (end, code) in ends {
        let server = Scripted::new(false, &[end]).await;
        let channel = Channel::connect(&server.url).await.unwrap();
        let body = bytes(1000);
        assert_eq!(call(&channel, whole(&body)).await, code, "{end:?}");
        assert_eq!(server.runs(&body), 1, "{end:?}");
        // The next one has a connection.
        assert_eq!(call(&channel, whole(&body)).await, Code::Ok, "{end:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_under_way_is_not_sent_again_without_its_rest() {
    for given_back in [REFUSE, CROSS] {
        let server = Scripted::new(true, &[given_back]).await;
        let channel = Channel::connect(&server.url).await.unwrap();
        let body = bytes(1000);
        assert_eq!(call(&channel, begun(&body)).await, Code::Unavailable, "{given_back:?}");
        assert_eq!(server.runs(&body), 1, "{given_back:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_always_refused_fails_after_eight_attempts() {
    let server = Scripted::new(false, &[REFUSE; 20]).await;
    let channel = Channel::connect(&server.url).await.unwrap();
    let body = bytes(10);
    assert_eq!(call(&channel, whole(&body)).await, Code::Unavailable);
    assert_eq!(server.runs(&body), 8);
}
