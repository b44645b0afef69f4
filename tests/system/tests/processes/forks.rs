//! Processes that leave copies of themselves: a copy has their sockets, and nobody sees a hang-up.

use std::time::{Duration, Instant};

use partywall_interop::proto::SimpleRequest;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_system_tests::{connect, request};
use tonic::Code;

use partywall_testkit::{Host, alone};

use crate::SERVER;

/// How long until a death is heard of.
const IN_TIME: Duration = Duration::from_secs(1);

#[test]
fn death_is_noticed_while_a_forked_copy_lives() {
    let _alone = alone();
    let host = Host::open();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dies = host.start(SERVER, &[]);
        host.until_served();
        let mut client = TestServiceClient::new(connect(&host.socket).await);
        let mut blocking = {
            let socket = host.socket.clone();
            tokio::task::spawn_blocking(move || {
                partywall::blocking::Channel::connect(
                    partywall::Endpoint::from_static("partywall:///test").coordinator(socket),
                )
                .unwrap()
            })
            .await
            .unwrap()
        };
        let mut copy = tonic::Request::new(request(1, 32));
        copy.metadata_mut().insert("x-fail", "copy".parse().unwrap());
        client.unary_call(copy).await.unwrap();
        let (_requests, requests) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let mut stream = client.full_duplex_call(requests).await.unwrap().into_inner();
        let _other = host.start(SERVER, &[]);
        let start = Instant::now();
        dies.kill();
        let ended = tokio::time::timeout(IN_TIME, stream.message()).await.expect("no word of it");
        assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
        assert!(start.elapsed() < IN_TIME);
        // The next call is the other one's.
        let call = client.unary_call(request(2, 32));
        tokio::time::timeout(Duration::from_secs(10), call).await.expect("a call hangs").unwrap();
        let again = tokio::task::spawn_blocking(move || {
            let call = tonic::Request::new(request(3, 32));
            blocking.unary::<SimpleRequest, partywall_interop::proto::SimpleResponse>(
                "/grpc.testing.TestService/UnaryCall",
                call,
            )
        });
        again.await.unwrap().unwrap();
    });
}
