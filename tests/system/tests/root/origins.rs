//! A coordinator that asks a false engine of containers.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_testkit::alone;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::Uid;

use super::containers::{Groups, admitted, id, said, start};

const LABEL: &str = "com.docker.compose";

/// Answers as an engine whose containers are of the service `shop/web`; the image of `c` brings the labels.
/// The first question about `b` goes to `held` without an answer. What it was asked goes to `asked`.
fn engine(listener: UnixListener, asked: Sender<String>, held: Sender<UnixStream>) {
    // It ends with the test's process.
    std::thread::spawn(move || {
        let mut holds = true;
        for stream in listener.incoming() {
            let (mut stream, mut text, mut byte) = (stream.unwrap(), Vec::new(), [0]);
            while !text.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                text.push(byte[0]);
            }
            let text = String::from_utf8(text).unwrap();
            let path = text.split(' ').nth(1).unwrap().to_owned();
            asked.send(path.clone()).unwrap();
            let letter = path.rsplit('/').nth(1).unwrap().chars().last().unwrap();
            if letter == 'b' && std::mem::take(&mut holds) {
                held.send(stream).unwrap();
                continue;
            }
            say(&mut stream, path.starts_with("/images/"), letter);
        }
    });
}

/// Of a container of this letter, or of its image.
fn say(to: &mut UnixStream, is_image: bool, letter: char) {
    let image = format!("sha256:{}", id(letter));
    let labels = format!(
        r#"{{"{LABEL}.project":"shop","{LABEL}.service":"web","{LABEL}.container-number":"1"}}"#
    );
    let brings = if is_image && letter != 'c' { "null" } else { &labels };
    let of = if is_image { image.clone() } else { id(letter) };
    let body = format!(r#"{{"Id":"{of}","Image":"{image}","Config":{{"Labels":{brings}}}}}"#);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    to.write_all((head + &body).as_bytes()).unwrap();
}

/// A policy that goes by what this engine says of containers in these groups.
fn policy(groups: &Groups, engine: &Path) -> Policy {
    let text = format!(
        "[engine.test]\napi = '{}'\ngroups = ['/{}/{{id}}']\n[principal.web]\ncompose = 'shop/web'\n\
         [principal.image]\nimage = 'sha256:{}'\n",
        engine.display(),
        groups.parent(),
        id('c')
    );
    Policy::parse("test", &text).unwrap()
}

#[test]
fn an_engine_is_asked_and_keeps_nobody_else_waiting() {
    let _alone = alone();
    let mut groups = Groups::new();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (asked, questions) = channel();
    let (held, silent): (_, Receiver<UnixStream>) = channel();
    engine(UnixListener::bind(at("engine.sock")).unwrap(), asked, held);
    let policy = policy(&groups, &at("engine.sock"));
    let socket = at("coordinator.sock");
    let audit = Some(fs::File::create(at("audit")).unwrap());
    let options = Options { listen: Listen::At(socket.clone()), audit, ..Options::default() };
    let coordinator = Coordinator::start_with(policy, options).unwrap();

    let mut late = start(&[], &socket);
    groups.put_everywhere(late.pid(), &id('b'));
    assert_eq!(said(&mut late, "connect"), "challenged");
    late.say("prove");
    let silence = silent.recv().unwrap();
    // While one engine's answer is awaited, others come in: another container's, and one of the host.
    for (letter, principals) in [(Some('a'), "web"), (Some('c'), "image"), (None, "")] {
        let mut other = start(&[], &socket);
        if let Some(letter) = letter {
            groups.put_everywhere(other.pid(), &id(letter));
        }
        assert_eq!(admitted(&mut other), principals, "{letter:?}");
    }
    drop(silence);
    assert_eq!(late.line(), "", "it is nobody");
    // A failure is asked again, an answer is not.
    for letter in ['b', 'b', 'a'] {
        let mut again = start(&[], &socket);
        groups.put_everywhere(again.pid(), &id(letter));
        assert_eq!(admitted(&mut again), "web");
    }
    let container = |letter| format!("/containers/{}/json", id(letter));
    let image = |letter| format!("/images/sha256:{}/json", id(letter));
    let expected = [
        container('b'),
        container('a'),
        image('a'),
        container('c'),
        image('c'),
        container('b'),
        image('b'),
    ];
    assert_eq!(questions.try_iter().collect::<Vec<_>>(), expected);

    // The log is written when the coordinator has ended.
    drop(coordinator);
    let log = fs::read_to_string(at("audit")).unwrap();
    let of = |letter| {
        let is = move |line: &&str| line.contains(&format!("\"container\":\"{}\"", id(letter)));
        log.lines().find(is).unwrap()
    };
    let why = format!(
        "\"no_origin\":\"container {} of test: {}: ",
        &id('b')[..12],
        at("engine.sock").display()
    );
    assert!(of('b').contains(&why), "{log}");
    let web = format!("\"image\":\"sha256:{}\",\"compose\":\"shop/web\"", id('a'));
    assert!(of('a').contains(&web) && !of('a').contains("no_origin"), "{log}");
    assert!(!of('c').contains("\"compose\""), "{log}");
}

/// Its path is root's, and who listens there is not.
#[test]
fn an_engine_of_another_user_is_not_believed() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, to be another user for a moment");
    let mut groups = Groups::new();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let address = SocketAddrUnix::new(at("engine.sock")).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    // The kernel remembers whose thread it was that called listen(2).
    let listens = move || {
        let other = Uid::from_raw(2001);
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        socket
    };
    let socket = std::thread::spawn(listens).join().unwrap();
    let (asked, questions) = channel();
    engine(UnixListener::from(socket), asked, channel().0);
    let policy = policy(&groups, &at("engine.sock"));
    let (at_socket, audit) = (at("coordinator.sock"), Some(fs::File::create(at("audit")).unwrap()));
    let options = Options { listen: Listen::At(at_socket.clone()), audit, ..Options::default() };
    let coordinator = Coordinator::start_with(policy, options).unwrap();
    let mut inside = start(&[], &at_socket);
    groups.put_everywhere(inside.pid(), &id('a'));
    assert_eq!(admitted(&mut inside), "");
    drop(coordinator);
    let log = fs::read_to_string(at("audit")).unwrap();
    assert!(
        log.contains("user 2001 listens there and could answer as the engine; remedy"),
        "{log}"
    );
    assert_eq!(questions.try_iter().count(), 0, "it is asked nothing");
}
