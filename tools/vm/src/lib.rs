//! The machine for tests: an emulated one, whose processor has what the host's may lack.
//!
//! ```text
//!   host (cargo xtask vm-test)                     machine (vm-init, its first process)
//!   builds programs, writes the manifest  ------>  reads /manifest
//!                       in the initial file system
//!   reads the transcript line by line     <------  runs one program after the other
//!                       second serial port         sends what they print, how they end
//!                                                  and the files they leave
//!   judges                                         powers off
//! ```
//!
//! The first serial port is the kernel's console, so no message of the kernel stands within the
//! transcript. Both sides use this crate, so they cannot disagree about either format. A machine
//! that stops early leaves a transcript without its last frame, which is a fault; the host ends a
//! machine that takes too long.

pub mod frame;
pub mod manifest;
pub mod transcript;

/// Where the manifest is in the machine.
pub const MANIFEST: &str = "/manifest";

/// Where programs leave files for the host, in the machine.
pub const LEFT: &str = "/left";

/// Set to 1 for programs in the machine: what needs protection keys must not do without.
pub const INSIDE: &str = "PARTYWALL_VM";

/// Tells programs in the machine the directory for files that the host fetches.
pub const LEFT_VARIABLE: &str = "PARTYWALL_VM_LEFT";

/// The port of the transcript, in the machine.
pub const PORT: &str = "/dev/ttyS1";
