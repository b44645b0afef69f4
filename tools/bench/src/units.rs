//! Figures with the units that suit them.

/// A time in nanoseconds with a unit that suits it.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{} ns", digits(ns)),
        ns if ns < 1e6 => format!("{} µs", digits(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", digits(ns / 1e6)),
        ns => format!("{} s", digits(ns / 1e9)),
    }
}

/// A rate per second with a unit that suits it.
pub fn rate(per_s: f64) -> String {
    match per_s {
        rate if rate < 1e3 => format!("{}/s", digits(rate)),
        rate if rate < 1e6 => format!("{} k/s", digits(rate / 1e3)),
        rate => format!("{} M/s", digits(rate / 1e6)),
    }
}

/// A number of cycles.
pub fn cycles(cycles: f64) -> String {
    format!("{cycles:.0} cycles")
}

/// Three significant digits.
fn digits(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// A ratio: enough digits for small ones.
pub fn small(value: f64) -> String {
    match value.abs() {
        size if size < 0.1 => format!("{value:.4}"),
        size if size < 10.0 => format!("{value:.3}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_suitable_units() {
        assert_eq!(time(119.6), "120 ns");
        assert_eq!(time(4_415.0), "4.42 µs");
        assert_eq!(time(37_589.0), "37.6 µs");
        assert_eq!(time(1.5e9), "1.50 s");
        assert_eq!(rate(67_912.0), "67.9 k/s");
        assert_eq!(rate(60.9e6), "60.9 M/s");
        assert_eq!(cycles(95.6), "96 cycles");
    }
}
