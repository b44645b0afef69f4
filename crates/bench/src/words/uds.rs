//! A Unix stream socket that the client connects to by path.

use std::os::unix::net::{UnixListener, UnixStream};

use super::stream::{Client, serve};
use super::{cases, drive};
use crate::calls::uds_epoll::tune;
use crate::case::{Case, Wait};
use crate::contender::{Contender, Result};
use crate::seat::Seat;

/// The contender.
#[derive(Debug)]
pub struct Uds;

const SOCKET: &str = "socket";

impl Contender for Uds {
    fn name(&self) -> &'static str {
        "uds"
    }

    fn cases(&self, sizes: &[u64]) -> Vec<Case> {
        cases(sizes, Some(Wait::Block))
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        let listener = UnixListener::bind(seat.dir().join(SOCKET))?;
        seat.ready();
        let (stream, _) = listener.accept()?;
        tune(&stream)?;
        serve(&stream, &stream)
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let path = seat.dir().join(SOCKET);
        let stream = seat.admitted(|| Ok(UnixStream::connect(path)?))?;
        tune(&stream)?;
        let mut client = Client::new(&stream, &stream);
        drive(seat, |text, op| client.ask(text, op))
    }
}
