//! What the dispatcher does about functions that do not stop, and about processes that begin and end.
//!
//! | a process | what comes | then |
//! | --- | --- | --- |
//! | is started | it has begun to look for submissions | its first one begins for its budget |
//! | is started | it has not begun for [`BEGIN`], or says that it does not | killed |
//! | runs | its function is beyond its budget, or not wanted any more | signal, again and again |
//! | runs | it has no CPU time, for 2 s beyond a budget | killed |
//! | runs | it is to stop it whatever that has had (`super::budget`), and has not heard it for [`super::DEAF`] | killed |
//! | runs | it has given up [`super::Workers::recycle`] functions | leaves: takes no new call |
//! | leaves | its last call is over | killed |
//! | sleeps, and nothing waits in it | another group has none, and there are as many as there may be | killed |
//! | any | its group has no function any more | killed |
//! | any | it has said what cannot be true ([`super::check`]) | killed |
//! | has ended | | its calls go elsewhere or are over; if it was active, another one is started |
//! | cannot be started | | the log has why; none is tried before [`PAUSE`] is over |
//!
//! With the last process of a group, its images go.
//!
//! # Whose fault it is
//!
//! The function that runs as its worker ends has a strike, if the worker ends by itself: it has exited, died
//! by a signal for what it has done, or said what cannot be true. Other signals come from outside, for a
//! function cannot send any: those of the dispatcher, of an administrator, of a terminal, and of a kernel
//! without memory, which is that of all functions together. They are nobody's fault.
//!
//! A function that has got out of its cell can end its worker while another one runs, which has the strike
//! then. With the same means it could say of the other one's calls that they were faults. Who does not want
//! to believe others that far does not share a process with them ([`super::Share`]).

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use super::budget::Tell;
use super::call::{Call, Event, Number};
use super::function::Function;
use super::outcome::Outcome;
use super::process::Process;
use super::seat::Unstarted;
use super::worker::{BEGIN, Worker};
use super::{Dispatcher, Preemption};

/// How often it is looked whether workers live.
const LOOKS: Duration = Duration::from_millis(1);
/// How long no worker is started where one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the same reason for that is not logged again.
const SAID_NS: u64 = 60_000_000_000;

impl<T> Dispatcher<T> {
    /// Stops a function that is beyond its budget.
    pub(super) fn watch(&mut self, at: usize, now_ns: u64) {
        if self.watched_ns(at).is_none_or(|until| until > now_ns) {
            return;
        }
        let grace_ns = self.grace_ns();
        let process = &mut self.seats.processes[at];
        if !process.has_begun {
            let _gone = process.worker.child().kill();
            return;
        }
        let Some(front) = process.flying.front() else { return };
        let call = &mut self.calls[front.call.at()];
        let number = front.number;
        let left_ns = left_ns(&self.functions, call, grace_ns);
        match process.budget.tell(&process.worker, left_ns, now_ns) {
            None => {}
            Some(Tell::Stop { left_ns }) => {
                process.worker.stop(number, Duration::from_nanos(left_ns));
                process.budget.account(&process.worker);
            }
            // Its calls begin again elsewhere, as those of any worker that has ended.
            Some(Tell::Starved) => {
                let _gone = process.worker.child().kill();
            }
            Some(Tell::Deaf) => {
                call.over.get_or_insert(Outcome::Deaf);
                // It is replaced when it is gone.
                let _gone = process.worker.child().kill();
            }
        }
    }

