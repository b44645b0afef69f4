//! What the processes of the system tests share.
#![forbid(unsafe_code)]

mod stubs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use bytes::Bytes;
use partywall::{Channel, Endpoint};
use partywall_interop::proto::{Payload, SimpleRequest, SimpleResponse};

pub use stubs::{Blocking, Caller, Stubs, counted, went, with};

/// The method that every test calls.
pub const UNARY: &str = "/grpc.testing.TestService/UnaryCall";

/// Calls at once of a client that calls without end.
pub const FLOOD: u64 = 16;

/// What the messages of a flood travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Records of the ring.
    Records,
    /// Parcels, where the policy lets descriptors cross.
    Parcels,
}

impl Load {
    /// Bytes of the message with this number.
    pub fn bytes(self, n: u64) -> usize {
        match self {
            Self::Records => 64 + (n as usize * 37) % 3000,
            Self::Parcels => 140_000 + (n as usize * 7919) % 100_000,
        }
    }
}

/// A request whose answer repeats `size` bytes that `seed` determines.
pub fn request(seed: u64, size: usize) -> SimpleRequest {
    let body = Bytes::from((0..size).map(|i| (seed as usize + i * 7) as u8).collect::<Vec<_>>());
    let payload = Some(Payload { body, ..Payload::default() });
    SimpleRequest { response_size: size as i32, payload, ..SimpleRequest::default() }
}

/// Whether the answer repeats the request's payload.
pub fn is_answer(request: &SimpleRequest, reply: &SimpleResponse) -> bool {
    let body = |p: &Option<Payload>| p.as_ref().map(|p| p.body.clone()).unwrap_or_default();
    body(&request.payload) == body(&reply.payload)
}

/// A channel to `test`, as soon as somebody serves it.
///
/// # Panics
/// When the coordinator at `socket` does not let this process.
pub async fn connect(socket: &Path) -> Channel {
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(socket);
    endpoint.wait_for_ready(true).connect().await.expect("a channel")
}

/// Limits this process's open descriptors, if there is a limit.
///
/// # Errors
/// What setrlimit(2) says.
pub fn limit_descriptors(limit: Option<u64>) -> std::io::Result<()> {
    if limit.is_some() {
        let limit = rustix::process::Rlimit { current: limit, maximum: limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    }
    Ok(())
}

/// Names a directory with the programs that can be domains, built beforehand: for machines without Cargo.
const BUILT: &str = "PARTYWALL_DOMAIN_PROGRAMS";

/// `st-server` and `st-client` as programs that can be domains, built now if they are not.
///
/// # Panics
/// If they cannot be built, with what cargo says.
pub fn domain_programs() -> &'static [PathBuf; 2] {
    static PROGRAMS: OnceLock<[PathBuf; 2]> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        if let Some(dir) = std::env::var_os(BUILT).map(PathBuf::from) {
            return ["st-server", "st-client"].map(|name| dir.join(name));
        }
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        // Macros and build scripts are there already: the flags are not for them.
        let target = root.join("target");
        let output = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--package", "partywall-system-tests"])
            .args(["--bin", "st-server", "--bin", "st-client"])
            .args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"])
            .arg(&target)
            .env_remove("RUSTFLAGS")
            .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
            .current_dir(&root)
            .output()
            .expect("cargo starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let built = target.join("x86_64-unknown-linux-gnu/debug");
        ["st-server", "st-client"].map(|name| built.join(name))
    })
}
