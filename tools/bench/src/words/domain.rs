//! The text through the call gate: the client reads the file straight into the arena of its link, and
//! the service counts it there, in the same thread: as many threads work on a text as in the floors.
//!
//! | byte of a request | |
//! |---|---|
//! | .. | the text, or a piece of it |
//! | last | operation; [`MORE`] when other pieces follow |
//!
//! A text that an arena does not hold comes in pieces, which the service puts together before it
//! counts, as every service here has the whole text in contiguous memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use partywall_abi::domain::HALF;
use partywall_abi::security::Isolation;
use partywall_guest::bytes::{Function, Reply};

use super::count::{answer, op_code, op_from};
use super::{Text, cases, drive};
use crate::case::Op;
use crate::contender::{Contender, Kind};
use crate::domains::gate::{self, connect, pair};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::text::{ANSWER_BYTES, Answer};

/// Without protection keys.
pub const DOMAIN: Contender = Contender::new(
    Kind::Ours,
    "domain",
    "the text through the call gate, without protection keys",
    || cases(None),
    call,
)
.opened(pair)
.served(serve)
.in_domains(Isolation::None);

/// With protection keys, where the machine has them.
pub const DOMAIN_KEYS: Contender = Contender {
    name: "domain-keys",
    about: "the same with protection keys",
    domains: Some(Isolation::ProtectionKeys),
    ..DOMAIN
};

/// In place of an operation.
const MORE: u8 = 0xff;

/// Long enough to count a gigabyte.
const LIMIT: Duration = Duration::from_secs(30);

fn serve(seat: &mut Seat) -> Result<()> {
    let pieces = Mutex::new(Vec::new());
    gate::serve(seat, move |request, reply| {
        let mut pieces = pieces.lock().unwrap_or_else(PoisonError::into_inner);
        count(request, reply, &mut pieces);
    })
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let socket = seat.take(1)?;
    let (mut function, _socket) = seat.admitted(|_| connect(socket))?;
    drive(seat, |text, op| ask(&mut function, text, op))
}

/// The service's function. Where a request makes no sense the answer is empty.
fn count(request: &[u8], reply: &mut Reply<'_>, pieces: &mut Vec<u8>) {
    let Some((code, text)) = request.split_last() else { return };
    if *code == MORE {
        pieces.extend_from_slice(text);
        return;
    }
    let (Ok(op), Ok(room)) = (op_from(*code), reply.take(ANSWER_BYTES)) else { return };
    let found = if pieces.is_empty() {
        answer(op, text)
    } else {
        pieces.extend_from_slice(text);
        let found = answer(op, pieces);
        pieces.clear();
        found
    };
    room.copy_from_slice(&found.encode());
}

/// Reads the text into the arena and returns the service's answer.
fn ask(function: &mut Function, text: &Text, op: Op) -> Result<Answer> {
    let file = File::open(&text.path)?;
    let mut left = usize::try_from(text.bytes)?;
    loop {
        let from = text.bytes - left as u64;
        let bytes = left.min(HALF as usize - 1);
        left -= bytes;
        let code = if left == 0 { op_code(op) } else { MORE };
        let mut read = Ok(());
        let write = |room: &mut [u8]| read = fill(room, &file, from, code);
        let found = function.call_with(bytes + 1, write, LIMIT, Answer::decode)?;
        read?;
        if left == 0 {
            return found;
        }
    }
}

fn fill(room: &mut [u8], file: &File, from: u64, code: u8) -> io::Result<()> {
    let Some((last, text)) = room.split_last_mut() else { return Ok(()) };
    *last = code;
    file.read_exact_at(text, from)
}
