//! What the dispatcher does about functions that do not stop, and about workers that end.
//!
//! | a seat's worker | what comes | then |
//! | --- | --- | --- |
//! | runs | its function is beyond its budget, or not wanted any more | signal, again and again |
//! | runs | it has not heard that for [`DEAF`] | killed |
//! | runs | it has given up [`super::Workers::recycle`] functions | leaves: takes no new call |
//! | leaves | its last call is over | killed |
//! | has ended | | its calls go elsewhere or are over; another one is started |
//! | cannot be started | | tried again after [`PAUSE`] |

use std::io;
use std::time::Duration;

use super::call::{Event, Number};
use super::outcome::Outcome;
use super::seat::Seat;
use super::worker::{self, Worker};
use super::{AGAIN, DEAF, Dispatcher, Preemption};

/// How often it is looked whether workers live.
pub(super) const LOOKS: Duration = Duration::from_millis(1);
/// How long no worker is started where one could not be.
const PAUSE: Duration = Duration::from_millis(100);

impl<T> Dispatcher<T> {
    /// Stops a function that is beyond its budget.
    pub(super) fn watch(&mut self, at: usize, now_ns: u64) {
        if self.watched_ns(at).is_none_or(|until| until > now_ns) {
            return;
        }
        let seat = &mut self.seats[at];
        let Some(front) = seat.flying.front() else { return };
        let call = &mut self.calls[front.call.at()];
        let number = front.number;
        match &mut seat.told_ns {
            None => seat.told_ns = Some((now_ns, now_ns)),
            Some((first, _)) if now_ns - *first > DEAF.as_nanos() as u64 => {
                call.over.get_or_insert(Outcome::Deaf);
                // It is replaced when it is gone.
                let _gone = seat.worker.child().kill();
                return;
            }
            Some((_, last)) => *last = now_ns,
        }
        seat.worker.stop(number);
    }

    /// When the function that this worker runs is to be stopped, or told so again; none if it runs none.
    pub(super) fn watched_ns(&self, at: usize) -> Option<u64> {
        let seat = &self.seats[at];
        let call = &self.calls[seat.flying.front()?.call.at()];
        if let Some((first, last)) = seat.told_ns {
            // Each time twice as long, so that signals never come faster than a worker handles them.
            return Some(last + (last - first).max(AGAIN.as_nanos() as u64));
        }
        if call.over.is_some() {
            return Some(0);
        }
        // What its function has used before it waited for a service counts too.
        let budget_ns = self.functions[call.function.at()].budget_ns;
        let until_ns = seat.began_ns.saturating_add(budget_ns).saturating_sub(call.cpu_ns);
        Some(until_ns.saturating_add(self.grace_ns()))
    }

    /// How much later than a worker's own timer the dispatcher stops a function.
    fn grace_ns(&self) -> u64 {
        match self.workers.preemption {
            Preemption::Dispatcher => 0,
            Preemption::Timer(quantum) => 3 * quantum.as_nanos() as u64,
        }
    }

    /// Looks now and then whether workers live; whether anything was done.
    pub(super) fn look(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        if now_ns.saturating_sub(self.looked_ns) <= LOOKS.as_nanos() as u64 {
            return Ok(false);
        }
        self.looked_ns = now_ns;
        let mut any = false;
        for at in 0..self.seats.len() {
            let seat = &mut self.seats[at];
            if seat.missing_until_ns.is_some_and(|until| now_ns < until) {
                continue;
            }
            if seat.is_leaving(self.workers.recycle) && seat.is_empty() {
                seat.worker.child().kill()?;
                seat.worker.child().wait()?;
            }
            if seat.missing_until_ns.is_some() || seat.worker.child().try_wait()?.is_some() {
                self.replace(at, now_ns, events)?;
                any = true;
            }
        }
        Ok(any)
    }

    pub(super) fn start(&self, number: usize) -> io::Result<Worker> {
        let memory = worker::Memory { layout: self.layout, store: &self.store, bell: &self.bell };
        Worker::start(&self.workers, number, &memory)
    }

    /// Gives the seat of a worker that has ended to another one.
    fn replace(&mut self, at: usize, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<()> {
        self.collect(at, now_ns, events)?;
        let flying = std::mem::take(&mut self.seats[at].flying);
        let waited = self.calls.iter().filter(|(_, call)| call.waits.is_some_and(|w| w.0 == at));
        let waited: Vec<_> = waited.map(|(at, call)| Number::new(at, call.generation)).collect();
        // The last one first, so that the first one is in front again.
        let flew = flying.iter().enumerate().rev();
        let flew: Vec<_> = flew.map(|(place, flying)| (flying.call, place == 0)).collect();
        for (number, may_have_run) in flew.into_iter().chain(waited.into_iter().map(|n| (n, true)))
        {
            self.begin_again(number, may_have_run, now_ns, events)?;
        }
        match self.start(at) {
            Ok(worker) => self.seats[at] = Seat::new(worker),
            Err(_) => {
                self.seats[at].missing_until_ns = Some(now_ns + PAUSE.as_nanos() as u64);
            }
        }
        Ok(())
    }

    /// A call whose worker has ended begins again, or is over.
    fn begin_again(
        &mut self,
        number: Number,
        may_have_run: bool,
        now_ns: u64,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        self.release(number.at());
        let call = &mut self.calls[number.at()];
        let function = &mut self.functions[call.function.at()];
        call.is_flying = false;
        if call.waits.take().is_some() {
            events.push(Event::Unwanted(number));
        }
        if let Some(over) = call.over.take() {
            if over.is_strike() {
                function.strike();
            }
            return self.done((number, now_ns), over, Vec::new(), events);
        }
        let once_more = !call.is_second && (function.idempotent || !call.has_called);
        if may_have_run && !once_more {
            return self.done((number, now_ns), Outcome::Lost, Vec::new(), events);
        }
        call.is_second |= may_have_run;
        (call.answer, call.has_called) = (None, false);
        if !std::mem::replace(&mut call.is_queued, true) {
            self.again.push_front(number);
        }
        Ok(())
    }
}
