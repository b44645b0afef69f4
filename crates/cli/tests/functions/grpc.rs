//! Functions by gRPC: stock clients over HTTP/2, and calls that end with their callers and their deadlines.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;

use partywall_fn_host::proto::functions_client::FunctionsClient;
use partywall_fn_host::proto::{InvokeReply, InvokeRequest};
use partywall_fn_host::reply::CALL;
use partywall_interop::python_client;
use tokio::sync::oneshot;
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::rig::{Rig, http};
use crate::ways::open;
use crate::{SHOUT, says};

const SPIN: &str = "pub fn handle(_: Request<'_>) -> Reply { loop {} }\n";
const INVOKE: &str = "/partywall.functions.v1.Functions/Invoke";

fn request(function: &str, body: &[u8]) -> InvokeRequest {
    InvokeRequest { function: function.into(), body: body.to_vec().into() }
}

/// tonic's own client, with nothing of Partywall's but the messages.
struct Stock(Channel);

impl Stock {
    async fn connect(at: SocketAddr) -> Self {
        Self(Channel::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap())
    }

    async fn call(
        &self,
        path: &'static str,
        request: InvokeRequest,
    ) -> Result<Response<InvokeReply>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::default();
        grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await
    }

    async fn invoke(&self, function: &str, body: &[u8]) -> Result<Response<InvokeReply>, Status> {
        self.call(INVOKE, request(function, body)).await
    }
}

pub fn on_tokio<R>(work: impl Future<Output = R>) -> R {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all().build().unwrap().block_on(work)
}

/// Waits until a function's log says this, which it is to do long before its budget is over.
fn logged(rig: &Rig, function: &str, said: &str) {
    let until = Instant::now() + Duration::from_secs(5);
    while !rig.good(&["logs", function], "").contains(said) {
        assert!(Instant::now() < until, "{}", rig.good(&["logs", function], ""));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stock_grpc_client_calls_functions_over_http2() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open(""));
    rig.deploy("shout", SHOUT, &[]);
    let fails = "pub fn handle(_: Request<'_>) -> Reply {\n\
                 log!(\"it fails\");\nErr(Error::new(Code::of(9), \"not now\"))\n}\n";
    rig.deploy("fail", fails, &[]);
    on_tokio(async {
        let stock = Stock::connect(at).await;
        let reply = stock.invoke("shout", b"hello").await.unwrap();
        let call = reply.metadata().get(CALL).unwrap().to_str().unwrap().to_owned();
        assert_eq!(reply.into_inner().body, b"HELLO"[..]);
        assert!(rig.good(&["logs", "shout", "--call", &call], "").contains("5 bytes"));
        let failed = stock.invoke("fail", b"").await.unwrap_err();
        assert_eq!((failed.code(), failed.message()), (Code::FailedPrecondition, "not now"));
        let call = failed.metadata().get(CALL).unwrap().to_str().unwrap();
        assert!(rig.good(&["logs", "fail", "--call", call], "").contains("it fails"));
        assert_eq!(stock.invoke("none", b"").await.unwrap_err().code(), Code::NotFound);
        // Too long for any function, and too long for any message.
        for (bytes, code) in [((8 << 20) + 1, Code::InvalidArgument), (9 << 20, Code::OutOfRange)] {
            let long = stock.invoke("shout", &vec![b'x'; bytes]).await.unwrap_err();
            assert_eq!(long.code(), code, "{long:?}");
        }
        for (path, code) in [
            ("/partywall.functions.v1.Functions/List", Code::PermissionDenied),
            ("/partywall.functions.v1.Functions/Nothing", Code::Unimplemented),
            ("/other.Service/Invoke", Code::Unimplemented),
        ] {
            let refused = stock.call(path, request("", b"")).await.unwrap_err();
            assert_eq!(refused.code(), code, "{path}: {refused:?}");
        }
        // A call by POST is the same over HTTP/2.
        let post = tonic::codegen::http::Request::post(format!("http://{at}/shout"));
        let mut channel = stock.0.clone();
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let posted = channel.call(post.body(Body::empty()).unwrap()).await.unwrap();
        assert!(posted.status() == 200 && posted.headers().contains_key(CALL), "{posted:?}");
        assert!(!posted.headers().contains_key("grpc-status"), "{posted:?}");
        assert_eq!(stock.invoke("shout", b"on").await.unwrap().into_inner().body, b"ON"[..]);
    });
    let host = format!("http://{at}");
    assert_eq!(rig.good(&["invoke", "shout", "--host", &host], "by name"), "BY NAME");
    for order in [
        &["ls"][..],
        &["deploy", "shout.rs"],
        &["logs", "shout"],
        &["rm", "shout"],
        &["rollback", "shout"],
        &["preload", "shout"],
        &["ban", "shout"],
        &["pull", "shout"],
    ] {
        let denied = rig.bad(&[order, &["--host", &host]].concat(), "");
        assert!(denied.0 == 64 + 7 && denied.1.contains("nobody vouches"), "{order:?}: {denied:?}");
    }
    let plain = http(at, &format!("POST {INVOKE}"), b"");
    assert!(plain.code == 415 && plain.body.contains("application/grpc"), "{plain:?}");
    // What is gRPC's is nothing to a call by POST.
    let other = http(at, "POST /shout HTTP/1.1\r\ngrpc-timeout: 1n\r\nx: y", b"plain");
    assert_eq!((other.code, other.body.as_str()), (200, "PLAIN"));
}

