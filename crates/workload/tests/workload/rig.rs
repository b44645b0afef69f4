//! A coordinator whose policy can be changed, and its Workload API.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_workload::proto::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use partywall_workload::{Limits, Serving};
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

/// How long something may take that takes no time.
pub const SOON: Duration = Duration::from_secs(10);

/// Both are gone with the value.
pub struct Rig {
    /// The Workload API's.
    pub socket: PathBuf,
    /// The coordinator's.
    pub control: PathBuf,
    file: PathBuf,
    coordinator: Coordinator,
    _serving: Serving,
    _dir: tempfile::TempDir,
}

/// A policy in which this user is a principal of this name.
pub fn principal(name: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!("[principal.{name}]\nuid = {uid}\n")
}

impl Rig {
    pub fn new(policy: &str) -> Self {
        Self::limited(policy, Limits::default())
    }

    pub fn limited(policy: &str, limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (dir.path().join("workload.sock"), dir.path().join("policy.toml"));
        std::fs::write(&file, policy).unwrap();
        let control = dir.path().join("coordinator.sock");
        let listen = Listen::At(control.clone());
        let options = Options { listen, policy_file: Some(file.clone()), ..Options::default() };
        let policy = Policy::load(&file).unwrap();
        let coordinator = Coordinator::start_with(policy, options).unwrap();
        let serving = partywall_workload::serve(&socket, coordinator.workloads(), limits).unwrap();
        Self { socket, control, file, coordinator, _serving: serving, _dir: dir }
    }

    /// Another policy is in force when this returns.
    pub fn reload(&self, policy: &str) {
        std::fs::write(&self.file, policy).unwrap();
        let (tx, rx) = mpsc::channel();
        self.coordinator.reload(move |read| tx.send(read).unwrap());
        rx.recv_timeout(SOON).unwrap().unwrap();
    }

    pub fn stream(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(2 * SOON)).unwrap();
        stream
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("unix:{}", self.socket.display())).unwrap()
    }

    pub async fn channel(&self) -> Channel {
        within(self.endpoint().connect()).await.unwrap()
    }

    pub async fn client(&self) -> SpiffeWorkloadApiClient<Channel> {
        SpiffeWorkloadApiClient::new(self.channel().await)
    }
}

/// A request with the header that the standard wants.
pub fn asks<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("workload.spiffe.io", "true".parse().unwrap());
    request
}

/// What comes in time.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it comes within 10 s")
}
