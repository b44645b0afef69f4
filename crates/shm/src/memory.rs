//! Outboxes as memfds: who makes them, who pays for them, who seals them, and what is checked.
//!
//! ```text
//! coordinator   memfd_create, its size, seal SHRINK|GROW; no page              [`create`]
//!      | the outbox for writing, to its owner
//! owner         map for writing, seal FUTURE_WRITE|SEAL                        [`adopt`]
//!      |          (a caller fills it then: [`fill_own`])
//! coordinator   look that it is sealed                                         [`Kept::sealed`]
//!      | the outbox for reading, to its reader
//! reader        check: a memfd, all four seals, the size; map read-only        [`accept`]
//!                 (a caller fills the server's outbox by reading it: [`fill_peers`])
//! ```
//!
//! # Who pays
//!
//! A page is charged to the process that touches it first. The caller of a link touches all pages
//! of both outboxes, its own by writing and the server's by reading; then the server looks that both
//! are [`whole`], and only then touches them. So a link that is asked for and not used costs who asked,
//! and no access can fault for want of a page: nobody can punch a hole any more.
//!
//! # Who can write
//!
//! After `F_SEAL_SEAL` no seal can be added, and a writable mapping made before
//! `F_SEAL_FUTURE_WRITE` stays: the owner's, which is the only one, since nobody else has had the
//! outbox for writing. The reader has it for reading; it cannot open it anew for writing through
//! /proc, since the mode allows that to the coordinator's user alone, and for that user, too, it is
//! given to others only when it is sealed. See memfd_create(2), fcntl(2) "File Sealing".

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use partywall_abi::layout::{self, Geometry};
use partywall_abi::sync::Ordering;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use crate::failpoint::failpoint;
use crate::kept::Kept;
use crate::region::{Inbox, Outbox};

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

    fn call(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { call, source }
    }
}

/// A fresh outbox, as the coordinator hands it out.
#[derive(Debug)]
pub struct Handout {
    /// For its owner.
    pub writer: OwnedFd,
    /// For the process that reads it, once it is sealed.
    pub reader: OwnedFd,
    /// For the coordinator.
    pub kept: Kept,
}

/// Makes an outbox without a page: the coordinator's part.
///
/// # Errors
/// [`OutboxError::Io`]; EMFILE when descriptors have run out.
pub fn create(geometry: Geometry) -> Result<Handout, OutboxError> {
    let fd = rustix::fs::memfd_create(
        "partywall-outbox",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )
    .map_err(OutboxError::io("memfd_create"))?;
    let len = geometry.outbox_bytes() as u64;
    rustix::fs::ftruncate(&fd, len).map_err(OutboxError::io("ftruncate"))?;
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(OutboxError::io("fchmod"))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
        .map_err(OutboxError::io("fcntl(F_ADD_SEALS)"))?;
    // A file of its own for each: the kernel counts writers and readers by the file they opened.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let open = |flags: OFlags| {
        rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())
            .map_err(OutboxError::io("open(/proc/self/fd)"))
    };
    Ok(Handout {
        writer: open(OFlags::RDWR)?,
        reader: open(OFlags::RDONLY)?,
        kept: Kept::new(open(OFlags::RDONLY)?),
    })
}

