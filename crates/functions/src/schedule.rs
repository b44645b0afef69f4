//! Whose call is next: admission by each owner's limits, and an order by the CPU time that owners have had.
//!
//! ```text
//! admit -> [queue of the owner] -> begin -> runs -> ended
//!   no: Refused
//! ```
//!
//! | limit | when it is looked at | beyond it |
//! | --- | --- | --- |
//! | rate | a call comes; a bucket of `burst` calls fills with `rate` calls a second | refused |
//! | queue | a call comes | refused |
//! | concurrency | a call would begin; what waits for a service counts | stays in its queue |
//! | waiting | a call would wait for a service, beside others of its function (the dispatcher counts) | refused |
//! | share | a call would begin, and other owners have calls too | comes after them |
//!
//! An owner's *virtual time* is the CPU time that its functions have had, divided by its share. The owner
//! that is furthest behind is next (start-time fair queueing; Goyal, Vin, Cheng: SIGCOMM 1996, section 2.1).
//! Who has had nothing to run starts where the others are: time that nobody asked for is not saved. What a
//! function takes is known when it has ended. Until then it counts as much as one of its owner's last took,
//! so that an owner with many calls at once gets no more than one with few.
//!
//! Where a call cannot run at once although it is next, because all CPUs that it could have are others' for
//! now, a later one may come before it ([`Schedule::begin`] asks); who lets it keeps the difference small, by
//! the virtual times that it is told.
//!
//! There is no clock in here: times are arguments, in nanoseconds of any clock that does not go back.

use std::collections::{BTreeSet, VecDeque};

/// What an owner may have at once, and how much of the CPU beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls a second, in the long run.
    pub rate: u64,
    /// Calls beyond that at once.
    pub burst: u64,
    /// Calls that wait because others have begun.
    pub queue: usize,
    /// Calls that have begun and have not ended.
    pub concurrency: usize,
    /// Calls of one function that wait for services.
    pub waiting: u32,
    /// The weight of the owner's claim to CPU time; not 0.
    pub share: u32,
}

impl Default for Limits {
    /// 1,000,000 calls a second and 10,000 at once, 10,000 in the queue, 64 begun, 1,000 of a function that
    /// wait for services, a share of 100.
    fn default() -> Self {
        Self {
            rate: 1_000_000,
            burst: 10_000,
            queue: 10_000,
            concurrency: 64,
            waiting: 1000,
            share: 100,
        }
    }
}

/// An owner's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u32);

/// A call that has begun, until it has ended.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its end is to be told"]
pub struct Begun {
    /// Whose it is.
    pub owner: Owner,
    /// What was counted for it.
    charge: u64,
}

/// Why a call is not admitted, or does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its owner's calls come too fast.
    #[error("its owner has more than {rate} calls a second; try again in {again_ms} ms")]
    Rate {
        /// The limit.
        rate: u64,
        /// When a call will be admitted if no other comes, in milliseconds.
        again_ms: u64,
    },
    /// Its owner has too many calls that wait.
    #[error("{queue} calls of its owner wait, which is the most")]
    Queue {
        /// The limit.
        queue: usize,
    },
    /// Its function has too many calls that wait for services.
    #[error("{waiting} calls of this function wait for services, which is the most")]
    Waiting {
        /// The limit.
        waiting: u32,
    },
}

/// Virtual time is CPU time by this, divided by the share.
const SCALE: u64 = 1 << 10;
/// The owners whose calls are looked at for one that may begin.
const LOOKED_AT: usize = 256;

/// The virtual time of so much CPU time with a share of 100.
pub const fn virtual_time(cpu: std::time::Duration) -> u64 {
    cpu.as_nanos() as u64 * SCALE / 100
}

#[derive(Debug)]
struct State<T> {
    limits: Limits,
    queue: VecDeque<T>,
    begun: usize,
    virtual_time: u64,
    /// What is counted for each that begins, and for all that have not ended, in virtual time.
    expected: u64,
    charged: u64,
    /// When a call would come that keeps to the rate (the theoretical arrival time of ITU-T I.371, annex A).
    due: u64,
}

impl<T> State<T> {
    fn is_ready(&self) -> bool {
        !self.queue.is_empty() && self.begun < self.limits.concurrency
    }
}

/// The owners with a call that may begin, by their virtual times. The first one is beside the tree: as long
/// as it stays the first, which an owner alone does, nothing of the tree changes.
#[derive(Debug, Default)]
struct Ready {
    first: Option<Place>,
    others: BTreeSet<Place>,
}

/// An owner's virtual time, and the owner.
type Place = (u64, Owner);

impl Ready {
    fn add(&mut self, place: Place) {
        match self.first {
            Some(first) if first < place => {
                self.others.insert(place);
            }
            first => {
                self.others.extend(first);
                self.first = Some(place);
            }
        }
    }

