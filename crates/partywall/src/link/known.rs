//! Memory that is attached to calls again and again: its descriptor crosses a link once in each direction, or
//! twice.
//!
//! ```text
//! sender     an owned parcel that has not crossed yet has no place; other memory without one gets
//!            one: a free one, or that which was used longest ago  [`Sent::place`]
//!            a frame with the descriptor and the place            [`Sent::committed`]
//!            from then on a frame with the place alone            [`Sent::knows`]
//! reader     what comes with a descriptor and a place has that from then on, as it came; what
//!            comes by its place alone is what has it now; in the order of the frames         [`Came::take`]
//! program    who takes it checks and maps it, if nobody has; who drops it does so too, if it
//!            has a place                                                                          [`Taking`]
//! ```
//!
//! Nobody keeps an owned parcel that was made for one message and dropped: it has no place. Nor does a sender
//! keep its owned parcels for the sake of their places: it forgets what its program has dropped. It keeps a
//! lease, which is to come back.
//!
//! The places are the sender's, and change under its ring's lock only; the peer's are changed by the reader
//! of the ring. There are none on a link whose receiver takes one message alone. Each item of a frame takes
//! its place after those before it, at both ends, and a frame that was not put on the ring takes none.
//! Memory that has a place stays mapped at its receiver, and a lease at its sender, until other memory has
//! the place, or the link ends: it may come again, or come back. Memory that loses its place is unmapped by
//! who takes what comes instead, since that takes the kernel some time; where no program wants that, by the
//! reader.
//!
//! What is known counts as an unread parcel as all that is attached does: who has not taken it holds memory
//! that may have lost its place.
//!
//! Memory that is refused stays refused while it has its place, unless the machine was to blame. Either
//! side's death ends the link, and with it all places.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use partywall_abi::frame::Place;
use partywall_abi::limits;
use partywall_shm::parcel::{ParcelError, lease, view};
use partywall_shm::socket::{self, Passed};

use crate::lock::lock;

/// Memory that programs attach, mapped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Memory {
    Owned(view::Memory),
    Lease(lease::Memory),
}

impl Memory {
    fn of(kind: Kind, file: OwnedFd) -> Result<Self, ParcelError> {
        Ok(match kind {
            Kind::Owned => Self::Owned(view::Memory::of(file)?),
            Kind::Lease => Self::Lease(lease::Memory::of(file)?),
        })
    }
}

/// What memory is said to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Owned,
    Lease,
}

/// The memory that this end has sent, by its places.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// With the number of the frame that had it last.
    places: [Option<(Kept, u64)>; limits::ATTACHED_PLACES],
    frames: u64,
    /// What has crossed without a place, the last of it first.
    once: VecDeque<view::Trace>,
}

/// What a sender keeps of memory that it has sent.
#[derive(Debug)]
enum Kept {
    Owned(view::Trace),
    Lease(lease::Memory),
}

impl Kept {
    fn of(memory: &Memory) -> Self {
        match memory {
            Memory::Owned(memory) => Self::Owned(memory.trace()),
            Memory::Lease(memory) => Self::Lease(memory.clone()),
        }
    }

    fn is(&self, memory: &Memory) -> bool {
        match (self, memory) {
            (Self::Owned(trace), Memory::Owned(memory)) => trace.is_of(memory),
            (Self::Lease(kept), Memory::Lease(memory)) => kept == memory,
            _ => false,
        }
    }

    /// Whether it cannot be sent again.
    fn is_over(&self) -> bool {
        matches!(self, Self::Owned(trace) if trace.is_over())
    }
}

/// The memory of a frame that is being sent, in the order in which it takes its places.
#[derive(Debug, Default)]
pub(crate) struct Placed(Vec<(Option<Place>, Memory)>);

/// What is to be dropped where nothing is locked.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    _sent: Vec<Memory>,
    _replaced: Vec<Kept>,
}

impl Sent {
    /// Whether the peer has all of these.
    pub(crate) fn knows(&self, all: impl IntoIterator<Item = Option<Memory>>) -> bool {
        let none = Placed::default();
        all.into_iter()
            .all(|memory| memory.is_some_and(|memory| self.find(&none, &memory).is_some()))
    }

