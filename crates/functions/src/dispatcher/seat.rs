//! Seats: CPUs for workers, and which process has each of them.
//!
//! A seat has a process of each group that has had it, one of which is *active*: it alone has submissions,
//! and the others sleep, with the functions that wait in them. Another one becomes active when the seat is
//! *drained*: when all submissions of the active one have ended.
//!
//! ```text
//! call --> active somewhere, with room --------------------------> that process
//!      `-> a drained seat that is nobody else's turn -- process --> it becomes active
//!                                                    `- none ----> one is started, another one ended for it
//!      `-> else: its group stands in the line of a seat
//! ```
//!
//! As soon as a group stands in a seat's line, the active one has at most [`TURN`] submissions more, and
//! those only of owners that are no more than [`LEAD`] of virtual time before the first owner that waits: a
//! switch wakes a process, so some calls come before their order to have fewer of them. Then the seat drains,
//! and it is the turn of the first group in line. If that has no call any more, it is the next one's turn.
//!
//! There are at most [`super::Workers::processes`] processes. Where there is none for a group, the one that
//! was used least recently is ended, if nothing runs or waits in it. A group that has a process already ends
//! none of others' for another one.
//!
//! A process is *held* while one of its cells is taken, by the owner of its group; that of the group of all
//! is one more. An owner may hold so many beside others ([`super::bound`]), and a call that needs a cell gets
//! no other process beyond that; one that needs none does. Where functions of its owner wait in so many, or
//! functions wait in all of them, nobody can say how long: a call that finds that for [`HELD`] is over, and
//! so are its owner's next ones at once, until one of them has a place ([`super::Outcome::Held`]). Others'
//! calls come before it meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use super::bound::may_have_one;
use super::group::Groups;
use super::outcome::Held;
use super::process::{AHEAD, Process};
use crate::schedule::{Owner, virtual_time};

/// Submissions that an active process has at most once another group stands in line.
pub const TURN: usize = 16;
/// How far an owner may be before another one whose group stands in line, in CPU time at a share of 100.
pub const LEAD: Duration = Duration::from_micros(200);
/// How long calls wait where functions wait in all processes.
pub const HELD: Duration = Duration::from_secs(1);

const _: () = assert!(TURN >= AHEAD);

#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) active: Option<usize>,
    /// The groups that wait for it, without the active one's, the first one first.
    line: VecDeque<usize>,
    /// The number that the active one's next submission had when others were there for the first time.
    since: u32,
    /// It is the turn of the first one in line.
    is_offered: bool,
    /// Its process has ended, and the one of this group that was to follow could not be started.
    pub(super) lost: Option<usize>,
}

impl Seat {
    /// Whether its active process gets no more of an owner that is so far before others.
    #[inline]
    fn holds(&self, active: &Process, ahead: u64) -> bool {
        let had = || active.worker.next().wrapping_sub(self.since) as usize;
        !self.line.is_empty() && (is_far(ahead) || had() >= TURN)
    }
}

/// Whether an owner is so far before another one, in virtual time, that it waits for that.
pub(super) fn is_far(ahead: u64) -> bool {
    ahead > virtual_time(LEAD)
}

/// Whether functions wait in a process.
fn waits(process: &Process) -> bool {
    process.waiting() > 0
}

/// What a call needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) group: usize,
    /// Whose function needs a cell of its own, if it does.
    pub(super) heavy: Option<Owner>,
    /// How far its owner is before another one that waits for a seat.
    pub(super) ahead: u64,
}

/// The last worker that could not be started.
#[derive(Debug)]
pub(super) struct Unstarted {
    pub(super) why: String,
    pub(super) at_ns: u64,
    /// When that was logged.
    pub(super) said_ns: u64,
}

/// Where a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// To this process, which is active.
    Active(usize),
    /// To this process, which is to be active.
    Asleep(usize),
    /// To one that is to be started for this seat.
    Start(usize),
    /// Its process has no cell: others may come before it.
    Cell,
    /// It waits until a seat has room for its group.
    Seat,
    /// It waits until a process can be started.
    Later,
    /// Nobody knows when a process can be started.
    Held(Held),
}

/// An owner whose calls wait because functions wait.
#[derive(Debug)]
struct Waits {
    owner: Option<Owner>,
    since_ns: u64,
    /// Whether there was such a call this time.
    is_now: bool,
}

