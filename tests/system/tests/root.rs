//! What needs several users at once, and so root. Built with the feature `root` only; the step `root` of
//! `cargo xtask test` runs it.

#[path = "system/attacks.rs"]
mod attacks;
#[allow(dead_code, reason = "shared with the other binary")]
#[path = "system/host.rs"]
mod host;
#[path = "system/many.rs"]
mod many;
#[path = "system/others.rs"]
mod others;

use host::{Host, Process};

/// A client of another user.
fn client_of(host: &Host, uid: u32, arguments: &[&str]) -> Process {
    Process::start(env!("CARGO_BIN_EXE_st-client"), &host.socket, arguments, &[], Some(uid))
}
