//! Who the two sides are: certificates of an authority that is made for each sample.
//!
//! The driver puts the authority into a memfd, which both sides inherit; each certifies itself.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use partywall_shm::link::Link;
use partywall_shm::memory::sealed_copy;
use partywall_trust::handshake::{
    Answer, Begin, Caller, Channel, Checks, Credentials, MESSAGE_BYTES, Next, Service, StaticKey,
    Terms,
};
use partywall_trust::record::{Form, Suite};
use partywall_trust::{Authority, Chain, Id, LEAF_LIFE, Roots, SigningKey, TrustDomain};

use crate::case::Case;
use crate::contender::{Ends, Side};
use crate::error::Result;

const DOMAIN: &str = "bench.local";
/// The name that is served, in certificates of either end.
pub const NAME: &str = "localhost";
/// What the key begins with, behind the certificates.
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

/// The descriptor of an authority, for both sides.
pub fn open(_: &Case) -> Result<Ends> {
    Ok(Ends(vec![(Side::Both, authority()?)]))
}

/// A new authority in a memfd.
pub fn authority() -> Result<OwnedFd> {
    let authority = Authority::new(&TrustDomain::new(DOMAIN)?, SystemTime::now())?;
    let (certificates, key) = authority.to_pem();
    Ok(sealed_copy("authority", [certificates.as_bytes(), key.as_bytes()].concat().as_slice())?)
}

/// An authority and whom it certifies.
pub struct World {
    authority: Authority,
    roots: Roots,
    now: SystemTime,
}

/// A certificate with its key, and the root, as PEM.
pub struct Pem {
    /// The certificate and those above it.
    pub chain: String,
    /// Its key.
    pub key: String,
    /// Who is trusted.
    pub root: String,
}

impl World {
    /// By the authority in this memfd.
    pub fn of(fd: OwnedFd) -> Result<Self> {
        let file = File::from(fd);
        let mut text = vec![0; file.metadata()?.len() as usize];
        // The other side has the same offset.
        file.read_exact_at(&mut text, 0)?;
        let text = String::from_utf8(text)?;
        let (certificates, key) = text.split_at(text.find(KEY).ok_or("no key")?);
        let now = SystemTime::now();
        let authority = Authority::from_pem(&TrustDomain::new(DOMAIN)?, certificates, key, now)?;
        let mut roots = Roots::default();
        authority.trusted(&mut roots)?;
        Ok(Self { authority, roots, now })
    }

    fn issue(&self, id: &Id) -> Result<(SigningKey, Chain)> {
        let key = SigningKey::generate();
        let names = [NAME.to_owned()];
        let chain = self.authority.issue(id, &names, &key.public(), (self.now, LEAF_LIFE))?;
        Ok((key, chain))
    }

    /// An end of a handshake.
    pub fn credentials(&self, id: &Id) -> Result<Credentials> {
        let (key, chain) = self.issue(id)?;
        Ok(Credentials::new(StaticKey::generate(), key, chain, Vec::new())?)
    }

    /// An end of TLS.
    pub fn pem(&self, id: &Id) -> Result<Pem> {
        let (key, chain) = self.issue(id)?;
        let (root, _) = self.authority.to_pem();
        Ok(Pem { chain: chain.to_pem(), key: key.to_pem().to_string(), root })
    }

    /// What the two ends agree on.
    pub fn terms(&self) -> Result<Terms> {
        Ok(Terms {
            channel: [1; 16],
            caller: self.caller(),
            service: self.service()?,
            name: NAME.to_owned(),
            policy: 1,
            form: Form { suite: Suite::Aes128Gcm, classes: false },
        })
    }

    /// Who calls.
    pub fn caller(&self) -> Id {
        self.authority.domain().user(1)
    }

    /// Who serves.
    pub fn service(&self) -> Result<Id> {
        Ok(self.authority.domain().service("bench")?)
    }

    /// Whom each end believes.
    pub fn checks(&self) -> Checks<'_> {
        Checks { roots: &self.roots, now: self.now, pinned: None, pins: &[] }
    }

    /// The caller's end of a handshake on a link.
    pub fn call(&self, link: &mut Link) -> Result<Channel> {
        let (own, terms) = (self.credentials(&self.caller())?, self.terms()?);
        let (state, first) = Caller::begin(&own, &terms, Begin::First, false);
        link.send(&first, None)?;
        let mut message = Vec::new();
        link.receive(&mut message, MESSAGE_BYTES, None)?;
        match state.answer(&own, &terms, &message, &self.checks())? {
            Next::Done(channel, last) => {
                last.map_or(Ok(()), |last| link.send(&last, None))?;
                Ok(channel)
            }
            Next::Retry => Err("the handshake was to begin anew".into()),
        }
    }

    /// The service's end.
    pub fn serve(&self, link: &mut Link) -> Result<Channel> {
        let (own, terms) = (self.credentials(&self.service()?)?, self.terms()?);
        let mut message = Vec::new();
        link.receive(&mut message, MESSAGE_BYTES, None)?;
        let checks = self.checks();
        match Service::answer(&own, &terms, (&message, false), |_| None, &checks)? {
            Answer::Waits(state, answer) => {
                link.send(&answer, None)?;
                link.receive(&mut message, MESSAGE_BYTES, None)?;
                Ok(state.finish(&terms, &message, &checks)?)
            }
            Answer::Done(..) | Answer::Retry(_) => Err("a handshake that is no first one".into()),
        }
    }
}