#[derive(Debug)]
pub(super) struct Seats {
    pub(super) all: Vec<Seat>,
    pub(super) processes: Slab<Process>,
    pub(super) groups: Groups,
    most: usize,
    recycle: u32,
    /// A worker could not be started, and none is before then.
    pub(super) not_before_ns: Option<u64>,
    pub(super) unstarted: Option<Unstarted>,
    /// Those whose calls wait because functions wait.
    waits: Vec<Waits>,
}

impl Seats {
    pub(super) fn new(groups: Groups, seats: usize, most: usize, recycle: u32) -> Self {
        Self {
            all: std::iter::repeat_with(Seat::default).take(seats).collect(),
            processes: Slab::new(),
            groups,
            most,
            recycle,
            not_before_ns: None,
            unstarted: None,
            waits: Vec::new(),
        }
    }

    /// The active processes.
    pub(super) fn active(&self) -> impl Iterator<Item = &Process> {
        self.all.iter().filter_map(|seat| Some(&self.processes[seat.active?]))
    }

    fn is_drained(&self, seat: &Seat) -> bool {
        seat.active.is_none_or(|active| self.processes[active].flying.is_empty())
    }

    /// Whether a seat takes calls, of whichever group.
    #[inline]
    pub(super) fn take_calls(&self) -> bool {
        self.all.iter().any(|seat| {
            let Some(active) = seat.active else { return self.has_turns() };
            let process = &self.processes[active];
            let is_drained = process.flying.is_empty();
            if process.is_leaving(self.recycle) {
                return is_drained && self.groups.are_many();
            }
            is_drained || process.has_room() && !seat.holds(process, 0)
        })
    }

    /// Whether a seat without an active process may have one.
    #[cold]
    fn has_turns(&self) -> bool {
        self.groups.are_many() || self.not_before_ns.is_none()
    }

    /// Where a call goes. One that has to wait for a seat stands in line from then on.
    #[inline]
    pub(super) fn choose(&mut self, wanted: &Wanted, now_ns: u64) -> Place {
        match self.find(wanted) {
            Some(place) => place,
            None => self.wait(wanted, now_ns),
        }
    }

    /// The place with the fewest submissions: rather where its group is active, or has a process at least;
    /// and rather on a seat that was not used for long.
    #[inline]
    fn find(&self, wanted: &Wanted) -> Option<Place> {
        let (mut least, mut place, mut has_others) = (usize::MAX, None, false);
        for seat in &self.all {
            let active = seat.active.map(|at| (at, &self.processes[at]));
            match active.filter(|(_, process)| process.group == wanted.group) {
                Some((at, process)) => {
                    let fits = process.flying.len() < least.min(AHEAD)
                        && self.is_able(process, wanted.heavy)
                        && !seat.holds(process, wanted.ahead);
                    if fits {
                        (least, place) = (process.flying.len(), Some(Place::Active(at)));
                    }
                }
                None => has_others = true,
            }
        }
        // Nothing comes before one that waits for nobody.
        if least == 0 || !has_others { place } else { self.find_asleep(wanted).or(place) }
    }

