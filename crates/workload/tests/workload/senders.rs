//! Whose bytes are taken: those of the process that connected, and that is still what it was.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{Rig, SOON, principal};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const SETTINGS_ACK: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];
const PING: [u8; 9] = [0, 0, 8, 6, 0, 0, 0, 0, 0];

fn pong(nonce: &[u8]) -> Vec<u8> {
    [&SETTINGS_ACK[..], &[0, 0, 8, 6, 1, 0, 0, 0, 0], nonce].concat()
}

/// Begins HTTP/2; the nonce.
pub fn begin(stream: &mut UnixStream) -> [u8; 8] {
    stream.write_all(&[PREFACE, &SETTINGS].concat()).unwrap();
    let mut asked = [0; 26];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!((&asked[..9], &asked[9..18]), (&SETTINGS[..], &PING[..]));
    asked[18..].try_into().unwrap()
}

/// The server has begun: its own SETTINGS have come.
fn admitted(stream: &mut UnixStream) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert!(head[2] > 0 && head[3..5] == [4, 0], "{head:?}");
    let mut settings = vec![0; head[2].into()];
    stream.read_exact(&mut settings).unwrap();
}

/// What comes until the end.
fn rest(stream: &mut UnixStream) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
    }
    rest
}

/// Has another process send these bytes.
fn another_sends(stream: &UnixStream, bytes: &[u8]) {
    let out = Stdio::from(OwnedFd::from(stream.try_clone().unwrap()));
    let mut child =
        Command::new("cat").stdin(Stdio::piped()).stdout(out).spawn().expect("cat is there");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_another_process_sends_is_not_taken() {
    let rig = Rig::new(&principal("me"));
    let mut own = rig.stream();
    let nonce = begin(&mut own);
    own.write_all(&pong(&nonce)).unwrap();
    admitted(&mut own);

    let mut proven_by_another = rig.stream();
    let nonce = begin(&mut proven_by_another);
    another_sends(&proven_by_another, &pong(&nonce));
    assert_eq!(rest(&mut proven_by_another), b"", "it was never admitted");

    // The same bytes are answered when this process sends them.
    let ping = [&PING[..], b"12345678"].concat();
    own.write_all(&[&SETTINGS_ACK[..], &ping].concat()).unwrap();
    let mut answer = [0; 9 + 17];
    own.read_exact(&mut answer[..9]).unwrap();
    while answer[3] != 6 {
        let skipped = usize::from(answer[2]);
        own.read_exact(&mut answer[9..][..skipped]).unwrap();
        own.read_exact(&mut answer[..9]).unwrap();
    }
    another_sends(&own, &ping);
    let after = rest(&mut own);
    assert!(!after.windows(8).skip(8).any(|part| part == b"12345678"), "{after:?}");
}

#[test]
fn an_answer_to_another_challenge_is_none() {
    let rig = Rig::new(&principal("me"));
    let (mut guessed, mut silent) = (rig.stream(), rig.stream());
    // From before the nonce is known.
    let answer = pong(b"guessed!");
    guessed.write_all(&[PREFACE, &SETTINGS, &answer].concat()).unwrap();
    begin(&mut silent);
    let start = Instant::now();
    let told = rest(&mut guessed);
    assert_eq!(told.len(), 26, "the challenge alone: {told:?}");
    assert_eq!(rest(&mut silent), b"");
    let took = start.elapsed();
    assert!(took > Duration::from_secs(3) && took < SOON, "{took:?}");
}

const BECOMES: &str = r#"
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
got = b""
while len(got) < 26:
    got += s.recv(64)
answer = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0, 0, 0, 8, 6, 1, 0, 0, 0, 0]) + got[18:26]
if sys.argv[2] == "stays":
    s.sendall(answer)
    print(len(s.recv(4096)))
else:
    os.dup2(s.fileno(), 9, inheritable=True)
    octal = "".join("\\%03o" % byte for byte in answer)
    os.execvp("bash", ["bash", "-c", "printf '" + octal + "' >&9; exec cat <&9"])
"#;

/// It is the same process, and says the nonce; but the facts of before are not those of now.
#[test]
fn a_process_that_becomes_another_program_is_not_admitted() {
    let mut policy = principal("me");
    // So that programs are looked at.
    let zeros = "0".repeat(64);
    write!(policy, "[principal.p]\nprogram = 'sha256:{zeros}'\nevidence = 'observed'\n").unwrap();
    let rig = Rig::new(&policy);
    let says = |what: &str| {
        let mut python = Command::new("python3");
        let output = python.args(["-c", BECOMES]).arg(&rig.socket).arg(what).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{:?}", output.status);
        output.stdout
    };
    let told: usize = String::from_utf8(says("stays")).unwrap().trim().parse().unwrap();
    assert!(told > 9, "the server's own SETTINGS");
    assert_eq!(says("execs"), b"", "nothing comes after the challenge");
}
