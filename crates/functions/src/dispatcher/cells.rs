//! The cells of a worker in which heavy functions run and wait.
//!
//! Where protection keys are in force, cells of one colour are open to one another. So an owner has whole
//! colours, as long as it has one cell of it: [`COLOURS`] owners at most have functions in such cells of a
//! worker at once, and those of others wait.

use crate::layout::{CELLS, COLOURS, colour};
use crate::schedule::Owner;

/// Those that are free, and who has the others.
#[derive(Debug)]
pub(super) struct Cells {
    free: Vec<u16>,
    /// Of each colour, the owner that has had it last, and how many of its cells are taken.
    owners: [(Option<Owner>, u32); COLOURS],
}

impl Default for Cells {
    fn default() -> Self {
        Self { free: (1..CELLS as u16).rev().collect(), owners: [(None, 0); COLOURS] }
    }
}

impl Cells {
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
        if !keyed {
            return self.free.len().checked_sub(1);
        }
        let of = |cell: &u16| self.owners[colour(*cell)];
        let own =
            self.free.iter().rposition(|cell| matches!(of(cell), (has, 1..) if has == Some(owner)));
        own.or_else(|| self.free.iter().rposition(|cell| of(cell).1 == 0))
    }

    /// Takes one for this owner.
    pub(super) fn take(&mut self, owner: Owner, keyed: bool) -> Option<u16> {
        let cell = self.free.remove(self.find(owner, keyed)?);
        let (has, count) = &mut self.owners[colour(cell)];
        (*has, *count) = (Some(owner), *count + 1);
        Some(cell)
    }

    /// Takes one back that is clean.
    pub(super) fn give(&mut self, cell: u16) {
        self.owners[colour(cell)].1 -= 1;
        self.free.push(cell);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn with_keys_no_two_owners_have_cells_of_a_colour() {
        let mut cells = Cells::default();
        let mut taken: Vec<(Owner, u16)> = Vec::new();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let owner = Owner((random >> 33) as u32 % 15);
            if random >> 60 < 9 {
                assert_eq!(cells.has_one(owner, true), cells.find(owner, true).is_some());
                taken.extend(cells.take(owner, true).map(|cell| (owner, cell)));
            } else if !taken.is_empty() {
                let (_, cell) = taken.swap_remove((random >> 40) as usize % taken.len());
                cells.give(cell);
            }
            let mut owners = BTreeMap::new();
            for (owner, cell) in &taken {
                assert_eq!(*owners.entry(colour(*cell)).or_insert(*owner), *owner);
            }
        }
        assert!(taken.iter().all(|(_, cell)| (1..CELLS as u16).contains(cell)));
        taken.drain(..).for_each(|(_, cell)| cells.give(cell));
        assert!(cells.are_all_free());
        // One owner may have all.
        assert!((1..CELLS).all(|_| cells.take(Owner(1), true).is_some()));
        assert!(!cells.has_one(Owner(1), true));
    }

    #[test]
    fn without_keys_owners_have_any_cell_and_with_them_as_many_as_there_are_colours() {
        for (keyed, most) in [(false, CELLS as u32 - 1), (true, COLOURS as u32)] {
            let mut cells = Cells::default();
            let had = (0..100).filter(|owner| cells.take(Owner(*owner), keyed).is_some()).count();
            assert_eq!(had as u32, most);
            assert_eq!(cells.has_one(Owner(0), keyed), keyed);
        }
    }
}
