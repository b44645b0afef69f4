//! An authority: who says whom a key belongs to.
//!
//! ```text
//! root            signs itself; ten years; those who check have it
//! intermediate    signed by a root that is elsewhere; its chain goes with what it signs
//! leaf            a service's: an hour, signed by either of them
//! ```

use std::fmt;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
    SignatureAlgorithm,
};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

use crate::certificate::{CertificateError, Chain, Roots, from_pem};
use crate::id::{Id, TrustDomain};
use crate::key::{KeyError, PublicKey, SigningKey, written};

/// How long the certificate of an authority holds.
pub const ROOT_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long that of a service holds.
pub const LEAF_LIFE: Duration = Duration::from_secs(3600);
/// Before its time a certificate holds already, for clocks that are behind.
const EARLY: Duration = Duration::from_secs(60);

/// Why there is no authority, or no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// Its certificates.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Its key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Its key is another one's.
    #[error("the key is not that of the certificate of `{0}`")]
    OtherKey(String),
    /// The certificate is none of an authority.
    #[error("the certificate of `{subject}` is none of an authority: {why}")]
    NoAuthority {
        /// Whose it is.
        subject: String,
        /// What it lacks.
        why: String,
    },
    /// It is over.
    #[error("the certificate of the authority is over since {0} s; remedy: make another one")]
    Expired(u64),
    /// An ID of another domain.
    #[error("{id} is not in the trust domain `{domain}`")]
    Domain {
        /// What was asked for.
        id: String,
        /// What the authority is for.
        domain: String,
    },
    /// What cannot be written into a certificate.
    #[error("no certificate can be written: {0}")]
    Unwritten(String),
}

/// Who signs certificates of one trust domain.
pub struct Authority {
    domain: TrustDomain,
    issuer: Issuer<'static, SigningKey>,
    /// Its own certificate, then those above it.
    own: Vec<Vec<u8>>,
    /// How many of them go with what it signs: all but a root.
    sent: usize,
    not_after: SystemTime,
    /// Certificates of earlier roots for its key, and until when they hold.
    crossed: Vec<(Vec<u8>, SystemTime)>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        self.point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl PublicKeyData for SigningKey {
    fn der_bytes(&self) -> &[u8] {
        self.public_ref().point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for SigningKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(Self::sign(self, message))
    }
}

fn unwritten(error: rcgen::Error) -> AuthorityError {
    AuthorityError::Unwritten(error.to_string())
}

/// A certificate of something in a domain, from `now` on.
fn parameters(name: &str, now: SystemTime, life: Duration) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let begin = now.checked_sub(EARLY).unwrap_or(now);
    parameters.not_before = OffsetDateTime::from(begin);
    parameters.not_after = OffsetDateTime::from(now + life);
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "Partywall");
    subject.push(DnType::CommonName, name);
    parameters.distinguished_name = subject;
    // RFC 5280, section 4.1.2.2: positive, and of up to 20 bytes.
    let mut serial = [0; 16];
    aws_lc_rs::rand::fill(&mut serial).expect("there are random numbers");
    serial[0] = serial[0] & 0x7f | 0x40;
    parameters.serial_number = Some(SerialNumber::from_slice(&serial));
    parameters.use_authority_key_identifier_extension = true;
    parameters
}

/// What a root of a domain is called.
fn root_name(domain: &TrustDomain) -> String {
    format!("{domain} authority")
}

impl Authority {
    /// A new root of a domain.
    ///
    /// # Errors
    /// [`AuthorityError::Unwritten`].
    pub fn new(domain: &TrustDomain, now: SystemTime) -> Result<Self, AuthorityError> {
        let key = SigningKey::generate();
        let mut parameters = parameters(&root_name(domain), now, ROOT_LIFE);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let uri = domain.id().try_into().map_err(unwritten)?;
        parameters.subject_alt_names = vec![SanType::URI(uri)];
        let certificate = parameters.self_signed(&key).map_err(unwritten)?;
        let own = vec![certificate.der().to_vec()];
        let issuer = Issuer::new(parameters, key);
        let (domain, not_after) = (domain.clone(), now + ROOT_LIFE);
        Ok(Self { domain, issuer, own, sent: 0, not_after, crossed: Vec::new() })
    }

