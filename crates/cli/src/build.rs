//! Building the binaries of a Compose file's services with Cargo.

mod error;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use serde::Deserialize;

pub use error::BuildError;

use crate::compose::Service;
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

/// The root of the Cargo workspace that `dir` is in.
pub fn workspace(dir: &Path) -> Result<PathBuf, BuildError> {
    let (status, output) = cargo(
        dir,
        &["locate-project", "--workspace", "--message-format=plain"].map(str::to_owned),
    )?;
    let manifest = String::from_utf8_lossy(&output);
    match Path::new(manifest.trim_end()).parent() {
        Some(root) if status.success() => Ok(root.to_owned()),
        _ => Err(BuildError::NoWorkspace { dir: dir.to_owned() }),
    }
}

/// Builds every service's binary in one go and gives the executables in the order of the
/// services. A feature that a binary requires is turned on for it.
pub fn build(
    services: &[Service],
    release: bool,
    workspace: &Path,
) -> Result<Vec<PathBuf>, BuildError> {
    let args = ["metadata", "--no-deps", "--format-version=1"].map(str::to_owned);
    let (status, output) = cargo(workspace, &args)?;
    if !status.success() {
        return Err(BuildError::Failed { command: "metadata", dir: workspace.into(), status });
    }
    let metadata: Metadata = serde_json::from_slice(&output)
        .map_err(|source| BuildError::Output { command: "metadata", source })?;
    let packages = packages(services, &metadata)?;

    let (status, output) = cargo(workspace, &build_args(services, &packages, release))?;
    if !status.success() {
        return Err(BuildError::Failed { command: "build", dir: workspace.into(), status });
    }
    let executables = executables(&output)?;
    let executable = |(service, package): (&Service, &&Package)| {
        let key = (package.id.clone(), service.bin.value.clone());
        executables.get(&key).cloned().ok_or_else(|| BuildError::NoExecutable {
            place: service.bin.place.clone(),
            name: service.bin.value.clone(),
        })
    };
    services.iter().zip(&packages).map(executable).collect()
}

/// The package of each service, having the service's binary.
fn packages<'m>(
    services: &[Service],
    metadata: &'m Metadata,
) -> Result<Vec<&'m Package>, BuildError> {
    let mut found: Vec<&Package> = Vec::new();
    for service in services {
        let name = &service.package.value;
        let Some(package) = metadata.packages.iter().find(|package| package.name == *name) else {
            let with_bins = metadata.packages.iter().filter(|package| package.bins().count() > 0);
            let known: BTreeSet<_> = with_bins.map(|package| package.name.as_str()).collect();
            let hint = hint(name, &Vec::from_iter(known));
            let place = service.package.place.clone();
            return Err(BuildError::UnknownPackage { place, name: name.clone(), hint });
        };
        let bin = &service.bin.value;
        let known: BTreeSet<_> = package.bins().map(|target| target.name.as_str()).collect();
        if !known.contains(bin.as_str()) {
            let mut hint = hint(bin, &Vec::from_iter(known));
            if service.bin.place == service.package.place {
                hint.push_str("; name the one to run with `bin`");
            }
            let (place, name) = (service.bin.place.clone(), bin.clone());
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
    for (service, package) in services.iter().zip(&found) {
        for wanted in services {
            let name = wanted.bin.value.as_str();
            if !package.bins().any(|target| target.name == name) {
                continue;
            }
            let owner = owners.entry(name).or_insert(package);
            if owner.id != package.id {
                return Err(BuildError::SameFile {
                    place: service.package.place.clone(),
                    name: name.to_owned(),
                    one: owner.name.clone(),
                    other: package.name.clone(),
                });
            }
        }
    }
    Ok(found)
}

fn build_args(services: &[Service], packages: &[&Package], release: bool) -> Vec<String> {
    let mut args: Vec<String> =
        vec!["build".into(), "--message-format=json-render-diagnostics".into()];
    if release {
        args.push("--release".into());
    }
    let mut selection = BTreeSet::new();
    for (service, package) in services.iter().zip(packages) {
        let bin = &service.bin.value;
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

/// Runs Cargo in `dir` and gives how it ended and its standard output. Its errors go to ours.
fn cargo(dir: &Path, args: &[String]) -> Result<(ExitStatus, Vec<u8>), BuildError> {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let output = Command::new(&program)
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        // In a test the compiler's words would fall between those of the harness.
        .stderr(if cfg!(test) { Stdio::null() } else { Stdio::inherit() })
        .output()
        .map_err(|source| BuildError::Start { program: program.into(), source })?;
    Ok((output.status, output.stdout))
}

#[cfg(test)]
mod tests;
