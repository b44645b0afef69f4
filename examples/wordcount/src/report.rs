//! What the client prints.

use std::{fmt::Write, time::Duration};

use crate::count::Expected;

/// The times of the calls over one endpoint.
pub struct Times {
    sorted: Vec<Duration>,
}

impl Times {
    /// Of the times of single calls, at least one.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { sorted: times }
    }

    /// The shortest time that `percent` of the calls did not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted[rank - 1]
    }
}

/// The answers in one line.
pub fn answers(expected: &Expected) -> String {
    let Expected { total, distinct, .. } = expected;
    let mut line = format!("total {total} words, {distinct} distinct");
    for (i, (word, count)) in expected.top(5).enumerate() {
        let _ = write!(line, "{} {word} {count}", if i == 0 { "; most frequent:" } else { "," });
    }
    line
}

/// The times over every endpoint; the ratio is that of the medians to the first one.
pub fn table(rows: &[(String, Times)]) -> String {
    let width = rows.iter().map(|(uri, _)| uri.chars().count()).max().unwrap_or(0).max(8);
    let mut table =
        format!("{:width$}  {:>10}  {:>10}  {:>7}\n", "endpoint", "p50", "p99", "ratio");
    let first = rows.first().map_or(0.0, |(_, times)| times.percentile(50).as_secs_f64());
    for (uri, times) in rows {
        let p50 = times.percentile(50);
        let _ = writeln!(
            table,
            "{uri:width$}  {:>10}  {:>10}  {:>7.2}",
            short(p50),
            short(times.percentile(99)),
            p50.as_secs_f64() / first
        );
    }
    table
}

/// A time with one decimal in the unit that suits it.
pub fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_nanos() {
        0..1_000_000 => format!("{:.1} µs", seconds * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// A number of bytes, rounded to what is worth reading.
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn micros(times: impl IntoIterator<Item = u64>) -> Times {
        Times::new(times.into_iter().map(Duration::from_micros).collect())
    }

    #[test]
    fn percentiles() {
        let times = micros((1..=200).rev());
        assert_eq!(times.percentile(50), Duration::from_micros(100));
        assert_eq!(times.percentile(99), Duration::from_micros(198));
        assert_eq!(micros([7]).percentile(50), Duration::from_micros(7));
        assert_eq!(micros([7]).percentile(99), Duration::from_micros(7));
    }

    #[test]
    fn the_answers_in_one_line() {
        let line = |text: &'static str| answers(&Expected::of(Bytes::from_static(text.as_bytes())));
        assert_eq!(line(""), "total 0 words, 0 distinct");
        assert_eq!(line("the wall the"), "total 3 words, 2 distinct; most frequent: the 2, wall 1");
        assert!(line("f e d c b a").ends_with("most frequent: a 1, b 1, c 1, d 1, e 1"));
    }

    #[test]
    fn the_table() {
        let rows = [
            ("partywall:///wordcount".to_owned(), micros([10, 10, 20])),
            ("unix:/s".to_owned(), micros([25, 25, 2_500])),
        ];
        assert_eq!(
            table(&rows),
            "endpoint                       p50         p99    ratio\n\
             partywall:///wordcount     10.0 µs     20.0 µs     1.00\n\
             unix:/s                    25.0 µs      2.5 ms     2.50\n"
        );
    }

    #[test]
    fn units() {
        assert_eq!(short(Duration::from_nanos(999_900)), "999.9 µs");
        assert_eq!(short(Duration::from_millis(1_500)), "1.5 s");
        assert_eq!(size(999), "999 bytes");
        assert_eq!(size(1_840), "1.8 kB");
        assert_eq!(size(889_000_000), "889.0 MB");
    }
}
