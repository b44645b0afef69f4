//! Frames put together: what was run, and the files that were left.
//!
//! ```text
//!   between --begin--> inside --end--> between --file--> in a file --filed--> between --done--> over
//! ```
//!
//! A frame that does not fit the state is a fault, and so is a transcript that is not over.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::frame::{End, Frame};

/// One program that was run.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// Its name in the manifest.
    pub name: String,
    /// What it printed, to both outputs.
    pub lines: Vec<String>,
    /// How it ended and after what time; none when the machine stopped first.
    pub end: Option<(End, Duration)>,
}

/// All that came from the machine so far.
#[derive(Debug, Default)]
pub struct Transcript {
    runs: Vec<Run>,
    files: BTreeMap<String, String>,
    faults: Vec<String>,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Between,
    Inside,
    File {
        name: String,
        lines: Vec<String>,
    },
    Over,
}

impl Transcript {
    /// Takes one line, without its line break.
    pub fn line(&mut self, line: &str) {
        let line = line.trim_end_matches('\r');
        match Frame::parse(line) {
            Some(frame) => {
                if let Err(what) = self.frame(frame) {
                    self.faults.push(format!("the machine sent {what}: {line:?}"));
                }
            }
            None => self.faults.push(format!("the emulator or the machine said {line:?}")),
        }
    }

    fn frame(&mut self, frame: Frame) -> Result<(), &'static str> {
        let state = std::mem::take(&mut self.state);
        self.state = match (state, frame) {
            (state, Frame::Fault(text)) => {
                self.faults.push(format!("in the machine: {text}"));
                state
            }
            (State::Between, Frame::Begin(name)) => {
                self.runs.push(Run { name, lines: Vec::new(), end: None });
                State::Inside
            }
            (State::Inside, Frame::Text(text)) => {
                let run = self.runs.last_mut().ok_or("a line of no program")?;
                run.lines.push(text);
                State::Inside
            }
            (State::Inside, Frame::End { name, end, time }) => {
                let run = self.runs.last_mut().filter(|run| run.name == name);
                run.ok_or("the end of another program")?.end = Some((end, time));
                State::Between
            }
            (State::Between, Frame::File(name)) => State::File { name, lines: Vec::new() },
            (State::File { name, mut lines }, Frame::Text(text)) => {
                lines.push(text);
                State::File { name, lines }
            }
            (State::File { name, lines }, Frame::Filed { name: end, lines: count }) => {
                if name != end || lines.len() != count {
                    return Err("a file that is not complete");
                }
                let text = lines.iter().map(|line| format!("{line}\n")).collect();
                if self.files.insert(name, text).is_some() {
                    return Err("a file twice");
                }
                State::Between
            }
            (State::Between, Frame::Done(programs)) => {
                if programs != self.runs.len() {
                    return Err("another number of programs than it ran");
                }
                State::Over
            }
            (state, _) => {
                self.state = state;
                return Err("a frame out of order");
            }
        };
        Ok(())
    }

    /// Programs in the order they were run.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Text of each file that was left, every line with its line break.
    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.files
    }

    /// What is wrong with the transcript, whatever the programs said.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.faults.clone();
        if !matches!(self.state, State::Over) {
            let at = match self.runs.last() {
                Some(run) if run.end.is_none() => format!("within {}", run.name),
                Some(run) => format!("after {}", run.name),
                None => "before its first program".to_owned(),
            };
            faults.push(format!("the transcript of the machine ends {at}"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r##"{"begin":"a"}
{"text":"running 1 test"}
{"text":"{\"done\":9}"}
{"end":{"name":"a","end":{"exit":0},"time":{"secs":1,"nanos":500000000}}}
{"file":"m.md"}
{"text":"# Machine"}
{"text":""}
{"text":"| a |"}
{"filed":{"name":"m.md","lines":3}}
{"begin":"b"}
{"end":{"name":"b","end":{"signal":9},"time":{"secs":0,"nanos":3}}}
{"done":2}"##;

    fn read(text: &str) -> Transcript {
        let mut transcript = Transcript::default();
        text.split('\n').for_each(|line| transcript.line(line));
        transcript
    }

    #[test]
    fn programs_and_files_are_distinguished() {
        let transcript = read(WHOLE);
        assert_eq!(transcript.faults(), [""; 0]);
        let [a, b] = transcript.runs() else { panic!("{transcript:?}") };
        assert_eq!(a.lines, ["running 1 test", "{\"done\":9}"]);
        assert_eq!(a.end, Some((End::Exit(0), Duration::from_millis(1500))));
        assert_eq!((b.name.as_str(), b.end.unwrap().0), ("b", End::Signal(9)));
        let file = ("m.md".to_owned(), "# Machine\n\n| a |\n".to_owned());
        assert_eq!(transcript.files(), &[file].into());
    }

    #[test]
    fn every_way_of_stopping_early_is_a_fault() {
        let ends: Vec<_> = WHOLE.match_indices('\n').map(|(at, _)| at).collect();
        for end in ends {
            let faults = read(&WHOLE[..end]).faults();
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].contains("ends "), "{faults:?}");
        }
        let within = read("{\"begin\":\"a\"}\r\n{\"text\":\"x\"}\r").faults();
        assert_eq!(within, ["the transcript of the machine ends within a"]);
        assert_eq!(Transcript::default().faults().len(), 1);
    }

    #[test]
    fn frames_out_of_order_are_faults() {
        let edits = [
            (r#""name":"a""#, r#""name":"b""#),
            (r#""lines":3"#, r#""lines":2"#),
            (r#""name":"m.md""#, r#""name":"n.md""#),
            (r#"{"done":2}"#, r#"{"done":1}"#),
            (r#"{"done":2}"#, "{\"done\":2}\n{\"begin\":\"c\"}"),
            ("{\"begin\":\"b\"}\n", ""),
            (r#"{"text":"running 1 test"}"#, "[ 12.3] Kernel panic"),
            (r#"{"begin":"b"}"#, "{\"fault\":\"no /bin/b\"}\n{\"begin\":\"b\"}"),
        ];
        for (from, to) in edits {
            assert!(WHOLE.contains(from), "{from}");
            let faults = read(&WHOLE.replacen(from, to, 1)).faults();
            assert!(!faults.is_empty(), "{from} -> {to}");
        }
    }
}
