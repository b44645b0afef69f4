//! Certificates: whom a key belongs to, by the word of an authority.
//!
//! A certificate is an X.509-SVID (the X.509 SPIFFE Verifiable Identity Document, sections 2 to 5): exactly
//! one URI among its alternative names, which is its [`Id`]; no authority itself; its key for signatures.
//! That an authority has signed it, and that it is not over, `webpki` checks (RFC 5280, section 6).
//!
//! The time is an argument: who checks asks a clock that nobody turns back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::id::{Id, TrustDomain};
use crate::key::{PublicKey, written};
use crate::pin::{Pin, listed};

/// The most certificates of a chain.
pub const CHAIN: usize = 6;
/// The most bytes of one.
pub const CERTIFICATE_BYTES: usize = 8 << 10;
/// The most bytes of all of them.
pub const CHAIN_BYTES: usize = 12 << 10;
/// The most roots of a trust domain: the old one, the new one, and those of others.
pub const ROOTS: usize = 16;
/// How far the clocks of two hosts may be apart.
pub(crate) const SKEW: Duration = Duration::from_secs(60);

/// Why a certificate is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// It is none.
    #[error("this is no X.509 certificate: {0}")]
    Malformed(String),
    /// It is none of a SPIFFE identity.
    #[error("the certificate is no X.509-SVID: {0}")]
    NoIdentity(String),
    /// It is over.
    #[error("the certificate of {id} is over since {since} s")]
    Expired {
        /// Whose it is.
        id: String,
        /// Seconds since then.
        since: u64,
    },
    /// It does not hold yet.
    #[error("the certificate of {id} holds in {until} s only: a clock is wrong")]
    Early {
        /// Whose it is.
        id: String,
        /// Seconds until then.
        until: u64,
    },
    /// Nobody has signed it who is trusted.
    #[error("the certificate of {id} is not signed by a trusted authority: {why}")]
    Untrusted {
        /// Whose it says that it is.
        id: String,
        /// What does not fit.
        why: String,
    },
    /// It has another trust domain than the root that has signed it.
    #[error("the certificate of {id} is signed by an authority of another trust domain")]
    Domain {
        /// Whose it says that it is.
        id: String,
    },
    /// Its key is none of those that are pinned, and neither is that of anyone who has signed it.
    #[error(
        "no key of the certificate of {id} is pinned: of it, and of who has signed it up to the root, there are \
         {found}"
    )]
    NotPinned {
        /// Whose certificate it is.
        id: String,
        /// The pins of its keys.
        found: String,
    },
    /// It is a chain of too many, or of none, or a too long one.
    #[error(
        "a chain has 1 to {CHAIN} certificates of at most {CERTIFICATE_BYTES} bytes, and at most {CHAIN_BYTES} \
         in all; this has {0}"
    )]
    Chain(String),
}

/// A chain of certificates in DER: first whose key is used, then each that has signed the one before it; the
/// root is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain(pub(crate) Vec<Vec<u8>>);

impl Chain {
    /// These certificates.
    ///
    /// # Errors
    /// [`CertificateError::Chain`].
    pub fn new(certificates: Vec<Vec<u8>>) -> Result<Self, CertificateError> {
        let longest = certificates.iter().map(Vec::len).max().unwrap_or(0);
        let all: usize = certificates.iter().map(Vec::len).sum();
        let is_long = longest > CERTIFICATE_BYTES || all > CHAIN_BYTES;
        if certificates.is_empty() || certificates.len() > CHAIN || is_long {
            let count = certificates.len();
            let what = format!("{count} of up to {longest} bytes, and {all} bytes in all");
            return Err(CertificateError::Chain(what));
        }
        Ok(Self(certificates))
    }

    /// Its certificates in DER.
    pub fn certificates(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// As PEM.
    pub fn to_pem(&self) -> String {
        self.0.iter().map(|der| written("CERTIFICATE", der)).collect()
    }
}

impl Pin {
    /// Of the key of a certificate in DER.
    ///
    /// # Errors
    /// [`CertificateError::Malformed`].
    pub fn of_certificate(der: &[u8]) -> Result<Self, CertificateError> {
        let malformed = |e: &dyn std::fmt::Display| CertificateError::Malformed(e.to_string());
        let (_, x509) = X509Certificate::from_der(der).map_err(|e| malformed(&e))?;
        Ok(Self::of_key(x509.public_key().raw))
    }
}

/// Certificates in PEM, as DER.
pub(crate) fn from_pem(text: &str) -> Result<Vec<Vec<u8>>, CertificateError> {
    let bad = |e: pem::PemError| CertificateError::Malformed(e.to_string());
    let blocks = pem::parse_many(text).map_err(bad)?;
    let certificates = blocks.into_iter().filter(|block| block.tag() == "CERTIFICATE");
    Ok(certificates.map(pem::Pem::into_contents).collect())
}

/// The roots of trust domains: who may sign certificates of which.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    all: Vec<Root>,
}

