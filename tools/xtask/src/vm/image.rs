//! The machine's initial file system: a cpio archive in the format `newc`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cpio::newc::{Builder, ModeFileType, trailer};
use partywall_vm::{MANIFEST, manifest};

use super::build::{Built, OfHost};
use super::{Job, PROGRAMS};
use crate::command::Cmd;
use crate::workspace::Workspace;

/// Programs of the host that the tests start or read, with the libraries that they need.
const HOST_PROGRAMS: &[&str] = &["/bin/sh", "/bin/sleep", "/bin/true"];

/// What `partywall up` runs in the machine.
pub(super) const COMPOSE: &str = "/compose.yaml";

/// A service and its caller, through stubs, kept apart by protection keys. Calls have time: emulation is
/// slow. (Services that fail in calls are not for it: a slow handler soon runs in its own process.)
const COMPOSE_TEXT: &str = "services:
  test:
    x-partywall: {program: /bin/st-server, link: domain, isolation: protection-keys}
  web:
    depends_on: [test]
    environment: {PARTYWALL_INLINE_LIMIT_MS: 1000}
    x-partywall:
      program: /bin/st-client
      args: [--mode, few]
      calls: [test/*]
      link: domain
      isolation: protection-keys
";

/// Contents of each file by its path from the root; none for a directory.
#[derive(Default)]
struct Tree(BTreeMap<String, Option<Vec<u8>>>);

/// Writes the archive to `path`.
///
/// # Errors
/// Those of the file system, and a program of the host whose libraries are not found.
pub(super) fn write(path: &Path, workspace: &Workspace, built: &Built, jobs: &[Job]) -> Result<()> {
    let mut tree = Tree::default();
    tree.copy("/init", &built.init)?;
    for binary in &built.tests {
        tree.copy(&format!("/bin/{}", binary.file()), &binary.path)?;
    }
    for entry in fs::read_dir(&built.programs)? {
        let entry = entry?;
        let name = entry.file_name();
        tree.copy(&format!("{PROGRAMS}/{}", name.to_string_lossy()), &entry.path())?;
    }
    for program in &built.services {
        let name = program.file_name().context("a program has a name")?;
        tree.copy(&format!("/bin/{}", name.to_string_lossy()), program)?;
    }
    tree.add(COMPOSE, COMPOSE_TEXT.into());
    for program in HOST_PROGRAMS {
        tree.copy(program, Path::new(program))?;
    }
    for OfHost { path, copy } in &built.of_host {
        tree.copy(&path.to_string_lossy(), copy)?;
    }
    // Where tests of the command run it.
    tree.directory(&format!("{}/crates/cli", workspace.root.display()));
    let of_host = built.of_host.iter().map(|program| program.path.to_string_lossy());
    for program in HOST_PROGRAMS.iter().map(|program| (*program).into()).chain(of_host) {
        let program: &str = &program;
        for library in libraries(&Cmd::new("ldd").args([program]).read()?) {
            tree.copy(library, Path::new(library))?;
        }
    }
    tree.add("/etc/hostname", b"partywall-vm\n".into());
    let programs: Vec<_> = jobs.iter().map(|job| job.program.clone()).collect();
    tree.add(MANIFEST, manifest::to_text(&programs)?.into());
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    tree.archive(BufWriter::new(file)).with_context(|| format!("write {}", path.display()))
}

/// Files that a program needs to start, in the output of `ldd`.
fn libraries(ldd: &str) -> Vec<&str> {
    ldd.split_whitespace().filter(|word| word.starts_with('/')).collect()
}

impl Tree {
    fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        ensure!(!bytes.is_empty(), "{} is empty", from.display());
        self.add(path, bytes);
        Ok(())
    }

    /// Adds a file and the directories above it.
    fn add(&mut self, path: &str, bytes: Vec<u8>) {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(None);
        }
        self.0.insert(path.to_owned(), Some(bytes));
    }

    /// Adds an empty directory and those above it.
    fn directory(&mut self, path: &str) {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
            self.0.entry(path[..at].to_owned()).or_insert(None);
        }
    }

    /// Writes the archive. In the order of their paths, directories come before what they hold.
    fn archive(&self, mut out: impl Write) -> Result<()> {
        for (inode, (path, bytes)) in (1..).zip(&self.0) {
            let kind = match bytes {
                Some(_) => ModeFileType::Regular,
                None => ModeFileType::Directory,
            };
            let bytes = bytes.as_deref().unwrap_or_default();
            let size = u32::try_from(bytes.len()).with_context(|| format!("{path} is too long"))?;
            let entry = Builder::new(path).ino(inode).mode(0o755).set_mode_file_type(kind);
            let mut writer = entry.write(out, size);
            writer.write_all(bytes)?;
            out = writer.finish()?;
        }
        trailer(out)?.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_holds_directories_before_their_files() {
        let mut tree = Tree::default();
        tree.add("/bin/a/b", vec![7; 5]);
        tree.add("/init", b"first".into());
        let mut bytes = Vec::new();
        tree.archive(&mut bytes).unwrap();
        let mut found = Vec::new();
        let mut rest = bytes.as_slice();
        loop {
            let reader = cpio::newc::Reader::new(rest).unwrap();
            let entry = reader.entry();
            if entry.is_trailer() {
                break;
            }
            found.push((entry.name().to_owned(), entry.mode(), entry.file_size()));
            rest = reader.finish().unwrap();
        }
        let expected = [
            ("bin", 0o040_755, 0),
            ("bin/a", 0o040_755, 0),
            ("bin/a/b", 0o100_755, 5),
            ("init", 0o100_755, 5),
        ];
        assert_eq!(found, expected.map(|(name, mode, size)| (name.to_owned(), mode, size)));
    }

    #[test]
    fn libraries_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007)\n";
        assert_eq!(libraries(text), ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(libraries("\tstatically linked\n").is_empty());
    }
}
