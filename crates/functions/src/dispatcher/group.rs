//! Groups: functions that may meet in one worker process.
//!
//! | share | the group of a function |
//! | --- | --- |
//! | function | the function alone; one that replaces it is another |
//! | owner | all functions of its owner with this share |
//! | all | all functions with this share, whoever owns them |
//!
//! A process runs functions of one group from its begin to its end, and maps the images of these alone.

use std::collections::HashMap;

use slab::Slab;

use super::function::Id;
use super::share::Share;
use crate::schedule::Owner;
use crate::store::Store;

/// Functions that may meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// Those with [`Share::All`].
    All,
    /// Those of this owner with [`Share::Owner`].
    Owner(Owner),
    /// This one.
    Function(Id),
}

impl Group {
    /// That of a function.
    pub(super) fn of(share: Share, owner: Owner, function: Id) -> Self {
        match share {
            Share::Function => Self::Function(function),
            Share::Owner => Self::Owner(owner),
            Share::All => Self::All,
        }
    }
}

/// What a group has.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) group: Group,
    /// Who holds the processes in which its functions wait; none is all owners that share.
    pub(super) holder: Option<Owner>,
    /// Its functions that have not gone.
    functions: u32,
    /// Its images, as long as it has a process.
    pub(super) store: Option<Store>,
    /// Its process of each seat.
    pub(super) on: Vec<Option<usize>>,
}

impl Members {
    pub(super) fn has_process(&self) -> bool {
        self.on.iter().any(Option::is_some)
    }
}

/// The number of the group of all, which is always there.
pub(super) const ALL: usize = 0;

/// All groups that have functions, and that of all.
#[derive(Debug)]
pub(super) struct Groups {
    members: Slab<Members>,
    numbers: HashMap<Group, usize>,
    seats: usize,
    /// Those whose last function has gone.
    over: Vec<usize>,
}

impl Groups {
    /// The group of all, with its images, for so many seats.
    pub(super) fn new(store: Store, seats: usize) -> Self {
        let (members, numbers) = (Slab::new(), HashMap::new());
        let mut groups = Self { members, numbers, seats, over: Vec::new() };
        let all = groups.join(Group::All, None);
        groups.members[all].store = Some(store);
        groups
    }

    /// The group's number, with one function more, and the function's owner.
    pub(super) fn join(&mut self, group: Group, owner: Option<Owner>) -> usize {
        let Self { members, numbers, seats, .. } = self;
        let number = *numbers.entry(group).or_insert_with(|| {
            let on = vec![None; *seats];
            let holder = owner.filter(|_| group != Group::All);
            members.insert(Members { group, holder, functions: 0, store: None, on })
        });
        members[number].functions += 1;
        number
    }

    /// A function has gone.
    pub(super) fn leave(&mut self, number: usize) {
        let members = &mut self.members[number];
        members.functions -= 1;
        if members.functions == 0 {
            self.over.push(number);
        }
    }

    /// A group that has no function any more.
    pub(super) fn next_over(&mut self) -> Option<usize> {
        while let Some(number) = self.over.pop() {
            // It may have had another function since.
            if self.members.get(number).is_some_and(|members| members.functions == 0) {
                return Some(number);
            }
        }
        None
    }

    /// Takes out a group that has neither functions nor processes.
    pub(super) fn remove(&mut self, number: usize) {
        let members = self.members.remove(number);
        self.numbers.remove(&members.group);
    }

    /// Whether there are others than that of all.
    #[inline]
    pub(super) fn are_many(&self) -> bool {
        self.members.len() > 1
    }

    pub(super) fn get(&self, number: usize) -> &Members {
        &self.members[number]
    }

    pub(super) fn get_mut(&mut self, number: usize) -> &mut Members {
        &mut self.members[number]
    }

    /// The images of a group that has a process.
    pub(super) fn store(&mut self, number: usize) -> &mut Store {
        self.members[number].store.as_mut().expect("a group with a process has images")
    }

    /// Another images' memory, for a group that has none yet.
    pub(super) fn provide(&mut self, number: usize) -> std::io::Result<()> {
        if self.members[number].store.is_none() {
            let all = self.members[ALL].store.as_ref().expect("the images of all stay");
            self.members[number].store = Some(all.another()?);
        }
        Ok(())
    }
}
