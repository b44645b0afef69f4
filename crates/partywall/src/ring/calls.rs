//! The calls of a link: opened by the caller or taken in by the service, found, and forgotten; and
//! the places that they take.

use std::collections::hash_map::Entry;
use std::sync::{Arc, MutexGuard};

use partywall_abi::sync::Ordering;
use tokio::sync::oneshot;
use tonic::Status;

use super::account::USER_SHARE;
use super::broken::Broken;
use super::core::{Core, guard};
use super::stream::Stream;
use super::table::{Place, Table};

impl Core {
    /// Opens a call of this side's own, and says how many are open with it; none when it has to wait
    /// for a place ([`Core::ask`]), unless one is `kept` for it.
    pub(crate) fn open(&self, kept: bool) -> Result<Option<(Arc<Stream>, usize)>, Status> {
        let mut streams = guard(&self.streams);
        // Under the lock: `close` empties the table after it has set this.
        if let Some(status) = self.closed() {
            return Err(status.clone());
        }
        if kept {
            streams.unkeep();
        } else if !streams.is_free() {
            return Ok(None);
        }
        let stream = loop {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            if id != 0
                && let Entry::Vacant(place) = streams.calls.entry(id)
            {
                break Arc::clone(place.insert(Arc::new(Stream::new(id))));
            }
        };
        let open = streams.len();
        self.open.store(open, Ordering::Relaxed);
        if open > 1 {
            self.calls_alone.store(0, Ordering::Relaxed);
        }
        Ok(Some((stream, open)))
    }

    /// Asks for a place for a call.
    pub(crate) fn ask(&self) -> Place {
        guard(&self.streams).ask()
    }

    /// A place that was kept is not wanted.
    pub(crate) fn unkeep(&self) {
        let mut streams = guard(&self.streams);
        streams.unkeep();
        let next = streams.next();
        drop(streams);
        self.tell(next);
    }

    /// Tells those who wait for places that there are some.
    fn tell(&self, mut next: Option<oneshot::Sender<()>>) {
        while let Some(told) = next {
            let gone = told.send(()).is_err();
            let mut streams = guard(&self.streams);
            if gone {
                streams.unkeep();
            }
            next = streams.next();
        }
    }

    /// Lets no call begin here any more: those who wait go elsewhere.
    pub(crate) fn shut(&self) {
        let waiting = guard(&self.streams).shut();
        drop(waiting);
    }

    /// So many calls may be open.
    pub(super) fn set_places(&self, places: usize) {
        let mut streams = guard(&self.streams);
        streams.places = places;
        let next = streams.next();
        drop(streams);
        self.tell(next);
    }

    /// Takes in a call that the peer has opened; a status when too many are open. Of a `whole` one
    /// nothing more is to come.
    pub(crate) fn admit(
        &self,
        id: u32,
        whole: bool,
    ) -> Result<Result<Arc<Stream>, Status>, Broken> {
        let mut streams = guard(&self.streams);
        if self.closed().is_some() {
            return Err(Broken::Closed);
        }
        if streams.calls.contains_key(&id) {
            return Err(Broken::Rule("a second head on one stream"));
        }
        if streams.len() >= streams.places
            && let Err(status) = self.lease(&mut streams)
        {
            return Ok(Err(status));
        }
        let stream = Arc::new(Stream::of(id, whole));
        streams.calls.insert(id, Arc::clone(&stream));
        self.open.store(streams.len(), Ordering::Relaxed);
        Ok(Ok(stream))
    }

    /// Leases places for one more call.
    #[cold]
    fn lease(&self, streams: &mut Table) -> Result<(), Status> {
        let most = self.account.bounds().calls_per_link;
        let wanted = 1 + streams.len() / 4;
        let more = self.account.lease(wanted.min(most.saturating_sub(streams.places)));
        streams.places += more;
        if streams.len() < streams.places {
            return Ok(());
        }
        // The caller may know the end of an answer before the call's task is through with it.
        let open = streams.calls.values().filter(|stream| !stream.lock().answered).count();
        if open < streams.places {
            return Ok(());
        }
        let text = match open < most {
            true => format!(
                "this caller has {} calls open beside one on each link, or its user's callers {} times \
                 as many, the most that they may (Server::max_calls_per_caller)",
                self.account.bounds().calls,
                USER_SHARE
            ),
            false => format!(
                "{most} calls are open on this link, the most that may \
                 (Server::max_concurrent_streams)"
            ),
        };
        Err(Status::resource_exhausted(text))
    }

    pub(crate) fn find(&self, id: u32) -> Option<Arc<Stream>> {
        guard(&self.streams).calls.get(&id).cloned()
    }

    pub(crate) fn forget(&self, id: u32) -> Option<Arc<Stream>> {
        let mut streams = guard(&self.streams);
        let stream = streams.calls.remove(&id);
        self.forgotten(streams);
        stream
    }

    /// Takes this very call out: its number may have been given to another one by now.
    /// Whether it was there.
    pub(crate) fn forget_exactly(&self, stream: &Arc<Stream>) -> bool {
        let mut streams = guard(&self.streams);
        let there = streams.calls.get(&stream.id).is_some_and(|s| Arc::ptr_eq(s, stream));
        if there {
            streams.calls.remove(&stream.id);
            self.forgotten(streams);
        }
        there
    }

    /// A call is out of the table: its place goes to the next, or back.
    fn forgotten(&self, mut streams: MutexGuard<'_, Table>) {
        self.open.store(streams.len(), Ordering::Relaxed);
        if let Some(next) = streams.next() {
            drop(streams);
            self.tell(Some(next));
        } else if streams.leases {
            let spare = streams.spare();
            if spare > 0 {
                self.account.give_back(spare);
            }
        }
    }

    /// Ends all open calls with a status, on both sides; how many those were.
    pub(crate) fn give_up(&self, status: &Status) -> usize {
        let calls = std::mem::take(&mut guard(&self.streams).calls);
        for stream in calls.values() {
            self.push_reset(stream.id, status.code(), status.message());
            stream.fail(status.clone());
        }
        calls.len()
    }

    /// Ends those calls of the peer whose path says so, with this status, on both sides; how many.
    pub(crate) fn end_calls(&self, ends: impl Fn(&str) -> bool, status: &Status) -> usize {
        let all: Vec<_> = guard(&self.streams).calls.values().cloned().collect();
        let mut ended = 0;
        for stream in all {
            let path = stream.lock().path.clone();
            if path.is_some_and(|path| ends(&path)) && self.forget_exactly(&stream) {
                self.push_reset(stream.id, status.code(), status.message());
                stream.fail(status.clone());
                ended += 1;
            }
        }
        ended
    }

    /// Whether the heads of all calls are on the ring.
    pub(crate) fn all_begun(&self) -> bool {
        guard(&self.streams).calls.values().all(|stream| stream.lock().begun)
    }

    /// How many calls are open, or were a moment ago.
    pub(crate) fn open_calls(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}