    /// Where this memory is once the frame has taken its places so far.
    fn find(&self, placed: &Placed, memory: &Memory) -> Option<Place> {
        let has = |place: &Place| {
            let in_frame = placed.0.iter().rev().find(|(at, _)| *at == Some(*place));
            match (in_frame, &self.places[place.number()]) {
                (Some((_, it)), _) => it == memory,
                (None, Some((kept, _))) => kept.is(memory),
                (None, None) => false,
            }
        };
        places().find(has)
    }

    /// The place of this memory, which a frame takes after others: one of so many.
    pub(crate) fn place(
        &self,
        placed: &mut Placed,
        count: usize,
        memory: &Memory,
    ) -> Option<Place> {
        let found = self.find(placed, memory);
        let place = found.or_else(|| match self.is_to_stay(memory) {
            true => self.oldest(placed, count),
            false => None,
        });
        placed.0.push((place, memory.clone()));
        place
    }

    /// Whether it is likely to come again.
    fn is_to_stay(&self, memory: &Memory) -> bool {
        match memory {
            Memory::Owned(memory) => self.once.iter().any(|trace| trace.is_of(memory)),
            Memory::Lease(_) => true,
        }
    }

    /// That of what is over, or was used longest ago. A frame may use each of them, and then one again.
    fn oldest(&self, placed: &Placed, count: usize) -> Option<Place> {
        let last = |place: &Place| {
            let in_frame = placed.0.iter().rposition(|(at, _)| *at == Some(*place));
            let before = self.places[place.number()].as_ref();
            (in_frame, before.map_or(0, |(kept, last)| if kept.is_over() { 0 } else { *last }))
        };
        places().take(count).min_by_key(last)
    }

    /// The frame is on the ring.
    pub(crate) fn committed(&mut self, placed: Placed) -> Lost {
        self.frames += 1;
        let mut lost = Lost::default();
        for (place, memory) in placed.0 {
            if let Some(place) = place {
                let now = (Kept::of(&memory), self.frames);
                let before = self.places[place.number()].replace(now);
                lost._replaced.extend(before.map(|(kept, _)| kept));
            } else if let Memory::Owned(memory) = &memory {
                self.once.truncate(limits::ATTACHED_PLACES - 1);
                self.once.push_front(memory.trace());
            }
            lost._sent.push(memory);
        }
        lost
    }
}

fn places() -> impl Iterator<Item = Place> {
    (0..limits::ATTACHED_PLACES).filter_map(Place::new)
}

/// The memory that the peer has sent, by its places.
#[derive(Debug, Default)]
pub(crate) struct Came([Option<Arc<Arrived>>; limits::ATTACHED_PLACES]);

/// Memory that has come, or what is said to be such.
#[derive(Debug)]
struct Arrived {
    kind: Kind,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// As it came, and what had its place before.
    Unchecked(Passed, Option<Arc<Arrived>>),
    /// A memfd that could not be mapped when it was tried last, for the machine's sake.
    Unmapped(OwnedFd),
    Known(Memory),
    Refused,
}

impl Came {
    /// What has come, which has its place from now on; without a descriptor what has the place, if that
    /// came as the same kind.
    pub(crate) fn take(
        &mut self,
        kind: Kind,
        place: Option<Place>,
        descriptor: Option<Passed>,
    ) -> Option<Taking> {
        let Some(place) = place else {
            let state = Mutex::new(State::Unchecked(descriptor?, None));
            return Some(Taking { arrived: Some(Arc::new(Arrived { kind, state })), stays: false });
        };
        let has = &mut self.0[place.number()];
        if let Some(descriptor) = descriptor {
            let state = Mutex::new(State::Unchecked(descriptor, has.take()));
            *has = Some(Arc::new(Arrived { kind, state }));
        }
        let arrived = has.as_ref().filter(|arrived| arrived.kind == kind)?;
        Some(Taking { arrived: Some(Arc::clone(arrived)), stays: true })
    }
}

