//! What `partywall coordinator --metrics` shows to Prometheus, at a path and at a port.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use partywall::{Endpoint, Routes, Server};
use partywall_interop::proto::Empty;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::service::{Handle, test_service_with};

const POLICY: &str = "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n";

/// How many descriptors a coordinator may have.
const DESCRIPTORS: usize = 64;

/// A coordinator, which is killed with the value.
struct Coordinator(Child);

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Coordinator {
    /// One in this directory that listens.
    fn start(dir: &Path, metrics: &str) -> Self {
        std::fs::write(dir.join("policy.toml"), POLICY).unwrap();
        let limited = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &limited, env!("CARGO_BIN_EXE_partywall")])
            .args(["coordinator", "--policy", "policy.toml", "--socket", "c.sock"])
            .args(["--metrics", metrics])
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.join("said")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("coordinator at "), "{line}");
        Self(child)
    }
}

/// The answer to a request for metrics.
fn ask(mut to: impl Read + Write) -> String {
    to.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    to.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

#[tokio::test]
async fn metrics_of_a_coordinator_tell_of_links_denials_and_accounts() {
    let dir = tempfile::tempdir().unwrap();
    let _coordinator = Coordinator::start(dir.path(), "unix:m.sock");
    let socket = dir.path().join("c.sock");
    let at = || Endpoint::from_static("partywall:///test").coordinator(&socket);
    let routes = Routes::default().add_service(test_service_with(Handle::default()));
    let bound =
        Server::builder().coordinator(&socket).add_routes(routes.clone()).bind("test").await;
    tokio::spawn(bound.unwrap().serve().into_future());
    let channel = at().connect().await.unwrap();
    TestServiceClient::new(channel.clone()).empty_call(Empty {}).await.unwrap();
    let denied = Server::builder().coordinator(&socket).add_routes(routes).bind("other").await;
    denied.unwrap_err();
    let user = format!("account=\"user {}\"", rustix::process::geteuid().as_raw());
    let expected = [
        "partywall_coordinator_events_total{event=\"admitted\",what=\"\"} 1".to_owned(),
        "partywall_coordinator_events_total{event=\"registered\",what=\"\"} 1".to_owned(),
        "partywall_coordinator_events_total{event=\"introduced\",what=\"link\"} 1".to_owned(),
        "partywall_coordinator_events_total{event=\"denied\",what=\"register\"} 1".to_owned(),
        "partywall_coordinator_links_made_total 1".to_owned(),
        "partywall_coordinator_introduction_duration_seconds_count 1".to_owned(),
        "partywall_coordinator_used{resource=\"links\"} 1".to_owned(),
        "partywall_coordinator_used{resource=\"connections\"} 1".to_owned(),
        format!("partywall_coordinator_account_used{{{user},resource=\"served\"}} 1"),
        format!("partywall_coordinator_account_limit{{{user},resource=\"links\"}} 4096"),
    ];
    let start = Instant::now();
    loop {
        let text = ask(UnixStream::connect(dir.path().join("m.sock")).unwrap());
        let missing = expected.iter().find(|line| !text.lines().any(|found| found == **line));
        let Some(missing) = missing else { break };
        // It is told once a second what accounts have.
        assert!(start.elapsed() < Duration::from_secs(10), "no `{missing}` in\n{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn metrics_are_served_at_a_port_and_a_used_port_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("policy.toml"), POLICY).unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_partywall"))
        .args(["coordinator", "--policy", "policy.toml", "--socket", "c.sock"])
        .args(["--metrics", &format!("http://{at}")])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && said.contains(&format!("--metrics http://{at}: ")),
        "{said}"
    );
    drop(taken);
    let _coordinator = Coordinator::start(dir.path(), &format!("http://{at}"));
    let text = ask(std::net::TcpStream::connect(at).unwrap());
    assert!(text.contains("partywall_coordinator_used{resource=\"connections\"} 0"), "{text}");
}

#[tokio::test]
async fn idle_metrics_connections_keep_no_scrape_and_no_client_out() {
    let dir = tempfile::tempdir().unwrap();
    let _coordinator = Coordinator::start(dir.path(), "unix:m.sock");
    let connect = || UnixStream::connect(dir.path().join("m.sock")).unwrap();
    let mut idle: Vec<_> = (0..4 * DESCRIPTORS).map(|_| connect()).collect();
    // It was ended for a later one.
    idle[0].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0);
    let text = ask(connect());
    assert!(text.contains("partywall_coordinator_used{resource=\"connections\"} "), "{text}");
    let socket = dir.path().join("c.sock");
    let routes = Routes::default().add_service(test_service_with(Handle::default()));
    let bound = Server::builder().coordinator(&socket).add_routes(routes).bind("test").await;
    assert!(bound.is_ok(), "{:?}", bound.err());
    assert_eq!(std::fs::read_to_string(dir.path().join("said")).unwrap(), "");
}

#[test]
fn path_of_metrics_has_its_mode_and_is_removed_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = Coordinator::start(dir.path(), "unix:m.sock");
    let path = dir.path().join("m.sock");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o660);
    let pid = rustix::process::Pid::from_child(&coordinator.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(coordinator.0.wait().unwrap().success());
    assert!(!path.exists());
}
