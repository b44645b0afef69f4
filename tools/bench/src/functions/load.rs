//! How functions are called: in a closed loop, in an open one, or each once.
//!
//! | loop | the next call comes | a call's time begins |
//! |---|---|---|
//! | closed | when one of the window has been answered | just before it is sent |
//! | open | after a random time (exponential: a Poisson process), whatever was answered | when it was to come |
//! | once | when the one before has been answered | just before it is sent |
//!
//! An open loop sends no more than [`WINDOW`] calls at once; those beyond wait here, and
//! their time counts. Loops have a warm-up of a sixth of their time.

use std::collections::VecDeque;
use std::time::Duration;

use partywall_testkit::Random;

use super::WINDOW;
use super::cell::{More, Order};
use crate::error::Result;
use crate::row::Figures;
use crate::sys::clock::Stamps;

/// An answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Which call it is of.
    pub tag: u32,
    /// Which function says that it has been called.
    pub which: u64,
    /// The function's stamp.
    pub stamp: u64,
}

/// A dispatcher, with whom it calls.
pub trait Serves {
    /// Calls a function; `now` is the time just before.
    fn send(&mut self, which: u32, tag: u32, now: u64) -> Result<()>;
    /// The answer of a call, if there is one.
    fn receive(&mut self) -> Result<Option<Answer>>;
    /// Whether a function that is called next is as cold as the row says.
    fn is_cold(&mut self, _which: u32) -> Result<bool> {
        Ok(true)
    }
    /// The process that runs functions, if there is one.
    fn worker(&self) -> Option<u32> {
        None
    }
}

/// The most times that a loop keeps.
const KEPT: usize = 1 << 20;
/// The longest wait for an answer, in nanoseconds.
const PATIENCE_NS: u64 = 20_000_000_000;

/// A call under way.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    which: u32,
    begun: u64,
}

/// Room for the times of a loop.
#[derive(Debug)]
pub struct Times {
    one_way: Vec<u64>,
    both_ways: Vec<u64>,
}

impl Times {
    /// All of it is touched, so that none is touched for the first time in a loop.
    pub fn new() -> Self {
        let [one_way, both_ways] = [(); 2].map(|()| {
            let mut times = vec![1; KEPT];
            times.clear();
            times
        });
        Self { one_way, both_ways }
    }
}

/// Calls functions, and keeps the times.
#[derive(Debug)]
pub struct Caller<'a, S> {
    serves: &'a mut S,
    times: &'a mut Times,
    stamps: Stamps,
    count: u32,
    random: Random,
    next: u32,
    flights: Vec<Flight>,
    free: Vec<u32>,
    answered: u64,
    errors: u64,
    /// When an answer came last.
    heard: u64,
}

impl<'a, S: Serves> Caller<'a, S> {
    /// One that calls so many functions.
    pub fn new(
        serves: &'a mut S,
        times: &'a mut Times,
        stamps: Stamps,
        count: u32,
        seed: u64,
    ) -> Self {
        Self {
            serves,
            times,
            stamps,
            count,
            random: Random::new(seed),
            next: 0,
            flights: vec![Flight::default(); WINDOW as usize],
            free: (0..WINDOW).rev().collect(),
            answered: 0,
            errors: 0,
            heard: 0,
        }
    }

    fn begin(&mut self) {
        self.times.one_way.clear();
        self.times.both_ways.clear();
        (self.answered, self.errors) = (0, 0);
        self.heard = self.stamps.now();
    }

    fn pick(&mut self, order: Order) -> u32 {
        match order {
            Order::Random => self.random.below(self.count as usize) as u32,
            Order::RoundRobin => {
                let which = self.next;
                self.next = if which + 1 == self.count { 0 } else { which + 1 };
                which
            }
        }
    }

