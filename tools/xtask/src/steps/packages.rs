//! Programs that the tests call and that Debian can install, and the target [`MUSL`] of the compiler.
//! `cargo xtask setup` installs them; the step only looks whether they are there.
//!
//! To add one, put it into [`PACKAGES`]: the probe is a command that succeeds once the package is
//! there.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::Session;
use super::fuzz::has_nightly;
use crate::apt;
use crate::command::Cmd;

/// What a program of the engine tests is built for.
const MUSL: &str = "x86_64-unknown-linux-musl";

struct Package {
    /// Names under which distributions have it, the preferred one first.
    names: &'static [&'static str],
    /// Command lines of which one has to succeed.
    probes: &'static [&'static [&'static str]],
    why: &'static str,
    /// Needed only beside a nightly toolchain.
    for_nightly: bool,
    /// Lowest major and minor version, as the first probe prints it and as apt must offer it.
    at_least: Option<[u32; 2]>,
}

const PACKAGES: &[Package] = &[
    package(&["gcc"], &[&["cc", "--version"]], "links every Rust program"),
    package(&["git"], &[&["git", "--version"]], "tidy asks it which files belong to the project"),
    Package {
        at_least: Some([1, 24]),
        ..package(
            &["golang-go"],
            &[&["go", "version"]],
            "builds the stock gRPC client that the interop tests call us with",
        )
    },
    package(
        &["python3-pip"],
        &[&["python3", "-m", "pip", "--version"]],
        "installs Python's grpcio, which the interop tests call us with",
    ),
    package(
        &["systemd"],
        &[&["systemd-analyze", "--version"]],
        "checks the units that we hand out",
    ),
    package(
        &["docker-compose-v2", "docker-compose-plugin", "docker-compose"],
        &[&["docker", "compose", "version"], &["docker-compose", "version"]],
        "checks, by its `config`, the compose files that we write, and runs them",
    ),
    package(
        &["docker.io"],
        &[&["dockerd", "--version"], &["/usr/sbin/dockerd", "--version"]],
        "runs the containers of the engine tests",
    ),
    package(
        &["podman"],
        &[&["podman", "--version"]],
        "runs containers of the engine tests as well",
    ),
    package(
        &["docker-cli", "docker.io"],
        &[&["docker", "--version"]],
        "is what `partywall compose` asks for containers",
    ),
    package(
        &["valgrind"],
        &[&["valgrind", "--version"]],
        "runs a program of the tests of `partywall call`",
    ),
    package(
        &["musl-tools"],
        &[&["musl-gcc", "--version"]],
        "links a program of the engine tests with another C library",
    ),
    package(
        &["chromium"],
        &[&["chromium", "--version"]],
        "shows the page of the example `camera` in the engine tests",
    ),
    package(
        &["chromium-driver"],
        &[&["chromedriver", "--version"]],
        "is how the engine tests ask Chromium what it shows",
    ),
    package(
        &["qemu-system-x86"],
        &[&["qemu-system-x86_64", "--version"]],
        "emulates the machine with protection keys for `cargo xtask vm-test`",
    ),
    Package {
        for_nightly: true,
        ..package(&["g++"], &[&["c++", "--version"]], "cargo-fuzz compiles libFuzzer")
    },
];

/// One that is needed always, in any version.
const fn package(
    names: &'static [&'static str],
    probes: &'static [&'static [&'static str]],
    why: &'static str,
) -> Package {
    Package { names, probes, why, for_nightly: false, at_least: None }
}

fn wanted() -> Vec<&'static Package> {
    let nightly = has_nightly();
    PACKAGES.iter().filter(|package| nightly || !package.for_nightly).collect()
}

/// Fails where something is missing or too old.
pub(super) fn run(session: &mut Session) -> Result<()> {
    let wanted = wanted();
    let missing: Vec<_> = wanted.iter().filter(|package| !package.is_present()).collect();
    let mut lines: Vec<_> =
        missing.iter().map(|package| format!("{}: {}", package.names[0], package.why)).collect();
    if !has_musl()? {
        lines.push(format!(
            "the compiler's target {MUSL}: a program of the engine tests is built for it"
        ));
    }
    ensure!(
        lines.is_empty(),
        "missing: {}\n  {}\nroot installs them with `cargo xtask setup`",
        lines.len(),
        lines.join("\n  ")
    );
    wanted.iter().try_for_each(|package| package.check_version())?;
    session.note = format!("{} present", wanted.len());
    Ok(())
}

