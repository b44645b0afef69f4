//! Where the workspace is, what it contains, and which files git would commit.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::command::Cmd;

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

    /// Names of the coverage-guided fuzz targets: the stems of `fuzz/fuzz_targets/*.rs`, sorted.
    pub(crate) fn fuzz_targets(&self) -> Result<Vec<String>> {
        let dir = self.root.join("fuzz/fuzz_targets");
        let mut names = stems(&dir, "rs").with_context(|| format!("list {}", dir.display()))?;
        names.sort();
        if names.is_empty() {
            bail!("fuzz/fuzz_targets holds no target");
        }
        Ok(names)
    }
}

fn stems(dir: &Path, extension: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension)
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    Ok(names)
}
