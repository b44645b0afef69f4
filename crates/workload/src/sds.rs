//! SDS, version 3: certificates and keys for Envoy, by the state-of-the-world protocol of xDS.
//!
//! ```text
//! request, the first of its stream            wants these names          --> a response: nonce, version
//! request with the nonce of the last response
//!     without error_detail   ACK: it is used      } other names: a response at once
//!     with error_detail      NACK: it is not      } the same ones: one when there is another version
//! request with another nonce                  it is late, and says nothing
//! ```
//!
//! A version is never sent twice for the same names. Names that are nobody's here are left out, as xDS has
//! it. `FetchSecrets` has no stream: it fails where a name is left out.

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use zeroize::Zeroizing;

use crate::caller::{BYTES, Caller};
use crate::proto::envoy::config::core::v3::DataSource;
use crate::proto::envoy::config::core::v3::data_source::Specifier;
use crate::proto::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use crate::proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate,
};
use crate::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::proto::envoy::service::secret::v3::secret_discovery_service_server::{
    SecretDiscoveryService, SecretDiscoveryServiceServer,
};
use crate::proto::google::protobuf::Any;
use crate::svid::Svid;

/// The resource with the certificate and its key, beside its SPIFFE ID.
const CERTIFICATE: &str = "default";
/// The resource with the roots of the own trust domain, beside the ID of that.
const ROOTS: &str = "ROOTCA";
/// What resources are.
const TYPE: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// The most names of a request.
const NAMES: usize = 64;

/// The service of one connection.
pub(crate) fn service(caller: Caller) -> SecretDiscoveryServiceServer<Sds> {
    SecretDiscoveryServiceServer::new(Sds { caller }).max_decoding_message_size(BYTES)
}

/// The calls of one connection.
pub(crate) struct Sds {
    caller: Caller,
}

fn inline(bytes: impl Into<Bytes>) -> Option<DataSource> {
    Some(DataSource { specifier: Some(Specifier::InlineBytes(bytes.into())) })
}

/// What a name stands for, and whether it changes with the certificate.
fn secret(svid: &Svid, name: &str) -> Option<(Type, bool)> {
    if name == CERTIFICATE || name == svid.id {
        let certificate_chain = inline(svid.chain_pem.clone());
        let private_key = inline(svid.key_pem.clone());
        return Some((
            Type::TlsCertificate(TlsCertificate { certificate_chain, private_key }),
            true,
        ));
    }
    let domain = if name == ROOTS { &svid.domain } else { name };
    let trusted_ca = inline(svid.bundles.get(domain)?.pem.clone());
    Some((Type::ValidationContext(CertificateValidationContext { trusted_ca }), false))
}

/// What these names are now, in which version, and those that are left out.
struct Answer {
    resources: Vec<Any>,
    version: String,
    left_out: Vec<String>,
}

