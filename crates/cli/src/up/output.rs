//! What services say, line by line, each with the name of its service.
//!
//! Each service has a pipe for its standard output and one for its errors. One thread reads all of
//! them and writes whole lines, so that no line runs into another one:
//!
//! ```text
//! service  --pipe-->  thread: collects a line, puts the name before it  -->  up's own output, errors
//! ```
//!
//! A line that ends with its pipe, or with the run, is written as if it had ended; one over 64 KiB is
//! written in pieces. The thread reads on when nothing can be written any more, so that no service
//! waits for that; `up` is told, and ends. Output that nobody takes (a pager, Ctrl-S) makes services
//! wait at a full pipe, and never `up` itself.
//!
//! A terminal obeys what is written to it: it would move its cursor to another service's lines, wipe them
//! out, or take a title or an answer from the service. On a terminal, control characters are shown as cat(1)
//! shows them with `-v` (`^G`); tabulators and colours (SGR, ECMA-48, section 8.3.117) are left, and
//! a colour ends with its line. A return of the carriage begins a new line. Files and pipes have every byte
//! as it was written.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use tokio::sync::oneshot;

/// Longest piece of a line.
const LONGEST: usize = 64 * 1024;
/// How often all pipes are read for what has been said until now: a pipe holds 64 KiB, or what its
/// service has made of that, at most a mebibyte. Who goes on talking has no end.
const ROUNDS: u32 = 32;
/// Colours of names, one service after the other: cyan, yellow, green, magenta, blue.
const COLOURS: [&str; 5] = ["36", "33", "32", "35", "34"];

/// Where lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Output,
    Errors,
}

enum Order {
    Read(Source),
    /// To be answered when all that has been said is written, unfinished lines as well.
    CatchUp(oneshot::Sender<()>),
}

/// One pipe.
struct Source {
    pipe: io::PipeReader,
    to: To,
    lines: Lines,
}

/// The thread that reads what services say.
pub(super) struct Output {
    orders: Sender<Order>,
    bell: OwnedFd,
    /// How long the longest name is.
    width: usize,
    /// Which of standard output and errors are terminals.
    terminals: [bool; 2],
    coloured: bool,
    services: std::cell::Cell<usize>,
}

