//! A process of a sample, ended if it does not end by itself: a child of the driver, a domain, or a process
//! in a container.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use partywall_domain::task::Domain;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;

use crate::child::{Order, Report};
use crate::error::Result;
use crate::porter::{Porter, Remote};

/// A process that never outlives its handle.
#[derive(Debug)]
pub struct Process {
    task: Task,
    exit: OwnedFd,
    says: File,
    status: Option<ExitStatus>,
}

#[derive(Debug)]
enum Task {
    Child(Child),
    Domain(Domain),
    Remote(Remote),
}

/// How long a wait lasts before other things are looked at.
pub const SLICE: Duration = Duration::from_millis(100);

impl Process {
    /// Starts this program again with a command that takes an order.
    pub fn start(command: &str, order: &impl Serialize, more: &[(&str, &str)]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([command, &serde_json::to_string(order)?])
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = child.stdout.take().map(OwnedFd::from);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let task = Task::Child(child);
        let exit = pidfd_open(pid.ok_or("no such id")?, PidfdFlags::empty())?;
        Ok(Self { task, exit, says: says.ok_or("no pipe")?.into(), status: None })
    }

    /// A domain that writes its report to the other end of `says`.
    pub fn of_domain(domain: Domain, says: OwnedFd) -> Result<Self> {
        let exit = domain.pidfd().try_clone_to_owned()?;
        Ok(Self { task: Task::Domain(domain), exit, says: says.into(), status: None })
    }

    /// A process in the container of this porter, which gets these descriptors of the order.
    pub fn in_container(porter: &Porter, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<Self> {
        let (remote, says) = porter.start(order, fds)?;
        let exit = remote.pidfd().try_clone_to_owned()?;
        Ok(Self { task: Task::Remote(remote), exit, says: says.into(), status: None })
    }

    /// Its process id, as the driver sees it.
    pub fn id(&self) -> u32 {
        match &self.task {
            Task::Child(child) => child.id(),
            Task::Domain(domain) => domain.pid(),
            Task::Remote(remote) => remote.pid(),
        }
    }

    /// Whether its exit status was collected.
    pub fn is_over(&self) -> bool {
        self.status.is_some()
    }

    /// Collects the exit status once there is one.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = match &mut self.task {
                Task::Child(child) => child.try_wait()?,
                Task::Domain(domain) => domain.try_wait()?,
                Task::Remote(remote) => remote.try_wait()?,
            };
        }
        Ok(self.status)
    }

    /// What it reported, once. It must have ended, so that the pipe ends too.
    pub fn report(&mut self) -> Result<Report> {
        let mut text = String::new();
        self.says.read_to_string(&mut text)?;
        let report = Report::read(&text, self.status);
        Ok(match &self.task {
            Task::Remote(remote) => Report { wall_ns: remote.wall_ns(), ..report },
            Task::Child(_) | Task::Domain(_) => report,
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Self::Child(child) = self {
            // Neither does anything to a child whose status was collected.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sleeps until one of `processes` that are not over has ended, or for `limit`.
pub fn await_exit(processes: &[&Process], limit: Duration) -> Result<()> {
    let running = processes.iter().filter(|process| !process.is_over());
    let mut fds: Vec<_> = running
        .map(|process| PollFd::from_borrowed_fd(process.exit.as_fd(), PollFlags::IN))
        .collect();
    match poll(&mut fds, Some(&Timespec::try_from(limit)?)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Why a client has failed: often because its server did, so what the server says comes first.
pub fn with_cause(server: &mut Process, client: &str) -> Result<String> {
    await_exit(&[server], SLICE)?;
    let cause = if server.ended()?.is_some() { server.report()?.error } else { None };
    Ok(cause.map_or(client.to_owned(), |cause| format!("server: {cause}; {client}")))
}
