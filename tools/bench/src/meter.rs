//! Measuring calls inside a client: numbered requests, and a check of every reply.
//!
//! Paced calls are due at times that are set beforehand, so a late one is followed by others at
//! once; the client sleeps until the next is due. What that costs is part of the CPU time, the same
//! for everyone.

use crate::case::{Case, Mode};
use crate::error::Result;
use crate::pattern::{Pattern, STAMP};
use crate::row::Figures;
use crate::stopwatch::Stopwatch;

use std::num::NonZeroU64;
use std::time::Duration;

/// Sends numbered requests, times them, and checks every byte of every reply.
#[derive(Debug)]
pub struct Meter {
    watch: Stopwatch,
    pattern: Pattern,
    mode: Option<Mode>,
    size: usize,
    window: usize,
    next: u64,
    wrong: u64,
    pace: Option<Pace>,
}

/// When calls are due, in ticks.
#[derive(Debug)]
struct Pace {
    period: f64,
    start: u64,
    calls: u64,
}

/// Calls that are timed together: far more than the two time stamps cost, and few enough for their
/// requests and replies to stay in the first cache.
pub const BATCH: usize = 256;

/// Bytes of the answer to a long request: its first and its last eight.
pub const ENDS: usize = 16;

/// What the answer to a long request is.
pub fn ends(request: &[u8]) -> Option<[u8; ENDS]> {
    let (first, last) = (request.first_chunk::<8>()?, request.last_chunk::<8>()?);
    let mut ends = [0; ENDS];
    ends[..8].copy_from_slice(first);
    ends[8..].copy_from_slice(last);
    Some(ends)
}

/// A link on which requests may run ahead of replies.
pub trait Duplex {
    /// Sends one request.
    fn send(&mut self, request: &[u8]) -> Result<()>;
    /// Receives the next reply.
    fn receive(&mut self, reply: &mut [u8]) -> Result<()>;
}

/// After so many wrong replies the sample is given up.
const WRONG_MAX: u64 = 1000;

impl Meter {
    /// A meter for a case of `calls` or `domain`, in its warm-up.
    pub fn new(watch: Stopwatch, case: &Case) -> Self {
        let size = case.size.map_or(STAMP, |size| size as usize);
        let pace = case.rate.map(|rate| {
            // Sleeping to the microsecond; without that it is done as well as the system does it.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let period = watch.ticks(Duration::from_secs(1)) as f64 / rate as f64;
            Pace { period, start: watch.now(), calls: 0 }
        });
        Self {
            watch,
            pattern: Pattern::new(size),
            mode: case.mode,
            size,
            window: case.window(),
            next: 0,
            wrong: 0,
            pace,
        }
    }

    /// Sleeps until the next call is due, if calls are paced.
    pub fn pace(&mut self) {
        let Some(pace) = &mut self.pace else { return };
        pace.calls += 1;
        let due = pace.start + (pace.calls as f64 * pace.period) as u64;
        let left = due.saturating_sub(self.watch.now());
        if left > 0 {
            std::thread::sleep(self.watch.span(left));
        }
    }

    /// Bytes of a request and of a reply.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many calls may be in flight.
    pub fn window(&self) -> usize {
        self.window
    }

