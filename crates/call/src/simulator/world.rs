//! Two ends, the rings between them, and the programs at both.

use std::collections::BTreeMap;
use std::time::Instant;

use partywall_abi::frame::{
    self, ATTACHED, Attached, END, HEAD, Item, Kind, Limits, MethodName, Owned, PARCEL, PLAIN,
    PLAIN_REQUEST, PLAIN_RESPONSE, ParcelRef, RequestHead, ResponseHead, TRAILERS, Trailers,
};
use partywall_abi::limits;
use partywall_abi::version::Capabilities;

use super::end::{Call, End, Task};
use super::method::{Method, PATHS};
use super::random::Random;
use super::ring::Sent;
use crate::{Blocked, Connection, Error, Event, NotOpened, Record, Want};

/// RESOURCE_EXHAUSTED.
const FULL: u8 = 8;

static ZEROS: [u8; 1 << 19] = [0; 1 << 19];
/// No message is longer ([`Random::size`]).
const LONGEST: usize = 3 * limits::STREAM_WINDOW as usize;

/// One schedule.
pub(super) struct World {
    random: Random,
    now: Instant,
    pub(super) caller: End,
    pub(super) service: End,
    /// Bytes of each request and each answer, by the call's order.
    requests: Vec<(usize, usize)>,
    to_open: usize,
    /// Whether the ends have agreed on [`Kind::Room`], and how often it was sent.
    tells_room: bool,
    pub(super) rooms: usize,
    /// A side whose records are changed on their way.
    hostile: Option<bool>,
    /// Numbers of the caller's methods, and those of the service in their order.
    numbers: [Option<u16>; PATHS.len()],
    named: Vec<usize>,
    /// Calls that were named by numbers, and frames that were plain.
    pub(super) numbered: usize,
    pub(super) plain: usize,
    /// Frames whose data lay in parcels, and of those in owned ones.
    pub(super) parcels: usize,
    /// Descriptors are granted to both; heads to which something was attached.
    attaches: bool,
    pub(super) attached: usize,
    pub(super) owned: usize,
    /// Request numbers to the call's order, which is the caller's.
    order: BTreeMap<u32, usize>,
    drains_at: Option<usize>,
    dies_at: Option<(usize, bool)>,
    steps: usize,
    verbose: bool,
    /// The caller's calls that nobody may expect to be complete.
    pub(super) finished: usize,
}

