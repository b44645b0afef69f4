//! The lines that functions have logged, and what they were ended for.
//!
//! An owner has [`BYTES`] of lines, of all its functions together; beyond them the oldest ones go. They are
//! in memory only, and written when a call is over, by the dispatcher's thread.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of an owner's lines, with [`EACH`] for each of them.
pub const BYTES: usize = 1 << 20;
/// What a line costs beside its text.
const EACH: usize = 64;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number among all of its owner, from 1 on.
    pub number: u64,
    /// Milliseconds since 1970 when its call was over.
    pub time_ms: u64,
    /// The number of its call.
    pub call: u64,
    /// The text, as the function has written it.
    pub text: Vec<u8>,
}

#[derive(Debug, Default)]
struct OfOwner {
    lines: VecDeque<(String, Line)>,
    bytes: usize,
    last: u64,
}

/// All lines.
#[derive(Debug, Default)]
pub struct Logs(Mutex<HashMap<String, OfOwner>>);

/// Which lines are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// The most of them, the last ones; 0 is all.
    pub lines: usize,
    /// Of this call; 0 is of any.
    pub call: u64,
    /// Behind this number.
    pub after: u64,
}

impl Logs {
    /// Writes the lines of a call that is over.
    pub fn write(&self, owner: &str, function: &str, call: u64, lines: &[impl AsRef<[u8]>]) {
        if lines.is_empty() {
            return;
        }
        let time_ms = now_ms();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_owner = match all.get_mut(owner) {
            Some(found) => found,
            None => all.entry(owner.to_owned()).or_default(),
        };
        for text in lines {
            of_owner.last += 1;
            let line = Line { number: of_owner.last, time_ms, call, text: text.as_ref().to_vec() };
            of_owner.bytes += EACH + function.len() + line.text.len();
            of_owner.lines.push_back((function.to_owned(), line));
        }
        while of_owner.bytes > BYTES
            && let Some((function, line)) = of_owner.lines.pop_front()
        {
            of_owner.bytes -= EACH + function.len() + line.text.len();
        }
    }

    /// The lines of a function, the oldest one first.
    pub fn read(&self, owner: &str, function: &str, wanted: Wanted) -> Vec<Line> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.get(owner).into_iter().flat_map(|of_owner| of_owner.lines.iter().rev());
        let is_wanted = |line: &Line| {
            line.number > wanted.after && (wanted.call == 0 || line.call == wanted.call)
        };
        let found = lines
            .filter(|(name, line)| name == function && is_wanted(line))
            .take(if wanted.lines == 0 { usize::MAX } else { wanted.lines });
        let mut found: Vec<_> = found.map(|(_, line)| line.clone()).collect();
        found.reverse();
        found
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    passed.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| std::str::from_utf8(&line.text).unwrap()).collect()
    }

    #[test]
    fn lines_are_found_by_function_call_and_number() {
        let logs = Logs::default();
        logs.write("a", "f", 7, &[b"one", b"two"]);
        logs.write("a", "g", 8, &[b"other"]);
        logs.write("b", "f", 9, &[b"another owner's"]);
        logs.write("a", "f", 10, &[b"three"]);
        let read = |wanted| logs.read("a", "f", wanted);
        assert_eq!(texts(&read(Wanted::default())), ["one", "two", "three"]);
        assert_eq!(texts(&read(Wanted { lines: 2, ..Wanted::default() })), ["two", "three"]);
        assert_eq!(texts(&read(Wanted { call: 7, ..Wanted::default() })), ["one", "two"]);
        assert_eq!(texts(&read(Wanted { after: 2, ..Wanted::default() })), ["three"]);
        assert_eq!(read(Wanted { call: 8, ..Wanted::default() }), []);
        assert_eq!(logs.read("c", "f", Wanted::default()), []);
    }

    #[test]
    fn an_owner_has_so_many_bytes_and_loses_the_oldest() {
        let logs = Logs::default();
        logs.write("b", "f", 1, &[b"stays"]);
        let line = [b'x'; 1000];
        for call in 1..=3000 {
            logs.write("a", "f", call, &[&line]);
        }
        let kept = logs.read("a", "f", Wanted::default());
        assert_eq!(kept.len(), BYTES / (1000 + EACH + 1));
        assert_eq!(kept.last().unwrap().call, 3000);
        assert_eq!(logs.read("b", "f", Wanted::default()).len(), 1);
    }
}
