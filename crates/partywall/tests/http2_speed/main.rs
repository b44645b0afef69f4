//! A test that measures time, alone in its binary so that no other test competes with it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{Payload, SimpleRequest};
use partywall_interop::service::{Handle, test_service_with};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};

const CALLERS: usize = 10;
const CALLS: u32 = 100;

/// Asks for a kilobyte: of answers of a few bytes, too many fit one packet.
fn request() -> SimpleRequest {
    let payload = Some(Payload { body: vec![7; 1000].into(), ..Payload::default() });
    SimpleRequest { response_size: 1000, payload, ..SimpleRequest::default() }
}

/// How long ten callers on one connection take for a hundred calls each.
async fn measure(channel: &Channel) -> Duration {
    let start = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let mut client = TestServiceClient::new(channel.clone());
        callers.spawn(async move {
            for _ in 0..CALLS {
                client.unary_call(request()).await.unwrap();
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    start.elapsed()
}

async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let start = Instant::now();
    loop {
        match endpoint.connect().await {
            Ok(channel) => return channel,
            Err(e) => assert!(start.elapsed() < Duration::from_secs(10), "{e}"),
        }
    }
}

/// Ten concurrent callers over TCP had 300 calls a second from our listener, where tonic's gave them
/// 17,000: the end of an answer waited until the caller had acknowledged its beginning. Then this
/// ratio is about 0.1; half is asked for here, in a build without optimisation and on a busy machine.
/// `cargo bench -p partywall-bench --bench listener` measures how near to one it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_callers_of_our_http2_listener_are_not_held_up() {
    let service = || test_service_with(Handle::default());
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let incoming = incoming.with_nodelay(Some(true));
    let tonics = incoming.local_addr().unwrap();
    let mut server = tonic::transport::Server::builder();
    tokio::spawn(server.add_service(service()).serve_with_incoming(incoming));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    tokio::spawn(partywall::Server::builder().add_service(service()).serve(free));
    let (ours, tonics) = (connect(free).await, connect(tonics).await);
    let mut ratios = Vec::new();
    for _ in 0..7 {
        let (tonics, ours) = (measure(&tonics).await, measure(&ours).await);
        println!("tonic {tonics:?}, ours {ours:?}");
        ratios.push(tonics.as_secs_f64() / ours.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    assert!(median > 0.5, "{median} of tonic's calls a second: {ratios:?}");
}