    /// An authority as [`Self::to_pem`] has written it, or of an intermediate certificate: its certificate,
    /// those above it if it is no root, and its key. The root may be left out.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn from_pem(
        domain: &TrustDomain,
        certificates: &str,
        key: &str,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let (own, key) = (from_pem(certificates)?, SigningKey::from_pem(key)?);
        // As many as a leaf can bring with it.
        let Chain(own) = Chain::new(own)?;
        let malformed = |e: &dyn fmt::Display| CertificateError::Malformed(e.to_string());
        let (_, x509) = X509Certificate::from_der(&own[0]).map_err(|e| malformed(&e))?;
        let subject = crate::id::shown(&x509.subject().to_string());
        if PublicKey::from_der(x509.public_key().raw).ok() != Some(key.public()) {
            return Err(AuthorityError::OtherKey(subject));
        }
        let not =
            |why: &str| AuthorityError::NoAuthority { subject: subject.clone(), why: why.into() };
        let constraints = x509.basic_constraints().map_err(|e| malformed(&e))?;
        if !constraints.is_some_and(|c| c.value.ca) {
            return Err(not("it does not say so (basicConstraints)"));
        }
        let usage = x509.key_usage().map_err(|e| malformed(&e))?;
        if !usage.is_some_and(|usage| usage.value.key_cert_sign()) {
            return Err(not("its key is not for certificates (keyUsage)"));
        }
        let end = x509.validity().not_after.timestamp().try_into().unwrap_or(0);
        let not_after = SystemTime::UNIX_EPOCH + Duration::from_secs(end);
        if let Ok(since) = now.duration_since(not_after) {
            return Err(AuthorityError::Expired(since.as_secs()));
        }
        let issuer = Issuer::from_ca_cert_der(&own[0][..].into(), key).map_err(unwritten)?;
        let (_, last) =
            X509Certificate::from_der(&own[own.len() - 1]).map_err(|e| malformed(&e))?;
        let has_root = last.subject().as_raw() == last.issuer().as_raw();
        let sent = own.len() - usize::from(has_root);
        let (domain, crossed) = (domain.clone(), Vec::new());
        let all = Self { domain, issuer, own, sent, not_after, crossed };
        all.is_believed(now).map_err(|e| not(&format!("what it signs is not believed: {e}")))?;
        Ok(all)
    }

    /// That what it signs is believed by who trusts its root: the certificates are in order, and say so.
    fn is_believed(&self, now: SystemTime) -> Result<(), AuthorityError> {
        let mut roots = Roots::default();
        self.trusted(&mut roots)?;
        let key = self.issuer.key().public_ref();
        let chain = self.issue(&self.domain.user(0), &[], key, (now, LEAF_LIFE))?;
        roots.verify(&chain, now)?;
        Ok(())
    }

    /// Its certificates, and its key: that is to be kept where nobody else reads it.
    pub fn to_pem(&self) -> (String, Zeroizing<String>) {
        let certificates = self.own.iter().map(|der| written("CERTIFICATE", der)).collect();
        (certificates, self.issuer.key().to_pem())
    }

    /// What it is for.
    pub fn domain(&self) -> &TrustDomain {
        &self.domain
    }

    /// Until when its own certificate holds.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The root above it, or its own certificate if that is one; the highest one where the root was left out.
    pub fn root(&self) -> &[u8] {
        self.own.last().expect("it has its own")
    }

    /// Adds its root to those that are trusted.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn trusted(&self, roots: &mut Roots) -> Result<(), CertificateError> {
        roots.add(&self.domain, self.root())
    }

    /// A certificate of this root for the key of the next one, in PEM: who knows this root alone believes the
    /// next one by it for so long (RFC 4210, section 4.4, "NewWithOld").
    ///
    /// # Errors
    /// [`AuthorityError::Expired`], [`AuthorityError::Unwritten`].
    pub fn cross(
        &self,
        next: &Self,
        (now, life): (SystemTime, Duration),
    ) -> Result<String, AuthorityError> {
        let mut parameters = parameters(&root_name(&next.domain), now, life.min(self.left(now)?));
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = next.issuer.key().public_ref();
        let certificate = parameters.signed_by(key, &self.issuer).map_err(unwritten)?;
        Ok(written("CERTIFICATE", certificate.der()))
    }

    /// Sends certificates of earlier roots for its key along with what it issues, in PEM and as
    /// [`Self::cross`] has made them, while they hold. Those for other keys are left out.
    ///
    /// # Errors
    /// [`CertificateError::Malformed`]
    pub fn crossed_by(&mut self, text: &str) -> Result<(), CertificateError> {
        let malformed = |e: &dyn fmt::Display| CertificateError::Malformed(e.to_string());
        for der in from_pem(text)? {
            let (_, x509) = X509Certificate::from_der(&der).map_err(|e| malformed(&e))?;
            if PublicKey::from_der(x509.public_key().raw).ok() != Some(self.issuer.key().public()) {
                continue;
            }
            let end = x509.validity().not_after.timestamp().try_into().unwrap_or(0);
            let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end);
            self.crossed.push((der, end));
        }
        Ok(())
    }

    /// How long its own certificate holds.
    fn left(&self, now: SystemTime) -> Result<Duration, AuthorityError> {
        let left = self.not_after.duration_since(now);
        left.map_err(|over| AuthorityError::Expired(over.duration().as_secs()))
    }

    /// A certificate for a key, which holds for so long from `now` on, and not longer than the authority's.
    ///
    /// # Errors
    /// [`AuthorityError::Domain`], [`AuthorityError::Expired`], [`AuthorityError::Unwritten`].
    pub fn issue(
        &self,
        id: &Id,
        dns: &[String],
        key: &PublicKey,
        (now, life): (SystemTime, Duration),
    ) -> Result<Chain, AuthorityError> {
        if id.domain() != self.domain {
            let (id, domain) = (id.to_string(), self.domain.to_string());
            return Err(AuthorityError::Domain { id, domain });
        }
        let mut parameters = parameters(id.path(), now, life.min(self.left(now)?));
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let mut names = vec![SanType::URI(id.as_str().try_into().map_err(unwritten)?)];
        for name in dns {
            names.push(SanType::DnsName(name.as_str().try_into().map_err(unwritten)?));
        }
        parameters.subject_alt_names = names;
        let certificate = parameters.signed_by(key, &self.issuer).map_err(unwritten)?;
        let mut chain = vec![certificate.der().to_vec()];
        // The root is with who checks, and not sent.
        chain.extend_from_slice(&self.own[..self.sent]);
        let crossed = self.crossed.iter().filter(|(_, end)| *end > now);
        chain.extend(crossed.map(|(der, _)| der.clone()));
        Ok(Chain::new(chain)?)
    }
}