    /// When the function that this worker runs is to be stopped, or told so again; none if it runs none.
    pub(super) fn watched_ns(&self, at: usize) -> Option<u64> {
        let process = &self.seats.processes[at];
        let call = &self.calls[process.flying.front()?.call.at()];
        if !process.has_begun {
            return Some(process.budget.began_ns().saturating_add(BEGIN.as_nanos() as u64));
        }
        Some(process.budget.next_ns(left_ns(&self.functions, call, self.grace_ns())))
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
        if self.seats.not_before_ns.is_some_and(|until| until <= now_ns) {
            self.seats.not_before_ns = None;
            for seat in 0..self.seats.all.len() {
                let lost = self.seats.all[seat].lost.take();
                if let Some(group) = lost.filter(|_| !self.seats.is_full()) {
                    any |= self.start_again(seat, group, now_ns);
                }
            }
        }
        // One that sleeps has nothing to do that it could fail to: each is looked at in its turn.
        self.turn = self.turn.wrapping_add(1);
        let slots = self.seats.processes.capacity();
        for at in 0..slots {
            let Some(process) = self.seats.processes.get_mut(at) else { continue };
            let is_active = self.seats.all[process.seat].active == Some(at);
            let is_looked_at = is_active || self.turn % slots == at;
            if is_active && process.flying.is_empty() {
                process.budget.rest(&process.worker);
            }
            if is_looked_at && !process.has_begun {
                // One that has no call is watched by nobody else.
                process.greet(now_ns);
                let is_late =
                    now_ns.saturating_sub(process.budget.began_ns()) > BEGIN.as_nanos() as u64;
                // One that refuses to begin ends by itself, if it is honest.
                let refuses = matches!(process.worker.begun(), Some(Err(_)));
                if !process.has_begun && (is_late || refuses) {
                    let _gone = process.worker.child().kill();
                }
            }
            let ended = if process.is_leaving(self.workers.recycle) && process.is_empty() {
                process.worker.child().kill()?;
                Some(process.worker.child().wait()?)
            } else if is_looked_at {
                process.worker.child().try_wait()?
            } else {
                None
            };
            if let Some(ended) = ended {
                self.replace(at, ended, now_ns, events)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Starts a process of a group for a seat. If there are as many as there may be, another one is ended.
    pub(super) fn start(&mut self, seat: usize, group: usize, now_ns: u64) -> io::Result<usize> {
        if self.seats.is_full() {
            let unused = self.seats.unused().ok_or(io::ErrorKind::StorageFull)?;
            self.end_process(unused);
        }
        let worker = self.seats.groups.provide(group).and_then(|()| {
            let store = self.seats.groups.store(group);
            Worker::start(&self.workers, seat, store)
        });
        match worker {
            Ok(worker) => Ok(self.seats.put(Process::new(worker, (group, seat), now_ns))),
            Err(why) => {
                self.forget_images_without_process(group);
                Err(why)
            }
        }
    }

    /// The same; where that cannot be, no other one is tried for a while.
    pub(super) fn try_start(&mut self, seat: usize, group: usize, now_ns: u64) -> Option<usize> {
        match self.start(seat, group, now_ns) {
            Ok(process) => Some(process),
            Err(why) => {
                self.not_started(why.to_string(), now_ns);
                None
            }
        }
    }

    /// A worker could not be started, nor is another one for a while. The log has why, now and then.
    fn not_started(&mut self, why: String, at_ns: u64) {
        self.seats.not_before_ns = Some(at_ns + PAUSE.as_nanos() as u64);
        let last = self.seats.unstarted.take().filter(|last| last.why == why);
        let said_ns = last.map(|last| last.said_ns).filter(|said_ns| at_ns < said_ns + SAID_NS);
        if said_ns.is_none() {
            tracing::warn!("a worker of functions cannot be started, and calls wait for it: {why}");
        }
        let said_ns = said_ns.unwrap_or(at_ns);
        self.seats.unstarted = Some(Unstarted { why, at_ns, said_ns });
    }

    /// How a call ends whose time is over.
    pub(super) fn deadline(&self, number: Number) -> Outcome {
        let call = self.calls.get(number.at()).filter(|call| call.is(number));
        let Some((call, last)) = call.zip(self.seats.unstarted.as_ref()) else {
            return Outcome::Deadline;
        };
        let group = self.seats.groups.get(self.functions[call.function.at()].group());
        let mut processes = group.on.iter().flatten().map(|at| &self.seats.processes[*at]);
        match last.at_ns >= call.came_ns && !processes.any(|process| process.has_begun) {
            true => Outcome::Unstarted(last.why.clone()),
            false => Outcome::Deadline,
        }
    }

    /// Starts a process where the active one has ended; whether it could be.
    fn start_again(&mut self, seat: usize, group: usize, now_ns: u64) -> bool {
        let is_time = self.seats.not_before_ns.is_none();
        let started = if is_time { self.try_start(seat, group, now_ns) } else { None };
        match started {
            Some(process) => self.seats.activate(process),
            None => self.seats.all[seat].lost = Some(group),
        }
        started.is_some()
    }

    /// Ends a process in which nothing runs or waits.
    fn end_process(&mut self, at: usize) {
        let (process, _) = self.seats.take_out(at);
        let group = process.group;
        // It has ended before its images go.
        drop(process);
        self.forget_images_without_process(group);
    }

    fn forget_images_without_process(&mut self, group: usize) {
        if !self.seats.groups.get(group).has_process() {
            self.forget_images(group);
        }
    }

    /// Ends the processes of groups that have no functions any more; whether there were any.
    pub(super) fn end_groups(&mut self) -> bool {
        let mut any = false;
        while let Some(group) = self.seats.groups.next_over() {
            let processes = self.seats.groups.get(group).on.clone();
            processes.into_iter().flatten().for_each(|at| self.end_process(at));
            self.seats.forget(group);
            any = true;
        }
        any
    }

    /// A process has ended: its calls begin again or are over, and another one has its seat if it was active.
    fn replace(
        &mut self,
        at: usize,
        ended: ExitStatus,
        now_ns: u64,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        self.collect(at, now_ns, events)?;
        let process = &mut self.seats.processes[at];
        let (flying, has_begun) = (std::mem::take(&mut process.flying), process.has_begun);
        let why = process.lie.map_or_else(|| ended.to_string(), str::to_owned);
        let is_its_own_end = process.lie.is_some() || has_ended_itself(ended);
        if let Some(first) = flying.front().filter(|_| has_begun && is_its_own_end) {
            let call = &self.calls[first.call.at()];
            if !call.over.as_ref().is_some_and(Outcome::is_strike) {
                self.functions[call.function.at()].strike();
            }
        }
        let waited = self.calls.iter().filter(|(_, call)| call.waits.is_some_and(|w| w.0 == at));
        let waited: Vec<_> = waited.map(|(at, call)| Number::new(at, call.generation)).collect();
        // The last one first, so that the first one is in front again.
        let flew = flying.iter().enumerate().rev();
        let flew: Vec<_> = flew.map(|(at, flying)| (flying.call, at == 0 && has_begun)).collect();
        for (number, may_have_run) in flew.into_iter().chain(waited.into_iter().map(|n| (n, true)))
        {
            self.begin_again((number, now_ns), may_have_run, &why, events)?;
        }
        let (process, was_active) = self.seats.take_out(at);
        let Process { group, seat, .. } = process;
        let said = process.worker.begun().and_then(|begun| begun.as_ref().err().cloned());
        drop(process);
        if !has_begun {
            // Neither would the next one.
            let ended = || format!("its process has ended before it began: {ended}");
            self.not_started(said.unwrap_or_else(ended), now_ns);
        }
        if was_active {
            self.start_again(seat, group, now_ns);
        }
        self.forget_images_without_process(group);
        Ok(())
    }

    /// A call whose worker has ended begins again, or is over.
    fn begin_again(
        &mut self,
        (number, now_ns): (Number, u64),
        may_have_run: bool,
        why: &str,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        self.release(number.at());
        let call = &mut self.calls[number.at()];
        let function = &mut self.functions[call.function.at()];
        call.is_flying = false;
        if call.waits.take().is_some() {
            function.more.waiting -= 1;
            events.extend(call.asked.map(Event::Unwanted));
        }
        if let Some(over) = call.over.take() {
            if over.is_strike() {
                function.strike();
            }
            return self.done((number, now_ns), over, Vec::new(), events);
        }
        let once_more = !call.is_second && (function.idempotent || !call.has_called);
        if may_have_run && !once_more {
            let lost = Outcome::Lost(why.to_owned());
            return self.done((number, now_ns), lost, Vec::new(), events);
        }
        call.is_second |= may_have_run;
        call.begin_again();
        if !std::mem::replace(&mut call.is_queued, true) {
            self.again.push_front(number);
        }
        Ok(())
    }
}

/// What a function has left of its budget, and so much more: what it has used before it waited for a service
/// counts too. One that nobody wants any more has nothing.
fn left_ns<T>(functions: &slab::Slab<Function>, call: &Call<T>, grace_ns: u64) -> u64 {
    match call.over {
        None => functions[call.function.at()].budget_ns.saturating_sub(call.cpu_ns) + grace_ns,
        Some(_) => 0,
    }
}

/// Whether a worker has ended for what it has done itself: signals but those for faults come from outside.
fn has_ended_itself(ended: ExitStatus) -> bool {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    let faults = [SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS];
    ended.signal().is_none_or(|signal| faults.contains(&signal))
}
