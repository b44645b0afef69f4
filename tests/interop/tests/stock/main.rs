//! The cases over tonic's own transports, and grpc-go's client against tonic's own server.

use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use http::{Request, Response};
use partywall_interop::cases::{self, CaseError, Env, Failure, Stubs, Transport};
use partywall_interop::go_client;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{BoolValue, ResponseParameters, StreamingOutputCallRequest};
use partywall_interop::service::{EchoHeaders, Handle, mounted, native, test_service_with};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tower::{Layer, Service};

type Outcome = Result<(), Box<dyn Error>>;
type Served = Result<(), tonic::transport::Error>;

fn router<S>(service: S) -> Router
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    Server::builder().add_service(service)
}

/// Runs every case and fails with all that did not hold.
async fn run_all<T: Transport>(link: &str, env: Env<T>) -> Outcome {
    let env = env.tonic_deadlines();
    let failed = cases::run(link, cases::all(), &env).await;
    if failed.is_empty() { Ok(()) } else { Err(texts(&failed).into()) }
}

fn texts(failed: &[CaseError]) -> String {
    failed.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A server on a free loopback port, and the endpoint to reach it.
fn listen(router: Router) -> Result<(JoinHandle<Served>, Endpoint), Box<dyn Error>> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let incoming = TcpIncoming::bind(addr)?.with_nodelay(Some(true));
    let endpoint = Endpoint::from_shared(format!("http://{}", incoming.local_addr()?))?;
    Ok((tokio::spawn(router.serve_with_incoming(incoming)), endpoint))
}

async fn env(endpoint: Endpoint, handle: Handle) -> Result<Env<Channel>, Box<dyn Error>> {
    let connect = move || {
        let endpoint = endpoint.clone();
        async move { endpoint.connect().await }
    };
    Ok(Env::new(connect().await?, handle, connect))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_over_tcp() -> Outcome {
    let handle = Handle::default();
    let (server, endpoint) = listen(router(mounted(handle.clone())))?;
    run_all("tcp", env(endpoint, handle).await?).await?;
    server.abort();
    Ok(())
}

/// Without the layer that looks at flags, the service goes by the encoding header.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_without_request_flags() -> Outcome {
    let handle = Handle::default();
    let (server, endpoint) = listen(router(EchoHeaders.layer(test_service_with(handle.clone()))))?;
    run_all("tcp, no flags", env(endpoint, handle).await?).await?;
    server.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_over_a_unix_socket() -> Outcome {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("interop.sock");
    let incoming = UnixListenerStream::new(UnixListener::bind(&path)?);
    let handle = Handle::default();
    let server = tokio::spawn(router(mounted(handle.clone())).serve_with_incoming(incoming));
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))?;
    run_all("unix", env(endpoint, handle).await?).await?;
    server.abort();
    Ok(())
}

/// Stubs of partywall-build at both ends are as tonic's where there is no ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_by_native_stubs_over_tcp() -> Outcome {
    let handle = Handle::default();
    let (server, endpoint) = listen(router(native(handle.clone())))?;
    let env = self::env(endpoint, handle.clone()).await?.tonic_deadlines().by(Stubs::Native);
    let own = cases::all().into_iter().filter(|case| case.name() != "custom_metadata");
    let failed = cases::run("tcp, native stubs", own.collect(), &env).await;
    assert!(failed.is_empty(), "{}", texts(&failed));
    let (caller, service) = (env.counts(), handle.counts());
    assert!(caller.native == 0 && service.native == 0, "{caller:?}, {service:?}");
    assert!(caller.ordinary > 300 && service.ordinary > 300, "{caller:?}, {service:?}");
    server.abort();
    Ok(())
}

