//! The length-prefixed exchange that pipes and sockets share.
//!
//! | byte | request |
//! |---|---|
//! | 0 | operation |
//! | 1 to 8 | length of the text, little-endian |
//! | from 9 | the text |
//!
//! The reply is an encoded answer. Each side hands the kernel whole messages, and has one buffer
//! that it uses again.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;

use super::count::{answer, op_code, op_from};
use super::{Text, fill, read_into};
use crate::case::Op;
use crate::error::Result;
use crate::text::{ANSWER_BYTES, Answer};

/// Bytes before the text of a request.
pub const HEAD: usize = 9;

/// The client's half.
#[derive(Debug)]
pub struct Client<R, W> {
    from: R,
    to: W,
    buffer: Vec<u8>,
}

impl<R: Read, W: Write> Client<R, W> {
    /// A client on a connected stream.
    pub fn new(from: R, to: W) -> Self {
        Self { from, to, buffer: Vec::new() }
    }

    /// Reads the text, sends it, and returns the answer.
    ///
    /// # Errors
    /// Those of the file and of the stream.
    pub fn ask(&mut self, text: &Text, op: Op) -> Result<Answer> {
        read_into(&text.path, text.bytes, &mut self.buffer)?;
        write_both(&mut self.to, &head(op, text), &self.buffer)?;
        reply(&mut self.from)
    }
}

/// What a request begins with.
pub fn head(op: Op, text: &Text) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = op_code(op);
    head[1..].copy_from_slice(&text.bytes.to_le_bytes());
    head
}

/// Reads an answer.
///
/// # Errors
/// Those of the stream.
pub fn reply(from: &mut impl Read) -> Result<Answer> {
    let mut reply = [0; ANSWER_BYTES];
    from.read_exact(&mut reply)?;
    Ok(Answer::decode(&reply))
}

/// Answers requests until the client has gone.
///
/// # Errors
/// Those of the stream, and a request that makes no sense.
pub fn serve(mut from: impl Read + AsFd, mut to: impl Write) -> Result<()> {
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
    use std::os::unix::net::UnixStream;

    #[test]
    fn answers_come_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("text");
        let text = super::super::generate::generate(&path, 30_000, 1, |_| true).expect("written");
        let (near, far) = UnixStream::pair().expect("a pair");
        let server = std::thread::spawn(move || serve(&far, &far));
        let mut client = Client::new(&near, &near);
        for op in [Op::Total, Op::Counts, Op::Total] {
            assert_eq!(client.ask(&text, op).expect("an answer"), text.expected(op));
        }
        drop(client);
        drop(near);
        server.join().expect("no panic").expect("a clean end");
    }
}
