//! Giving calls to workers.

use std::io;

use partywall_abi::function::{Input, Short, Submission, Task};

use super::Dispatcher;
use super::call::{Call, Event, Number};
use super::function::Function;
use super::outcome::Outcome;
use super::seat::{Place, Seats, Wanted, is_far};
use crate::layout::LIGHT_HEAP;
use crate::store::Data;

impl<T> Dispatcher<T> {
    /// Submits what there is room for.
    pub(super) fn submit(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        let are_many = self.seats.groups.are_many();
        if are_many {
            self.seats.offer();
        }
        let mut any = false;
        if !self.again.is_empty() {
            any |= self.submit_begun(now_ns, events)?;
        }
        if !self.celled.is_empty() {
            any |= self.submit_celled(now_ns, events)?;
        }
        while self.begin_one(now_ns, events)? {
            any = true;
        }
        if are_many {
            any |= self.end_turns(now_ns);
        }
        let Seats { all, processes, .. } = &mut self.seats;
        all.iter().filter_map(|seat| seat.active).for_each(|at| processes[at].worker.announce());
        Ok(any)
    }

    /// Submits calls that have begun before.
    fn submit_begun(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        let mut any = false;
        // One that has not comes first by turns, so that these do not keep others out.
        self.is_fresh_first = !self.is_fresh_first;
        if self.is_fresh_first {
            any |= self.begin_one(now_ns, events)?;
        }
        for _ in 0..self.again.len() {
            let Some(number) = self.again.pop_front() else { break };
            self.calls[number.at()].is_queued = false;
            any |= self.submit_again(number, now_ns, events)?;
        }
        Ok(any)
    }

    /// Submits calls that wait for a cell, until one has none; that is the last one then. Many may wait for
    /// long, and they cost others as little as one.
    #[cold]
    fn submit_celled(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        let mut any = false;
        while let Some(number) = self.celled.pop_front() {
            if self.calls.get(number.at()).is_some_and(|call| call.is(number)) {
                if !self.submit_again(number, now_ns, events)? {
                    break;
                }
                any = true;
            }
        }
        Ok(any)
    }

    /// Who had a turn and no call leaves the line; whether there was one.
    fn end_turns(&mut self, now_ns: u64) -> bool {
        // Where those that have begun leave no room, the next one stands in line all the same.
        if !self.seats.take_calls()
            && let Some(next) = self.schedule.first()
        {
            let wanted = wanted(&self.calls[next.at()], &self.functions);
            self.seats.choose(&wanted, now_ns);
        }
        self.seats.pass_over()
    }

    /// Begins and submits the next call; whether it could be.
    #[inline]
    fn begin_one(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        if !self.seats.take_calls() {
            return Ok(false);
        }
        let begun = match self.seats.groups.are_many() {
            true => self.begin(now_ns),
            false => self.begin_first(now_ns),
        };
        match begun {
            // Others may come before it.
            Some((number, Place::Cell)) => {
                self.celled.push_back(number);
                Ok(true)
            }
            Some((number, place)) => self.place(number, place, now_ns, events),
            None => Ok(false),
        }
    }

    /// Begins the first call in order, where all are of one group.
    #[inline]
    fn begin_first(&mut self, now_ns: u64) -> Option<(Number, Place)> {
        let (begun, number, ()) = self.schedule.begin(|_, _| Some(()))?;
        let call = &mut self.calls[number.at()];
        call.begun = Some(begun);
        let wanted = wanted(call, &self.functions);
        Some((number, self.seats.choose(&wanted, now_ns)))
    }

    /// Begins the first call in order that has a place.
    fn begin(&mut self, now_ns: u64) -> Option<(Number, Place)> {
        let Self { schedule, seats, calls, functions, .. } = self;
        // The first one in order that waits for a seat: what it wants and its owner's virtual time.
        let mut first = None;
        let begun = schedule.begin(|number, virtual_time| {
            let wanted = wanted(&calls[number.at()], functions);
            let ahead = first.map_or(0, |(_, time)| virtual_time - time);
            if let Some((first, _)) = first.as_ref().filter(|_| is_far(ahead)) {
                seats.call_up(first);
            }
            let wanted = Wanted { ahead, ..wanted };
            match seats.choose(&wanted, now_ns) {
                Place::Seat => {
                    first.get_or_insert((wanted, virtual_time));
                    None
                }
                Place::Later => None,
                place => Some(place),
            }
        });
        let (begun, number, place) = begun?;
        self.calls[number.at()].begun = Some(begun);
        Some((number, place))
    }

