//! What there is without a service: a function called by its address, a copy, and two time stamps.

use std::hint::black_box;

use super::{bulk_by_record, echoes};
use crate::case::{Case, ECHO_SIZES, Mode, Placement};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::meter::ends;
use crate::row::Figures;
use crate::seat::Seat;

/// A plain function, called by its address.
pub const CALL: Contender = Contender::new(
    Kind::Floor,
    "call",
    "a function called by its address",
    || echoes(Placement::SameCore, None),
    call,
);

/// A copy of the request into memory that is used again.
pub const MEMCPY: Contender = Contender::new(
    Kind::Floor,
    "memcpy",
    "a copy of the request",
    || bulk_by_record(None),
    |seat| {
        let meter = seat.meter()?;
        let function: Echo = black_box(echo);
        let mut copy = vec![0; meter.size()];
        meter.bulk(|request| {
            function(request, &mut copy);
            Ok(ends(&copy).ok_or("too short")?)
        })
    },
);

/// Nothing at all.
pub const CLOCK: Contender = Contender::new(
    Kind::Floor,
    "clock",
    "two time stamps in a row, which every single time includes",
    || vec![Case::domain(Mode::Latency, None, Placement::SameCore, None)],
    |seat| {
        let mut meter = seat.meter()?;
        while {
            let begun = meter.now();
            let ended = meter.now();
            meter.lap(begun, ended)
        } {}
        Ok(meter.figures())
    },
);

type Echo = fn(&[u8], &mut [u8]);

#[inline(never)]
fn echo(request: &[u8], reply: &mut [u8]) {
    reply.copy_from_slice(request);
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let meter = seat.meter()?;
    let function: Echo = black_box(echo);
    if seat.case().size == Some(ECHO_SIZES[0]) {
        return meter.one_by_one(|request, reply| {
            function(request, reply);
            Ok(())
        });
    }
    let (mut request, mut reply) = (vec![0; meter.size()], vec![0; meter.size()]);
    meter.in_place(|write, check| {
        write(&mut request);
        function(&request, &mut reply);
        check(&reply);
        Ok(())
    })
}
