//! A build without the feature `http2`: names are called and served, and addresses are refused.
#![cfg(not(feature = "http2"))]

use std::convert::Infallible;
use std::task::{Context, Poll};

use partywall::{Channel, Confidentiality, Endpoint, Error, Routes, Server, TargetError};
use partywall_testkit::Host;
use tonic::body::Body;
use tower::Service;

/// A service at `/test.Ok/*`.
#[derive(Clone)]
struct Fine;

impl tonic::server::NamedService for Fine {
    const NAME: &'static str = "test.Ok";
}

impl Service<http::Request<Body>> for Fine {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: http::Request<Body>) -> Self::Future {
        std::future::ready(Ok(tonic::Status::ok("").into_http()))
    }
}

async fn call(mut channel: Channel) {
    let request = http::Request::builder().uri("/test.Ok/Any").body(Body::empty()).unwrap();
    let answer = channel.call(request).await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_called_and_served() {
    let host = Host::open();
    let bound = Server::builder().coordinator(&host.socket).add_service(Fine).bind("test");
    let serving = tokio::spawn(bound.await.unwrap().serve());
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let channel = endpoint.connect().await.unwrap();
    // A program without the feature `domain` does not know whether it shares its address space.
    let most =
        if cfg!(feature = "domain") { Confidentiality::Host } else { Confidentiality::Space };
    assert_eq!(channel.route().unwrap().security().confidentiality, most);
    call(channel).await;
    serving.abort();
    call(Server::builder().add_service(Fine).in_process().unwrap()).await;
}

#[tokio::test]
async fn addresses_are_refused_and_the_feature_is_named() {
    let is_refused = |error: Error| {
        assert!(matches!(error, Error::Target(TargetError::NoHttp2 { .. })), "{error}");
        assert!(error.to_string().contains("feature `http2`"), "{error}");
    };
    for at in ["http://127.0.0.1:1", "unix:/tmp/none.sock"] {
        is_refused(Channel::connect(at).await.unwrap_err());
        is_refused(Server::builder().add_routes(Routes::default()).bind(at).await.unwrap_err());
    }
    // The policy may lead to an address.
    let policy = "[service.test.call]\nanyone = ['*']\n[names]\ntest = 'http://127.0.0.1:1'\n";
    let host = Host::with(policy);
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    is_refused(endpoint.connect().await.unwrap_err());
}