impl World {
    pub(super) fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed);
        let streams = 1 + random.below(6) as u32;
        let first = u64::from(limits::FIRST_WINDOW);
        let window = match random.below(3) {
            0 => limits::LINK_WINDOW,
            1 => limits::FIRST_WINDOW,
            _ => (first + random.next() % (u64::from(limits::LINK_WINDOW) - first)) as u32,
        };
        let mut ring = || {
            let bytes = 4096 << random.below(8);
            (1 + random.below(8), bytes)
        };
        let (theirs, ours) = (ring(), ring());
        let mut caller = Connection::caller();
        let mut service = Connection::service(Limits { streams, window }, "full");
        let mut memory = limits::STREAM_WINDOW as usize * 3 + random.below(1 << 22);
        let tells_room = !random.chance(4);
        if !tells_room {
            // Then whoever has memory may wait for a window that others use up: an owner ends
            // one of them after some time, and this one has enough for all.
            caller.agree(Capabilities::NONE);
            service.agree(Capabilities::NONE);
            memory = usize::MAX;
        }
        let mut takers = 0;
        for end in [&mut caller, &mut service] {
            if tells_room && random.chance(2) {
                end.take_parcels(1 + random.below(limits::UNREAD_PARCELS as usize) as u32);
                takers += 1;
            }
        }
        let calls = 1 + random.below(9);
        let steps = 10 + random.below(300);
        let mut world = Self {
            now: Instant::now(),
            caller: End::new(caller, theirs.0, theirs.1, usize::MAX),
            service: End::new(service, ours.0, ours.1, memory),
            requests: Vec::new(),
            to_open: calls,
            tells_room,
            rooms: 0,
            hostile: random.chance(3).then(|| random.chance(2)),
            numbers: [None; PATHS.len()],
            named: Vec::new(),
            numbered: 0,
            plain: 0,
            parcels: 0,
            owned: 0,
            attaches: takers == 2,
            attached: 0,
            order: BTreeMap::new(),
            drains_at: random.chance(4).then(|| random.below(steps)),
            dies_at: random.chance(5).then(|| (random.below(steps), random.chance(2))),
            steps: 0,
            verbose,
            finished: 0,
            random,
        };
        world.caller.ready.insert(Task::Open);
        world
    }

    fn end(&mut self, caller: bool) -> &mut End {
        if caller { &mut self.caller } else { &mut self.service }
    }

    pub(super) fn run(&mut self) {
        loop {
            self.steps += 1;
            assert!(self.steps < 2_000_000, "it does not come to rest");
            if self.drains_at.is_some_and(|at| self.steps >= at) {
                self.drains_at = None;
                self.service.connection.drain(self.now);
                self.service.ready.insert(Task::Control);
            }
            if let Some((at, caller)) = self.dies_at
                && self.steps >= at
            {
                self.dies_at = None;
                self.end(caller).dead = true;
                self.end(caller).ready.clear();
                if !self.end(!caller).dead {
                    // It hears of that after what was sent before.
                    self.end(!caller).ready.insert(Task::Read);
                }
            }
            let mut ready: Vec<(bool, Task)> = Vec::new();
            for caller in [true, false] {
                let end = self.end(caller);
                ready.extend(end.ready.iter().map(|task| (caller, *task)));
            }
            if ready.is_empty() {
                return;
            }
            let (caller, task) = ready[self.random.below(ready.len())];
            self.end(caller).ready.remove(&task);
            if self.verbose {
                println!("{} {task:?}", if caller { "caller" } else { "service" });
            }
            self.step(caller, task);
            let end = self.end(caller);
            if end.connection.has_control() && !end.dead && !end.for_room.contains(&Task::Control) {
                end.ready.insert(Task::Control);
            }
            self.check(caller);
        }
    }

    fn check(&mut self, caller: bool) {
        // A hostile end believes what it has not sent.
        let hostile = self.hostile.is_some();
        let end = self.end(caller);
        let untaken: usize = end.calls.iter().map(|call| call.untaken).sum();
        let rooms: usize =
            end.calls.iter().filter(|call| call.has_memory).map(|call| call.message).sum();
        let parcels = limits::UNREAD_PARCELS as usize * LONGEST;
        let most = limits::LINK_WINDOW as usize + rooms + parcels;
        assert!(untaken <= most, "{untaken} bytes are kept");
        let kept = end.connection.kept();
        assert!(kept <= end.calls.len(), "{kept} calls are kept");
        if let Some(why) = &end.broken {
            assert!(hostile, "an honest peer is accused: {why}");
        }
    }

    fn step(&mut self, caller: bool, task: Task) {
        match task {
            Task::Open => self.open(),
            Task::Read => self.read(caller),
            Task::Control => self.control(caller),
            Task::Send(call) => self.send(caller, call),
            Task::Receive(call) => self.receive(caller, call),
        }
    }

    fn open(&mut self) {
        if self.to_open == 0 || self.open_whole() {
            return;
        }
        match self.caller.connection.open() {
            Err(NotOpened::Draining) => self.to_open = 0,
            Err(NotOpened::Full) => self.caller.for_place = true,
            Ok(key) => {
                self.to_open -= 1;
                let (request, answer) = (self.random.size(), self.random.size());
                let call = self.caller.calls.len();
                *self.caller.connection.user(key) = call;
                self.order.insert(key.number(), call);
                let index = self.random.below(PATHS.len());
                if self.numbers[index].is_none() && self.random.chance(2) {
                    self.numbers[index] = self.caller.connection.name(PATHS[index]);
                }
                let method = Method { index, number: self.numbers[index] };
                let (key, left) = (Some(key), request);
                let attaches = self.attaches && self.random.chance(3);
                self.caller.calls.push(Call { key, method, left, attaches, ..Call::default() });
                self.requests.push((request, answer));
                self.caller.wake_call(call);
                self.caller.ready.insert(Task::Open);
            }
        }
    }

    /// Opens a call by a plain request, if there is all that it takes.
    fn open_whole(&mut self) -> bool {
        let index = self.random.below(PATHS.len());
        let (request, answer) = (self.random.size(), self.random.size());
        let block = self.numbers[index].map_or([0; 2], frame::Request::plain).to_vec();
        let has_room = self.caller.out.has_room(block.len() + request);
        if self.random.chance(2) || self.numbers[index].is_none() || !has_room {
            return false;
        }
        let Some(key) = self.caller.connection.open_whole(request) else { return false };
        assert!(!self.caller.connection.has_control(), "a head overtakes a control record");
        self.to_open -= 1;
        let call = self.caller.calls.len();
        *self.caller.connection.user(key) = call;
        self.order.insert(key.number(), call);
        let (headed, sent_all) = (true, true);
        let method = Method { index, number: self.numbers[index] };
        let (key, stream) = (Some(key), key.number());
        self.caller.calls.push(Call { key, method, headed, sent_all, ..Call::default() });
        self.requests.push((request, answer));
        self.caller.wake_call(call);
        self.caller.ready.insert(Task::Open);
        let (kind, flags) = (Kind::Frame as u8, PLAIN_REQUEST);
        self.push(true, Sent { kind, flags, stream, block, data: request });
        true
    }

    /// A frame's head and trailers blocks.
    pub(super) fn block(
        request: Option<Method>,
        head: bool,
        attached: bool,
        trailers: bool,
    ) -> Vec<u8> {
        let mut block = Vec::new();
        if head {
            frame::write_block(&mut block, |out| match request {
                Some(method) => RequestHead::write(out, None, method.name(), 0),
                None => ResponseHead::write(out, 0),
            });
        }
        if attached {
            Attached::write(&mut block, 0, &[Item::File]);
        }
        if trailers {
            frame::write_block(&mut block, |out| Trailers::write(out, 0, 0));
        }
        block
    }

    fn send(&mut self, caller: bool, index: usize) {
        let (give_up, is_plain) = (self.random.chance(60), self.random.chance(2));
        let in_parcel = self.random.chance(3);
        let end = self.end(caller);
        let call = &mut end.calls[index];
        let Some(key) = call.key else { return };
        if call.sent_all || (!caller && call.reads_all && !call.over) {
            return;
        }
        if give_up {
            // A future is dropped, or a handler is.
            return self.finish(caller, index, 1);
        }
        let head = !call.headed;
        let left = call.left;
        let attached = head && call.attaches;
        if !caller && head && is_plain && !attached && end.out.has_room(left) {
            let end = &mut self.service;
            if end.connection.answer_whole(key, left) {
                (end.calls[index].headed, end.calls[index].sent_all) = (true, true);
                let (kind, flags, stream) = (Kind::Frame as u8, PLAIN_RESPONSE, key.number());
                self.push(false, Sent { kind, flags, stream, block: Vec::new(), data: left });
                return self.finish(false, index, 0);
            }
        }
        let end = self.end(caller);
        let call = &mut end.calls[index];
        let most = end.out.bytes.min(ZEROS.len()) / 2 - 256;
        let in_parcel = in_parcel && call.left > 0 && !attached;
        let want = Want { head, data: call.left, end: true, most: 2 * most, in_parcel, attached };
        let permit = match end.connection.reserve(key, want) {
            Ok(permit) => permit,
            Err(Blocked::Stopped) => {
                call.sent_all = true;
                return;
            }
            Err(Blocked::Control) => {
                end.for_room.insert(Task::Send(index));
                return;
            }
            Err(Blocked::Credit { link }) => {
                if link {
                    end.for_credit.insert(Task::Send(index));
                }
                return;
            }
        };
        let in_parcel = permit.flags & PARCEL != 0;
        let data = if in_parcel { permit.data } else { permit.data.min(most) };
        let last = data == call.left;
        assert_eq!(permit.flags & ATTACHED != 0, attached);
        let mut block = Self::block(caller.then_some(call.method), head, attached, last && !caller);
        let here = if in_parcel { 0 } else { data };
        let reference = if in_parcel { ParcelRef::BYTES } else { 0 };
        if !end.out.has_room(block.len() + reference + here) {
            end.for_room.insert(Task::Send(index));
            return;
        }
        if in_parcel {
            let owned = end.free.pop_if(|_| data % 2 == 0).map(|place| {
                let given_up = end.connection.lend(place);
                end.connection.take_back(place);
                let generation = end.connection.lend(place);
                assert_eq!(generation, given_up);
                Owned { place, generation }
            });
            self.owned += usize::from(owned.is_some());
            let parcel = ParcelRef { packet: 0, offset: 0, bytes: data as u64, owned };
            block.extend_from_slice(&parcel.encode());
        }
        let end = self.end(caller);
        let call = &mut end.calls[index];
        let mut flags = permit.flags | if head { HEAD } else { 0 };
        if last {
            flags |= if caller { END } else { END | TRAILERS };
        }
        assert!(end.connection.commit(key, flags, data), "it was permitted");
        call.headed = true;
        call.left -= data;
        call.sent_all = last;
        let (kind, stream) = (Kind::Frame as u8, key.number());
        self.parcels += usize::from(in_parcel);
        self.attached += usize::from(attached);
        self.push(caller, Sent { kind, flags, stream, block, data: here });
        if last && !caller {
            self.finish(false, index, 0);
        } else if !last {
            self.end(caller).ready.insert(Task::Send(index));
        }
    }

    fn push(&mut self, caller: bool, mut sent: Sent) {
        let is_plain = sent.kind == Kind::Frame as u8 && sent.flags & PLAIN != 0;
        assert!(self.tells_room || !is_plain, "a frame that the peer does not know");
        self.plain += usize::from(is_plain);
        if self.hostile == Some(caller) && self.random.chance(12) {
            sent.spoil(&mut self.random, ZEROS.len());
        }
        self.end(caller).out.push(sent);
        let peer = self.end(!caller);
        if !peer.dead {
            peer.ready.insert(Task::Read);
        }
    }

    fn control(&mut self, caller: bool) {
        loop {
            let end = self.end(caller);
            let control = match end.connection.control() {
                Ok(Some(control)) => control,
                Ok(None) => break,
                Err(why) => return self.breaks(caller, why),
            };
            let kind = control.kind();
            let (mut block, is_room) = (Vec::new(), kind == Kind::Room);
            let is_newer =
                matches!(kind, Kind::Room | Kind::Method | Kind::Parcels | Kind::Release);
            control.write(&mut block);
            if !end.out.has_room(block.len()) {
                end.for_room.insert(Task::Control);
                return;
            }
            let sent = Sent {
                kind: control.kind() as u8,
                flags: 0,
                stream: control.stream(),
                block,
                data: 0,
            };
            end.connection.control_sent();
            assert!(self.tells_room || !is_newer, "a record that the peer does not know");
            self.rooms += usize::from(is_room);
            self.push(caller, sent);
        }
        // Heads may go again.
        let end = self.end(caller);
        let waiting = std::mem::take(&mut end.for_room);
        end.ready.extend(waiting);
    }

    fn breaks(&mut self, caller: bool, why: Error) {
        if self.verbose {
            println!("broken: {why}");
        }
        self.end(caller).broken = Some(why);
        self.die(caller);
    }

    /// The peer is gone, or has broken a rule.
    fn die(&mut self, caller: bool) {
        for index in 0..self.end(caller).calls.len() {
            self.finish(caller, index, 14);
        }
        let end = self.end(caller);
        end.dead = true;
        end.ready.clear();
        let peer = self.end(!caller);
        if !peer.dead {
            peer.ready.insert(Task::Read);
        }
    }

    fn read(&mut self, caller: bool) {
        let hostile = self.hostile.is_some();
        let peer = self.end(!caller);
        let Some(sent) = peer.out.pop() else {
            if peer.dead {
                self.die(caller);
            }
            return;
        };
        let waiting = std::mem::take(&mut peer.for_room);
        peer.ready.extend(waiting);
        let end = self.end(caller);
        end.ready.insert(Task::Read);
        let mut whole;
        let payload = if sent.block.is_empty() {
            &ZEROS[..sent.data]
        } else {
            whole = sent.block.clone();
            whole.extend_from_slice(&ZEROS[..sent.data]);
            &whole[..]
        };
        let has_parcel = sent.kind == Kind::Frame as u8 && sent.flags & PARCEL != 0;
        if has_parcel && ParcelRef::of(payload).is_ok_and(|p| p.bytes > LONGEST as u64) {
            // Its owner looks whether it has so many bytes.
            assert!(hostile, "an honest peer's parcel is shorter than it says");
            return self.die(caller);
        }
        let record = Record { kind: sent.kind, flags: sent.flags, stream: sent.stream, payload };
        let event = match end.connection.handle(record) {
            Ok(event) => event,
            Err(why) => return self.breaks(caller, why),
        };
        let parcel = has_parcel.then(|| ParcelRef::of(payload).expect("it was taken"));
        let held = parcel.and_then(|parcel| parcel.owned).map(|owned| owned.place);
        let attached = sent.kind == Kind::Frame as u8 && sent.flags & ATTACHED != 0;
        match event {
            Event::Nothing => {
                if let Some(place) = held {
                    end.connection.give_back_owned(place);
                }
                if attached {
                    end.connection.attached_read();
                }
            }
            Event::Released(place) => {
                assert!(!end.free.contains(&place), "it was free");
                end.free.push(place);
            }
            Event::Method { path } => {
                let index = PATHS.iter().position(|known| *known == path);
                assert!(index.is_some() || hostile, "{path}");
                self.named.push(index.unwrap_or_default());
            }
            Event::Opened { key, head, data, end: over } => {
                let index = end.calls.len();
                *end.connection.user(key) = index;
                let order = self.order.get(&key.number()).copied();
                let (request, answer) = order.map_or((0, 0), |order| self.requests[order]);
                let called = match head.method {
                    MethodName::Path(path) => path,
                    MethodName::Number(number) => {
                        self.numbered += 1;
                        PATHS[self.named[usize::from(number)]]
                    }
                };
                let meant = order.map(|order| PATHS[self.caller.calls[order].method.index]);
                assert!(hostile || meant == Some(called), "{called} in place of {meant:?}");
                let reads_all = self.random.chance(2);
                let attaches = self.attaches && self.random.chance(3);
                self.service.calls.push(Call {
                    key: Some(key),
                    left: answer,
                    untaken: data,
                    held: held.into_iter().collect(),
                    attaches,
                    unread: attached,
                    received: data,
                    over,
                    reads_all,
                    message: request,
                    ..Call::default()
                });
                self.service.wake_call(index);
            }
            Event::Part { key, data, end: over, .. } => {
                let index = *end.connection.user(key);
                let call = &mut end.calls[index];
                call.untaken += data;
                call.held.extend(held);
                call.unread |= attached;
                call.received += data;
                call.over |= over;
                end.wake_call(index);
            }
            Event::Reset { key, code, .. } => {
                let index = *end.connection.user(key);
                end.calls[index].ended = Some(code);
                assert!(code != FULL || hostile, "a caller that keeps to its places is refused");
                end.wake_call(index);
            }
            Event::StreamCredit(key) => {
                let index = *end.connection.user(key);
                end.ready.insert(Task::Send(index));
            }
            Event::LinkCredit | Event::Limits => {
                let waiting = std::mem::take(&mut end.for_credit);
                end.ready.extend(waiting);
                end.wake_place();
            }
            Event::Draining => {
                end.ready.insert(Task::Open);
            }
            Event::Drained => {}
        }
        let end = self.end(caller);
        if end.connection.free() > 0 {
            end.wake_place();
        }
    }

    /// A program takes what has come.
    fn receive(&mut self, caller: bool, index: usize) {
        let some = 1 + self.random.below(1 << 20);
        let late = self.random.chance(4);
        let end = self.end(caller);
        let call = &mut end.calls[index];
        let Some(key) = call.key else { return };
        if let Some(code) = call.ended {
            return self.finish(caller, index, code);
        }
        if !caller && !call.has_memory && call.message > crate::SHORT && call.untaken > 0 {
            let lacks = end.memory < call.message;
            if lacks || (late && !call.waits) {
                if !std::mem::replace(&mut call.waits, true) {
                    end.connection.begin_to_wait();
                }
                if !lacks {
                    // It comes later.
                    end.ready.insert(Task::Receive(index));
                }
                return;
            }
            end.memory -= call.message;
            call.has_memory = true;
            if std::mem::take(&mut call.waits) {
                end.connection.end_to_wait();
            }
            end.connection.keep_room(key, call.message as u64);
        }
        if late {
            end.ready.insert(Task::Receive(index));
            return;
        }
        if std::mem::take(&mut call.unread) {
            end.connection.attached_read();
        }
        let taken = call.untaken.min(some);
        if taken > 0 {
            call.untaken -= taken;
            end.connection.taken(key, taken);
            if call.untaken == 0 {
                call.held.drain(..).for_each(|place| end.connection.give_back_owned(place));
            }
            end.ready.insert(Task::Receive(index));
            return;
        }
        if call.over {
            if caller {
                return self.finish(caller, index, 0);
            }
            end.ready.insert(Task::Send(index));
        }
    }

    /// A call is over here, with this code.
    fn finish(&mut self, caller: bool, index: usize, code: u8) {
        let honest = self.hostile.is_none();
        let whole = self.requests.get(index).map(|(_, answer)| *answer);
        let end = self.end(caller);
        let call = &mut end.calls[index];
        let Some(key) = call.key.take() else { return };
        if std::mem::take(&mut call.waits) {
            end.connection.end_to_wait();
        }
        if code != 0 {
            end.connection.reset(key, code, "given up");
        }
        let has_memory = std::mem::take(&mut call.has_memory);
        let (message, received) = (call.message, call.received);
        call.untaken = 0;
        call.held.drain(..).for_each(|place| end.connection.give_back_owned(place));
        if std::mem::take(&mut call.unread) {
            end.connection.attached_read();
        }
        assert_eq!(end.connection.release(key), index);
        if has_memory {
            end.memory += message;
        }
        for other in 0..end.calls.len() {
            if end.calls[other].waits {
                end.ready.insert(Task::Receive(other));
            }
        }
        end.wake_place();
        if caller {
            if honest && code == 0 {
                assert_eq!(Some(received), whole, "bytes of an answer are lost");
            }
            self.finished += 1;
        }
    }

    pub(super) fn check_end(&mut self) {
        let over = |end: &End| end.dead || end.broken.is_some();
        if over(&self.caller) || over(&self.service) {
            for end in [&self.caller, &self.service] {
                // The one that has died keeps what it had; the other one has ended all.
                assert!(end.dead, "an end does not hear of the other one's end");
            }
            return;
        }
        if self.hostile.is_some() {
            // What was changed may well have made both wait.
            return;
        }
        assert_eq!(self.to_open, 0, "a call waits for a place for ever");
        for end in [&self.caller, &self.service] {
            let hangs: Vec<_> = end.calls.iter().filter(|call| call.key.is_some()).collect();
            assert!(hangs.is_empty(), "calls hang: {hangs:?}");
            assert_eq!((end.connection.kept(), end.connection.open_calls()), (0, 0));
            assert!(end.out.records.is_empty());
        }
        let (caller, service) = (&self.caller.connection, &self.service.connection);
        for (sender, receiver) in [(caller, service), (service, caller)] {
            let (credit, window) = (sender.link_credit(), receiver.link_window());
            assert_eq!(credit, window, "credit is lost");
            assert_eq!(sender.parcels().0, receiver.parcels().1, "parcels are lost");
            assert!(receiver.has_all_parcels(), "a parcel that was read is lost");
            assert_eq!((sender.lent().0, receiver.lent().1), (0, 0), "owned parcels are lost");
        }
        if self.service.connection.is_draining() {
            assert!(self.service.connection.is_drained(), "the caller does not acknowledge");
        }
    }
}
