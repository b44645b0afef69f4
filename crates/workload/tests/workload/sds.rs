//! SDS: resources, versions, ACK and NACK.

use partywall_workload::proto::envoy::config::core::v3::DataSource;
use partywall_workload::proto::envoy::config::core::v3::data_source::Specifier;
use partywall_workload::proto::envoy::extensions::transport_sockets::tls::v3::Secret;
use partywall_workload::proto::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use partywall_workload::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DiscoveryRequest, DiscoveryResponse,
};
use partywall_workload::proto::envoy::service::secret::v3::secret_discovery_service_client as client;
use partywall_workload::proto::google::rpc;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::rig::{Rig, principal, within};

use client::SecretDiscoveryServiceClient;

const TYPE: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
const ID: &str = "spiffe://partywall.local/service/me";
const DOMAIN: &str = "spiffe://partywall.local";

fn text(source: Option<DataSource>) -> String {
    match source.unwrap().specifier.unwrap() {
        Specifier::InlineBytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        _ => panic!("it is said where it is, and not what it is"),
    }
}

/// The resources of a response, by name: what each is, in PEM.
fn resources(response: &DiscoveryResponse) -> Vec<(String, Vec<String>)> {
    assert_eq!(response.type_url, TYPE);
    let secret = |any: &partywall_workload::proto::google::protobuf::Any| {
        assert_eq!(any.type_url, TYPE);
        let secret = Secret::decode(&any.value[..]).unwrap();
        let texts = match secret.r#type.unwrap() {
            Type::TlsCertificate(c) => vec![text(c.certificate_chain), text(c.private_key)],
            Type::ValidationContext(c) => vec![text(c.trusted_ca)],
        };
        (secret.name, texts)
    };
    response.resources.iter().map(secret).collect()
}

fn names(response: &DiscoveryResponse) -> Vec<String> {
    resources(response).into_iter().map(|(name, _)| name).collect()
}

struct Proxy {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl Proxy {
    /// A stream that begins with this request.
    async fn begin(rig: &Rig, first: DiscoveryRequest) -> Result<Self, Status> {
        let mut client = SecretDiscoveryServiceClient::new(rig.channel().await);
        let (requests, rx) = mpsc::channel(8);
        requests.send(first).await.unwrap();
        let responses = within(client.stream_secrets(ReceiverStream::new(rx))).await?.into_inner();
        Ok(Self { requests, responses })
    }

    async fn says(&self, request: DiscoveryRequest) {
        self.requests.send(request).await.unwrap();
    }

    async fn next(&mut self) -> DiscoveryResponse {
        within(self.responses.message()).await.unwrap().unwrap()
    }
}

fn wants(names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        resource_names: names.iter().map(|name| (*name).into()).collect(),
        type_url: TYPE.into(),
        ..DiscoveryRequest::default()
    }
}

/// A request about a response.
fn about(response: &DiscoveryResponse, names: &[&str]) -> DiscoveryRequest {
    let (version_info, response_nonce) = (response.version_info.clone(), response.nonce.clone());
    DiscoveryRequest { version_info, response_nonce, ..wants(names) }
}

fn error() -> Option<rpc::Status> {
    Some(rpc::Status { code: 3, message: "not a certificate".into(), details: vec![] })
}

