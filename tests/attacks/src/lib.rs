//! Attacks of hostile processes.
#![forbid(unsafe_code)]

mod by_hand;
pub mod clock;
mod town;

use std::io::IsTerminal;

use partywall_interop::proto::{Payload, SimpleRequest, SimpleResponse};

pub use by_hand::{Answer, Hand, call_head, good_answer, message, name, register, silently};
pub use town::{Programs, Town, Victim};

/// The method that callers call.
pub const UNARY: &str = "/grpc.testing.TestService/UnaryCall";

/// A request whose answer repeats `size` bytes that `seed` determines.
pub fn request(seed: u64, size: usize) -> SimpleRequest {
    let body: Vec<u8> = (0..size).map(|i| (seed as usize + i * 7) as u8).collect();
    let payload = Some(Payload { body: body.into(), ..Payload::default() });
    SimpleRequest { response_size: size as i32, payload, ..SimpleRequest::default() }
}

/// Whether the answer repeats the request's payload.
pub fn is_answer(request: &SimpleRequest, reply: &SimpleResponse) -> bool {
    let body = |p: &Option<Payload>| p.as_ref().map(|p| p.body.clone()).unwrap_or_default();
    body(&request.payload) == body(&reply.payload)
}

/// A victim's log, on its standard error, in the form that its tests look for.
pub fn log_to_stderr() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).without_time();
    log.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
}
