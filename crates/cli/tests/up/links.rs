//! What `partywall links` says of the methods of a link.

use std::time::{Duration, Instant};

use partywall::{Endpoint, Server};
use partywall_stubs_tests::ours::Echo;
use partywall_stubs_tests::ours::pb::greeter_client::GreeterClient;
use partywall_stubs_tests::ours::pb::greeter_server::GreeterServer;
use partywall_stubs_tests::ours::pb::{HelloReply, HelloRequest};
use partywall_testkit::Host;
use tonic::Code;
use tonic_prost::ProstCodec;

use super::{partywall, text, two_looks};

/// Answers at the name `test`, and one link to it with native calls and with others.
async fn calls(host: &Host) -> GreeterClient<partywall::Channel> {
    let mut server = Server::builder().coordinator(&host.socket);
    let bound = server.add_service(GreeterServer::new(Echo::default())).bind("test").await.unwrap();
    tokio::spawn(bound.serve());
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let channel = endpoint.connect().await.unwrap();
    let mut client = GreeterClient::new(channel.clone());
    for _ in 0..120 {
        client.say_hello(HelloRequest::default()).await.unwrap();
    }
    for _ in 0..3 {
        client.count(HelloRequest::default()).await.unwrap();
    }
    let mut other = tonic::client::Grpc::new(channel);
    for n in 0..16 {
        let codec = ProstCodec::<HelloRequest, HelloReply>::default();
        let path = format!("/stubs.v1.Greeter/None{n:02}").parse().unwrap();
        other.ready().await.unwrap();
        let request = tonic::Request::new(HelloRequest::default());
        let none = other.unary(request, path, codec).await.unwrap_err();
        assert_eq!(none.code(), Code::Unimplemented);
    }
    client
}

/// What `partywall links` prints with these arguments.
fn links(host: &Host, arguments: &[&str]) -> String {
    let socket = host.socket.to_str().unwrap();
    let out = partywall(&[&["links", "--socket", socket], arguments].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn wide_links_show_which_way_calls_of_methods_went() {
    let host = Host::open();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(calls(&host));
    let wide = links(&host, &["--wide"]);
    let lines: Vec<&str> = wide.lines().collect();
    assert_eq!(lines.len(), 2 + 16 + 1, "{wide}");
    assert!(lines[0].starts_with("LINK ") && lines[1].contains("  open   139 "), "{wide}");
    assert_eq!(lines[2], "  /stubs.v1.Greeter/SayHello  native 119  ordinary 1");
    assert_eq!(lines[3], "  /stubs.v1.Greeter/Count     native   0  ordinary 3");
    assert_eq!(lines[4], "  /stubs.v1.Greeter/None00    native   0  ordinary 1");
    assert_eq!(lines[18], "  and 2 more methods");
    assert!(lines[2..].iter().all(|line| line.len() <= 80), "{wide}");
    assert_eq!(links(&host, &[]).lines().count(), 2, "a line for each link");
    let row: serde_json::Value = serde_json::from_str(&links(&host, &["--json"])).unwrap();
    let hello = serde_json::json!({
        "path": "/stubs.v1.Greeter/SayHello", "native": 119, "ordinary": 1
    });
    assert_eq!((&row["methods"][0], &row["more_methods"]), (&hello, &2.into()));
    // A link that is closed is shown with its methods as well, once its server has told them.
    runtime.block_on(async { drop(client) });
    let begin = Instant::now();
    loop {
        let closed = links(&host, &["--wide"]);
        if closed.contains("  closed  ") && closed.lines().skip(2).eq(lines[2..].iter().copied()) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{closed}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn watch_of_a_name_shows_instances_and_the_pace_of_both_ends() {
    let host = Host::open();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut client = runtime.block_on(calls(&host));
    runtime.spawn(async move {
        loop {
            client.say_hello(HelloRequest::default()).await.unwrap();
        }
    });
    let socket = host.socket.to_str().unwrap();
    let [first, second] = two_looks(&["test", "--socket", socket]);
    for look in [&first, &second] {
        assert_eq!(look["name"], "test");
        let instance = &look["instances"][0];
        assert_eq!(instance["pid"], std::process::id(), "{look}");
        assert_eq!((&instance["links"], &instance["callers"]), (&1.into(), &1.into()), "{look}");
        assert_eq!(look["links"].as_array().unwrap().len(), 1, "{look}");
    }
    assert!(first["links"][0]["server_pace"].is_null(), "nothing was measured before: {first}");
    for end in ["caller_pace", "server_pace"] {
        let pace = &second["links"][0][end];
        let (calls, mean) = (pace["calls_per_second"].as_f64(), pace["mean_ns"].as_u64());
        let (calls, mean) = (calls.unwrap(), mean.unwrap());
        // One after the other.
        assert!(calls > 1.0 && mean > 0 && calls * mean as f64 <= 1.1e9, "{end}: {second}");
    }
}
