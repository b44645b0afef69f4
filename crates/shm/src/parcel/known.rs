//! Memory that this process has mapped, by its inode: it is mapped once, however often it comes.
//!
//! An inode is not used again while somebody has the file open or mapped, and whatever is known here is both.
//! Seals that are sealed do not change, so what was checked once stays true.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{ParcelError, failed};

/// What memory is known by: its device and inode.
type Name = (u64, u64);

/// Memory of one kind.
pub(super) struct Known<T>(Mutex<BTreeMap<Name, Weak<T>>>);

impl<T> Known<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The memory that a file is, which `map` maps if it is not known.
    ///
    /// # Errors
    /// Those of `map`, which has the file then.
    pub(super) fn find(
        &self,
        file: OwnedFd,
        map: impl FnOnce(OwnedFd) -> Result<T, ParcelError>,
    ) -> Result<Arc<T>, ParcelError> {
        let stat = rustix::fs::fstat(&file).map_err(failed("fstat"))?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (stat.st_dev, stat.st_ino);
        if let Some(found) = known.get(&name).and_then(Weak::upgrade) {
            return Ok(found);
        }
        // With the lock: two descriptors that come at once are one memory. It maps, and reads no page.
        let mapped = Arc::new(map(file)?);
        known.retain(|_, memory| memory.strong_count() > 0);
        known.insert(name, Arc::downgrade(&mapped));
        Ok(mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;
    use rustix::fs::SealFlags;

    fn memory() -> OwnedFd {
        file(4096, &|_| {}, SealFlags::empty())
    }

    #[test]
    fn memory_is_known_while_somebody_has_it_and_no_longer() {
        let known = Known::<OwnedFd>::new();
        let first = memory();
        let again = || first.try_clone().unwrap();
        let found = known.find(again(), Ok).unwrap();
        let known_again = known.find(again(), |_| panic!("it is known")).unwrap();
        assert!(Arc::ptr_eq(&found, &known_again));
        let other = known.find(memory(), Ok).unwrap();
        assert!(!Arc::ptr_eq(&found, &other));
        drop((found, known_again));
        assert!(known.find(again(), |_| Err(ParcelError::NoMemfd)).is_err(), "nobody has it");
        for _ in 0..100 {
            drop(known.find(memory(), Ok).unwrap());
        }
        assert!(known.0.lock().unwrap().len() <= 2, "what is over is forgotten");
        drop(other);
    }
}
