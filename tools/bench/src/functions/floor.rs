#![allow(unsafe_code, reason = "maps images at their addresses, and calls what is there")]
//! `ring-floor`: bare functions at the addresses of images, called from a loop behind the runtime's ring.
//!
//! A bare function is machine code of one page: it reads the counter, converts it by the clock's page as
//! functions do, and returns that with its number. It runs on the worker's stack, and nothing is checked,
//! cleaned or restored.

use partywall_abi::function::Submission;
use partywall_functions::image::Image;
use partywall_functions::layout::{BLOCK, BLOCK_BYTES, BLOCK_SPAN, PAGE, PLOT};
use rustix::mm::{MapFlags, ProtFlags};

use super::ring::Place;
use crate::error::Result;

/// `(clock's page) -> (stamp, number)`, the number to be put at its end.
const CODE: &[u8] = &[
    0x0f, 0x31, // rdtsc
    0x48, 0xc1, 0xe2, 0x20, // shl rdx, 32
    0x48, 0x09, 0xd0, // or rax, rdx
    0x48, 0x2b, 0x47, 0x10, // sub rax, [rdi + 16]
    0x48, 0xf7, 0x67, 0x18, // mul qword ptr [rdi + 24]
    0x48, 0x0f, 0xac, 0xd0, 0x20, // shrd rax, rdx, 32
    0x48, 0x03, 0x07, // add rax, [rdi]
    0xba, // mov edx, ..
];
/// What is behind the number.
const RETURN: u8 = 0xc3;

/// A bare function.
pub fn image(number: u32) -> Image {
    let code = [CODE, &number.to_le_bytes(), &[RETURN]].concat();
    Image { code, ..Image::default() }
}

#[repr(C)]
struct Said {
    stamp: u64,
    number: u64,
}

type Bare = unsafe extern "C" fn(*const u64) -> Said;

/// The worker; it comes back only to say why it ends.
pub fn main() -> String {
    match run() {
        Ok(()) => "the floor has ended".into(),
        Err(why) => format!("the floor cannot begin: {why}"),
    }
}

fn run() -> Result<()> {
    let place = Place::open()?;
    let layout = place.start.layout;
    for block in 0..place.start.blocks {
        let at = std::ptr::without_provenance_mut((layout.images + block * BLOCK_SPAN) as usize);
        let (bytes, rights) = ((BLOCK * PLOT) as usize, ProtFlags::READ | ProtFlags::EXEC);
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        // SAFETY: nothing is there, or this fails.
        unsafe { rustix::mm::mmap(at, bytes, rights, flags, &place.images, block * BLOCK_BYTES)? };
    }
    let (anywhere, rights) = (std::ptr::null_mut(), ProtFlags::READ);
    let (bytes, flags) = (PAGE as usize, MapFlags::SHARED);
    // SAFETY: where nothing is.
    let clock = unsafe { rustix::mm::mmap(anywhere, bytes, rights, flags, &place.clock, 0)? };
    let clock = clock.cast::<u64>().cast_const();
    let run = |clock: &mut *const u64, submission: &Submission| {
        let at = std::ptr::with_exposed_provenance::<()>(submission.entry as usize);
        // SAFETY: the dispatcher is this program, and has put a function of this type there.
        let bare = unsafe { std::mem::transmute::<*const (), Bare>(at) };
        // SAFETY: as above; the clock's page is mapped for ever.
        let Said { stamp, number } = unsafe { bare(*clock) };
        Ok([number, stamp])
    };
    place.serve(&mut { clock }, run, |_| ())
}
