//! The gRPC server and client as processes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// A server that is stopped at the end of the test.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(dir: &Path) -> Self {
        let socket = dir.join("wordcount.sock");
        let child = Command::new(env!("CARGO_BIN_EXE_grpc-server"))
            .arg(format!("unix:{}", socket.display()))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self { child, socket };
        let start = Instant::now();
        while !server.socket.exists() {
            assert_eq!(server.child.try_wait().unwrap(), None, "the server ended");
            assert!(start.elapsed() < Duration::from_secs(30), "the server does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn uri(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    fn stop(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        assert!(self.child.wait().unwrap().success());
        assert!(!self.socket.exists(), "the server left its socket behind");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_grpc-client")).args(args).output().unwrap()
}

fn error(args: &[&str]) -> String {
    let output = client(args);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn answers_and_times_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    let text = dir.path().join("text");
    fs::write(&text, "the wall\tthe\n  house").unwrap();
    let uri = server.uri();

    let output = client(&["--text", text.to_str().unwrap(), "--calls", "20", &uri, &uri]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 5, "{printed}");
    assert_eq!(lines[0], "total 4 words, 3 distinct; most frequent: the 2, house 1, wall 1");
    assert_eq!(lines[1], "20 calls of Total with 20 bytes each:");
    assert_eq!(
        lines[2].split_whitespace().collect::<Vec<_>>(),
        ["endpoint", "p50", "p99", "ratio"]
    );
    assert!(lines[3].starts_with(&uri) && lines[3].ends_with(" 1.00"), "{printed}");
    assert!(lines[4].starts_with(&uri), "{printed}");

    let output = client(&["--calls", "1", &uri]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("total 332 words, "));
    server.stop(Signal::TERM);
}

#[test]
fn texts_longer_than_the_usual_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    // Both the request and, with distinct words, the reply exceed tonic's usual 4 MiB.
    let text = dir.path().join("long");
    fs::write(&text, (0..50_000).map(|i| format!("{i:0100} ")).collect::<String>()).unwrap();
    let output = client(&["--text", text.to_str().unwrap(), "--calls", "1", &server.uri()]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("total 50000 words, 50000 distinct"), "{printed}");
    server.stop(Signal::INT);
}

#[test]
fn errors_name_the_thing() {
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("unix://{}/none", dir.path().display());
    let message = error(&[&uri]);
    assert!(message.starts_with(&format!("error: {uri}: ")), "{message}");
    assert!(message.contains("No such file or directory"), "{message}");

    let message = error(&["--text", "no/such/text", &uri]);
    assert!(message.starts_with("error: cannot read the text no/such/text: "), "{message}");

    assert!(error(&["not a uri"]).starts_with("error: not a uri: "));
    assert!(error(&["--calls", "0", &uri]).contains("--calls"));
    assert!(error(&[]).contains("<URI>"));
}

#[test]
fn the_server_says_where_it_cannot_serve() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_grpc-server")).arg("unix:/no/such/dir/s").output();
    let output = output.unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("error: cannot serve at `unix:/no/such/dir/s`: "), "{message}");
}
