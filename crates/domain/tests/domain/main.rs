//! Domains for real: programs in one address space, and calls between them.

mod gate;
mod host;
mod programs;
