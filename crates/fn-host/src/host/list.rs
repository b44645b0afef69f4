//! What a host has, in the order of its names.
//!
//! A part of the list begins behind a name, which need not be one of a function any more. So whoever reads
//! the list in parts has each function that stays once, whatever comes and goes meanwhile.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, PoisonError};

use partywall_functions::dispatcher::Share;
use partywall_functions::runtime::Report;
use tonic::Status;

use super::{Host, Live};
use crate::policy::Caller;
use crate::registry::Record;
use crate::reply::ended;

/// A function, as it is listed.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What is deployed.
    pub record: Arc<Record>,
    /// Whose functions it may meet in one worker.
    pub share: &'static str,
    /// What is known of it since the host has started; none before it was registered.
    pub report: Option<Report>,
}

impl Host {
    /// All functions, by their names.
    ///
    /// # Errors
    /// UNAVAILABLE, when the dispatcher has ended.
    pub fn list(&self) -> Result<Vec<Listed>, Status> {
        self.listed("", usize::MAX, |_| true)
    }

    /// The functions behind a name that a caller may see, at most so many of them.
    ///
    /// # Errors
    /// UNAVAILABLE, when the dispatcher has ended.
    pub fn list_behind(
        &self,
        caller: &Caller,
        name: &str,
        most: usize,
    ) -> Result<Vec<Listed>, Status> {
        let policy = self.known.policy();
        self.listed(name, most, |live| {
            policy.rules(&live.record.owner).is_some_and(|rules| rules.sees(caller))
        })
    }

    fn listed(
        &self,
        behind: &str,
        most: usize,
        is_seen: impl Fn(&Live) -> bool,
    ) -> Result<Vec<Listed>, Status> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        let seen = functions.range::<str, _>((Excluded(behind), Unbounded));
        let seen = seen.filter(|(_, live)| is_seen(live)).take(most);
        let seen: Vec<_> = seen.map(|(name, live)| (name.clone(), live.clone())).collect();
        drop(functions);
        // Looked at once: one may be registered meanwhile.
        let callees: Vec<_> = seen.iter().map(|(_, live)| live.callee.get().cloned()).collect();
        let known = callees.iter().flatten().cloned().collect();
        let mut reports = self.runtime.report(known).map_err(ended)?.into_iter();
        let policy = self.known.policy();
        let listed = seen.into_iter().zip(callees).map(|((name, live), callee)| {
            let report = callee.and_then(|_| reports.next().flatten());
            let by_policy = || policy.rules(&live.record.owner).map(|rules| rules.share);
            let share = report.as_ref().map(|report| report.share).or_else(by_policy);
            let share = share.map_or("none", Share::name);
            Listed { name, record: live.record.clone(), share, report }
        });
        Ok(listed.collect())
    }
}
