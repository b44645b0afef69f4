//! Word count as a plain tonic service and client.
//!
//! The binaries come in pairs: `grpc-server` and `grpc-client` use tonic over a Unix socket,
//! `server` and `client` use Partywall. The two of a pair differ in one line; everything else is
//! here. `large-client` is Partywall's alone.

pub mod client;
mod count;
pub mod large;
mod report;
pub mod server;
mod service;

use std::{fmt::Write, process::ExitCode};

pub use service::Counter;

/// The generated messages, service and client.
#[allow(missing_docs)]
pub mod proto {
    tonic::include_proto!("partywall.wordcount.v1");
}

/// The messages and the client once more, as Partywall's generator makes them.
#[allow(missing_docs)]
pub mod native {
    include!(concat!(env!("OUT_DIR"), "/native/partywall.wordcount.v1.rs"));
}

/// The longest message that is accepted: the most that protobuf allows.
pub const MESSAGE_LIMIT: usize = i32::MAX as usize;

/// Any error.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Ends a program: prints an error with what caused it.
fn exit(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", whole(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes in one line.
fn whole(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let added = error.to_string();
        if !text.ends_with(&added) {
            let _ = write!(text, ": {added}");
        }
        cause = error.source();
    }
    text
}
