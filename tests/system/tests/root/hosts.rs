//! Two hosts, of which each is a network namespace with a coordinator of its own; both have one authority.
//! What calls the one's service goes to the other host when that dies, and comes back.
//!
//! ```text
//! near   10.77.0.1   a caller, and a service by ring
//! far    10.77.0.2, 10.77.0.3   two of the same service, at the one address `far.example`: first
//!                           one of them, and later both
//! ```

use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_testkit::{Process, alone};
use partywall_trust::{Authority, TrustDomain};

use super::{CLIENT, SERVER};

const DOMAIN: &str = "two.example";
/// How often callers ask for the addresses of a host.
const REFRESH: Duration = Duration::from_secs(10);

/// A network namespace, for as long as its first process lives.
struct Network(Child);

impl Network {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo ready && read _"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare, of Debian's package util-linux");
        let mut said = [0; 6];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut said)
            .expect("ip, of Debian's package iproute2");
        assert_eq!(&said, b"ready\n");
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// The words before a program's that have it run there.
    fn enter(&self) -> [String; 4] {
        ["nsenter".into(), "--target".into(), self.pid(), "--net".into()]
    }

    fn ip(&self, arguments: &str) {
        let [nsenter, more @ ..] = self.enter();
        let ip = Command::new(nsenter).args(more).arg("ip").args(arguments.split(' ')).status();
        assert!(ip.unwrap().success(), "ip {arguments}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two of them with a wire between them.
fn wired() -> (Network, Network) {
    let (near, far) = (Network::new(), Network::new());
    near.ip(&format!("link add near0 type veth peer name far0 netns {}", far.pid()));
    near.ip("address add 10.77.0.1/24 dev near0");
    near.ip("link set near0 up");
    far.ip("address add 10.77.0.2/24 dev far0");
    far.ip("address add 10.77.0.3/24 dev far0");
    far.ip("link set far0 up");
    (near, far)
}

/// An authority that both coordinators have.
fn authority(directory: &Path) {
    let domain = TrustDomain::new(DOMAIN).unwrap();
    let (certificates, key) = Authority::new(&domain, SystemTime::now()).unwrap().to_pem();
    std::fs::create_dir(directory).unwrap();
    for (file, text) in [("authority.pem", certificates.as_str()), ("authority.key", key.as_str())]
    {
        let mut options = std::fs::OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(directory.join(file));
        made.unwrap().write_all(text.as_bytes()).unwrap();
    }
}

fn coordinator(dir: &Path, name: &str, policy: &str) -> Coordinator {
    let text = format!(
        "[authority]\ndomain = '{DOMAIN}'\ndirectory = '{}'\n[principal.shop]\nuid = 0\n{policy}",
        dir.join("authority").display()
    );
    let mut policy = Policy::parse(name, &text).unwrap();
    policy.harden(false);
    let audit = Some(std::fs::File::create(dir.join(format!("{name}.audit"))).unwrap());
    let listen = Listen::At(dir.join(format!("{name}.sock")));
    Coordinator::start_with(policy, Options { listen, audit, ..Options::default() }).unwrap()
}

/// What the audit log has of introductions: the addresses, or none for a ring, and the seal.
fn introduced(audit: &Path) -> Vec<(bool, bool)> {
    let text = std::fs::read_to_string(audit).unwrap();
    let lines = text.lines().filter(|line| line.contains(r#""event":"introduced""#));
    lines
        .map(|line| {
            let is_ring = line.contains(r#""server":{"uid":0"#) && !line.contains("addresses");
            let is_far = line.contains(r#""server":null"#)
                && line.contains(r#""addresses":["https://far.example:50051"]"#);
            assert!(is_ring != is_far, "{line}");
            (is_ring, line.contains(r#""seal":"sealed""#))
        })
        .collect()
}

#[test]
fn two_hosts_lose_no_call_when_the_local_service_dies() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, for namespaces");
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| dir.path().join(name);
    authority(&at("authority"));
    // In place, so that whoever has it mounted sees it.
    let resolve = |addresses: &[&str]| {
        let lines = addresses.iter().map(|address| format!("{address} far.example\n"));
        std::fs::write(at("hosts"), lines.collect::<String>()).unwrap();
    };
    resolve(&["10.77.0.2"]);
    let (near, far) = wired();
    let calls = "[service.test.call]\nshop = { methods = ['*'], seal = 'required' }\n";
    let here = format!(
        "[service.test]\nregister = ['shop']\nfallback = true\n{calls}\
         [names]\ntest = 'https://far.example:50051'\n"
    );
    let there = format!("[service.test]\nregister = ['shop']\n{calls}");
    let (near_coordinator, far_coordinator) =
        (coordinator(dir.path(), "near", &here), coordinator(dir.path(), "far", &there));
    let start = |network: &Network, before: &[&str], program: &str, socket: &str, with: &[&str]| {
        let enter = network.enter();
        let mut words: Vec<&str> = enter.iter().map(String::as_str).collect();
        words.extend(before);
        words.push(program);
        Process::begin(&words, &at(socket), with, &[], None)
    };
    let served = |address: &str| {
        let url = format!("https://{address}:50051");
        start(&far, &[], SERVER, "far.sock", &["--at", &url, "--native", "--until-input-ends"])
    };
    let mut remote = [served("10.77.0.2"), served("10.77.0.3")];
    let local = start(&near, &[], SERVER, "near.sock", &[]);
    let mounted = format!("mount --bind {} /etc/hosts && exec \"$@\"", at("hosts").display());
    let resolving = ["unshare", "--mount", "sh", "-c", &mounted, "sh"];
    // The local one is there first.
    let name = partywall_abi::name::ServiceName::new("test").unwrap();
    near_coordinator.serving(&name).recv_timeout(Duration::from_secs(10)).unwrap();
    let mut caller = start(&near, &resolving, CLIENT, "near.sock", &["--mode", "persist"]);
    assert_eq!(caller.line(), "ring");
    std::thread::sleep(Duration::from_millis(300));
    // `nsenter` has become the server.
    let killed = Instant::now();
    local.kill();
    assert_eq!(caller.line(), "https://far.example:50051 sealed");
    println!("calls go to the other host {:?} after the kill", killed.elapsed());
    // The other host grows, as a headless service does: its name has another address.
    resolve(&["10.77.0.2", "10.77.0.3"]);
    std::thread::sleep(REFRESH + Duration::from_secs(2));
    let local = start(&near, &[], SERVER, "near.sock", &[]);
    assert_eq!(caller.line(), "ring", "the ring is the way as soon as there is one");
    caller.end_input();
    let said = caller.line();
    println!("{said}");
    let words: Vec<&str> = said.split(' ').collect();
    let [_, calls, _, again] = words[..] else { panic!("{said}") };
    assert!(calls.parse::<u64>().unwrap() > 100, "{said}");
    // A kill under load takes some with it, which are made again.
    assert!(again.parse::<u64>().unwrap() > 0, "{said}");
    caller.succeed();
    local.kill();
    for remote in &mut remote {
        remote.end_input();
        let said = remote.line();
        println!("of the other host: {said}");
        assert!(!said.ends_with(" 0"), "both addresses of the host have calls: {said}");
    }
    // The log is written when the coordinator has ended.
    drop((near_coordinator, far_coordinator));
    // By ring, by the network, by ring: each sealed, and the network's with its address.
    let said = introduced(&at("near.audit"));
    assert_eq!(said.first(), Some(&(true, true)), "{said:?}");
    assert_eq!(said.last(), Some(&(true, true)), "{said:?}");
    assert!(said.contains(&(false, true)), "{said:?}");
    let far = std::fs::read_to_string(at("far.audit")).unwrap();
    assert_eq!(far.matches(r#""event":"registered""#).count(), 2, "{far}");
}