/// How a body goes on behind its first parts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rest {
    Ends,
    Stays,
    Comes,
}

/// A body of parts of 1 MiB, with the number of those that were taken; the sender is gone with the body.
fn body(parts: usize, rest: Rest) -> (Body, Arc<AtomicUsize>, oneshot::Receiver<()>) {
    let (taken, (sender, gone)) = (Arc::new(AtomicUsize::new(0)), oneshot::channel::<()>());
    let part = Bytes::from(vec![b'z'; 1 << 20]);
    let counted = taken.clone();
    let first = tokio_stream::iter(0..if rest == Rest::Comes { usize::MAX } else { parts });
    let first = first.map(move |_| {
        let _until_the_body_is_gone = &sender;
        counted.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Status>(Frame::data(part.clone()))
    });
    let body = match rest {
        Rest::Stays => Body::new(StreamBody::new(first.chain(tokio_stream::pending()))),
        _ => Body::new(StreamBody::new(first)),
    };
    (body, taken, gone)
}

/// An over-long body is read to its end, to a pause or to a limit, beside the answer, and then given up. The
/// connection goes on meanwhile and afterwards.
#[test]
fn an_over_long_body_over_http2_is_thrown_away() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open(""));
    rig.deploy("shout", SHOUT, &[]);
    rig.deploy("unread", &says("x"), &["--budget", "1s"]);
    on_tokio(async {
        let stock = Stock::connect(at).await;
        let post = async |body: Body, length: Option<usize>| {
            let mut post = tonic::codegen::http::Request::post(format!("http://{at}/shout"));
            if let Some(length) = length {
                post = post.header("content-length", length);
            }
            let mut channel = stock.0.clone();
            std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
            channel.call(post.body(body).unwrap()).await.unwrap().status().as_u16()
        };
        for (parts, rest, has_length) in [
            (16, Rest::Ends, true),
            (16, Rest::Ends, false),
            (9, Rest::Stays, false),
            (16, Rest::Stays, true),
            (0, Rest::Comes, false),
        ] {
            let case = format!("{parts} {rest:?} {has_length}");
            let (body, taken, gone) = body(parts, rest);
            // One that is said to have one part more than come.
            let length = (parts + usize::from(rest == Rest::Stays)) << 20;
            assert_eq!(post(body, has_length.then_some(length)).await, 413, "{case}");
            assert_eq!(stock.invoke("shout", b"on").await.unwrap().into_inner().body, b"ON"[..]);
            let ended = tokio::time::timeout(Duration::from_secs(20), gone).await;
            assert!(ended.is_ok(), "{case}: it is waited for");
            let taken = taken.load(Ordering::Relaxed);
            match rest {
                // 8 MiB as a body, four times that as what nobody wants, and what is under way.
                Rest::Comes => assert!((32..48).contains(&taken), "{taken}"),
                _ => assert_eq!(taken, parts, "{case}"),
            }
        }
        // Nothing of them is left in the windows of the connection.
        let whole = vec![b'x'; 4 << 20];
        for _ in 0..3 {
            let reply = stock.invoke("unread", &whole).await.unwrap();
            assert_eq!(reply.into_inner().body, b"x"[..]);
        }
    });
}

