//! How near the two cores are to each other, from one cache line's round trip.
//!
//! A hypervisor moves virtual processors between physical ones without a sign inside the machine,
//! and a line's round trip then changes by a factor of four. Each two-core sample is probed before
//! and after, so that only figures from the same placement are compared.
//!
//! The word moves on through a page, line by line: how long a line takes depends on where in the
//! cache it lives too.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use crate::control::Control;
use crate::stats;
use crate::sys::clock::Ticker;

/// Below this the cores are near, from here on they are far.
const BORDER_NS: f64 = 275.0;

/// Two probes this close to the border and to each other still agree.
const UNCLEAR: std::ops::RangeInclusive<f64> = 250.0..=300.0;
const SPREAD: f64 = 1.15;

const SPAN: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_millis(15);
const BOUNCES: usize = 400;

/// Added to a request, in the line after it, to end a meeting.
const LAST: u64 = 1 << 48;
const MEETING: Duration = Duration::from_secs(5);

/// Whether the cores were near, from the round trips before and after a sample; none if they moved
/// meanwhile.
pub fn tag(before: f64, after: f64) -> Option<bool> {
    let near = |ns: f64| ns < BORDER_NS;
    let unclear = UNCLEAR.contains(&before) || UNCLEAR.contains(&after);
    let alike = before.max(after) <= SPREAD * before.min(after);
    match unclear {
        true if alike => Some(near((before + after) / 2.0)),
        false if near(before) == near(after) && !(before + after).is_nan() => Some(near(before)),
        _ => None,
    }
}

/// The client's half: meets the server, bounces the line, returns the median round trip in ns.
///
/// # Errors
/// If the server does not come.
pub fn ask(control: &Control, meeting: u32, ticker: Ticker) -> io::Result<f64> {
    control.meet(true, meeting, MEETING)?;
    let start = ticker.now();
    let (enough, too_long) = (start + ticker.ticks(SPAN), start + ticker.ticks(PATIENCE));
    let mut spans = Vec::with_capacity(1 << 16);
    for number in 0.. {
        let (line, request) = (control.line(number), request(meeting, number));
        let begun = ticker.now();
        // SYNC(probe.line)
        line.store(request, Release);
        // SYNC(probe.line)
        while line.load(Acquire) == request {}
        let ended = ticker.now();
        spans.push(ticker.ns(ended.wrapping_sub(begun)));
        if ended > too_long || (ended > enough && spans.len() >= BOUNCES) {
            control.line(number + 1).store(request + LAST, Release);
            break;
        }
    }
    let settled = &spans[spans.len() / 4..];
    Ok(stats::median(settled).unwrap_or(f64::NAN))
}

/// The server's half.
///
/// # Errors
/// If the client does not come.
pub fn answer(control: &Control, meeting: u32) -> io::Result<()> {
    control.meet(false, meeting, MEETING)?;
    for number in 0.. {
        let (line, request) = (control.line(number), request(meeting, number));
        loop {
            // SYNC(probe.line)
            match line.load(Acquire) {
                seen if seen == request => break,
                seen if seen == request - 2 + LAST => return Ok(()),
                _ => {}
            }
        }
        // SYNC(probe.line)
        line.store(request + 1, Release);
    }
    Ok(())
}

/// What the client writes the `number`th time; the server answers with the number after it. No two
/// meetings share a number.
fn request(meeting: u32, number: u64) -> u64 {
    (u64::from(meeting) << 32) + 2 * number + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_need_two_probes_that_agree() {
        assert_eq!(tag(120.0, 160.0), Some(true));
        assert_eq!(tag(510.0, 380.0), Some(false));
        assert_eq!(tag(120.0, 480.0), None);
        assert_eq!(tag(480.0, 120.0), None);
        // Around the border they must also be close to each other.
        assert_eq!(tag(260.0, 265.0), Some(true));
        assert_eq!(tag(290.0, 310.0), Some(false));
        assert_eq!(tag(240.0, 290.0), None);
        assert_eq!(tag(f64::NAN, 120.0), None);
    }

    #[test]
    fn two_threads_bounce_the_line() {
        let fd = Control::create().expect("memfd");
        let (client, server) = (Control::map(&fd).expect("map"), Control::map(&fd).expect("map"));
        let ticker = Ticker::calibrate();
        for meeting in 1..=2 {
            std::thread::scope(|scope| {
                scope.spawn(|| answer(&server, meeting).expect("the client comes"));
                assert!(ask(&client, meeting, ticker).expect("the server comes") > 0.0);
            });
        }
    }
}
