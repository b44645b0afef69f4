//! Which methods of a service are worth a visit through the gate.
//!
//! A handler that is ready at once answers before the caller's thread is back. One that waits, or that
//! the service does not poll for its caller (see `link::service::inline`), goes on in the service's own
//! runtime, and to wake that from inside takes a forwarded system call, which costs more than the bell
//! that would have been rung instead. So a caller that has met [`STREAK`] of those of a method in a
//! row rings for the next calls, and then tries again: for a few at first, for a service that has just
//! begun, and for twice as many each time that the trial fails.
//!
//! Methods are told apart by the lengths of their paths and the last sixteen bytes, if there are as
//! many; two that are mixed up share what was learned, which costs time and nothing else. So does a
//! service that does not tell the truth.

/// Waiting handlers in a row before the bell is rung instead.
const STREAK: u8 = 8;
/// Calls that ring before one tries again, at first.
const FIRST_RINGS: u8 = 15;
/// And in the end: trials are no hundredth of all.
const MOST_RINGS: u8 = 240;
/// Places for what is learned.
const METHODS: usize = 64;

/// A method's place among what was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method(usize);

/// What was learned of one method.
#[derive(Clone, Copy, Default)]
struct Learned {
    /// Handlers that waited in a row.
    waited: u8,
    /// Calls that are still to ring.
    rings: u8,
    /// How many were to, the last time.
    last_rings: u8,
}

/// What was learned of one link's methods.
pub(crate) struct Predictor([Learned; METHODS]);

impl Predictor {
    pub(crate) fn new() -> Self {
        Self([Learned::default(); METHODS])
    }

    /// The method of a call that is to take the gate, none if it is to ring.
    pub(crate) fn predict(&mut self, path: &str) -> Option<Method> {
        let place = place(path);
        let rings = &mut self.0[place].rings;
        if *rings == 0 {
            return Some(Method(place));
        }
        *rings -= 1;
        None
    }

    /// A call went in: whether its handler waits.
    pub(crate) fn learn(&mut self, method: Method, waits: bool) {
        let learned = &mut self.0[method.0];
        if !waits {
            *learned = Learned::default();
            return;
        }
        learned.waited = learned.waited.saturating_add(1);
        if learned.waited >= STREAK {
            learned.last_rings =
                learned.last_rings.saturating_mul(2).clamp(FIRST_RINGS, MOST_RINGS);
            learned.rings = learned.last_rings;
        }
    }
}

/// By Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
fn place(path: &str) -> usize {
    let end = path.as_bytes().last_chunk().map_or(0, |end| u128::from_le_bytes(*end));
    let end = (end as u64) ^ ((end >> 64) as u64).rotate_left(29) ^ path.len() as u64;
    (end.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - METHODS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many calls go in, if their handlers wait as `waits` says.
    fn go_in(
        predictor: &mut Predictor,
        path: &str,
        calls: u32,
        waits: impl Fn(u32) -> bool,
    ) -> u32 {
        (0..calls)
            .filter(|n| {
                let method = predictor.predict(path);
                method.into_iter().for_each(|method| predictor.learn(method, waits(*n)));
                method.is_some()
            })
            .count() as u32
    }

    #[test]
    fn handlers_that_wait_are_rung_for_and_tried_again() {
        let mut predictor = Predictor::new();
        let (waiting, ready) = ("/some.Service/Waiting", "/some.Service/Ready");
        assert_ne!(place(waiting), place(ready));
        assert_eq!(go_in(&mut predictor, waiting, 8, |_| true), 8);
        for rings in [15, 30, 60, 120, 240, 240, 240] {
            assert_eq!(go_in(&mut predictor, waiting, rings, |_| true), 0, "{rings}");
            assert_eq!(go_in(&mut predictor, waiting, 1, |_| true), 1, "{rings}");
        }
        // Between two trials.
        assert_eq!(go_in(&mut predictor, waiting, 240, |_| true), 0);
        assert_eq!(go_in(&mut predictor, ready, 1000, |_| false), 1000);
        // It has changed: all go in after the next trial, and it begins anew.
        assert_eq!(go_in(&mut predictor, waiting, 1, |_| false), 1);
        assert_eq!(go_in(&mut predictor, waiting, 1000, |_| false), 1000);
        // One ready handler in four is enough.
        assert_eq!(go_in(&mut predictor, waiting, 1000, |n| n % 4 != 0), 1000);
        assert_eq!(go_in(&mut predictor, waiting, 1, |_| false), 1);
        assert_eq!(go_in(&mut predictor, waiting, 8 + 15 + 1, |_| true), 8 + 1);
    }

    #[test]
    fn calls_that_went_in_together_are_all_learned_from() {
        let mut predictor = Predictor::new();
        let path = "/some.Service/Method";
        let inside: Vec<_> = (0..1000).filter_map(|_| predictor.predict(path)).collect();
        assert_eq!(inside.len(), 1000);
        inside.iter().for_each(|method| predictor.learn(*method, true));
        assert_eq!(go_in(&mut predictor, path, 240, |_| true), 0);
        assert_eq!(go_in(&mut predictor, path, 1, |_| false), 1);
    }

    #[test]
    fn methods_are_spread_over_the_places() {
        let spread = |path: &dyn Fn(char) -> String| {
            let places: std::collections::HashSet<_> =
                ('A'..='Z').map(|letter| place(&path(letter))).collect();
            // 21.5 if each place is as likely as another.
            assert!(places.len() >= 16, "{} places for 26 methods", places.len());
        };
        spread(&|letter| format!("/some.package.Service/Method{letter}"));
        spread(&|letter| format!("/some.package.Service/{letter}Method"));
        spread(&|letter| format!("/some.package.Service/Get{letter}tem"));
        spread(&|letter| format!("/a.B/{}", letter.to_string().repeat(letter as usize)));
        assert_eq!(place("/"), place("."), "short ones share a place");
    }
}
