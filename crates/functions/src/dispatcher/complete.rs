//! Taking what workers have completed, and ending calls.

use std::io;

use partywall_abi::function::{Completion, End};

use super::call::{Call, Done, Event, Number, Outward};
use super::check::{Given, lie};
use super::outcome::Outcome;
use super::process::Flying;
use super::{Dispatcher, MESSAGE, Preemption};
use crate::schedule::Refused;

impl<T> Dispatcher<T> {
    /// Takes what a worker has completed.
    pub(super) fn collect(
        &mut self,
        at: usize,
        now_ns: u64,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<bool> {
        let mut any = false;
        self.seats.processes[at].greet(now_ns);
        while self.seats.processes[at].lie.is_none()
            && let Some((_, completion)) = self.seats.processes[at].worker.completion()
        {
            any = true;
            if let Some(lie) = self.lie(at, &completion) {
                self.seats.processes[at].has_lied(lie);
                break;
            }
            let process = &mut self.seats.processes[at];
            // None are left of a worker that has ended.
            let Some(flying) = process.flying.pop_front() else { break };
            let cpu_ns = process.budget.ended_ns(&process.worker, now_ns);
            process.budget.begin(now_ns);
            let call = &mut self.calls[flying.call.at()];
            (call.cpu_ns, call.is_flying) = (call.cpu_ns + cpu_ns, false);
            self.completed((at, now_ns), &flying, &completion, events)?;
            let payloads = &mut self.seats.processes[at].payloads;
            payloads.give(flying.input);
            payloads.give(flying.output);
        }
        Ok(any)
    }

    /// Why what a worker has said of its first submission cannot be true, if it cannot.
    #[inline]
    fn lie(&self, at: usize, completion: &Completion) -> Option<&'static str> {
        let process = &self.seats.processes[at];
        let Flying { call, cell, output, .. } = process.flying.front()?;
        let calls = || self.functions[self.calls[call.at()].function.at()].calls_services;
        let given = Given {
            room: output.bytes,
            may_call: completion.end == End::Calls && *cell != 0 && calls(),
            may_stop: process.budget.is_told() || self.workers.preemption != Preemption::Dispatcher,
        };
        lie(completion, &given)
    }

    /// What comes of a submission, of which the worker has said what can be true.
    fn completed(
        &mut self,
        (at, now_ns): (usize, u64),
        flying: &Flying,
        completion: &Completion,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        let Flying { call: number, cell, output, .. } = *flying;
        let call = &mut self.calls[number.at()];
        let [bytes, rest, body] =
            [completion.bytes, completion.log, completion.lost].map(|bytes| bytes as usize);
        let process = &mut self.seats.processes[at];
        let function = &mut self.functions[call.function.at()];
        if completion.end == End::Calls && call.over.is_none() {
            let most = self.schedule.limits(function.owner).waiting;
            if function.more.waiting < most {
                function.more.waiting += 1;
                let message = process.worker.read(output.at, bytes + rest + body);
                self.generation = self.generation.wrapping_add(1);
                let asked = Number::new(number.at(), self.generation);
                (call.waits, call.has_called, call.asked) = (Some((at, cell)), true, Some(asked));
                let outward = Outward {
                    call: asked,
                    function: call.function,
                    owner: function.owner,
                    deadline_ns: call.deadline_ns,
                    message,
                    service: bytes,
                    method: rest,
                };
                events.push(Event::Outward(outward));
                return Ok(());
            }
            call.over = Some(Outcome::Refused(Refused::Waiting { waiting: most }));
        }
        if cell != 0 {
            process.worker.clean(cell)?;
            process.cells.give(cell);
        }
        if matches!(completion.end, End::Stack | End::Fault | End::Stopped) {
            process.given_up += 1;
        }
        self.release(number.at());
        let call = &mut self.calls[number.at()];
        let process = &self.seats.processes[at];
        let function = &mut self.functions[call.function.at()];
        let again = match completion.end {
            End::Memory | End::Stack if cell == 0 => {
                function.heavy = true;
                true
            }
            End::Room if completion.detail <= MESSAGE as u64 => {
                let wanted = completion.detail as usize + partywall_fn::cell::LOG_BYTES;
                // Calls that were submitted at the same time have all had the room of before.
                function.needs_room(wanted);
                (output.bytes as usize) < wanted && (function.idempotent || !call.has_called)
            }
            _ => false,
        };
        if again && call.over.is_none() {
            call.begin_again();
            call.is_queued = true;
            self.again.push_front(number);
            return Ok(());
        }
        let (said, log) = match completion.short {
            // What it has asked for is neither.
            _ if completion.end == End::Calls => Default::default(),
            Some(short) => {
                let short = short.bytes();
                (short[..bytes].to_vec(), Vec::new())
            }
            None => {
                let mut said = process.worker.read(output.at, bytes + rest);
                let log = said.split_off(bytes);
                (said, log)
            }
        };
        let log = match completion.lost {
            0 => log,
            _ if completion.end == End::Calls => log,
            lost => cut(log, lost),
        };
        let text = || String::from_utf8_lossy(&said).into_owned();
        let outcome = match completion.end {
            End::Error => Outcome::Error(completion.code, text()),
            End::Panic => Outcome::Panic(text()),
            End::Memory => Outcome::Memory,
            End::Stack => Outcome::Stack,
            End::Fault => Outcome::Fault(completion.code, completion.detail),
            End::Stopped => Outcome::Budget(std::time::Duration::from_nanos(function.budget_ns)),
            End::Room => Outcome::Long(completion.detail),
            // Of one that is over already: others wait, and none is refused.
            End::Calls | End::Refused => Outcome::Cancelled,
            End::Reply if said.len() > MESSAGE => Outcome::Long(said.len() as u64),
            End::Reply => Outcome::Reply(said),
        };
        // One that was stopped for its caller's sake has done nothing wrong.
        let outcome = call.over.take().unwrap_or_else(|| {
            match &outcome {
                Outcome::Reply(_) => function.reply(),
                wrong if wrong.is_strike() => function.strike(),
                _ => {}
            }
            outcome
        });
        self.done((number, now_ns), outcome, log, events)
    }

    /// A call is over.
    pub(super) fn done(
        &mut self,
        (number, now_ns): (Number, u64),
        outcome: Outcome,
        log: Vec<u8>,
        events: &mut Vec<Event<T>>,
    ) -> io::Result<()> {
        self.release(number.at());
        let call = self.calls.remove(number.at());
        let Call { token, function: id, begun, cpu_ns, lost_ns, is_queued, came_ns, .. } = call;
        let cpu_ns = cpu_ns + lost_ns;
        if is_queued {
            self.again.retain(|queued| *queued != number);
        }
        if let Some(begun) = begun {
            self.schedule.ended(begun, cpu_ns);
        }
        let function = &mut self.functions[id.at()];
        function.more.counts.ended(&outcome, cpu_ns, now_ns.saturating_sub(came_ns));
        function.open -= 1;
        let is_last = function.open == 0 && function.is_removed;
        events.push(Event::Done(Done { call: Some(number), token, outcome, log, cpu_ns }));
        if is_last { self.drop_function(id) } else { Ok(()) }
    }
}

/// Log lines, with one that says how many of them were cut.
fn cut(mut log: Vec<u8>, lost: u32) -> Vec<u8> {
    let lines = if lost == 1 { "1 line".into() } else { format!("{lost} lines") };
    let text = format!("(the log is full: {lines} had no room, or not all of it)");
    log.extend_from_slice(&(text.len() as u32).to_le_bytes());
    log.extend_from_slice(text.as_bytes());
    log
}
