//! Measuring calls inside a client: numbered requests, and a check of every reply.

use crate::case::{Case, Mode};
use crate::contender::Result;
use crate::pattern::{Pattern, STAMP};
use crate::row::Figures;
use crate::stopwatch::Stopwatch;

/// Sends numbered requests, times them, and checks every byte of every reply.
#[derive(Debug)]
pub struct Meter {
    watch: Stopwatch,
    pattern: Pattern,
    size: usize,
    window: usize,
    next: u64,
    wrong: u64,
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
    /// A meter for a case of `calls`, in its warm-up.
    pub fn new(watch: Stopwatch, case: &Case) -> Self {
        let size = case.bytes().max(STAMP);
        Self { watch, pattern: Pattern::new(size), size, window: case.window(), next: 0, wrong: 0 }
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

    /// Runs the sample with calls that each wait for their reply.
    pub fn one_by_one(
        &mut self,
        mut call: impl FnMut(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut request, mut reply) = (vec![0; self.size], vec![0; self.size]);
        loop {
            let seq = self.fill(&mut request);
            let begun = self.now();
            call(&request, &mut reply)?;
            let ended = self.now();
            self.check(seq, &reply)?;
            if !self.lap(begun, ended) {
                return Ok(());
            }
        }
    }

    /// Runs the sample with whole windows: all requests, one after the other in one buffer, then
    /// all replies.
    pub fn by_window(
        &mut self,
        mut exchange: impl FnMut(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let len = self.size * self.window;
        let (mut requests, mut replies) = (vec![0; len], vec![0; len]);
        loop {
            let first = self.next;
            for request in requests.chunks_exact_mut(self.size) {
                self.fill(request);
            }
            exchange(&requests, &mut replies)?;
            for (seq, reply) in (first..).zip(replies.chunks_exact(self.size)) {
                self.check(seq, reply)?;
            }
            if !self.answered(self.window as u64) {
                return Ok(());
            }
        }
    }

    /// Runs the sample with a window that slides: each reply makes room for one request.
    pub fn sliding(&mut self, link: &mut impl Duplex) -> Result<()> {
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
        Ok(())
    }

    /// What was measured. A pipeline has no time per call.
    pub fn figures(&self) -> Figures {
        self.watch.figures(self.wrong)
    }
}

/// Whether a case is a pipeline.
pub fn pipelined(case: &Case) -> bool {
    case.mode == Some(Mode::Pipelined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::case::Placement;
    use crate::stopwatch::Spans;
    use crate::sys::clock::Ticker;

    fn meter(mode: Mode) -> Meter {
        let spans = Spans { warm: Duration::from_millis(1), sample: Duration::from_millis(5) };
        let watch = Stopwatch::start(Ticker::calibrate(), spans, None).expect("a stopwatch");
        Meter::new(watch, &Case::call(mode, Some(32), Placement::SameCore, None))
    }

    #[test]
    fn a_true_echo_has_no_errors() {
        let mut meter = meter(Mode::Latency);
        meter
            .one_by_one(|request, reply| {
                reply.copy_from_slice(request);
                Ok(())
            })
            .expect("an echo");
        let figures = meter.figures();
        assert_eq!(figures.errors, 0);
        assert!(figures.p50_ns.expect("timed") <= figures.p999_ns.expect("timed"));
        assert!(figures.per_s.expect("counted") > 0.0);
        assert!(figures.cpu_ns.is_some());
    }

    #[test]
    fn stale_and_damaged_replies_are_counted() {
        let mut meter = meter(Mode::Latency);
        let mut old = vec![0; 32];
        let mut calls = 0;
        meter
            .one_by_one(|request, reply| {
                calls += 1;
                reply.copy_from_slice(request);
                match calls {
                    2 => reply.copy_from_slice(&old),
                    3 => reply[31] ^= 1,
                    _ => old.copy_from_slice(request),
                }
                Ok(())
            })
            .expect("few errors");
        assert_eq!(meter.figures().errors, 2);
    }

    #[test]
    fn hopeless_links_are_given_up() {
        assert!(meter(Mode::Latency).one_by_one(|_, _| Ok(())).is_err());
    }

    #[test]
    fn windows_are_checked_one_by_one() {
        let mut meter = meter(Mode::Pipelined);
        assert_eq!(meter.window(), 64);
        let mut windows = 0;
        meter
            .by_window(|requests, replies| {
                replies.copy_from_slice(requests);
                windows += 1;
                if windows == 1 {
                    replies[32 * 5 + 9] ^= 0x80;
                }
                Ok(())
            })
            .expect("few errors");
        let figures = meter.figures();
        assert_eq!((figures.errors, figures.p50_ns), (1, None));
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
        let mut meter = meter(Mode::Pipelined);
        let mut queue = Queue(Default::default());
        meter.sliding(&mut queue).expect("an echo");
        assert_eq!(meter.figures().errors, 0);
        assert!(queue.0.is_empty());
    }
}
