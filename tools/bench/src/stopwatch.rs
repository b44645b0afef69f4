//! Times the calls of a sample: a warm-up, then the measured span.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::error::Result;
use crate::others::Others;
use crate::row::Figures;
use crate::sys::clock::Ticker;
use crate::sys::cpu;

/// How long a sample lasts.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Spans {
    /// Calls that do not count, first.
    pub warm: Duration,
    /// Calls that do.
    pub sample: Duration,
    /// At least so many of these, however long they take.
    pub least: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    WarmUp,
    Sample,
    Over,
}

/// Times calls through a warm-up and a measured span. At least one call falls into each.
#[derive(Debug)]
pub struct Stopwatch {
    ticker: Ticker,
    times: Histogram<u64>,
    others: Others,
    span: Span,
    until: u64,
    sample: u64,
    least: u64,
    started: u64,
    stopped: u64,
    calls: u64,
    batches: u64,
    cpu_ns: Option<u64>,
}

impl Stopwatch {
    /// Starts the warm-up now. CPU time is that of this process and of `others`.
    pub fn start(ticker: Ticker, spans: Spans, others: Others) -> Result<Self> {
        let longest = ticker.ticks(Duration::from_secs(1000));
        let now = ticker.now();
        Ok(Self {
            ticker,
            times: Histogram::new_with_bounds(1, longest, 3)?,
            others,
            span: Span::WarmUp,
            until: now + ticker.ticks(spans.warm),
            sample: ticker.ticks(spans.sample),
            least: spans.least,
            started: now,
            stopped: now,
            calls: 0,
            batches: 0,
            cpu_ns: None,
        })
    }

    /// The time now, in ticks.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        self.ticker.now()
    }

    /// The clock.
    pub fn ticker(&self) -> Ticker {
        self.ticker
    }

    /// Counts a call that took from `begun` to `ended`. False once the sample is complete.
    #[inline]
    pub fn lap(&mut self, begun: u64, ended: u64) -> bool {
        if self.span == Span::Sample {
            self.times.saturating_record(ended.wrapping_sub(begun));
        }
        self.count(1, ended)
    }

    /// Counts `calls` in a row that took from `begun` to `ended` together. False once the sample is
    /// complete.
    #[inline]
    pub fn batch(&mut self, calls: u64, begun: u64, ended: u64) -> bool {
        if self.span == Span::Sample {
            self.batches += ended.wrapping_sub(begun);
        }
        self.count(calls, ended)
    }

    /// How long something lasts in ticks of this clock.
    pub fn ticks(&self, span: Duration) -> u64 {
        self.ticker.ticks(span)
    }

    /// How long `ticks` of this clock last.
    pub fn span(&self, ticks: u64) -> Duration {
        Duration::from_nanos(self.ticker.ns(ticks) as u64)
    }

    /// Counts `calls` that have been answered by now. False once the sample is complete.
    #[inline]
    pub fn answered(&mut self, calls: u64) -> bool {
        let now = self.now();
        self.count(calls, now)
    }

    #[inline]
    fn count(&mut self, calls: u64, now: u64) -> bool {
        self.calls += u64::from(self.span == Span::Sample) * calls;
        now < self.until || self.lacks_calls() || self.turn(now)
    }

    fn lacks_calls(&self) -> bool {
        self.span == Span::Sample && self.calls < self.least
    }

    /// A span is over: begins the measured one, or ends the sample. Callers of a pipeline that come
    /// later change nothing.
    #[cold]
    fn turn(&mut self, now: u64) -> bool {
        if self.span == Span::Over {
            return false;
        }
        let own = cpu::process_cpu_ns(std::process::id());
        let spent = own.and_then(|own| Ok(own + self.others.cpu_ns()?));
        if self.span == Span::Sample {
            self.span = Span::Over;
            self.stopped = now;
            let before = self.cpu_ns;
            self.cpu_ns =
                spent.ok().zip(before).map(|(after, before)| after.saturating_sub(before));
            return false;
        }
        self.cpu_ns = spent.ok();
        self.span = Span::Sample;
        self.started = self.now();
        self.until = self.started + self.sample;
        true
    }

    /// What was measured.
    pub fn figures(&self, errors: u64) -> Figures {
        let time = |q: f64| {
            let known = !self.times.is_empty();
            known.then(|| self.ticker.ns(self.times.value_at_quantile(q)))
        };
        let calls = self.calls as f64;
        let counted = self.calls > 0;
        let batched = counted && self.batches > 0;
        // Between batches requests are written and replies checked.
        let spent = if batched { self.batches } else { self.stopped.wrapping_sub(self.started) };
        let seconds = self.ticker.ns(spent) / 1e9;
        let cycles = batched && self.ticker.counts_cycles();
        Figures {
            p50_ns: time(0.5),
            p99_ns: time(0.99),
            p999_ns: time(0.999),
            one_way_cycles: cycles.then(|| self.batches as f64 / calls / 2.0),
            per_s: counted.then(|| calls / seconds),
            cpu_ns: self.cpu_ns.filter(|_| counted).map(|ns| ns as f64 / calls),
            errors,
            ..Figures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_half_its_mean_each_way() {
        let spans = Spans { warm: Duration::ZERO, sample: Duration::from_millis(1), least: 1 };
        let mut watch =
            Stopwatch::start(Ticker::calibrate(), spans, Others::default()).expect("a stopwatch");
        let begun = watch.now();
        assert!(watch.batch(10, begun, begun + 5000), "the warm-up is over");
        let ended = watch.now() + watch.ticks(Duration::from_millis(2));
        assert!(!watch.batch(10, ended - 2000, ended), "the sample is over");
        let figures = watch.figures(0);
        assert_eq!(figures.p50_ns, None);
        assert!(figures.one_way_cycles.is_none_or(|cycles| cycles == 100.0), "{figures:?}");
    }

    #[test]
    fn a_sample_has_its_least_number_of_calls() {
        let spans = Spans { warm: Duration::ZERO, sample: Duration::ZERO, least: 3 };
        let mut watch =
            Stopwatch::start(Ticker::calibrate(), spans, Others::default()).expect("a stopwatch");
        assert!(watch.answered(1), "the warm-up is one call");
        assert_eq!([(); 3].map(|()| watch.answered(1)), [true, true, false]);
        assert!(watch.figures(0).per_s.is_some());
        assert_eq!(watch.calls, 3);
    }

    #[test]
    fn callers_that_come_after_the_end_change_nothing() {
        let me = std::process::id();
        let before = cpu::process_cpu_ns(me).expect("own clock");
        let spans =
            Spans { warm: Duration::from_millis(1), sample: Duration::from_millis(5), least: 1 };
        let mut watch =
            Stopwatch::start(Ticker::calibrate(), spans, Others::default()).expect("a stopwatch");
        while watch.answered(1) {}
        let first = watch.figures(0);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(!watch.answered(1));
        }
        let last = watch.figures(0);
        assert_eq!((first.per_s, first.cpu_ns), (last.per_s, last.cpu_ns));
        // Other tests run in this process, so it may have used more than one CPU.
        let used = first.cpu_ns.expect("read") * watch.calls as f64;
        let whole = (cpu::process_cpu_ns(me).expect("own clock") - before) as f64;
        assert!(used > 0.0 && used <= whole, "{used} ns of {whole}");
    }
}
