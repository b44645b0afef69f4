//! The coordinator: it knows who is who and who may call whom, makes the memory of a link, hands
//! it out and steps aside.
//!
//! No data crosses it, and its death breaks no link. [`state`] decides, without I/O, clock or
//! randomness, and [`quota`] says what each may have; `event_loop` listens and carries out, `ready` says
//! whose turn it is, `peer` is one control socket, `handout` the memory of links; [`identity`] asks the
//! kernel who a process is, [`container`] finds its container, [`engine`] asks what that was made of,
//! and `measure` does so, and measures programs, on other threads; [`audit`] writes down what happened
//! and `telemetry` counts it; [`launch`] starts services so that the answer is strong; [`trust`]
//! certifies their keys, [`signatures`] has those of programs, and [`workload`] lets another part of this
//! process speak for those that know no control protocol.
#![forbid(unsafe_code)]

pub mod audit;
pub mod container;
pub mod engine;
mod event_loop;
mod handout;
pub mod identity;
pub mod launch;
mod measure;
mod peer;
pub mod place;
pub mod policy;
pub mod quota;
mod ready;
pub mod server;
pub mod signatures;
pub mod state;
mod telemetry;
pub mod trust;
pub mod workload;

pub use policy::Policy;
pub use server::{Coordinator, Listen, Options, StartError, Workloads};
