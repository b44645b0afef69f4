//! What is there for domains in a build without the feature `domain`: no gate, in or out.
//!
//! Such a program cannot see whether it shares its address space with others of a launcher, and so does
//! not claim that it does not ([`security`]).
#![allow(dead_code, reason = "the items are those of `domain`, and nobody comes in by a gate")]

use std::sync::{Arc, Weak};
use std::time::Instant;

use partywall_abi::domain::GateStatus;
use partywall_abi::security::{Confidentiality, Isolation, Security};
use tokio::runtime::Handle;

use crate::harden;

pub(crate) fn has_time(_due: Option<Instant>) -> bool {
    false
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visited {
    pub(crate) taken: bool,
    pub(crate) waits: Option<bool>,
}

pub(crate) fn security(reported: Security, _gate: Option<Isolation>) -> Security {
    let mut found = Security::HIGHEST;
    found.confidentiality = Confidentiality::Space;
    harden::lowered(reported).min_per_field(found)
}

pub(crate) fn accept(_open: bool) -> Result<(), u32> {
    Err(rustix::io::Errno::NOTSUP.raw_os_error() as u32)
}

pub(crate) fn forwards() -> u64 {
    0
}

pub(crate) enum Gate {}

impl Gate {
    pub(crate) fn take(_number: u64) -> Option<Self> {
        None
    }

    pub(crate) fn isolation(&self) -> Isolation {
        match *self {}
    }

    pub(crate) fn visit(&self, _stream: u32) -> Result<Visited, GateStatus> {
        match *self {}
    }
}

pub(crate) trait Visit: Send + Sync {
    fn visit(self: Arc<Self>, stream: u32) -> Visited;

    fn runtime(&self) -> &Handle;
}

pub(crate) enum Offered {}

impl Offered {
    pub(crate) fn new(_pid: Option<u32>, _number: u64) -> std::io::Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn isolation(&self) -> Isolation {
        match *self {}
    }

    pub(crate) fn open(&self, _link: Weak<dyn Visit>) {
        match *self {}
    }
}