/// Called by nothing but grpcio, without generated code.
#[test]
fn pythons_grpcio_calls_functions_over_http2() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open(""));
    rig.deploy("shout", SHOUT, &[]);
    let program = "import sys, grpc\n\
        with grpc.insecure_channel(sys.argv[1]) as channel:\n\
        \x20   call = channel.unary_unary('/partywall.functions.v1.Functions/Invoke')\n\
        \x20   print(call(b'\\x0a\\x05shout\\x12\\x05hello', timeout=20))\n\
        \x20   try: call(b'\\x0a\\x05other', timeout=20)\n\
        \x20   except grpc.RpcError as error: print(error.code().name)\n";
    let said = python_client::says(program, &[&at.to_string()]).unwrap();
    assert_eq!(said, "b'\\n\\x05HELLO'\nNOT_FOUND");
}

/// Who goes away, or whose time is over, leaves no function running: over HTTP/2 and over the ring.
#[test]
fn a_call_ends_with_its_grpc_caller() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open("most_budget_us = 60000000"));
    for name in ["stock", "ring"] {
        rig.deploy(name, SPIN, &["--budget", "60s"]);
    }
    let within = Duration::from_millis(300);
    on_tokio(async {
        let stock = Stock::connect(at).await;
        tokio::time::timeout(within, stock.invoke("stock", b"")).await.unwrap_err();
        let endpoint = partywall::Endpoint::new("partywall:functions").unwrap();
        let channel = endpoint.coordinator(&rig.host.socket).connect().await.unwrap();
        let mut client = FunctionsClient::new(channel);
        let call = client.invoke(request("ring", b""));
        tokio::time::timeout(within, call).await.unwrap_err();
        // The connections stay: it is the calls that end.
        for name in ["stock", "ring"] {
            logged(&rig, name, "ended: the caller has ended the call");
        }
    });
}

#[test]
fn a_grpc_deadline_ends_a_call_on_every_way() {
    let rig = Rig::new();
    let (_served, at) = rig.serve_http(&open("most_budget_us = 60000000"));
    rig.deploy("spin", SPIN, &["--budget", "60s"]);
    let timed = rig.bad(&["invoke", "spin", "--timeout", "200ms"], "");
    assert!(timed.0 == 64 + 4 && timed.1.contains("spin: DEADLINE_EXCEEDED: "), "{timed:?}");
    logged(&rig, "spin", "ended: ");
    // What the host says of it: clients look at their own clocks.
    let head = format!(
        "POST {INVOKE} HTTP/1.1\r\ncontent-type: application/grpc\r\ngrpc-timeout: 200m\r\nx: y"
    );
    let timed = http(at, &head, b"\0\0\0\0\x06\x0a\x04spin");
    assert_eq!((timed.code, timed.header("grpc-status")), (200, Some("4")), "{timed:?}");
    let ended = rig.good(&["logs", "spin"], "").matches("ended: ").count();
    assert_eq!(ended, 2, "{}", rig.good(&["logs", "spin"], ""));
}