/// Maps and seals the outbox that this process writes. Nothing is touched.
///
/// # Errors
/// As [`accept`], with the two seals of [`create`] in place of all four.
pub fn adopt(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Outbox, OutboxError> {
    check(fd, geometry, SealFlags::SHRINK | SealFlags::GROW)?;
    let outbox = Outbox::map(fd, geometry.outbox_bytes()).map_err(OutboxError::call("mmap"))?;
    failpoint("setup.mapped");
    rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
        .map_err(OutboxError::io("fcntl(F_ADD_SEALS)"))?;
    failpoint("setup.sealed");
    Ok(outbox)
}

/// Pays for the outbox that this process writes: the caller's part.
///
/// Blocks for as long as the kernel needs to clear its pages, about a millisecond for 4 MiB.
///
/// # Errors
/// [`OutboxError::Io`] when memory has run out.
pub fn fill_own(outbox: &Outbox) -> Result<(), OutboxError> {
    outbox.populate().map_err(OutboxError::call("madvise(MADV_POPULATE_WRITE)"))
}

/// Pays for the outbox that the server writes: the caller's part. Blocks as [`fill_own`].
///
/// # Errors
/// [`OutboxError::Io`] when memory has run out.
pub fn fill_peers(inbox: &Inbox) -> Result<(), OutboxError> {
    inbox.populate().map_err(OutboxError::call("madvise(MADV_POPULATE_READ)"))
}

/// Writes what an outbox says of itself. Every page is there.
pub fn begin(outbox: &Outbox, geometry: Geometry) {
    for (at, value) in header(geometry) {
        outbox.u32(at).store(value, Ordering::Relaxed);
    }
}

/// Checks what an outbox says of itself.
///
/// # Errors
/// [`OutboxError::Header`].
pub fn begun(inbox: &Inbox, geometry: Geometry) -> Result<(), OutboxError> {
    let agrees = |(at, value)| inbox.load_u32(at, Ordering::Relaxed) == value;
    if header(geometry).into_iter().all(agrees) { Ok(()) } else { Err(OutboxError::Header) }
}

/// Checks and maps the outbox that the peer writes. Nothing is touched.
///
/// # Errors
/// Each variant of [`OutboxError`] is one check that failed.
pub fn accept(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Inbox, OutboxError> {
    sealed(fd, geometry)?;
    Inbox::map(fd, geometry.outbox_bytes()).map_err(OutboxError::call("mmap"))
}

/// Checks that an outbox has the right size, and that its owner has sealed it.
///
/// # Errors
/// [`OutboxError::Seals`], [`OutboxError::Size`], [`OutboxError::NoMemfd`], [`OutboxError::Io`].
pub fn sealed(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<(), OutboxError> {
    check(fd, geometry, ALL_SEALS)
}

/// Checks that every page of an outbox is there.
///
/// # Errors
/// [`OutboxError::Holes`], [`OutboxError::Io`].
pub fn whole(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<(), OutboxError> {
    let stat = rustix::fs::fstat(fd).map_err(OutboxError::io("fstat"))?;
    let (found, wanted) = (stat.st_blocks as u64 * 512, geometry.outbox_bytes() as u64);
    if found < wanted { Err(OutboxError::Holes { found, wanted }) } else { Ok(()) }
}

impl Kept {
    /// Checks that the writer has sealed it, so that nobody else can ever write it.
    ///
    /// # Errors
    /// [`OutboxError::Seals`], [`OutboxError::Size`], [`OutboxError::Io`].
    pub fn sealed(&self, geometry: Geometry) -> Result<(), OutboxError> {
        sealed(self.as_fd(), geometry)
    }

    /// Checks that every page is there, and paid for.
    ///
    /// # Errors
    /// [`OutboxError::Holes`], [`OutboxError::Io`].
    pub fn whole(&self, geometry: Geometry) -> Result<(), OutboxError> {
        whole(self.as_fd(), geometry)
    }
}

fn header(g: Geometry) -> [(usize, u32); 4] {
    [
        (layout::MAGIC_AT, layout::MAGIC),
        (layout::VERSION_AT, partywall_abi::VERSION.into()),
        (layout::SLOTS_AT, g.slots()),
        (layout::ARENA_BYTES_AT, g.arena_bytes()),
    ]
}

fn check(fd: BorrowedFd<'_>, geometry: Geometry, wanted: SealFlags) -> Result<(), OutboxError> {
    // Only memfds (and hugetlbfs) answer this call.
    let found = match rustix::fs::fcntl_get_seals(fd) {
        Ok(found) => found,
        Err(rustix::io::Errno::INVAL) => return Err(OutboxError::NoMemfd),
        Err(errno) => return Err(OutboxError::io("fcntl(F_GET_SEALS)")(errno)),
    };
    if !found.contains(wanted) {
        return Err(OutboxError::Seals { found: found.bits(), wanted: wanted.bits() });
    }
    let stat = rustix::fs::fstat(fd).map_err(OutboxError::io("fstat"))?;
    let (found, wanted) = (stat.st_size as u64, geometry.outbox_bytes() as u64);
    if found == wanted { Ok(()) } else { Err(OutboxError::Size { found, wanted }) }
}

/// How long the kernel may have pages of its own.
const SEALING: Duration = Duration::from_secs(10);

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
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    let begin = Instant::now();
    loop {
        match rustix::fs::fcntl_add_seals(fd.as_fd(), seals) {
            // The kernel itself still has some pages: it has waited for a moment (mm/memfd.c), which is short
            // where the processors are busy.
            Err(rustix::io::Errno::BUSY) if begin.elapsed() < SEALING => {}
            sealed => break sealed?,
        }
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::fs::FallocateFlags;

    const G: Geometry = match Geometry::new(2, 64) {
        Ok(g) => g,
        Err(_) => panic!("a geometry"),
    };

    #[test]
    fn outbox_goes_from_maker_to_owner_and_reader() {
        let Handout { writer, reader, kept } = create(G).unwrap();
        assert!(matches!(kept.sealed(G), Err(OutboxError::Seals { .. })));
        let outbox = adopt(writer.as_fd(), G).unwrap();
        kept.sealed(G).unwrap();
        let inbox = accept(reader.as_fd(), G).unwrap();
        begin(&outbox, G);
        begun(&inbox, G).unwrap();
        outbox.u32(layout::BELL_AT).store(5, Ordering::Release);
        assert_eq!(inbox.load_u32(layout::BELL_AT, Ordering::Acquire), 5);
    }

    #[test]
    fn a_fresh_outbox_costs_its_maker_nothing_and_who_fills_it_all() {
        const G: Geometry = Geometry::WIDE;
        let blocks = |kept: &Kept| match kept.whole(G) {
            Ok(()) => G.outbox_bytes() as u64,
            Err(OutboxError::Holes { found, .. }) => found,
            Err(other) => panic!("{other}"),
        };
        let Handout { writer, reader, kept } = create(G).unwrap();
        let outbox = adopt(writer.as_fd(), G).unwrap();
        let inbox = accept(reader.as_fd(), G).unwrap();
        assert_eq!(blocks(&kept), 0, "made, mapped and sealed");
        fill_peers(&inbox).unwrap();
        whole(reader.as_fd(), G).unwrap();
        drop((outbox, inbox));
        let Handout { writer, kept, .. } = create(G).unwrap();
        let outbox = adopt(writer.as_fd(), G).unwrap();
        fill_own(&outbox).unwrap();
        kept.whole(G).unwrap();
    }

    #[test]
    fn an_adopted_outbox_cannot_be_written_any_other_way() {
        let Handout { writer, .. } = create(G).unwrap();
        let _outbox = adopt(writer.as_fd(), G).unwrap();
        assert!(Outbox::map(writer.as_fd(), G.outbox_bytes()).is_err());
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(Outbox::map(again.as_fd(), G.outbox_bytes()).is_err());
        assert!(rustix::io::write(&again, b"x").is_err());
        assert!(rustix::fs::ftruncate(&again, 0).is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&again, punch, 0, 4096).is_err());
    }

    #[test]
    fn fresh_outbox_cannot_shrink_grow_or_get_blocks_past_its_end() {
        let Handout { writer, reader, .. } = create(G).unwrap();
        assert!(rustix::fs::ftruncate(&writer, 0).is_err());
        assert!(rustix::fs::ftruncate(&writer, 1 << 20).is_err());
        let beyond = rustix::fs::fallocate(&writer, FallocateFlags::KEEP_SIZE, 1 << 20, 4096);
        assert!(beyond.is_err());
        assert!(Outbox::map(reader.as_fd(), G.outbox_bytes()).is_err(), "it is for reading");
        assert!(rustix::fs::fcntl_add_seals(&reader, SealFlags::SEAL).is_err());
    }

    #[test]
    fn outbox_of_wrong_kind_is_refused_with_reason() {
        let with = |len: u64, seals: SealFlags| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("x", flags).unwrap();
            rustix::fs::ftruncate(&fd, len).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let refused = |fd: OwnedFd| accept(fd.as_fd(), G).err().unwrap();
        assert!(matches!(refused(with(8192, ALL_SEALS)), OutboxError::Size { found: 8192, .. }));
        for missing in ALL_SEALS.iter() {
            if missing != SealFlags::SEAL {
                let seals = ALL_SEALS.difference(missing);
                assert!(matches!(refused(with(4096, seals)), OutboxError::Seals { .. }));
            }
        }
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(matches!(refused(file), OutboxError::NoMemfd));
        let hollow = with(4096, ALL_SEALS);
        let holes = whole(hollow.as_fd(), G).unwrap_err();
        assert!(matches!(holes, OutboxError::Holes { found: 0, .. }));
        let inbox = accept(hollow.as_fd(), G).unwrap();
        assert!(matches!(begun(&inbox, G), Err(OutboxError::Header)));
    }

    #[test]
    fn a_sealed_copy_cannot_be_written() {
        let fd = sealed_copy("program", b"bytes").unwrap();
        assert!(rustix::io::write(&fd, b"x").is_err());
    }
}
