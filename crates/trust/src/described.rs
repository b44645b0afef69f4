//! What certificates say of themselves, for those who look at them: nothing of it is checked.

use std::time::SystemTime;

use aws_lc_rs::digest;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::certificate::{CertificateError, from_pem, time_of};
use crate::id::{TrustDomain, shown};
use crate::key::{hex, written};
use crate::pin::Pin;

/// A certificate as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// In DER.
    pub der: Vec<u8>,
    /// Whose it is.
    pub subject: String,
    /// Who has signed it, by its word.
    pub issuer: String,
    /// Since when it holds.
    pub not_before: SystemTime,
    /// Until when.
    pub not_after: SystemTime,
    /// What its key is pinned by.
    pub pin: Pin,
    /// The trust domain whose authority it is, if it says so: by its only URI.
    pub domain: Option<TrustDomain>,
}

impl Described {
    /// A certificate in DER.
    ///
    /// # Errors
    /// [`CertificateError::Malformed`].
    pub fn new(der: &[u8]) -> Result<Self, CertificateError> {
        let malformed = |e: String| CertificateError::Malformed(e);
        let (_, x509) = X509Certificate::from_der(der).map_err(|e| malformed(e.to_string()))?;
        let names = x509.subject_alternative_name().map_err(|e| malformed(e.to_string()))?;
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        let mut uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let domain = match (uris.next(), uris.next()) {
            (Some(uri), None) => uri.strip_prefix("spiffe://"),
            _ => None,
        };
        Ok(Self {
            der: der.to_vec(),
            subject: shown(&x509.subject().to_string()),
            issuer: shown(&x509.issuer().to_string()),
            not_before: time_of(x509.validity().not_before.timestamp()),
            not_after: time_of(x509.validity().not_after.timestamp()),
            pin: Pin::of_key(x509.public_key().raw),
            domain: domain.and_then(|name| TrustDomain::new(name.trim_end_matches('/')).ok()),
        })
    }

    /// All of a text in PEM.
    ///
    /// # Errors
    /// [`CertificateError::Malformed`].
    pub fn all(text: &str) -> Result<Vec<Self>, CertificateError> {
        from_pem(text)?.iter().map(|der| Self::new(der)).collect()
    }

    /// SHA-256 of it, as hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        hex(digest::digest(&digest::SHA256, &self.der).as_ref())
    }

    /// As PEM.
    pub fn to_pem(&self) -> String {
        written("CERTIFICATE", &self.der)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{Authority, ROOT_LIFE};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_root_describes_its_trust_domain() {
        let now = UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        let domain = TrustDomain::new("shop.example").unwrap();
        let authority = Authority::new(&domain, now).unwrap();
        let (pem, _) = authority.to_pem();
        let all = Described::all(&pem).unwrap();
        let [root] = &all[..] else { panic!("{all:?}") };
        assert_eq!(root.domain, Some(domain.clone()));
        assert_eq!(root.subject, "O=Partywall, CN=shop.example authority");
        assert_eq!((&root.issuer, root.not_after), (&root.subject, now + ROOT_LIFE));
        assert_eq!((root.to_pem(), root.fingerprint().len()), (pem, 64));
        assert_eq!(root.der, authority.root());
        // A service's ID is no domain's.
        let key = crate::SigningKey::generate().public();
        let id = domain.service("web").unwrap();
        let chain = authority.issue(&id, &[], &key, (now, Duration::from_secs(60))).unwrap();
        let leaf = Described::new(&chain.certificates()[0]).unwrap();
        assert_eq!((leaf.domain, leaf.issuer), (None, root.subject.clone()));
        assert!(Described::new(b"x").is_err());
        assert!(Described::all("").unwrap().is_empty());
    }
}
