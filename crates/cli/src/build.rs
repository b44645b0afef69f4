//! Building the binaries of a Compose file's services with Cargo: those of domains in one go, as
//! static-pie programs, all others in another.

mod error;
mod flags;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    env,
    ffi::OsString,
    io::Read,
    path::{Path, PathBuf},
    pin::pin,
    process::{Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

pub use error::BuildError;

use crate::compose::{At, Place, Program, Service};
use error::hint;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    #[serde(default, rename = "required-features")]
    required_features: Vec<String>,
}

/// One line of `cargo build --message-format=json`.
#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

impl Target {
    fn is_bin(&self) -> bool {
        self.kind.iter().any(|kind| kind == "bin")
    }
}

impl Package {
    fn bins(&self) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(|target| target.is_bin())
    }
}

/// The root of the Cargo workspace that `dir` is in; `wanted` is the place of a package in it.
async fn workspace(dir: &Path, wanted: &Place) -> Result<PathBuf, BuildError> {
    let (status, output) =
        cargo(dir, &["locate-project", "--workspace", "--message-format=plain"].map(str::to_owned))
            .await?;
    let manifest = String::from_utf8_lossy(&output);
    match Path::new(manifest.trim_end()).parent() {
        Some(root) if status.success() => Ok(root.to_owned()),
        _ => Err(BuildError::NoWorkspace { place: wanted.clone(), dir: dir.to_owned() }),
    }
}

/// A binary that is wanted.
#[derive(Clone, Copy)]
struct Wanted<'s> {
    /// The service, by its place in the list.
    service: usize,
    package: &'s At<String>,
    bin: &'s At<String>,
}

/// Builds every service's binary and gives the executables in the order of the services; those of
/// `domains` are to run in a launcher. A feature that a binary requires is turned on for it. `dir` is
/// that of the Compose file.
pub async fn build(
    services: &[Service],
    domains: &[bool],
    release: bool,
    dir: &Path,
) -> Result<Vec<PathBuf>, BuildError> {
    let mut programs = vec![PathBuf::new(); services.len()];
    let mut wanted = Vec::new();
    for (service, s) in services.iter().enumerate() {
        match &s.program {
            Program::Built { package, bin } => wanted.push(Wanted { service, package, bin }),
            Program::File(At { value, place }) => {
                let refuse = |why: &str| {
                    let (place, path, why) = (place.clone(), value.clone(), why.to_owned());
                    BuildError::NoProgram { place, path, why }
                };
                programs[service] = match std::fs::metadata(value) {
                    Ok(file) if file.is_file() => value.clone(),
                    Ok(_) => return Err(refuse("it is no file; build it, or correct the path")),
                    Err(e) => return Err(refuse(&format!("{e}; build it, or correct the path"))),
                };
                check_mark(value).map_err(|why| refuse(&why))?;
            }
        }
    }
    let Some(first) = wanted.first() else { return Ok(programs) };
    let workspace = workspace(dir, &first.package.place).await?;
    let args = ["metadata", "--no-deps", "--format-version=1"].map(str::to_owned);
    let (status, output) = cargo(&workspace, &args).await?;
    if !status.success() {
        let (dir, hint) = (workspace, "");
        return Err(BuildError::Failed { command: "metadata", dir, status, hint });
    }
    let metadata: Metadata = serde_json::from_slice(&output)
        .map_err(|source| BuildError::Output { command: "metadata", source })?;
    let (static_pie, others): (Vec<_>, Vec<_>) = wanted.iter().partition(|w| domains[w.service]);
    for (wanted, domain) in [(others, false), (static_pie, true)] {
        if wanted.is_empty() {
            continue;
        }
        if domain {
            crate::remark(
                "building the programs of domains, static-pie, with all that they depend on: apart \
                 from other builds, and the first time as long as a whole one",
            );
        }
        for (wanted, path) in
            wanted.iter().zip(together(&wanted, domain, release, &metadata, &workspace).await?)
        {
            programs[wanted.service] = path;
        }
    }
    Ok(programs)
}

