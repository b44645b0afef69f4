//! `partywall-fn`: the function runtime, called as a program would that has its dispatcher on a core of its
//! own. A call is sent by [`Dispatcher::call`] and submitted by the next [`Dispatcher::poll`], which also
//! takes what has ended.
//!
//! A cold call is one of a function that is registered and not loaded: its dispatcher puts the image into the
//! images' memory, and the worker finds its pages by faults. Before it, the worker's /proc/PID/pagemap is
//! looked at: no page may be there where the image will be, which is among the [`PLACES`] behind the one
//! before, for the store leaves out those that are not right for it; and it is looked whether that is where
//! the image came to be.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use partywall_functions::clock::Clock;
use partywall_functions::dispatcher::{
    Dispatcher, Event, Id, Outcome, Preemption, Registration, Share, Workers,
};
use partywall_functions::image::{CONSTANTS, Image};
use partywall_functions::layout::{Layout, PAGE, PLOT};
use partywall_functions::schedule::{Limits, Owner};
use partywall_functions::signed::{Made, Signed};
use partywall_trust::SigningKey;

use super::load::{Answer, Serves};
use super::prepared::{Copies, copy_of};
use super::task::Task;
use super::{held, link, worker};
use crate::error::Result;
use crate::sys::clock::Stamps;

/// Limits that nobody reaches.
const UNLIMITED: Limits = Limits {
    rate: u64::MAX,
    burst: u64::MAX,
    queue: usize::MAX,
    concurrency: 64,
    waiting: 64,
    share: 100,
};

/// The plots behind an image in one of which the next one is.
const PLACES: u32 = 64;

/// What the other owner's calls are told by.
const NEIGHBOUR: u32 = u32::MAX;

/// The dispatcher, and what it has told.
#[derive(Debug)]
pub struct Ours {
    /// The dispatcher itself.
    pub dispatcher: Dispatcher<u32>,
    /// The clock of its functions.
    pub stamps: Stamps,
    /// An owner without limits.
    pub owner: Owner,
    /// What has happened, until it is looked at.
    pub events: Vec<Event<u32>>,
    ids: Vec<Id>,
    answers: VecDeque<Answer>,
    layout: Layout,
    worker: u32,
    /// What is mapped there, for whoever may look.
    pages: std::io::Result<File>,
    /// A function that another owner calls whenever its limits let it.
    pub neighbour: Option<Id>,
    /// How many of those calls were refused.
    pub refused: u64,
    /// The plot of the image that is loaded next.
    next: u32,
    /// The function whose cold call was the last.
    last: Option<u32>,
    /// What images are signed with.
    key: SigningKey,
    _clock: Clock,
}

impl Ours {
    /// A dispatcher with one worker and no function.
    pub fn start(task: &Task) -> Result<Self> {
        Self::start_with(task, Preemption::Dispatcher)
    }

    /// The same with another one who stops functions.
    pub fn start_with(task: &Task, preemption: Preemption) -> Result<Self> {
        let (store, clock, stamps) = link::store(task.seed, task.count)?;
        let layout = store.layout();
        let program = worker()?;
        let before = held::children()?;
        let workers = Workers { preemption, ..link::one_worker(program, task.cpus[1]) };
        let mut dispatcher = Dispatcher::new(store, workers)?;
        let mut started = held::children()?;
        started.retain(|pid| !before.contains(pid));
        let [worker] = started[..] else { return Err("the dispatcher has not one worker".into()) };
        let owner = dispatcher.add_owner(UNLIMITED);
        let pages = File::open(format!("/proc/{worker}/pagemap"));
        Ok(Self {
            dispatcher,
            stamps,
            owner,
            events: Vec::new(),
            ids: Vec::new(),
            answers: VecDeque::new(),
            layout,
            worker,
            pages,
            neighbour: None,
            refused: 0,
            next: 1,
            last: None,
            key: SigningKey::generate(),
            _clock: clock,
        })
    }

