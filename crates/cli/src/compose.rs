//! Compose files with `x-partywall`: which services to run and what each may call.

mod containers;
mod error;
mod field;
mod interpolate;
mod keys;
mod order;
mod read;
mod signed;
mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use partywall_abi::control::Grant;
use rustix::process::Signal;

pub use containers::{Containers, load_containers};
pub use error::{At, ComposeError, Place};
pub use interpolate::Vars;
pub use partywall_abi::name::MethodPattern;

use field::{Context, Field};
pub use keys::parse_duration;
pub use signed::Signers;

/// What a Compose file asks to run.
#[derive(Debug)]
pub struct Compose {
    /// The file, as the user named it.
    pub path: PathBuf,
    /// The services with an `x-partywall`, in the order of their starts.
    pub services: Vec<Service>,
    /// Whose signatures the programs of all services need, if they need any.
    pub signers: Option<Signers>,
    /// What the user should know though it is no error; each names its place.
    pub notes: Vec<String>,
}

impl Compose {
    /// The directory of the file, in which services run.
    pub fn dir(&self) -> &Path {
        match self.path.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        }
    }
}

/// A service to run.
#[derive(Debug)]
pub struct Service {
    /// Its name, a valid Partywall service name.
    pub name: String,
    /// Where it stands in the file.
    pub place: Place,
    /// What it runs.
    pub program: Program,
    /// The arguments, variables replaced.
    pub args: Vec<String>,
    /// How it is linked to those it calls.
    pub link: Link,
    /// What it may call.
    pub calls: Vec<Call>,
    /// What may cross on its links as a caller.
    pub grant: Grant,
    /// The .proto files of what it serves, whose demands its links meet.
    pub protos: Vec<Protos>,
    /// What its process gets on top of the caller's environment.
    pub environment: Vec<(String, String)>,
    /// What it waits for before it starts, without services that do not run.
    pub depends_on: Vec<Dependency>,
    /// How it runs and ends.
    pub manners: Manners,
}

/// How a service runs and ends, as Compose's own keys say.
#[derive(Debug, Clone)]
pub struct Manners {
    /// Where it runs, if not in the directory of the file.
    pub working_dir: Option<At<PathBuf>>,
    /// What becomes of it when it ends.
    pub restart: Restart,
    /// By which signal it is asked to end.
    pub stop_signal: Signal,
    /// How long it may take to do so, if that was said.
    pub grace: Option<Duration>,
}

impl Default for Manners {
    fn default() -> Self {
        let (working_dir, restart) = (None, Restart::Unsaid);
        Self { working_dir, restart, stop_signal: Signal::TERM, grace: None }
    }
}

/// What becomes of a service that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// A domain that others call is started again, nothing else.
    Unsaid,
    /// It stays ended.
    No,
    /// It is started again.
    Always,
    /// It is started again when it did not end well, at most so many times if a number was said.
    OnFailure(Option<u32>),
}

/// What a service runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A binary that Cargo builds.
    Built {
        /// The Cargo package that has the binary.
        package: At<String>,
        /// The binary; without a `bin`, the package's name at the place of `package`.
        bin: At<String>,
    },
    /// A program file, relative to the Compose file.
    File(At<PathBuf>),
}

/// How a service is linked to those it calls, and those to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Link {
    /// A ring in shared memory.
    #[default]
    Ring,
    /// The call gate, between services in one address space.
    Domain(At<Wanted>),
}

/// What is to keep a domain apart from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wanted {
    /// Protection keys; without them it is not started.
    #[default]
    ProtectionKeys,
    /// Protection keys; without them it is a process of its own, linked by rings.
    Prefer,
    /// Nothing.
    None,
}

/// A service to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The service.
    pub service: String,
    /// What to wait for.
    pub condition: Condition,
    /// Where it was written.
    pub place: Place,
}

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// The service's start.
    #[default]
    Started,
    /// The service being able to serve.
    Healthy,
    /// The service's end with status 0.
    CompletedSuccessfully,
}

/// .proto files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protos {
    /// The files.
    pub files: Vec<PathBuf>,
    /// Where their imports are looked for.
    pub directories: Vec<PathBuf>,
    /// Where it was written.
    pub place: Place,
}

/// A permission to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The service to call, one of the file with an `x-partywall`.
    pub service: String,
    /// Which of its methods.
    pub method: MethodPattern,
    /// Where it was written.
    pub place: Place,
}

/// The tree of a file.
fn tree_of(file: &Arc<Path>) -> Result<tree::Node, ComposeError> {
    let text = fs::read_to_string(file)
        .map_err(|source| ComposeError::Read { file: file.clone(), source })?;
    let detail = "the file is empty; add `services` with the services to start";
    let empty = || ComposeError::Form { file: file.clone(), line: 1, detail };
    tree::parse(file, &text)?.ok_or_else(empty)
}

/// Reads a Compose file. `vars` has the variables for `${...}`, those of the process and those
/// that `up` itself sets.
pub fn load(path: &Path, vars: Vars<'_>) -> Result<Compose, ComposeError> {
    let file: Arc<Path> = path.into();
    let form = |line, detail| ComposeError::Form { file: file.clone(), line, detail };
    let root = tree_of(&file)?;
    let mut cx = Context { file: file.clone(), vars, notes: Vec::new() };
    let root = Field::root(file.clone(), &root);
    let listed = read::services(&root, &mut cx)?;
    let signers = signed::signers(&root, &mut cx)?;
    let services = order::ordered(listed, &mut cx)?;
    if services.is_empty() {
        return Err(form(1, "nothing to run; give at least one service an `x-partywall`"));
    }
    let mut compose = Compose { path: path.to_owned(), services, signers, notes: cx.notes };
    let dotenv = compose.dir().join(".env");
    if dotenv.exists() {
        let note = "not read; export the variables before the command";
        compose.notes.push(format!("{}: {note}", dotenv.display()));
    }
    Ok(compose)
}

#[cfg(test)]
mod tests;
