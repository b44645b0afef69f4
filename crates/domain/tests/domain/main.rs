//! Domains for real: programs in one address space, and calls between them.

mod attacks;
mod bytes;
mod deaths;
mod gate;
mod host;
mod launcher;
mod programs;
mod rights;
mod soak;
mod stray;