/// `cargo xtask setup`: installs what is missing when root; otherwise fails with the line that would.
///
/// # Errors
/// When something is missing afterwards, or is too old.
pub(crate) fn install() -> Result<()> {
    let wanted = wanted();
    let missing: Vec<_> = wanted.iter().copied().filter(|package| !package.is_present()).collect();
    if !missing.is_empty() {
        let each = missing.iter();
        each.for_each(|package| println!("missing {}: {}", package.names[0], package.why));
        get(&missing).context("install what is missing; where there is no apt, by other means")?;
    }
    for package in &wanted {
        ensure!(
            package.is_present(),
            "{} is still missing after its installation",
            package.names.join(" or ")
        );
        package.check_version()?;
    }
    if !has_musl()? {
        Cmd::new("rustup").args(["target", "add", MUSL]).run()?;
        ensure!(
            has_musl()?,
            "the compiler's target {MUSL} is still missing after its installation"
        );
    }
    println!("setup: {} programs are there, and the target {MUSL}", wanted.len());
    Ok(())
}

/// Whether the compiler has the standard library for [`MUSL`].
fn has_musl() -> Result<bool> {
    let sysroot = Cmd::new("rustc").args(["--print", "sysroot"]).read()?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(MUSL).is_dir())
}

fn get(missing: &[&Package]) -> Result<()> {
    let root = apt::is_root()?;
    if root && missing.iter().any(|package| package.offered().is_none()) {
        apt::get(["update"]).run()?;
    }
    let mut names = Vec::new();
    for package in missing {
        match package.offered() {
            Some((name, version)) => {
                package.accept(&version)?;
                names.push(name);
            }
            // Without lists apt offers nothing yet; the last name is Debian's own.
            None if !root => names.extend(package.names.last()),
            None => {
                bail!("apt offers none of {}; needed: it {}", package.names.join(", "), package.why)
            }
        }
    }
    let line = apt::get(["install", "-y", "--no-install-recommends"]).args(names);
    if !root {
        bail!("not root, so nothing was installed; run\n\n  sudo apt-get update && sudo {line}\n");
    }
    if line.run().is_err() {
        // The lists may be older than the archive.
        apt::get(["update"]).run()?;
        line.run()?;
    }
    Ok(())
}

impl Package {
    fn is_present(&self) -> bool {
        self.probes.iter().any(|probe| command(probe).succeeds())
    }

    /// The first of its names that apt knows a version of, with that version.
    fn offered(&self) -> Option<(&'static str, String)> {
        self.names.iter().find_map(|name| {
            let policy = Cmd::new("apt-cache").args(["policy", name]).read().ok()?;
            Some((*name, candidate(&policy)?))
        })
    }

    fn check_version(&self) -> Result<()> {
        match self.at_least {
            Some(_) => self.accept(&command(self.probes[0]).read()?),
            None => Ok(()),
        }
    }

    /// Refuses a text whose first version number is too low.
    fn accept(&self, text: &str) -> Result<()> {
        let Some([major, minor]) = self.at_least else { return Ok(()) };
        let text = text.trim();
        ensure!(
            version(text).is_some_and(|found| found >= [major, minor]),
            "{} {major}.{minor} or later is needed on PATH, found {text:?}; it {}",
            self.names[0],
            self.why
        );
        Ok(())
    }
}

fn command(probe: &[&str]) -> Cmd {
    Cmd::new(probe[0]).args(probe[1..].iter().copied())
}

/// The candidate version in the output of `apt-cache policy`.
fn candidate(policy: &str) -> Option<String> {
    let line = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"))?.trim();
    (line != "(none)").then(|| line.to_owned())
}

/// The first `major.minor` in a text; an epoch such as `2:` before it does not count.
fn version(text: &str) -> Option<[u32; 2]> {
    let words = text.split(|c: char| c != '.' && !c.is_ascii_digit());
    words.filter(|word| word.contains('.')).find_map(|word| {
        let mut numbers = word.split('.').map(str::parse);
        Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_programs_and_from_apt() {
        assert_eq!(version("go version go1.26.8 linux/amd64"), Some([1, 26]));
        assert_eq!(version("2:1.19~1"), Some([1, 19]));
        assert_eq!(version("devel"), None);
        assert_eq!(candidate("x:\n  Candidate: 2:1.19~1\n"), Some("2:1.19~1".into()));
        assert_eq!(candidate("x:\n  Candidate: (none)\n"), None);
        assert_eq!(candidate(""), None);
    }

    #[test]
    fn an_old_version_is_refused() {
        let go = package(&["none"], &[&["echo", "go1.24.1"]], "is a test");
        let go = Package { at_least: Some([1, 24]), ..go };
        assert!(go.check_version().is_ok());
        assert!(go.accept("go1.26.8").is_ok() && go.accept("go2.0").is_ok());
        assert!(go.accept("2:1.19~1").unwrap_err().to_string().contains("1.24 or later"));
        assert!(go.accept("devel").is_err());
    }

    #[test]
    fn presence_is_any_probe_that_succeeds() {
        assert!(package(&[], &[&["false"], &["true"]], "").is_present());
        assert!(!package(&[], &[&["false"], &["no-such-program-here"]], "").is_present());
    }
}
