//! What the tests and benches of several crates share.
//!
//! Without features: random numbers and numbers of trials ([`Random`], [`trials`]) and sockets that close
//! slowly ([`lingering`]), without dependencies of ours, so that the lowest crates' tests and their loom
//! models can use them. With the feature `host`, also a
//! coordinator of one's own ([`Host`]), child processes ([`Process`]), what a process holds ([`Held`])
//! and how long something took it ([`Moment`]), and the control protocol spoken by hand
//! ([`Conversation`]).
#![forbid(unsafe_code)]

#[cfg(feature = "host")]
mod control;
#[cfg(feature = "host")]
mod held;
#[cfg(feature = "host")]
mod host;
#[cfg(feature = "host")]
mod process;
mod random;
mod sockets;

#[cfg(feature = "host")]
pub use control::{Conversation, Fault, PATIENCE, Result, open, proof};
#[cfg(feature = "host")]
pub use held::{Held, Moment, cpu_time};
#[cfg(feature = "host")]
pub use host::{Host, OPEN, alone};
#[cfg(feature = "host")]
pub use process::Process;
pub use random::{Random, is_full, mix, trials};
pub use sockets::lingering;