    /// The time now, in ticks.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        self.watch.now()
    }

    /// Writes the next request and returns its number.
    #[inline]
    pub fn fill(&mut self, request: &mut [u8]) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.pattern.fill(seq, request);
        seq
    }

    /// Checks the reply to request `seq`.
    ///
    /// # Errors
    /// When far too many replies were wrong.
    #[inline]
    pub fn check(&mut self, seq: u64, reply: &[u8]) -> Result<()> {
        if self.pattern.matches(seq, reply, self.size) {
            return Ok(());
        }
        self.count_wrong()
    }

    /// Counts a reply that was wrong.
    #[cold]
    pub fn count_wrong(&mut self) -> Result<()> {
        self.wrong += 1;
        if self.wrong >= WRONG_MAX { Err("too many wrong replies".into()) } else { Ok(()) }
    }

    /// Counts a timed call. False once the sample is complete.
    #[inline]
    pub fn lap(&mut self, begun: u64, ended: u64) -> bool {
        self.watch.lap(begun, ended)
    }

    /// Counts answered calls of a pipeline. False once the sample is complete.
    #[inline]
    pub fn answered(&mut self, calls: u64) -> bool {
        self.watch.answered(calls)
    }

    /// Counts a batch. False once the sample is complete.
    #[inline]
    pub fn batch(&mut self, begun: u64, ended: u64) -> bool {
        self.watch.batch(BATCH as u64, begun, ended)
    }

    /// Writes the requests of a batch, one after the other; the number of the first.
    pub fn fill_batch(&mut self, requests: &mut [u8]) -> u64 {
        let first = self.next;
        for request in requests.chunks_exact_mut(self.size) {
            self.fill(request);
        }
        first
    }

    /// Runs the sample with calls that each wait for their reply, or in a pipeline with whole windows
    /// of them, one after the other in one buffer.
    pub fn exchange(self, call: impl FnMut(&[u8], &mut [u8]) -> Result<()>) -> Result<Figures> {
        match self.mode {
            Some(Mode::Pipelined) => self.by_window(call),
            _ => self.one_by_one(call),
        }
    }

    /// Runs the sample with calls that each wait for their reply.
    pub fn one_by_one(
        mut self,
        mut call: impl FnMut(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<Figures> {
        if self.mode == Some(Mode::Loop) {
            return self.in_batches(call);
        }
        let (mut request, mut reply) = (vec![0; self.size], vec![0; self.size]);
        loop {
            let seq = self.fill(&mut request);
            self.pace();
            let begun = self.now();
            call(&request, &mut reply)?;
            let ended = self.now();
            self.check(seq, &reply)?;
            if !self.lap(begun, ended) {
                return Ok(self.figures());
            }
        }
    }

    fn in_batches(
        mut self,
        mut call: impl FnMut(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<Figures> {
        let size = self.size;
        let (mut requests, mut replies) = (vec![0; size * BATCH], vec![0; size * BATCH]);
        loop {
            let first = self.fill_batch(&mut requests);
            let begun = self.now();
            for (request, reply) in requests.chunks_exact(size).zip(replies.chunks_exact_mut(size))
            {
                call(request, reply)?;
            }
            let ended = self.now();
            for (seq, reply) in (first..).zip(replies.chunks_exact(size)) {
                self.check(seq, reply)?;
            }
            if !self.batch(begun, ended) {
                return Ok(self.figures());
            }
        }
    }

    /// As [`Meter::one_by_one`], with calls that are awaited and return their reply.
    pub async fn one_by_one_async<R: AsRef<[u8]>>(
        mut self,
        mut call: impl AsyncFnMut(&[u8]) -> Result<R>,
    ) -> Result<Figures> {
        let batch = if self.mode == Some(Mode::Loop) { BATCH } else { 1 };
        let mut requests = vec![0; self.size * batch];
        let mut replies = Vec::with_capacity(batch);
        loop {
            let first = self.fill_batch(&mut requests);
            self.pace();
            let begun = self.now();
            for request in requests.chunks_exact(self.size) {
                replies.push(call(request).await?);
            }
            let ended = self.now();
            for (seq, reply) in (first..).zip(replies.drain(..)) {
                self.check(seq, reply.as_ref())?;
            }
            let more = if batch > 1 { self.batch(begun, ended) } else { self.lap(begun, ended) };
            if !more {
                return Ok(self.figures());
            }
        }
    }

    /// Runs the sample with requests that are written where the other side reads them, and replies
    /// that are checked where it wrote them. The time includes the writing, not the check.
    ///
    /// `call` is given what writes the request and what checks the reply.
    pub fn in_place(
        mut self,
        mut call: impl FnMut(&dyn Fn(&mut [u8]), &mut dyn FnMut(&[u8])) -> Result<()>,
    ) -> Result<Figures> {
        loop {
            let seq = self.next;
            self.next += 1;
            let (pattern, watch, size) = (&self.pattern, &self.watch, self.size);
            let (mut ended, mut right) = (0, false);
            let begun = watch.now();
            call(&|request| pattern.fill(seq, request), &mut |reply| {
                ended = watch.now();
                right = pattern.matches(seq, reply, size);
            })?;
            if !right {
                self.count_wrong()?;
            }
            if !self.lap(begun, ended) {
                return Ok(self.figures());
            }
        }
    }

    /// Runs the sample with long requests that are answered by their [`ends`]; `call` sends the
    /// request as it is and returns the answer.
    pub fn bulk(mut self, mut call: impl FnMut(&[u8]) -> Result<[u8; ENDS]>) -> Result<Figures> {
        let mut request = self.long_request();
        loop {
            self.stamp(&mut request);
            let begun = self.now();
            let reply = call(&request)?;
            let ended = self.now();
            self.check_ends(&request, &reply)?;
            if !self.lap(begun, ended) {
                return Ok(self.figures());
            }
        }
    }

    /// A request for [`Meter::stamp`].
    pub fn long_request(&self) -> Vec<u8> {
        let mut request = vec![0; self.size];
        self.pattern.fill(0, &mut request);
        request
    }

    /// Gives a long request the next number at both ends, and leaves the rest as it is.
    pub fn stamp(&mut self, request: &mut [u8]) {
        let stamp = self.next.to_le_bytes();
        self.next += 1;
        request[..STAMP].copy_from_slice(&stamp);
        let last = request.len() - STAMP;
        request[last..].copy_from_slice(&stamp);
    }

    /// Checks the answer to a long request.
    ///
    /// # Errors
    /// When far too many were wrong.
    pub fn check_ends(&mut self, request: &[u8], reply: &[u8]) -> Result<()> {
        if ends(request).is_some_and(|ends| ends == *reply) { Ok(()) } else { self.count_wrong() }
    }

    /// Runs the sample with whole windows: all requests, one after the other in one buffer, then
    /// all replies.
    pub fn by_window(
        mut self,
        mut exchange: impl FnMut(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<Figures> {
        let len = self.size * self.window;
        let (mut requests, mut replies) = (vec![0; len], vec![0; len]);
        loop {
            let first = self.fill_batch(&mut requests);
            exchange(&requests, &mut replies)?;
            for (seq, reply) in (first..).zip(replies.chunks_exact(self.size)) {
                self.check(seq, reply)?;
            }
            if !self.answered(self.window as u64) {
                return Ok(self.figures());
            }
        }
    }

    /// Runs the sample with a window that slides: each reply makes room for one request.
    pub fn sliding(mut self, link: &mut impl Duplex) -> Result<Figures> {
        let (mut request, mut reply) = (vec![0; self.size], vec![0; self.size]);
        let mut due = self.next;
        for _ in 0..self.window {
            self.fill(&mut request);
            link.send(&request)?;
        }
        loop {
            link.receive(&mut reply)?;
            self.check(due, &reply)?;
            due += 1;
            if !self.answered(1) {
                break;
            }
            self.fill(&mut request);
            link.send(&request)?;
        }
        while due < self.next {
            link.receive(&mut reply)?;
            self.check(due, &reply)?;
            due += 1;
        }
        Ok(self.figures())
    }

    /// What was measured. A pipeline has no time per call.
    pub fn figures(&self) -> Figures {
        self.watch.figures(self.wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::others::Others;
    use std::time::Duration;

    use crate::case::Placement;
    use crate::stopwatch::Spans;
    use crate::sys::clock::Ticker;

    fn meter(mode: Mode) -> Meter {
        let spans =
            Spans { warm: Duration::from_millis(1), sample: Duration::from_millis(5), least: 1 };
        let watch =
            Stopwatch::start(Ticker::calibrate(), spans, Others::default()).expect("a stopwatch");
        let rate = (mode == Mode::Paced).then_some(10_000);
        let case = Case::call(mode, Some(32), Placement::SameCore, None);
        Meter::new(watch, &Case { rate, ..case })
    }

    /// Runs calls that are echoed; `spoil` may damage what comes back, and knows the call's number.
    fn echoed(mode: Mode, mut spoil: impl FnMut(u32, &mut [u8])) -> (u32, Figures) {
        let mut calls = 0;
        let echo = |request: &[u8], reply: &mut [u8]| {
            calls += 1;
            reply.copy_from_slice(request);
            spoil(calls, reply);
            Ok(())
        };
        let figures = meter(mode).exchange(echo).expect("few errors");
        (calls, figures)
    }

    #[test]
    fn a_true_echo_has_no_errors() {
        let (_, figures) = echoed(Mode::Latency, |_, _| {});
        assert_eq!(figures.errors, 0);
        assert!(figures.p50_ns.expect("timed") <= figures.p999_ns.expect("timed"));
        assert!(figures.per_s.expect("counted") > 0.0);
        assert!(figures.cpu_ns.is_some());
    }

    #[test]
    fn stale_and_damaged_replies_are_counted() {
        let mut old = vec![0; 32];
        let (_, figures) = echoed(Mode::Latency, |call, reply| match call {
            2 => reply.copy_from_slice(&old),
            3 => reply[31] ^= 1,
            _ => old.copy_from_slice(reply),
        });
        assert_eq!(figures.errors, 2);
    }

    #[test]
    fn batches_and_windows_are_checked_reply_by_reply_and_have_a_rate() {
        let (_, figures) = echoed(Mode::Loop, |call, reply| reply[20] ^= u8::from(call == 700));
        assert_eq!((figures.errors, figures.p50_ns), (1, None));
        assert!(figures.per_s.expect("counted") > 0.0);
        let (_, figures) = echoed(Mode::Pipelined, |window, replies| {
            assert_eq!(replies.len(), 64 * 32);
            replies[32 * 5 + 9] ^= u8::from(window == 1);
        });
        assert_eq!((figures.errors, figures.p50_ns), (1, None));
    }

    #[test]
    fn awaited_calls_are_checked_in_turn_and_in_batches() {
        for mode in [Mode::Latency, Mode::Loop] {
            let mut calls = 0;
            let echo = async |request: &[u8]| {
                calls += 1;
                let mut reply = request.to_vec();
                reply[20] ^= u8::from(calls == 3);
                Ok(reply)
            };
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let figures = runtime.block_on(meter(mode).one_by_one_async(echo)).expect("few errors");
            assert_eq!((figures.errors, figures.p50_ns.is_some()), (1, mode == Mode::Latency));
        }
    }

    #[test]
    fn paced_calls_keep_their_rate() {
        // Calls are due from when the meter is there.
        let begun = std::time::Instant::now();
        let (calls, _) = echoed(Mode::Paced, |_, _| {});
        // Late calls catch up, but none comes early.
        let most = begun.elapsed().as_secs_f64() * 10_000.0;
        assert!(f64::from(calls) <= most + 1.0, "{calls} calls, {most} were due");
    }

    #[test]
    fn in_place_writes_are_checked_in_place() {
        let (mut room, mut calls) = ([0; 32], 0);
        let call = |write: &dyn Fn(&mut [u8]), check: &mut dyn FnMut(&[u8])| {
            write(&mut room);
            calls += 1;
            room[9] ^= u8::from(calls == 3);
            check(&room);
            Ok(())
        };
        assert_eq!(meter(Mode::Latency).in_place(call).expect("few errors").errors, 1);
    }

    #[test]
    fn the_answer_to_a_long_request_is_its_ends() {
        let mut calls = 0;
        let call = |request: &[u8]| {
            calls += 1;
            let mut answer = ends(request).ok_or("too short")?;
            answer[15] ^= u8::from(calls == 2);
            Ok(answer)
        };
        assert_eq!(meter(Mode::Bulk).bulk(call).expect("few errors").errors, 1);
        assert_eq!(ends(&[0; 7]), None);
    }

    #[test]
    fn hopeless_links_are_given_up() {
        assert!(meter(Mode::Latency).one_by_one(|_, _| Ok(())).is_err());
    }

    #[test]
    fn a_sliding_window_keeps_order() {
        struct Queue(std::collections::VecDeque<Vec<u8>>);
        impl Duplex for Queue {
            fn send(&mut self, request: &[u8]) -> Result<()> {
                assert!(self.0.len() < 64);
                self.0.push_back(request.to_vec());
                Ok(())
            }
            fn receive(&mut self, reply: &mut [u8]) -> Result<()> {
                reply.copy_from_slice(&self.0.pop_front().ok_or("nothing in flight")?);
                Ok(())
            }
        }
        let mut queue = Queue(Default::default());
        assert_eq!(meter(Mode::Pipelined).sliding(&mut queue).expect("an echo").errors, 0);
        assert!(queue.0.is_empty());
    }
}
