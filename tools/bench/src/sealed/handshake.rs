//! Both ends of a handshake, in one thread and without a link.

use partywall_trust::handshake::{
    Answer, Begin, Caller, Channel, Credentials, How, Next, Resumption, Service, Terms,
};
use partywall_trust::record::{TAG, What};

use super::identity::{World, authority};
use crate::case::Case;
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// At first contact: XX.
pub const HANDSHAKE_FIRST: Contender = Contender::new(
    Kind::Floor,
    "handshake-first",
    "both ends of a handshake at first contact (XX), bare: in one thread, without a link",
    || vec![Case::connect(None)],
    |seat| call(seat, How::First),
);

/// With the key of the service: IK.
pub const HANDSHAKE_KNOWN: Contender = Contender::new(
    Kind::Floor,
    "handshake-known",
    "the same with the key of the service known (IK), bare",
    || vec![Case::connect(None)],
    |seat| call(seat, How::Known),
);

/// By what both have of an earlier one: NNpsk0.
pub const HANDSHAKE_RESUMED: Contender = Contender::new(
    Kind::Floor,
    "handshake-resumed",
    "the same with a secret of an earlier handshake (NNpsk0), bare",
    || vec![Case::connect(None)],
    |seat| call(seat, How::Resumed),
);

/// Two ends and what they agree on.
struct Both {
    world: World,
    caller: Credentials,
    service: Credentials,
    terms: Terms,
}

impl Both {
    fn new() -> Result<Self> {
        let world = World::of(authority()?)?;
        let caller = world.credentials(&world.caller())?;
        let service = world.credentials(&world.service()?)?;
        let terms = world.terms()?;
        Ok(Self { world, caller, service, terms })
    }

    /// One handshake; `kept` is what the service has of an earlier one.
    fn run(&self, begin: Begin, kept: Option<Resumption>) -> Result<[Channel; 2]> {
        let Self { world, caller, service, terms } = self;
        let checks = world.checks();
        let (state, first) = Caller::begin(caller, terms, begin, false);
        let answer = Service::answer(service, terms, (&first, false), |_| kept, &checks)?;
        let (done, waits, second) = match answer {
            Answer::Done(channel, second) => (Some(channel), None, second),
            Answer::Waits(state, second) => (None, Some(state), second),
            Answer::Retry(_) => return Err("the handshake was to begin anew".into()),
        };
        let Next::Done(callers, third) = state.answer(caller, terms, &second, &checks)? else {
            return Err("the handshake was to begin anew".into());
        };
        let services = match (done, waits, third) {
            (Some(channel), None, None) => channel,
            (None, Some(state), Some(third)) => state.finish(terms, &third, &checks)?,
            _ => return Err("one end is done, and the other is not".into()),
        };
        Ok([callers, services])
    }
}

/// Whether each end opens what the other one seals.
fn agree([callers, services]: &mut [Channel; 2], how: How) -> bool {
    fn pass(from: &mut Channel, to: &mut Channel) -> bool {
        let (what, text) = (What { kind: 1, flags: 0, stream: 7 }, *b"of this channel");
        let mut record = vec![0; text.len() + TAG];
        let sealed = from.sealer.seal(what, [&text, &[]], &mut record);
        let opened = sealed.and_then(|()| to.opener.open(what, &mut record));
        opened.is_ok_and(|len| record[..len] == text)
    }
    let came = callers.how == how && services.how == how;
    came && pass(callers, services) && pass(services, callers)
}

fn call(seat: &mut Seat, how: How) -> Result<Figures> {
    let both = Both::new()?;
    let mut last = both.run(Begin::First, None)?;
    let mut watch = seat.stopwatch()?;
    let mut wrong = 0;
    loop {
        let [callers, services] = &last;
        let (begin, kept) = match how {
            How::First => (Begin::First, None),
            How::Known => (Begin::Known(both.service.static_key()), None),
            How::Resumed => {
                let resumption = Box::new(callers.resumption.clone());
                (Begin::Resumed(resumption), Some(services.resumption.clone()))
            }
        };
        let begun = watch.now();
        let mut channels = both.run(begin, kept)?;
        let ended = watch.now();
        wrong += u64::from(!agree(&mut channels, how));
        last = channels;
        if !watch.lap(begun, ended) {
            return Ok(watch.figures(wrong));
        }
    }
}
