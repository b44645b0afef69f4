//! Body of the fuzz target `call`: an end whose peer's records, and whose own program, come from the
//! input. It returns whether the accepting path was reached.

use std::time::Instant;

use partywall_abi::frame::{
    self, END, HEAD, Kind, Limits, MethodName, PLAIN, PLAIN_REQUEST, PLAIN_RESPONSE, RequestHead,
    ResponseHead, TRAILERS, Trailers,
};
use partywall_abi::limits;
use partywall_abi::version::Capabilities;

use crate::{Connection, Error, Event, Key, Record, Rule, Want};

/// How often each path was taken that a driver is to take.
#[derive(Debug, Default)]
struct Reached {
    /// Calls that were opened, and parts of answers.
    accepted: usize,
    /// Methods that got a number.
    named: usize,
    /// Calls that were opened by a number.
    numbered: usize,
    /// Of these, those of plain requests.
    plain: usize,
    /// Answers that were plain.
    plain_answers: usize,
    /// Plain requests and answers of this end's.
    plain_sent: usize,
    /// The end of the link: a number that none has, or that is out of turn; a capability that is not there.
    broken: [usize; 3],
}

/// One end of a link against `data`.
///
/// # Panics
/// When an own invariant breaks: that is what fuzzing looks for.
pub fn call(data: &[u8]) -> bool {
    let mut reached = Reached::default();
    play(data, &mut reached);
    reached.accepted > 0
}

fn play(data: &[u8], reached: &mut Reached) {
    let Some((side, ops)) = data.split_first() else { return };
    let is_caller = side & 1 == 0;
    let mut connection = if is_caller {
        Connection::<usize>::caller()
    } else {
        let streams = u32::from(side >> 1 & 0x3f) + 1;
        Connection::service(Limits { streams, window: limits::FIRST_WINDOW }, "full")
    };
    if side & 0xc0 == 0xc0 {
        connection.agree(Capabilities::NONE);
    }
    let mut named = 0;
    let mut calls: Vec<Key> = Vec::new();
    let mut begun = Vec::new();
    for op in ops.chunks(16) {
        let at = usize::from(*op.get(1).unwrap_or(&0));
        let key = calls.get(at % calls.len().max(1)).copied();
        match (op[0], key) {
            (0..=127, _) => {
                let flags = *op.get(1).unwrap_or(&0);
                let stream = u32::from(*op.get(2).unwrap_or(&0)) % 6;
                let rest = op.get(3..).unwrap_or_default();
                let honest = op[0] < 96;
                let (kind, flags, stream, payload) = match honest {
                    true if is_method(is_caller, flags) => {
                        // Out of turn now and then.
                        let skips = rest.first().is_some_and(|byte| byte % 8 == 7);
                        let number = named + u32::from(skips);
                        (Kind::Method as u8, 0, number, b"/a/b".to_vec())
                    }
                    true => {
                        let (flags, payload) = self::honest(is_caller, flags, rest);
                        // Most answers are for calls that are open.
                        let own = key.filter(|_| is_caller && stream != 1).map(Key::number);
                        let stream = own.unwrap_or(stream);
                        (Kind::Frame as u8, flags, stream, payload)
                    }
                    false => (op[0] % 11, flags, stream, rest.to_vec()),
                };
                let is_plain = kind == Kind::Frame as u8 && flags & PLAIN != 0;
                let record = Record { kind, flags, stream, payload: &payload };
                let event = match connection.handle(record) {
                    Ok(event) => event,
                    Err(why) => return reached.ended(&why),
                };
                match event {
                    Event::Opened { key, head, data, .. } => {
                        if let MethodName::Number(number) = head.method {
                            assert!(u32::from(number) < named, "nobody has named it");
                            reached.numbered += 1;
                        }
                        reached.plain += usize::from(is_plain);
                        reached.accepted += 1;
                        *connection.user(key) += data;
                        calls.push(key);
                        begun.push(false);
                    }
                    Event::Part { key, data, end, .. } => {
                        assert!(end || !is_plain, "more is to come of a plain answer");
                        reached.plain_answers += usize::from(is_plain);
                        reached.accepted += 1;
                        *connection.user(key) += data;
                    }
                    Event::Method { path } => {
                        assert!(path.starts_with('/') && named < limits::METHODS);
                        reached.named += 1;
                        named += 1;
                    }
                    _ => {}
                }
            }
            (128..=143, _) if is_caller => {
                let whole = at > 128;
                if at % 8 == 0 {
                    let number = connection.name("/a/b");
                    assert!(number.is_none_or(|number| u32::from(number) == named));
                    named += u32::from(number.is_some());
                }
                let key = match whole {
                    true => connection.open_whole(at * 97),
                    false => connection.open().ok(),
                };
                if let Some(key) = key {
                    reached.plain_sent += usize::from(whole);
                    calls.push(key);
                    begun.push(whole);
                }
            }
            (128..=143, _) => connection.drain(Instant::now()),
            (144..=147, Some(key)) if !is_caller && !begun[at % calls.len()] => {
                let sent = connection.answer_whole(key, at * 97);
                assert!(!sent || !connection.is_open(key), "an answer is the end");
                reached.plain_sent += usize::from(sent);
                begun[at % calls.len()] = sent;
            }
            (144..=175, Some(key)) => {
                let head = !std::mem::replace(&mut begun[at % calls.len()], true);
                let (data, end, in_parcel) = (at * 97, at > 128, at % 3 == 0);
                let attached = head && !in_parcel && at % 3 == 1 && connection.may_attach();
                let want = Want { head, data, end, most: usize::MAX, in_parcel, attached };
                match connection.reserve(key, want) {
                    Ok(permit) => {
                        let end = if is_caller { END } else { END | TRAILERS };
                        let flags = permit.flags
                            | if head { HEAD } else { 0 }
                            | if permit.data == want.data { end } else { 0 };
                        assert!(connection.commit(key, flags, permit.data));
                    }
                    Err(_) => begun[at % calls.len()] = !head,
                }
            }
            (176..=199, Some(key)) => {
                let untaken = std::mem::take(connection.user(key));
                connection.taken(key, untaken);
            }
            (200..=215, Some(key)) => drop(connection.reset(key, 1, "")),
            (216..=231, Some(key)) => {
                connection.release(key);
                calls.remove(at % calls.len());
                begun.remove(at % (calls.len() + 1));
            }
            _ => connection.control_sent(),
        }
        if connection.control().is_err() {
            return;
        }
        assert!(connection.kept() >= connection.open_calls());
    }
}

