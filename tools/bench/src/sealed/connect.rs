//! What it takes to make a link through the library: from asking for it to its being open at the caller.
//!
//! ```text
//! first        a name that this caller has had no link to
//! resumed      a name that it has had a link to before: both ends have a secret of that one
//! known        the second of two at once: the first one has taken the secret, the key is left
//! ```
//!
//! The caller is connected to the coordinator and certified before. Each link answers a call and is dropped
//! before the next one is made; neither is part of the time, but CPU time has both.
//!
//! The library has no way to ask for a handshake with a known key. So `known` takes the time of two connects
//! at once less that of one by itself, and `connect-plain-second` the same of plain links.

use std::time::Duration;

use partywall::Channel;

use super::stubs::{COORDINATE_PLAIN, COORDINATE_SEALED, FIRSTS, first, is_plain, is_sealed};
use crate::calls::client::Client;
use crate::calls::partywall::{NAME, SOCKET, endpoint_of, settle_waits};
use crate::calls::stubs::ordinary;
use crate::calls::tonic_net::{closed, runtime};
use crate::case::{Case, Wait};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::stopwatch::{Spans, Stopwatch};

/// Plain links.
pub const CONNECT_PLAIN: Contender = Contender::new(
    Kind::Ours,
    "connect-plain",
    "a plain link is made, to a name that the caller has had a link to before",
    || vec![Case::connect(Some(Wait::Block))],
    |seat| again(seat, is_plain),
)
.attended(COORDINATE_PLAIN)
.served(serve);

/// The second one of two plain links.
pub const CONNECT_PLAIN_SECOND: Contender = Contender {
    name: "connect-plain-second",
    about: "two plain links are made at once, less the time of one by itself",
    call: Some(|seat| second(seat, is_plain)),
    ..CONNECT_PLAIN
};

/// Sealed links at first contact.
pub const CONNECT_SEALED_FIRST: Contender = Contender {
    name: "connect-sealed-first",
    about: "a sealed link is made at first contact (XX): to a name that is new to the caller",
    call: Some(firsts),
    attend: Some(COORDINATE_SEALED),
    ..CONNECT_PLAIN
};

/// Sealed links with a known key.
pub const CONNECT_SEALED_KNOWN: Contender = Contender {
    name: "connect-sealed-known",
    about: "two sealed links are made at once, the first one resumed and the second with a known key (IK), \
            less the time of a resumed one by itself",
    call: Some(|seat| second(seat, is_sealed)),
    ..CONNECT_SEALED_FIRST
};

/// Sealed links that are resumed.
pub const CONNECT_SEALED_RESUMED: Contender = Contender {
    name: "connect-sealed-resumed",
    about: "a sealed link is made by what both ends have of the one before (NNpsk0)",
    call: Some(|seat| again(seat, is_sealed)),
    ..CONNECT_SEALED_FIRST
};

/// How long both ends have to take down a link before the next one is made.
const PAUSE: Duration = Duration::from_millis(1);

/// Serves at each of the names until the client has gone; all are registered before that begins.
fn serve(seat: &mut Seat) -> Result<()> {
    settle_waits(seat);
    runtime()?.block_on(async {
        let gone = closed(seat.lifeline()?)?;
        let names: Vec<_> = [NAME.to_owned()].into_iter().chain((0..FIRSTS).map(first)).collect();
        let router = partywall::Server::builder()
            .coordinator(seat.dir().join(SOCKET))
            .add_service(ordinary::service());
        let bound = router.bind(names.join(",")).await?;
        seat.ready();
        Ok(bound.serve_with_shutdown(gone).await?)
    })
}

/// What checks the links of a sample.
struct Check {
    is_right: fn(&Channel) -> Result<()>,
    calls: u64,
    wrong: u64,
}

impl Check {
    /// For links of which this is true.
    fn new(is_right: fn(&Channel) -> Result<()>) -> Self {
        Self { is_right, calls: 0, wrong: 0 }
    }

    /// Has these links answer a call each, and drops them.
    async fn end<const N: usize>(&mut self, channels: [Channel; N]) -> Result<()> {
        for channel in channels {
            (self.is_right)(&channel)?;
            self.calls += 1;
            let request = bytes::Bytes::copy_from_slice(&self.calls.to_le_bytes());
            let mut client = ordinary::client(channel);
            let reply = Client::echo(&mut client, request.clone()).await?;
            self.wrong += u64::from(reply != request);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// One link after the other to the same name.
fn again(seat: &mut Seat, is_right: fn(&Channel) -> Result<()>) -> Result<Figures> {
    let mut check = Check::new(is_right);
    runtime()?.block_on(async {
        let endpoint = endpoint_of(seat, NAME)?;
        check.end([endpoint.connect().await?]).await?;
        let mut watch = seat.stopwatch()?;
        loop {
            let begun = watch.now();
            let channel = endpoint.connect().await?;
            let ended = watch.now();
            check.end([channel]).await?;
            if !watch.lap(begun, ended) {
                return Ok(without_rate(watch.figures(check.wrong)));
            }
        }
    })
}

/// By turns one link, and two at once: what the second one takes.
fn second(seat: &mut Seat, is_right: fn(&Channel) -> Result<()>) -> Result<Figures> {
    let mut check = Check::new(is_right);
    runtime()?.block_on(async {
        let endpoint = endpoint_of(seat, NAME)?;
        check.end([endpoint.connect().await?]).await?;
        let mut watch = seat.stopwatch()?;
        loop {
            let begun = watch.now();
            let channel = endpoint.connect().await?;
            let one = watch.now() - begun;
            check.end([channel]).await?;
            let begun = watch.now();
            let (first, second) = tokio::join!(endpoint.connect(), endpoint.connect());
            let ended = watch.now();
            check.end([first?, second?]).await?;
            if !watch.lap((begun + one).min(ended), ended) {
                // Three links are made for each time.
                let figures = watch.figures(check.wrong);
                return Ok(Figures { cpu_ns: None, ..without_rate(figures) });
            }
        }
    })
}

/// One link to each of the names that are new.
fn firsts(seat: &mut Seat) -> Result<Figures> {
    let mut check = Check::new(is_sealed);
    runtime()?.block_on(async {
        check.end([endpoint_of(seat, NAME)?.connect().await?]).await?;
        // The first of them ends the warm-up.
        let spans =
            Spans { warm: Duration::ZERO, sample: Duration::ZERO, least: FIRSTS as u64 - 1 };
        let mut watch = Stopwatch::start(seat.ticker(), spans, seat.others())?;
        for name in (0..FIRSTS).map(first) {
            let endpoint = endpoint_of(seat, &name)?;
            let begun = watch.now();
            let channel = endpoint.connect().await?;
            let ended = watch.now();
            check.end([channel]).await?;
            watch.lap(begun, ended);
        }
        Ok(without_rate(watch.figures(check.wrong)))
    })
}

/// There are pauses between links, so how many there were per second says nothing.
fn without_rate(figures: Figures) -> Figures {
    Figures { per_s: None, ..figures }
}
