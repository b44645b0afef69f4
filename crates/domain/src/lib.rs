//! Protection domains: programs that share one address space, each a process otherwise, and the
//! gates by which they call each other.
//!
//! ```text
//! launcher (one process)
//!   |- address space: slots of addresses; the heap guarded
//!   |- domain "a": static-pie program in slot 0, own pid, descriptors, handlers, libc
//!   `- domain "b": static-pie program in slot 1, ...
//! ```

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("domains are for Linux on x86-64");

pub mod address_space;
mod arenas;
mod binding;
mod callers;
mod contexts;
pub mod elf;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod gate;
mod handlers;
mod keys;
mod links;
mod load;
pub mod machine;
#[cfg(all(test, loom))]
mod model;
mod page;
mod process;
mod self_query;
mod sigaction;
mod sys;
mod syscalls;
mod table;
pub mod task;
mod watchdog;
