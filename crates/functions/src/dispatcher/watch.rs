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

use super::call::{Event, Number, Outcome};
use super::seat::Seat;
use super::worker::Worker;
use super::{AGAIN, DEAF, Dispatcher, Workers};

/// How often it is looked whether workers live.
const LOOKS: Duration = Duration::from_millis(1);
/// How long no worker is started where one could not be.
const PAUSE: Duration = Duration::from_millis(100);

impl<T> Dispatcher<T> {
    /// Stops a function that is beyond its budget.
    pub(super) fn watch(&mut self, at: usize, now_ns: u64) {
        let seat = &mut self.seats[at];
        let Some(front) = seat.flying.front() else { return };
        let call = &mut self.calls[front.call.at()];
        let budget = self.functions[call.function.at()].budget_ns;
        if now_ns.saturating_sub(seat.began_ns) <= budget && call.over.is_none() {
            return;
        }
        let number = front.number;
        match &mut seat.told_ns {
            None => seat.told_ns = Some((now_ns, now_ns)),
            Some((first, _)) if now_ns - *first > DEAF.as_nanos() as u64 => {
                call.over.get_or_insert(Outcome::Deaf);
                // It is replaced when it is gone.
                let _gone = seat.worker.child().kill();
                return;
            }
            Some((_, last)) if now_ns - *last > AGAIN.as_nanos() as u64 => *last = now_ns,
            Some(_) => return,
        }
        seat.worker.stop(number);
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
        let Workers { program, cpus, exactness, .. } = &self.workers;
        Worker::start(program, self.layout, &self.store, &self.bell, (cpus[number], *exactness))
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
