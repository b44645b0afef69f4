//! `partywall coordinator --workload-api`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use partywall_workload::proto::X509svidRequest;
use partywall_workload::proto::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use tonic::Request;
use tonic::transport::Endpoint;

use super::Place;

#[test]
fn the_workload_api_is_an_option_of_the_coordinator() {
    let place = Place::new();
    let uid = rustix::process::geteuid().as_raw();
    place.write("policy.toml", format!("[principal.shop]\nuid = {uid}\n"));
    let coordinator =
        ["coordinator", "--policy", "policy.toml", "--socket", "c.sock", "--workload-api"];
    place.bad(
        &[&coordinator[..], &["none/w.sock"]].concat(),
        &["--workload-api none/w.sock: there is no directory none; make it, or correct the path"],
    );
    place.write("file", "kept");
    place.bad(&[&coordinator[..], &["file"]].concat(), &["--workload-api: file", "no socket"]);
    place.bad(&[&coordinator[..], &["c.sock"]].concat(), &["--workload-api: c.sock"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.args(coordinator).arg("w.sock").current_dir(place.path("")).stdin(Stdio::null());
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "coordinator at c.sock");
    assert_eq!(place.mode("w.sock"), 0o666);
    let endpoint = Endpoint::from_shared(format!("unix:{}", place.path("w.sock").display()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fetched = runtime.block_on(async {
        let mut client = SpiffeWorkloadApiClient::new(endpoint.unwrap().connect().await.unwrap());
        let mut request = Request::new(X509svidRequest {});
        request.metadata_mut().insert("workload.spiffe.io", "true".parse().unwrap());
        let fetch =
            async { client.fetch_x509svid(request).await.unwrap().into_inner().message().await };
        tokio::time::timeout(Duration::from_secs(10), fetch).await.unwrap().unwrap().unwrap()
    });
    assert_eq!(fetched.svids[0].spiffe_id, "spiffe://partywall.local/service/shop");
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(running.wait().unwrap().success());
    assert!(!place.path("w.sock").exists() && !place.path("c.sock").exists());
}
