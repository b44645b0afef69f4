//! `partywall trace`: what an operator sees of a plain link, and of a sealed one.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use partywall::{Endpoint, Routes, Server, blocking};
use partywall_testkit::Host;

use super::{Place, text};
use crate::hex;

const SECRET: &[u8] = b"the word is mellon";

/// A host with one service, whose links are sealed so, and a caller of it.
struct Town {
    host: Host,
    channel: blocking::Channel,
    link: String,
    runtime: tokio::runtime::Runtime,
}

impl Town {
    fn new(seal: &str) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let host = Host::with(&format!(
            "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nseal = '{seal}'\n\
             [service.test.call]\nme = ['*']\n"
        ));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = Server::builder().coordinator(&host.socket).add_routes(Routes::default());
        runtime.spawn(server.serve("test"));
        host.until_served();
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
        let channel = blocking::Channel::connect(endpoint).unwrap();
        let link = channel.server().unwrap().link().to_string();
        Self { host, channel, link, runtime }
    }

    fn start(&self, more: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command.args(["trace", &self.link, "--socket"]).arg(&self.host.socket).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// A call whose request has the secret in it, to a method that nobody has.
    fn call(&mut self) {
        let refused = self.channel.call_bytes("/test.Raw/Any", SECRET).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented, "{refused}");
    }

    /// What is said of calls until there is enough of it.
    fn traced(&mut self, more: &[&str]) -> String {
        let (mut child, start) = (self.start(more), Instant::now());
        while child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            self.call();
            std::thread::sleep(Duration::from_millis(5));
        }
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    }
}

#[test]
fn a_traced_link_shows_its_records_and_a_sealed_one_their_ciphertext() {
    for (seal, level) in [("off", "plain"), ("required", "sealed")] {
        let mut town = Town::new(seal);
        let said = town.traced(&["--count", "6", "--bytes", "200", "--json"]);
        let records: Vec<serde_json::Value> =
            said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.len(), 6, "{said}");
        let of = |from: &str| records.iter().filter(|r| r["from"] == from).collect::<Vec<_>>();
        let (requests, answers) = (of("caller"), of("server"));
        assert!(!requests.is_empty() && !answers.is_empty(), "{said}");
        let secret = hex(SECRET);
        for record in &records {
            assert_eq!(record["level"], level, "{record}");
            let bytes = record["bytes"].as_str().unwrap();
            assert_eq!(bytes.len() as u64, 2 * record["length"].as_u64().unwrap().min(200));
            let is_request = record["from"] == "caller" && record["kind"] == "frame";
            assert_eq!(bytes.contains(&secret), is_request && seal == "off", "{record}");
            assert!(record["time"].as_f64().unwrap() > 1e9, "{record}");
        }
        let is_frame = |r: &&&serde_json::Value| r["kind"] == "frame" && r["stream"] != 0;
        assert!(requests.iter().filter(is_frame).count() > 0, "{said}");
        assert!(answers.iter().filter(is_frame).count() > 0, "{said}");
        let numbers: Vec<_> = requests.iter().map(|r| r["number"].as_u64().unwrap()).collect();
        assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "{numbers:?}");
        // As a table.
        let said = town.traced(&["--count", "2", "--bytes", "200"]);
        let lines: Vec<_> = said.lines().collect();
        let head =
            format!("link {}: me calls `test`, served by me; its records are {level}", town.link);
        assert_eq!((lines.len(), lines[0]), (4, &*head), "{said}");
        assert!(lines[1].starts_with("TIME        FROM    NUMBER  KIND"), "{said}");
        assert_eq!(said.contains("the word is mellon"), seal == "off", "{said}");
        assert!(lines[2..].iter().all(|line| line.contains(&format!("  {level}  "))), "{said}");
    }
}

#[test]
fn a_trace_ends_with_its_link_or_its_time() {
    let mut town = Town::new("off");
    let start = Instant::now();
    let said = text(&town.start(&["--for", "300ms"]).wait_with_output().unwrap().stdout);
    assert!(start.elapsed() >= Duration::from_millis(300) && said.lines().count() == 2, "{said}");
    let mut child = town.start(&["--bytes", "0"]);
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("link "), "{line}");
    town.call();
    let Town { host, channel, link, runtime } = town;
    drop(channel);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(
        rest.ends_with("the link is over, or its coordinator has gone\n")
            && rest.contains("  frame  "),
        "{rest}"
    );
    // It is gone, and so is the right to look into it.
    let socket = host.socket.to_str().unwrap();
    let place = Place::new();
    place.bad(
        &["trace", &link, "--socket", socket],
        &["there is no open link", "`partywall links`"],
    );
    place.usage(&["trace", "x"], &["invalid digit"]);
    place.usage(&["trace", "1", "--for", "5"], &["as 5s, 500ms or 2m"]);
    drop((host, runtime));
}
