//! Two pipes, one each way, as large as the kernel allows without privileges.

use std::fs::File;

use super::stream::{Client, serve};
use super::{cases, drive};
use crate::calls::pipe::pipes;
use crate::case::{Case, Wait};
use crate::contender::{Contender, Ends};
use crate::error::Result;
use crate::seat::Seat;

/// The contender.
#[derive(Debug)]
pub struct Pipe;

impl Contender for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn cases(&self, sizes: &[u64]) -> Vec<Case> {
        cases(sizes, Some(Wait::Block))
    }

    fn open(&self, _: &Case) -> Result<Ends> {
        pipes()
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        let (from, to) = (File::from(seat.take(0)?), File::from(seat.take(3)?));
        seat.ready();
        serve(from, to)
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let (to, from) = (File::from(seat.take(1)?), File::from(seat.take(2)?));
        let mut client = Client::new(from, to);
        drive(seat, |text, op| client.ask(text, op))
    }
}
