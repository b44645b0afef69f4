//! The operating system as the benches need it: clocks, placement, shared mappings, futexes.

pub mod clock;
pub mod cpu;
pub mod fd;
pub mod futex;
pub mod handoff;
pub mod parent;
pub mod shared;
pub mod stop;
