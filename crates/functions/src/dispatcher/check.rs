//! What of a completion cannot be true.
//!
//! All of a completion is the worker's word, and a function that has got out of its cell may write it. Most
//! of what it says concerns its own process alone, and is believed. What no worker writes that runs what it
//! was given says that this one does not any more: it is ended, and another one has its seat.
//!
//! | end | what is believed of it |
//! | --- | --- |
//! | any | what it has written is within its room |
//! | any but a reply and a call of a service | a text of [`MESSAGE_BYTES`] at most |
//! | any but a call of a service | log lines of [`LOG_BYTES`] at most, and none beside a short payload |
//! | calls a service | of a function that can, in a cell of its own |
//! | stopped | where it was told to stop, or has a timer of its own |
//! | the reply has no room | of one that, with all log lines that there may be, has none |
//! | refused | never: the dispatcher submits nothing that cannot be done |

use partywall_abi::function::{Completion, End, SHORT};
use partywall_fn::cell::{LOG_BYTES, MESSAGE_BYTES};

/// What a worker was given, as far as its completion is held against it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given {
    /// The bytes of its room for what it says.
    pub(super) room: u32,
    /// Its function can call a service, and wait for it.
    pub(super) may_call: bool,
    /// It may have been stopped.
    pub(super) may_stop: bool,
}

/// Why a completion cannot be true, if it cannot.
#[inline]
pub(super) fn lie(done: &Completion, given: &Given) -> Option<&'static str> {
    let Completion { end, detail, short, .. } = *done;
    let [bytes, log, body, room] =
        [done.bytes, done.log, done.lost, given.room].map(|bytes| bytes as usize);
    let written = if end == End::Calls { bytes + log + body } else { bytes + log };
    if written > room {
        return Some("it has said that it has written more than it has room for");
    }
    if !matches!(end, End::Reply | End::Calls) && bytes > MESSAGE_BYTES {
        return Some("it has said a text that is longer than a text may be");
    }
    if end != End::Calls && log > LOG_BYTES {
        return Some("it has said more log lines than a function may write");
    }
    if short.is_some() && (bytes > SHORT || log != 0) {
        return Some("it has said that more is short than is short");
    }
    match end {
        End::Calls if !given.may_call => {
            Some("it has said that a function calls a service that cannot")
        }
        End::Stopped if !given.may_stop => {
            Some("it has said that it was stopped, and nobody has told it to stop")
        }
        End::Room if detail.saturating_add(LOG_BYTES as u64) <= room as u64 => {
            Some("it has said that a reply has no room that has room")
        }
        End::Refused => Some("it has refused what it was given, or named an end that there is not"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use partywall_abi::function::Short;

    use super::*;

    const DONE: Completion = Completion {
        end: End::Reply,
        code: 0,
        bytes: 0,
        log: 0,
        lost: 0,
        detail: 0,
        ticks: 0,
        short: None,
    };
    const GIVEN: Given = Given { room: 8192, may_call: true, may_stop: true };

    #[test]
    fn completions_at_a_bound_are_believed_and_beyond_it_not() {
        let short = Short::new(b"");
        let true_ones = [
            Completion { bytes: 8192, ..DONE },
            Completion { bytes: 8192 - 4096, log: 4096, lost: u32::MAX, ..DONE },
            Completion { bytes: 24, short, ..DONE },
            Completion { end: End::Error, bytes: 512, log: 4096, ..DONE },
            Completion { end: End::Panic, bytes: 512, ..DONE },
            Completion { end: End::Calls, bytes: 100, log: 92, lost: 8000, ..DONE },
            Completion { end: End::Room, detail: 4097, ..DONE },
            Completion { end: End::Room, detail: u64::MAX, ..DONE },
            Completion { end: End::Stopped, ..DONE },
        ];
        for done in true_ones {
            assert_eq!(lie(&done, &GIVEN), None, "{done:?}");
        }
        let lies = [
            Completion { bytes: 8193, ..DONE },
            Completion { bytes: u32::MAX, log: u32::MAX, ..DONE },
            Completion { bytes: 8192 - 4095, log: 4096, ..DONE },
            Completion { log: 4097, ..DONE },
            Completion { bytes: 25, short, ..DONE },
            Completion { bytes: 1, log: 1, short, ..DONE },
            Completion { end: End::Error, bytes: 513, ..DONE },
            Completion { end: End::Memory, bytes: 513, ..DONE },
            Completion { end: End::Calls, bytes: 100, log: 92, lost: 8001, ..DONE },
            Completion { end: End::Calls, bytes: u32::MAX, log: 1, lost: u32::MAX, ..DONE },
            Completion { end: End::Room, detail: 4096, ..DONE },
            Completion { end: End::Refused, ..DONE },
        ];
        for done in lies {
            assert!(lie(&done, &GIVEN).is_some(), "{done:?}");
        }
        let nothing = Given { may_call: false, may_stop: false, ..GIVEN };
        for end in [End::Calls, End::Stopped] {
            assert_eq!(lie(&Completion { end, ..DONE }, &GIVEN), None);
            assert!(lie(&Completion { end, ..DONE }, &nothing).is_some());
        }
    }
}