    fn remove(&mut self, place: Place) {
        if self.first == Some(place) {
            self.first = self.others.pop_first();
        } else {
            self.others.remove(&place);
        }
    }

    /// An owner's virtual time is another one.
    #[inline]
    fn change(&mut self, before: Place, after: Place) {
        let is_first = self.others.first().is_none_or(|next| after < *next);
        if self.first == Some(before) && is_first {
            self.first = Some(after);
        } else {
            self.remove(before);
            self.add(after);
        }
    }
}

/// The queues of all owners.
#[derive(Debug)]
pub struct Schedule<T> {
    owners: Vec<State<T>>,
    ready: Ready,
    /// The virtual time of the owner that was served last, without what it had not had yet.
    now: u64,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { owners: Vec::new(), ready: Ready::default(), now: 0 }
    }
}

impl<T> Schedule<T> {
    /// Another owner.
    pub fn add(&mut self, limits: Limits) -> Owner {
        let (queue, virtual_time) = (VecDeque::new(), self.now);
        let (begun, expected, charged, due) = (0, 0, 0, 0);
        let state = State { limits, queue, begun, virtual_time, expected, charged, due };
        self.owners.push(state);
        Owner(self.owners.len() as u32 - 1)
    }

    /// Other limits for an owner. What it has already stays.
    pub fn limit(&mut self, owner: Owner, limits: Limits) {
        self.change(owner, |state| state.limits = limits);
    }

    /// The limits of an owner.
    pub fn limits(&self, owner: Owner) -> &Limits {
        &self.owners[owner.0 as usize].limits
    }

    /// Calls of an owner that wait to begin, and that have begun.
    pub fn counts(&self, owner: Owner) -> (usize, usize) {
        let state = &self.owners[owner.0 as usize];
        (state.queue.len(), state.begun)
    }

    /// Takes a call of an owner into its queue.
    ///
    /// # Errors
    /// [`Refused`] by the limit that it is beyond; the call comes back.
    pub fn admit(&mut self, owner: Owner, call: T, now: u64) -> Result<(), (Refused, T)> {
        const SECOND: u64 = 1_000_000_000;
        let state = &mut self.owners[owner.0 as usize];
        let Limits { rate, burst, queue, concurrency, .. } = state.limits;
        // Those that may begin at once do not count, though they have not begun yet.
        if state.queue.len() >= queue.saturating_add(concurrency.saturating_sub(state.begun)) {
            return Err((Refused::Queue { queue }, call));
        }
        let each = SECOND / rate.max(1);
        let due = state.due.max(now);
        let early = (due - now).saturating_sub(each.saturating_mul(burst));
        if rate == 0 || early > 0 {
            let again_ms = early.div_ceil(1_000_000);
            return Err((Refused::Rate { rate, again_ms }, call));
        }
        let floor = self.now;
        self.change(owner, |state| {
            state.due = due.saturating_add(each);
            if state.queue.is_empty() && state.begun == 0 {
                state.virtual_time = state.virtual_time.max(floor);
            }
            state.queue.push_back(call);
        });
        Ok(())
    }

    /// The call that is the first in order.
    pub fn first(&self) -> Option<&T> {
        let (_, owner) = self.ready.first?;
        self.owners[owner.0 as usize].queue.front()
    }

    /// The call that is to begin next: the first one in order for which there is a place, as `place` says,
    /// which has its owner's virtual time too. Its end is to be told ([`Self::ended`]).
    #[inline]
    pub fn begin<P>(
        &mut self,
        mut place: impl FnMut(&T, u64) -> Option<P>,
    ) -> Option<(Begun, T, P)> {
        let owners = &self.owners;
        let mut look = |&(virtual_time, owner): &(u64, Owner)| {
            let call = owners[owner.0 as usize].queue.front()?;
            Some((virtual_time, owner, place(call, virtual_time)?))
        };
        let found = look(self.ready.first.as_ref()?);
        let later = || self.ready.others.iter().take(LOOKED_AT).find_map(look);
        let (virtual_time, owner, place) = found.or_else(later)?;
        let charged = self.owners[owner.0 as usize].charged;
        self.now = self.now.max(virtual_time.saturating_sub(charged));
        let (charge, call) = self.change(owner, |state| {
            state.begun += 1;
            state.virtual_time += state.expected;
            state.charged += state.expected;
            (state.expected, state.queue.pop_front())
        });
        Some((Begun { owner, charge }, call?, place))
    }

    /// A call has ended that has begun, and had so much CPU time.
    pub fn ended(&mut self, begun: Begun, cpu_ns: u64) {
        self.change(begun.owner, |state| {
            state.begun -= 1;
            state.charged -= begun.charge;
            let taken = cpu_ns.saturating_mul(SCALE) / u64::from(state.limits.share.max(1));
            state.virtual_time = (state.virtual_time + taken).saturating_sub(begun.charge);
            state.expected = taken;
        });
    }

