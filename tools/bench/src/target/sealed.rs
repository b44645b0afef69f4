//! Targets of `sealed`. All are about one core.

use super::{Bound, Target};
use crate::case::Placement::SameCore;
use crate::case::{Case, Wait};
use crate::ratio::{Key, Metric, Quantity};
use crate::sealed::rotating;

const BLOCK: Option<Wait> = Some(Wait::Block);
/// What a rotation of all certificates may add to the slowest calls, in ns.
const ROTATION: f64 = 5e6;
/// The most bytes of a short call.
const SHORT: u64 = 4 << 10;
/// Those of a long one.
const LONG: u64 = 64 << 10;

fn key(contender: &'static str, size: u64) -> Key {
    let wait = if contender.ends_with("-floor") { None } else { BLOCK };
    Key { contender, case: Case::sealed(size, SameCore, wait) }
}

fn ratio(over: Key, under: Key, bound: Bound) -> Target {
    let text = format!("p50: {} over {} ({})", over.contender, under.contender, over.case);
    Target::new(text, Quantity::Ratio { over, under }, Metric::P50, bound)
}

fn connect(over: &'static str, under: &'static str, bound: Bound) -> Target {
    let key = |contender| Key { contender, case: Case::connect(BLOCK) };
    ratio(key(over), key(under), bound)
}

/// What `more` adds to a call, by what the cipher or signatures alone take.
fn added(
    more: &'static str,
    plain: &'static str,
    floor: &'static str,
    size: u64,
    bound: Bound,
) -> Target {
    let (over, less, under) = (key(more, size), key(plain, size), key(floor, size));
    let text = format!("p50: {more} less {plain}, over {floor} ({})", over.case);
    Target::new(text, Quantity::Excess { over, less, under }, Metric::P50, bound)
}

/// Each contender that seals, and the same that does not.
const PAIRS: [(&str, &str); 3] = [
    ("ring-sealed-raw", "ring-plain-raw"),
    ("ring-sealed-tonic", "ring-plain-tonic"),
    ("native-sealed", "native-plain"),
];

/// What the project promises, as far as `sizes` were run.
pub fn targets(sizes: &[u64]) -> Vec<Target> {
    let [raw, tonic, native] = PAIRS;
    let mut found = Vec::new();
    let tls =
        |over, size, most| ratio(key(over, size), key("tonic-uds-tls", size), Bound::AtMost(most));
    for &size in sizes.iter().filter(|size| **size <= SHORT) {
        found.push(ratio(key(raw.0, size), key(raw.1, size), Bound::AtMost(1.5)));
        found.push(tls(tonic.0, size, 1.0 / 4.0));
        found.push(tls(native.0, size, 1.0 / 12.0));
    }
    if sizes.contains(&LONG) {
        found.push(tls(tonic.0, LONG, 1.0 / 2.0));
        for (i, (sealed, plain)) in PAIRS.into_iter().enumerate() {
            let bound = if i == 0 { Bound::AtMost(1.25) } else { Bound::Stated };
            found.push(added(sealed, plain, "aead-floor", LONG, bound));
        }
    }
    if sizes.contains(&rotating::SIZE) {
        let [over, under] =
            ["ring-sealed-rotating", "ring-sealed-tonic"].map(|name| key(name, rotating::SIZE));
        let text = format!("p99.9: {} less {} ({})", over.contender, under.contender, over.case);
        let quantity = Quantity::Difference { over, under };
        found.push(Target::new(text, quantity, Metric::P999, Bound::AtMost(ROTATION)));
    }
    for &size in sizes {
        let bound = Bound::AtMost(1.2);
        found.push(added("ring-signed-tonic", "ring-plain-tonic", "sign-floor", size, bound));
    }
    found.extend([
        connect("connect-sealed-resumed", "connect-plain", Bound::AtMost(2.0)),
        connect("connect-sealed-known", "connect-plain-second", Bound::AtMost(3.0)),
        connect("connect-sealed-known", "connect-plain", Bound::Stated),
        connect("connect-sealed-first", "connect-plain", Bound::Stated),
    ]);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Bench;

    #[test]
    fn each_size_that_was_run_is_judged_by_its_bounds() {
        let of = |sizes: &[u64]| {
            let judged = |target: &&Target| !matches!(target.bound, Bound::Stated);
            targets(sizes).iter().filter(judged).count()
        };
        // Seven sizes are short ones, of three targets each; two of the long one; two of connects; one of
        // rotation; one of signatures for each size.
        assert_eq!(of(Bench::Sealed.sizes()), 7 * 3 + 2 + 2 + 1 + 13);
        assert_eq!(of(Bench::Sealed.quick_sizes()), 2 * 3 + 2 + 2 + 1 + 3);
        assert_eq!(of(&[SHORT]), 3 + 2 + 1 + 1);
        assert_eq!(of(&[16 << 10]), 2 + 1);
    }
}
