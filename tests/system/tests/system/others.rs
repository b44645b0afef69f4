//! What processes of another user can reach.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::host::{Host, Process, alone};
use crate::client_of;

const USER: u32 = 2001;
const STRANGER: u32 = 2002;

/// Whether a process of this user may open a file of /proc.
fn opens(uid: u32, path: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<\"$0\"", path]).uid(uid).gid(uid);
    shell.stderr(std::process::Stdio::null()).status().unwrap().success()
}

/// The memory of a link of two processes of one user is closed to processes of others: they open
/// neither the memory of its ends nor the list of it.
#[test]
fn the_memory_of_a_link_is_closed_to_other_users() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, for processes of two users");
    let host = Host::new();
    let program = env!("CARGO_BIN_EXE_st-server");
    let server = Process::start(program, &host.socket, &[], &[], Some(USER));
    let mut client = client_of(&host, USER, &["--mode", "idle"]);
    client.ready();
    for pid in [server.pid(), client.pid()] {
        for file in ["mem", "maps"] {
            let path = format!("/proc/{pid}/{file}");
            assert!(!opens(STRANGER, &path), "another user opens {path}");
            // One user's processes can debug each other: that is the kernel's business, and shows
            // that the path is right.
            assert!(opens(USER, &path), "{path} is closed to its own user");
        }
    }
}
