//! Where the workspace is, what it contains, and which files git would commit.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::Cmd;

/// Packages with loom models.
pub(crate) const LOOM: &[&str] = &["partywall-abi", "partywall-shm", "partywall-domain"];

/// The workspace this program was started in.
pub(crate) struct Workspace {
    /// Directory of the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// Output of `cargo metadata --no-deps`.
    pub(crate) metadata: Value,
}

impl Workspace {
    /// Asks cargo for the workspace around the current directory.
    pub(crate) fn locate() -> Result<Self> {
        let text = Cmd::new("cargo")
            .args(["metadata", "--locked", "--format-version", "1", "--no-deps"])
            .read()
            .context("cargo metadata")?;
        let metadata: Value = serde_json::from_str(&text).context("parse cargo metadata")?;
        let dir = |key: &str| {
            metadata[key].as_str().map(PathBuf::from).with_context(|| format!("no {key}"))
        };
        let (root, target) = (dir("workspace_root")?, dir("target_directory")?);
        Ok(Self { root, target, metadata })
    }

    /// A command that starts in the workspace's root.
    pub(crate) fn command(&self, program: &str) -> Cmd {
        Cmd::new(program).dir(&self.root)
    }

    /// A cargo command in the workspace's root that leaves Cargo.lock as it is.
    pub(crate) fn cargo(&self, subcommand: &str) -> Cmd {
        self.command("cargo").args([subcommand, "--locked"])
    }

    /// The packages of the workspace.
    pub(crate) fn packages(&self) -> Result<&[Value]> {
        Ok(self.metadata["packages"].as_array().context("metadata without packages")?)
    }

    /// Where `cargo xtask test` leaves its own files.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.target.join("xtask")
    }

    /// The list of tests that the last `cargo xtask test` ran.
    pub(crate) fn ran_list(&self) -> PathBuf {
        self.scratch().join("ran.tsv")
    }

    /// Files that are tracked, or new and not ignored, as paths from the root with `/`.
    pub(crate) fn files(&self) -> Result<BTreeSet<String>> {
        let list = self
            .command("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .read()?;
        let present = |path: &&str| fs::symlink_metadata(self.root.join(path)).is_ok();
        let files: BTreeSet<_> =
            list.split('\0').filter(|p| !p.is_empty()).filter(present).map(String::from).collect();
        ensure!(!files.is_empty(), "git lists no files under {}", self.root.display());
        Ok(files)
    }

    /// Names of the coverage-guided fuzz targets, sorted.
    pub(crate) fn fuzz_targets(&self) -> Result<Vec<String>> {
        self.stems("fuzz/fuzz_targets")
    }

    /// Names in a directory, without extensions, sorted; there is at least one.
    pub(crate) fn stems(&self, dir: &str) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.root.join(dir)).with_context(|| format!("list {dir}"))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        let stems = paths.iter().filter_map(|path| path.file_stem());
        let mut names: Vec<_> = stems.map(|stem| stem.to_string_lossy().into_owned()).collect();
        names.sort();
        ensure!(!names.is_empty(), "{dir} holds nothing");
        Ok(names)
    }
}
