//! A child of the driver, ended by its id if it does not end by itself.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::child::{Order, Report};
use crate::error::{Fault, Result};
use crate::launch::Launch;

/// A child that never outlives its handle.
#[derive(Debug)]
pub struct Process {
    child: Child,
    exit: Option<OwnedFd>,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts this program again, with an order.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(order: &Order) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child").arg(serde_json::to_string(order)?);
        Self::spawn(command)
    }

    /// Starts this program again as the launcher of both sides.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn launch(launch: &Launch) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("launch").arg(serde_json::to_string(launch)?);
        // Without restartable sequences, which an address space of domains cannot have.
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut process = Self { child, exit: None, status: None };
        let pid = i32::try_from(process.child.id()).ok().and_then(Pid::from_raw);
        process.exit = Some(pidfd_open(pid.ok_or("no such id")?, PidfdFlags::empty())?);
        Ok(process)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether its exit status was collected.
    pub fn is_over(&self) -> bool {
        self.status.is_some()
    }

    /// Collects the exit status once there is one.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// What it reported. It must have ended, so that the pipe ends too.
    ///
    /// # Errors
    /// If the report was taken already.
    pub fn report(&mut self) -> Result<Report> {
        let mut text = String::new();
        self.child.stdout.take().ok_or("the report was taken")?.read_to_string(&mut text)?;
        Ok(Report::read(&text, self.status))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            // Both fail only if the process has ended meanwhile.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sleeps until one of `processes` has ended, or for `limit`.
///
/// # Errors
/// If the system refuses.
pub fn await_exit(processes: &[&Process], limit: Duration) -> Result<()> {
    let exits = processes.iter().filter_map(|process| process.exit.as_ref());
    let mut fds: Vec<PollFd<'_>> = exits.map(|exit| PollFd::new(exit, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&Timespec::try_from(limit)?)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Fault::from(error)),
    }
}
