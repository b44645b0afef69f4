//! Methods as generated clients name them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A method of a service, as its stubs name it.
#[derive(Debug)]
pub struct Method {
    pub(super) service: &'static str,
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    /// Its index in the tables of links, and one; 0 until the first call.
    id: AtomicUsize,
}

/// Methods of this process that have been called.
static METHODS: AtomicUsize = AtomicUsize::new(0);

impl Method {
    /// The method `name` of `service`, which together have this path.
    pub const fn new(service: &'static str, name: &'static str, path: &'static str) -> Self {
        Self { service, name, path, id: AtomicUsize::new(0) }
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn path(&self) -> &'static str {
        self.path
    }

    /// Its index in the tables of links.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        match self.id.load(Ordering::Relaxed) {
            0 => self.first_index(),
            id => id - 1,
        }
    }

    #[cold]
    fn first_index(&self) -> usize {
        let new = METHODS.fetch_add(1, Ordering::Relaxed) + 1;
        match self.id.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new - 1,
            Err(there) => there - 1,
        }
    }
}

/// The numbers that methods have on a link, by their indices.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Vec<Option<u16>>);

impl Numbers {
    /// The number of the method with this index, if it has one.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<u16> {
        self.0.get(index).copied().flatten()
    }

    /// The same; one that has none asks for it.
    pub(crate) fn get_or_ask(
        &mut self,
        index: usize,
        ask: impl FnOnce() -> Option<u16>,
    ) -> Option<u16> {
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        let number = &mut self.0[index];
        *number = number.or_else(ask);
        *number
    }
}
