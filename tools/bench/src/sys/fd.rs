#![allow(unsafe_code, reason = "a child takes inherited descriptors by number")]
//! Descriptors that cross the exec of a child.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Lets the next child inherit `fd`.
pub fn inherit(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfd(fd, FdFlags::empty())?)
}

/// Takes ownership of a descriptor this process was started with; it is closed on the next exec.
///
/// # Safety
/// Nothing else in this process may own or close `number`.
pub unsafe fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only queried; a closed number is reported as an error below.
    let probe = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(probe)?;
    fcntl_setfd(probe, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and the caller promises that it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
