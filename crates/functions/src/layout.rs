//! Where things are: in the address space of every worker of a dispatcher, and in the memory that they share.
//!
//! All workers of a dispatcher have images, cells and the runtime's calls at the same addresses, so that
//! an image is bound once for all of them. The addresses are random numbers of the dispatcher.
//!
//! ```text
//! images                    the clock's page, instead of plot 0   a file of its own             r--
//! images + n * BLOCK_SPAN   code of the plots of block n   file: n * BLOCK_BYTES              r-x
//!        + CONSTANTS        constants that are apart       file: n * BLOCK_BYTES + CONSTANTS  r--
//!        + DATA             their data                     no file, each worker's own         rw-
//! calls                     the runtime's calls                                               r-x
//! cells + n * CELL_BYTES    cell n: header, log, heap; a gap; stack                           rw-
//! ```
//!
//! A plot is a page of each part; an image has as many in a row as its longest part needs, all in one block.

use partywall_fn::cell::{CELL_BYTES, HEAP, STACK_TOP};
use serde::{Deserialize, Serialize};

use crate::image::{CONSTANTS, DATA};

/// The bytes of a plot.
pub const PLOT: u64 = PAGE;
/// The plots of a block.
pub const BLOCK: u64 = CONSTANTS as u64 / PLOT;
/// The bytes of a block in the images' memory.
pub const BLOCK_BYTES: u64 = DATA as u64;
/// The addresses of a block.
pub const BLOCK_SPAN: u64 = 2 << 30;
/// The most blocks.
pub const BLOCKS: u64 = 64;
/// The most cells of a worker.
pub const CELLS: u64 = 64;
/// The colours of cells but cell 0: those of one have a protection key together, and one owner at a time.
pub const COLOURS: usize = 12;
/// The stack and the heap of cell 0, which is cleaned after each function.
pub const LIGHT_STACK: u64 = 8 << 10;
/// See [`LIGHT_STACK`].
pub const LIGHT_HEAP: u64 = 256 << 10;
/// The stack and the heap of all other cells.
pub const HEAVY_STACK: u64 = 256 << 10;
/// See [`HEAVY_STACK`].
pub const HEAVY_HEAP: u64 = 16 << 20;
/// The bytes of the ring in a worker's memory, at its begin.
pub const RING_BYTES: u64 = 64 << 10;
/// Where a worker says why it has no protection keys, behind the ring.
pub const SAYS: u64 = RING_BYTES - 1024;
/// The bytes of payloads behind it.
pub const PAYLOAD_BYTES: u64 = 64 << 20;
/// The bytes of a cell in a worker's memory, behind the payloads.
pub const CELL_FILE: u64 = HEAP as u64 + HEAVY_HEAP + HEAVY_STACK;
/// The bytes of a worker's memory.
pub const WORKER_BYTES: u64 = RING_BYTES + PAYLOAD_BYTES + CELLS * CELL_FILE;

/// A page.
pub const PAGE: u64 = 4096;

/// The addresses that a dispatcher has drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Where images are.
    pub images: u64,
    /// Where the runtime's calls are.
    pub calls: u64,
    /// Where cells are.
    pub cells: u64,
}

/// A cell's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Its first byte.
    pub begin: u64,
    /// The bytes of its heap.
    pub heap: u64,
    /// The bytes of its stack.
    pub stack: u64,
    /// Where its memory is in the worker's.
    pub file: u64,
}

impl Cell {
    /// The end of its heap.
    pub fn heap_end(self) -> u64 {
        self.begin + HEAP as u64 + self.heap
    }

    /// Where its stack is in the worker's memory.
    pub fn stack_file(self) -> u64 {
        self.file + CELL_FILE - HEAVY_STACK
    }

    /// The top of its stack.
    pub fn stack_top(self) -> u64 {
        self.begin + STACK_TOP as u64
    }
}

impl Layout {
    /// Layout by random numbers.
    pub fn draw(random: [u64; 2]) -> Self {
        // In the lower half of what a process has, far from where the kernel puts a program and its
        // libraries.
        let images = (0x1000_0000_0000 + random[0] % 0x2000_0000_0000) & !(BLOCK_SPAN - 1);
        let cells = (0x4000_0000_0000 + random[1] % 0x1000_0000_0000) & !(BLOCK_SPAN - 1);
        Self { images, calls: cells - PAGE, cells }
    }

    /// The address of an image at this plot.
    pub fn image(self, plot: u32) -> u64 {
        let plot = u64::from(plot);
        self.images + plot / BLOCK * BLOCK_SPAN + plot % BLOCK * PLOT
    }

    /// A cell.
    pub fn cell(self, number: u16) -> Cell {
        let number = u64::from(number);
        let (heap, stack) =
            if number == 0 { (LIGHT_HEAP, LIGHT_STACK) } else { (HEAVY_HEAP, HEAVY_STACK) };
        Cell {
            begin: self.cells + number * CELL_BYTES as u64,
            heap,
            stack,
            file: RING_BYTES + PAYLOAD_BYTES + number * CELL_FILE,
        }
    }
}

/// The colour of a cell that is not cell 0.
pub fn colour(cell: u16) -> usize {
    (usize::from(cell) + COLOURS - 1) % COLOURS
}

/// Where the code of a plot is in the images' memory; its constants are [`CONSTANTS`] behind it.
pub fn in_file(plot: u32) -> u64 {
    let plot = u64::from(plot);
    plot / BLOCK * BLOCK_BYTES + plot % BLOCK * PLOT
}
