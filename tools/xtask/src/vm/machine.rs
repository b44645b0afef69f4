//! The emulator: a processor with everything, whatever the host's has.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use partywall_vm::transcript::Transcript;

use super::kernel::Kernel;
use crate::command::Cmd;

/// Name of the initial file system.
pub(super) const IMAGE: &str = "image.cpio";

/// What the kernel prints, from the first serial port.
const CONSOLE: &str = "console.log";

const EMULATOR: &str = "qemu-system-x86_64";

/// Processor and memory. Five levels of page tables would only cost time. QEMU before 9.1 takes an IRET
/// between user modes, as workers of functions have it, for one of the kernel, which SMAP refuses its stack.
const HARDWARE: [&str; 8] =
    ["-accel", "tcg", "-cpu", "max,la57=off,smap=off", "-m", "2G", "-smp", "2"];

/// No devices but the serial ports, no second start after a panic.
const DEVICES: [&str; 7] =
    ["-no-user-config", "-nodefaults", "-nic", "none", "-display", "none", "-no-reboot"];

/// A finished machine.
pub(super) struct Run {
    /// What `vm-init` sent.
    pub(super) transcript: Transcript,
    /// What the kernel printed.
    pub(super) console: String,
    /// Whether the emulator ended by itself, with success.
    pub(super) succeeded: bool,
}

/// Runs the machine whose initial file system is in `dir`.
///
/// # Errors
/// When the emulator does not start.
pub(super) fn run(dir: &Path, kernel: &Kernel, limit: Duration) -> Result<Run> {
    let console = dir.join(CONSOLE);
    fs::write(&console, "")?;
    let command = Cmd::new(EMULATOR)
        .dir(dir)
        .args(HARDWARE)
        .args(DEVICES)
        .args(["-kernel", &kernel.path.to_string_lossy(), "-initrd", IMAGE])
        // On a busy host the emulated timer is too late for the kernel's check of it.
        // The end of a launcher takes tens of seconds here, and is no lockup yet: the kernel reports what is
        // stuck for twice as long as this.
        .args(["-append", "console=ttyS0 panic=-1 quiet no_timer_check watchdog_thresh=60"])
        .args(["-serial", &format!("file:{CONSOLE}"), "-serial", "stdio"]);
    let mut transcript = Transcript::default();
    let succeeded = command
        .follow(Some(limit), |line| transcript.line(line))
        .with_context(|| format!("{EMULATOR} is in Debian's package qemu-system-x86"))?;
    let console = fs::read(&console).with_context(|| format!("read {}", console.display()))?;
    let console = String::from_utf8_lossy(&console).into_owned();
    Ok(Run { transcript, console, succeeded })
}
