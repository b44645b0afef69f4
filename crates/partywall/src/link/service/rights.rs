//! What a caller may call on a link, and what the link remembers of that.
//!
//! ```text
//! a path is called    looked up: what it names, if the policy lets the caller call it     remembered
//! a method gets a number                                                                  its path is kept
//! a number is called  looked up with its first call since the last change                 remembered
//! the policy changes  all that was looked up is forgotten: a number is as good as the right to its path
//! ```
//!
//! Paths are the caller's choice: what is remembered of them is bounded in number and in bytes.

use std::collections::HashMap;
use std::sync::Arc;

use partywall_abi::control::Identity;
use partywall_abi::limits;
use partywall_abi::name::MethodSet;

use super::inline::History;
use crate::link::calls::Called;
use crate::link::ways::{Methods, Ways};
use crate::peer::Peer;

/// Paths that a link remembers; a caller that uses more of them pays for the look-up each time.
const PATHS: usize = 256;

/// One path that was called.
pub(super) struct Method<M> {
    pub(super) path: Arc<str>,
    /// What it names, if the caller may call that.
    pub(super) allowed: Option<M>,
    pub(super) history: History,
    /// Of one that may be called, unless it is one of too many.
    pub(super) ways: Option<Arc<Ways>>,
}

/// A path that has a number.
struct Numbered<M> {
    path: Arc<str>,
    /// Once it was called since the policy has changed.
    method: Option<Arc<Method<M>>>,
}

/// Who calls and what it may call, with the paths that a link remembers.
pub(super) struct Rights<M> {
    peer: Peer,
    pub(super) methods: MethodSet,
    /// What was called last.
    pub(super) last: Option<Arc<Method<M>>>,
    all: HashMap<Arc<str>, Arc<Method<M>>>,
    /// Bytes of their paths.
    bytes: usize,
    /// Those that have numbers, in their order.
    numbered: Vec<Numbered<M>>,
    /// The link's.
    counted: Arc<Methods>,
}

impl<M> Rights<M> {
    pub(super) fn new(peer: Peer, methods: MethodSet, counted: Arc<Methods>) -> Self {
        let (all, numbered) = (HashMap::new(), Vec::new());
        Self { peer, methods, last: None, all, bytes: 0, numbered, counted }
    }

    /// The policy has changed, or what it knows of the caller.
    pub(super) fn change(&mut self, peer: Identity, methods: MethodSet) {
        self.peer = self.peer.known_as(peer);
        self.methods = methods;
        self.last = None;
        self.all.clear();
        self.bytes = 0;
        self.numbered.iter_mut().for_each(|numbered| numbered.method = None);
    }

    /// A path has the next number.
    pub(super) fn number(&mut self, path: Arc<str>) {
        self.numbered.push(Numbered { path, method: None });
    }

    /// What is known of a method, and who calls it, as the policy has them now.
    pub(super) fn method(
        &mut self,
        called: Called<'_>,
        named: impl FnOnce(&str) -> Option<M>,
    ) -> (Arc<Method<M>>, Peer) {
        let peer = self.peer.clone();
        let path = match called {
            Called::Path(path) => path,
            Called::Number(number) => {
                let number = usize::from(number);
                let method = match &self.numbered[number].method {
                    Some(method) => Arc::clone(method),
                    None => {
                        let method = self.look_up(Arc::clone(&self.numbered[number].path), named);
                        self.numbered[number].method = Some(Arc::clone(&method));
                        method
                    }
                };
                if !self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &method)) {
                    self.last = Some(Arc::clone(&method));
                }
                return (method, peer);
            }
        };
        if let Some(last) = self.last.as_ref().filter(|m| m.path.as_bytes() == path) {
            return (Arc::clone(last), peer);
        }
        let path = std::str::from_utf8(path).unwrap_or_default();
        if let Some(method) = self.all.get(path).cloned() {
            self.last = Some(Arc::clone(&method));
            return (method, peer);
        }
        let method = self.look_up(path.into(), named);
        let bytes = self.bytes + method.path.len();
        if self.all.len() < PATHS && bytes <= limits::METHOD_BYTES {
            self.bytes = bytes;
            self.all.insert(Arc::clone(&method.path), Arc::clone(&method));
        }
        (method, peer)
    }

    fn look_up(&self, path: Arc<str>, named: impl FnOnce(&str) -> Option<M>) -> Arc<Method<M>> {
        let allowed = if self.methods.covers(&path) { named(&path) } else { None };
        let ways = allowed.as_ref().and_then(|_| self.counted.at(&path));
        Arc::new(Method { path, allowed, history: History::default(), ways })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a path; whether it was looked up for that.
    fn looks_up(rights: &mut Rights<()>, called: Called<'_>) -> bool {
        let mut looked = false;
        rights.method(called, |_| {
            looked = true;
            Some(())
        });
        looked
    }

    fn rights() -> Rights<()> {
        Rights::new(crate::fuzz::stranger(), MethodSet::all(), Arc::default())
    }

    #[test]
    fn numbers_are_looked_up_when_they_are_called() {
        let mut rights = rights();
        rights.number("/a.B/C".into());
        rights.number("/a.B/D".into());
        for _ in 0..2 {
            for number in [0, 1] {
                assert!(looks_up(&mut rights, Called::Number(number)));
                assert!(!looks_up(&mut rights, Called::Number(number)));
            }
            rights.change(crate::fuzz::identity(), MethodSet::all());
        }
    }

    #[test]
    fn remembered_paths_have_a_bound_in_bytes() {
        let mut rights = rights();
        let paths: Vec<_> = (0..100).map(|n| format!("/{n:0>1023}")).collect();
        for path in &paths {
            assert!(looks_up(&mut rights, Called::Path(path.as_bytes())));
        }
        let kept = limits::METHOD_BYTES / limits::PATH_BYTES;
        for (n, path) in paths.iter().enumerate() {
            let again = looks_up(&mut rights, Called::Path(path.as_bytes()));
            assert_eq!(again, n >= kept, "{n}");
        }
        assert_eq!(rights.all.len(), kept);
    }
}