    /// The same among those that are not active, on seats that are drained.
    #[cold]
    fn find_asleep(&self, wanted: &Wanted) -> Option<Place> {
        let ranked = self.all.iter().enumerate().filter_map(|(at, seat)| {
            let active = seat.active.map(|active| &self.processes[active]);
            let is_other = active.is_none_or(|active| active.group != wanted.group);
            if !is_other || !self.is_drained(seat) {
                return None;
            }
            let (cost, place) = self.inactive(at, wanted)?;
            Some(((cost, active.map_or(0, |active| active.budget.began_ns())), place))
        });
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, place)| place)
    }

    /// A process that would have to become active on a drained seat, and what that costs.
    fn inactive(&self, at: usize, wanted: &Wanted) -> Option<(u32, Place)> {
        if self.all[at].line.front().is_some_and(|first| *first != wanted.group) {
            return None;
        }
        match self.groups.get(wanted.group).on[at] {
            Some(process) => self
                .is_able(&self.processes[process], wanted.heavy)
                .then_some((1, Place::Asleep(process))),
            None => {
                let is_able = self.may_start(wanted.group)
                    && (wanted.heavy.is_none() || self.may_hold(wanted.group, Process::is_held));
                is_able.then_some((2, Place::Start(at)))
            }
        }
    }

    #[inline]
    fn is_able(&self, process: &Process, heavy: Option<Owner>) -> bool {
        let has_cell = |owner| {
            let may_hold = || process.is_held() || self.may_hold(process.group, Process::is_held);
            process.has_cell(owner) && may_hold()
        };
        !process.is_leaving(self.recycle) && heavy.is_none_or(has_cell)
    }

    /// Whether the owner of this group may hold one process more, beside those that are held.
    fn may_hold(&self, group: usize, is_held: impl Fn(&Process) -> bool) -> bool {
        let (holds, all) = self.held(group, is_held);
        may_have_one(holds, self.most.saturating_sub(all))
    }

    /// The processes that are held: by the owner of this group, and in all.
    fn held(&self, group: usize, is_held: impl Fn(&Process) -> bool) -> (usize, usize) {
        let holder = |group| self.groups.get(group).holder;
        let held = || self.processes.iter().filter(|(_, process)| is_held(process));
        let own = held().filter(|(_, process)| holder(process.group) == holder(group));
        (own.count(), held().count())
    }

    /// The processes that functions of this group's owner wait in, where they keep it from another one and
    /// this group has none of them.
    fn held_by_owner(&self, group: usize) -> Option<usize> {
        let own = self.groups.get(group).on.iter().flatten();
        let has_none = own.into_iter().all(|at| !waits(&self.processes[*at]));
        let (holds, _) = self.held(group, waits);
        (has_none && holds > 0 && !self.may_hold(group, waits)).then_some(holds)
    }

    /// Whether a process can be started for a group.
    fn may_start(&self, group: usize) -> bool {
        let is_room = self.processes.len() < self.most
            || !self.groups.get(group).has_process() && self.unused().is_some();
        self.not_before_ns.is_none() && is_room
    }

    /// Whether there are as many processes as there may be.
    pub(super) fn is_full(&self) -> bool {
        self.processes.len() >= self.most
    }

    /// The seat with the fewest processes.
    pub(super) fn emptiest(&self) -> usize {
        let on = |seat: &usize| self.processes.iter().filter(|(_, it)| it.seat == *seat).count();
        (0..self.all.len()).min_by_key(on).unwrap_or(0)
    }

    /// The process that was used least recently of those in which nothing runs or waits.
    pub(super) fn unused(&self) -> Option<usize> {
        let unused = self.processes.iter().filter(|(_, process)| process.is_empty());
        unused.min_by_key(|(_, process)| process.budget.began_ns()).map(|(at, _)| at)
    }

    /// A call has no place now: its group stands in a line, and what the call waits for.
    #[cold]
    fn wait(&mut self, wanted: &Wanted, now_ns: u64) -> Place {
        let Wanted { group, heavy, .. } = *wanted;
        if heavy.is_some() {
            if let Some(holds) = self.held_by_owner(group) {
                return self.hold(group, Held::Owner { holds, processes: self.most }, now_ns);
            }
            if self.find(&Wanted { heavy: None, ..*wanted }).is_some() {
                return Place::Cell;
            }
        }
        let is_served = |seat: &Seat| {
            let active = seat.active.map(|active| &self.processes[active]);
            seat.line.contains(&group)
                || active
                    .is_some_and(|active| active.group == group && !active.is_leaving(self.recycle))
        };
        if self.all.iter().any(is_served) {
            return Place::Seat;
        }
        let able = (0..self.all.len()).filter(|at| self.may_have(wanted, *at));
        let is_there = |at: usize| self.groups.get(group).on[at].is_some();
        if let Some(at) = able.min_by_key(|at| (self.all[*at].line.len(), !is_there(*at))) {
            self.stand(at, group);
            return Place::Seat;
        }
        let is_unknown = self.not_before_ns.is_none()
            && !self.groups.get(group).has_process()
            && self.processes.iter().all(|(_, process)| waits(process));
        match is_unknown {
            true => self.hold(group, Held::All { processes: self.most }, now_ns),
            false => Place::Later,
        }
    }

    /// A call of this group's owner waits because functions wait.
    fn hold(&mut self, group: usize, held: Held, now_ns: u64) -> Place {
        let owner = self.groups.get(group).holder;
        let at = self.waits.iter().position(|waits| waits.owner == owner).unwrap_or_else(|| {
            self.waits.push(Waits { owner, since_ns: now_ns, is_now: true });
            self.waits.len() - 1
        });
        let waits = &mut self.waits[at];
        waits.is_now = true;
        match now_ns.saturating_sub(waits.since_ns) >= HELD.as_nanos() as u64 {
            true => Place::Held(held),
            false => Place::Later,
        }
    }

    fn stand(&mut self, at: usize, group: usize) {
        let seat = &mut self.all[at];
        if seat.line.is_empty() {
            seat.since = seat.active.map_or(0, |active| self.processes[active].worker.next());
        }
        seat.line.push_back(group);
    }

    /// Whether a call's group may have a seat for it once it is drained. What runs then has ended.
    fn may_have(&self, wanted: &Wanted, seat: usize) -> bool {
        let Wanted { group, heavy, .. } = *wanted;
        let may_hold = || heavy.is_none() || self.may_hold(group, waits);
        let members = self.groups.get(group);
        if let Some(process) = members.on[seat] {
            let process = &self.processes[process];
            return !process.is_leaving(self.recycle) && (waits(process) || may_hold());
        }
        // The one that is active there may be ended then.
        let active = self.all[seat].active.map(|active| &self.processes[active]);
        let is_free_then = self.not_before_ns.is_none()
            && !members.has_process()
            && active.is_some_and(|active| active.waiting() == 0);
        (is_free_then || self.may_start(group)) && may_hold()
    }

    /// A call's owner is far behind others: its group stands in line wherever it can.
    #[cold]
    pub(super) fn call_up(&mut self, wanted: &Wanted) {
        let group = wanted.group;
        for at in 0..self.all.len() {
            let active = self.all[at].active.map(|active| self.processes[active].group);
            let stands = active == Some(group) || self.all[at].line.contains(&group);
            if !stands && self.may_have(wanted, at) {
                self.stand(at, group);
            }
        }
    }

    /// Whether a process can let a function go on now; else its group stands in its seat's line.
    pub(super) fn can_go_on(&mut self, at: usize) -> bool {
        let Process { seat, group, .. } = self.processes[at];
        let line = &self.all[seat];
        if line.active == Some(at) {
            let process = &self.processes[at];
            return process.has_room() && !line.holds(process, 0);
        }
        if self.is_drained(line) && line.line.front().is_none_or(|first| *first == group) {
            return true;
        }
        if !line.line.contains(&group) {
            self.stand(seat, group);
        }
        false
    }

    /// Makes a process the active one of its seat, which is drained if it is not.
    #[cold]
    pub(super) fn activate(&mut self, at: usize) {
        let Process { seat, group, .. } = self.processes[at];
        if self.all[seat].active == Some(at) {
            return;
        }
        if let Some(before) = self.all[seat].active {
            self.processes[before].worker.rest();
        }
        let it = &mut self.all[seat];
        let since = self.processes[at].worker.next();
        (it.active, it.since, it.lost) = (Some(at), since, None);
        self.leave_lines(group);
    }

    fn leave_lines(&mut self, group: usize) {
        for seat in &mut self.all {
            seat.line.retain(|stands| *stands != group);
        }
    }

    /// Calls are about to be submitted: whose turn it is.
    pub(super) fn offer(&mut self) {
        self.waits.iter_mut().for_each(|waits| waits.is_now = false);
        for at in 0..self.all.len() {
            if !self.all[at].line.is_empty() {
                self.all[at].is_offered = self.is_drained(&self.all[at]);
            }
        }
    }

    /// Calls were submitted: who had a turn and no call leaves the line. Whether there was one.
    pub(super) fn pass_over(&mut self) -> bool {
        self.waits.retain(|waits| waits.is_now);
        let mut any = false;
        for at in 0..self.all.len() {
            let is_offered = std::mem::take(&mut self.all[at].is_offered);
            if is_offered && self.is_drained(&self.all[at]) {
                any |= self.all[at].line.pop_front().is_some();
            }
        }
        any
    }

    /// When the first calls are over that wait because functions wait.
    pub(super) fn held_until_ns(&self) -> Option<u64> {
        let since_ns = self.waits.iter().map(|waits| waits.since_ns).min()?;
        Some(since_ns.saturating_add(HELD.as_nanos() as u64))
    }

    /// A process that has been started.
    pub(super) fn put(&mut self, process: Process) -> usize {
        let (group, seat) = (process.group, process.seat);
        let at = self.processes.insert(process);
        self.groups.get_mut(group).on[seat] = Some(at);
        at
    }

    /// Takes a process out that is to end or has ended; whether it was active.
    pub(super) fn take_out(&mut self, at: usize) -> (Process, bool) {
        let process = self.processes.remove(at);
        self.groups.get_mut(process.group).on[process.seat] = None;
        let active = &mut self.all[process.seat].active;
        let was_active = *active == Some(at);
        if was_active {
            *active = None;
        }
        (process, was_active)
    }

    /// A group is no more.
    pub(super) fn forget(&mut self, group: usize) {
        self.waits.clear();
        self.leave_lines(group);
        for seat in &mut self.all {
            seat.lost = seat.lost.filter(|lost| *lost != group);
        }
        self.groups.remove(group);
    }
}
