//! What a server sets for its HTTP/2 connections alone, by the frames of RFC 9113.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use partywall::{Server, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::body::Body;

use super::service::{Raw, ok};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const WITHIN: Duration = Duration::from_secs(10);

const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

async fn serve(server: &Server) -> (TcpStream, JoinHandle<()>) {
    let router = server.clone().add_service(Raw::new(|_| async { ok() }));
    let bound = router.bind("http://127.0.0.1:0").await.unwrap();
    let Target::Http(url) = bound.addresses()[0].clone() else { unreachable!() };
    let serving = tokio::spawn(async move { bound.serve().await.unwrap() });
    (TcpStream::connect(url.trim_start_matches("http://")).await.unwrap(), serving)
}

/// One frame: its type, its stream, what is in it.
async fn frame(io: &mut TcpStream) -> Option<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    tokio::time::timeout(WITHIN, io.read_exact(&mut head)).await.unwrap().ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    let mut payload = vec![0; length as usize];
    io.read_exact(&mut payload).await.ok()?;
    Some((head[3], stream, payload))
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// The server's SETTINGS, and by how much it then widens the window of the connection, if it does.
async fn settings(server: Server, widens: bool) -> (HashMap<u16, u32>, u32) {
    let (mut io, _serving) = serve(&server).await;
    io.write_all(PREFACE).await.unwrap();
    // It answers once it has read what came before.
    io.write_all(b"\0\0\x08\x06\0\0\0\0\0partywal").await.unwrap();
    let (mut settings, mut widened, mut ponged) = (HashMap::new(), 0, false);
    while !ponged || (widens && widened == 0) {
        let (kind, stream, payload) = frame(&mut io).await.expect("a frame");
        match kind {
            SETTINGS => settings.extend(
                payload.chunks(6).map(|s| (u16::from_be_bytes([s[0], s[1]]), number(&s[2..]))),
            ),
            WINDOW_UPDATE if stream == 0 => widened += number(&payload),
            PING if payload == b"partywal" => ponged = true,
            _ => {}
        }
    }
    (settings, widened)
}

#[tokio::test]
async fn callers_get_the_windows_and_sizes_that_are_set() {
    let (unset, widened) = settings(Server::builder(), true).await;
    assert_eq!((unset[&4], widened), (1 << 20, (1 << 20) - 65_535));
    let server = Server::builder()
        .max_concurrent_streams(7)
        .initial_stream_window_size(70_000)
        .initial_connection_window_size(200_000)
        .max_frame_size(20_000)
        .http2_max_header_list_size(30_000);
    let (set, widened) = settings(server, true).await;
    assert_eq!([set[&3], set[&4], set[&5], set[&6]], [7, 70_000, 20_000, 30_000]);
    assert_eq!(widened, 200_000 - 65_535);
    let server = Server::builder().initial_stream_window_size(70_000);
    let (adaptive, _) = settings(server.http2_adaptive_window(Some(true)), false).await;
    assert_ne!(adaptive.get(&4), Some(&70_000));
}

#[tokio::test]
async fn a_caller_that_answers_no_ping_loses_its_connection() {
    let short = Some(Duration::from_millis(100));
    let server = Server::builder().http2_keepalive_interval(short).http2_keepalive_timeout(short);
    let (mut io, _serving) = serve(&server).await;
    io.write_all(PREFACE).await.unwrap();
    let mut pings = 0;
    while let Some((kind, _, _)) = frame(&mut io).await {
        pings += usize::from(kind == PING);
    }
    assert!(pings > 0);
}

/// The error code of the GOAWAY that these frames are answered with, if they are.
async fn goes_away(server: Server, frames: &[u8]) -> Option<u32> {
    let (mut io, _serving) = serve(&server).await;
    io.write_all(&[PREFACE, frames, b"\0\0\x08\x06\0\0\0\0\0partywal"].concat()).await.unwrap();
    while let Some((kind, _, payload)) = frame(&mut io).await {
        match kind {
            GOAWAY => return Some(number(&payload[4..])),
            PING if payload == b"partywal" => return None,
            _ => {}
        }
    }
    panic!("the connection has ended without a word");
}

/// So many calls, each begun by the same head and followed by this frame.
fn calls(count: u32, kind: u8, payload: [u8; 4]) -> Vec<u8> {
    let mut frames = Vec::new();
    for stream in (0..count).map(|n| 2 * n + 1) {
        // HEADERS with END_HEADERS: POST, http, and the path / (RFC 7541, appendix A).
        frames.extend_from_slice(b"\0\0\x03\x01\x04");
        frames.extend_from_slice(&stream.to_be_bytes());
        frames.extend_from_slice(b"\x83\x86\x84");
        frames.extend_from_slice(&[0, 0, 4, kind, 0]);
        frames.extend_from_slice(&stream.to_be_bytes());
        frames.extend_from_slice(&payload);
    }
    frames
}

const ENHANCE_YOUR_CALM: Option<u32> = Some(11);

