#![allow(unsafe_code, reason = "unshare(2) is unsafe in rustix, for the sake of one flag")]
//! What a compiler that a source has taken over would try; for the tests of the builder's sandbox.
//!
//! Says what has come of it on standard error, and exits with 1 so that it is heard.

use std::fs;
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::process::{Command, ExitCode};

use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal};

fn main() -> ExitCode {
    let attack = std::env::args().nth(1).unwrap_or_default();
    let said = match attack.as_str() {
        "files" => files(),
        "calls" => calls(),
        "environment" => format!("{:?}", std::env::vars().collect::<Vec<_>>()),
        "processes" => processes(),
        "write" => write(),
        "memory" => memory(),
        "fork" => fork(),
        "burn" => loop {
            std::hint::spin_loop();
        },
        "sleep" => {
            std::thread::sleep(std::time::Duration::from_secs(600));
            "slept".into()
        }
        "talk" => "x".repeat(10 << 20),
        "crash" => std::process::abort(),
        other => format!("`{other}` is no attack"),
    };
    eprintln!("{said}");
    ExitCode::FAILURE
}

fn tried<T>(what: &str, done: io::Result<T>) -> String {
    match done {
        Ok(_) => format!("{what}: done\n"),
        Err(why) => format!("{what}: {why}\n"),
    }
}

/// All files there are, and those that are not.
fn files() -> String {
    let mut said = String::new();
    let mut names: Vec<_> = fs::read_dir("/").into_iter().flatten().flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    for name in names {
        said += &format!("/{}\n", name.file_name().to_string_lossy());
    }
    for path in ["/etc/passwd", "/proc/self/mem", "/dev/null", "/sys", "/tmp", "/root", "/home"] {
        said += &tried(&format!("read {path}"), fs::metadata(path).map(drop));
    }
    for path in ["/new", "/toolchain/new", "/lib/new", "/build/new"] {
        said += &tried(&format!("write {path}"), fs::write(path, "x"));
    }
    said += &tried("up", fs::read_dir("/build/../../../../etc").map(drop));
    said
}

fn calls() -> String {
    let mut said = String::new();
    // SAFETY: nothing is shared with a thread.
    let unshared = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER) };
    said += &tried("unshare", unshared.map_err(Into::into));
    let mounted = rustix::mount::mount("none", "/build", "tmpfs", MountFlags::empty(), None);
    said += &tried("mount", mounted.map_err(Into::into));
    said += &tried("tcp", TcpStream::connect("127.0.0.1:1").map(drop));
    said += &tried("udp", UdpSocket::bind("127.0.0.1:0").map(drop));
    said += &tried("unix", std::os::unix::net::UnixDatagram::unbound().map(drop));
    let created =
        rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::empty()).map_err(Into::into);
    said += &tried("memfd_create", created);
    let limit = rustix::process::Rlimit { current: None, maximum: None };
    let raised = rustix::process::setrlimit(rustix::process::Resource::As, limit);
    said += &tried("setrlimit", raised.map_err(Into::into));
    said
}

fn processes() -> String {
    let mut said = String::new();
    said += &format!("uid {}\n", rustix::process::getuid().as_raw());
    let known = (2..70_000).filter(|pid| {
        let pid = Pid::from_raw(*pid).expect("a number");
        rustix::process::test_kill_process(pid).is_ok()
    });
    said += &format!("processes: {}\n", known.count());
    let init = Pid::from_raw(1).expect("a number");
    said += &tried("kill 1", rustix::process::kill_process(init, Signal::KILL).map_err(Into::into));
    said += &tried("start", Command::new("/bin/sh").spawn().map(drop));
    said
}

fn write() -> String {
    let block = vec![1; 1 << 20];
    let mut said = String::new();
    for number in 0..1024 {
        if let Err(why) = fs::write(format!("/build/{number}"), &block) {
            said = format!("{number} MiB: {why}");
            break;
        }
    }
    said
}

fn memory() -> String {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut block = Vec::new();
        if block.try_reserve_exact(256 << 20).is_err() {
            return format!("memory allocation of more than {} MiB failed", blocks.len() * 256);
        }
        blocks.push(block);
    }
}

fn fork() -> String {
    let mut children = 0;
    let me = "/build/attacker";
    loop {
        let child = Command::new("/lib64/ld-linux-x86-64.so.2").args([me, "sleep"]).spawn();
        if let Err(why) = child {
            return format!("{children} children: {why}");
        }
        children += 1;
        if children == 5000 {
            return "5000 children".into();
        }
    }
}