    /// Registers a function of an owner, with a budget.
    pub fn register(&mut self, image: Image, owner: Owner, budget: Duration) -> Result<Id> {
        let made = Made { sources: String::new(), compiler: String::new() };
        let registration = Registration {
            owner,
            image: Signed::new("f", image, made, &self.key).into(),
            parameters: Vec::new(),
            budget,
            idempotent: false,
            share: Share::All,
            strikes: u32::MAX,
        };
        Ok(self.dispatcher.register(registration)?)
    }

    /// Registers all copies of the time stamp function.
    pub fn register_copies(&mut self, files: &Path, count: u32) -> Result<()> {
        let copies = Copies::new(files)?;
        for which in 0..count {
            let image = copies.copy(which)?;
            let id = self.register(image, self.owner, Duration::from_secs(1))?;
            self.ids.push(id);
        }
        Ok(())
    }

    /// Loads them all.
    pub fn preload(&mut self) -> Result<()> {
        for id in &self.ids {
            self.dispatcher.preload(*id)?;
        }
        Ok(())
    }

    /// The worker's process.
    pub fn pid(&self) -> u32 {
        self.worker
    }

    /// Polls once; the time before.
    pub fn poll(&mut self) -> Result<u64> {
        let now = self.stamps.now();
        self.dispatcher.poll(now, &mut self.events)?;
        Ok(now)
    }

    /// Whether a page of the places behind this plot, of code or of constants, is in the worker.
    fn is_mapped(&self, plot: u32) -> Result<bool> {
        const PRESENT: u64 = 1 << 63;
        const PAGES: usize = (PLACES as u64 * PLOT / PAGE) as usize;
        let begin = self.layout.image(plot);
        let pages = self.pages.as_ref();
        let pages =
            pages.map_err(|error| format!("the worker's pages (CAP_SYS_PTRACE): {error}"))?;
        let mut entries = [0; PAGES * 8];
        for part in [begin, begin + u64::from(CONSTANTS)] {
            pages.read_exact_at(&mut entries, part / PAGE * 8)?;
            let (words, _) = entries.as_chunks();
            if words.iter().any(|word| u64::from_le_bytes(*word) & PRESENT != 0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.dispatcher.kill_worker(0);
    }
}

impl Serves for Ours {
    #[inline]
    fn send(&mut self, which: u32, tag: u32, now: u64) -> Result<()> {
        let request = which.to_le_bytes().to_vec();
        match self.dispatcher.call(self.ids[which as usize], request, tag, (now, None)) {
            Ok(_) => Ok(()),
            Err(done) => Err(format!("a call was not taken: {:?}", done.outcome).into()),
        }
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<Answer>> {
        if let Some(answer) = self.answers.pop_front() {
            return Ok(Some(answer));
        }
        if let Some(id) = self.neighbour {
            let now = self.stamps.now();
            let taken = self.dispatcher.call(id, vec![0; 4], NEIGHBOUR, (now, None));
            self.refused += u64::from(taken.is_err());
        }
        self.poll()?;
        for event in self.events.drain(..) {
            let Event::Done(done) = event else { return Err("a function calls a service".into()) };
            if done.token == NEIGHBOUR {
                continue;
            }
            let Outcome::Reply(reply) = done.outcome else {
                return Err(format!("a call has ended with {:?}", done.outcome).into());
            };
            let (words, _) = reply.as_chunks::<8>();
            let [number, stamp] = words else { return Err("a reply of another length".into()) };
            let [which, stamp] = [copy_of(u64::from_le_bytes(*number)), u64::from_le_bytes(*stamp)];
            self.answers.push_back(Answer { tag: done.token, which, stamp });
        }
        Ok(self.answers.pop_front())
    }

    fn is_cold(&mut self, which: u32) -> Result<bool> {
        // The one before is loaded by now: that loads nothing.
        let mut is_there = true;
        if let Some(last) = self.last.replace(which) {
            let loaded = self.dispatcher.preload(self.ids[last as usize])?;
            is_there = (self.next..self.next + PLACES).contains(&loaded.plot);
            self.next = loaded.plot + loaded.count;
        }
        Ok(is_there && !self.is_mapped(self.next)?)
    }

    fn worker(&self) -> Option<u32> {
        Some(self.worker)
    }
}