impl Output {
    /// Starts the thread. What cannot be written to standard output is told once.
    pub(super) fn start<'n>(
        names: impl Iterator<Item = &'n str>,
    ) -> io::Result<(Self, oneshot::Receiver<io::Error>)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (orders, taken) = mpsc::channel();
        let (unsaid, failed) = oneshot::channel();
        let heard = bell.try_clone()?;
        let reader = Reader { heard, orders: taken, sources: Vec::new(), unsaid: Some(unsaid) };
        std::thread::Builder::new().name("output".into()).spawn(move || reader.run())?;
        let coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let terminals = [io::stdout().is_terminal(), io::stderr().is_terminal()];
        let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
        let services = std::cell::Cell::new(0);
        Ok((Self { orders, bell, width, terminals, coloured, services }, failed))
    }

    /// The number of a service, for its colour.
    pub(super) fn number(&self) -> usize {
        self.services.replace(self.services.get() + 1)
    }

    /// Standard output and standard error for a service.
    pub(super) fn of(&self, name: &str, number: usize) -> io::Result<[OwnedFd; 2]> {
        let pipe = |to: To, terminal: bool| -> io::Result<OwnedFd> {
            let (pipe, theirs) = io::pipe()?;
            let colour = (terminal && self.coloured).then(|| COLOURS[number % COLOURS.len()]);
            let lines = Lines::new(label(name, self.width, colour), terminal);
            self.give(Order::Read(Source { pipe, to, lines }));
            Ok(theirs.into())
        };
        Ok([pipe(To::Output, self.terminals[0])?, pipe(To::Errors, self.terminals[1])?])
    }

    /// Waits until all that has been said is written, lines without an end as well.
    pub(super) async fn catch_up(&self) {
        let (answer, done) = oneshot::channel();
        self.give(Order::CatchUp(answer));
        // A thread that is gone has nothing more to write.
        let _gone = done.await;
    }

    fn give(&self, order: Order) {
        let _gone = self.orders.send(order);
        let _rung = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// `name  | `, all of one width.
fn label(name: &str, width: usize, colour: Option<&str>) -> String {
    match colour {
        Some(colour) => format!("\x1b[{colour}m{name:<width$}  |\x1b[0m "),
        None => format!("{name:<width$}  | "),
    }
}

/// Who waits until the pipes are empty.
struct Waiting {
    answer: oneshot::Sender<()>,
    rounds: u32,
}

struct Reader {
    heard: OwnedFd,
    orders: Receiver<Order>,
    sources: Vec<Source>,
    unsaid: Option<oneshot::Sender<io::Error>>,
}

impl Reader {
    fn run(mut self) {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut buffer = vec![0; LONGEST];
        while let Some(ready) = self.wait(!waiting.is_empty()) {
            let quiet = !ready.iter().any(|r| *r);
            for at in (0..ready.len()).rev().filter(|at| ready[*at]) {
                self.read(at, &mut buffer);
            }
            for at in (0..waiting.len()).rev() {
                waiting[at].rounds -= 1;
                if quiet || waiting[at].rounds == 0 {
                    let done = waiting.remove(at);
                    self.finish_lines();
                    let _nobody_waits = done.answer.send(());
                }
            }
            loop {
                match self.orders.try_recv() {
                    Ok(Order::Read(source)) => self.sources.push(source),
                    Ok(Order::CatchUp(answer)) => {
                        waiting.push(Waiting { answer, rounds: ROUNDS });
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Which sources have something; none when that cannot be found out any more.
    fn wait(&self, at_once: bool) -> Option<Vec<bool>> {
        let mut fds = vec![PollFd::new(&self.heard, PollFlags::IN)];
        fds.extend(self.sources.iter().map(|s| PollFd::new(&s.pipe, PollFlags::IN)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let within = at_once.then_some(&zero);
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, within)).ok()?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            rustix::io::read(&self.heard, &mut [0; 8]).ok()?;
        }
        Some(ready[1..].to_vec())
    }

    fn read(&mut self, at: usize, buffer: &mut [u8]) {
        let source = &mut self.sources[at];
        let mut out = Vec::new();
        let (to, over) = match source.pipe.read(buffer) {
            Ok(0) => {
                source.lines.finish(&mut out);
                (source.to, true)
            }
            Ok(n) => {
                source.lines.take(&buffer[..n], &mut out);
                (source.to, false)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return,
            Err(_) => (source.to, true),
        };
        if over {
            self.sources.remove(at);
        }
        self.write(to, &out);
    }

    fn finish_lines(&mut self) {
        for at in 0..self.sources.len() {
            let mut out = Vec::new();
            self.sources[at].lines.finish(&mut out);
            self.write(self.sources[at].to, &out);
        }
    }

    fn write(&mut self, to: To, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        match to {
            To::Output if self.unsaid.is_some() => {
                let mut out = io::stdout().lock();
                if let Err(error) = out.write_all(lines).and_then(|()| out.flush()) {
                    let _told = self.unsaid.take().map(|unsaid| unsaid.send(error));
                }
            }
            To::Output => {}
            // Where that cannot be written, there is no place to say so.
            To::Errors => drop(io::stderr().lock().write_all(lines)),
        }
    }
}

/// Cuts what comes into lines and puts the label before each.
struct Lines {
    label: String,
    terminal: bool,
    kept: Vec<u8>,
}

impl Lines {
    fn new(label: String, terminal: bool) -> Self {
        Self { label, terminal, kept: Vec::new() }
    }

    /// Adds what came; whole lines go to `out`.
    fn take(&mut self, mut data: &[u8], out: &mut Vec<u8>) {
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            self.keep(&data[..end], out);
            self.line(self.kept.len(), out);
            data = &data[end + 1..];
        }
        self.keep(data, out);
    }

    fn keep(&mut self, data: &[u8], out: &mut Vec<u8>) {
        self.kept.extend_from_slice(data);
        while self.kept.len() > LONGEST {
            // Not in the middle of a character.
            let begins = |at: &usize| self.kept[*at] & 0b1100_0000 != 0b1000_0000;
            let cut = (LONGEST - 3..=LONGEST).rev().find(begins).unwrap_or(LONGEST);
            self.line(cut, out);
        }
    }

    /// Writes a line that has not ended.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.kept.is_empty() {
            self.line(self.kept.len(), out);
        }
    }

    fn line(&mut self, cut: usize, out: &mut Vec<u8>) {
        if self.terminal {
            let said = &self.kept[..cut];
            let said = said.strip_suffix(b"\r").unwrap_or(said);
            for part in said.split(|byte| *byte == b'\r') {
                out.extend_from_slice(self.label.as_bytes());
                visible(part, out);
                out.push(b'\n');
            }
            self.kept.drain(..cut);
        } else {
            out.extend_from_slice(self.label.as_bytes());
            out.extend(self.kept.drain(..cut));
            out.push(b'\n');
        }
    }
}

/// Writes a line for a terminal, which is to show it and to do nothing else.
fn visible(mut line: &[u8], out: &mut Vec<u8>) {
    let mut coloured = false;
    while let [first, rest @ ..] = line {
        line = rest;
        match (*first, rest) {
            (b'\x1b', _) if let Some(end) = colour(rest) => {
                out.push(b'\x1b');
                out.extend_from_slice(&rest[..end]);
                line = &rest[end..];
                coloured = true;
            }
            (control @ (0..=8 | 10..=31 | 127), _) => out.extend([b'^', control ^ 0x40]),
            // U+0080 to U+009F.
            (0xc2, [control @ 0x80..0xa0, after @ ..]) => {
                out.extend_from_slice(b"M-^");
                out.push(control ^ 0xc0);
                line = after;
            }
            (byte @ 0xc2..=0xf4, _) if let Some(more) = continued(byte, rest) => {
                out.push(byte);
                out.extend_from_slice(&rest[..more]);
                line = &rest[more..];
            }
            // The same to a terminal that goes by bytes.
            (control @ 0x80..0xa0, _) => {
                out.extend_from_slice(b"M-^");
                out.push(control ^ 0xc0);
            }
            (byte, _) => out.push(byte),
        }
    }
    if coloured {
        out.extend_from_slice(b"\x1b[0m");
    }
}

/// How many bytes go with this one, where a character of UTF-8 begins.
fn continued(first: u8, rest: &[u8]) -> Option<usize> {
    let more = match first {
        0xc2..0xe0 => 1,
        0xe0..0xf0 => 2,
        _ => 3,
    };
    let character = [&[first], rest.get(..more)?].concat();
    std::str::from_utf8(&character).is_ok().then_some(more)
}

/// Where the colour ends that stands after an escape character, if it is one.
fn colour(after: &[u8]) -> Option<usize> {
    let parameters = after.strip_prefix(b"[")?;
    let end = parameters.iter().position(|b| !matches!(b, b'0'..=b'9' | b';' | b':'))?;
    (parameters[end] == b'm').then_some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> String {
        lines_of(pieces, false)
    }

    fn lines_of(pieces: &[&[u8]], terminal: bool) -> String {
        let mut lines = Lines::new(label("ab", 4, None), terminal);
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| lines.take(piece, &mut out));
        lines.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_line_has_the_name_however_its_pieces_come() {
        assert_eq!(
            lines(&[b"one\ntw", b"o", b"\n\nlast"]),
            "ab    | one\nab    | two\nab    | \nab    | last\n"
        );
        assert_eq!(lines(&[]), "");
        assert_eq!(lines(&[b"a\n"]), "ab    | a\n");
    }

    #[test]
    fn a_long_line_comes_in_pieces_and_whole() {
        // Of two bytes each, so that a piece could end in the middle of one.
        let long = format!("x{}", "ü".repeat(LONGEST));
        let said = lines(&[long.as_bytes(), b"\nnext\n"]);
        let pieces: Vec<&str> = said.lines().map(|l| l.strip_prefix("ab    | ").unwrap()).collect();
        assert_eq!(pieces.len(), 4, "three pieces and the next line");
        assert!(pieces.iter().all(|piece| piece.len() <= LONGEST));
        assert_eq!(pieces[..3].concat(), long);
        assert_eq!(pieces[3], "next");
    }

    /// A service could wipe out what others had said, and have the terminal answer for its user.
    #[test]
    fn a_terminal_obeys_no_service() {
        let hostile = b"\x1b[2J\x1b]0;title\x07\x1b[6n\x08a\x7f\xc2\x9b2J\tb\n";
        let shown = "ab    | ^[[2J^[]0;title^G^[[6n^Ha^?M-^[2J\tb\n";
        assert_eq!(lines_of(&[hostile], true), shown);
        // A control to a terminal that takes bytes, beside characters that have such a byte in them.
        let bytes = b"\x9b2J\xe2\x9b\x84\xc3\x9f\n";
        assert_eq!(lines_of(&[bytes], true), "ab    | M-^[2J\u{26c4}\u{df}\n");
        assert_eq!(
            lines_of(&[b"safe\roverwritten\r\nnext\r", b"\n\r\n"], true),
            "\
            ab    | safe\nab    | overwritten\nab    | next\nab    | \n"
        );
        let coloured = "\x1b[1;38:5:200mred \u{fc}\x1b[m\n\x1b[31mrest\nplain\n\x1b[31";
        assert_eq!(
            lines_of(&[coloured.as_bytes()], true),
            "\
            ab    | \x1b[1;38:5:200mred \u{fc}\x1b[m\x1b[0m\nab    | \x1b[31mrest\x1b[0m\n\
            ab    | plain\nab    | ^[[31\n"
        );
    }

    #[test]
    fn a_file_has_every_byte() {
        let all: Vec<u8> = (0..=127).filter(|byte| *byte != b'\n').collect();
        let text = lines(&[&all, b"\n"]);
        assert_eq!(text.as_bytes(), [b"ab    | ", &all[..], b"\n"].concat());
    }

    #[test]
    fn names_have_colours_on_a_terminal_only() {
        assert_eq!(label("a", 1, Some("36")), "\x1b[36ma  |\x1b[0m ");
        assert_eq!(label("a", 3, None), "a    | ");
    }
}
