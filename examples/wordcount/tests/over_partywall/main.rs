//! The server and client as processes, over a ring.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use partywall_coordinator::{Coordinator, Policy};

const POLICY: &str = "[service.wordcount]\nregister = ['anyone']\n\
                      [service.wordcount.call]\nanyone = ['*']\n";

/// A server that ends with the value.
struct Server(Child);

impl Server {
    /// Starts one and waits until callers find it.
    fn start(socket: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_server"))
            .arg("wordcount")
            .env("PARTYWALL_SOCKET", socket)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self(child);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = partywall::Endpoint::from_static("partywall:///wordcount");
            let endpoint = endpoint.coordinator(socket).wait_for_ready(true);
            endpoint.connect_timeout(Duration::from_secs(30)).connect().await.unwrap();
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A million different words, 7 MB, and the reply with the frequency of each, which is longer: both
/// over the limit of 4 MiB that tonic has by itself. The client checks each frequency.
#[test]
fn a_million_words_are_counted_over_the_ring() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("coordinator.sock");
    let policy = Policy::parse("test", POLICY).unwrap();
    let _coordinator = Coordinator::start(Some(&socket), policy).unwrap();
    let _server = Server::start(&socket);
    let text = dir.path().join("text");
    fs::write(&text, (0..1_000_000).map(|i| format!("{i} ")).collect::<String>()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_client"))
        .args(["--text", text.to_str().unwrap(), "--calls", "1", "partywall:///wordcount"])
        .env("PARTYWALL_SOCKET", &socket)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("total 1000000 words, 1000000 distinct"), "{printed}");
    // No other route was taken: a ring has carried the text for Counts, and twice for Total.
    let links = partywall::operator::links(Some(&socket)).unwrap();
    let carried: u64 = links.iter().map(|link| link.stats.received_bytes).max().unwrap();
    let bytes = fs::metadata(&text).unwrap().len();
    assert!(carried >= 3 * bytes, "{carried} bytes over rings, {bytes} a text");
}
