//! The memory of a call, which its worker and its function share.
//!
//! Each call has a *cell*: [`CELL_BYTES`] of addresses that begin at a multiple of that, so that a
//! function finds its [`Header`] by its stack pointer.
//!
//! ```text
//! 0            Header
//! LOG          log lines
//! HEAP         the request and its parameters, then what the function allocates, up to heap_end
//!              (no memory)
//! STACK_TOP    the stack ends here and grows down; below it there is no memory again
//! ```
//!
//! | who writes | fields | when |
//! | --- | --- | --- |
//! | worker | all | before the function is entered; what it does not name is 0 |
//! | function | `status` and all after it | until it has returned |
//!
//! A cell holds zeros when a function is entered, but for what the worker has written. A function may have
//! written anything, anywhere in its cell: the worker reads each field once, when the function has ended,
//! and takes no length or address that leads out of the cell.

/// The addresses of a cell, and what its first one is a multiple of.
pub const CELL_BYTES: usize = 32 << 20;
/// Where log lines are, from the cell's first byte.
pub const LOG: usize = 4 << 10;
/// The most bytes of log lines of a call, with their lengths.
pub const LOG_BYTES: usize = 4 << 10;
/// Where the heap is, from the cell's first byte.
pub const HEAP: usize = LOG + LOG_BYTES;
/// The end of the stack, from the cell's first byte.
pub const STACK_TOP: usize = CELL_BYTES - (1 << 20);
/// The most bytes of an error's text, or of a panic's.
pub const MESSAGE_BYTES: usize = 512;
/// How many sizes of small blocks the heap keeps apart.
pub const CLASSES: usize = 24;

/// How a function has ended, by its own word.
pub mod status {
    /// It has not.
    pub const RUNNING: u32 = 0;
    /// With a reply.
    pub const REPLY: u32 = 1;
    /// With an error: a code and a text.
    pub const ERROR: u32 = 2;
    /// By a panic, with a text.
    pub const PANIC: u32 = 3;
    /// For want of memory.
    pub const MEMORY: u32 = 4;
}

/// Bytes in the cell: an address and a length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// The first bytes of a cell.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Header {
    /// The number of the call.
    pub id: u64,
    /// The request's bytes.
    pub body: Span,
    /// The block of parameters and secrets.
    pub parameters: Span,
    /// The page of [`crate::clock`], which is read-only.
    pub clock: u64,
    /// Where the heap ends.
    pub heap_end: u64,

    /// One of [`status`].
    pub status: u32,
    /// The code of an error.
    pub code: u32,
    /// The reply, or an error's text.
    pub reply: Span,
    /// The bytes of the log that are written.
    pub log_bytes: u64,
    /// The log lines that found no room, or not all of theirs.
    pub log_lost: u64,
    /// Where the heap goes on.
    pub heap_next: u64,
    /// The furthest that it has gone: all beyond it is untouched.
    pub heap_used: u64,
    /// The bytes that the heap did not have, or 0.
    pub wanted: u64,
    /// Free blocks of each size, as lists.
    pub free: [u64; CLASSES],
    /// Free blocks of over [`crate::rt::SMALL`] bytes.
    pub free_large: u64,
    /// The text of a panic.
    pub message: [u8; MESSAGE_BYTES],
}

const _: () = assert!(size_of::<Header>() <= LOG);

/// What a function says when it calls a service, by [`crate::service::call`]. It is in the cell, and so is
/// all that it says.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Outward {
    /// The service's name, the method's path and the request, one behind the other.
    pub message: Span,
    /// The bytes of the name.
    pub service: u32,
    /// The bytes of the path.
    pub method: u32,
    /// The worker writes it: where the reply is, or the status's text.
    pub reply: Span,
    /// The worker writes it: 0, or the status code.
    pub code: u32,
    /// Nothing.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Outward>() == 48);
