//! Principals whose programs are signed.

use std::path::PathBuf;
use std::time::SystemTime;

use partywall_abi::control::Digest;
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_trust::{Program, SignatureError};

use super::Policy;
use crate::engine::{self, Origin};
use crate::identity::Facts;
use crate::signatures::{self, Beside, Signatures, SignaturesError};

/// What of a process has to be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signed {
    /// Its program, for the name under which the coordinator has started it.
    Program,
    /// The image of its container, for the principal's name.
    Image,
}

/// Whose signatures count, by the policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Signers {
    /// The files of keys.
    pub(super) keys: Vec<PathBuf>,
    /// The file of what is revoked.
    pub(super) revoked: Option<PathBuf>,
    /// The directory of signatures of images.
    pub(super) images: Option<PathBuf>,
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
        started.for_each(|principal| principal.signed = Some(Signed::Program));
    }

    /// Where the signatures of images are.
    pub(crate) fn signatures_of_images(&self) -> Option<PathBuf> {
        self.signers.images.clone()
    }

    /// It comes into force again now: signatures that are over by now count no more.
    pub(crate) fn again_at(&mut self, now: SystemTime) {
        self.signers.at = Some(now);
    }

    /// What the signature of this process's program says, or that of its image for this principal, or why
    /// none counts, with the remedy.
    ///
    /// # Errors
    /// The reason, as a sentence without its end.
    pub(crate) fn signature(
        &self,
        what: Signed,
        principal: &str,
        facts: &Facts,
    ) -> Result<Program, String> {
        match what {
            Signed::Program => self.of_program(facts),
            Signed::Image => self.of_image(principal, facts),
        }
    }

    fn of_image(&self, principal: &str, facts: &Facts) -> Result<Program, String> {
        let Some(Origin { image, signature: Some(beside), .. }) = &facts.origin else {
            return Err(format!(
                "it is known of no image, which has to be signed for `{principal}`; remedy: run it in a container of \
                 an engine that has `api` in the policy"
            ));
        };
        let checked = self.check(beside, engine::digest_of(image), principal);
        checked.map_err(|e| {
            let sign = signatures::command(Some(image), principal);
            format!("its image {image} is not signed: {e}; remedy: {}", e.remedy(&sign))
        })
    }

    /// The later of when it was found and when the policy came into force again counts.
    fn check(
        &self,
        beside: &Beside,
        digest: [u8; 32],
        service: &str,
    ) -> Result<Program, SignatureError> {
        let now = self.signers.at.map_or(beside.at, |at| at.max(beside.at));
        let checked = self.signers.read.check(&beside.found, digest, Some(service), now);
        checked.map(|(said, _)| said)
    }

    fn of_program(&self, facts: &Facts) -> Result<Program, String> {
        let (Digest::Started(digest), Some(name), Some(beside)) =
            (facts.digest, &facts.started_as, &facts.signature)
        else {
            return Err(
                "the coordinator has not started it, and so knows no signature of what it runs; \
                        remedy: have it started by the coordinator"
                    .into(),
            );
        };
        self.check(beside, digest, name).map_err(|e| {
            let sign = signatures::command(None, name);
            let remedy = e.remedy(&sign);
            format!("the program of service `{name}` is not signed: {e}; remedy: {remedy}")
        })
    }

    /// Why a process is not one of the principals that have to be signed, all else of which holds; the end of
    /// a sentence for each.
    pub(crate) fn unsigned(&self, facts: &Facts) -> Vec<String> {
        let wanted = self.principals.iter().filter_map(|(name, p)| Some((name, p, p.signed?)));
        // Whatever starts a process says itself what that is, so there the program is all.
        let near = wanted.filter(|(_, p, what)| *what == Signed::Program || p.covers(facts));
        let mut whys: Vec<String> = near
            .filter_map(|(name, _, what)| self.signature(what, name, facts).err())
            .take(limits::PRINCIPALS)
            .collect();
        whys.dedup();
        whys
    }

    /// The names that the signatures of a process list, which is one of these principals; none where none of
    /// them has to be signed.
    pub(crate) fn listed(&self, facts: &Facts, principals: &[String]) -> Vec<String> {
        let signed = principals.iter().filter_map(|name| Some((name, self.signed(name)?)));
        let said = signed.filter_map(|(name, what)| self.signature(what, name, facts).ok());
        let mut listed: Vec<String> = said.flat_map(|said| said.register).collect();
        listed.sort();
        listed.dedup();
        listed
    }

    fn signed(&self, principal: &str) -> Option<Signed> {
        self.principals.get(principal)?.signed
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
            && (!principals.iter().any(|p| self.signed(p).is_some())
                || listed.iter().any(|listed| listed == name.as_str()))
    }

    /// Why a process of these principals may not serve a name that the policy lets it serve.
    pub(crate) fn unlisted(&self, facts: &Facts, listed: &[String], name: &ServiceName) -> String {
        let (what, sign) = match (&facts.started_as, &facts.origin) {
            (None, Some(Origin { image, .. })) => {
                (format!("its image {image}"), format!("--image {image} --service PRINCIPAL"))
            }
            (service, _) => {
                let service = service.as_deref().unwrap_or("NAME");
                let what = format!("the program of service `{service}`");
                (what, format!("PROGRAM --service {service}"))
            }
        };
        let listed = if listed.is_empty() { "none".into() } else { listed.join(", ") };
        format!(
            "the signature of {what} does not list `{name}` among the names that it may serve; it lists {listed}; \
             remedy: `partywall sign {sign} --register {name} --key KEY`, with the other names as well"
        )
    }
}
