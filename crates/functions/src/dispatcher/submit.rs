//! Giving calls to workers.

use std::io;

use partywall_abi::function::{Input, Short, Submission, Task};

use super::call::{Event, Number};
use super::outcome::Outcome;
use super::{Dispatcher, Workers};
use crate::layout::LIGHT_HEAP;
use crate::store::{Data, Loaded};

impl<T> Dispatcher<T> {
    /// Submits what there is room for.
    pub(super) fn submit(&mut self, now_ns: u64, events: &mut Vec<Event<T>>) -> io::Result<bool> {
        let mut any = false;
        for _ in 0..self.again.len() {
            let Some(number) = self.again.pop_front() else { break };
            self.calls[number.at()].is_queued = false;
            any |= self.place(number, now_ns, events)?;
        }
        while self.takes_calls() {
            let Some((begun, number)) = self.schedule.begin() else { break };
            self.calls[number.at()].begun = Some(begun);
            any = true;
            if !self.place(number, now_ns, events)? {
                break;
            }
        }
        Ok(any)
    }

    fn takes_calls(&self) -> bool {
        let recycle = self.workers.recycle;
        self.seats.iter().any(|seat| seat.has_room() && !seat.is_leaving(recycle))
    }

    /// Submits a call; false, and it is tried again, where there is no room for it.
    fn place(
        &mut self,
        number: Number,
        now_ns: u64,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<bool> {
        let call = &self.calls[number.at()];
        let done = match call.waits {
            Some(waits) => self.resume(number, waits, now_ns),
            None => match self.load(call.function) {
                Ok(loaded) => self.invoke(number, &loaded, now_ns),
                Err(why) => {
                    let why = Outcome::NotLoaded(match why.kind() {
                        io::ErrorKind::StorageFull => "all that is loaded is in use".into(),
                        _ => why.to_string(),
                    });
                    self.done((number, now_ns), why, Vec::new(), events)?;
                    return Ok(true);
                }
            },
        };
        if !done {
            self.calls[number.at()].is_queued = true;
            self.again.push_back(number);
        }
        Ok(done)
    }

    /// Enters a function; whether a worker has room.
    fn invoke(&mut self, number: Number, loaded: &Loaded, now_ns: u64) -> bool {
        let Loaded { entry, data, .. } = *loaded;
        let Workers { recycle, preemption, .. } = self.workers;
        let call = &self.calls[number.at()];
        let function = &mut self.functions[call.function.at()];
        let length = call.request.len() + function.parameters.len();
        let is_heavy = function.heavy || length as u64 > LIGHT_HEAP / 2;
        let seats = self.seats.iter_mut();
        let with_room = seats.filter(|seat| seat.has_room() && !seat.is_leaving(recycle));
        let owner = function.owner;
        let able = with_room.filter(|seat| !is_heavy || seat.cells.has_one(owner, seat.has_keys()));
        let Some(seat) = able.min_by_key(|seat| seat.flying.len()) else { return false };
        let described = data.map_or(0, |_| Data::BYTES);
        let next = seat.worker.next();
        let Some((input, output)) = seat.payloads.pair(next, described + length, function.room)
        else {
            return false;
        };
        let is_plain = data.is_none() && function.parameters.is_empty();
        let short = Short::new(&call.request).filter(|_| is_plain);
        let input_is = match short {
            Some(short) => Input::Short(short),
            None => {
                let mut payload = Vec::with_capacity(described + length);
                payload.extend(data.map(Data::to_bytes).into_iter().flatten());
                payload.extend_from_slice(&call.request);
                payload.extend_from_slice(&function.parameters);
                seat.worker.write(input.at, &payload);
                let parameters = function.parameters.len() as u32;
                Input::Long { at: input.at, parameters, has_data: data.is_some() }
            }
        };
        let keyed = seat.has_keys();
        let cell = if is_heavy { seat.cells.take(owner, keyed).unwrap_or(0) } else { 0 };
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
        seat.fly(&submission, number, (input, output), now_ns);
        function.users += 1;
        let call = &mut self.calls[number.at()];
        (call.is_flying, call.holds) = (true, true);
        true
    }

    /// Lets a function go on that has waited in this worker and cell; whether there was room.
    fn resume(&mut self, number: Number, (at, cell): (usize, u16), now_ns: u64) -> bool {
        let preemption = self.workers.preemption;
        let call = &mut self.calls[number.at()];
        let function = &self.functions[call.function.at()];
        let seat = &mut self.seats[at];
        let Some((code, bytes)) = &call.answer else { return false };
        if !seat.has_room() {
            return false;
        }
        let next = seat.worker.next();
        let Some((input, output)) = seat.payloads.pair(next, bytes.len(), function.room) else {
            return false;
        };
        seat.worker.write(input.at, bytes);
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
        seat.fly(&submission, number, (input, output), now_ns);
        true
    }
}