impl Arrived {
    /// Checks and maps it, if nobody has.
    fn memory(&self) -> Result<Memory, ParcelError> {
        let mut before = None;
        let mut state = lock(&self.state);
        let file = match std::mem::replace(&mut *state, State::Refused) {
            State::Known(memory) => {
                *state = State::Known(memory.clone());
                return Ok(memory);
            }
            State::Refused => return Err(ParcelError::Refused),
            State::Unmapped(file) => file,
            State::Unchecked(descriptor, had) => {
                // Its mapping may go with it, when nothing is locked.
                before = had;
                descriptor.memory().map_err(|_| ParcelError::NoMemfd)?
            }
        };
        let mapped = match file.try_clone() {
            Ok(copy) => Memory::of(self.kind, copy),
            Err(source) => Err(ParcelError::Io { call: "fcntl", source }),
        };
        match &mapped {
            Ok(memory) => *state = State::Known(memory.clone()),
            Err(why) if why.is_resource() => *state = State::Unmapped(file),
            // The last close frees its pages.
            Err(_) => socket::close_elsewhere(file),
        }
        drop(state);
        drop(before);
        mapped
    }
}

/// Memory that has come with a frame, until the program takes it.
#[derive(Debug)]
pub(crate) struct Taking {
    arrived: Option<Arc<Arrived>>,
    /// It has a place.
    stays: bool,
}

