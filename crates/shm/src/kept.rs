#![allow(unsafe_code, reason = "file leases have no safe wrapper")]
//! What the coordinator keeps of an outbox: whether it is ready, and who holds it still.
//!
//! An outbox outlives its link in whoever keeps a descriptor or a mapping of it, whatever they
//! say. So what is counted for a link is counted until the kernel says that nobody holds its
//! memory. A lease is how it says that (fcntl(2), "Leases"): `F_WRLCK` is granted only when no
//! other open file leads to the memory, `F_RDLCK` on a file opened for reading only when none
//! leads to it for writing. A lease that is granted is given back at once.
//!
//! A process of the coordinator's own user could open the file through /proc at that moment, and
//! would break the lease; the signal that the kernel sends then is `SIGURG`, which does nothing
//! unless a program wants it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// From fcntl(2); not in the libc crate for this target.
const F_SETSIG: libc::c_int = 10;

/// Who holds an outbox beside the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// Its reader only.
    Reader,
    /// Its writer, and perhaps its reader.
    Writer,
}

/// The coordinator's descriptor of an outbox, for reading.
#[derive(Debug)]
pub struct Kept(OwnedFd);

impl Kept {
    pub(crate) fn new(reader: OwnedFd) -> Self {
        // SAFETY: F_SETSIG takes an int and touches nothing of this process but the signal's number.
        let _ = unsafe { libc::fcntl(reader.as_raw_fd(), F_SETSIG, libc::SIGURG) };
        Self(reader)
    }

    /// Another descriptor of it, for reading, as a file of its own.
    ///
    /// # Errors
    /// What open(2) of it in /proc says.
    pub fn again(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
    }

    /// Who holds it now. Three system calls at most.
    ///
    /// # Errors
    /// What fcntl(2) says: EINVAL where leases are switched off (/proc/sys/fs/leases-enable).
    pub fn holder(&self) -> io::Result<Holder> {
        if self.leases(libc::F_WRLCK)? {
            return Ok(Holder::Nobody);
        }
        Ok(if self.leases(libc::F_RDLCK)? { Holder::Reader } else { Holder::Writer })
    }

    /// Whether a lease of this kind is granted.
    fn leases(&self, kind: libc::c_int) -> io::Result<bool> {
        match self.lease(kind) {
            Ok(()) => self.lease(libc::F_UNLCK).map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn lease(&self, kind: libc::c_int) -> io::Result<()> {
        // SAFETY: F_SETLEASE takes an int and touches no memory of this process.
        let done = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, kind) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use partywall_abi::layout::Geometry;
    use partywall_testkit::in_own_process;

    use super::*;
    use crate::memory::{self, Handout};

    const G: Geometry = Geometry::DEFAULT;

    #[test]
    fn holder_has_a_descriptor_or_a_mapping() {
        // A child that another test begins has every descriptor for a moment.
        if in_own_process(module_path!(), "holder_has_a_descriptor_or_a_mapping", &[]).is_some() {
            return;
        }
        let Handout { writer, reader, kept } = memory::create(G).unwrap();
        assert_eq!(kept.holder().unwrap(), Holder::Writer);
        let outbox = memory::adopt(writer.as_fd(), G).unwrap();
        drop(writer);
        assert_eq!(kept.holder().unwrap(), Holder::Writer, "it is mapped");
        drop(outbox);
        assert_eq!(kept.holder().unwrap(), Holder::Reader);
        let again = reader.try_clone().unwrap();
        drop(reader);
        assert_eq!(kept.holder().unwrap(), Holder::Reader);
        drop(again);
        assert_eq!(kept.holder().unwrap(), Holder::Nobody);
    }

    #[test]
    fn a_reader_that_opens_it_again_is_seen() {
        // A child that another test begins has every descriptor for a moment.
        if in_own_process(module_path!(), "a_reader_that_opens_it_again_is_seen", &[]).is_some() {
            return;
        }
        let Handout { writer, reader, kept } = memory::create(G).unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let again = std::fs::File::open(path).unwrap();
        drop(reader);
        assert_eq!(kept.holder().unwrap(), Holder::Reader);
        drop(again);
        assert_eq!(kept.holder().unwrap(), Holder::Nobody);
    }
}
