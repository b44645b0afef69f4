#![allow(unsafe_code, reason = "reads and writes an arena that two processes share")]
//! A correct use of plain shared memory: the client reads the file straight into a shared arena and
//! hands it over with a futex; the server counts in place.
//!
//! | byte | word | written by |
//! |---|---|---|
//! | 0 | number of the last request, `u32::MAX - 1` once the client has gone | client |
//! | 8 | operation | client |
//! | 16 | length of the text | client |
//! | 24, 32, 40 | the answer | server |
//! | 64 | number of the last reply | server |
//! | 4096.. | the text | client |
//!
//! The server touches the arena only between a request and its reply, the client only at other
//! times. Only a peer that keeps to this is safe here; nothing keeps the client from changing a text
//! while it is counted.

use std::fs::File;
use std::io::Read;
use std::slice;
use std::sync::atomic::Ordering::Relaxed;

use super::count::{answer, op_code, op_from};
use super::{Text, cases, contained, drive};
use crate::case::{Case, Op, Wait};
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::sys::handoff::{STEP, change, hand_over};
use crate::sys::shared::{self, Shared};
use crate::text::Answer;

/// Shared memory.
pub const SHM: Contender = Contender::new(
    Kind::Other,
    "shm",
    "plain shared memory that client and server trust each other to use correctly",
    || [cases(Some(Wait::Block)), contained(Some(Wait::Block))].concat(),
    call,
)
.opened(open)
.served(serve);

const REQUEST: usize = 0;
const OP: usize = 8;
const LEN: usize = 16;
const ANSWER: [usize; 3] = [24, 32, 40];
const REPLY: usize = 64;
const TEXT: usize = 4096;
const GONE: u32 = u32::MAX - 1;

/// An upper bound on a text's length: nine digits and a space for each word.
const WORD_BYTES: u64 = 10;

fn open(case: &Case) -> Result<Ends> {
    let bytes = usize::try_from(case.size.unwrap_or(0) * WORD_BYTES)?;
    Ok(Ends(vec![(Side::Both, shared::create(TEXT + bytes)?)]))
}

fn serve(seat: &mut Seat) -> Result<()> {
    let arena = Shared::map(seat.take(0)?)?;
    seat.ready();
    let mut last = 0;
    loop {
        last = change(arena.word(REQUEST), last);
        if last == GONE {
            return Ok(());
        }
        count_in(&arena)?;
        hand_over(arena.word(REPLY), last);
    }
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let fd = seat.take(0)?;
    let arena = seat.admitted(|_| Ok(Shared::map(fd)?))?;
    let mut last = 0;
    let figures = drive(seat, |text, op| {
        let answer = ask(&arena, last, text, op);
        last += STEP;
        answer
    });
    hand_over(arena.word(REQUEST), GONE);
    figures
}

/// The client's half of an exchange; it has the turn.
fn ask(arena: &Shared, last: u32, text: &Text, op: Op) -> Result<Answer> {
    let len = usize::try_from(text.bytes)?;
    let place = arena.at(TEXT, len);
    // SAFETY: `at` checked the range; the client has the turn, so nobody else touches the arena,
    // and the mapping outlives the slice.
    let room = unsafe { slice::from_raw_parts_mut(place, len) };
    File::open(&text.path)?.read_exact(room)?;
    arena.word(OP).store(u32::from(op_code(op)), Relaxed);
    arena.long(LEN).store(text.bytes, Relaxed);
    hand_over(arena.word(REQUEST), last + STEP);
    if change(arena.word(REPLY), last) != last + STEP {
        return Err("a reply to another request".into());
    }
    let [total, distinct, checksum] = ANSWER.map(|at| arena.long(at).load(Relaxed));
    Ok(Answer { total, distinct, checksum })
}

/// The server's half; it has the turn.
fn count_in(arena: &Shared) -> Result<()> {
    let len = usize::try_from(arena.long(LEN).load(Relaxed))?;
    if len > arena.len() - TEXT {
        return Err("the text is longer than the arena".into());
    }
    let op = op_from(u8::try_from(arena.word(OP).load(Relaxed))?)?;
    // SAFETY: the range was checked; the server has the turn, so nobody writes to the arena, and
    // the mapping outlives the slice.
    let text = unsafe { slice::from_raw_parts(arena.at(TEXT, len), len) };
    let Answer { total, distinct, checksum } = answer(op, text);
    for (at, value) in ANSWER.into_iter().zip([total, distinct, checksum]) {
        arena.long(at).store(value, Relaxed);
    }
    Ok(())
}
