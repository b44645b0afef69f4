//! The coordinator: it knows who is who and who may call whom, makes the memory of a link, hands
//! it out and steps aside.
//!
//! No data crosses it, and its death breaks no link. [`state`] decides, without I/O, clock or
//! randomness; `event_loop` listens and carries out, `peer` is one control socket; [`identity`] asks
//! the kernel who a process is, `measure` what its program file holds; [`launch`] starts services
//! so that the answer is strong.
#![forbid(unsafe_code)]

mod event_loop;
pub mod identity;
pub mod launch;
mod measure;
mod peer;
pub mod policy;
pub mod server;
pub mod state;

pub use policy::Policy;
pub use server::{Coordinator, StartError};