impl Taking {
    /// It, checked and mapped. Where this process lacks what that takes it can be tried again.
    ///
    /// # Errors
    /// Of memory that is none, or was taken, [`ParcelError::Refused`], when somebody has been told why.
    pub(crate) fn memory(&mut self) -> Result<Memory, ParcelError> {
        let memory = self.arrived.as_ref().ok_or(ParcelError::Refused)?.memory();
        if !memory.as_ref().is_err_and(ParcelError::is_resource) {
            self.arrived = None;
        }
        memory
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        // So that no descriptor waits for a program that does not want it: its memory may come again.
        if let Some(arrived) = self.arrived.take().filter(|_| self.stays) {
            let _refused = arrived.memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    use partywall_shm::descriptors;
    use partywall_shm::parcel::lease::Lease;
    use partywall_shm::parcel::view::Owned;
    use partywall_testkit::in_own_process;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// As many places as there can be.
    const ALL: usize = limits::ATTACHED_PLACES;

    /// Memory of a lease, and whether it is mapped.
    fn memory() -> Memory {
        Memory::Lease(Lease::new(4096).unwrap().memory())
    }

    fn send(sent: &mut Sent, memory: &Memory) -> (bool, usize) {
        let (known, mut placed) = (sent.knows([Some(memory.clone())]), Placed::default());
        let place = sent.place(&mut placed, ALL, memory);
        sent.committed(placed);
        (known, place.expect("a lease has one").number())
    }

    #[test]
    fn an_owned_parcel_has_a_place_from_the_second_time_on() {
        let mut sent = Sent::default();
        let owned: Vec<_> = (0..limits::ATTACHED_PLACES).map(|_| Owned::new(1).unwrap()).collect();
        let memory = |at: usize| Memory::Owned(owned[at].view().memory());
        let mut send = |memory: &Memory| {
            let (known, mut placed) = (sent.knows([Some(memory.clone())]), Placed::default());
            let place = sent.place(&mut placed, ALL, memory);
            sent.committed(placed);
            (known, place.map(Place::number))
        };
        for place in [None, Some(0)] {
            assert_eq!(send(&memory(0)), (false, place));
        }
        for at in 1..owned.len() {
            assert_eq!(send(&memory(at)), (false, None));
            assert_eq!(send(&memory(0)), (true, Some(0)));
        }
        for at in 1..owned.len() {
            assert_eq!(send(&memory(at)), (false, Some(at)));
        }
        // So many others have crossed since that it is forgotten.
        let late = Owned::new(1).unwrap();
        let (late, once) = (Memory::Owned(late.view().memory()), || Owned::new(1).unwrap());
        assert_eq!(send(&late), (false, None));
        for _ in 0..limits::ATTACHED_PLACES {
            assert_eq!(send(&Memory::Owned(once().view().memory())), (false, None));
        }
        assert_eq!(send(&late), (false, None));
    }

    #[test]
    fn a_sender_keeps_no_owned_parcel_that_was_dropped() {
        let mut sent = Sent::default();
        let owned: Vec<_> = (0..limits::ATTACHED_PLACES).map(|_| Owned::new(1).unwrap()).collect();
        let send = |sent: &mut Sent, owned: &Owned| {
            let (memory, mut placed) = (Memory::Owned(owned.view().memory()), Placed::default());
            let place = sent.place(&mut placed, ALL, &memory);
            sent.committed(placed);
            place.map(Place::number)
        };
        for owned in owned.iter().chain(&owned) {
            send(&mut sent, owned);
        }
        let traces: Vec<_> = owned.iter().map(|owned| owned.view().memory().trace()).collect();
        let mut left = owned;
        drop(left.remove(5));
        let over: Vec<_> = traces.iter().map(view::Trace::is_over).collect();
        assert_eq!(over.iter().position(|over| *over), Some(5));
        assert_eq!(over.iter().filter(|over| **over).count(), 1);
        // Its place is taken before that of what was used longest ago.
        let next = Owned::new(1).unwrap();
        assert_eq!([send(&mut sent, &next), send(&mut sent, &next)], [None, Some(5)]);
    }

    #[test]
    fn memory_has_the_place_that_was_used_longest_ago() {
        let mut sent = Sent::default();
        let all: Vec<_> = (0..limits::ATTACHED_PLACES).map(|_| memory()).collect();
        for (at, memory) in all.iter().enumerate() {
            assert_eq!(send(&mut sent, memory), (false, at));
        }
        for at in [0, 3, 2, 1] {
            assert_eq!(send(&mut sent, &all[at]), (true, at));
        }
        assert!(sent.knows(all.iter().cloned().map(Some)));
        assert!(!sent.knows([Some(all[0].clone()), None]), "a file has no place");
        let others: Vec<_> = (0..6).map(|_| memory()).collect();
        let places: Vec<_> = others.iter().map(|other| send(&mut sent, other).1).collect();
        assert_eq!(places, [4, 5, 6, 7, 0, 3]);
        assert!(!sent.knows([Some(all[4].clone())]) && sent.knows([Some(all[2].clone())]));
    }

    #[test]
    fn memory_crosses_as_it_did_first_where_there_are_no_places() {
        let (mut sent, lease) = (Sent::default(), memory());
        let owned = Owned::new(1).unwrap();
        let owned = Memory::Owned(owned.view().memory());
        for _ in 0..3 {
            let mut placed = Placed::default();
            for memory in [&lease, &owned] {
                assert!(!sent.knows([Some(memory.clone())]));
                assert_eq!(sent.place(&mut placed, 0, memory), None);
            }
            sent.committed(placed);
        }
        let mut placed = Placed::default();
        let two: Vec<_> = (0..3).map(|_| sent.place(&mut placed, 2, &memory())).collect();
        assert_eq!(two, [0, 1, 0].map(Place::new));
    }

    #[test]
    fn a_frame_that_was_not_sent_changes_no_place() {
        let (mut sent, first, other) = (Sent::default(), memory(), memory());
        assert_eq!(send(&mut sent, &first), (false, 0));
        for _ in 0..3 {
            assert_eq!(sent.place(&mut Placed::default(), ALL, &other), Place::new(1));
        }
        assert!(!sent.knows([Some(other.clone())]));
        assert_eq!(send(&mut sent, &memory()), (false, 1));
        assert!(!sent.knows([Some(other)]) && sent.knows([Some(first)]));
    }

    #[test]
    fn a_frame_with_more_memory_than_there_are_places_uses_some_again() {
        let mut sent = Sent::default();
        let many: Vec<_> = (0..limits::PACKET_FDS).map(|_| memory()).collect();
        let mut placed = Placed::default();
        let mut take = |at: usize| sent.place(&mut placed, ALL, &many[at]).unwrap().number();
        let places: Vec<_> = (0..many.len()).map(&mut take).collect();
        let all: Vec<_> = (0..limits::ATTACHED_PLACES).collect();
        assert_eq!(places, [&all[..], &all].concat());
        assert_eq!(take(9), 1, "it comes twice");
        let replaced = sent.committed(placed)._replaced.len();
        assert_eq!(replaced, limits::ATTACHED_PLACES + 1, "what was before");
        let (first, last) = many.split_at(limits::ATTACHED_PLACES);
        assert!(sent.knows(last.iter().cloned().map(Some)));
        assert!(first.iter().all(|memory| !sent.knows([Some(memory.clone())])));
    }

    /// Whatever frames bring, in whatever order, both ends say the same of all places.
    #[test]
    fn what_the_sender_knows_is_what_the_receiver_has() {
        let mut random = partywall_testkit::Random::new(17);
        let mut known_frames = 0;
        for pool in [6, 8, 10, 16] {
            let owned: Vec<_> = (0..pool / 2).map(|_| Owned::new(1).unwrap()).collect();
            let owned = owned.iter().map(|owned| Memory::Owned(owned.view().memory()));
            let pool: Vec<_> = (0..pool / 2).map(|_| memory()).chain(owned).collect();
            let mut sent = Sent::default();
            // What has come for each place, as a receiver takes it.
            let mut came: [Option<&Memory>; limits::ATTACHED_PLACES] = [None; _];
            for _ in 0..2000 {
                let most = 1 + random.below(limits::PACKET_FDS);
                let count = 1 + random.below(most);
                let frame: Vec<_> = (0..count).map(|_| &pool[random.below(pool.len())]).collect();
                let known = sent.knows(frame.iter().map(|memory| Some((*memory).clone())));
                let mut placed = Placed::default();
                for memory in &frame {
                    let Some(place) = sent.place(&mut placed, ALL, memory) else {
                        assert!(!known, "it is known without a place");
                        continue;
                    };
                    let at = place.number();
                    match known {
                        true => assert!(came[at] == Some(*memory), "place {at} has other memory"),
                        false => came[at] = Some(memory),
                    }
                }
                known_frames += u32::from(known);
                if random.below(5) == 0 {
                    // It was not sent.
                    came = std::array::from_fn(|at| {
                        let is = |memory: &&Memory| {
                            sent.places[at].as_ref().is_some_and(|(has, _)| has.is(memory))
                        };
                        pool.iter().find(is)
                    });
                } else {
                    sent.committed(placed);
                }
            }
        }
        assert!(known_frames > 500, "{known_frames} frames named places alone");
    }

    fn passed(file: impl AsFd) -> Passed {
        let (a, b) = socket::descriptor_pair().unwrap();
        let ((mut out, _), (_, mut incoming)) = (descriptors::halves(a), descriptors::halves(b));
        out.send(&[file.as_fd()]).unwrap();
        incoming.receive(0).unwrap().pop().unwrap()
    }

    #[test]
    fn what_comes_by_its_place_is_what_came_last_for_it_as_the_same_kind() {
        let mut came = Came::default();
        let [place, other] = [3, 2].map(Place::new);
        assert!(came.take(Kind::Lease, place, None).is_none(), "nothing came");
        let (first, second) = (Lease::new(4096).unwrap(), Lease::new(4096).unwrap());
        let of = |lease: &Lease| Memory::Lease(lease.memory());
        let mut taking = came.take(Kind::Lease, place, Some(passed(&first))).unwrap();
        let [mut again, mut late] = [(); 2].map(|()| came.take(Kind::Lease, place, None).unwrap());
        for (kind, place) in [(Kind::Owned, place), (Kind::Lease, other)] {
            assert!(came.take(kind, place, None).is_none(), "{kind:?} {place:?}");
        }
        assert_eq!(again.memory().unwrap(), of(&first), "who takes it first maps it");
        assert_eq!(taking.memory().unwrap(), of(&first));
        // What is dropped was taken.
        drop(came.take(Kind::Lease, place, Some(passed(&second))).unwrap());
        let state = &came.0[3].as_ref().unwrap().state;
        assert!(matches!(&*lock(state), State::Known(known) if *known == of(&second)));
        assert_eq!(late.memory().unwrap(), of(&first), "it is the memory of its frame");
    }

    #[test]
    fn memory_that_loses_its_place_stays_mapped_until_the_next_is_taken() {
        let mut came = Came::default();
        let place = Place::new(0);
        let lease = Lease::new(4096).unwrap();
        let file = lease.as_fd().try_clone_to_owned().unwrap();
        drop(came.take(Kind::Lease, place, Some(passed(&file))));
        let before = Arc::downgrade(came.0[0].as_ref().unwrap());
        let mut next =
            came.take(Kind::Lease, place, Some(passed(Lease::new(4096).unwrap()))).unwrap();
        assert!(before.upgrade().is_some(), "the reader does not wait for that");
        next.memory().unwrap();
        assert!(before.upgrade().is_none());
    }

    #[test]
    fn what_comes_without_a_place_is_kept_by_who_takes_it_alone() {
        let mut came = Came::default();
        let owned = Owned::new(1).unwrap();
        assert!(came.take(Kind::Owned, None, None).is_none(), "nothing came");
        let file = || passed(owned.view());
        let mut taking = came.take(Kind::Owned, None, Some(file())).unwrap();
        let of = Memory::Owned(owned.view().memory());
        assert_eq!(taking.memory().unwrap(), of);
        let dropped = came.take(Kind::Owned, None, Some(file())).unwrap();
        let arrived = Arc::clone(dropped.arrived.as_ref().unwrap());
        drop(dropped);
        assert!(matches!(&*lock(&arrived.state), State::Unchecked(..)), "nobody has mapped it");
        assert!(came.0.iter().all(Option::is_none));
    }

    #[test]
    fn what_is_no_memory_stays_refused_while_it_has_its_place() {
        let mut came = Came::default();
        let place = Place::new(0);
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        let mut taking = came.take(Kind::Owned, place, Some(passed(&program))).unwrap();
        assert!(matches!(taking.memory(), Err(ParcelError::NoMemfd)));
        let mut again = came.take(Kind::Owned, place, None).unwrap();
        assert!(matches!(again.memory(), Err(ParcelError::Refused)));
        let lease = Lease::new(4096).unwrap();
        let mut wrong = came.take(Kind::Owned, place, Some(passed(&lease))).unwrap();
        assert!(matches!(wrong.memory(), Err(ParcelError::Seals { .. })));
        let mut right = came.take(Kind::Lease, place, Some(passed(&lease))).unwrap();
        right.memory().unwrap();
    }

    #[test]
    fn memory_that_was_refused_for_the_machines_sake_is_there_later() {
        let name = "memory_that_was_refused_for_the_machines_sake_is_there_later";
        if in_own_process(module_path!(), name, &[]).is_some() {
            return;
        }
        let (mut came, place) = (Came::default(), Place::new(0));
        let lease = Lease::new(4096).unwrap();
        let mut taking = came.take(Kind::Lease, place, Some(passed(&lease))).unwrap();
        let again = came.take(Kind::Lease, place, None).unwrap();
        let next = lease.as_fd().try_clone_to_owned().unwrap().as_raw_fd();
        let before = getrlimit(Resource::Nofile);
        let less = Rlimit { current: Some(next as u64), maximum: before.maximum };
        setrlimit(Resource::Nofile, less).unwrap();
        let refused = taking.memory();
        // Who drops it tries it as well.
        drop(again);
        setrlimit(Resource::Nofile, before).unwrap();
        let why = refused.unwrap_err();
        assert!(why.is_resource() && why.to_string().contains("Too many open files"), "{why}");
        let there = came.take(Kind::Lease, place, None).unwrap().memory().unwrap();
        assert_eq!(there, Memory::Lease(lease.memory()));
    }
}
