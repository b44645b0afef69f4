//! A caller that is written for tonic's endpoint compiles and runs with ours in its place.

use std::time::Duration;

use partywall_interop::proto::Empty;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::service::{Handle, test_service_with};

use super::super::setup::{Host, Serve};
use partywall::Routes;

/// The caller, by the path of the endpoint's type and that of the channel's.
macro_rules! caller {
    ($name:ident, $endpoint:path, $channel:path) => {
        async fn $name(address: String) -> Result<(), Box<dyn std::error::Error>> {
            use $channel as Channel;
            use $endpoint as Endpoint;
            let second = Duration::from_secs(1);
            let endpoint = Endpoint::from_shared(address.clone())?
                .user_agent("stock/1")?
                .origin("http://stock.example".parse()?)
                .timeout(10 * second)
                .connect_timeout(10 * second)
                .concurrency_limit(16)
                .rate_limit(1000, second)
                .buffer_size(64)
                .buffer_size(None)
                .tcp_nodelay(true)
                .tcp_keepalive(Some(second))
                .tcp_keepalive_interval(Some(second))
                .tcp_keepalive_retries(Some(3))
                .local_address(None)
                .initial_stream_window_size(1 << 17)
                .initial_connection_window_size(Some(1 << 20))
                .http2_keep_alive_interval(30 * second)
                .keep_alive_timeout(second)
                .keep_alive_while_idle(true)
                .http2_adaptive_window(false)
                .http2_header_table_size(8192)
                .http2_max_header_list_size(1 << 16)
                .http2_max_concurrent_reset_streams(32)
                .http2_reset_stream_duration(second)
                .http2_max_local_error_reset_streams(Some(64))
                .max_frame_size(1 << 15)
                .executor(OnTokio);
            assert_eq!(endpoint.uri().to_string(), format!("{address}/"));
            assert_eq!(endpoint.get_connect_timeout(), Some(10 * second));
            assert_eq!(endpoint.get_tcp_keepalive(), Some(second));
            assert_eq!(endpoint.get_tcp_keepalive_interval(), Some(second));
            assert_eq!(endpoint.get_tcp_keepalive_retries(), Some(3));
            assert!(endpoint.get_tcp_nodelay());
            let channel: Channel = endpoint.connect().await?;
            TestServiceClient::new(channel).empty_call(Empty {}).await?;
            let lazy: Channel = endpoint.connect_lazy();
            TestServiceClient::new(lazy).empty_call(Empty {}).await?;
            let port = endpoint.uri().port_u16().ok_or("a port")?;
            let connector = || {
                tower::service_fn(move |_: http::Uri| async move {
                    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                    Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
                })
            };
            let channel = endpoint.connect_with_connector_lazy(connector());
            TestServiceClient::new(channel).empty_call(Empty {}).await?;
            let channel = endpoint.connect_with_connector(connector()).await?;
            TestServiceClient::new(channel).empty_call(Empty {}).await?;
            for endpoint in [
                Endpoint::try_from(address.clone())?,
                address.parse::<Endpoint>()?,
                Endpoint::from(endpoint.uri().clone()),
                Endpoint::new(address.clone())?,
                Channel::from_shared(address)?,
                Channel::from_static("http://localhost:1"),
                Endpoint::from_static("http://localhost:1"),
                Endpoint::try_from("http://localhost:1")?,
            ] {
                drop(endpoint.connect_lazy());
            }
            Ok(())
        }
    };
}

caller!(by_tonic, tonic::transport::Endpoint, tonic::transport::Channel);
caller!(by_partywall, partywall::Endpoint, partywall::Channel);

#[derive(Clone)]
struct OnTokio;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for OnTokio {
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_for_tonics_endpoint_compiles_with_ours() {
    let host = Host::open();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("http://{free}");
    let routes = Routes::default().add_service(test_service_with(Handle::default()));
    let running = host.serve_at(&address, routes).await;
    partywall::Endpoint::new(&*address).unwrap().wait_for_ready(true).connect().await.unwrap();
    by_tonic(address.clone()).await.unwrap();
    by_partywall(address).await.unwrap();
    running.stop().await.unwrap();
}
