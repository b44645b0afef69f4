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

use crate::image::{Bound, CONSTANTS, DATA, GUARD, Image, forbidden};
use crate::layout::{BLOCK, BLOCK_BYTES, Layout, PAGE, PLOT, in_file};

/// Plots whose addresses have the same upper bytes: none of them is used where those are forbidden together.
const RANGE: u32 = (1 << 24) / PLOT as u32;
/// The places at which a compact image is tried: more than have three bytes of their address in common.
const PLACES: usize = 64;

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
    /// Free plots, as first one and count; neighbours are one.
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

    /// The bytes that the function has there.
    pub(crate) fn length(self) -> usize {
        self.bytes as usize + self.zeros as usize
    }

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
        let mut store = Self { file, clock, layout, blocks, free: BTreeMap::new() };
        // The clock is where the first plot would be.
        let ranges = (0..blocks * BLOCK).step_by(RANGE as usize);
        for (first, is_clocks) in ranges.map(|first| (first as u32, first == 0)) {
            let address = layout.image(first);
            if [address, address + u64::from(DATA)]
                .iter()
                .all(|a| forbidden(&a.to_le_bytes()).is_none())
            {
                let taken = u32::from(is_clocks);
                store.give(first + taken, RANGE - taken);
            }
        }
        Ok(store)
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
        let guard = u64::from(GUARD);
        let found = u64::from(image.found_at()) + image.data.len() as u64;
        if image.compact {
            return (found + guard).next_multiple_of(PAGE);
        }
        let code = (image.code.len() as u64 + guard).next_multiple_of(PAGE);
        code + (found - u64::from(CONSTANTS)).next_multiple_of(PAGE)
    }

    /// Puts an image in, bound to its plots; none if there is no room.
    ///
    /// # Errors
    /// The kernel's, when there is no memory; [`io::ErrorKind::InvalidData`] when addresses of the image make
    /// forbidden instructions wherever it was tried.
    pub fn put(&mut self, image: &Image) -> io::Result<Option<Loaded>> {
        let data = image.data.len() + image.zeros as usize;
        let longest =
            (image.code.len() + GUARD as usize).max(image.constants.len()).max(data) as u64;
        let count = longest.div_ceil(PLOT) as u32;
        let mut bad = Vec::new();
        let found = loop {
            let Some(plot) = self.reserve(count) else { break None };
            let mut bound = image.bound(self.layout.image(plot), self.layout.calls);
            if !image.is_forbidden_here(&bound) {
                const BREAKPOINT: u8 = 0xcc;
                let code = bound.code.len() + GUARD as usize;
                bound.code.resize(code.next_multiple_of(PAGE as usize), BREAKPOINT);
                break Some((plot, bound));
            }
            bad.push(plot);
            if bad.len() == PLACES {
                break None;
            }
        };
        let is_bad = bad.len() == PLACES;
        bad.into_iter().for_each(|plot| self.give(plot, count));
        let Some((plot, Bound { code, constants })) = found else {
            let why = "its addresses have the bytes of instructions that no function has";
            return if is_bad {
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            } else {
                Ok(None)
            };
        };
        let at = in_file(plot);
        let written = write(self.file.as_fd(), at, &code)
            .and_then(|()| write(self.file.as_fd(), at + u64::from(CONSTANTS), &constants));
        let base = self.layout.image(plot);
        let loaded = Loaded {
            plot,
            count,
            entry: base + u64::from(image.entry),
            bytes: Self::bytes(image),
            data: (data != 0).then(|| Data {
                at: base + u64::from(DATA),
                from: base + u64::from(image.found_at()),
                bytes: image.data.len() as u32,
                zeros: image.zeros,
            }),
        };
        match written {
            Ok(()) => Ok(Some(loaded)),
            Err(why) => {
                self.take(&loaded)?;
                Err(why)
            }
        }
    }

    /// So many plots in a row that nobody has; the first one.
    fn reserve(&mut self, count: u32) -> Option<u32> {
        let (&plot, &free) = self.free.iter().find(|(_, free)| **free >= count)?;
        self.free.remove(&plot);
        if free > count {
            self.free.insert(plot + count, free - count);
        }
        Some(plot)
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
        self.give(plot, count);
        Ok(())
    }

    /// Gives plots back.
    fn give(&mut self, plot: u32, count: u32) {
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
    }
}

fn write(file: BorrowedFd<'_>, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, at)?;
        (at, bytes) = (at + written as u64, &bytes[written..]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Binding, Target};

    fn store(images: u64) -> Store {
        Store::new(Layout { images, calls: 0x4000_7fff_f000, cells: 0x4000_8000_0000 }, 1).unwrap()
    }

    /// Its constant is an address that ends in F08.
    fn compact() -> Image {
        Image {
            code: vec![0xc3; 0xf10],
            constants: vec![0; 16],
            bindings: vec![Binding { word: 0xf10, target: Target::Here(0xf08) }],
            compact: true,
            ..Image::default()
        }
    }

    #[test]
    fn a_place_where_an_address_is_forbidden_is_not_used() {
        let (mut store, image) = (store(0x2000_0000_0000), compact());
        image.check().unwrap();
        let loaded: Vec<_> = (0..0x52).map(|_| store.put(&image).unwrap().unwrap()).collect();
        // 0F 05 are in the middle of 0x2000_0005_0F08.
        let plots: Vec<_> = loaded.iter().map(|loaded| loaded.plot).collect();
        let wanted: Vec<_> = (1..=0x53).filter(|plot| *plot != 0x50).collect();
        assert_eq!(plots, wanted);
        assert!(loaded.iter().all(|loaded| loaded.bytes == PAGE));
        for loaded in &loaded {
            store.take(loaded).unwrap();
        }
        assert_eq!(store.free.first_key_value(), Some((&1, &(BLOCK as u32 - 1))));
    }

    #[test]
    fn plots_whose_upper_bytes_are_forbidden_are_nobodys() {
        let mut store = store(0x2005_0000_0000);
        // 0F and 05 are bytes 3 and 4 of all addresses from 0x2005_0F00_0000 on.
        let ranges = [(1, 0xefff), (0x1_0000, BLOCK as u32 - 0x1_0000)];
        assert_eq!(store.free, BTreeMap::from(ranges));
        let whole = Image { code: vec![0xc3; 4 << 20], ..Image::default() };
        let loaded = store.put(&whole).unwrap().unwrap();
        assert_eq!((loaded.plot, loaded.count), (1, 1025));
    }

    #[test]
    fn an_image_that_no_place_is_right_for_is_refused_with_the_reason() {
        let mut store = store(0x2000_0000_0000);
        // The address of a call of the runtime is the same everywhere.
        store.layout.calls = 0x4000_050f_0000;
        let mut image = compact();
        image.bindings[0].target = Target::Call(crate::image::Call::Leave);
        let why = store.put(&image).unwrap_err().to_string();
        assert!(why.contains("bytes of instructions that no function has"), "{why}");
        assert_eq!(store.free.first_key_value(), Some((&1, &(BLOCK as u32 - 1))));
    }
}
