//! grpc-go's own interoperability client, built from its module and pointed at a server.

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The client's module path and version.
pub const PACKAGE: &str = "google.golang.org/grpc/interop/client@v1.85.0";

/// The cases that need neither credentials nor any other service.
pub const CASES: [&str; 16] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
    "channel_soak",
];

const CASE_LIMIT: Duration = Duration::from_secs(30);
const BINARY: &str = "grpc-interop-client-v1.85.0";

/// Why the Go client could not be built or did not pass.
///
/// Its `Debug` form is its message, so that a test which returns it shows what went wrong.
#[derive(thiserror::Error)]
pub enum GoClientError {
    /// There is no Go tool chain.
    #[error("`go` is not on PATH; a Go tool chain is needed to build {PACKAGE}")]
    NoGo,
    /// A file or process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// `go install` failed.
    #[error("go install {PACKAGE} failed:\n{output}")]
    Build {
        /// What it printed.
        output: String,
    },
    /// A case did not pass.
    #[error("Go client, {case}: {outcome}\n{output}")]
    Case {
        /// Name of the case.
        case: &'static str,
        /// How the client ended.
        outcome: String,
        /// What it printed.
        output: String,
    },
}

impl fmt::Debug for GoClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> GoClientError {
    let what = what.into();
    move |source| GoClientError::Io { what, source }
}

/// Runs all of [`CASES`] against the server at `addr` and returns how many passed.
///
/// The client is kept in the `tmp` directory of the cargo target that the running program
/// belongs to. Blocks; not to be called from async code that serves `addr` on the same thread.
pub fn run_all(addr: SocketAddr) -> Result<usize, GoClientError> {
    run_all_in(&target_tmp(), addr)
}

/// As [`run_all`], with the client kept in `dir`.
pub fn run_all_in(dir: &Path, addr: SocketAddr) -> Result<usize, GoClientError> {
    let client = build(dir)?;
    for case in CASES {
        let start = Instant::now();
        run_case(&client, addr, case)?;
        println!("go {case:<30} ok {:>6} ms", start.elapsed().as_millis());
    }
    Ok(CASES.len())
}

/// Builds the client in `dir`, unless it is there, and returns its path.
pub fn build(dir: &Path) -> Result<PathBuf, GoClientError> {
    let client = dir.join(BINARY);
    if client.is_file() {
        return Ok(client);
    }
    // Built aside and renamed, so that another process never sees half a file.
    let stage = dir.join(format!("{BINARY}.{}", std::process::id()));
    std::fs::create_dir_all(&stage).map_err(io("creating the build directory"))?;
    let result = install(&stage).and_then(|()| {
        std::fs::rename(stage.join("client"), &client).map_err(io("keeping the client"))
    });
    let removed = std::fs::remove_dir_all(&stage).map_err(io("removing the build directory"));
    result.and(removed).map(|()| client)
}

fn install(bin: &Path) -> Result<(), GoClientError> {
    let built = Command::new("go").args(["install", PACKAGE]).env("GOBIN", bin).output();
    let built = built.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => GoClientError::NoGo,
        _ => io("running go install")(error),
    })?;
    if built.status.success() {
        return Ok(());
    }
    Err(GoClientError::Build { output: String::from_utf8_lossy(&built.stderr).into_owned() })
}

/// Runs one case with a client from [`build`].
pub fn run_case(client: &Path, addr: SocketAddr, case: &'static str) -> Result<(), GoClientError> {
    let mut command = Command::new(client);
    command
        .arg(format!("--server_host={}", addr.ip()))
        .arg(format!("--server_port={}", addr.port()))
        .arg(format!("--test_case={case}"))
        .env("GRPC_GO_LOG_SEVERITY_LEVEL", "info")
        .env_remove("GRPC_GO_LOG_FORMATTER")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"] {
        command.env_remove(proxy);
    }
    let mut child = command.spawn().map_err(io("starting the Go client"))?;
    let mut stderr = child.stderr.take();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stderr.as_mut().map(|pipe| pipe.read_to_end(&mut bytes));
        read.transpose().map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(io("waiting for the Go client"))? {
            Some(status) => break Some(status),
            None if start.elapsed() > CASE_LIMIT => {
                child.kill().map_err(io("ending the Go client"))?;
                child.wait().map_err(io("waiting for the Go client"))?;
                break None;
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let output = match reader.join() {
        Ok(read) => read.map_err(io("reading from the Go client"))?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    // The client says so when it has run a case to its end.
    let done = output.lines().any(|line| line.contains("[interop]") && line.ends_with(" done"));
    let outcome = match status {
        None => format!("not done within {CASE_LIMIT:?}"),
        Some(status) if !status.success() => status.to_string(),
        Some(_) if !done => "ended without saying done".to_owned(),
        Some(_) => return Ok(()),
    };
    Err(GoClientError::Case { case, outcome, output })
}

/// The `tmp` directory of the cargo target around the running program; the system's own if the
/// program is not inside one.
pub(crate) fn target_tmp() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    target.map_or_else(std::env::temp_dir, |dir| dir.join("tmp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_kept_in_the_cargo_target() {
        let tmp = target_tmp();
        assert!(tmp.ends_with("tmp"), "{tmp:?}");
        assert!(tmp.with_file_name("CACHEDIR.TAG").is_file(), "{tmp:?}");
    }

    #[test]
    fn errors_show_their_message_in_both_forms() {
        let error = GoClientError::NoGo;
        assert!(error.to_string().starts_with("`go` is not on PATH"), "{error}");
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
