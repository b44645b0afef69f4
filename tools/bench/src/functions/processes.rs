//! `process-fair`, warm, and what all static processes share with their dispatcher: a cell for each function.
//!
//! ```text
//! byte of a cell   what                                            who writes
//!    0             asked: how many calls there have been (futex)   dispatcher
//!   64             served: how many have been answered             the process
//!   68             the function's number                           the process
//!   72..120        stamps of the last six calls                    the process
//! ```
//!
//! A process sleeps while `asked` is what it has served. The dispatcher adds one, wakes it, and looks at
//! `served` of all functions that have a call under way. A process has at most six of them; others wait.
//!
//! A process's arguments are numbers: its role, its function's number, its parent, its CPU, the clock's
//! three, and the descriptor of the cells.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::load::{Answer, Serves};
use super::task::Task;
use crate::error::Result;
use crate::sys::clock::Stamps;
use crate::sys::shared::{self, Shared};
use crate::sys::{cpu, fd, futex};

/// The bytes of a cell.
const CELL: usize = 128;
const SERVED: usize = 64;
const INDEX: usize = 68;
const STAMPS: usize = 72;
/// Calls that a process has at most.
const SLOTS: u32 = 6;
/// What a process that waits needs of memory, at most, in bytes.
const EACH: u64 = 256 << 10;
/// How long all processes may take to begin.
const BEGIN: Duration = Duration::from_secs(120);

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Waits and answers.
    Waits = 0,
    /// Answers once.
    Once = 1,
    /// Forks to answer.
    Forks = 2,
}

/// The cells of all functions.
#[derive(Debug)]
pub struct Cells {
    memory: Shared,
    file: OwnedFd,
}

impl Cells {
    /// So many, for children to inherit.
    pub fn new(count: u32) -> Result<Self> {
        let file = shared::create((count as usize * CELL).next_multiple_of(4096))?;
        let memory = Shared::map(&file)?;
        fd::inherit(file.as_fd())?;
        Ok(Self { memory, file })
    }

    /// Asks a function for one more answer; how many it has been asked for.
    #[inline]
    fn ask(&self, which: u32) -> u32 {
        let word = self.memory.word(which as usize * CELL);
        // SYNC(functions.asked)
        let before = word.fetch_add(1, Ordering::Release);
        futex::wake(word);
        before
    }

    /// How many calls a function has that are not answered.
    fn under_way(&self, which: u32) -> u32 {
        let asked = self.memory.word(which as usize * CELL).load(Ordering::Relaxed);
        asked.wrapping_sub(self.served(which))
    }

    /// How many answers a function has given.
    #[inline]
    pub fn served(&self, which: u32) -> u32 {
        // SYNC(functions.served)
        self.memory.word(which as usize * CELL + SERVED).load(Ordering::Acquire)
    }

    /// What a function says in an answer: its number, and its stamp.
    #[inline]
    pub fn said(&self, which: u32, number: u32) -> (u64, u64) {
        let at = which as usize * CELL;
        let index = self.memory.word(at + INDEX).load(Ordering::Relaxed);
        let stamp = self.memory.long(at + STAMPS + 8 * (number % SLOTS) as usize);
        (index.into(), stamp.load(Ordering::Relaxed))
    }

    /// The arguments of a process behind its role.
    pub fn arguments(&self, which: u32, cpu: usize, stamps: Stamps) -> [String; 7] {
        let numbers = [
            which.into(),
            std::process::id().into(),
            cpu as u64,
            stamps.boot,
            stamps.ticks,
            stamps.rate,
            self.file.as_raw_fd() as u64,
        ];
        numbers.map(|number| number.to_string())
    }
}

/// Processes that wait.
#[derive(Debug)]
pub struct Waiting {
    cells: Cells,
    children: Vec<Child>,
    program: PathBuf,
    /// Calls under way, by function and which of its calls.
    flights: Vec<(u32, u32, u32)>,
    /// Calls of functions that have as many as they have room for.
    full: VecDeque<(u32, u32)>,
    ready: VecDeque<Answer>,
}

impl Waiting {
    /// One for each function, asleep.
    pub fn start(task: &Task) -> Result<Self> {
        super::held::admit(task.count, EACH)?;
        let mut waiting = Self::none(task)?;
        // What is started here begins where it is to run.
        cpu::pin(task.cpus[1])?;
        let started: Result<Vec<Child>> =
            task.places().map(|which| waiting.spawn(Role::Waits, which, task)).collect();
        cpu::pin(task.cpus[0])?;
        waiting.children = started?;
        let begun = Instant::now();
        let is_there = |which: &u32| waiting.cells.said(*which, 0).0 == u64::from(*which);
        // The number of function 0 is there from the begin; it is the first that was started.
        while !task.places().all(|which| is_there(&which)) {
            if begun.elapsed() > BEGIN {
                return Err("not all processes have begun".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(waiting)
    }

    /// A process that forks for each call; it is asked as function 0.
    pub fn template(task: &Task) -> Result<Self> {
        let mut waiting = Self::none(task)?;
        waiting.children.push(waiting.spawn(Role::Forks, 0, task)?);
        Ok(waiting)
    }

    fn none(task: &Task) -> Result<Self> {
        Ok(Self {
            cells: Cells::new(task.count)?,
            children: Vec::new(),
            program: task.files.join("waiting"),
            flights: Vec::new(),
            full: VecDeque::new(),
            ready: VecDeque::new(),
        })
    }

    fn spawn(&self, role: Role, which: u32, task: &Task) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg((role as u32).to_string());
        command.args(self.cells.arguments(which, task.cpus[1], task.stamps));
        Ok(command.spawn().map_err(|error| {
            format!("process {which} of {}: {error} (the limit of processes: pids.max)", task.count)
        })?)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended has done so by itself.
            let _gone = child.kill();
        }
        for child in &mut self.children {
            let _gone = child.wait();
        }
    }
}

impl Serves for Waiting {
    #[inline]
    fn send(&mut self, which: u32, tag: u32, _: u64) -> Result<()> {
        if self.cells.under_way(which) < SLOTS {
            let number = self.cells.ask(which);
            self.flights.push((which, number, tag));
        } else {
            self.full.push_back((which, tag));
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<Answer>> {
        if self.ready.is_empty() {
            // What found no room is tried again, in its order.
            for _ in 0..self.full.len() {
                if let Some((which, tag)) = self.full.pop_front() {
                    self.send(which, tag, 0)?;
                }
            }
            let Self { cells, flights, ready, .. } = self;
            flights.retain(|&(of, number, tag)| {
                let is_over = (cells.served(of).wrapping_sub(number) as i32) > 0;
                if is_over {
                    let (which, stamp) = cells.said(of, number);
                    ready.push_back(Answer { tag, which, stamp });
                }
                !is_over
            });
        }
        Ok(self.ready.pop_front())
    }
}

/// The template as the one that serves all functions: they differ in nothing but the process.
#[derive(Debug)]
pub struct Zygote(pub Waiting);

impl Serves for Zygote {
    fn send(&mut self, which: u32, tag: u32, now: u64) -> Result<()> {
        // The process has one number; that of the call is kept beside the tag.
        self.0.send(0, tag | which << 8, now)
    }

    fn receive(&mut self) -> Result<Option<Answer>> {
        let answer = self.0.receive()?;
        let of = |Answer { tag, which, stamp }: Answer| Answer {
            tag: tag & 0xff,
            which: u64::from(tag >> 8) + which,
            stamp,
        };
        Ok(answer.map(of))
    }
}
