//! The cells of a worker in which heavy functions run and wait.
//!
//! Where protection keys are in force, cells of one colour are open to one another. So an owner has whole
//! colours, as long as it has one cell of it: [`COLOURS`] owners at most have functions in such cells of a
//! worker at once, and those of others wait.
//!
//! In a process of all owners one of them has at most so many colours, or cells where there are no keys, as
//! [`super::bound`] says. The others are for owners that have none yet.

use super::bound::may_have_one;
use crate::layout::{CELLS, COLOURS, colour};
use crate::schedule::Owner;

/// Those that are free, and who has the others.
#[derive(Debug)]
pub(super) struct Cells {
    free: Vec<u16>,
    owners: [Option<Owner>; CELLS as usize],
    /// Functions of several owners have them.
    are_shared: bool,
}

impl Cells {
    /// All are free.
    pub(super) fn new(are_shared: bool) -> Self {
        let free = (1..CELLS as u16).rev().collect();
        Self { free, owners: [None; CELLS as usize], are_shared }
    }

    /// Whether none is taken.
    pub(super) fn are_all_free(&self) -> bool {
        self.taken() == 0
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        CELLS as usize - 1 - self.free.len()
    }

    /// Whether there is one for this owner.
    pub(super) fn has_one(&self, owner: Owner, keyed: bool) -> bool {
        self.find(owner, keyed).is_some()
    }

    /// Where the free one is that this owner is to have: of a colour that it has, if it can be.
    fn find(&self, owner: Owner, keyed: bool) -> Option<usize> {
        let may_have = |holds: usize, free: usize| !self.are_shared || may_have_one(holds, free);
        if !keyed {
            let holds = || self.owners.iter().filter(|has| **has == Some(owner)).count();
            let last = self.free.len().checked_sub(1)?;
            return may_have(holds(), self.free.len()).then_some(last);
        }
        let colours = self.colours();
        let of = |cell: &u16| colours[colour(*cell)];
        let own = self.free.iter().rposition(|cell| of(cell) == Some(owner));
        own.or_else(|| {
            let count = |of: Option<Owner>| colours.iter().filter(|has| **has == of).count();
            let another = self.free.iter().rposition(|cell| of(cell).is_none())?;
            may_have(count(Some(owner)), count(None)).then_some(another)
        })
    }

    /// Whose each colour is, with keys.
    fn colours(&self) -> [Option<Owner>; COLOURS] {
        let mut colours = [None; COLOURS];
        for (cell, owner) in self.owners.iter().enumerate() {
            if owner.is_some() {
                colours[colour(cell as u16)] = *owner;
            }
        }
        colours
    }

    /// Takes one for this owner.
    pub(super) fn take(&mut self, owner: Owner, keyed: bool) -> Option<u16> {
        let cell = self.free.remove(self.find(owner, keyed)?);
        self.owners[usize::from(cell)] = Some(owner);
        Some(cell)
    }

    /// Takes one back that is clean.
    pub(super) fn give(&mut self, cell: u16) {
        self.owners[usize::from(cell)] = None;
        self.free.push(cell);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use partywall_testkit::Random;

    use super::*;

    /// Owners take and give cells at random: with keys no two have one of a colour, and where cells are
    /// shared none has more of them, or of their colours, than were free when it took its last one.
    #[test]
    fn with_keys_no_two_owners_have_cells_of_a_colour() {
        let mut random = Random::of_this_run();
        for (keyed, are_shared) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut cells = Cells::new(are_shared);
            let mut taken: Vec<(Owner, u16)> = Vec::new();
            for _ in 0..20_000 {
                let owners = [2, 15][random.below(2)];
                let owner = Owner(random.below(owners) as u32);
                if random.below(16) < 9 {
                    let before = units(&taken, keyed);
                    assert_eq!(cells.has_one(owner, keyed), cells.find(owner, keyed).is_some());
                    taken.extend(cells.take(owner, keyed).map(|cell| (owner, cell)));
                    let after = units(&taken, keyed);
                    let all = if keyed { COLOURS } else { CELLS as usize - 1 };
                    let free = all - before.values().sum::<usize>();
                    let [had, has] =
                        [&before, &after].map(|units| units.get(&owner).copied().unwrap_or(0));
                    assert!(!are_shared || has == had || had < free, "{before:?} {after:?}");
                } else if !taken.is_empty() {
                    let (_, cell) = taken.swap_remove(random.below(taken.len()));
                    cells.give(cell);
                }
                assert_eq!(cells.taken(), taken.len());
                let mut owners = BTreeMap::new();
                for (owner, cell) in taken.iter().filter(|_| keyed) {
                    assert_eq!(*owners.entry(colour(*cell)).or_insert(*owner), *owner);
                }
            }
            assert!(taken.iter().all(|(_, cell)| (1..CELLS as u16).contains(cell)));
            taken.drain(..).for_each(|(_, cell)| cells.give(cell));
            assert!(cells.are_all_free());
        }
    }

    /// How many cells each owner has, or colours of them.
    fn units(taken: &[(Owner, u16)], keyed: bool) -> BTreeMap<Owner, usize> {
        let unit = |cell: u16| if keyed { colour(cell) } else { usize::from(cell) };
        let mut all: Vec<_> = taken.iter().map(|(owner, cell)| (*owner, unit(*cell))).collect();
        all.sort_unstable();
        all.dedup();
        let mut units = BTreeMap::new();
        for (owner, _) in all {
            *units.entry(owner).or_default() += 1;
        }
        units
    }

    #[test]
    fn an_owner_has_all_cells_alone_and_half_beside_others() {
        for keyed in [false, true] {
            let mut alone = Cells::new(false);
            let had = (1..CELLS).filter(|_| alone.take(Owner(1), keyed).is_some()).count();
            assert_eq!((had as u64, alone.has_one(Owner(1), keyed)), (CELLS - 1, false));
            let mut shared = Cells::new(true);
            let mut fill = |owner| std::iter::from_fn(|| shared.take(owner, keyed)).count();
            let had = [1, 2, 3].map(|owner| fill(Owner(owner)));
            // With keys, 6, 3 and 2 of the 12 colours, three of which have 6 cells and the others 5.
            let wanted = if keyed { [33, 15, 10] } else { [32, 16, 8] };
            assert_eq!(had, wanted);
        }
    }

    #[test]
    fn without_keys_owners_have_any_cell_and_with_them_as_many_as_there_are_colours() {
        for (keyed, most) in [(false, CELLS as u32 - 1), (true, COLOURS as u32)] {
            let mut cells = Cells::new(true);
            let had = (0..100).filter(|owner| cells.take(Owner(*owner), keyed).is_some()).count();
            assert_eq!(had as u32, most);
            assert_eq!(cells.has_one(Owner(0), keyed), keyed);
        }
    }
}
