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
use crate::store::Loaded;

/// The bytes that a reply has room for of a function that calls services.
const CALLERS_ROOM: usize = 256 << 10;
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

/// A function. Of thousands, most have left the caches since their last call: what each call needs comes
/// first, on three lines, and what few need behind it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Function {
    generation: u32,
    pub(super) owner: Owner,
    /// Calls that are not over.
    pub(super) open: u32,
    /// Calls that run or wait, for which its image stays loaded.
    pub(super) users: u32,
    /// Those of them that wait for services.
    pub(super) waiting: u32,
    /// The number of its group.
    pub(super) group: usize,
    pub(super) budget_ns: u64,
    /// The bytes that its reply has room for.
    pub(super) room: usize,
    pub(super) parameters: Box<[u8]>,
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
    /// Strikes that ban it, that it has, and good replies since the last one that was taken back.
    pub(super) strikes: [u32; 3],
    pub(super) loaded: Option<Loaded>,
    /// What has come of its calls.
    pub(super) counts: Counts,
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
            waiting: 0,
            group,
            budget_ns: budget.as_nanos() as u64,
            // And only it cannot run again when its reply has no room.
            room: if calls_services { CALLERS_ROOM } else { OWN as usize },
            parameters: parameters.into(),
            is_banned: false,
            is_removed: false,
            is_recent: false,
            heavy: calls_services,
            idempotent,
            calls_services,
            strikes: [strikes, 0, 0],
            loaded: None,
            counts: Counts::default(),
            image: packed,
            share,
        }
    }

    /// Whether it is the function with this number, and none that has had its place.
    pub(super) fn is(&self, id: Id) -> bool {
        self.generation == id.generation
    }

    /// Counts a call against it.
    pub(super) fn strike(&mut self) {
        let [most, strikes, _] = &mut self.strikes;
        *strikes += 1;
        self.is_banned |= *strikes >= *most;
    }

    /// Counts a good reply.
    pub(super) fn reply(&mut self) {
        let [_, strikes, good] = &mut self.strikes;
        if *strikes > 0 {
            *good += 1;
            if *good == FORGIVEN {
                (*strikes, *good) = (*strikes - 1, 0);
            }
        }
    }
}