fn answer(svid: &Svid, names: &[String]) -> Answer {
    let (mut resources, mut left_out, mut certified) = (Vec::new(), Vec::new(), false);
    for name in names {
        match secret(svid, name) {
            Some((r#type, of_certificate)) => {
                certified |= of_certificate;
                let secret = Secret { name: name.clone(), r#type: Some(r#type) };
                // Overwritten as the key in it is.
                let value = Bytes::from_owner(Zeroizing::new(secret.encode_to_vec()));
                resources.push(Any { type_url: TYPE.into(), value });
            }
            None => left_out.push(name.clone()),
        }
    }
    let (own, bundles) = (svid.version, svid.bundles_version);
    let version = if certified { format!("{bundles}.{own}") } else { bundles.to_string() };
    Answer { resources, version, left_out }
}

/// The names of a request, each once.
fn names(request: &DiscoveryRequest) -> Result<Vec<String>, Status> {
    if !request.type_url.is_empty() && request.type_url != TYPE {
        let text = format!("resources of `{}` are not served here, but `{TYPE}`", request.type_url);
        return Err(Status::invalid_argument(text));
    }
    let mut names = request.resource_names.clone();
    if names.len() > NAMES {
        let text = format!("{} names, and a request has at most {NAMES}", names.len());
        return Err(Status::invalid_argument(text));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// How far a stream is.
#[derive(Default)]
struct Progress {
    /// None before the first request.
    names: Option<Vec<String>>,
    nonces: u64,
    /// The last version, unless other names are wanted since.
    sent: Option<String>,
}

impl Progress {
    /// Takes a request.
    fn take(&mut self, request: &DiscoveryRequest) -> Result<(), Status> {
        let wanted = names(request)?;
        let is_first = self.names.is_none();
        if !is_first && request.response_nonce != self.nonces.to_string() {
            return Ok(());
        }
        if let Some(error) = &request.error_detail {
            let why: String = error.message.chars().take(256).collect();
            tracing::info!(why, "SDS: a proxy cannot use what it was sent");
        }
        if self.names.as_ref() != Some(&wanted) {
            (self.names, self.sent) = (Some(wanted), None);
        }
        Ok(())
    }

    /// The next response, if one is due.
    fn next(&mut self, svid: &Svid) -> Option<DiscoveryResponse> {
        let names = self.names.as_ref().filter(|names| !names.is_empty())?;
        let Answer { resources, version, left_out } = answer(svid, names);
        if self.sent.as_ref() == Some(&version) {
            return None;
        }
        if !left_out.is_empty() {
            tracing::debug!(?left_out, id = svid.id, "SDS: names that are nobody's here");
        }
        self.nonces += 1;
        self.sent = Some(version.clone());
        Some(response(resources, version, self.nonces.to_string()))
    }
}

fn response(resources: Vec<Any>, version_info: String, nonce: String) -> DiscoveryResponse {
    DiscoveryResponse { version_info, resources, canary: false, type_url: TYPE.into(), nonce }
}

type Responses = ReceiverStream<Result<DiscoveryResponse, Status>>;

#[tonic::async_trait]
impl SecretDiscoveryService for Sds {
    type StreamSecretsStream = Responses;
    type DeltaSecretsStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_secrets(
        &self,
        requests: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let place = self.caller.place()?;
        self.caller.certificate.now().await?;
        let mut watch = self.caller.certificate.watch();
        let (tx, rx) = mpsc::channel(1);
        let mut requests = requests.into_inner();
        tokio::spawn(async move {
            let _until_the_end = place;
            let mut progress = Progress::default();
            // A client that does not read is not read either, and is told the latest when it does.
            while let Ok(room) = tx.reserve().await {
                let shown = watch.borrow_and_update().clone();
                match shown {
                    Some(Ok(svid)) => match progress.next(&svid) {
                        Some(response) => room.send(Ok(response)),
                        None => drop(room),
                    },
                    Some(Err(status)) => return room.send(Err(status)),
                    None => drop(room),
                }
                let taken = tokio::select! {
                    changed = watch.changed() => if changed.is_err() { return } else { Ok(()) },
                    request = requests.message() => match request {
                        Ok(Some(request)) => progress.take(&request),
                        Ok(None) | Err(_) => return,
                    },
                    () = tx.closed() => return,
                };
                if let Err(status) = taken {
                    let _given_up = tx.send(Err(status)).await;
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(rx)))
    }

    async fn fetch_secrets(
        &self,
        request: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        let names = names(request.get_ref())?;
        let svid = self.caller.certificate.now().await?;
        let Answer { resources, version, left_out } = answer(&svid, &names);
        if !left_out.is_empty() {
            return Err(Status::not_found(format!(
                "no secret is called {left_out:?}; remedy: {CERTIFICATE}, {ROOTS}, {} or a trust domain's ID",
                svid.id
            )));
        }
        Ok(Response::new(response(resources, version, String::new())))
    }

    async fn delta_secrets(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaSecretsStream>, Status> {
        Err(Status::unimplemented(
            "DeltaSecrets is not served; remedy: StreamSecrets (`api_type: GRPC`)",
        ))
    }
}
