//! Ratios between contenders: taken per round, within one placement tag, never across.

use std::collections::{BTreeSet, HashMap};

use crate::case::{Case, Wait};
use crate::row::Row;
use crate::stats::{self, Estimate};
use crate::units;

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
    /// Cycles from one side to the other, in the mean.
    OneWay,
    /// CPU time of a call.
    Cpu,
    /// Proportional memory of both sides, by the data.
    Pss,
    /// 99th percentile of the time of a call.
    P99,
    /// 99.9th percentile of the time of a call.
    P999,
    /// 99th percentile of the time of a call of a function, there and back.
    RoundTripP99,
    /// What available memory fell by.
    Memory,
    /// What honest calls did, by what the time left to them would give.
    Kept,
    /// What must be nothing after functions were stopped.
    Harm,
}

/// Whether the cores were near; none where it does not matter.
pub type Tag = Option<bool>;

/// What is taken of each round.
#[derive(Clone, Copy, Debug)]
pub enum Quantity {
    /// The figure itself.
    Value { of: Key },
    /// `over / under`.
    Ratio { over: Key, under: Key },
    /// `over - under`, in the figure's own unit.
    Difference { over: Key, under: Key },
    /// `(over - less) / under`.
    Excess { over: Key, less: Key, under: Key },
    /// `(over - less) / (under - less)`: without what is part of both.
    Net { over: Key, under: Key, less: Key },
    /// `over / (first + second)`: by what its parts take together.
    Parts { over: Key, parts: [Key; 2] },
    /// `over` by the least of `others`, which are in the same case with these waits.
    Least { over: Key, others: &'static [(&'static str, Option<Wait>)] },
    /// The time per byte of `over` by that of `under`: slopes of lines through `sizes`; those of the keys
    /// do not count.
    Slope { over: Key, under: Key, sizes: &'static [u64] },
}

impl Quantity {
    /// Every key that takes part.
    pub fn keys(&self) -> Vec<Key> {
        match *self {
            Self::Value { of } => vec![of],
            Self::Ratio { over, under } | Self::Difference { over, under } => vec![over, under],
            Self::Excess { over, less, under } => vec![over, less, under],
            Self::Net { over, under, less } => vec![over, under, less],
            Self::Parts { over, parts: [first, second] } => vec![over, first, second],
            Self::Least { over, others } => {
                let other = |(contender, wait): &(&'static str, _)| {
                    let case = Case { wait: *wait, ..over.case };
                    Key { contender, case }
                };
                std::iter::once(over).chain(others.iter().map(other)).collect()
            }
            Self::Slope { over, under, sizes } => {
                let at =
                    |key: Key, size| Key { case: Case { size: Some(size), ..key.case }, ..key };
                let each = |key| sizes.iter().map(move |size| at(key, *size));
                each(over).chain(each(under)).collect()
            }
        }
    }

    /// A value of it, as printed.
    pub fn show(&self, value: f64) -> String {
        match self {
            Self::Difference { .. } => units::time(value),
            _ => units::small(value),
        }
    }

    /// Computes it from the figures of its keys; none if one is missing.
    fn of(&self, values: &[Option<f64>]) -> Option<f64> {
        let value = |i: usize| values[i];
        Some(match self {
            Self::Value { .. } => value(0)?,
            Self::Ratio { .. } => value(0)? / value(1)?,
            Self::Difference { .. } => value(0)? - value(1)?,
            Self::Excess { .. } => (value(0)? - value(1)?) / value(2)?,
            Self::Net { .. } => (value(0)? - value(2)?) / (value(1)? - value(2)?),
            Self::Parts { .. } => value(0)? / (value(1)? + value(2)?),
            Self::Least { .. } => {
                let others: Option<Vec<f64>> = values[1..].iter().copied().collect();
                value(0)? / others?.into_iter().reduce(f64::min)?
            }
            Self::Slope { sizes, .. } => {
                let (over, under) = values.split_at(sizes.len());
                slope(sizes, over)? / slope(sizes, under)?
            }
        })
    }
}

/// How steep the line through the values at these sizes is, by least squares of the errors per byte: so
/// what a byte costs where the caches hold all of them counts as much as where they do not.
fn slope(sizes: &[u64], values: &[Option<f64>]) -> Option<f64> {
    let [mut weights, mut x_sum, mut y_sum, mut xx_sum, mut xy_sum] = [0.0; 5];
    for (size, value) in sizes.iter().zip(values) {
        let (x, y) = (*size as f64, (*value)?);
        let weight = 1.0 / (x * x);
        weights += weight;
        x_sum += weight * x;
        y_sum += weight * y;
        xx_sum += weight * x * x;
        xy_sum += weight * x * y;
    }
    Some((weights * xy_sum - x_sum * y_sum) / (weights * xx_sum - x_sum * x_sum))
}

/// The figure of a row, if the row may be compared at all.
pub fn figure(row: &Row, metric: Metric) -> Option<f64> {
    let value = match metric {
        Metric::P50 => row.figures.p50_ns,
        Metric::PerSecond => row.figures.per_s,
        Metric::OneWay => row.figures.one_way_cycles,
        Metric::Cpu => row.figures.cpu_ns,
        Metric::Pss => row.figures.pss_ratio,
        Metric::P99 => row.figures.p99_ns,
        Metric::P999 => row.figures.p999_ns,
        Metric::RoundTripP99 => row.figures.functions.and_then(|more| more.rtt_p99_ns),
        Metric::Memory => row.figures.functions.and_then(|more| more.memory_bytes),
        Metric::Kept => row.figures.functions.and_then(|more| more.kept),
        // Nothing is what is wanted, and wrong answers are part of it.
        Metric::Harm => return row.figures.functions.and_then(|more| more.harm()),
    };
    value.filter(|value| row.figures.errors == 0 && *value > 0.0)
}

