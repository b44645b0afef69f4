#![allow(unsafe_code, reason = "slices of memory that two domains share")]
//! Functions over bytes: the caller puts what it passes into the link's arena, the callee reads it
//! there and writes its answer beside it, and the caller reads that in place.
//!
//! ```text
//! caller                                     callee
//!   Function::call(bytes, limit, read)         guest.serve(|entered| entered.bytes(function))
//!     copies bytes into the arena              .
//!     gate ================================>   function(&request, &mut reply)
//!     read(&reply) <=======================    .
//! ```
//!
//! A byte is copied once on its way to the callee, and not at all when it is put into the arena in the
//! first place ([`Function::call_with`]); never on its way back. With protection keys nobody else
//! reaches it meanwhile: the arena is open to the caller's thread while it writes or reads there, to
//! the callee while it is called, and to no other thread. Without, any domain of the launcher could
//! write to it at any time, as it could to all other memory.
//!
//! An arena holds requests and answers of up to a gigabyte each, and keeps as much memory as the longest
//! of them took until the link ends.
//!
//! A call that is ended in the middle may leave a system call of the callee under way that writes
//! there: the arena is not used again.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;

use partywall_abi::domain::{GateStatus, HALF};

use crate::{Entered, Guest, Link};

/// What a function that does not take bytes, or that got what is no request, answers.
const REFUSED: u64 = u64::MAX - 1;

/// Why a call over bytes has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The gate's own word.
    #[error("the call ended with {0:?}")]
    Gate(GateStatus),
    /// More than an arena holds.
    #[error("{0} bytes are more than an arena holds ({HALF})")]
    TooLong(usize),
    /// The function has panicked, or is none over bytes.
    #[error("the function has panicked, or takes no bytes")]
    Refused,
    /// A call on this link was ended in the middle: take another one.
    #[error("a call on this link was ended in the middle; its arena is not used again")]
    Spent,
}

/// A function of another domain over bytes, for one thread at a time.
///
/// ```no_run
/// use std::time::Duration;
/// use partywall_guest::{Guest, bytes::Function};
///
/// # fn caller(guest: Guest, number: u64) -> Result<(), Box<dyn std::error::Error>> {
/// let mut shout = Function::take(guest, number)?;
/// let text = shout.call(b"hello", Duration::from_millis(10), |answer| answer.to_vec())?;
/// assert_eq!(text, b"HELLO");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Function {
    guest: Guest,
    link: Link,
    arena: NonNull<u8>,
    spent: Cell<bool>,
}

// SAFETY: the arena belongs to the link, and whoever has this value is its only user.
unsafe impl Send for Function {}

impl Function {
    /// Takes up the offer with this number.
    ///
    /// # Errors
    /// `ENOENT` when there is none for this program, `EINVAL` when this program has made it,
    /// `ENOSPC` when no protection key is left, `ENOMEM` where two gigabytes of addresses are too many: under
    /// RLIMIT_DATA or RLIMIT_AS, or with vm.overcommit_memory=2.
    pub fn take(guest: Guest, number: u64) -> io::Result<Self> {
        let link = guest.take(number)?;
        let arena = guest.arena(link).inspect_err(|_| guest.release(link))?;
        Ok(Self { guest, link, arena, spent: Cell::new(false) })
    }

    /// Calls with `request`, which is copied once; `read` gets the answer in place.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call<R>(
        &mut self,
        request: &[u8],
        limit: Duration,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, CallError> {
        self.call_with(request.len(), |to| to.copy_from_slice(request), limit, read)
    }

    /// Calls with what `write` puts into the `bytes` of the arena that it gets, which hold what was
    /// there before.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call_with<R>(
        &mut self,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
        limit: Duration,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, CallError> {
        if self.spent.get() {
            return Err(CallError::Spent);
        }
        if bytes as u64 > HALF {
            return Err(CallError::TooLong(bytes));
        }
        // A thread's first call gives it the rights of its domain's code: before the arena is open.
        let caller = self.guest.caller().map_err(CallError::Gate)?;
        let _open = Open::new(self)?;
        // SAFETY: the first half of the arena, open to this thread, which alone uses it: no call is
        // under way.
        write(unsafe { std::slice::from_raw_parts_mut(self.arena.as_ptr(), bytes) });
        let called = self.guest.call_as(caller, self.link, [bytes as u64, 0, 0], limit);
        let answered = called.map_err(|why| {
            use GateStatus::{Deadline, Died, Fault, SystemCall};
            self.spent.set(matches!(why, Fault | Deadline | Died | SystemCall));
            CallError::Gate(why)
        })?;
        if answered > HALF {
            return Err(CallError::Refused);
        }
        // SAFETY: the second half follows the first.
        let reply = unsafe { self.arena.add(HALF as usize) };
        // SAFETY: within the second half, as for the first; the callee has written there, or nobody,
        // and then it is zeros.
        Ok(read(unsafe { std::slice::from_raw_parts(reply.as_ptr(), answered as usize) }))
    }
}

/// The arena is open to this thread as long as this lives.
struct Open<'a>(&'a Function);

impl<'a> Open<'a> {
    #[inline]
    fn new(function: &'a Function) -> Result<Self, CallError> {
        let opened = function.guest.open(function.link, true);
        opened.map_err(|_| CallError::Gate(GateStatus::Closed))?;
        Ok(Self(function))
    }
}

impl Drop for Open<'_> {
    #[inline]
    fn drop(&mut self) {
        let _closed = self.0.guest.open(self.0.link, false);
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        self.guest.release(self.link);
    }
}

/// Where a function writes its answer: in place.
#[derive(Debug)]
pub struct Reply<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl Reply<'_> {
    /// The answer becomes these many bytes, which hold what was there before: the caller gets all of
    /// them.
    ///
    /// # Errors
    /// [`CallError::TooLong`].
    pub fn take(&mut self, bytes: usize) -> Result<&mut [u8], CallError> {
        let room = self.room.get_mut(..bytes).ok_or(CallError::TooLong(bytes))?;
        self.used = bytes;
        Ok(room)
    }
}

impl io::Write for Reply<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = &mut self.room[self.used..];
        let written = rest.write(bytes)?;
        self.used += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Entered<'_> {
    /// Runs a function over what the caller has put into the arena; what to return to the gate.
    ///
    /// ```no_run
    /// # use std::io::Write;
    /// # fn callee(guest: partywall_guest::Guest) {
    /// guest.serve(|entered| {
    ///     entered.bytes(|request, reply| {
    ///         reply.write_all(&request.to_ascii_uppercase()).expect("it is as long as the request")
    ///     })
    /// });
    /// # }
    /// ```
    pub fn bytes(self, function: impl FnOnce(&[u8], &mut Reply<'_>)) -> u64 {
        let (Some(arena), Ok(bytes)) = (self.arena, usize::try_from(self.words[0])) else {
            return REFUSED;
        };
        if bytes as u64 > HALF {
            return REFUSED;
        }
        // SAFETY: the first half of the arena that the gate has named, open to this thread; the caller
        // is in here. Pages that nobody has written are zeros.
        let request = unsafe { std::slice::from_raw_parts(arena.as_ptr(), bytes) };
        // SAFETY: the arena has two halves.
        let second = unsafe { arena.add(HALF as usize) };
        // SAFETY: as for the first; nobody reads it before this returns.
        let room = unsafe { std::slice::from_raw_parts_mut(second.as_ptr(), HALF as usize) };
        let mut reply = Reply { room, used: 0 };
        function(request, &mut reply);
        reply.used as u64
    }
}
