//! What there is without a service: a function called by its address, a copy, and two time stamps.

use std::hint::black_box;

use super::{bulk, echoes};
use crate::case::{Case, ECHO_SIZES, Mode, Placement};
use crate::contender::Contender;
use crate::error::Result;
use crate::meter::ends;
use crate::seat::Seat;

/// A plain function, called by its address.
#[derive(Debug)]
pub struct Call;

/// A copy of the request into memory that is used again.
#[derive(Debug)]
pub struct Memcpy;

/// Nothing at all: what two time stamps in a row cost, which every single call's time includes.
#[derive(Debug)]
pub struct Clock;

type Echo = fn(&[u8], &mut [u8]);

#[inline(never)]
fn echo(request: &[u8], reply: &mut [u8]) {
    reply.copy_from_slice(request);
}

impl Contender for Call {
    fn name(&self) -> &'static str {
        "call"
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        echoes(Placement::SameCore, None)
    }

    fn paired(&self) -> bool {
        false
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let mut meter = seat.meter()?;
        let function: Echo = black_box(echo);
        if seat.case().size == Some(ECHO_SIZES[0]) {
            meter.one_by_one(|request, reply| {
                function(request, reply);
                Ok(())
            })?;
        } else {
            let (mut request, mut reply) = (vec![0; meter.size()], vec![0; meter.size()]);
            meter.in_place(|write, check| {
                write(&mut request);
                function(&request, &mut reply);
                check(&reply);
                Ok(())
            })?;
        }
        seat.finish(meter.figures());
        Ok(())
    }
}

impl Contender for Memcpy {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        bulk(None)
    }

    fn paired(&self) -> bool {
        false
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let mut meter = seat.meter()?;
        let function: Echo = black_box(echo);
        let mut copy = vec![0; meter.size()];
        meter.bulk(|request| {
            function(request, &mut copy);
            Ok(ends(&copy).ok_or("too short")?)
        })?;
        seat.finish(meter.figures());
        Ok(())
    }
}

impl Contender for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        vec![Case::domain(Mode::Latency, None, Placement::SameCore, None)]
    }

    fn paired(&self) -> bool {
        false
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let mut meter = seat.meter()?;
        loop {
            let begun = meter.now();
            let ended = meter.now();
            if !meter.lap(begun, ended) {
                break;
            }
        }
        seat.finish(meter.figures());
        Ok(())
    }
}
