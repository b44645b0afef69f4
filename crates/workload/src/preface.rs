//! The challenge over HTTP/2, which needs nothing of a client but HTTP/2 (RFC 9113).
//!
//! ```text
//! server   SETTINGS (none), PING (nonce)
//! client   its preface, SETTINGS, SETTINGS (ack), PING (ack, nonce)      what else it sends is kept
//! ```
//!
//! Then the HTTP/2 server begins, and finds the stream as if nothing had been: it reads the preface and what
//! was kept, without the two answers, and sends SETTINGS of its own, which may come at any time
//! (section 6.5).
//! A client answers both frames on its own and before it is told of any call, so nothing waits for a program.
//! Its limit of bytes is the windows that a client may use before it knows another one.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What a client begins with (section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of the head of a frame (section 4.1): length, kind, flags, stream.
const HEAD: usize = 9;
/// The most bytes of a frame before other settings are agreed on (section 6.5.2).
const LONGEST: usize = 16 << 10;
/// The most bytes that are kept: a connection's first window (section 6.9.2), and heads of calls.
const KEPT: usize = 128 << 10;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;

/// Bytes of a nonce.
pub(crate) const NONCE: usize = 8;

fn wrong(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Challenges who is at the other end, and waits for the answer. What is to be read first from then on.
pub(crate) async fn challenge<S>(io: &mut S, nonce: [u8; NONCE]) -> io::Result<Bytes>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut asked = vec![0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
    asked.extend_from_slice(&[0, 0, NONCE as u8, PING, 0, 0, 0, 0, 0]);
    asked.extend_from_slice(&nonce);
    io.write_all(&asked).await?;
    let (mut come, mut kept) = (BytesMut::with_capacity(1024), BytesMut::new());
    let (mut settings, mut ping) = (false, false);
    loop {
        while let Some(frame) = take(&mut come, kept.is_empty())? {
            let answers = frame.len() >= HEAD && !kept.is_empty() && frame[4] & ACK != 0;
            match frame.get(3) {
                Some(&SETTINGS) if answers && !settings => settings = true,
                Some(&PING) if answers && !ping && frame[HEAD..] == nonce => ping = true,
                _ => kept.extend_from_slice(&frame),
            }
        }
        if settings && ping {
            kept.extend_from_slice(&come);
            return Ok(kept.freeze());
        }
        if kept.len() + come.len() > KEPT {
            return Err(wrong("too much before an answer to SETTINGS and PING"));
        }
        if io.read_buf(&mut come).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The preface, or the next frame, if it is there whole.
fn take(come: &mut BytesMut, first: bool) -> io::Result<Option<BytesMut>> {
    if first {
        let len = come.len().min(PREFACE.len());
        if come[..len] != PREFACE[..len] {
            return Err(wrong("this is no HTTP/2"));
        }
        return Ok((len == PREFACE.len()).then(|| come.split_to(len)));
    }
    let Some(&[a, b, c]) = come.first_chunk() else { return Ok(None) };
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    if len > LONGEST {
        return Err(wrong("a frame that is too long"));
    }
    Ok((come.len() >= HEAD + len).then(|| come.split_to(HEAD + len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; NONCE] = *b"nonce-01";
    const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
    const SETTINGS_ACK: &[u8] = &[0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];

    fn ping(flags: u8, nonce: [u8; NONCE]) -> Vec<u8> {
        [&[0, 0, 8, PING, flags, 0, 0, 0, 0][..], &nonce].concat()
    }

    /// What is kept of what a client sends in pieces of this size, and what it was sent.
    async fn kept(sent: &[u8], piece: usize) -> io::Result<(Bytes, Vec<u8>)> {
        let (mut client, mut server) = tokio::io::duplex(1 << 20);
        for piece in sent.chunks(piece) {
            client.write_all(piece).await.unwrap();
        }
        client.shutdown().await.unwrap();
        let kept = challenge(&mut server, OWN).await?;
        drop(server);
        let mut told = Vec::new();
        client.read_to_end(&mut told).await.unwrap();
        Ok((kept, told))
    }

    #[tokio::test]
    async fn the_answers_are_taken_out_in_either_order() {
        let (answer, own) = (ping(ACK, OWN), ping(0, *b"theirs!!"));
        let data = [&[0, 0, 3, 0, 0, 0, 0, 0, 1][..], b"abc"].concat();
        for answers in [[SETTINGS_ACK, &answer], [&answer, SETTINGS_ACK]] {
            let sent = [
                PREFACE,
                EMPTY_SETTINGS,
                &own,
                answers[0],
                &data,
                answers[1],
                SETTINGS_ACK,
                &data[..5],
            ]
            .concat();
            let rest = [PREFACE, EMPTY_SETTINGS, &own, &data, SETTINGS_ACK, &data[..5]].concat();
            for piece in [1, 7, 1 << 16] {
                let (kept, told) = kept(&sent, piece).await.unwrap();
                assert_eq!(kept, rest, "{piece}");
                assert_eq!(told, [EMPTY_SETTINGS, &ping(0, OWN)].concat());
            }
        }
    }

    #[tokio::test]
    async fn no_answer_is_no_proof() {
        let other = ping(ACK, *b"nonce-02");
        let begin = [PREFACE, EMPTY_SETTINGS].concat();
        let (own, long) = (ping(0, OWN), [0xff; HEAD]);
        let (much, data) =
            ([&[0, 64, 0, 0, 0, 0, 0, 0, 1][..], &[0; LONGEST]].concat(), KEPT / LONGEST + 1);
        for (sent, why) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), io::ErrorKind::InvalidData),
            (vec![], io::ErrorKind::UnexpectedEof),
            (begin.clone(), io::ErrorKind::UnexpectedEof),
            ([&begin, SETTINGS_ACK].concat(), io::ErrorKind::UnexpectedEof),
            ([&begin, SETTINGS_ACK, &other].concat(), io::ErrorKind::UnexpectedEof),
            ([&begin, SETTINGS_ACK, &own].concat(), io::ErrorKind::UnexpectedEof),
            ([&begin, &ping(ACK, OWN)[..]].concat(), io::ErrorKind::UnexpectedEof),
            ([&begin, &long[..]].concat(), io::ErrorKind::InvalidData),
            ([begin.clone(), much.repeat(data)].concat(), io::ErrorKind::InvalidData),
        ] {
            let refused = kept(&sent, 1 << 16).await.unwrap_err();
            assert_eq!(refused.kind(), why, "{refused} {:?}", &sent[..sent.len().min(64)]);
        }
    }
}