fn by_round(rows: &[Row], key: Key, metric: Metric) -> HashMap<(u32, Tag), f64> {
    let of_key = rows.iter().filter(|row| row.contender == key.contender && row.case == key.case);
    of_key.filter_map(|row| Some(((row.rep, row.near), figure(row, metric)?))).collect()
}

/// The quantity of each round in which all parties were measured under the same tag. A party to which the
/// cores do not matter has none, and goes with any.
pub fn per_round(rows: &[Row], quantity: &Quantity, metric: Metric) -> Vec<(Tag, f64)> {
    let keys = quantity.keys();
    let series: Vec<_> = keys.iter().map(|key| by_round(rows, *key, metric)).collect();
    let rounds: BTreeSet<(u32, Tag)> = series.iter().flat_map(|of| of.keys().copied()).collect();
    let of_round = |(rep, tag)| {
        let value = |(key, of): (&Key, &HashMap<_, _>)| {
            let tag = if key.case.probed() { tag } else { None };
            of.get(&(rep, tag)).copied()
        };
        let values: Vec<_> = keys.iter().zip(&series).map(value).collect();
        Some((tag, quantity.of(&values)?))
    };
    rounds.into_iter().filter_map(of_round).collect()
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
    use crate::case::{BULK_SIZES, Mode, Placement, Wait};
    use crate::row::Figures;

    const CASE: Case = Case::call(Mode::Latency, Some(32), Placement::TwoCores, Some(Wait::Spin));
    const A: Key = Key { contender: "a", case: CASE };
    const B: Key = Key { contender: "b", case: CASE };
    const C: Key = Key { contender: "c", case: CASE };

    fn row(contender: &'static str, near: Tag, rep: u32, p50: f64) -> Row {
        let figures = Figures { p50_ns: Some(p50), ..Figures::default() };
        Row { contender, case: CASE, near, rep, figures }
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
    fn quantities_of_three_parties_count_once_all_are_there() {
        let rows = [row("a", None, 0, 4.0), row("b", None, 0, 13.0), row("c", None, 0, 3.0)];
        let others = &[("b", Some(Wait::Spin)), ("c", Some(Wait::Spin))];
        let value = Quantity::Value { of: B };
        assert_eq!(per_round(&rows, &value, Metric::P50), [(None, 13.0)]);
        for (quantity, value) in [
            (Quantity::Net { over: A, under: B, less: C }, 0.1),
            (Quantity::Excess { over: B, less: A, under: C }, 3.0),
            (Quantity::Parts { over: B, parts: [A, C] }, 13.0 / 7.0),
            (Quantity::Least { over: A, others }, 4.0 / 3.0),
        ] {
            assert_eq!(per_round(&rows, &quantity, Metric::P50), [(None, value)]);
            assert!(per_round(&rows[..2], &quantity, Metric::P50).is_empty());
        }
    }

    #[test]
    fn a_party_on_one_core_goes_with_any_tag() {
        let inline = Case { placement: Placement::SameCore, wait: None, ..CASE };
        let at = |rep, p50| Row { case: inline, ..row("c", None, rep, p50) };
        let rows = [
            at(0, 1.0),
            row("a", Some(true), 0, 12.0),
            row("b", Some(true), 0, 3.0),
            at(1, 2.0),
            row("a", Some(false), 1, 40.0),
            row("b", Some(false), 1, 6.0),
            // The cores have moved.
            at(2, 1.0),
            row("a", Some(true), 2, 12.0),
            row("b", Some(false), 2, 6.0),
        ];
        let parts = [B, Key { contender: "c", case: inline }];
        for (quantity, expected) in [
            (Quantity::Parts { over: A, parts }, vec![(Some(true), 3.0), (Some(false), 5.0)]),
            (
                Quantity::Ratio { over: parts[1], under: B },
                vec![(Some(true), 1.0 / 3.0), (Some(false), 1.0 / 3.0), (Some(false), 1.0 / 6.0)],
            ),
        ] {
            assert_eq!(per_round(&rows, &quantity, Metric::P50), expected);
        }
    }

    #[test]
    fn a_slope_leaves_out_what_is_paid_once() {
        let case = Case::domain(Mode::Bulk, None, Placement::SameCore, None);
        let rows: Vec<Row> = BULK_SIZES
            .into_iter()
            .flat_map(|size| {
                let case = Case { size: Some(size), ..case };
                let times = [("a", 5e6 + 0.3 * size as f64), ("b", 70.0 + 0.1 * size as f64)];
                times.map(|(name, p50)| Row { case, ..row(name, None, 0, p50) })
            })
            .collect();
        let key = |contender| Key { contender, case };
        let quantity = Quantity::Slope { over: key("a"), under: key("b"), sizes: &BULK_SIZES };
        let found = per_round(&rows, &quantity, Metric::P50);
        assert!(found.len() == 1 && (found[0].1 - 3.0).abs() < 1e-6, "{found:?}");
        assert!(per_round(&rows[1..], &quantity, Metric::P50).is_empty());
    }
}
