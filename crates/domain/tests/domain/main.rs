//! Domains for real: programs in one address space, and calls between them.

mod bytes;
mod gate;
mod host;
mod programs;
mod rights;
