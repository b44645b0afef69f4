//! One certificate with its key and whom it lets believe, in the forms in which it is given out.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use partywall_abi::control::Root;
use partywall_trust::{Chain, Roots, SigningKey, TrustDomain};
use rustix::time::{ClockId, clock_gettime};

/// Roots of a trust domain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bundle {
    /// One behind the other.
    pub(crate) der: Vec<u8>,
    pub(crate) pem: String,
}

/// An X.509-SVID.
pub(crate) struct Svid {
    pub(crate) id: String,
    /// The SPIFFE ID of its trust domain.
    pub(crate) domain: String,
    pub(crate) chain_der: Bytes,
    pub(crate) chain_pem: Bytes,
    /// PKCS #8. Overwritten when the last who has it drops it.
    pub(crate) key_der: Bytes,
    pub(crate) key_pem: Bytes,
    /// By the SPIFFE ID of the trust domain.
    pub(crate) bundles: BTreeMap<String, Bundle>,
    /// How many there were for this connection so far, and how many different sets of bundles.
    pub(crate) version: u64,
    pub(crate) bundles_version: u64,
    not_after: SystemTime,
    /// The coordinator's time when it came, and how long this host was up then.
    time: SystemTime,
    up: Duration,
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Svid")
            .field("id", &self.id)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// How long this host is up, suspended or not.
fn up() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

impl Svid {
    /// Of what the coordinator has sent for this key, after another one.
    pub(crate) fn new(
        signer: &SigningKey,
        (now, chain): (u64, Vec<Vec<u8>>),
        roots: Vec<Root>,
        before: Option<&Self>,
    ) -> Result<Self, String> {
        let told = |e: &dyn fmt::Display| e.to_string();
        let time = UNIX_EPOCH + Duration::from_secs(now);
        let (mut known, mut bundles) = (Roots::default(), BTreeMap::<String, Bundle>::new());
        for Root { domain, certificate } in roots {
            let domain = TrustDomain::new(&domain).map_err(|e| told(&e))?;
            known.add(&domain, &certificate).map_err(|e| told(&e))?;
            let bundle = bundles.entry(domain.id()).or_default();
            bundle.der.extend_from_slice(&certificate);
            bundle.pem.push_str(&Chain::new(vec![certificate]).map_err(|e| told(&e))?.to_pem());
        }
        let chain = Chain::new(chain).map_err(|e| told(&e))?;
        let certified = known.verify(&chain, time).map_err(|e| told(&e))?;
        if certified.key != signer.public() {
            return Err("it is of another key".into());
        }
        let same = before.filter(|before| before.bundles == bundles);
        let bundles_version = match (same, before) {
            (Some(same), _) => same.bundles_version,
            (None, before) => before.map_or(0, |before| before.bundles_version) + 1,
        };
        Ok(Self {
            id: certified.id.to_string(),
            domain: certified.id.domain().id(),
            chain_der: chain.certificates().concat().into(),
            chain_pem: chain.to_pem().into(),
            key_der: Bytes::from_owner(signer.to_der()),
            key_pem: Bytes::from_owner(signer.to_pem()),
            bundles,
            version: before.map_or(0, |before| before.version) + 1,
            bundles_version,
            not_after: certified.not_after,
            time,
            up: up(),
        })
    }

    /// The roots of its own trust domain.
    pub(crate) fn own_bundle(&self) -> Option<&Bundle> {
        self.bundles.get(&self.domain)
    }

    fn age(&self) -> Duration {
        up().saturating_sub(self.up)
    }

    fn life(&self) -> Duration {
        self.not_after.duration_since(self.time).unwrap_or_default()
    }

    /// How long until it is time for the next one.
    pub(crate) fn until_old(&self) -> Duration {
        (self.life() / 3 * 2).saturating_sub(self.age())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.age() >= self.life()
    }
}
