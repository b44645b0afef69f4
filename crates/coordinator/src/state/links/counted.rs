//! What a server has counted for the methods of a link, kept for the list.
//!
//! Callers make paths up, and a server may have many links. What is kept is charged to the server's account,
//! of which no caller gets all, for as long as the link is in the list, closed ones included. Methods for
//! which there is no room are counted with those that are not listed.

use std::sync::Arc;

use partywall_abi::control::{LinkMethods, MethodStats};

use crate::quota::{Charge, Resource, Usage};

/// Bytes of a method beside its path.
const OF_A_METHOD: usize = 64;

/// What was counted for methods, and what that costs.
#[derive(Default)]
pub(in super::super) struct Counted {
    methods: LinkMethods,
    charge: Option<Charge>,
}

impl Counted {
    /// Keeps these in place of what there was, as far as the server's account has room for them.
    pub(super) fn keep(
        &mut self,
        mut methods: LinkMethods,
        server: &Arc<Usage>,
        caller: &Arc<Usage>,
    ) {
        *self = Self::default();
        while !methods.most_called.is_empty() {
            let bytes = methods.most_called.iter().map(bytes).sum();
            if let Ok(charge) = server.charge_for(caller, Resource::Methods, bytes) {
                self.charge = Some(charge);
                break;
            }
            methods.most_called.pop();
            methods.more = methods.more.saturating_add(1);
        }
        self.methods = methods;
    }

    /// What is kept.
    pub(in super::super) fn methods(&self) -> &LinkMethods {
        &self.methods
    }
}

fn bytes(method: &MethodStats) -> usize {
    OF_A_METHOD + method.path.len()
}