/// What is started is a sealed copy, which no interpreter could open.
fn check_mark(program: &Path) -> Result<(), String> {
    let mut mark = [0; 4];
    let read = std::fs::File::open(program).and_then(|mut file| file.read_exact(&mut mark));
    match read {
        Err(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => Err(e.to_string()),
        _ if &mark == b"\x7fELF" => Ok(()),
        _ => {
            Err("this is no ELF program; for a script name the interpreter here, as /bin/sh, and \
                  the script in `args`"
                .into())
        }
    }
}

/// Builds binaries in one go.
async fn together(
    wanted: &[Wanted<'_>],
    domain: bool,
    release: bool,
    metadata: &Metadata,
    workspace: &Path,
) -> Result<Vec<PathBuf>, BuildError> {
    let packages = packages(wanted, metadata)?;
    let args = build_args(wanted, &packages, release);
    let (status, output) = match domain {
        true => run(flags::static_pie(command(workspace, &args))).await?,
        false => cargo(workspace, &args).await?,
    };
    if !status.success() {
        let hint = if domain { flags::hint(workspace) } else { "" };
        let dir = workspace.into();
        return Err(BuildError::Failed { command: "build", dir, status, hint });
    }
    let executables = executables(&output)?;
    let executable = |(wanted, package): (&Wanted<'_>, &&Package)| {
        let key = (package.id.clone(), wanted.bin.value.clone());
        executables.get(&key).cloned().ok_or_else(|| BuildError::NoExecutable {
            place: wanted.bin.place.clone(),
            name: wanted.bin.value.clone(),
        })
    };
    wanted.iter().zip(&packages).map(executable).collect()
}

/// The package of each service, having the service's binary.
fn packages<'m>(
    wanted: &[Wanted<'_>],
    metadata: &'m Metadata,
) -> Result<Vec<&'m Package>, BuildError> {
    let mut found: Vec<&Package> = Vec::new();
    for Wanted { package: named, bin, .. } in wanted {
        let name = &named.value;
        let Some(package) = metadata.packages.iter().find(|package| package.name == *name) else {
            let with_bins = metadata.packages.iter().filter(|package| package.bins().count() > 0);
            let known: BTreeSet<_> = with_bins.map(|package| package.name.as_str()).collect();
            let hint = hint(name, &Vec::from_iter(known));
            let place = named.place.clone();
            return Err(BuildError::UnknownPackage { place, name: name.clone(), hint });
        };
        let known: BTreeSet<_> = package.bins().map(|target| target.name.as_str()).collect();
        if !known.contains(bin.value.as_str()) {
            let mut hint = hint(&bin.value, &Vec::from_iter(known));
            if bin.place == named.place {
                hint.push_str("; name the one to run with `bin`");
            }
            let (place, name) = (bin.place.clone(), bin.value.clone());
            return Err(BuildError::UnknownBin {
                place,
                name,
                package: package.name.clone(),
                hint,
            });
        }
        found.push(package);
    }
    // `--bin` takes a name from every package that has it.
    let mut owners: BTreeMap<&str, &Package> = BTreeMap::new();
    for (own, package) in wanted.iter().zip(&found) {
        for other in wanted {
            let name = other.bin.value.as_str();
            if !package.bins().any(|target| target.name == name) {
                continue;
            }
            let owner = owners.entry(name).or_insert(package);
            if owner.id != package.id {
                return Err(BuildError::SameFile {
                    place: own.package.place.clone(),
                    name: name.to_owned(),
                    one: owner.name.clone(),
                    other: package.name.clone(),
                });
            }
        }
    }
    Ok(found)
}

fn build_args(wanted: &[Wanted<'_>], packages: &[&Package], release: bool) -> Vec<String> {
    let mut args: Vec<String> =
        vec!["build".into(), "--message-format=json-render-diagnostics".into()];
    if release {
        args.push("--release".into());
    }
    let mut selection = BTreeSet::new();
    for (wanted, package) in wanted.iter().zip(packages) {
        let bin = &wanted.bin.value;
        selection.insert(format!("--package={}", package.id));
        selection.insert(format!("--bin={bin}"));
        for target in package.bins().filter(|target| target.name == *bin) {
            for feature in &target.required_features {
                selection.insert(format!("--features={}/{feature}", package.name));
            }
        }
    }
    args.extend(selection);
    args
}

/// The executables that Cargo's messages name, by package and binary.
fn executables(output: &[u8]) -> Result<HashMap<(String, String), PathBuf>, BuildError> {
    let mut executables = HashMap::new();
    for line in output.split(|&byte| byte == b'\n') {
        // What a build script or a wrapper of rustc prints by itself is not for us.
        if !line.starts_with(b"{") {
            continue;
        }
        let message: Message = serde_json::from_slice(line)
            .map_err(|source| BuildError::Output { command: "build", source })?;
        if let Message {
            reason,
            package_id: Some(package),
            target: Some(target),
            executable: Some(executable),
        } = message
            && reason == "compiler-artifact"
            && target.is_bin()
        {
            executables.insert((package, target.name), executable);
        }
    }
    Ok(executables)
}

/// Cargo in `dir`.
fn command(dir: &Path, args: &[String]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(args).current_dir(dir);
    command
}

async fn cargo(dir: &Path, args: &[String]) -> Result<(ExitStatus, Vec<u8>), BuildError> {
    run(command(dir, args)).await
}

/// Runs Cargo and gives how it ended and its standard output. Its errors go to ours. Whoever waits no
/// longer ends it.
async fn run(command: Command) -> Result<(ExitStatus, Vec<u8>), BuildError> {
    let program = command.get_program().into();
    let start = |source| BuildError::Start { program, source };
    let mut command = tokio::process::Command::from(command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // In a test the compiler's words would fall between those of the harness.
        .stderr(if cfg!(test) { Stdio::null() } else { Stdio::inherit() });
    let child = match command.spawn() {
        Ok(child) => child,
        Err(source) => return Err(start(source)),
    };
    let number = child.id();
    let mut ended = pin!(child.wait_with_output());
    let mut under_way = UnderWay(number);
    let output = ended.as_mut().await;
    under_way.0 = None;
    let output = output.map_err(start)?;
    Ok((output.status, output.stdout))
}

/// A child that nobody has waited for: it is told to end when this goes.
struct UnderWay(Option<u32>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(pid) = self.0.and_then(|pid| Pid::from_raw(pid as i32)) {
            // It may just have ended.
            let _ended = kill_process(pid, Signal::TERM);
        }
    }
}

#[cfg(test)]
mod tests;
