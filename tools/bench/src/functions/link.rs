//! The dispatcher's end of the runtime's ring, and nothing else of a dispatcher: before the runtime's worker,
//! or before what [`ring`](super::ring) has behind it.

use std::collections::VecDeque;

use partywall_abi::function::{End, Input, Short, Submission, Task as Asked};
use partywall_functions::clock::{Clock, Exactness};
use partywall_functions::dispatcher::worker::Worker;
use partywall_functions::dispatcher::{Preemption, Workers};
use partywall_functions::image::Image;
use partywall_functions::isolation::Wanted;
use partywall_functions::layout::Layout;
use partywall_functions::store::Store;

use super::load::{Answer, Serves};
use crate::error::Result;
use crate::sys::clock::Stamps;

/// Where long replies would be, in grains: behind what all slots have of their own.
const OUT: u32 = 16_384;
/// How many bytes they may have.
const ROOM: u32 = 4096;

/// A ring with a worker.
#[derive(Debug)]
pub struct Link {
    worker: Worker,
    tags: VecDeque<u32>,
    entries: Vec<u64>,
    calls: u64,
    pid: u32,
    // What the worker maps.
    _store: Store,
    _clock: Clock,
}

/// A store of so many images, with its clock's page.
pub fn store(random: u64, images: u32) -> Result<(Store, Clock, Stamps)> {
    let layout = Layout::draw([random << 31, random << 33 | 5 << 31]);
    // An image has a plot, a block has 8,192 of them, and one is the clock's.
    let blocks = u64::from(images) / 8000 + 1;
    let store = Store::new(layout, blocks)?;
    let clock = Clock::new(&store, Exactness::Exact)?;
    let stamps = stamps(&store)?;
    Ok((store, clock, stamps))
}

/// One worker on this CPU, whose functions the dispatcher stops and which stays.
pub fn one_worker(program: Vec<String>, cpu: usize) -> Workers {
    Workers {
        program,
        cpus: vec![Some(cpu)],
        processes: 1,
        exactness: Exactness::Exact,
        preemption: Preemption::Dispatcher,
        resident: u64::MAX,
        recycle: u32::MAX,
        isolation: Wanted::Prefer,
        archive: std::env::temp_dir(),
    }
}

/// The clock of the images of a store.
fn stamps(store: &Store) -> Result<Stamps> {
    use partywall_fn::clock::page;
    let mut bytes = [0; 8 * page::WORDS];
    if rustix::io::pread(store.clock(), &mut bytes, 0)? != bytes.len() {
        return Err("the clock's page is short".into());
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
    Ok(Stamps { boot: word(page::BOOT), ticks: word(page::TICKS), rate: word(page::RATE) })
}

impl Link {
    /// Starts `program` as the worker, with these images loaded.
    pub fn start(
        program: &[String],
        cpu: usize,
        seed: u64,
        images: impl ExactSizeIterator<Item = Image>,
    ) -> Result<(Self, Stamps)> {
        Self::start_as(one_worker(program.to_vec(), cpu), seed, images)
    }

    /// The same of a worker that is described.
    pub fn start_as(
        workers: Workers,
        seed: u64,
        images: impl ExactSizeIterator<Item = Image>,
    ) -> Result<(Self, Stamps)> {
        let (mut store, clock, stamps) = store(seed, images.len() as u32)?;
        let mut entries = Vec::new();
        for image in images {
            entries.push(store.put(&image)?.ok_or("the images' memory is full")?.entry);
        }
        let mut worker = Worker::start(&workers, 0, &store)?;
        worker.wait()?;
        let pid = worker.pid();
        let (tags, calls) = (VecDeque::new(), 0);
        let link = Self { worker, tags, entries, calls, pid, _store: store, _clock: clock };
        Ok((link, stamps))
    }

    /// One whose functions are not images: so many numbers stand for them.
    pub fn of_numbers(mut self, count: u32) -> Self {
        self.entries = (0..count).map(u64::from).collect();
        self
    }

    /// Submits a request of three words.
    pub fn submit(&mut self, which: u32, words: [u64; 3], tag: u32) {
        self.calls += 1;
        self.worker.submit(&Submission {
            task: Asked::Invoke,
            cell: 0,
            entry: self.entries[which as usize],
            quanta: 0,
            call: self.calls,
            bytes: 8,
            input: Input::Short(Short { words }),
            output: OUT,
            room: ROOM,
        });
        self.tags.push_back(tag);
    }

    /// Ends the worker.
    pub fn stop(mut self) -> Result<()> {
        self.worker.child().kill()?;
        self.worker.child().wait()?;
        Ok(())
    }
}

impl Serves for Link {
    #[inline]
    fn send(&mut self, which: u32, tag: u32, _: u64) -> Result<()> {
        self.submit(which, [u64::from(which), 0, 0], tag);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<Answer>> {
        let Some((_, completion)) = self.worker.completion() else { return Ok(None) };
        let tag = self.tags.pop_front().ok_or("an answer that nobody waits for")?;
        let Some(short) = completion.short.filter(|_| completion.end == End::Reply) else {
            return Err(format!("a call has ended with {:?}", completion.end).into());
        };
        let [which, stamp, _] = short.words;
        Ok(Some(Answer { tag, which, stamp }))
    }

    fn worker(&self) -> Option<u32> {
        Some(self.pid)
    }
}
