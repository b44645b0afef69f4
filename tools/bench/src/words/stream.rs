//! Byte streams: pipes, and a Unix stream socket that the client connects to by path.
//!
//! | byte | request |
//! |---|---|
//! | 0 | operation |
//! | 1 to 8 | length of the text, little-endian |
//! | from 9 | the text |
//!
//! The reply is an encoded answer. The server has one buffer that it uses again. The client of pipes has
//! one too. The client of a socket hands the file to the kernel (sendfile(2)): it copies nothing itself,
//! as a ring that a file is read into copies nothing besides.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::sendfile;
use rustix::io::Errno;

use super::count::{answer, op_code, op_from};
use super::{Text, cases, contained, drive, fill, read_into};
use crate::calls::pipe::pipes;
use crate::calls::uds_epoll::tune;
use crate::case::{Op, Wait};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::text::{ANSWER_BYTES, Answer};

/// A Unix stream socket.
pub const UDS: Contender = Contender::new(
    Kind::Other,
    "uds",
    "a Unix stream socket; the client hands the file to the kernel with sendfile(2)",
    || [cases(Some(Wait::Block)), contained(Some(Wait::Block))].concat(),
    call_socket,
)
.served(serve_socket);

/// Two pipes, as large as the kernel allows without privileges.
pub const PIPE: Contender = Contender::new(
    Kind::Other,
    "pipe",
    "two pipes, one each way",
    || cases(Some(Wait::Block)),
    call_pipes,
)
.opened(pipes)
.served(|seat| {
    let (from, to) = (File::from(seat.take(0)?), File::from(seat.take(3)?));
    seat.ready();
    serve(from, to)
});

const SOCKET: &str = "socket";

/// Bytes before the text of a request.
const HEAD: usize = 9;

fn serve_socket(seat: &mut Seat) -> Result<()> {
    let path = seat.sockets().join(SOCKET);
    let listener = UnixListener::bind(&path)?;
    // The user of another container is another one.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    seat.ready();
    let (stream, _) = listener.accept()?;
    tune(&stream)?;
    serve(&stream, &stream)
}

fn call_socket(seat: &mut Seat) -> Result<Figures> {
    let stream = seat.admitted(|seat| Ok(UnixStream::connect(seat.sockets().join(SOCKET))?))?;
    tune(&stream)?;
    drive(seat, |text, op| ask_by_file(&stream, text, op))
}

fn call_pipes(seat: &mut Seat) -> Result<Figures> {
    let (mut to, mut from) = (File::from(seat.take(1)?), File::from(seat.take(2)?));
    let mut buffer = Vec::new();
    drive(seat, |text, op| {
        read_into(&text.path, text.bytes, &mut buffer)?;
        write_both(&mut to, &head(op, text), &buffer)?;
        reply(&mut from)
    })
}

/// Sends the text and returns the answer.
fn ask_by_file(mut stream: &UnixStream, text: &Text, op: Op) -> Result<Answer> {
    let file = File::open(&text.path)?;
    stream.write_all(&head(op, text))?;
    let mut left = text.bytes;
    while left > 0 {
        match sendfile(stream, &file, None, usize::try_from(left)?) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(sent) => left -= sent as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    reply(&mut stream)
}

/// What a request begins with.
fn head(op: Op, text: &Text) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = op_code(op);
    head[1..].copy_from_slice(&text.bytes.to_le_bytes());
    head
}

/// Reads an answer.
fn reply(from: &mut impl Read) -> Result<Answer> {
    let mut reply = [0; ANSWER_BYTES];
    from.read_exact(&mut reply)?;
    Answer::decode(&reply)
}

/// Answers requests until the client has gone.
fn serve(mut from: impl Read + AsFd, mut to: impl Write) -> Result<()> {
    let mut buffer = Vec::new();
    loop {
        let mut head = [0; HEAD];
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let [code, len @ ..] = head;
        fill(&from, usize::try_from(u64::from_le_bytes(len))?, &mut buffer)?;
        to.write_all(&answer(op_from(code)?, &buffer).encode())?;
    }
}

/// Writes two slices in as few system calls as the kernel allows.
fn write_both(to: &mut impl Write, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(head), IoSlice::new(body)];
    let mut left = &mut slices[..];
    while !left.is_empty() {
        match to.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::generate::generate;

    #[test]
    fn a_file_arrives_whole_or_fails() {
        let dir = tempfile::tempdir().expect("a directory");
        let (near, far) = UnixStream::pair().expect("a pair");
        let server = std::thread::spawn(move || serve(&far, &far));
        for words in [1, 30_000, 300_000] {
            let text = generate(&dir.path().join("text"), words, 1, |_| true).expect("written");
            for op in [Op::Total, Op::Counts] {
                assert_eq!(ask_by_file(&near, &text, op).expect("an answer"), text.expected(op));
            }
        }
        let mut text = generate(&dir.path().join("text"), 9, 1, |_| true).expect("written");
        text.bytes += 1;
        assert!(ask_by_file(&near, &text, Op::Total).is_err(), "a file that ends early");
        drop(near);
        assert!(server.join().expect("no panic").is_err(), "a text that ends early");
    }
}
