//! What one user may have of this server, beside what the coordinator's quota leaves its account.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// What a user may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections; one more is closed.
    pub connections: usize,
    /// Calls that are open, of all its connections; one more is RESOURCE_EXHAUSTED.
    pub streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 256, streams: 1024 }
    }
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Connection,
    Stream,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Has {
    connections: usize,
    streams: usize,
}

impl Has {
    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Connection => &mut self.connections,
            Kind::Stream => &mut self.streams,
        }
    }
}

/// What each user has.
#[derive(Debug)]
pub(crate) struct Users {
    limits: Limits,
    all: Mutex<HashMap<u32, Has>>,
}

/// One of what a user may have, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    users: Arc<Users>,
    uid: u32,
    kind: Kind,
}

impl Users {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, all: Mutex::default() }
    }

    /// One more for a user, if it may have that.
    pub(crate) fn place(users: &Arc<Self>, uid: u32, kind: Kind) -> Option<Place> {
        let most = match kind {
            Kind::Connection => users.limits.connections,
            Kind::Stream => users.limits.streams,
        };
        let mut all = users.all.lock().unwrap_or_else(PoisonError::into_inner);
        let has = all.entry(uid).or_default().of(kind);
        if *has >= most {
            return None;
        }
        *has += 1;
        Some(Place { users: Arc::clone(users), uid, kind })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.users.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut user) = all.entry(self.uid) {
            *user.get_mut().of(self.kind) -= 1;
            if *user.get() == Has::default() {
                user.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_its_limit_of_each_and_others_have_theirs() {
        let users = Arc::new(Users::new(Limits { connections: 2, streams: 1 }));
        let place = |uid, kind| Users::place(&users, uid, kind);
        let (one, two) = (place(7, Kind::Connection).unwrap(), place(7, Kind::Connection).unwrap());
        let stream = place(7, Kind::Stream).unwrap();
        assert!(place(7, Kind::Connection).is_none() && place(7, Kind::Stream).is_none());
        let other = place(8, Kind::Connection).unwrap();
        drop(one);
        let again = place(7, Kind::Connection).unwrap();
        assert!(place(7, Kind::Connection).is_none());
        drop((two, stream, other, again));
        assert!(users.all.lock().unwrap().is_empty(), "who has nothing is not kept");
    }

    #[test]
    fn a_limit_of_none_is_none_and_keeps_nobody() {
        let users = Arc::new(Users::new(Limits { connections: 1, streams: 0 }));
        let place = Users::place(&users, 7, Kind::Connection);
        assert!(Users::place(&users, 7, Kind::Stream).is_none());
        drop(place);
        assert!(users.all.lock().unwrap().is_empty());
    }
}
