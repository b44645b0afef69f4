//! Two pipes of 1 MiB, one each way, with blocking reads and writes.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::sleeping;
use crate::case::Case;
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Pipes.
pub const PIPE: Contender =
    Contender::new(Kind::Other, "pipe", "two pipes, one each way", sleeping, call)
        .opened(pipes)
        .served(serve);

/// What an unprivileged process may ask for. A full window fits, so neither side can get stuck.
const CAPACITY: usize = 1 << 20;

/// Ends 0 and 3 are the server's (from, to), 1 and 2 the client's (to, from).
pub fn pipes(_: &Case) -> Result<Ends> {
    let (request, reply) = (pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?);
    fcntl_setpipe_size(&request.1, CAPACITY)?;
    fcntl_setpipe_size(&reply.1, CAPACITY)?;
    Ok(Ends(vec![
        (Side::Server, request.0),
        (Side::Client, request.1),
        (Side::Client, reply.0),
        (Side::Server, reply.1),
    ]))
}

/// Sends back what comes until the client has gone: whole messages one at a time, or whatever one
/// read returns.
fn serve(seat: &mut Seat) -> Result<()> {
    let (mut from, mut to) = (File::from(seat.take(0)?), File::from(seat.take(3)?));
    seat.ready();
    let case = seat.case();
    let mut buffer = vec![0; case.bytes() * case.window()];
    loop {
        let len = if case.is_pipelined() {
            from.read(&mut buffer)?
        } else {
            match from.read_exact(&mut buffer) {
                Ok(()) => buffer.len(),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => 0,
                Err(error) => return Err(error.into()),
            }
        };
        if len == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..len])?;
    }
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let (mut to, mut from) = (File::from(seat.take(1)?), File::from(seat.take(2)?));
    seat.meter()?.exchange(|request, reply| {
        to.write_all(request)?;
        Ok(from.read_exact(reply)?)
    })
}
