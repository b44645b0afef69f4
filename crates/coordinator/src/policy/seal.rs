//! Which links are sealed, and who certifies their ends.

use std::path::PathBuf;
use std::time::Duration;

use partywall_abi::name::ServiceName;
use partywall_abi::security::{Seal, Security};
use partywall_trust::LEAF_LIFE;
use partywall_trust::record::Suite;
use serde::Deserialize;

use super::Policy;
use crate::trust::{Clock, DOMAIN, Trust, TrustError};

/// Whether a link is to be sealed; of several the highest counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// No.
    #[default]
    Off,
    /// Where both ends can.
    Prefer,
    /// Yes, or there is no link.
    Required,
}

/// How records of sealed links are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) suite: Suite,
    pub(super) classes: bool,
}

impl Default for Form {
    fn default() -> Self {
        Self { suite: Suite::Aes128Gcm, classes: false }
    }
}

/// Where the authority is, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityPlace {
    pub(super) domain: String,
    pub(super) directory: Option<PathBuf>,
    pub(super) life: Duration,
}

impl Default for AuthorityPlace {
    fn default() -> Self {
        Self { domain: DOMAIN.into(), directory: None, life: LEAF_LIFE }
    }
}

impl AuthorityPlace {
    /// Whether no directory is named.
    pub fn is_for_this_run(&self) -> bool {
        self.directory.is_none()
    }

    /// The authority that is there; one for this run where the policy names no directory. Blocks for as
    /// long as its file system likes.
    ///
    /// # Errors
    /// [`TrustError`]
    pub fn open(&self, clock: Clock) -> Result<Trust, TrustError> {
        let trust = match &self.directory {
            None => Trust::for_this_run(&self.domain, clock),
            Some(directory) => Trust::load(&self.domain, directory, clock),
        };
        trust.map(|trust| trust.with_life(self.life))
    }
}

impl Policy {
    /// Whether these principals' links to the name are to be sealed.
    pub fn seal(&self, principals: &[String], name: &ServiceName) -> Wish {
        let service = self.services.get(name).map_or(Wish::Off, |service| service.seal);
        let rules = self.calls(principals, name).map(|(_, rule)| rule.seal);
        rules.fold(service, Wish::max)
    }

    /// Has all links to the name be at least so secure, whoever calls, beside what the rules of callers
    /// require.
    ///
    /// # Errors
    /// The name of a principal on whose links descriptors cross, which are not sealed, and the links have to
    /// be.
    pub fn demand(&mut self, name: &ServiceName, least: Security) -> Result<(), String> {
        let service = self.services.entry(name.clone()).or_default();
        if least.seal == Seal::Sealed {
            if let Some((caller, _)) = service.call.iter().find(|(_, rule)| !rule.grant.is_none()) {
                return Err(caller.clone());
            }
            service.seal = Wish::Required;
        }
        let before = service.least.unwrap_or(Security::LOWEST);
        service.least = Some(before.max_per_field(least));
        Ok(())
    }

    /// How records of sealed links are made: the suite, and whether they have lengths of classes.
    pub fn form(&self) -> (Suite, bool) {
        (self.form.suite, self.form.classes)
    }

    /// The time since the policy was read, when the wall's clock was read as well.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Where the authority is.
    pub fn authority(&self) -> &AuthorityPlace {
        &self.authority
    }

    /// The principal that a process is certified as: one that may serve a name, else the first one.
    pub(crate) fn certified_as<'p>(&self, principals: &'p [String]) -> Option<&'p str> {
        let serves = |principal: &&String| {
            self.services.values().any(|service| service.register.contains(*principal))
        };
        principals.iter().find(serves).or(principals.first()).map(String::as_str)
    }

    /// The names that these principals may serve, with a signature that lists these names.
    pub(crate) fn names_served_by(&self, principals: &[String], listed: &[String]) -> Vec<String> {
        let served = self.services.keys().filter(|name| self.may_serve(principals, listed, name));
        served.map(ToString::to_string).collect()
    }
}
