//! The `words` bench: how long a text takes to reach a service that counts its words.
//!
//! Every client has the text as one message: it reads the file into a buffer, or where its transport has
//! memory for that (`shm`, `partywall-raw`, `partywall-native`, `domain`) straight into it, sends it, and
//! checks the answer. Every server has the whole message in contiguous memory before it counts, also where
//! its transport would let it count piece by piece; of a parcel, which its sender can write, it copies a
//! piece at a time to count it. Warm clients and servers use their buffers again where their transport lets
//! them.
//!
//! Sides in containers see the text in the directory of the run, and a socket with a name in a directory that
//! both can write, as one has it in a volume of both.

pub mod control;
pub mod count;
pub mod domain;
pub mod floor;
pub mod generate;
pub mod partywall;
pub mod shm;
pub mod stream;
pub mod tonic;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use crate::case::{COUNTS_MAX, Case, Clock, Op, Place, WORD_SIZES, Wait};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::text::{Answer, Text};

/// The cells of a contender: both operations under clock B, the total under clock A.
pub fn cases(wait: Option<Wait>) -> Vec<Case> {
    let mut cases = Vec::new();
    for words in WORD_SIZES {
        cases.push(Case::words(Clock::A, Op::Total, words, wait));
        cases.push(Case::words(Clock::B, Op::Total, words, wait));
        if words <= COUNTS_MAX {
            cases.push(Case::words(Clock::B, Op::Counts, words, wait));
        }
    }
    cases
}

/// The same for the total, with each side in a container of its own.
pub fn contained(wait: Option<Wait>) -> Vec<Case> {
    let total = cases(wait).into_iter().filter(|case| case.op == Some(Op::Total));
    total.map(|case| case.at(Place::TwoContainers)).collect()
}

/// Runs a client: asks once under clock A, repeatedly under clock B, and checks every answer.
pub fn drive(seat: &Seat, mut ask: impl FnMut(&Text, Op) -> Result<Answer>) -> Result<Figures> {
    let text = seat.text()?;
    let case = seat.case();
    let op = case.op.ok_or("not a case of words")?;
    let expected = text.expected(op);
    let mut wrong = 0;
    if case.clock == Some(Clock::A) {
        let others = seat.others();
        let before = others.cpu_ns()?;
        wrong += u64::from(ask(&text, op)? != expected);
        let spent = others.are_there().then_some(others.cpu_ns()?.saturating_sub(before) as f64);
        return Ok(Figures { cpu_ns: spent, errors: wrong, ..Figures::default() });
    }
    let mut watch = seat.stopwatch()?;
    loop {
        let begun = watch.now();
        let answer = ask(&text, op)?;
        wrong += u64::from(answer != expected);
        if !watch.lap(begun, watch.now()) {
            return Ok(watch.figures(wrong));
        }
    }
}

/// Reads a file of `bytes` bytes into `buffer`, which keeps its memory from one reading to the next.
pub fn read_into(path: &Path, bytes: u64, buffer: &mut Vec<u8>) -> Result<()> {
    fill(&File::open(path)?, usize::try_from(bytes)?, buffer)
}

/// Reads `len` bytes into `buffer`, in calls as large as possible and without zeroing it first.
pub fn fill(from: impl AsFd, len: usize, buffer: &mut Vec<u8>) -> Result<()> {
    buffer.clear();
    buffer.reserve_exact(len);
    while buffer.len() < len {
        match rustix::io::read(&from, spare_capacity(buffer)) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if buffer.len() > len { Err("more data than announced".into()) } else { Ok(()) }
}
