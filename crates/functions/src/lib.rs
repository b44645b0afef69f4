//! The function runtime: small Rust functions that start in microseconds, in workers that they share.
//!
//! ```text
//! source --[source: tokens]--> [builder: rustc, sandboxed] --> object --[verify]--> Image
//! Image --[signed: the builder's key]--> Signed --[dispatcher]--> workers
//! ```
//!
//! Each step takes what came before as hostile. The language keeps a function from what is not its own; the
//! verifier, protection keys, the worker's filter of system calls and its process are there for what the
//! language lets through.

mod archive;
pub mod builder;
pub mod clock;
pub mod crates;
pub mod dispatcher;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod image;
pub mod isolation;
pub mod layout;
pub mod proto;
pub mod runtime;
pub mod sandbox;
pub mod schedule;
pub mod signed;
mod sleep;
pub mod source;
pub mod store;
pub mod verify;
pub mod worker;