#[tokio::test]
async fn caller_with_too_many_pending_resets_loses_its_connection() {
    let resets = calls(20, RST_STREAM, 8_u32.to_be_bytes());
    assert_eq!(goes_away(Server::builder(), &resets).await, None);
    let server = Server::builder().http2_max_pending_accept_reset_streams(Some(2));
    assert_eq!(goes_away(server, &resets).await, ENHANCE_YOUR_CALM);
}

#[tokio::test]
async fn caller_with_too_many_protocol_errors_loses_its_connection() {
    // No window may have more than 2^31-1 bytes: RFC 9113, section 6.9.1.
    let errors = calls(20, WINDOW_UPDATE, i32::MAX.to_be_bytes());
    assert_eq!(goes_away(Server::builder(), &errors).await, None);
    let server = Server::builder().http2_max_local_error_reset_streams(Some(2));
    assert_eq!(goes_away(server, &errors).await, ENHANCE_YOUR_CALM);
}

/// A unary call of gRPC-Web over HTTP/1.1, as browsers make it.
async fn over_http1(server: Server) -> String {
    let router = server
        .layer(tonic_web::GrpcWebLayer::new())
        .add_service(partywall_interop::service::test_service_with(Default::default()));
    let bound = router.bind("http://127.0.0.1:0").await.unwrap();
    let Target::Http(url) = bound.addresses()[0].clone() else { unreachable!() };
    let serving = tokio::spawn(bound.serve());
    let mut io = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    let head = "POST /grpc.testing.TestService/EmptyCall HTTP/1.1\r\nhost: here\r\nx-grpc-web: 1\r\n\
                content-type: application/grpc-web+proto\r\nconnection: close\r\ncontent-length: 5\r\n\r\n";
    // A message of no bytes.
    io.write_all(&[head.as_bytes(), &[0; 5]].concat()).await.unwrap();
    let mut answer = Vec::new();
    // It is closed with bytes unread where HTTP/1.1 is none of it.
    let _reset = tokio::time::timeout(WITHIN, io.read_to_end(&mut answer)).await.unwrap();
    serving.abort();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn browsers_are_answered_over_http1_where_that_is_accepted() {
    let answer = over_http1(Server::builder().accept_http1(true)).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: application/grpc-web+proto"), "{answer}");
    assert!(answer.contains("grpc-status:0"), "{answer}");
    let answer = over_http1(Server::builder()).await;
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
}

/// The time is for all that there is to write: it is over for who reads nothing, and not for who has read all
/// before, nor while there is nothing to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_loses_its_connection_and_who_is_slow_not() {
    const TIME: Duration = Duration::from_secs(4);
    /// More than the kernel keeps of a connection.
    const BODY: usize = 64 << 20;
    let server = Server::builder().accept_http1(true).write_timeout(Some(TIME));
    let long =
        || async { http::Response::new(Body::new(Full::new(Bytes::from(vec![b'x'; BODY])))) };
    let router = server.clone().add_service(Raw::new(move |_| long()));
    let bound = router.bind("http://127.0.0.1:0").await.unwrap();
    let Target::Http(url) = bound.addresses()[0].clone() else { unreachable!() };
    let _serving = tokio::spawn(async move { bound.serve().await.unwrap() });
    let at = url.trim_start_matches("http://");
    let ask = async |io: &mut TcpStream| {
        let head = "POST /test.Raw/Long HTTP/1.1\r\nhost: x\r\ncontent-type: application/grpc\r\n";
        io.write_all(format!("{head}content-length: 0\r\n\r\n").as_bytes()).await.unwrap();
    };
    let answer = async |io: &mut TcpStream, pause: Duration| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(io.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
        let mut part = vec![0; BODY / 16];
        for _ in 0..16 {
            tokio::time::sleep(pause).await;
            io.read_exact(&mut part).await.unwrap();
        }
        // It comes in chunks: what is around them is left, and the end.
        let mut rest = Vec::new();
        while !rest.ends_with(b"\r\n\r\n") {
            rest.push(io.read_u8().await.unwrap());
        }
    };
    let slow = async {
        let mut io = TcpStream::connect(at).await.unwrap();
        ask(&mut io).await;
        answer(&mut io, Duration::from_millis(60)).await;
        tokio::time::sleep(TIME + Duration::from_secs(1)).await;
        ask(&mut io).await;
        answer(&mut io, Duration::ZERO).await;
    };
    let unread = async {
        let mut io = TcpStream::connect(at).await.unwrap();
        ask(&mut io).await;
        tokio::time::sleep(TIME + Duration::from_secs(2)).await;
        let mut had = Vec::new();
        // What the kernel had taken, and then an end or a reset.
        let _reset = tokio::time::timeout(WITHIN, io.read_to_end(&mut had)).await.expect("an end");
        assert!(!had.is_empty() && had.len() < BODY, "{} bytes", had.len());
    };
    tokio::join!(slow, unread);
}
