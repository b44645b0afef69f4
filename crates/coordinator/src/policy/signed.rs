//! Principals whose programs are signed.

use std::path::PathBuf;
use std::time::SystemTime;

use partywall_abi::control::Digest;
use partywall_abi::name::ServiceName;
use partywall_trust::Program;

use super::Policy;
use crate::identity::Facts;
use crate::signatures::{Signatures, SignaturesError};

/// Whose signatures count, by the policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Signers {
    /// The files of keys.
    pub(super) keys: Vec<PathBuf>,
    /// The file of what is revoked.
    pub(super) revoked: Option<PathBuf>,
    /// What was in them when the policy was loaded.
    read: Signatures,
    /// When the policy came into force again.
    at: Option<SystemTime>,
}

impl Policy {
    /// Reads the files of keys and the list of what is revoked.
    pub(super) fn load_signatures(&mut self) -> Result<(), SignaturesError> {
        let signers = &mut self.signers;
        signers.read = Signatures::load(&signers.keys, signers.revoked.as_deref())?;
        Ok(())
    }

    /// Each principal for what the coordinator starts is one of a signed program from here on.
    pub fn require_signed(&mut self, signatures: Signatures) {
        self.signers.read = signatures;
        let started = self.principals.values_mut().filter(|p| p.started.is_some());
        started.for_each(|principal| principal.signed = true);
    }

    /// It comes into force again now: signatures that are over by now count no more.
    pub(crate) fn again_at(&mut self, now: SystemTime) {
        self.signers.at = Some(now);
    }

    /// What the signature of a process's program says, or why none counts, with the remedy.
    ///
    /// # Errors
    /// The reason, as a sentence without its end.
    pub fn signature(&self, facts: &Facts) -> Result<Program, String> {
        let (Digest::Started(digest), Some(name), Some(beside)) =
            (facts.digest, &facts.started_as, &facts.signature)
        else {
            return Err(
                "the coordinator has not started it, and so knows no signature of what it runs; \
                        remedy: have it started by the coordinator"
                    .into(),
            );
        };
        let now = self.signers.at.map_or(beside.at, |at| at.max(beside.at));
        let checked = self.signers.read.check(&beside.found, digest, Some(name), now);
        checked.map(|(said, _)| said).map_err(|e| {
            format!(
                "the program of service `{name}` is not signed: {e}; remedy: {}",
                e.remedy(name)
            )
        })
    }

    /// Whether some principal is one of a signed program.
    pub(crate) fn asks_for_signatures(&self) -> bool {
        self.principals.values().any(|p| p.signed)
    }

    /// The names that the signature of a process lists, which is one of these principals; none where none of
    /// them has to be signed.
    pub(crate) fn listed(&self, facts: &Facts, principals: &[String]) -> Vec<String> {
        match principals.iter().any(|p| self.is_signed(p)) {
            true => self.signature(facts).map_or_else(|_| Vec::new(), |said| said.register),
            false => Vec::new(),
        }
    }

    fn is_signed(&self, principal: &str) -> bool {
        self.principals.get(principal).is_some_and(|p| p.signed)
    }

    /// Whether one of the principals may serve the name, which the signature has to list where one of them
    /// has to be signed.
    pub(crate) fn may_serve(
        &self,
        principals: &[String],
        listed: &[String],
        name: &ServiceName,
    ) -> bool {
        self.may_register(principals, name)
            && (!principals.iter().any(|p| self.is_signed(p))
                || listed.iter().any(|listed| listed == name.as_str()))
    }

    /// Why a process of these principals may not serve a name that the policy lets it serve.
    pub(crate) fn unlisted(&self, facts: &Facts, listed: &[String], name: &ServiceName) -> String {
        let service = facts.started_as.as_deref().unwrap_or("NAME");
        let listed = if listed.is_empty() { "none".into() } else { listed.join(", ") };
        format!(
            "the signature of the program of service `{service}` does not list `{name}` among the names that \
             it may serve; it lists {listed}; remedy: `partywall sign PROGRAM --service {service} --register \
             {name} --key KEY`, with the other names as well"
        )
    }
}
