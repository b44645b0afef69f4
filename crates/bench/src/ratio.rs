//! Ratios between contenders: taken per round, within one placement tag, never across.

use std::collections::HashMap;

use crate::case::Case;
use crate::row::Row;
use crate::stats::{self, Estimate};

/// A contender in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Its name.
    pub contender: &'static str,
    /// The cell.
    pub case: Case,
}

/// The figure that is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// Median time of a call.
    P50,
    /// Calls per second.
    PerSecond,
}

/// Whether the cores were near; none where it does not matter.
pub type Tag = Option<bool>;

/// What is taken of each round.
#[derive(Clone, Copy, Debug)]
pub enum Quantity {
    /// `over / under`.
    Ratio {
        /// Dividend.
        over: Key,
        /// Divisor.
        under: Key,
    },
    /// `(over - less) / under`.
    Excess {
        /// Minuend.
        over: Key,
        /// Subtrahend.
        less: Key,
        /// Divisor.
        under: Key,
    },
}

impl Quantity {
    /// Every key that takes part.
    pub fn keys(&self) -> Vec<Key> {
        match *self {
            Self::Ratio { over, under } => vec![over, under],
            Self::Excess { over, less, under } => vec![over, less, under],
        }
    }
}

/// The figure of a row, if the row may be compared at all.
pub fn figure(row: &Row, metric: Metric) -> Option<f64> {
    let value = match metric {
        Metric::P50 => row.figures.p50_ns,
        Metric::PerSecond => row.figures.per_s,
    };
    value.filter(|value| row.figures.errors == 0 && *value > 0.0)
}

fn by_round(rows: &[Row], key: Key, metric: Metric) -> HashMap<(u32, Tag), f64> {
    let of_key = rows.iter().filter(|row| row.contender == key.contender && row.case() == key.case);
    of_key.filter_map(|row| Some(((row.rep, row.near), figure(row, metric)?))).collect()
}

/// The quantity of each round in which all parties were measured under the same tag.
pub fn per_round(rows: &[Row], quantity: &Quantity, metric: Metric) -> Vec<(Tag, f64)> {
    let series: Vec<_> =
        quantity.keys().into_iter().map(|key| by_round(rows, key, metric)).collect();
    let mut found: Vec<_> = series[0]
        .keys()
        .filter_map(|at| {
            let value = |i: usize| series[i].get(at).copied();
            let ratio = match quantity {
                Quantity::Ratio { .. } => value(0)? / value(1)?,
                Quantity::Excess { .. } => (value(0)? - value(1)?) / value(2)?,
            };
            Some((*at, ratio))
        })
        .collect();
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|((_, tag), ratio)| (tag, ratio)).collect()
}

/// The median of the ratios under each tag that occurred, with its interval.
pub fn estimates(rows: &[Row], quantity: &Quantity, metric: Metric) -> Vec<(Tag, Estimate)> {
    let ratios = per_round(rows, quantity, metric);
    [None, Some(true), Some(false)]
        .into_iter()
        .filter_map(|tag| {
            let values: Vec<f64> =
                ratios.iter().filter(|(of, _)| *of == tag).map(|(_, ratio)| *ratio).collect();
            Some((tag, stats::estimate(&values, values.len() as u64)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement, Wait};
    use crate::row::Figures;

    const CASE: Case = Case::call(Mode::Latency, Some(32), Placement::TwoCores, Some(Wait::Spin));
    const A: Key = Key { contender: "a", case: CASE };
    const B: Key = Key { contender: "b", case: CASE };
    const C: Key = Key { contender: "c", case: CASE };

    fn row(name: &str, near: Tag, rep: u32, p50: f64) -> Row {
        Row::new(name, CASE, near, rep, Figures { p50_ns: Some(p50), ..Figures::default() })
    }

    #[test]
    fn ratios_stay_within_a_round_and_a_tag() {
        let rows = [
            row("a", Some(true), 0, 10.0),
            row("b", Some(true), 0, 5.0),
            row("a", Some(true), 1, 10.0),
            row("b", Some(false), 1, 20.0),
            row("a", Some(false), 2, 60.0),
            row("b", Some(false), 2, 20.0),
            row("a", Some(true), 3, 7.0),
        ];
        let quantity = Quantity::Ratio { over: A, under: B };
        let ratios = per_round(&rows, &quantity, Metric::P50);
        assert_eq!(ratios, [(Some(true), 2.0), (Some(false), 3.0)]);
        let found = estimates(&rows, &quantity, Metric::P50);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].0, found[0].1.median), (Some(true), 2.0));
    }

    #[test]
    fn rows_with_errors_do_not_count() {
        let mut wrong = row("a", None, 0, 10.0);
        wrong.figures.errors = 1;
        let rows = [wrong, row("b", None, 0, 5.0)];
        let quantity = Quantity::Ratio { over: A, under: B };
        assert!(per_round(&rows, &quantity, Metric::P50).is_empty());
    }

    #[test]
    fn an_excess_takes_three_parties() {
        let rows = [row("a", None, 0, 10.0), row("b", None, 0, 4.0), row("c", None, 0, 3.0)];
        let quantity = Quantity::Excess { over: A, less: B, under: C };
        assert_eq!(per_round(&rows, &quantity, Metric::P50), [(None, 2.0)]);
        assert!(per_round(&rows[..2], &quantity, Metric::P50).is_empty());
    }
}
