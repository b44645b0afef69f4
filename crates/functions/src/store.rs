//! The images' memory of a group of functions: one file without a name, which every worker of the group maps
//! and the dispatcher alone writes. Groups have the same addresses, and the clock's page, which is a file of
//! its own; nothing of one group's file is in another one's workers.
//!
//! An image is bound to its plots when it is put there: the words that hold addresses are written once for
//! all workers. No byte of it changes then until it is taken out, when its pages are given back
//! (fallocate(2), FALLOC_FL_PUNCH_HOLE), which takes them from all workers at once.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::image::{Binding, CONSTANTS, DATA, GUARD, Image, Target};
use crate::layout::{BLOCK, BLOCK_BYTES, Layout, PAGE, PLOT, in_file};

/// Memory of so many bytes, of which no process that has a descriptor of it can take any away: whoever maps
/// it finds all of it.
pub(crate) fn memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The images' memory.
#[derive(Debug)]
pub struct Store {
    file: OwnedFd,
    clock: Arc<OwnedFd>,
    layout: Layout,
    blocks: u64,
    /// Free layout, as first one and count; neighbours are one.
    free: BTreeMap<u32, u32>,
}

/// The data of an image, which its worker restores before each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// Where the function has them.
    pub at: u64,
    /// Where they are as it finds them.
    pub from: u64,
    /// How many bytes are copied from there.
    pub bytes: u32,
    /// How many zeros follow them.
    pub zeros: u32,
}

impl Data {
    /// Their length in a payload.
    pub const BYTES: usize = 24;

    /// As they are in a payload, before the request.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let lengths = u64::from(self.bytes) | u64::from(self.zeros) << 32;
        let words = [self.at, self.from, lengths].map(u64::to_le_bytes);
        std::array::from_fn(|at| words[at / 8][at % 8])
    }

    /// From a payload.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let lengths = word(2);
        Self { at: word(0), from: word(1), bytes: lengths as u32, zeros: (lengths >> 32) as u32 }
    }
}

/// An image that has its plots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loaded {
    /// Its first plot.
    pub plot: u32,
    /// How many it has in a row.
    pub count: u32,
    /// Where it is entered.
    pub entry: u64,
    /// The pages that it has in memory, in bytes.
    pub bytes: u64,
    /// Its data, if it has any.
    pub data: Option<Data>,
}

impl Store {
    /// An empty one of so many blocks, and a page for the clock.
    ///
    /// # Errors
    /// The kernel's, when it gives no such file.
    pub fn new(layout: Layout, blocks: u64) -> io::Result<Self> {
        let clock = memory("partywall-clock", PAGE)?;
        Self::with(layout, blocks, clock.into())
    }

    /// Another empty one like this, with the same clock.
    ///
    /// # Errors
    /// The kernel's, when it gives no such file.
    pub fn another(&self) -> io::Result<Self> {
        Self::with(self.layout, self.blocks, self.clock.clone())
    }

    fn with(layout: Layout, blocks: u64, clock: Arc<OwnedFd>) -> io::Result<Self> {
        let file = memory("partywall-images", blocks * BLOCK_BYTES)?;
        let count = BLOCK as u32;
        let mut free: BTreeMap<_, _> =
            (0..blocks as u32).map(|block| (block * count, count)).collect();
        // The clock is where the first plot would be.
        free.remove(&0);
        free.insert(1, count - 1);
        Ok(Self { file, clock, layout, blocks, free })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Where things are.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The memory, for workers.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The clock's page.
    pub fn clock(&self) -> BorrowedFd<'_> {
        self.clock.as_fd()
    }

    /// The bytes of the pages that an image has when it is in.
    pub fn bytes(image: &Image) -> u64 {
        let code = image.code.len() as u64 + u64::from(GUARD);
        let constants = image.constants.len().next_multiple_of(16) + image.data.len();
        code.next_multiple_of(PAGE) + (constants as u64).next_multiple_of(PAGE)
    }

    /// Puts an image in, bound to its plots; none if there is no room.
    ///
    /// # Errors
    /// The kernel's, when there is no memory.
    pub fn put(&mut self, image: &Image) -> io::Result<Option<Loaded>> {
        let data = image.data.len() + image.zeros as usize;
        let longest =
            (image.code.len() + GUARD as usize).max(image.constants.len()).max(data) as u64;
        let count = longest.div_ceil(PLOT) as u32;
        let Some((&plot, &free)) = self.free.iter().find(|(_, free)| **free >= count) else {
            return Ok(None);
        };
        self.free.remove(&plot);
        if free > count {
            self.free.insert(plot + count, free - count);
        }
        let (code, constants) = self.bound(image, plot);
        let at = in_file(plot);
        let written = write(self.file.as_fd(), at, &code)
            .and_then(|()| write(self.file.as_fd(), at + u64::from(CONSTANTS), &constants));
        let loaded = Loaded {
            plot,
            count,
            entry: self.layout.image(plot) + u64::from(image.entry),
            bytes: Self::bytes(image),
            data: (data != 0).then(|| self.data(image, plot)),
        };
        match written {
            Ok(()) => Ok(Some(loaded)),
            Err(why) => {
                self.take(&loaded)?;
                Err(why)
            }
        }
    }

    /// Takes an image out. No worker may enter it any more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&mut self, loaded: &Loaded) -> io::Result<()> {
        let Loaded { plot, count, .. } = *loaded;
        let (flags, bytes) =
            (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, u64::from(count) * PLOT);
        for part in [0, u64::from(CONSTANTS)] {
            rustix::fs::fallocate(&self.file, flags, in_file(plot) + part, bytes)?;
        }
        let (mut first, mut all) = (plot, count);
        if let Some((&before, &free)) = self.free.range(..plot).next_back()
            && before + free == plot
            && u64::from(plot) % BLOCK != 0
        {
            self.free.remove(&before);
            (first, all) = (before, all + free);
        }
        let next = plot + count;
        if u64::from(next) % BLOCK != 0
            && let Some(free) = self.free.remove(&next)
        {
            all += free;
        }
        self.free.insert(first, all);
        Ok(())
    }

    fn data(&self, image: &Image, plot: u32) -> Data {
        let base = self.layout.image(plot);
        Data {
            at: base + u64::from(DATA),
            from: base + u64::from(CONSTANTS) + image.constants.len().next_multiple_of(16) as u64,
            bytes: image.data.len() as u32,
            zeros: image.zeros,
        }
    }

    /// The code with its guard, and the constants with their addresses, behind which data are as the function
    /// finds them.
    fn bound(&self, image: &Image, plot: u32) -> (Vec<u8>, Vec<u8>) {
        const BREAKPOINT: u8 = 0xcc;
        let base = self.layout.image(plot);
        let mut code = image.code.clone();
        code.resize((code.len() + GUARD as usize).next_multiple_of(PAGE as usize), BREAKPOINT);
        let mut constants = image.constants.clone();
        constants.resize(constants.len().next_multiple_of(16), 0);
        let data = constants.len();
        constants.extend_from_slice(&image.data);
        for Binding { word, target } in &image.bindings {
            let address = match target {
                Target::Here(address) => base + u64::from(*address),
                Target::Call(call) => self.layout.calls + 16 * *call as u64,
            };
            let at = match word.checked_sub(DATA) {
                Some(at) => data + at as usize,
                None => (*word - CONSTANTS) as usize,
            };
            constants[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        (code, constants)
    }
}

fn write(file: BorrowedFd<'_>, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, at)?;
        (at, bytes) = (at + written as u64, &bytes[written..]);
    }
    Ok(())
}