    /// Submits a call that has begun; false, and it is tried again, where there is no room for it.
    fn submit_again(
        &mut self,
        number: Number,
        now_ns: u64,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<bool> {
        let call = &self.calls[number.at()];
        match call.waits {
            Some(waits) => {
                let is_done = self.resume(number, waits, now_ns);
                if !is_done {
                    self.try_later(number);
                }
                Ok(is_done)
            }
            None => {
                let wanted = wanted(call, &self.functions);
                let place = self.seats.choose(&wanted, now_ns);
                self.place(number, place, now_ns, events)
            }
        }
    }

    fn try_later(&mut self, number: Number) {
        self.calls[number.at()].is_queued = true;
        self.again.push_back(number);
    }

    /// Submits a call to its place; false, and it is tried again, where there is no room for it.
    fn place(
        &mut self,
        number: Number,
        place: Place,
        now_ns: u64,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<bool> {
        let function = self.calls[number.at()].function;
        let process = match place {
            Place::Active(process) => Some(process),
            Place::Asleep(process) => {
                self.seats.activate(process);
                Some(process)
            }
            Place::Start(seat) => {
                let group = self.functions[function.at()].group();
                let started = self.try_start(seat, group, now_ns);
                started.into_iter().for_each(|process| self.seats.activate(process));
                started
            }
            Place::Cell => {
                self.celled.push_back(number);
                return Ok(false);
            }
            Place::Seat | Place::Later => None,
            Place::Held(held) => {
                self.done((number, now_ns), Outcome::Held(held), Vec::new(), events)?;
                return Ok(true);
            }
        };
        let Some(process) = process else {
            self.try_later(number);
            return Ok(false);
        };
        let is_done = match self.load(function) {
            Ok(entry) => self.invoke(number, process, entry, now_ns),
            Err(why) => {
                let why = Outcome::NotLoaded(match why.kind() {
                    io::ErrorKind::StorageFull => {
                        "all that is loaded is in use, and there is no room beside it: give images \
                         more memory (`fn serve --memory`)"
                            .into()
                    }
                    _ => why.to_string(),
                });
                self.done((number, now_ns), why, Vec::new(), events)?;
                return Ok(true);
            }
        };
        if !is_done {
            self.try_later(number);
        }
        Ok(is_done)
    }

    /// Enters a function in an active process; whether that has room, and has told no lie.
    fn invoke(&mut self, number: Number, at: usize, entry: u64, now_ns: u64) -> bool {
        let preemption = self.workers.preemption;
        let call = &self.calls[number.at()];
        let function = &mut self.functions[call.function.at()];
        let (length, data) = (function.length(&call.request), function.data());
        let owner = function.owner;
        let process = &mut self.seats.processes[at];
        if !process.is_honest() {
            return false;
        }
        let described = data.map_or(0, |_| Data::BYTES);
        let next = process.worker.next();
        let Some((input, output)) =
            process.payloads.pair(next, described + length, function.room())
        else {
            return false;
        };
        let short = Short::new(&call.request).filter(|_| function.is_plain());
        let input_is = match short {
            Some(short) => Input::Short(short),
            None => {
                let mut payload = Vec::with_capacity(described + length);
                payload.extend(data.map(Data::to_bytes).into_iter().flatten());
                payload.extend_from_slice(&call.request);
                payload.extend_from_slice(&function.more.parameters);
                process.worker.write(input.at, &payload);
                let parameters = function.more.parameters.len() as u32;
                Input::Long { at: input.at, parameters, has_data: data.is_some() }
            }
        };
        let cell = if is_heavy(length, function) { process.take_cell(owner) } else { 0 };
        let submission = Submission {
            task: Task::Invoke,
            cell,
            entry,
            quanta: preemption.quanta(function.budget_ns),
            call: number.as_u64(),
            bytes: call.request.len() as u32,
            input: input_is,
            output: output.at,
            room: output.bytes,
        };
        process.fly(&submission, number, (input, output), now_ns);
        function.users += 1;
        let call = &mut self.calls[number.at()];
        (call.is_flying, call.holds) = (true, true);
        true
    }

    /// Lets a function go on that has waited in this worker and cell; whether there was room.
    fn resume(&mut self, number: Number, (at, cell): (usize, u16), now_ns: u64) -> bool {
        let preemption = self.workers.preemption;
        let call = &mut self.calls[number.at()];
        let function = &mut self.functions[call.function.at()];
        let Some((code, bytes)) = &call.answer else { return false };
        if !self.seats.can_go_on(at) {
            return false;
        }
        self.seats.activate(at);
        let process = &mut self.seats.processes[at];
        if !process.is_honest() {
            return false;
        }
        let next = process.worker.next();
        let Some((input, output)) = process.payloads.pair(next, bytes.len(), function.room())
        else {
            return false;
        };
        process.worker.write(input.at, bytes);
        let submission = Submission {
            task: Task::Resume,
            cell,
            entry: 0,
            quanta: preemption.quanta(function.budget_ns.saturating_sub(call.cpu_ns)),
            call: number.as_u64(),
            bytes: bytes.len() as u32,
            input: Input::Long { at: input.at, parameters: *code, has_data: false },
            output: output.at,
            room: output.bytes,
        };
        (call.waits, call.answer, call.is_flying) = (None, None, true);
        function.more.waiting -= 1;
        process.fly(&submission, number, (input, output), now_ns);
        true
    }
}

/// Whether a call needs a cell of its own, with so many bytes of request and parameters.
fn is_heavy(length: usize, function: &Function) -> bool {
    function.heavy || length as u64 > LIGHT_HEAP / 2
}

/// What a call needs of a process.
#[inline]
fn wanted<T>(call: &Call<T>, functions: &slab::Slab<Function>) -> Wanted {
    let function = &functions[call.function.at()];
    let heavy = is_heavy(function.length(&call.request), function).then_some(function.owner);
    Wanted { group: function.group(), heavy, ahead: 0 }
}
