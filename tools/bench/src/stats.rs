//! Medians, bootstrap intervals, and the random numbers both need.

use partywall_testkit::Random;

/// The `q` quantile of sorted values, interpolated; none if there are none.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// The median; none if there are no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// A median, and the range that covers it in 95 of 100 cases.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Estimate {
    /// How many values it rests on.
    pub n: usize,
    /// The median.
    pub median: f64,
    /// Lower and upper end of the interval; none with fewer than [`ENOUGH`] values.
    pub interval: Option<(f64, f64)>,
}

/// Values that an interval needs: with fewer, not even the range of all of them covers the median
/// in 95 of 100 cases (five values do in 94).
pub const ENOUGH: usize = 5;

/// Draws of the bootstrap.
const DRAWS: usize = 4000;

/// The median of `values` and its percentile bootstrap interval; none if there are no values.
pub fn estimate(values: &[f64], seed: u64) -> Option<Estimate> {
    let centre = median(values)?;
    let interval = if values.len() < ENOUGH { None } else { bootstrap(values, seed) };
    Some(Estimate { n: values.len(), median: centre, interval })
}

fn bootstrap(values: &[f64], seed: u64) -> Option<(f64, f64)> {
    let mut rng = Random::new(seed);
    let mut drawn = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..DRAWS)
        .map(|_| {
            drawn.fill_with(|| values[rng.below(values.len())]);
            drawn.sort_by(f64::total_cmp);
            quantile(&drawn, 0.5).unwrap_or(f64::NAN)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Some((quantile(&medians, 0.025)?, quantile(&medians, 0.975)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[5.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn quantiles_interpolate() {
        let values = [0.0, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&values, 0.0), Some(0.0));
        assert_eq!(quantile(&values, 0.625), Some(2.5));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
    }

    #[test]
    fn the_bootstrap_is_seeded_and_brackets_the_median() {
        let values: Vec<f64> = (0..41).map(f64::from).collect();
        let found = estimate(&values, 1).expect("values");
        assert_eq!(Some(found), estimate(&values, 1));
        assert_eq!((found.n, found.median), (41, 20.0));
        let (low, high) = found.interval.expect("enough values");
        // The interval of the median of 41 even values is about 6.4 wide on each side.
        assert!((10.0..=16.0).contains(&low), "{found:?}");
        assert!((24.0..=30.0).contains(&high), "{found:?}");
    }

    #[test]
    fn fewer_than_five_values_have_no_interval() {
        let found = estimate(&[2.5], 9).expect("one value");
        assert_eq!(found, Estimate { n: 1, median: 2.5, interval: None });
        assert_eq!(estimate(&[1.0, 2.0, 3.0, 4.0], 9).expect("four values").interval, None);
        let five = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0], 9).expect("five values");
        assert_eq!(five.interval, Some((1.0, 5.0)));
        assert_eq!(estimate(&[], 9), None);
    }
}
