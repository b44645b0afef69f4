//! Cold processes: one is made for a call, writes its stamp into its cell, and ends.
//!
//! | contender | how it is made |
//! |---|---|
//! | `process-fair` | posix_spawn(3) of the static program, which binds itself to its core |
//! | `process-fork-exec` | taskset(1), then the program of ATC'18's kind: two execs, shared libraries |
//! | `process-fork-exec-once` | that program alone, which binds itself to its core |
//!
//! The standard library makes all of them by posix_spawn(3), which is vfork and exec. A process is waited for
//! when its answer was taken, outside of its call's time.

use std::path::PathBuf;
use std::process::{Child, Command};

use super::load::{Answer, Serves};
use super::processes::{Cells, Role};
use super::task::Task;
use crate::error::Result;
use crate::sys::clock::Stamps;

/// How processes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The static program.
    Static,
    /// taskset, and the program with shared libraries.
    Twice,
    /// The program with shared libraries.
    Once,
}

/// A CPU that there is not.
const NO_CPU: usize = 1 << 16;

/// Makes a process for each call, one at a time.
#[derive(Debug)]
pub struct Spawned {
    how: How,
    cells: Cells,
    files: PathBuf,
    cpu: usize,
    stamps: Stamps,
    running: Option<(Child, u32, u32)>,
}

impl Spawned {
    /// One that has made none.
    pub fn new(task: &Task, how: How) -> Result<Self> {
        Ok(Self {
            how,
            cells: Cells::new(task.count)?,
            files: task.files.clone(),
            cpu: task.cpus[1],
            stamps: task.stamps,
            running: None,
        })
    }
}

impl Serves for Spawned {
    fn send(&mut self, which: u32, tag: u32, _: u64) -> Result<()> {
        // One that taskset has bound does not bind itself again.
        let cpu = if self.how == How::Twice { NO_CPU } else { self.cpu };
        let arguments = self.cells.arguments(which, cpu, self.stamps);
        let published = self.files.join("published");
        let child = match self.how {
            How::Static => Command::new(self.files.join("waiting"))
                .arg((Role::Once as u32).to_string())
                .args(arguments)
                .spawn(),
            How::Once => Command::new(published).arg("once").args(arguments).spawn(),
            How::Twice => Command::new("taskset")
                .arg(format!("{:x}", 1_u128 << self.cpu))
                .arg(published)
                .arg("once")
                .args(arguments)
                .spawn(),
        };
        let child = child.map_err(|error| format!("a process, {:?}: {error}", self.how))?;
        self.running = Some((child, which, tag));
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Answer>> {
        let Some((_, of, tag)) = &self.running else { return Ok(None) };
        let (of, tag) = (*of, *tag);
        if self.cells.served(of) == 0 {
            return Ok(None);
        }
        let (which, stamp) = self.cells.said(of, 0);
        Ok(Some(Answer { tag, which, stamp }))
    }

    fn is_cold(&mut self, which: u32) -> Result<bool> {
        // What has ended is waited for, so that there is no process of any function.
        if let Some((mut child, ..)) = self.running.take() {
            let ended = child.wait()?;
            if !ended.success() {
                return Err(format!("a process has ended with {ended}").into());
            }
        }
        Ok(self.cells.served(which) == 0)
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some((child, ..)) = &mut self.running {
            // One that has ended has done so by itself.
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}
