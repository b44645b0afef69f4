//! Unary calls of 32 bytes by the protocol alone: two connections, and records that are made before.

use std::hint::black_box;

use partywall_abi::frame::{
    self, END, HEAD, Kind, Limits, RequestHead, ResponseHead, TRAILERS, Trailers,
};
use partywall_abi::limits;
use partywall_call::{Connection, Event, Key, Record, Want};

const DATA: usize = 32;
const MOST: usize = 64 * 1024;

pub(crate) struct Protocol {
    caller: Connection<()>,
    service: Connection<()>,
    request: Vec<u8>,
    answer: Vec<u8>,
    control: Vec<u8>,
}

impl Protocol {
    pub(crate) fn new() -> Self {
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/test.Micro/Call", 0);
        frame::write_block(&mut request, head).expect("a short head");
        request.extend_from_slice(&[7; DATA]);
        frame::write_block(&mut answer, |out| ResponseHead::write(out, 0)).expect("a short head");
        frame::write_block(&mut answer, |out| Trailers::write(out, 0, 0)).expect("short trailers");
        answer.extend_from_slice(&[7; DATA]);
        let limits = Limits { streams: 16, window: limits::LINK_WINDOW };
        let (mut caller, mut service) = (Connection::caller(), Connection::service(limits, "full"));
        let mut control = Vec::new();
        pass(&mut service, &mut caller, &mut control);
        Self { caller, service, request, answer, control }
    }

    /// What both ends are asked for one call.
    pub(crate) fn call(&mut self) {
        let Self { caller, service, request, answer, control } = self;
        let key = caller.open().expect("a place");
        send(caller, key, HEAD);
        let event = hear(service, HEAD | END, key, request);
        let Event::Opened { key: served, data, .. } = event else { panic!("{event:?}") };
        service.taken(served, data);
        pass(service, caller, control);
        send(service, served, HEAD | TRAILERS);
        let event = hear(caller, HEAD | END | TRAILERS, key, answer);
        let Event::Part { data, .. } = event else { panic!("{event:?}") };
        caller.taken(key, data);
        service.release(served);
        caller.release(key);
        pass(caller, service, control);
    }
}

fn send(end: &mut Connection<()>, key: Key, flags: u8) {
    let want =
        Want { head: true, data: DATA, end: true, most: MOST, in_parcel: false, attached: false };
    let permit = end.reserve(key, want).expect("credit");
    assert!(permit.data == DATA && end.commit(key, permit.flags | flags | END, DATA));
}

fn hear<'a>(end: &mut Connection<()>, flags: u8, key: Key, payload: &'a [u8]) -> Event<'a> {
    let record = Record { kind: Kind::Frame as u8, flags, stream: key.number(), payload };
    end.handle(black_box(record)).expect("its rules")
}

/// Control records that are due go to the other end.
fn pass(from: &mut Connection<()>, to: &mut Connection<()>, payload: &mut Vec<u8>) {
    while let Some(control) = from.control().expect("its rules") {
        control.write(payload);
        let (kind, stream) = (control.kind() as u8, control.stream());
        from.control_sent();
        to.handle(Record { kind, flags: 0, stream, payload }).expect("its rules");
    }
}
