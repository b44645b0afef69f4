//! Outboxes as memfds: who makes them, who seals them, and what a reader checks.
//!
//! ```text
//! coordinator   memfd_create, fallocate every block, seal SHRINK|GROW      [`create`]
//!      | fd
//! owner         map for writing, seal FUTURE_WRITE|SEAL                    [`adopt`]
//!      | fd
//! peer          check: a memfd, all four seals, the size, every block      [`accept`]
//!               there; map read-only
//! ```
//!
//! The order matters: after `F_SEAL_SEAL` no seal can be added, and a writable mapping made before
//! `F_SEAL_FUTURE_WRITE` stays. A block that is not there would be charged to the reader that
//! touches it first, or kill it with `SIGBUS` when memory has run out.
//! See memfd_create(2), fcntl(2) "File Sealing".

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use partywall_abi::layout::{self, Geometry};
use partywall_abi::sync::Ordering;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::region::{Inbox, Outbox};
use crate::stops::stop;

/// The seals of an outbox that its owner has adopted.
const ALL_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Why a descriptor is no outbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// A system call failed.
    #[error("{call}: {source}")]
    Io {
        /// Which.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// It is not a memfd, or one that does not allow seals.
    #[error("not a memfd with seals")]
    NoMemfd,
    /// A seal is missing.
    #[error("seals {found:#x} where {wanted:#x} are needed")]
    Seals {
        /// What it has.
        found: u32,
        /// What it must have.
        wanted: u32,
    },
    /// The size is not what the coordinator said.
    #[error("{found} bytes where {wanted} were agreed")]
    Size {
        /// What it has.
        found: u64,
        /// What it must have.
        wanted: u64,
    },
    /// Some block is not allocated.
    #[error("{found} bytes are allocated of {wanted}: the memory has holes")]
    Holes {
        /// What is allocated.
        found: u64,
        /// What must be.
        wanted: u64,
    },
    /// What the outbox says of itself is not what the coordinator said.
    #[error("the outbox's own header disagrees with what was agreed")]
    Header,
}

impl OutboxError {
    fn io(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Io { call, source: errno.into() }
    }
}

/// Makes the memory of one outbox: the coordinator's part.
///
/// # Errors
/// [`OutboxError::Io`]; ENOSPC when memory has run out.
pub fn create(geometry: Geometry) -> Result<OwnedFd, OutboxError> {
    let fd = rustix::fs::memfd_create(
        "partywall-outbox",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )
    .map_err(OutboxError::io("memfd_create"))?;
    let len = geometry.outbox_bytes() as u64;
    rustix::fs::ftruncate(&fd, len).map_err(OutboxError::io("ftruncate"))?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len)
        .map_err(OutboxError::io("fallocate"))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
        .map_err(OutboxError::io("fcntl(F_ADD_SEALS)"))?;
    Ok(fd)
}

