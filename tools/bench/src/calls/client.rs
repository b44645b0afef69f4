//! What measures clients whose calls are awaited.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::task::{JoinSet, LocalSet};

use crate::case::{Mode, Op};
use crate::error::Result;
use crate::meter::Meter;
use crate::row::Figures;
use crate::seat::Seat;
use crate::text::Answer;

/// A client, one handle of it to each task that calls.
pub trait Client: Clone + 'static {
    /// Sends the bytes there and back.
    async fn echo(&mut self, body: Bytes) -> Result<Bytes>;
}

/// A client for long requests as well.
pub trait LongClient: Client {
    /// Sends the bytes there, and their first and last eight back.
    async fn ends(&mut self, body: Bytes) -> Result<Bytes>;
}

/// A client that has texts counted.
pub trait TextClient {
    /// Sends a text there, and the answer back.
    async fn count(&mut self, op: Op, text: Bytes) -> Result<Answer>;
}

/// Measures the case of `seat`, whichever it is.
pub async fn measure(client: impl LongClient, seat: &Seat) -> Result<Figures> {
    match seat.case().mode {
        Some(Mode::Bulk) => bulk(client, seat.meter()?).await,
        _ => echoes(client, seat).await,
    }
}

/// Measures the case of `seat`, which has no long requests.
pub async fn echoes(client: impl Client, seat: &Seat) -> Result<Figures> {
    let meter = seat.meter()?;
    match seat.case().mode {
        Some(Mode::Pipelined) => pipelined(client, meter).await,
        _ => one_by_one(client, meter).await,
    }
}

async fn echo(client: &mut impl Client, request: &[u8]) -> Result<Bytes> {
    client.echo(Bytes::copy_from_slice(request)).await
}

/// Measures calls that each wait for their reply.
async fn one_by_one(mut client: impl Client, meter: Meter) -> Result<Figures> {
    meter.one_by_one_async(async |request: &[u8]| echo(&mut client, request).await).await
}

/// Measures long requests with short replies. The client gets its buffer back from the message once
/// the call is over.
async fn bulk(mut client: impl LongClient, mut meter: Meter) -> Result<Figures> {
    let mut request = BytesMut::from(&meter.long_request()[..]);
    loop {
        meter.stamp(&mut request);
        let body = request.freeze();
        let begun = meter.now();
        let reply = client.ends(body.clone()).await?;
        let ended = meter.now();
        meter.check_ends(&body, &reply)?;
        request = body.try_into_mut().map_err(|_| "a message is still held")?;
        if !meter.lap(begun, ended) {
            return Ok(meter.figures());
        }
    }
}

/// Measures a full window: as many tasks as calls may be in flight, each of which makes one call
/// after the other.
async fn pipelined(client: impl Client, meter: Meter) -> Result<Figures> {
    let (window, size) = (meter.window(), meter.size());
    let shared = Rc::new(RefCell::new(meter));
    let tasks = LocalSet::new();
    let mut callers = JoinSet::new();
    for _ in 0..window {
        let (mut client, meter) = (client.clone(), Rc::clone(&shared));
        let caller = async move {
            let mut request = vec![0; size];
            loop {
                let seq = meter.borrow_mut().fill(&mut request);
                let reply = echo(&mut client, &request).await?;
                let mut meter = meter.borrow_mut();
                meter.check(seq, &reply)?;
                if !meter.answered(1) {
                    return Result::<()>::Ok(());
                }
            }
        };
        callers.spawn_local_on(caller, &tasks);
    }
    // The sample ends with the first caller that sees its end, or that fails.
    tasks.run_until(callers.join_next()).await.ok_or("nobody calls")???;
    Ok(shared.borrow().figures())
}
