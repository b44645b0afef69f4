//! The lines that the machine sends, each a frame.
//!
//! | line | meaning |
//! | --- | --- |
//! | `@ begin NAME` | a program of the manifest starts |
//! | `\| TEXT` | a line that it printed, to either output, or a line of a file |
//! | `@ end NAME HOW NUMBER MS` | it has ended: HOW is `exit`, `signal`, `limit` or `open` |
//! | `@ file NAME` | a file that it left follows |
//! | `@ filed NAME LINES` | that was the file |
//! | `@ fault TEXT` | something that the machine could not do |
//! | `@ done PROGRAMS` | the last frame: so many programs were run |
//!
//! What a program prints stands behind a bar, so no program can write a frame of another kind.

use std::fmt;
use std::time::Duration;

use crate::manifest::is_name;

/// One line of the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A program starts.
    Begin(String),
    /// A line of a program's output or of a file, without its line break.
    Text(String),
    /// The program has ended.
    End {
        /// The program.
        name: String,
        /// How it ended.
        end: End,
        /// How long it ran; whole milliseconds.
        time: Duration,
    },
    /// The lines of a file follow.
    File(String),
    /// The file is complete.
    Filed {
        /// The file.
        name: String,
        /// Its lines.
        lines: usize,
    },
    /// The machine could not do something.
    Fault(String),
    /// The end of the transcript.
    Done {
        /// Programs that were run.
        programs: usize,
    },
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with an exit code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// Killed at its limit, in seconds.
    Limit(i32),
    /// With this exit code, but what it started still holds its output open.
    Open(i32),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Limit(seconds) => write!(f, "killed after {seconds} s"),
            Self::Open(code) => {
                write!(f, "exit code {code}, but what it started still holds its output open")
            }
        }
    }
}

impl fmt::Display for Frame {
    /// Writes the line, without its line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(name) => write!(f, "@ begin {name}"),
            Self::Text(text) => write!(f, "| {}", text.replace(['\n', '\r'], " ")),
            Self::End { name, end, time } => {
                let (how, number) = match end {
                    End::Exit(code) => ("exit", code),
                    End::Signal(number) => ("signal", number),
                    End::Limit(seconds) => ("limit", seconds),
                    End::Open(code) => ("open", code),
                };
                write!(f, "@ end {name} {how} {number} {}", time.as_millis())
            }
            Self::File(name) => write!(f, "@ file {name}"),
            Self::Filed { name, lines } => write!(f, "@ filed {name} {lines}"),
            Self::Fault(text) => write!(f, "@ fault {}", text.replace(['\n', '\r'], " ")),
            Self::Done { programs } => write!(f, "@ done {programs}"),
        }
    }
}

impl Frame {
    /// Reads a line; none when it is no frame.
    pub fn parse(line: &str) -> Option<Self> {
        if let Some(text) = line.strip_prefix("| ") {
            return Some(Self::Text(text.to_owned()));
        }
        let (word, rest) = line.strip_prefix("@ ")?.split_once(' ')?;
        let words: Vec<_> = rest.split(' ').collect();
        let name = || words.first().filter(|name| is_name(name)).map(|name| (*name).to_owned());
        Some(match (word, words.as_slice()) {
            ("fault", _) => Self::Fault(rest.to_owned()),
            ("begin", [_]) => Self::Begin(name()?),
            ("end", [_, how, number, ms]) => {
                let number = number.parse().ok()?;
                let end = match *how {
                    "exit" => End::Exit(number),
                    "signal" => End::Signal(number),
                    "limit" => End::Limit(number),
                    "open" => End::Open(number),
                    _ => return None,
                };
                let time = Duration::from_millis(ms.parse().ok()?);
                Self::End { name: name()?, end, time }
            }
            ("file", [_]) => Self::File(name()?),
            ("filed", [_, lines]) => Self::Filed { name: name()?, lines: lines.parse().ok()? },
            ("done", [programs]) => Self::Done { programs: programs.parse().ok()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let end = |end| Frame::End { name: "a-1".into(), end, time: Duration::from_millis(1234) };
        let frames = [
            Frame::Begin("partywall_domain-0123".into()),
            Frame::Text(String::new()),
            Frame::Text("  @ done 3 | x".into()),
            end(End::Exit(101)),
            end(End::Signal(9)),
            end(End::Limit(60)),
            end(End::Open(0)),
            Frame::File("machine.txt".into()),
            Frame::Filed { name: "machine.txt".into(), lines: 0 },
            Frame::Fault("reading /manifest: no such file".into()),
            Frame::Done { programs: 2 },
        ];
        for frame in frames {
            assert_eq!(Frame::parse(&frame.to_string()), Some(frame));
        }
    }

    #[test]
    fn a_text_stays_one_line() {
        let text = Frame::Text("a\n@ done 1\r".into()).to_string();
        assert_eq!(text, "| a @ done 1 ");
    }

    #[test]
    fn other_lines_are_no_frames() {
        let lines = [
            "",
            "|",
            "@",
            "@ begin",
            "@ begin ../a",
            "@ end a exit 0",
            "@ end a left 0 1",
            "@ file a b",
            "@ filed a -1",
            "@ done",
            "@ more 1",
            "qemu-system-x86_64: no such file",
        ];
        for line in lines {
            assert_eq!(Frame::parse(line), None, "{line}");
        }
    }
}
