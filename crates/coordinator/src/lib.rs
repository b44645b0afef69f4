//! The coordinator: it knows who is who and who may call whom, makes the memory of a link, hands
//! it out and steps aside.
//!
//! No data crosses it, and its death breaks no link. [`state`] decides, without I/O, clock or
//! randomness; [`server`] listens and carries out; [`identity`] asks the kernel who a process is;
//! [`launch`] starts services so that the answer is strong.
#![forbid(unsafe_code)]

pub mod identity;
pub mod launch;
pub mod policy;
pub mod server;
pub mod state;

pub use policy::Policy;
pub use server::{Coordinator, StartError};
