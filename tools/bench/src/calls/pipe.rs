//! Two pipes of 1 MiB, one each way, with blocking reads and writes.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::cases;
use crate::case::{Case, Wait};
use crate::contender::{Contender, Ends, Side};
use crate::error::Result;
use crate::meter::pipelined;
use crate::seat::Seat;

/// The contender.
#[derive(Debug)]
pub struct Pipe;

/// What an unprivileged process may ask for. A full window fits, so neither side can get stuck.
const CAPACITY: usize = 1 << 20;

/// Ends 0 and 3 are the server's (from, to), 1 and 2 the client's (to, from).
///
/// # Errors
/// If the kernel refuses pipes of this size.
pub fn pipes() -> Result<Ends> {
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

impl Contender for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        cases(&[Wait::Block])
    }

    fn open(&self, _: &Case) -> Result<Ends> {
        pipes()
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        let (from, to) = (File::from(seat.take(0)?), File::from(seat.take(3)?));
        seat.ready();
        echo(&seat.case(), from, to)
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let (mut to, mut from) = (File::from(seat.take(1)?), File::from(seat.take(2)?));
        let mut meter = seat.meter()?;
        let exchange = |request: &[u8], reply: &mut [u8]| {
            to.write_all(request)?;
            Ok(from.read_exact(reply)?)
        };
        if pipelined(&seat.case()) {
            meter.by_window(exchange)?;
        } else {
            meter.one_by_one(exchange)?;
        }
        seat.finish(meter.figures());
        Ok(())
    }
}

/// Sends back what comes until the client has gone: whole messages one at a time, or whatever one
/// read returns.
fn echo(case: &Case, mut from: impl Read, mut to: impl Write) -> Result<()> {
    let mut buffer = vec![0; case.bytes() * case.window()];
    loop {
        let len = if pipelined(case) {
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
