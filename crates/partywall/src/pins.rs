//! The keys that an end takes for the other one's, whoever vouches for others.
//!
//! A coordinator certifies processes, and tells each whom to trust. So one that lies can certify itself for
//! any name, and stand between two ends that have not met. An end with pins takes no other end than one whose
//! certificate is by a pinned key ([`partywall_trust::Pin`]): at first contact and at each later one, on
//! sealed rings ([`crate::link::sealed`]) and by mutual TLS (`crate::tls`). Where the other end proves no
//! key, on plain rings and over plain HTTP/2, an end with pins has no link, whatever the coordinator says.

use std::sync::Arc;

use partywall_abi::control::Terms;
use partywall_trust::Pin;

use crate::error::Error;

/// The pins of an endpoint or a server; without any, each end that is certified will do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins(Arc<Vec<Pin>>);

impl Pins {
    /// One more.
    pub(crate) fn add(&mut self, pin: Pin) {
        Arc::make_mut(&mut self.0).push(pin);
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Pin] {
        &self.0
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// That the other end of a link with these terms proves a key, where one is to be pinned.
    ///
    /// # Errors
    /// [`Error::NotPinned`].
    pub(crate) fn may_open(&self, terms: &Terms, name: &str) -> Result<(), Error> {
        match terms.sealing.is_some() {
            true => Ok(()),
            false => self.need_proof(&format!("the link to `{name}` is plain")),
        }
    }

    /// That there are no pins, since nothing is proven there.
    ///
    /// # Errors
    /// [`Error::NotPinned`].
    pub(crate) fn need_proof(&self, what: &str) -> Result<(), Error> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(Error::NotPinned {
                text: format!(
                    "{what}, and proves no key where one is pinned; it takes `seal = \"required\"` in the policy, \
                     or https://"
                ),
            }),
        }
    }
}