#[derive(Debug, Clone)]
struct Root {
    domain: TrustDomain,
    der: Vec<u8>,
    anchor: TrustAnchor<'static>,
    not_after: SystemTime,
    pin: Pin,
}

impl Roots {
    /// Adds a root of a trust domain, in DER. One that is there already is not added again.
    ///
    /// # Errors
    /// [`CertificateError::Malformed`], [`CertificateError::Chain`] where there are [`ROOTS`].
    pub fn add(&mut self, domain: &TrustDomain, der: &[u8]) -> Result<(), CertificateError> {
        if self.all.iter().any(|root| root.der == der) {
            return Ok(());
        }
        if self.all.len() == ROOTS || der.len() > CERTIFICATE_BYTES {
            return Err(CertificateError::Chain(format!("{} bytes of a root", der.len())));
        }
        let bad = |e: &dyn std::fmt::Display| CertificateError::Malformed(e.to_string());
        let (_, x509) = X509Certificate::from_der(der).map_err(|e| bad(&e))?;
        // `webpki` asks neither of who is trusted already.
        if !x509.basic_constraints().map_err(|e| bad(&e))?.is_some_and(|c| c.value.ca) {
            return Err(bad(&"it is none of an authority, and cannot be a root"));
        }
        let not_after = time_of(x509.validity().not_after.timestamp());
        let pin = Pin::of_key(x509.public_key().raw);
        let certificate = CertificateDer::from(der);
        let anchor = webpki::anchor_from_trusted_cert(&certificate).map_err(|e| bad(&e))?;
        let (domain, anchor) = (domain.clone(), anchor.to_owned());
        self.all.push(Root { domain, der: der.to_vec(), anchor, not_after, pin });
        Ok(())
    }

    /// Adds the roots of a trust domain that are in a text in PEM.
    ///
    /// # Errors
    /// As [`Self::add`]; [`CertificateError::Malformed`] where there is none.
    pub fn add_pem(&mut self, domain: &TrustDomain, text: &str) -> Result<(), CertificateError> {
        let all = from_pem(text)?;
        if all.is_empty() {
            let none = "no `-----BEGIN CERTIFICATE-----` in it";
            return Err(CertificateError::Malformed(none.into()));
        }
        all.iter().try_for_each(|der| self.add(domain, der))
    }