    /// Takes the first such call out of an owner's queue, which is not to begin any more.
    pub fn withdraw(&mut self, owner: Owner, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        self.change(owner, |state| {
            let at = state.queue.iter().position(is_it)?;
            state.queue.remove(at)
        })
    }

    /// Changes an owner's state, and whether it is ready.
    #[inline]
    fn change<R>(&mut self, owner: Owner, change: impl FnOnce(&mut State<T>) -> R) -> R {
        let state = &mut self.owners[owner.0 as usize];
        let before = state.is_ready().then_some((state.virtual_time, owner));
        let done = change(state);
        let after = state.is_ready().then_some((state.virtual_time, owner));
        match (before, after) {
            (Some(before), Some(after)) if before != after => self.ready.change(before, after),
            (Some(before), None) => self.ready.remove(before),
            (None, Some(after)) => self.ready.add(after),
            _ => {}
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1000;

    fn limits(share: u32) -> Limits {
        Limits { share, ..Limits::default() }
    }

    fn first<T>(schedule: &mut Schedule<T>) -> Option<(Begun, T)> {
        schedule.begin(|_, _| Some(())).map(|(begun, call, ())| (begun, call))
    }

    /// Runs one call after the other, each owner's taking its time; what each has had between two times.
    fn run(
        schedule: &mut Schedule<u64>,
        owners: &[(Owner, u64)],
        times: std::ops::Range<u64>,
    ) -> Vec<u64> {
        let mut had = vec![0; owners.len()];
        let mut now = times.start;
        while now < times.end {
            for (owner, takes) in owners {
                while schedule.counts(*owner).0 < 4 {
                    schedule.admit(*owner, *takes, now).unwrap();
                }
            }
            let (begun, takes) = first(schedule).unwrap();
            now += takes;
            had[owners.iter().position(|(o, _)| *o == begun.owner).unwrap()] += takes;
            schedule.ended(begun, takes);
        }
        had
    }

    #[test]
    fn owners_have_cpu_time_by_their_shares_whatever_their_calls_take() {
        let mut schedule = Schedule::default();
        let owners: Vec<_> = [(100, 10), (100, 200), (300, 50)]
            .map(|(share, micros)| (schedule.add(limits(share)), micros * MICRO))
            .into();
        let had = run(&mut schedule, &owners, 0..1_000_000 * MICRO);
        let all = had.iter().sum::<u64>() as f64;
        let parts: Vec<_> = had.iter().map(|had| *had as f64 / all).collect();
        for (part, wanted) in parts.iter().zip([0.2, 0.2, 0.6]) {
            assert!((part - wanted).abs() < 0.01, "{parts:?}");
        }
    }

    #[test]
    fn time_that_nobody_asked_for_is_not_saved() {
        let mut schedule = Schedule::default();
        let busy = schedule.add(limits(100));
        let late = schedule.add(limits(100));
        let (first, second) = (1_000_000 * MICRO, 1_001_000 * MICRO);
        run(&mut schedule, &[(busy, 10 * MICRO)], 0..first);
        let both = [(busy, 10 * MICRO), (late, 10 * MICRO)];
        let had = run(&mut schedule, &both, first..second);
        assert!(had[0].abs_diff(had[1]) <= 40 * MICRO, "{had:?}");
    }

    #[test]
    fn who_comes_is_not_behind_what_others_have_not_had() {
        let mut schedule = Schedule::default();
        let (late, busy) = (schedule.add(limits(100)), schedule.add(limits(100)));
        for cpu_ns in [0, 100_000 * MICRO] {
            schedule.admit(busy, 0, 0).unwrap();
            let (begun, _) = first(&mut schedule).unwrap();
            schedule.ended(begun, cpu_ns);
        }
        // Others are begun before it is known that they take nothing.
        for _ in 0..32 {
            schedule.admit(busy, 0, 0).unwrap();
        }
        let begun: Vec<_> = (0..16).map(|_| first(&mut schedule).unwrap().0).collect();
        schedule.admit(late, 1, 0).unwrap();
        for begun in begun {
            schedule.ended(begun, 0);
        }
        assert_eq!(first(&mut schedule).unwrap().1, 1);
    }

    #[test]
    fn many_calls_at_once_get_no_more_than_few() {
        let mut schedule = Schedule::default();
        let (many, few) = (schedule.add(limits(100)), schedule.add(limits(100)));
        for owner in [many, few] {
            schedule.admit(owner, 0, 0).unwrap();
            let (begun, _) = first(&mut schedule).unwrap();
            schedule.ended(begun, 10 * MICRO);
        }
        for _ in 0..50 {
            schedule.admit(many, 0, 0).unwrap();
        }
        // As many as are taken, and no more, so that both are begun by turns.
        for _ in 0..10 {
            schedule.admit(few, 0, 0).unwrap();
        }
        let begun: Vec<_> = (0..20).map(|_| first(&mut schedule).unwrap().0).collect();
        assert_eq!(begun.iter().filter(|begun| begun.owner == many).count(), 10, "{begun:?}");
        for begun in begun {
            schedule.ended(begun, 10 * MICRO);
        }
    }

    #[test]
    fn calls_beyond_a_limit_are_refused_or_stay() {
        let mut schedule = Schedule::default();
        let small = Limits { rate: 1000, burst: 2, queue: 3, concurrency: 2, ..limits(1) };
        let owner = schedule.add(small);
        let now = 5_000_000_000;
        for call in 0..3 {
            schedule.admit(owner, call, now).unwrap();
        }
        let refused = schedule.admit(owner, 3, now).unwrap_err();
        assert_eq!(refused, (Refused::Rate { rate: 1000, again_ms: 1 }, 3));
        let later = now + 2_000_000;
        schedule.admit(owner, 3, later).unwrap();
        schedule.admit(owner, 4, later).unwrap();
        let much_later = now + 60_000_000_000;
        assert_eq!(
            schedule.admit(owner, 5, much_later).unwrap_err().0,
            Refused::Queue { queue: 3 }
        );
        let mut begun: Vec<_> = (0..2).map(|_| first(&mut schedule).unwrap()).collect();
        assert_eq!((begun[0].1, begun[1].1), (0, 1));
        assert_eq!(first(&mut schedule), None, "two have begun");
        schedule.ended(begun.remove(0).0, 1);
        assert_eq!(first(&mut schedule).unwrap().1, 2);
        assert_eq!(schedule.counts(owner), (2, 2));
        assert_eq!(schedule.withdraw(owner, |call| *call == 3), Some(3));
        schedule.limit(owner, Limits { rate: 0, concurrency: 9, ..small });
        assert_eq!(first(&mut schedule).unwrap().1, 4);
        assert!(matches!(schedule.admit(owner, 6, u64::MAX / 2), Err((Refused::Rate { .. }, 6))));
        assert_eq!(first(&mut schedule), None);
    }

    proptest::proptest! {
        /// The order is that of one tree, whatever is done.
        #[test]
        fn owners_are_in_the_order_of_their_times(steps: Vec<(u8, u8)>) {
            let (mut ready, mut tree) = (Ready::default(), BTreeSet::new());
            let mut times = [None; 6];
            for (of, time) in steps {
                let at = usize::from(of) % times.len();
                let place = |time: u8| (u64::from(time), Owner(at as u32));
                match (times[at], of & 0x80 == 0) {
                    (Some(before), true) => {
                        ready.change(place(before), place(time));
                        tree.remove(&place(before));
                        tree.insert(place(time));
                        times[at] = Some(time);
                    }
                    (Some(before), false) => {
                        ready.remove(place(before));
                        tree.remove(&place(before));
                        times[at] = None;
                    }
                    (None, _) => {
                        ready.add(place(time));
                        tree.insert(place(time));
                        times[at] = Some(time);
                    }
                }
                let all: Vec<_> = ready.first.iter().chain(&ready.others).copied().collect();
                assert_eq!(all, tree.iter().copied().collect::<Vec<_>>());
            }
        }

        /// Nothing is lost or comes twice, and an owner's calls come in order, whatever is done.
        #[test]
        fn calls_come_once_and_in_their_owners_order(steps: Vec<(u8, u8, u16)>) {
            let mut schedule = Schedule::default();
            let owners: Vec<_> = (1..5).map(|share| schedule.add(limits(share))).collect();
            let (mut admitted, mut begun) = (vec![0; 4], vec![0; 4]);
            let mut running = Vec::new();
            for (now, (what, of, cpu)) in steps.into_iter().enumerate() {
                let owner = owners[usize::from(of) % 4];
                match what % 3 {
                    0 => {
                        let at = owner.0 as usize;
                        schedule.admit(owner, admitted[at], now as u64).unwrap();
                        admitted[at] += 1;
                    }
                    1 => if let Some((next, call)) = first(&mut schedule) {
                        assert_eq!(call, begun[next.owner.0 as usize]);
                        begun[next.owner.0 as usize] += 1;
                        running.push(next);
                    },
                    _ => if let Some(next) = running.pop() {
                        schedule.ended(next, cpu.into());
                    },
                }
            }
            for next in running {
                schedule.ended(next, 0);
            }
            while let Some((next, call)) = first(&mut schedule) {
                assert_eq!(call, begun[next.owner.0 as usize]);
                begun[next.owner.0 as usize] += 1;
                schedule.ended(next, 1);
            }
            assert_eq!(admitted, begun);
        }
    }
}
