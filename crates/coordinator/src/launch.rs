//! Starting services so that their identity is strong.
//!
//! The program file is read once into a memfd, sealed, measured, and run from there; the process
//! gets a socket to the coordinator that nobody else ever had, and an environment that holds
//! nothing but what is given. So the digest is that of the bytes that run, whatever happens to
//! the file.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;

use partywall_shm::spawn::{self, Program, SOCKET_NUMBER};
use partywall_shm::{memory, socket};

use crate::identity;
use crate::server::{Coordinator, Started};

/// Environment variable by which a started process finds its socket.
pub const SOCKET_VARIABLE: &str = "PARTYWALL_FD";

/// What to start.
#[derive(Debug, Clone)]
pub struct Service {
    /// The name that it is known by; the policy's principal of the same name covers it.
    pub name: String,
    /// The program file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, beside [`SOCKET_VARIABLE`], `PATH` and `LANG`.
    pub environment: Vec<(String, String)>,
    /// Its working directory.
    pub directory: PathBuf,
}

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
#[error("service `{name}`: {step} {}: {source}", .program.display())]
pub struct LaunchError {
    /// The service.
    pub name: String,
    /// The program file.
    pub program: PathBuf,
    /// What was being done.
    pub step: &'static str,
    /// What went wrong.
    pub source: io::Error,
}

/// Starts a service and makes it known to the coordinator.
///
/// The service dies with the calling thread.
///
/// # Errors
/// [`LaunchError`].
pub fn start(coordinator: &Coordinator, service: &Service) -> Result<Child, LaunchError> {
    let fail = |step: &'static str| {
        move |source: io::Error| LaunchError {
            name: service.name.clone(),
            program: service.program.clone(),
            step,
            source,
        }
    };
    let bytes = std::fs::read(&service.program).map_err(fail("reading"))?;
    let digest = identity::digest(&bytes);
    let image = memory::sealed_copy(&service.name, &bytes).map_err(fail("sealing a copy of"))?;
    drop(bytes);
    let (ours, theirs) = socket::pair().map_err(fail("making a socket for"))?;
    let kept =
        ["PATH", "LANG"].iter().filter_map(|k| Some((OsString::from(k), std::env::var_os(k)?)));
    let given = service.environment.iter().map(|(k, v)| (k.into(), v.into()));
    let socket_number = (SOCKET_VARIABLE.into(), SOCKET_NUMBER.to_string().into());
    let program = Program {
        image,
        name: file_name(&service.program).to_os_string(),
        args: service.args.iter().map(Into::into).collect(),
        environment: kept.chain(given).chain([socket_number]).collect(),
        directory: service.directory.clone(),
        socket: Some(theirs),
    };
    let child = program.start().map_err(fail("running"))?;
    let pidfd = spawn::pidfd(&child).map_err(fail("watching"))?;
    coordinator.add_started(Started {
        socket: ours,
        pidfd,
        pid: child.id(),
        name: service.name.clone(),
        digest,
    });
    Ok(child)
}

fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}
