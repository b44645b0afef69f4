//! What a service's end of a link counts for each method: calls by the way that they go.
//!
//! ```text
//! reader      a call of a method that the policy allows has come            begun + 1, under a lock
//! dispatch    it has made an ordinary request of it                         ordinary + 1
//! list        native = begun - ordinary
//! ```
//!
//! So a native call costs its counting no locked instruction. One whose way is not decided yet shows as
//! native for that moment.
//!
//! The counts outlive what a link knows of a method, which a reload of the policy makes anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use partywall_abi::control::{LinkMethods, MethodStats};
use partywall_abi::limits;
use partywall_abi::sync::{AtomicU64, Ordering};

use crate::lock::lock;

/// Methods that are counted apart.
const METHODS: usize = 256;

/// The calls of one method.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    begun: AtomicU64,
    ordinary: AtomicU64,
}

impl Ways {
    /// One more call. Whoever calls this holds the lock of the link's rights: one thread writes at a time.
    pub(super) fn begun(&self) {
        self.begun.store(self.begun.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The last call has become an ordinary request.
    pub(crate) fn ordinary(&self) {
        self.ordinary.fetch_add(1, Ordering::Relaxed);
    }

    /// Native calls, and ordinary ones.
    fn counted(&self) -> (u64, u64) {
        let ordinary = self.ordinary.load(Ordering::Relaxed);
        (self.begun.load(Ordering::Relaxed).saturating_sub(ordinary), ordinary)
    }
}

/// The counts of a link's methods, by their paths.
#[derive(Default)]
pub(super) struct Methods(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    by_path: HashMap<Arc<str>, Arc<Ways>>,
    /// Of the paths.
    bytes: usize,
}

impl Methods {
    /// The counts of the method at `path`; none where there are too many.
    pub(super) fn at(&self, path: &Arc<str>) -> Option<Arc<Ways>> {
        let Counts { by_path, bytes } = &mut *lock(&self.0);
        if let Some(ways) = by_path.get(path) {
            return Some(Arc::clone(ways));
        }
        if by_path.len() >= METHODS || *bytes + path.len() > limits::METHOD_BYTES {
            return None;
        }
        *bytes += path.len();
        Some(Arc::clone(by_path.entry(Arc::clone(path)).or_default()))
    }

    /// What was counted so far.
    pub(super) fn counted(&self) -> LinkMethods {
        let counts = lock(&self.0);
        let counts = counts.by_path.iter().map(|(path, ways)| (path, ways.counted()));
        let calls = |(native, ordinary): (u64, u64)| native.saturating_add(ordinary);
        let mut called: Vec<_> = counts.filter(|(_, counted)| calls(*counted) > 0).collect();
        called.sort_unstable_by(|(path, one), (other_path, other)| {
            calls(*other).cmp(&calls(*one)).then_with(|| path.cmp(other_path))
        });
        let more = called.len().saturating_sub(limits::LISTED_METHODS) as u32;
        called.truncate(limits::LISTED_METHODS);
        let stats = |(path, (native, ordinary)): (&Arc<str>, (u64, u64))| {
            MethodStats::new(path, native, ordinary)
        };
        LinkMethods::new(called.into_iter().map(stats).collect(), more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_with_most_calls_are_listed_and_the_rest_are_counted() {
        let methods = Methods::default();
        for n in 0..METHODS as u64 {
            let ways = methods.at(&format!("/a.B/M{n:03}").into()).unwrap();
            for _ in 0..n {
                ways.begun();
            }
            for _ in 0..n / 4 {
                ways.ordinary();
            }
        }
        assert!(methods.at(&"/a.B/Another".into()).is_none());
        assert!(methods.at(&"/a.B/M000".into()).is_some());
        let counted = methods.counted();
        let listed = counted.most_called;
        assert_eq!(listed[0], MethodStats::new("/a.B/M255", 192, 63));
        assert_eq!(listed[15], MethodStats::new("/a.B/M240", 180, 60));
        // One of them was never called.
        assert_eq!((listed.len(), counted.more), (16, 256 - 16 - 1));
    }

    #[test]
    fn the_order_of_methods_with_as_many_calls_is_that_of_their_paths() {
        let methods = Methods::default();
        for name in ["/b", "/c", "/a"] {
            let ways = methods.at(&name.into()).unwrap();
            ways.begun();
            if name == "/c" {
                ways.ordinary();
            }
        }
        let listed = methods.counted().most_called;
        let one = |path, native, ordinary| MethodStats::new(path, native, ordinary);
        assert_eq!(listed, [one("/a", 1, 0), one("/b", 1, 0), one("/c", 0, 1)]);
        assert_eq!(Methods::default().counted(), LinkMethods::default());
    }
}
