//! This program as one that can be a domain: static-pie, built from the same source before a run.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use partywall_shm::memory;

use crate::error::Result;
use crate::sys::stop::Stop;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds it in `target` of the workspace and copies it into a sealed memfd. None if the user
/// asked for an end.
///
/// # Errors
/// If it cannot be built, with what to do about it.
pub fn build(stop: &Stop) -> Result<Option<OwnedFd>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let into = root.join("target");
    eprintln!(
        "Building this program static-pie in target/{TARGET}, to run it as domains; the first \
         time takes some minutes."
    );
    // As this one was built: what a debug build measures means nothing, here as there.
    let (profile, folder) =
        if cfg!(debug_assertions) { ("dev", "debug") } else { ("release", "release") };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--package", "partywall-bench", "--no-default-features"])
        .args(["--profile", profile, "--target", TARGET, "--target-dir"])
        .arg(&into)
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .current_dir(&root);
    let failed = |why: &str| {
        format!(
            "building this program static-pie: {why}; it needs cargo, the sources and a static C \
             library. Without domains: --only, with the names of other contenders"
        )
    };
    let mut cargo = cargo.spawn().map_err(|error| failed(&error.to_string()))?;
    let status = loop {
        if let Some(status) = cargo.try_wait()? {
            break status;
        }
        if stop.requested() {
            // Fails only if it has ended meanwhile.
            let _ = cargo.kill();
            cargo.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if stop.requested() {
        return Ok(None);
    }
    if !status.success() {
        return Err(failed(&status.to_string()).into());
    }
    let file = into.join(TARGET).join(folder).join("partywall-bench");
    let bytes = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(Some(memory::sealed_copy("bench", &bytes)?))
}
