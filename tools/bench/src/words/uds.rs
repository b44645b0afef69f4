//! A Unix stream socket that the client connects to by path. The client hands the file to the kernel
//! (sendfile(2)): it copies nothing itself, as a ring that a file is read into copies nothing besides.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::sendfile;
use rustix::io::Errno;

use super::stream::{head, reply, serve};
use super::{Text, cases, drive};
use crate::calls::uds_epoll::tune;
use crate::case::{Case, Op, Wait};
use crate::contender::Contender;
use crate::error::Result;
use crate::seat::Seat;
use crate::text::Answer;

/// The contender.
#[derive(Debug)]
pub struct Uds;

const SOCKET: &str = "socket";

impl Contender for Uds {
    fn name(&self) -> &'static str {
        "uds"
    }

    fn cases(&self, sizes: &[u64]) -> Vec<Case> {
        cases(sizes, Some(Wait::Block))
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        let listener = UnixListener::bind(seat.dir().join(SOCKET))?;
        seat.ready();
        let (stream, _) = listener.accept()?;
        tune(&stream)?;
        serve(&stream, &stream)
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let path = seat.dir().join(SOCKET);
        let stream = seat.admitted(|| Ok(UnixStream::connect(path)?))?;
        tune(&stream)?;
        drive(seat, |text, op| ask(&stream, text, op))
    }
}

/// Sends the text and returns the answer.
fn ask(mut stream: &UnixStream, text: &Text, op: Op) -> Result<Answer> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::generate::generate;

    #[test]
    fn the_file_arrives_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let (near, far) = UnixStream::pair().expect("a pair");
        let server = std::thread::spawn(move || serve(&far, &far));
        for words in [1, 30_000, 300_000] {
            let text = generate(&dir.path().join("text"), words, 1, |_| true).expect("written");
            for op in [Op::Total, Op::Counts] {
                assert_eq!(ask(&near, &text, op).expect("an answer"), text.expected(op));
            }
        }
        let mut text = generate(&dir.path().join("text"), 9, 1, |_| true).expect("written");
        text.bytes += 1;
        assert!(ask(&near, &text, Op::Total).is_err(), "a file that ends early");
        drop(near);
        assert!(server.join().expect("no panic").is_err(), "a text that ends early");
    }
}