    /// Each of them in DER, with its trust domain.
    pub fn certificates(&self) -> impl Iterator<Item = (&TrustDomain, &[u8])> {
        self.all.iter().map(|root| (&root.domain, &root.der[..]))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whom a chain certifies, if one of these roots has signed it and neither is over at `now`.
    ///
    /// # Errors
    /// [`CertificateError`], the same for the same chain and time.
    pub fn verify(&self, chain: &Chain, now: SystemTime) -> Result<Certified, CertificateError> {
        let mut certified = Certified::read(&chain.0[0])?;
        let id = || certified.id.to_string();
        // Said as it is, not as one of the reasons why no path was found.
        certified.holds(now)?;
        let began = certified.not_before.checked_sub(SKEW).unwrap_or(UNIX_EPOCH);
        if let Some(until) = past(now, began) {
            return Err(CertificateError::Early { id: id(), until });
        }
        let untrusted =
            |e: webpki::Error| CertificateError::Untrusted { id: id(), why: e.to_string() };
        let leaf = CertificateDer::from(&chain.0[0][..]);
        let end = EndEntityCert::try_from(&leaf).map_err(untrusted)?;
        let above: Vec<_> = chain.0[1..].iter().map(|der| CertificateDer::from(&der[..])).collect();
        let domain = certified.id.domain();
        let own = |root: &&Root| root.domain == domain;
        if !self.is_empty() && !self.all.iter().any(|root| own(&root)) {
            return Err(CertificateError::Domain { id: id() });
        }
        let holds = |root: &&Root| own(root) && past(root.not_after, now).is_none();
        let anchors: Vec<_> =
            self.all.iter().filter(holds).map(|root| root.anchor.clone()).collect();
        let now = now.max(certified.not_before);
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = UnixTime::since_unix_epoch(since);
        let algorithms =
            [webpki::aws_lc_rs::ECDSA_P256_SHA256, webpki::aws_lc_rs::ECDSA_P384_SHA384];
        let verify = |usage| {
            let path = end.verify_for_usage(&algorithms, &anchors, &above, at, usage, None, None);
            path.map_err(untrusted)
        };
        verify(KeyUsage::client_auth())?;
        let path = verify(KeyUsage::server_auth())?;
        let above = path.intermediate_certificates().map(|c| c.subject_public_key_info());
        let above: Vec<_> = above.map(|key| Pin::of_key(&key)).collect();
        let root = self.all.iter().find(|root| own(root) && root.anchor == *path.anchor());
        certified.keys.extend(above.into_iter().chain(root.map(|root| root.pin)));
        Ok(certified)
    }
}

/// Seconds by which `now` is past `end`, if it is.
fn past(end: SystemTime, now: SystemTime) -> Option<u64> {
    now.duration_since(end).ok().filter(|past| !past.is_zero()).map(|past| past.as_secs())
}

/// Whom a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// Who.
    pub id: Id,
    /// The names at which it is reached.
    pub dns: Vec<String>,
    /// Its key.
    pub key: PublicKey,
    /// Since when it holds.
    pub not_before: SystemTime,
    /// Until when.
    pub not_after: SystemTime,
    /// Its key, and of a certificate that was verified those of who has signed it, the root's the last.
    pub keys: Vec<Pin>,
}

impl Certified {
    /// That one of these pins is among its keys, where there are any pins.
    ///
    /// # Errors
    /// [`CertificateError::NotPinned`].
    pub fn is_pinned(&self, pins: &[Pin]) -> Result<(), CertificateError> {
        if pins.is_empty() || self.keys.iter().any(|key| pins.contains(key)) {
            return Ok(());
        }
        Err(CertificateError::NotPinned { id: self.id.to_string(), found: listed(&self.keys) })
    }

    /// That it is not over.
    pub(crate) fn holds(&self, now: SystemTime) -> Result<(), CertificateError> {
        match past(self.not_after, now) {
            Some(since) => Err(CertificateError::Expired { id: self.id.to_string(), since }),
            None => Ok(()),
        }
    }

    /// What a certificate says of itself: to be believed of an own one alone.
    ///
    /// # Errors
    /// [`CertificateError::Malformed`], [`CertificateError::NoIdentity`].
    pub fn read(der: &[u8]) -> Result<Self, CertificateError> {
        let malformed = |e: String| CertificateError::Malformed(e);
        let none = |why: &str| CertificateError::NoIdentity(why.into());
        let (rest, x509) = X509Certificate::from_der(der).map_err(|e| malformed(e.to_string()))?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes behind it", rest.len())));
        }
        let twice = |e: x509_parser::error::X509Error| malformed(e.to_string());
        if x509.basic_constraints().map_err(twice)?.is_some_and(|c| c.value.ca) {
            return Err(none("it is an authority's"));
        }
        let usage = x509.key_usage().map_err(twice)?;
        let usage = usage.ok_or_else(|| none("it does not say what its key is for"))?.value;
        if !usage.digital_signature() || usage.key_cert_sign() || usage.crl_sign() {
            return Err(none("its key is not for signatures of messages alone"));
        }
        let names = x509.subject_alternative_name().map_err(twice)?;
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        let mut uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(none("it has none or several URIs, and one is due"));
        };
        let id = uri.parse().map_err(|e: crate::id::IdError| none(&e.to_string()))?;
        let dns = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        let key = PublicKey::from_der(x509.public_key().raw);
        let key = key.map_err(|e| none(&e.to_string()))?;
        let (before, after) = (x509.validity().not_before, x509.validity().not_after);
        Ok(Self {
            id,
            dns: dns.collect(),
            key,
            not_before: time_of(before.timestamp()),
            not_after: time_of(after.timestamp()),
            keys: vec![Pin::of_key(x509.public_key().raw)],
        })
    }
}

/// Seconds since 1970 as a time; none before that.
pub(crate) fn time_of(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests;
