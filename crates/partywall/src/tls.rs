//! Mutual TLS over a network, with the certificates that the coordinator issues.
//!
//! ```text
//! client   its certificate; the server's is verified by the coordinator's roots, and is for the name that
//! was
//!          asked for: of a name of the policy that name, of an address its host
//! server   its certificate; the client's is verified likewise, and has the SPIFFE ID by which the policy
//! says
//!          what it may call ([`crate::server`])
//! ```
//!
//! It is TLS 1.3 (RFC 8446) by `rustls`, with the same certificates as the handshakes of sealed links. The
//! time by which they are over is the coordinator's, not this host's ([`Own::now`]). A certificate is
//! renewed for each connection that needs another one; those that are open go on.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use partywall_trust::{Certified, Chain};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme, version,
};

use crate::coordinator::Own;
use crate::pins::Pins;

/// HTTP/2, in ALPN (RFC 7301).
const H2: &[u8] = b"h2";

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())))
}

/// Why a certificate is refused: no key of it is pinned. It is what an error of a connection has in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unpinned(String);

impl Unpinned {
    /// It, if it is why a connection was not made.
    pub(crate) fn of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        error.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
    }

    /// The error of a connection to this address.
    pub(crate) fn at(&self, url: &str) -> io::Error {
        Self(format!("{url}: {self}")).into()
    }
}

impl From<Unpinned> for io::Error {
    fn from(unpinned: Unpinned) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, unpinned)
    }
}

/// Verifies the certificate of the other end.
struct Verifier {
    own: Arc<Own>,
    pins: Pins,
    /// What it is to be for; none of a client's.
    name: Option<String>,
    /// Why the certificate was refused, if that is for its keys.
    unpinned: OnceLock<Unpinned>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verifier").field(&self.name).finish()
    }
}

fn refused(why: &dyn fmt::Display) -> Error {
    let why = io::Error::other(why.to_string());
    let other = rustls::OtherError(Arc::new(why));
    Error::InvalidCertificate(CertificateError::Other(other))
}

impl Verifier {
    fn new((own, pins): (Arc<Own>, Pins), name: Option<String>) -> Arc<Self> {
        Arc::new(Self { own, pins, name, unpinned: OnceLock::new() })
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
    ) -> Result<Certified, Error> {
        let chain = std::iter::once(leaf).chain(above).map(|der| der.to_vec()).collect();
        let chain = Chain::new(chain).map_err(|why| refused(&why))?;
        let checks = self.own.checks(self.pins.all());
        let certified = checks.roots.verify(&chain, checks.now).map_err(|why| refused(&why))?;
        certified.is_pinned(checks.pins).map_err(|why| {
            let _first = self.unpinned.set(Unpinned(why.to_string()));
            refused(&why)
        })?;
        match &self.name {
            Some(name) if !certified.dns.contains(name) => Err(refused(&format_args!(
                "the certificate of {} is not for `{name}`, but for {}",
                certified.id,
                certified.dns.join(", ")
            ))),
            _ => Ok(certified),
        }
    }

    /// That a message of the handshake is signed by the key of a certificate.
    fn signed(
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, leaf, signed, &algorithms)
    }

    fn schemes() -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// TLS 1.2 is not spoken.
fn old() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.3 is spoken here".into()))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(leaf, above).map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::signed(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(leaf, above).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::signed(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

/// The own certificate and its key.
fn identity(own: &Own) -> (Vec<CertificateDer<'static>>, PrivatePkcs8KeyDer<'static>) {
    let credentials = &own.credentials;
    let chain = credentials.chain().certificates();
    let chain = chain.iter().map(|der| CertificateDer::from(der.clone())).collect();
    (chain, PrivatePkcs8KeyDer::from(credentials.signer().to_der().to_vec()))
}

/// Makes a connection secret, and verifies that who answers is certified for this name, by a key that is
/// pinned if there are pins: else the error is [`Unpinned`].
pub(crate) async fn connect<S>(
    (own, pins): (Arc<Own>, Pins),
    name: &str,
    stream: S,
) -> io::Result<client::TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (chain, key) = identity(&own);
    let verifier = Verifier::new((own, pins), Some(name.to_owned()));
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as _)
        .with_client_auth_cert(chain, key.into());
    let mut config = config.map_err(io::Error::other)?;
    config.alpn_protocols = vec![H2.to_vec()];
    // Who is asked for is no host's name: the verifier knows it.
    let server = ServerName::try_from("localhost").expect("that is a name");
    let connected = TlsConnector::from(Arc::new(config)).connect(server, stream).await;
    connected.map_err(|why| verifier.unpinned.get().cloned().map_or(why, io::Error::from))
}

/// Takes in a connection, and says whom its certificate is for.
pub(crate) async fn accept<S>(
    (own, pins): (Arc<Own>, Pins),
    stream: S,
) -> io::Result<(server::TlsStream<S>, Certified)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (chain, key) = identity(&own);
    let verifier = Verifier::new((own, pins), None);
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(io::Error::other)?
        .with_client_cert_verifier(Arc::clone(&verifier) as _)
        .with_single_cert(chain, key.into());
    let mut config = config.map_err(io::Error::other)?;
    config.alpn_protocols = vec![H2.to_vec()];
    // A session that is resumed would bring a certificate that may be over.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates();
    let (leaf, above) =
        certificates.and_then(<[_]>::split_first).ok_or(io::ErrorKind::InvalidData)?;
    let certified = verifier.verify(leaf, above).map_err(io::Error::other)?;
    Ok((stream, certified))
}

/// The name that a server at this host is certified for.
pub(crate) fn name_of(host: &str) -> &str {
    match host.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
        Ok(address) if address.is_loopback() => "localhost",
        _ => host,
    }
}
