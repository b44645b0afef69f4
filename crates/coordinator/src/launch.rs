//! Starting services so that their identity is strong.
//!
//! The program file is read once into a memfd, sealed, measured, and run from there; the process
//! gets a socket to the coordinator that nobody else ever had, and an environment that holds
//! nothing but what is given. So the digest is that of the bytes that run, whatever happens to
//! the file. The signature beside the program is checked against that digest: by the coordinator's policy
//! ([`crate::signatures`]), and here where the service is not to be started without one. That holds for a
//! process of its own as for a domain, which a launcher starts: both from what [`prepare`] has made.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use partywall_shm::memory;
use partywall_shm::socket::{self, Endpoint};
use partywall_shm::spawn::SOCKET_NUMBER;

use crate::identity::{self, Domain};
use crate::server::{Coordinator, Started};
use crate::signatures::{self, Found, Signatures};

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
    /// Whose signatures count, where it is started only with one.
    pub signatures: Option<Arc<Signatures>>,
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

/// A service that is measured and has its socket, and is not started yet.
///
/// Whoever starts it gives it `image` to run, `name` and `args` as `argv`, `environment` and nothing
/// else, and `socket` as descriptor [`SOCKET_NUMBER`]; and then says so by [`Known::started`].
#[derive(Debug)]
pub struct Prepared {
    /// The sealed copy of the program file.
    pub image: OwnedFd,
    /// `argv[0]`.
    pub name: OsString,
    /// The other arguments.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory.
    pub directory: PathBuf,
    /// Its socket to the coordinator.
    pub socket: OwnedFd,
    /// What the coordinator is to know.
    pub known: Known,
}

/// What the coordinator knows of a service before it runs.
#[derive(Debug)]
pub struct Known {
    socket: Endpoint,
    service: String,
    digest: [u8; 32],
    signature: Arc<Found>,
}

impl Known {
    /// The service runs, and the coordinator is to know it. `pid` and `pidfd` are those of the
    /// process that runs the image; `domain` says where, if it is one.
    pub fn started(
        self,
        coordinator: &Coordinator,
        pid: u32,
        pidfd: OwnedFd,
        domain: Option<Domain>,
    ) {
        let Self { socket, service: name, digest, signature } = self;
        coordinator.add_started(Started { socket, pidfd, pid, name, digest, signature, domain });
    }
}

/// An error of this service at one step.
fn failed(service: &Service, step: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    let (name, program) = (service.name.clone(), service.program.clone());
    move |source| LaunchError { name, program, step, source }
}

/// Measures a service's program, reads the signature beside it, and makes all that it needs to run.
///
/// # Errors
/// [`LaunchError`].
pub fn prepare(service: &Service) -> Result<Prepared, LaunchError> {
    let bytes = std::fs::read(&service.program).map_err(failed(service, "reading"))?;
    let digest = identity::digest(&bytes);
    let image =
        memory::sealed_copy(&service.name, &bytes).map_err(failed(service, "sealing a copy of"))?;
    drop(bytes);
    let signature = Found::beside(&service.program);
    if let Some(signatures) = &service.signatures {
        let checked = signatures.check(&signature, digest, Some(&service.name), SystemTime::now());
        checked.map_err(|e| {
            let text =
                format!("{e}; remedy: {}", e.remedy(&signatures::command(None, &service.name)));
            failed(service, "checking the signature of")(io::Error::other(text))
        })?;
    }
    let (ours, theirs) = socket::pair().map_err(failed(service, "making a socket for"))?;
    // Before there is a process that could send descriptors.
    let socket = Endpoint::new(ours);
    let kept =
        ["PATH", "LANG"].iter().filter_map(|k| Some((OsString::from(k), std::env::var_os(k)?)));
    let given = service.environment.iter().map(|(k, v)| (k.into(), v.into()));
    let socket_number = (SOCKET_VARIABLE.into(), SOCKET_NUMBER.to_string().into());
    Ok(Prepared {
        image,
        name: file_name(&service.program).to_os_string(),
        args: service.args.iter().map(Into::into).collect(),
        environment: kept.chain(given).chain([socket_number]).collect(),
        directory: service.directory.clone(),
        socket: theirs,
        known: Known {
            socket,
            service: service.name.clone(),
            digest,
            signature: Arc::new(signature),
        },
    })
}

fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}
