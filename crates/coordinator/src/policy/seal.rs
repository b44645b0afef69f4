//! Which links are sealed, and who certifies their ends.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use partywall_abi::control::Grant;
use partywall_abi::name::ServiceName;
use partywall_abi::security::{Seal, Security, Sign};
use partywall_shm::address::Addresses;
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

/// Whether the messages of a link are to be signed; of several the highest counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SignWish {
    /// No.
    #[default]
    Off,
    /// Yes, or there is no link.
    Required,
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Prefer => "prefer",
            Self::Required => "required",
        })
    }
}

/// A route of the policy that goes on without a seal, and that `seal = "required"` would refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlainRoute {
    /// The name.
    pub name: ServiceName,
    /// The principal whose route it is.
    pub caller: String,
    /// What the policy says of its seal, by all rules that cover the principal.
    pub seal: Wish,
    /// Why it could not be sealed.
    pub why: Plain,
}

/// Why a route of the policy cannot be sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plain {
    /// This address under `[names]` speaks no TLS, or none of these does.
    Address(String),
    /// Descriptors, or leases among them, cross on its links.
    Descriptors(Grant),
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
    /// Whether these principals' links to the name are to be sealed, as those with signed messages are.
    pub fn seal(&self, principals: &[String], name: &ServiceName) -> Wish {
        if self.sign(principals, name) {
            return Wish::Required;
        }
        let service = self.services.get(name).map_or(Wish::Off, |service| service.seal);
        let rules = self.calls(principals, name).map(|(_, rule)| rule.seal);
        rules.fold(service, Wish::max)
    }

    /// Whether the messages of these principals' links to the name are to be signed.
    pub fn sign(&self, principals: &[String], name: &ServiceName) -> bool {
        let service = self.services.get(name).map_or(SignWish::Off, |service| service.sign);
        let rules = self.calls(principals, name).map(|(_, rule)| rule.sign);
        rules.fold(service, SignWish::max) == SignWish::Required
    }

    /// Whether there may be links with signed messages that have one of these principals at an end.
    pub(crate) fn signs(&self, principals: &[String]) -> bool {
        self.services.iter().any(|(name, service)| {
            let rules = || service.call.values().any(|rule| rule.sign == SignWish::Required);
            let serves = self.may_register(principals, name)
                && (service.sign == SignWish::Required || rules());
            let calls = self.calls(principals, name).next().is_some();
            serves || (calls && self.sign(principals, name))
        })
    }

    /// The routes of its callers that `seal = "required"` would refuse, by name and caller. Those that it
    /// requires to be sealed already are left out.
    pub fn plain_routes(&self) -> Vec<PlainRoute> {
        let mut routes = Vec::new();
        for (name, service) in &self.services {
            let addresses = self.addresses(name);
            let plain = addresses.filter(|far| far.security().seal != Seal::Sealed);
            let url = plain.map(Addresses::as_str);
            for (caller, rule) in &service.call {
                let seal = self.seal(std::slice::from_ref(caller), name);
                if seal == Wish::Required || rule.methods.is_empty() {
                    continue;
                }
                let crosses = Some(rule.grant).filter(|grant| !grant.is_none());
                let whys =
                    [url.map(|url| Plain::Address(url.into())), crosses.map(Plain::Descriptors)];
                routes.extend(whys.into_iter().flatten().map(|why| {
                    let (name, caller) = (name.clone(), caller.clone());
                    PlainRoute { name, caller, seal, why }
                }));
            }
        }
        routes
    }

    /// Has all links to the name be at least so secure, whoever calls, beside what the rules of callers
    /// require.
    ///
    /// # Errors
    /// The name of a principal on whose links descriptors cross, which are not sealed, and the links have to
    /// be.
    pub fn demand(&mut self, name: &ServiceName, least: Security) -> Result<(), String> {
        let service = self.services.entry(name.clone()).or_default();
        let signed = least.sign == Sign::Signed;
        if least.seal == Seal::Sealed || signed {
            if let Some((caller, _)) = service.call.iter().find(|(_, rule)| !rule.grant.is_none()) {
                return Err(caller.clone());
            }
            service.seal = Wish::Required;
        }
        if signed {
            service.sign = SignWish::Required;
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
