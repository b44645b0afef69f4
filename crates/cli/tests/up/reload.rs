//! A coordinator whose policy changes, with a server and callers of this process.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{Empty, SimpleRequest};
use partywall_interop::service::test_service;
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;

use super::{command, text};

const SERVICE: &str = "[service.test]\nregister = ['anyone']\n[service.test.call]\n";
const ALL: &str = "anyone = ['*']\n";
const EMPTY_CALL: &str = "anyone = ['grpc.testing.TestService/EmptyCall']\n";

/// A coordinator as a command.
struct Coordinator {
    child: Child,
    says: Mutex<BufReader<ChildStderr>>,
    dir: tempfile::TempDir,
}

impl Coordinator {
    fn start() -> Self {
        Self::start_with_log("warn")
    }

    fn start_with_log(level: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
        std::fs::write(path("policy.toml"), format!("{SERVICE}{ALL}")).unwrap();
        let (socket, policy, audit) = (path("c.sock"), path("policy.toml"), path("audit.jsonl"));
        let arguments = ["coordinator", "--socket", &socket, "--policy", &policy];
        let mut command = command(&arguments);
        command
            .env("RUST_LOG", level)
            .args(["--audit", &audit])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, format!("coordinator at {socket}\n"));
        let says = Mutex::new(BufReader::new(child.stderr.take().unwrap()));
        Self { child, says, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    /// Writes another policy.
    fn policy(&self, text: &str) {
        std::fs::write(self.dir.path().join("policy.toml"), text).unwrap();
    }

    /// Hangs up, and what is said to that.
    fn hang_up(&self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
        let mut says = self.says.lock().unwrap();
        // The log is between.
        let own = ["the policy was read", "partywall: the policy stays"];
        let mut lines = says.by_ref().lines().map(Result::unwrap);
        lines.find(|line| own.iter().any(|begin| line.starts_with(begin))).unwrap()
    }

    /// `partywall policy reload`: its status, and what it says.
    fn reload(&self) -> (Option<i32>, String) {
        let socket = self.socket();
        let out = command(&["policy", "reload", "--socket", socket.to_str().unwrap()]).output();
        let out = out.unwrap();
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    }

    fn channel(&self) -> partywall::Endpoint {
        let endpoint = partywall::Endpoint::from_static("partywall:///test");
        endpoint.coordinator(self.socket()).wait_for_ready(true)
    }

    /// Runs with a server, which serves until the end.
    fn serving(&self, runs: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let mut server = partywall::Server::builder().coordinator(self.socket());
        runtime.spawn(server.add_service(test_service()).serve("test"));
        runtime.block_on(runs);
        runtime.shutdown_background();
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Waits until a call has this status.
async fn until(client: &mut TestServiceClient<partywall::Channel>, wanted: Code) {
    let start = Instant::now();
    loop {
        let called = client.unary_call(SimpleRequest::default()).await;
        let code = called.map_or_else(|status| status.code(), |_| Code::Ok);
        if code == wanted {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{code:?} where {wanted:?} is to come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_hang_up_puts_a_changed_policy_into_force_at_both_ends() {
    let coordinator = Coordinator::start();
    coordinator.serving(async {
        let mut client = TestServiceClient::new(coordinator.channel().connect().await.unwrap());
        client.unary_call(SimpleRequest::default()).await.unwrap();
        let (_requests, requests) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let mut stream = client.full_duplex_call(requests).await.unwrap().into_inner();
        coordinator.policy(&format!("{SERVICE}{EMPTY_CALL}"));
        assert_eq!(coordinator.hang_up(), "the policy was read again and is in force");
        // The call under way ends, and no other one begins; what is allowed still goes on.
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.message()).await;
        assert_eq!(ended.unwrap().unwrap_err().code(), Code::PermissionDenied);
        until(&mut client, Code::PermissionDenied).await;
        client.empty_call(Empty::default()).await.unwrap();
        coordinator.policy(&format!("{SERVICE}{ALL}"));
        assert_eq!(coordinator.hang_up(), "the policy was read again and is in force");
        until(&mut client, Code::Ok).await;
    });
}

#[test]
fn unusable_policy_changes_nothing_and_names_line_and_remedy() {
    let coordinator = Coordinator::start();
    coordinator.serving(async {
        let mut client = TestServiceClient::new(coordinator.channel().connect().await.unwrap());
        coordinator.policy(&format!("{SERVICE}{ALL}[servce.other]\nregister = ['anyone']\n"));
        let (status, said) = coordinator.reload();
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("policy.toml:5:"), "{said}");
        assert!(said.contains("service"), "no remedy: {said}");
        let said = coordinator.hang_up();
        assert!(said.contains("stays as it was") && said.contains("policy.toml"), "{said}");
        client.unary_call(SimpleRequest::default()).await.unwrap();
        client.empty_call(Empty::default()).await.unwrap();
        coordinator.policy(&format!("{SERVICE}{EMPTY_CALL}"));
        let (status, said) = coordinator.reload();
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("links ended: 0, changed: 1"), "{said}");
        until(&mut client, Code::PermissionDenied).await;
        let denied = coordinator.channel().connect().await.unwrap();
        drop(denied);
        coordinator.policy("[service.test]\nregister = ['anyone']\n");
        let (_, said) = coordinator.reload();
        assert!(said.contains("links ended: 1"), "{said}");
        let refused = coordinator.channel().wait_for_ready(false).connect().await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    });
    // A thread of the coordinator writes it.
    let start = Instant::now();
    for wanted in
        ["admitted", "registered", "introduced", "denied", "revoked", "reloaded", "not_reloaded"]
    {
        loop {
            let log = std::fs::read_to_string(coordinator.dir.path().join("audit.jsonl")).unwrap();
            let whole = log.rfind('\n').map_or("", |end| &log[..end]);
            let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
            if whole.lines().any(|line| event(line)["event"] == wanted) {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no {wanted} in:\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The kernel ended it when it made memory for a link.
#[test]
fn a_limit_of_files_refuses_links_and_ends_no_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("policy.toml"), format!("{SERVICE}{ALL}")).unwrap();
    let mut child = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_partywall")])
        .args(["coordinator", "--socket"])
        .arg(path("c.sock"))
        .arg("--policy")
        .arg(path("policy.toml"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut server = partywall::Server::builder().coordinator(path("c.sock"));
        let serving = tokio::spawn(server.add_service(test_service()).serve("test"));
        let connect = || {
            let endpoint = partywall::Endpoint::from_static("partywall:///test");
            let endpoint = endpoint.coordinator(path("c.sock"));
            async move { endpoint.connect().await }
        };
        let start = Instant::now();
        loop {
            let refused = connect().await.unwrap_err().to_string();
            if refused.contains("File too large") {
                break;
            }
            // The server is about to register.
            assert!(start.elapsed() < Duration::from_secs(10), "{refused}");
        }
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        serving.abort();
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn coordinator_with_too_few_descriptors_refuses_to_start() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("policy.toml"), "").unwrap();
    let few = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 20; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_partywall")])
        .args(["coordinator", "--socket"])
        .arg(dir.path().join("c.sock"))
        .arg("--policy")
        .arg(dir.path().join("policy.toml"))
        .output()
        .unwrap();
    assert_eq!(few.status.code(), Some(1));
    let said = text(&few.stderr);
    assert!(said.contains("20 descriptors are too few") && said.contains("ulimit -n"), "{said}");
}

#[test]
fn unread_log_delays_nobody() {
    let mut coordinator = Coordinator::start_with_log("trace");
    let start = Instant::now();
    coordinator.serving(async {
        let nobodys = || partywall::Endpoint::from_static("partywall:///nobodys");
        for _ in 0..1000 {
            let denied = nobodys().coordinator(coordinator.socket()).connect().await.unwrap_err();
            assert_eq!(denied.code(), Code::PermissionDenied, "{denied}");
        }
    });
    kill_process(Pid::from_child(&coordinator.child), Signal::TERM).unwrap();
    assert!(coordinator.child.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let mut log = String::new();
    coordinator.says.lock().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.len() >= 50 << 10, "the pipe was not full: {} bytes", log.len());
}