#[tokio::test]
async fn secrets_are_the_certificate_and_the_roots_under_their_names() {
    let rig = Rig::new(&principal("me"));
    // No header: proxies send none.
    let all = ["default", ID, "ROOTCA", DOMAIN, "nobody", "default"];
    let mut proxy = Proxy::begin(&rig, wants(&all)).await.unwrap();
    let response = proxy.next().await;
    let found = resources(&response);
    let name = |at: usize| found[at].0.as_str();
    assert_eq!([name(0), name(1), name(2), name(3)], ["ROOTCA", "default", DOMAIN, ID]);
    assert_eq!((found.len(), &found[0].1, &found[1].1), (4, &found[2].1, &found[3].1));
    assert!(found[0].1[0].starts_with("-----BEGIN CERTIFICATE-----\n"));
    assert!(found[1].1[0].starts_with("-----BEGIN CERTIFICATE-----\n"));
    assert!(found[1].1[1].starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert_ne!(found[0].1[0], found[1].1[0]);
    assert!(!format!("{response:?}").contains("PRIVATE"), "keys are in no log");

    let mut client = SecretDiscoveryServiceClient::new(rig.channel().await);
    let fetched = within(client.fetch_secrets(wants(&["ROOTCA"]))).await.unwrap().into_inner();
    assert_eq!(resources(&fetched), [("ROOTCA".to_owned(), found[0].1.clone())]);
    let missing = within(client.fetch_secrets(wants(&["ROOTCA", "nobody"]))).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(
        missing.message().contains("[\"nobody\"]") && missing.message().contains(ID),
        "{missing:?}"
    );
    let other =
        DiscoveryRequest { type_url: "type.googleapis.com/x".into(), ..wants(&["default"]) };
    let refused = within(client.fetch_secrets(other.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    let mut proxy = Proxy::begin(&rig, other).await.unwrap();
    let refused = within(proxy.responses.message()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    let many: Vec<_> = (0..65).map(|n| n.to_string()).collect();
    let many = DiscoveryRequest { resource_names: many, ..wants(&[]) };
    let refused = within(client.fetch_secrets(many)).await.unwrap_err();
    assert!(refused.message().contains("65 names, and a request has at most 64"), "{refused:?}");
    let delta = tokio_stream::iter([DeltaDiscoveryRequest::default()]);
    let refused = within(client.delta_secrets(delta)).await.unwrap_err();
    assert!(refused.code() == Code::Unimplemented && refused.message().contains("StreamSecrets"));
}

#[tokio::test]
async fn a_version_is_sent_once_and_late_requests_say_nothing() {
    let rig = Rig::new(&principal("me"));
    let mut proxy = Proxy::begin(&rig, wants(&["ROOTCA"])).await.unwrap();
    let roots = proxy.next().await;
    // Each of these would get an answer before the one that is waited for, if it got one.
    proxy.says(about(&roots, &["ROOTCA"])).await;
    proxy.says(DiscoveryRequest { error_detail: error(), ..about(&roots, &["ROOTCA"]) }).await;
    proxy.says(about(&roots, &[])).await;
    let stale = DiscoveryRequest { response_nonce: "7".into(), ..about(&roots, &["nobody"]) };
    proxy.says(stale).await;
    proxy.says(about(&roots, &["default", "ROOTCA"])).await;
    let both = proxy.next().await;
    assert_eq!(names(&both), ["ROOTCA", "default"]);
    assert!(both.nonce != roots.nonce && both.version_info != roots.version_info);
    // A name less: at once, though nothing is new.
    proxy.says(about(&both, &["default"])).await;
    let own = proxy.next().await;
    assert_eq!(names(&own), ["default"]);
    assert_ne!(own.nonce, both.nonce);
    // NACK: this version is not sent again, the next one is.
    proxy.says(DiscoveryRequest { error_detail: error(), ..about(&own, &["default"]) }).await;
    proxy.says(about(&both, &["ROOTCA"])).await;
    rig.reload(&principal("another"));
    let renewed = proxy.next().await;
    assert_eq!(names(&renewed), ["default"]);
    assert_ne!(renewed.version_info, own.version_info);
    // As Envoy says when it connects anew: a version it has, and no nonce of this stream.
    let mut again = Proxy::begin(&rig, about(&renewed, &["default"])).await.unwrap();
    assert_eq!(names(&again.next().await), ["default"]);
}

#[tokio::test]
async fn roots_alone_are_not_sent_again_with_each_certificate() {
    let rig = Rig::new(&principal("me"));
    let mut roots = Proxy::begin(&rig, wants(&["ROOTCA"])).await.unwrap();
    let first = roots.next().await;
    roots.says(about(&first, &["ROOTCA"])).await;
    rig.reload(&principal("another"));
    rig.reload(&format!("{}[authority]\ndomain = 'shop.example'\n", principal("another")));
    let second = roots.next().await;
    assert_ne!(second.version_info, first.version_info);
    assert_ne!(resources(&second), resources(&first), "it is that of the other authority");
    rig.reload("");
    let denied = within(roots.responses.message()).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied:?}");
}

#[tokio::test]
async fn a_proxy_that_is_no_principal_is_denied() {
    let rig = Rig::new("");
    let mut client = SecretDiscoveryServiceClient::new(rig.channel().await);
    let denied = within(client.fetch_secrets(wants(&["default"]))).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied:?}");
    let denied = Proxy::begin(&rig, wants(&["default"])).await.err().expect("it is denied");
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied:?}");
}
