//! Functions, as they are registered, and what is counted against them.

use std::sync::Arc;
use std::time::Duration;

use super::counts::Counts;
use super::payloads::OWN;
use super::share::Share;
use crate::archive::Packed;
use crate::image::Call as RuntimeCall;
use crate::schedule::Owner;
use crate::signed::Signed;
use crate::store::{Data, Loaded};

/// The bytes that a reply has room for of a function that calls services.
const CALLERS_ROOM: u32 = 256 << 10;
/// Good replies that take a strike back.
const FORGIVEN: u32 = 1000;

/// A function's number: its place among all functions, and which one has that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id {
    at: u32,
    generation: u32,
}

impl Id {
    pub(super) fn new(at: usize, generation: u32) -> Self {
        Self { at: at as u32, generation }
    }

    pub(super) fn at(self) -> usize {
        self.at as usize
    }
}

/// What a function is registered with.
#[derive(Debug)]
pub struct Registration {
    /// Whose it is.
    pub owner: Owner,
    /// Its image, of which other functions may have the same.
    pub image: Arc<Signed>,
    /// Its parameters and secrets.
    pub parameters: Vec<u8>,
    /// What it may use of the CPU in one call.
    pub budget: Duration,
    /// It may run twice for one call, even if it has called a service.
    pub idempotent: bool,
    /// With whose functions it may meet in a worker process.
    pub share: Share,
    /// So many strikes ban it: see [`super::Dispatcher::ban`].
    pub strikes: u32,
}

/// A function. Of thousands, most have left the first caches since their last call. What each call needs on
/// its way to a worker is on one line, and all functions' lines are together; what it needs when it is over,
/// and what few need, is elsewhere.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Function {
    generation: u32,
    pub(super) owner: Owner,
    /// Calls that are not over.
    pub(super) open: u32,
    /// Calls that run or wait, for which its image stays loaded.
    pub(super) users: u32,
    group: u32,
    room: u32,
    parameters: u32,
    pub(super) is_banned: bool,
    /// Nobody calls it any more; it goes with its last call.
    pub(super) is_removed: bool,
    /// It has been called since it was last looked for what to unload.
    pub(super) is_recent: bool,
    /// It has cells of its own.
    pub(super) heavy: bool,
    pub(super) idempotent: bool,
    /// It can call services.
    pub(super) calls_services: bool,
    /// It is loaded, and has data.
    has_data: bool,
    pub(super) budget_ns: u64,
    /// Where it is entered; 0 is nowhere: it is not loaded.
    entry: u64,
    pub(super) more: Box<More>,
}

const _: () = assert!(size_of::<Function>() == 64);

/// What few calls need of a function, or only those that are over.
#[derive(Debug)]
pub(super) struct More {
    /// What has come of its calls.
    pub(super) counts: Counts,
    /// Strikes that ban it, that it has, and good replies since the last one that was taken back.
    pub(super) strikes: [u32; 3],
    /// Its calls that wait for services.
    pub(super) waiting: u32,
    pub(super) parameters: Box<[u8]>,
    loaded: Option<Loaded>,
    pub(super) image: Packed,
    pub(super) share: Share,
}

impl Function {
    /// One that has been registered.
    pub(super) fn new(
        registration: Registration,
        packed: Packed,
        (group, generation): (usize, u32),
    ) -> Self {
        let Registration { owner, image, parameters, budget, idempotent, share, strikes } =
            registration;
        // Only what has a cell of its own can wait.
        let calls_services = image.image().calls(RuntimeCall::Service);
        Self {
            generation,
            owner,
            open: 0,
            users: 0,
            group: group as u32,
            // And only it cannot run again when its reply has no room.
            room: if calls_services { CALLERS_ROOM } else { OWN },
            parameters: parameters.len() as u32,
            is_banned: false,
            is_removed: false,
            is_recent: false,
            heavy: calls_services,
            idempotent,
            calls_services,
            has_data: false,
            budget_ns: budget.as_nanos() as u64,
            entry: 0,
            more: Box::new(More {
                counts: Counts::default(),
                strikes: [strikes, 0, 0],
                waiting: 0,
                parameters: parameters.into(),
                loaded: None,
                image: packed,
                share,
            }),
        }
    }

    /// The number of its group.
    pub(super) fn group(&self) -> usize {
        self.group as usize
    }

    /// The bytes that its reply has room for.
    pub(super) fn room(&self) -> usize {
        self.room as usize
    }

    /// Its replies need so much.
    pub(super) fn needs_room(&mut self, bytes: usize) {
        self.room = self.room.max(bytes.try_into().unwrap_or(u32::MAX));
    }

    /// The bytes of a request with its parameters.
    pub(super) fn length(&self, request: &[u8]) -> usize {
        request.len() + self.parameters as usize
    }

    /// Where it is entered, if it is loaded.
    #[inline]
    pub(super) fn entry(&self) -> Option<u64> {
        (self.entry != 0).then_some(self.entry)
    }

    /// Whether a request is all that it is called with.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.parameters == 0 && !self.has_data
    }

    /// Its data, if it is loaded and has any.
    #[inline]
    pub(super) fn data(&self) -> Option<Data> {
        if self.has_data { self.more.loaded?.data } else { None }
    }

    /// Its image in memory, if it is loaded.
    pub(super) fn loaded(&self) -> Option<Loaded> {
        self.more.loaded
    }

    /// Its image is in memory here, or no more; where it was before.
    pub(super) fn load(&mut self, loaded: Option<Loaded>) -> Option<Loaded> {
        self.entry = loaded.map_or(0, |loaded| loaded.entry);
        self.has_data = loaded.is_some_and(|loaded| loaded.data.is_some());
        std::mem::replace(&mut self.more.loaded, loaded)
    }

    /// Whether it is the function with this number, and none that has had its place.
    pub(super) fn is(&self, id: Id) -> bool {
        self.generation == id.generation
    }

    /// Counts a call against it.
    pub(super) fn strike(&mut self) {
        let [most, strikes, _] = &mut self.more.strikes;
        *strikes += 1;
        self.is_banned |= *strikes >= *most;
    }

    /// Counts a good reply.
    pub(super) fn reply(&mut self) {
        let [_, strikes, good] = &mut self.more.strikes;
        if *strikes > 0 {
            *good += 1;
            if *good == FORGIVEN {
                (*strikes, *good) = (*strikes - 1, 0);
            }
        }
    }
}
