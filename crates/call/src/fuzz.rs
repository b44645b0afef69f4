//! Body of the fuzz target `call`: an end whose peer's records, and whose own program, come from the
//! input. It returns whether the accepting path was reached.

use std::time::Instant;

use partywall_abi::frame::{
    self, END, HEAD, Kind, Limits, MethodName, PLAIN_REQUEST, PLAIN_RESPONSE, RequestHead,
    ResponseHead, TRAILERS, Trailers,
};
use partywall_abi::limits;

use crate::{Connection, Event, Key, Record, Want};

/// One end of a link against `data`.
///
/// # Panics
/// When an own invariant breaks: that is what fuzzing looks for.
pub fn call(data: &[u8]) -> bool {
    let Some((side, ops)) = data.split_first() else { return false };
    let is_caller = side & 1 == 0;
    let mut connection = if is_caller {
        Connection::<usize>::caller()
    } else {
        let streams = u32::from(side >> 1) + 1;
        Connection::service(Limits { streams, window: limits::FIRST_WINDOW }, "full")
    };
    let mut calls: Vec<Key> = Vec::new();
    let (mut begun, mut accepted) = (Vec::new(), false);
    for op in ops.chunks(16) {
        let at = usize::from(*op.get(1).unwrap_or(&0));
        let key = calls.get(at % calls.len().max(1)).copied();
        match (op[0], key) {
            (0..=127, _) => {
                let flags = *op.get(1).unwrap_or(&0);
                let stream = u32::from(*op.get(2).unwrap_or(&0)) % 6;
                let rest = op.get(3..).unwrap_or_default();
                let (kind, flags, payload) = if op[0] < 96 {
                    honest(is_caller, flags, rest)
                } else {
                    (op[0] % 9, flags, rest.to_vec())
                };
                let record = Record { kind, flags, stream, payload: &payload };
                let Ok(event) = connection.handle(record) else {
                    return accepted;
                };
                match event {
                    Event::Opened { key, data, .. } => {
                        *connection.user(key) += data;
                        calls.push(key);
                        begun.push(false);
                        accepted = true;
                    }
                    Event::Part { key, data, .. } => {
                        *connection.user(key) += data;
                        accepted = true;
                    }
                    _ => {}
                }
            }
            (128..=143, _) if is_caller => {
                let whole = at > 128;
                let key = match whole {
                    true => connection.open_whole(at * 97),
                    false => connection.open().ok(),
                };
                if let Some(key) = key {
                    calls.push(key);
                    begun.push(whole);
                }
            }
            (128..=143, _) => connection.drain(Instant::now()),
            (144..=147, Some(key)) if !is_caller && !begun[at % calls.len()] => {
                begun[at % calls.len()] = connection.answer_whole(key, at * 97);
            }
            (144..=175, Some(key)) => {
                let head = !std::mem::replace(&mut begun[at % calls.len()], true);
                let want = Want { head, data: at * 97, end: at > 128, most: usize::MAX };
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
            return accepted;
        }
        assert!(connection.kept() >= connection.open_calls());
    }
    accepted
}

/// A frame as an honest peer sends it, and some data.
fn honest(is_caller: bool, flags: u8, data: &[u8]) -> (u8, u8, Vec<u8>) {
    if flags & 0xf0 == 0xf0 {
        let flags = if is_caller { PLAIN_RESPONSE } else { PLAIN_REQUEST };
        return (Kind::Frame as u8, flags, data.to_vec());
    }
    let mut flags = flags & (HEAD | END);
    let mut payload = Vec::new();
    if flags & HEAD != 0 {
        frame::write_block(&mut payload, |out| match is_caller {
            true => ResponseHead::write(out, 0),
            false if data.first().is_some_and(|byte| byte % 4 == 0) => {
                RequestHead::write(out, None, MethodName::Number(data[0].into()), 0);
            }
            false => RequestHead::write(out, None, "/a/b", 0),
        });
    }
    if is_caller && flags & END != 0 {
        flags |= TRAILERS;
        frame::write_block(&mut payload, |out| Trailers::write(out, 0, 0));
    }
    payload.extend_from_slice(data);
    (Kind::Frame as u8, flags, payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree as _;

    #[test]
    fn fuzz_call() {
        let mut accepted = 0;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = proptest::collection::vec(any::<u8>(), 0..800);
        for _ in 0..2000 {
            let data = strategy.new_tree(&mut runner).unwrap().current();
            accepted += usize::from(super::call(&data));
        }
        assert!(accepted > 200, "only {accepted} inputs reached the accepting path");
        assert!(accepted < 2000, "nothing was refused");
    }
}
