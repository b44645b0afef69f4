//! What the tests of a dispatcher need: it, polled by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_functions::clock::Exactness;
use partywall_functions::dispatcher::{
    Dispatcher, Done, Event, Id, Number, Outcome, Registration, Share, Workers,
};
use partywall_functions::layout::Layout;
use partywall_functions::schedule::{Limits, Owner};
use partywall_functions::signed::Signed;
use partywall_functions::store::Store;

use super::host::{self, signed};

/// A dispatcher, its workers, and one owner.
pub(crate) struct Rig {
    pub(crate) dispatcher: Dispatcher<u32>,
    pub(crate) owner: Owner,
    pub(crate) begun: Instant,
    pub(crate) calls: u32,
    pub(crate) events: Vec<Event<u32>>,
    /// Calls that want no answer any more.
    pub(crate) unwanted: Vec<Number>,
}

impl Rig {
    pub(crate) fn new(workers: usize) -> Self {
        Self::with(workers, |_| ())
    }

    pub(crate) fn with(workers: usize, change: impl FnOnce(&mut Workers)) -> Self {
        let layout = Layout::draw([u64::from(std::process::id()) << 33, 11 << 33]);
        let store = Store::new(layout, 2).unwrap();
        let mut workers = host::workers(workers, Exactness::Exact);
        change(&mut workers);
        let mut dispatcher = Dispatcher::new(store, workers).unwrap();
        let owner = dispatcher.add_owner(Limits::default());
        Self {
            dispatcher,
            owner,
            begun: Instant::now(),
            calls: 0,
            events: Vec::new(),
            unwanted: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    pub(crate) fn register(&mut self, text: &str, change: impl FnOnce(&mut Registration)) -> Id {
        self.register_image(signed(text).into(), change)
    }

    /// The same of what has been built.
    pub(crate) fn register_image(
        &mut self,
        image: Arc<Signed>,
        change: impl FnOnce(&mut Registration),
    ) -> Id {
        let mut registration = Registration {
            owner: self.owner,
            image,
            parameters: Vec::new(),
            budget: Duration::from_secs(2),
            idempotent: false,
            share: Share::All,
            strikes: 1000,
        };
        change(&mut registration);
        self.dispatcher.register(registration).unwrap()
    }

    pub(crate) fn call(&mut self, id: Id, request: &[u8]) -> u32 {
        self.calls += 1;
        let now = self.now();
        self.dispatcher.call(id, request.to_vec(), self.calls, (now, None)).unwrap();
        self.calls
    }

    /// The next event that is none of the unwanted.
    pub(crate) fn event(&mut self) -> Event<u32> {
        let begun = Instant::now();
        loop {
            while self.events.is_empty() {
                let now = self.now();
                self.dispatcher.poll(now, &mut self.events).unwrap();
                let workers = || self.dispatcher.workers();
                // A worker that says nothing is ended after 10 s, and so may the next ones be.
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "nothing happens: {:?}",
                    workers()
                );
            }
            match self.events.remove(0) {
                Event::Unwanted(call) => self.unwanted.push(call),
                event => return event,
            }
        }
    }

    pub(crate) fn done(&mut self) -> Done<u32> {
        match self.event() {
            Event::Done(done) => done,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn outcome(&mut self, id: Id, request: &[u8]) -> Outcome {
        let token = self.call(id, request);
        let done = self.done();
        assert_eq!(done.token, token);
        done.outcome
    }
}

/// The outcome of a call that is answered so.
pub(crate) fn reply(text: &str) -> Outcome {
    Outcome::Reply(text.as_bytes().to_vec())
}