    fn under_way(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Sends a call that begins at `begun`, or now.
    #[inline]
    fn send(&mut self, which: u32, begun: Option<u64>) -> Result<()> {
        let tag = self.free.pop().ok_or("too many calls are under way")?;
        let now = self.stamps.now();
        self.flights[tag as usize] = Flight { which, begun: begun.unwrap_or(now) };
        self.serves.send(which, tag, now)
    }

    /// Takes an answer if there is one, and keeps its times if they count.
    #[inline]
    fn take(&mut self, counts: bool) -> Result<bool> {
        let Some(Answer { tag, which, stamp }) = self.serves.receive()? else {
            if self.stamps.now() > self.heard + PATIENCE_NS {
                return Err("no answer comes".into());
            }
            return Ok(false);
        };
        let now = self.stamps.now();
        self.heard = now;
        let Flight { which: called, begun } = self.flights[tag as usize];
        self.free.push(tag);
        self.errors += u64::from(which != u64::from(called));
        if counts {
            self.answered += 1;
            if self.times.one_way.len() < KEPT {
                self.times.one_way.push(stamp.saturating_sub(begun));
                self.times.both_ways.push(now - begun);
            }
        }
        Ok(true)
    }

    fn drain(&mut self) -> Result<()> {
        while self.under_way() > 0 {
            self.take(false)?;
        }
        Ok(())
    }

    /// Calls each function once, so that all are warm.
    pub fn warm_up(&mut self) -> Result<()> {
        self.begin();
        for which in 0..self.count {
            self.send(which, None)?;
            while !self.take(false)? {}
        }
        match self.errors {
            0 => Ok(()),
            errors => Err(format!("{errors} functions were not the ones that were called").into()),
        }
    }

    /// A closed loop.
    pub fn closed(&mut self, order: Order, window: u32, span: Duration) -> Result<Figures> {
        self.begin();
        let span = span.as_nanos() as u64;
        let warm = self.stamps.now() + span / 6;
        let end = warm + span;
        let sleeps = self.sleeps();
        let last = loop {
            let now = self.stamps.now();
            if now >= end {
                break now;
            }
            while self.under_way() < window as usize {
                let which = self.pick(order);
                self.send(which, None)?;
            }
            self.take(now >= warm)?;
        };
        let (answered, slept) = (self.answered, self.sleeps());
        self.drain()?;
        let per_s = answered as f64 * 1e9 / (last - warm) as f64;
        Ok(self.figures(Some(per_s), sleeps.zip(slept), None))
    }

    /// An open loop of so many calls per second.
    pub fn open(&mut self, order: Order, per_s: f64, span: Duration) -> Result<Figures> {
        self.begin();
        let span = span.as_nanos() as u64;
        let begin = self.stamps.now();
        let (warm, end) = (begin + span / 6, begin + span / 6 + span);
        let mut due = begin as f64;
        let mut waits = VecDeque::new();
        let sleeps = self.sleeps();
        loop {
            let now = self.stamps.now();
            while due <= now as f64 {
                let which = self.pick(order);
                waits.push_back((which, due as u64));
                // Of (0, 1].
                let uniform = (self.random.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
                due -= uniform.ln() * 1e9 / per_s;
            }
            while !self.free.is_empty() {
                let Some((which, due)) = waits.pop_front() else { break };
                self.send(which, Some(due))?;
            }
            if self.under_way() > 0 {
                self.take(now >= warm)?;
            } else {
                self.heard = now;
            }
            if now >= end {
                break;
            }
        }
        let slept = self.sleeps();
        let answered = self.answered;
        self.drain()?;
        let done = answered as f64 * 1e9 / span as f64;
        Ok(self.figures(Some(done), sleeps.zip(slept), Some(per_s)))
    }

    /// Each function once.
    pub fn once(&mut self, order: Order) -> Result<Figures> {
        self.begin();
        let mut all: Vec<u32> = (0..self.count).collect();
        if order == Order::Random {
            self.random.shuffle(&mut all);
        }
        let mut warm = 0_u64;
        for which in all {
            warm += u64::from(!self.serves.is_cold(which)?);
            self.heard = self.stamps.now();
            self.send(which, None)?;
            while !self.take(true)? {}
        }
        let mut figures = self.figures(None, None, None);
        figures.errors += warm;
        if let Some(more) = &mut figures.functions {
            more.not_cold = Some(warm as f64);
        }
        Ok(figures)
    }

    fn sleeps(&self) -> Option<u64> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.serves.worker()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    }

    fn figures(
        &mut self,
        per_s: Option<f64>,
        sleeps: Option<(u64, u64)>,
        asked_per_s: Option<f64>,
    ) -> Figures {
        let [one_way, both_ways] =
            [&mut self.times.one_way, &mut self.times.both_ways].map(|times| quantiles(times));
        let calls = self.answered as f64;
        Figures {
            p50_ns: one_way[0],
            p99_ns: one_way[1],
            p999_ns: one_way[2],
            per_s,
            errors: self.errors,
            functions: Some(More {
                rtt_p50_ns: both_ways[0],
                rtt_p99_ns: both_ways[1],
                rtt_p999_ns: both_ways[2],
                calls: Some(calls),
                asked_per_s,
                sleeps_per_call: sleeps
                    .filter(|_| calls > 0.0)
                    .map(|(before, after)| (after - before) as f64 / calls),
                ..More::default()
            }),
            ..Figures::default()
        }
    }
}

/// The median, the 99th and the 99.9th percentile; none of nothing.
pub fn quantiles(times: &mut [u64]) -> [Option<f64>; 3] {
    times.sort_unstable();
    let last = times.len().checked_sub(1);
    let at = |part: f64| last.map(|last| times[(part * last as f64).round() as usize] as f64);
    [at(0.5), at(0.99), at(0.999)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers at once, wrongly every `wrong`th time.
    struct Echo {
        stamps: Stamps,
        sent: VecDeque<(u32, u32)>,
        answered: u64,
        wrong: u64,
    }

    impl Serves for Echo {
        fn send(&mut self, which: u32, tag: u32, _: u64) -> Result<()> {
            self.sent.push_back((which, tag));
            Ok(())
        }

        fn receive(&mut self) -> Result<Option<Answer>> {
            let Some((which, tag)) = self.sent.pop_front() else { return Ok(None) };
            self.answered += 1;
            let off = u64::from(self.answered.is_multiple_of(self.wrong));
            Ok(Some(Answer { tag, which: u64::from(which) + off, stamp: self.stamps.now() }))
        }

        fn is_cold(&mut self, which: u32) -> Result<bool> {
            Ok(which != 3)
        }
    }

    fn echo(wrong: u64) -> Echo {
        let stamps = Stamps::measure();
        Echo { stamps, sent: VecDeque::new(), answered: 0, wrong }
    }

    #[test]
    fn quantiles_are_of_sorted_times() {
        let mut times: Vec<u64> = (0..=1000).rev().collect();
        assert_eq!(quantiles(&mut times), [Some(500.0), Some(990.0), Some(999.0)]);
        assert_eq!(quantiles(&mut []), [None; 3]);
    }

    #[test]
    fn wrong_answers_and_warm_functions_are_errors() {
        let mut serves = echo(10);
        let stamps = serves.stamps;
        let mut times = Times::new();
        let mut caller = Caller::new(&mut serves, &mut times, stamps, 100, 1);
        let figures = caller.once(Order::Random).expect("answers");
        let more = figures.functions.expect("figures of functions");
        assert_eq!((more.calls, more.not_cold, figures.errors), (Some(100.0), Some(1.0), 11));
        assert!(caller.warm_up().is_err());
    }

    #[test]
    fn an_open_loop_keeps_to_its_rate() {
        let mut serves = echo(u64::MAX);
        let stamps = serves.stamps;
        let mut times = Times::new();
        let mut caller = Caller::new(&mut serves, &mut times, stamps, 10, 2);
        let span = Duration::from_millis(300);
        let figures = caller.open(Order::Random, 20_000.0, span).expect("answers");
        let per_s = figures.per_s.expect("a rate");
        assert!((18_000.0..22_000.0).contains(&per_s), "{per_s}");
        assert_eq!(figures.errors, 0);
        let figures = caller.closed(Order::RoundRobin, 4, span).expect("answers");
        assert!(figures.per_s.expect("a rate") > 20_000.0);
    }
}