/// The cases must notice a server that does not do its part.
#[tokio::test]
async fn a_server_without_the_echo_fails_the_metadata_cases() -> Outcome {
    let handle = Handle::default();
    let (server, endpoint) = listen(router(test_service_with(handle.clone())))?;
    let env = env(endpoint, handle).await?.tonic_deadlines();
    for name in ["custom_metadata", "binary_metadata", "metadata_on_error"] {
        let error = cases::find(name).ok_or(name)?.run(env.clone()).await.unwrap_err();
        assert!(matches!(error.failure, Failure::Differs { .. }), "{error}");
    }
    cases::find("large_unary").ok_or("large_unary")?.run(env).await?;
    server.abort();
    Ok(())
}

/// The service called directly: a transport that knows neither deadlines nor cancellation.
#[tokio::test(start_paused = true)]
async fn a_link_without_deadlines_or_cancellation_fails_their_cases() -> Outcome {
    let handle = Handle::default();
    let service = mounted(handle.clone());
    let link = service.clone();
    let connect = move || std::future::ready(Ok::<_, Infallible>(link.clone()));
    let env = Env::new(service, handle, connect);
    for name in ["deadline_reaches_handler", "cancel_after_begin", "cancel_after_first_response"] {
        let error = cases::find(name).ok_or(name)?.run(env.clone()).await.unwrap_err();
        assert_eq!(error.case, name);
    }
    for name in ["large_unary", "ping_pong", "custom_metadata", "channel_soak"] {
        cases::find(name).ok_or(name)?.run(env.clone()).await?;
    }
    Ok(())
}

/// tonic reports a deadline as CANCELLED, which a case does not accept unasked.
#[tokio::test]
async fn tonics_deadline_status_is_only_accepted_on_request() -> Outcome {
    let handle = Handle::default();
    let (server, endpoint) = listen(router(mounted(handle.clone())))?;
    let env = env(endpoint, handle).await?;
    let case = cases::find("deadline_reaches_handler").ok_or("no such case")?;
    let error = case.run(env.clone()).await.unwrap_err();
    assert!(error.to_string().contains("want DeadlineExceeded"), "{error}");
    case.run(env.tonic_deadlines()).await?;
    server.abort();
    Ok(())
}

#[tokio::test]
async fn the_service_names_its_peer_when_asked() -> Outcome {
    let (server, endpoint) = listen(router(mounted(Handle::default())))?;
    let mut client = TestServiceClient::new(endpoint.connect().await?);
    let parameters = [Some(true), Some(false), None].map(|named| ResponseParameters {
        fill_peer_socket_address: named.map(|value| BoolValue { value }),
        ..ResponseParameters::default()
    });
    let request = StreamingOutputCallRequest {
        response_parameters: parameters.to_vec(),
        ..StreamingOutputCallRequest::default()
    };
    let mut responses = client.streaming_output_call(request).await?.into_inner();
    let mut peers = Vec::new();
    while let Some(response) = responses.message().await? {
        peers.push(response.peer_socket_address);
    }
    assert_eq!(peers.len(), 3);
    assert!(peers[0].parse::<SocketAddr>()?.ip().is_loopback(), "{peers:?}");
    assert_eq!(peers[1..], ["", ""]);
    server.abort();
    Ok(())
}

#[test]
fn case_names_are_unique() {
    let all = cases::all::<Channel>();
    let names: HashSet<_> = all.iter().map(|case| case.name()).collect();
    assert_eq!(names.len(), all.len());
    for name in go_client::CASES {
        assert!(names.contains(name), "{name} has no body of our own");
    }
}

/// The server program; killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("cannot end the server: {error}");
        }
    }
}

#[test]
fn go_client_passes_against_the_server_program() -> Outcome {
    let child = Command::new(env!("CARGO_BIN_EXE_interop-server"))
        .args(["--port", "0"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut program = Program(child);
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    let addr = line.trim_end().strip_prefix("listening on ").ok_or_else(|| line.clone())?;
    let passed = go_client::run_all_in(Path::new(env!("CARGO_TARGET_TMPDIR")), addr.parse()?)?;
    assert_eq!(passed, 16);
    Ok(())
}
