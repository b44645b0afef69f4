//! What a service manager and a coordinator say to each other (sd_listen_fds(3), sd_notify(3)), and the
//! units that are handed out.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use partywall_shm::listen;
use rustix::net::SocketType;
use rustix::process::{Pid, Signal, kill_process};

use super::{partywall, root, text};

/// The next message to the service manager: its lines.
fn next(manager: &UnixDatagram) -> Vec<String> {
    let mut buffer = [0; 4096];
    let len = manager.recv(&mut buffer).expect("the service manager is told nothing for 10 s");
    text(&buffer[..len]).lines().map(String::from).collect()
}

#[test]
fn service_manager_hands_over_the_socket_and_gets_each_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let manager = UnixDatagram::bind(path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    std::fs::write(path("policy.toml"), "").unwrap();
    let socket = path("c.sock");
    let (listener, bound) = listen::listen(&socket, SocketType::SEQPACKET, 64, |_| ()).unwrap();
    // The first of those that are handed over is descriptor 3, to the process of this number.
    let hand_over = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut child = Command::new("sh")
        .args(["-c", hand_over, "sh", env!("CARGO_BIN_EXE_partywall"), "coordinator", "--policy"])
        .arg(path("policy.toml"))
        .env("NOTIFY_SOCKET", path("notify"))
        .stdin(Stdio::from(listener))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    assert_eq!(next(&manager), ["READY=1"]);
    let links = partywall(&["links", "--socket", socket.to_str().unwrap()]);
    assert_eq!(text(&links.stdout), "no links\n", "{}", text(&links.stderr));
    for policy in ["[principal.web]\nuid = 1\n", "no policy"] {
        std::fs::write(path("policy.toml"), policy).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        // What systemd.service(5) asks of Type=notify-reload.
        let said = next(&manager);
        assert_eq!(said[0], "RELOADING=1");
        let at: u64 = said[1].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!(at > 0);
        assert_eq!(next(&manager), ["READY=1"]);
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(next(&manager), ["STOPPING=1"]);
    assert!(child.wait().unwrap().success());
    assert!(socket.exists(), "the path is the service manager's");
    drop(bound);
}

#[test]
fn the_units_are_ones_that_systemd_takes() {
    let dir = tempfile::tempdir().unwrap();
    let units = root().join("packaging/systemd");
    let names = ["partywall-coordinator.service", "partywall-coordinator.socket"];
    let program = env!("CARGO_BIN_EXE_partywall");
    for name in names {
        let unit = std::fs::read_to_string(units.join(name)).unwrap();
        std::fs::write(dir.path().join(name), unit.replace("/usr/bin/partywall", program)).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(names.map(|name| dir.path().join(name)));
    let verified = verify.output().expect("systemd-analyze of package systemd");
    // Keys of later versions than this one are told, and no fault.
    let later = ["AcceptFileDescriptors"];
    let said = text(&verified.stderr) + &text(&verified.stdout);
    let about = |line: &&str| {
        line.contains("partywall-coordinator") && !later.iter().any(|key| line.contains(key))
    };
    let faults: Vec<&str> = said.lines().filter(about).collect();
    assert!(verified.status.success() && faults.is_empty(), "{said}");
}
