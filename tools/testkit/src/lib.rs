//! What the tests and benches of several crates share.
//!
//! Without features: random numbers and numbers of trials ([`Random`], [`trials`]), sockets that close
//! slowly ([`lingering`]), the tables of the documents ([`documented_rows`]), and tests in a process of
//! their own ([`in_own_process`]). None of ours is a dependency then, so that the lowest crates' tests and
//! their loom models can use them. With the feature `host`, also a coordinator of one's own ([`Host`]),
//! child processes ([`Process`]), what a process holds ([`Held`]) and how long something took it
//! ([`Moment`]), the control protocol spoken by hand ([`Conversation`]), and a coordinator as an older
//! release has it ([`Older`]).
#![forbid(unsafe_code)]

#[cfg(feature = "host")]
mod control;
mod documented;
#[cfg(feature = "host")]
mod held;
#[cfg(feature = "host")]
mod host;
#[cfg(feature = "host")]
mod older;
mod own_process;
#[cfg(feature = "host")]
mod process;
mod random;
mod sockets;

#[cfg(feature = "host")]
pub use control::{Conversation, Fault, PATIENCE, Result, open, proof};
pub use documented::{documented_keys, documented_metrics, documented_rows};
#[cfg(feature = "host")]
pub use held::{Held, Moment, cpu_time};
#[cfg(feature = "host")]
pub use host::{Host, OPEN, alone};
#[cfg(feature = "host")]
pub use older::Older;
pub use own_process::in_own_process;
#[cfg(feature = "host")]
pub use process::Process;
pub use random::{Random, is_full, mix, trials};
pub use sockets::lingering;