/// Maps and seals the outbox that this process writes; afterwards `fd` goes to the peer.
///
/// # Errors
/// As [`accept`], with the two seals of [`create`] in place of all four.
pub fn adopt(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Outbox, OutboxError> {
    check(fd, geometry, SealFlags::SHRINK | SealFlags::GROW)?;
    let outbox = Outbox::map(fd, geometry.outbox_bytes())
        .map_err(|source| OutboxError::Io { call: "mmap", source })?;
    for (at, value) in header(geometry) {
        outbox.u32(at).store(value, Ordering::Relaxed);
    }
    stop("setup.mapped");
    rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
        .map_err(OutboxError::io("fcntl(F_ADD_SEALS)"))?;
    stop("setup.sealed");
    Ok(outbox)
}

/// Checks and maps the outbox that the peer writes.
///
/// # Errors
/// Each variant of [`OutboxError`] is one check that failed.
pub fn accept(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Inbox, OutboxError> {
    let before = check(fd, geometry, ALL_SEALS)?;
    let inbox = Inbox::map(fd, geometry.outbox_bytes())
        .map_err(|source| OutboxError::Io { call: "mmap", source })?;
    // Blocks beyond the end make up for holes in what `check` counts; a hole that is read is
    // filled, and counted. The seals keep it from being punched afterwards.
    let populated =
        inbox.populate().map_err(|source| OutboxError::Io { call: "madvise", source })?;
    let after = allocated(fd)?;
    if populated && after > before {
        let wanted = geometry.outbox_bytes() as u64;
        return Err(OutboxError::Holes { found: wanted.saturating_sub(after - before), wanted });
    }
    for (at, value) in header(geometry) {
        if inbox.load_u32(at, Ordering::Relaxed) != value {
            return Err(OutboxError::Header);
        }
    }
    Ok(inbox)
}

fn header(g: Geometry) -> [(usize, u32); 4] {
    [
        (layout::MAGIC_AT, layout::MAGIC),
        (layout::VERSION_AT, partywall_abi::VERSION.into()),
        (layout::SLOTS_AT, g.slots()),
        (layout::ARENA_BYTES_AT, g.arena_bytes()),
    ]
}

fn allocated(fd: BorrowedFd<'_>) -> Result<u64, OutboxError> {
    let stat = rustix::fs::fstat(fd).map_err(OutboxError::io("fstat"))?;
    Ok(stat.st_blocks as u64 * 512)
}

/// The bytes that are allocated, if all is well.
fn check(fd: BorrowedFd<'_>, geometry: Geometry, wanted: SealFlags) -> Result<u64, OutboxError> {
    // Only memfds (and hugetlbfs, which fails the allocation check) answer this call.
    let found = match rustix::fs::fcntl_get_seals(fd) {
        Ok(found) => found,
        Err(rustix::io::Errno::INVAL) => return Err(OutboxError::NoMemfd),
        Err(errno) => return Err(OutboxError::io("fcntl(F_GET_SEALS)")(errno)),
    };
    if !found.contains(wanted) {
        return Err(OutboxError::Seals { found: found.bits(), wanted: wanted.bits() });
    }
    let stat = rustix::fs::fstat(fd).map_err(OutboxError::io("fstat"))?;
    let (size, allocated) = (stat.st_size as u64, stat.st_blocks as u64 * 512);
    let wanted = geometry.outbox_bytes() as u64;
    if size != wanted {
        return Err(OutboxError::Size { found: size, wanted });
    }
    if allocated < wanted {
        return Err(OutboxError::Holes { found: allocated, wanted });
    }
    Ok(allocated)
}

/// A program file copied into a memfd that nobody can change any more.
///
/// # Errors
/// What reading, memfd_create, write or sealing says.
pub fn sealed_copy(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = rustix::io::write(&fd, rest)?;
        rest = &rest[n..];
    }
    rustix::fs::fcntl_add_seals(
        fd.as_fd(),
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL,
    )?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: Geometry = match Geometry::new(2, 64) {
        Ok(g) => g,
        Err(_) => panic!("a geometry"),
    };

    #[test]
    fn the_whole_way() {
        let fd = create(G).unwrap();
        let outbox = adopt(fd.as_fd(), G).unwrap();
        let inbox = accept(fd.as_fd(), G).unwrap();
        outbox.u32(layout::BELL_AT).store(5, Ordering::Release);
        assert_eq!(inbox.load_u32(layout::BELL_AT, Ordering::Acquire), 5);
    }

    #[test]
    fn an_adopted_outbox_cannot_be_written_any_other_way() {
        let fd = create(G).unwrap();
        let _outbox = adopt(fd.as_fd(), G).unwrap();
        assert!(Outbox::map(fd.as_fd(), G.outbox_bytes()).is_err());
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(Outbox::map(again.as_fd(), G.outbox_bytes()).is_err());
        assert!(rustix::io::write(&again, b"x").is_err());
        assert!(rustix::fs::ftruncate(&again, 0).is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&again, punch, 0, 4096).is_err());
    }

    #[test]
    fn what_is_no_outbox_is_refused_with_the_reason() {
        let sealed = |len: u64, allocate: bool, seals: SealFlags| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("x", flags).unwrap();
            rustix::fs::ftruncate(&fd, len).unwrap();
            if allocate {
                rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
            }
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            accept(fd.as_fd(), G).err().unwrap()
        };
        assert!(matches!(sealed(8192, true, ALL_SEALS), OutboxError::Size { found: 8192, .. }));
        assert!(matches!(sealed(4096, false, ALL_SEALS), OutboxError::Holes { found: 0, .. }));
        assert!(matches!(sealed(4096, true, ALL_SEALS), OutboxError::Header));
        for missing in ALL_SEALS.iter() {
            if missing != SealFlags::SEAL {
                let seals = ALL_SEALS.difference(missing);
                assert!(matches!(sealed(4096, true, seals), OutboxError::Seals { .. }));
            }
        }
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(accept(file.as_fd(), G), Err(OutboxError::NoMemfd)));
    }

    #[test]
    fn a_sealed_copy_cannot_be_written() {
        let fd = sealed_copy("program", b"bytes").unwrap();
        assert!(rustix::io::write(&fd, b"x").is_err());
    }

    #[test]
    fn blocks_beyond_the_end_do_not_make_up_for_holes() {
        // As a peer makes it that gets its memory elsewhere: nothing allocated inside, as much as
        // is wanted behind.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("hollow", flags).unwrap();
        const G: Geometry = Geometry::DEFAULT;
        let len = G.outbox_bytes() as u64;
        rustix::fs::ftruncate(&fd, len).unwrap();
        let outbox = Outbox::map(fd.as_fd(), G.outbox_bytes()).unwrap();
        for (at, value) in header(G) {
            outbox.u32(at).store(value, Ordering::Relaxed);
        }
        rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, 2 * len, 4 * len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, ALL_SEALS).unwrap();
        check(fd.as_fd(), G, ALL_SEALS).unwrap();
        let refused = accept(fd.as_fd(), G).err();
        assert!(matches!(refused, Some(OutboxError::Holes { .. })), "{refused:?}");
    }
}
