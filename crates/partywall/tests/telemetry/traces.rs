//! Spans of calls, and the metadata that connects them.

use partywall::{Channel, Route, Security, Server, blocking};
use partywall_interop::proto::Empty;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::service::{Handle, test_service_with};
use partywall_testkit::OPEN;
use tonic::Code;
use tracing::Instrument;

use super::setup::{Fields, Served, Span, span, spans};

const METHOD: &str = "grpc.testing.TestService/EmptyCall";

/// The two spans of calls within `around`, when both are closed: of the client, of the server.
fn pair(around: &str) -> [Span; 2] {
    let under = |fields: &Fields| fields.get("around").is_some_and(|name| name == around);
    assert_eq!(spans(under).len(), 1);
    let client = spans(|fields| fields.get("otel.kind").is_some_and(|kind| kind == "client"));
    let is_child = |of: &Span| of.parent.is_some_and(|parent| under(&span(parent).fields));
    let client = client.into_iter().find(|client| is_child(client)).expect("a client's span");
    let link = client.fields.get("partywall.link");
    let server = spans(|fields| {
        fields.get("otel.kind").is_some_and(|kind| kind == "server")
            && fields.get("partywall.link") == link
            && fields.get("partywall.isolation") == client.fields.get("partywall.isolation")
    });
    [client, server.last().expect("a server's span").clone()]
}

fn steps(span: &Span) -> Vec<&str> {
    span.events.iter().filter_map(|event| Some(event.get("step")?.as_str())).collect()
}

async fn call(channel: Channel, around: &str) {
    let call = async move { TestServiceClient::new(channel).empty_call(Empty {}).await.unwrap() };
    call.instrument(tracing::info_span!("test", around)).await;
}

/// A call by a thread without a runtime; returns the link and what protects it.
async fn call_blocking(served: &Served, around: &'static str) -> (Option<u64>, Security) {
    let endpoint = served.endpoint();
    let calling = move || {
        let _in = tracing::info_span!("test", around).entered();
        let mut channel = blocking::Channel::connect(endpoint).unwrap();
        channel.call_bytes(&format!("/{METHOD}"), b"").unwrap();
        let server = channel.server().unwrap();
        (Some(server.link()), server.security())
    };
    tokio::task::spawn_blocking(calling).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_has_a_span_on_each_side_and_handlers_log_in_it() {
    let served = Served::new(OPEN).await;
    let mut routes = Vec::new();
    for (around, channel, transport) in
        [("ring", served.ring().await, "shared_memory"), ("http2", served.http2().await, "unix")]
    {
        let route = channel.route().unwrap();
        let link = match &route {
            Route::Ring { server } => Some(server.link()),
            _ => None,
        };
        call(channel, around).await;
        routes.push((around, transport, link, route.security()));
    }
    let (link, security) = call_blocking(&served, "blocking").await;
    routes.push(("blocking", "shared_memory", link, security));
    for (around, transport, link, security) in routes {
        let link = link.map(|link| link.to_string());
        let expected = [
            ("otel.name", Some(METHOD)),
            ("rpc.method", Some(METHOD)),
            ("rpc.system.name", Some("grpc")),
            ("rpc.response.status_code", Some("OK")),
            ("otel.status_code", None),
            ("error.type", None),
            ("network.transport", Some(transport)),
            ("partywall.link", link.as_deref()),
            ("partywall.isolation", Some(security.isolation.word())),
            ("partywall.confidentiality", Some(security.confidentiality.word())),
            ("partywall.evidence", Some(security.evidence.word())),
            ("partywall.seal", Some(security.seal.word())),
            ("partywall.sign", Some(security.sign.word())),
        ];
        let both = pair(around);
        for of in &both {
            for (field, value) in expected {
                let found = of.fields.get(field).map(String::as_str);
                assert_eq!(found, value, "{around}, {field}: {of:?}");
            }
            assert!(of.is_closed, "{around}: {of:?}");
        }
        assert_eq!(steps(&both[1]), ["before", "after"], "{around}");
        assert_eq!(steps(&both[0]), [""; 0], "{around}");
    }
}

#[tokio::test]
async fn a_call_that_fails_is_an_error_of_the_sides_that_it_is_one_of() {
    let served = Served::new(OPEN).await;
    let mut client = TestServiceClient::new(served.ring().await);
    let call = client.unimplemented_call(Empty {});
    let status = call.instrument(tracing::info_span!("test", around = "error")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    for of in pair("error") {
        assert_eq!(of.fields["rpc.response.status_code"], "UNIMPLEMENTED");
        assert_eq!(of.fields["error.type"], "UNIMPLEMENTED");
        assert_eq!(of.fields["otel.status_code"], "ERROR");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_context_of_a_trace_passes_untouched_on_every_route() {
    const CONTEXT: [(&str, &str); 3] = [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", "vendor=t61rcWkgMzE,other=1"),
        ("baggage", "userId=alice,serverNode=DF%2028,isProduction=false"),
    ];
    let served = Served::new(OPEN).await;
    let request = || {
        let mut request = tonic::Request::new(Empty {});
        for (name, value) in CONTEXT {
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        request
    };
    for channel in [served.ring().await, served.http2().await] {
        TestServiceClient::new(channel).empty_call(request()).await.unwrap();
    }
    let tonics = served.ring().await.into_tonic();
    TestServiceClient::new(tonics).empty_call(request()).await.unwrap();
    let endpoint = served.endpoint();
    let (blocking, path) = (request(), "/grpc.testing.TestService/EmptyCall");
    let calling = move || {
        let mut channel = blocking::Channel::connect(endpoint).unwrap();
        channel.unary::<Empty, Empty>(path, blocking).unwrap();
    };
    tokio::task::spawn_blocking(calling).await.unwrap();
    let came = served.came.lock().unwrap();
    assert_eq!(came.len(), 4);
    for metadata in &*came {
        for (name, value) in CONTEXT {
            let values: Vec<_> = metadata.get_all(name).iter().collect();
            assert_eq!(values, [value], "{name}");
        }
    }
}

/// So that a program can put a call into the trace that its caller has sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn span_of_a_served_call_is_a_child_of_that_of_trace_fn() {
    const PATH: &str = "grpc.testing.TestService/UnimplementedCall";
    // Other tests wait, and everything is heard.
    let _served = Served::new(OPEN).await;
    let mut server =
        Server::builder().trace_fn(|_| tracing::info_span!("program", of = "trace_fn"));
    let router = server.add_service(test_service_with(Handle::default()));
    let mut client = TestServiceClient::new(router.in_process().unwrap());
    client.unimplemented_call(Empty {}).await.unwrap_err();
    let of = |name: &'static str, value: &'static str| {
        move |fields: &Fields| fields.get(name).is_some_and(|found| found == value)
    };
    let served = spans(|fields| of("otel.name", PATH)(fields) && of("otel.kind", "server")(fields));
    let mut parents = served.iter().filter_map(|served| served.parent).map(span);
    assert!(parents.any(|parent| of("of", "trace_fn")(&parent.fields)), "{served:?}");
}
