//! The lines that the machine sends, each a frame: JSON with one word for its kind.
//!
//! What a program prints stands within a frame, so no program can write one of another kind.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::manifest::is_name;

/// One line of the transcript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
        /// How long it ran.
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
    /// The end of the transcript: so many programs were run.
    Done(usize),
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Frame {
    /// Reads a line; none when it is no frame, or names what can be no file of one directory.
    pub fn parse(line: &str) -> Option<Self> {
        let frame = serde_json::from_str(line).ok()?;
        match &frame {
            Self::Begin(name) | Self::File(name) if !is_name(name) => None,
            _ => Some(frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_one_line_and_read_as_they_were_written() {
        let end = |end| Frame::End { name: "a-1".into(), end, time: Duration::from_millis(1234) };
        let frames = [
            Frame::Begin("partywall_domain-0123".into()),
            Frame::Text(String::new()),
            Frame::Text("a\n{\"done\":3}\r".into()),
            end(End::Exit(101)),
            end(End::Signal(9)),
            end(End::Limit(60)),
            end(End::Open(0)),
            Frame::File("machine.txt".into()),
            Frame::Filed { name: "machine.txt".into(), lines: 0 },
            Frame::Fault("reading /manifest: no such file".into()),
            Frame::Done(2),
        ];
        for frame in frames {
            let line = frame.to_string();
            assert!(!line.contains(['\n', '\r']), "{line}");
            assert_eq!(Frame::parse(&line), Some(frame));
        }
    }

    #[test]
    fn other_lines_are_no_frames() {
        let lines = [
            "",
            "{}",
            r#"{"begin":"../a"}"#,
            r#"{"file":"a b"}"#,
            r#"{"filed":{"name":"a","lines":-1}}"#,
            r#"{"more":1}"#,
            r#"{"done":1} x"#,
            "qemu-system-x86_64: no such file",
        ];
        for line in lines {
            assert_eq!(Frame::parse(line), None, "{line}");
        }
    }
}
