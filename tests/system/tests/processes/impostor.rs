//! Who has a socket that another process connected is not that process.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use partywall_testkit::{Host, alone};

#[test]
fn an_impostor_that_answers_for_another_process_is_refused() {
    let _alone = alone();
    let host = Host::open();
    // This process connects, as a victim of an exec would have; the child holds the socket.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(&host.socket).unwrap()).unwrap();
    let mut impostor = Command::new(env!("CARGO_BIN_EXE_st-impostor"))
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(last_words(&mut impostor), "refused");
}

fn last_words(child: &mut Child) -> String {
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    said.trim().to_string()
}

#[test]
fn process_that_changes_its_program_before_proof_is_refused() {
    let _alone = alone();
    let impostor = env!("CARGO_BIN_EXE_st-impostor");
    let asks = format!("program = 'sha256:{}'\nevidence = 'observed'", "00".repeat(32));
    let host = Host::with(&format!("[principal.other]\n{asks}\n"));
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    let mut program = std::fs::read(impostor).unwrap();
    program.push(0);
    std::fs::write(&other, program).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = |then: &Path| {
        let mut child = Command::new(impostor)
            .arg(&host.socket)
            .arg(then)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        last_words(&mut child)
    };
    assert_eq!(said(&other), "refused");
    // The same program once more is no other one.
    assert!(said(Path::new(impostor)).starts_with("taken for somebody: Welcome"));
}

/// Root of a user namespace may claim any number in the PID namespaces that this owns, and any user
/// can be that root.
#[test]
fn process_of_another_pid_namespace_has_no_pid_and_no_digest() {
    let _alone = alone();
    let program = env!("CARGO_BIN_EXE_st-impostor");
    let digest = partywall_coordinator::identity::digest(&std::fs::read(program).unwrap());
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let host = Host::with(&format!(
        "[principal.trusted]\nprogram = 'sha256:{hex}'\nevidence = 'observed'\n"
    ));
    let said = |command: &[&str]| {
        let mut command = command.iter().copied().chain([program]);
        let mut child = Command::new(command.next().unwrap())
            .args(command)
            .arg(&host.socket)
            .arg(program)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        last_words(&mut child)
    };
    let taken = said(&["env"]);
    assert!(taken.contains("\"trusted\"") && taken.contains("Observed"), "{taken}");
    let namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let taken = said(&namespace);
    assert!(taken.contains("pid: None") && taken.contains("digest: Unknown"), "{taken}");
    assert!(!taken.contains("trusted\""), "{taken}");
}
