//! Cargo's tools that the steps use, built from source into the target directory.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::workspace::Workspace;

/// Installs a tool in this version unless it is there; the directory that holds its program.
///
/// # Errors
/// When cargo cannot install it.
pub(super) fn installed(workspace: &Workspace, name: &str, version: &str) -> Result<PathBuf> {
    let root = workspace.target.join("tools");
    // What cargo keeps of what it has installed there; without it, cargo asks the registry each time.
    let there = fs::read_to_string(root.join(".crates.toml")).unwrap_or_default();
    if !there.contains(&format!("\"{name} {version} ")) {
        // Building one takes longer than all of its runs, so it is built fast and not to be fast.
        let line = ["install", name, "--debug", "--locked", "--version", version, "--root"];
        let cargo = workspace.command("cargo").args(line).args([root.to_string_lossy()]);
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").run()?;
    }
    Ok(root.join("bin"))
}