impl Reached {
    fn ended(&mut self, why: &Error) {
        match why {
            Error::Rule(Rule::UnknownMethod(_)) => self.broken[0] += 1,
            Error::Rule(Rule::MethodNumber(_)) => self.broken[1] += 1,
            Error::Rule(Rule::NotAgreed) => self.broken[2] += 1,
            _ => {}
        }
    }
}

/// Whether an honest caller gives a method its number.
fn is_method(is_caller: bool, flags: u8) -> bool {
    !is_caller && flags & 0xf0 == 0xe0
}

/// A frame as an honest peer sends it, and some data.
fn honest(is_caller: bool, flags: u8, data: &[u8]) -> (u8, Vec<u8>) {
    // Few have numbers, and few requests are of others.
    let number = data.first().map_or(0, |byte| u16::from(byte % 4));
    if flags & 0xe0 == 0xe0 && is_caller {
        return (PLAIN_RESPONSE, data.to_vec());
    }
    if flags & 0xf0 == 0xf0 {
        return (PLAIN_REQUEST, [&frame::Request::plain(number)[..], data].concat());
    }
    let mut flags = flags & (HEAD | END);
    let mut payload = Vec::new();
    if flags & HEAD != 0 {
        frame::write_block(&mut payload, |out| match is_caller {
            true => ResponseHead::write(out, 0),
            false if data.last().is_some_and(|byte| byte % 4 == 0) => {
                RequestHead::write(out, None, MethodName::Number(number), 0);
            }
            false => RequestHead::write(out, None, "/a/b", 0),
        });
    }
    if is_caller && flags & END != 0 {
        flags |= TRAILERS;
        frame::write_block(&mut payload, |out| Trailers::write(out, 0, 0));
    }
    payload.extend_from_slice(data);
    (flags, payload)
}

#[cfg(test)]
mod tests {
    use super::Reached;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree as _;

    /// What a caller's end begins with: a call whose request is plain; and a service's: two methods that get
    /// numbers.
    fn beginning(is_caller: bool) -> [u8; 32] {
        let mut ops = [0; 32];
        match is_caller {
            true => (ops[0], ops[1], ops[16]) = (128, 200, 255),
            false => (ops[1], ops[17]) = (0xe0, 0xe0),
        }
        ops
    }

    #[test]
    fn fuzz_call() {
        let (mut accepted, mut reached) = (0, Reached::default());
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = proptest::collection::vec(any::<u8>(), 0..800);
        for round in 0..4000 {
            let mut data = strategy.new_tree(&mut runner).unwrap().current();
            if round % 2 == 0 && !data.is_empty() {
                data.splice(1..1, beginning(data[0] & 1 == 0));
            }
            super::play(&data, &mut reached);
            accepted += usize::from(super::call(&data));
        }
        assert!(accepted > 400, "only {accepted} inputs reached the accepting path");
        assert!(accepted < 4000, "nothing was refused");
        let Reached { named, numbered, plain, plain_answers, plain_sent, broken, .. } = reached;
        let each = [named, numbered, plain, plain_answers, plain_sent].into_iter().chain(broken);
        assert!(each.clone().all(|times| times > 10), "{each:?}");
    }
}
