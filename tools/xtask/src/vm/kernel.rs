//! Debian's kernel for virtual machines, unpacked and never installed: installing a kernel runs
//! the host's boot loader.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::apt;
use crate::command::Cmd;

/// Depends on the package with the current kernel.
const META: &str = "linux-image-cloud-amd64";

/// The same of the first kernels that write signal frames with all rights, where the current one is older:
/// domains are kept apart in another way there.
const NEWER: (&str, [u32; 2]) = ("linux-image-6.12-cloud-amd64", [6, 12]);

/// A kernel that the emulator can start.
pub(super) struct Kernel {
    /// Its file.
    pub(super) path: PathBuf,
    /// The release that it calls itself.
    pub(super) name: String,
}

/// The kernels that apt offers, an old and a new one; they are kept below `dir` under the names of their
/// packages' files.
///
/// # Errors
/// When apt knows no such package or cannot reach it, or the package holds no kernel.
pub(super) fn fetch(dir: &Path) -> Result<Vec<Kernel>> {
    let current = fetch_from(dir, META)?;
    let (newer, from) = NEWER;
    let is_old = release(&current.name).is_some_and(|release| release < from);
    let newer = is_old.then(|| fetch_from(dir, newer)).transpose()?;
    Ok([current].into_iter().chain(newer).collect())
}

/// Major and minor version in the name of a kernel.
fn release(name: &str) -> Option<[u32; 2]> {
    let mut numbers = name.strip_prefix("Linux ")?.split(['.', '-', '+']);
    Some([numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?])
}

fn fetch_from(dir: &Path, meta: &str) -> Result<Kernel> {
    let dir = dir.join("kernel");
    let mut found = offered(&dir, meta);
    if found.is_err() && apt::is_root()? {
        // The lists may be missing, or older than the archive.
        found = apt::get(["update"]).run().and_then(|()| offered(&dir, meta));
    }
    found.with_context(|| {
        format!(
            "the emulated machine needs the kernel of Debian's package {meta}, and apt did not \
             give it; run `sudo apt-get update` where the archive can be reached"
        )
    })
}

fn offered(dir: &Path, meta: &str) -> Result<Kernel> {
    let depends = Cmd::new("apt-cache").args(["depends", meta]).read()?;
    let package = dependency(&depends).with_context(|| format!("{meta} depends on no kernel"))?;
    let uris = apt::get(["download", "--print-uris", package]).read()?;
    let file = file_name(&uris).with_context(|| format!("apt names no file for {package}"))?;
    let kept = dir.join(file);
    if !kept.is_dir() {
        unpack(package, file, dir)?;
    }
    vmlinuz(&kept)
}

/// Downloads and unpacks a package beside its place and moves it there when it is whole.
fn unpack(package: &str, file: &str, dir: &Path) -> Result<()> {
    let part = dir.join("part");
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    let tree = part.join("tree");
    fs::create_dir_all(&tree)?;
    apt::get(["download", "-q", package]).dir(&part).run()?;
    ensure!(part.join(file).is_file(), "apt downloaded {package}, but not as {file}");
    Cmd::new("dpkg-deb").args(["--extract", file, "tree"]).dir(&part).run()?;
    fs::rename(&tree, dir.join(file))?;
    fs::remove_dir_all(&part)?;
    Ok(())
}

fn vmlinuz(tree: &Path) -> Result<Kernel> {
    let boot = tree.join("boot");
    for entry in fs::read_dir(&boot).with_context(|| format!("list {}", boot.display()))? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(release) = file.strip_prefix("vmlinuz-") {
            return Ok(Kernel { name: format!("Linux {release}"), path });
        }
    }
    bail!("{} holds no vmlinuz; delete {} to fetch it again", boot.display(), tree.display())
}

/// The kernel's package in the output of `apt-cache depends`.
fn dependency(depends: &str) -> Option<&str> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with("linux-image-"))
}

/// The file of a package in the output of `apt-get download --print-uris`.
fn file_name(uris: &str) -> Option<&str> {
    let line = uris.lines().find(|line| line.starts_with('\''))?;
    let file = line.rsplit_once("' ")?.1.split(' ').next()?;
    (file.ends_with(".deb") && !file.contains('/')).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_before_6_12_is_known_by_name() {
        assert!(release("Linux 6.1.0-56-cloud-amd64").unwrap() < NEWER.1);
        assert!(release("Linux 6.12.117+deb12-cloud-amd64").unwrap() >= NEWER.1);
        assert_eq!(release("Linux"), None);
    }

    #[test]
    fn the_package_and_its_file_are_read_from_apt() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(dependency(depends), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(dependency("linux-image-cloud-amd64\n"), None);
        let uris =
            "'http://deb.debian.org/l/i_6.1.192-2_amd64.deb' i_6.1.192-2_amd64.deb 267 SHA256:a";
        assert_eq!(file_name(uris), Some("i_6.1.192-2_amd64.deb"));
        assert_eq!(file_name(&format!("W: old lists\n{uris}\n")), Some("i_6.1.192-2_amd64.deb"));
        for bad in ["", "'http://x/i.deb'", "'http://x/i.deb' ../i.deb 2", "'u' file 2"] {
            assert_eq!(file_name(bad), None, "{bad}");
        }
    }
}
