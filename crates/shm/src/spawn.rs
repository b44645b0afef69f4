#![allow(unsafe_code, reason = "code that runs between fork and exec")]
//! Starting a program from a sealed copy, so that what runs is what was measured.
//!
//! The child gets: the sealed image by fexecve(3)'s way (`/proc/self/fd/N`, executed by execve(2)
//! itself: execvp(3), which the standard library uses, gives what is no program to a shell), the
//! environment it is given and nothing else, `/dev/null` as standard input, a process group of its own,
//! one socket under a fixed number, and death by SIGKILL when its parent's thread dies (prctl(2),
//! `PR_SET_PDEATHSIG`): start programs from a thread that lives as long as they should.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, Rlimit};

/// The number under which a started program finds its socket to the coordinator.
pub const SOCKET_NUMBER: i32 = 3;
/// What a child needs until it executes has numbers from here on, which nothing is put on.
const HIGH: i32 = 10;

/// What to start.
pub struct Program {
    /// The sealed copy of the program file.
    pub image: OwnedFd,
    /// `argv[0]`.
    pub name: OsString,
    /// The other arguments.
    pub args: Vec<OsString>,
    /// The whole environment. Of variables that are there twice the last one counts.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory.
    pub directory: PathBuf,
    /// What becomes descriptor [`SOCKET_NUMBER`].
    pub socket: Option<OwnedFd>,
    /// Its soft limit of descriptors, where it is not this process's (RLIMIT_NOFILE).
    pub descriptors: Option<u64>,
}

impl Program {
    /// Starts it.
    ///
    /// # Errors
    /// What fork, the steps before exec, or execve(2) say.
    pub fn start(self) -> io::Result<Child> {
        self.run(None)
    }

    /// Starts it with these as its standard output and standard error.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub fn start_saying(self, output: [OwnedFd; 2]) -> io::Result<Child> {
        self.run(Some(output))
    }

    fn run(self, output: Option<[OwnedFd; 2]>) -> io::Result<Child> {
        // So that putting the socket in its place overwrites neither.
        let image = rustix::io::fcntl_dupfd_cloexec(&self.image, HIGH)?;
        let path = format!("/proc/self/fd/{}", image.as_raw_fd());
        let file = CString::new(path.as_str())?;
        let args = Strings::new([self.name.clone()].into_iter().chain(self.args))?;
        let variable = |(name, value): (OsString, OsString)| [name, value].join(OsStr::new("="));
        let environment: BTreeMap<_, _> = self.environment.into_iter().collect();
        let environment = Strings::new(environment.into_iter().map(variable))?;
        let socket = self.socket.map(|s| rustix::io::fcntl_dupfd_cloexec(&s, HIGH)).transpose()?;
        let parent = rustix::process::getpid();
        let mut command = Command::new(path);
        command.arg0(self.name).current_dir(self.directory).stdin(Stdio::null());
        if let Some([out, errors]) = output {
            command.stdout(out).stderr(errors);
        }
        let descriptors = self.descriptors;
        let before_exec = move || {
            // A process group of its own, and no terminal that it could write to or be signalled by.
            rustix::process::setsid()?;
            if let Some(current) = descriptors {
                let limit = rustix::process::getrlimit(Resource::Nofile);
                let limit = Rlimit { current: Some(current), ..limit };
                rustix::process::setrlimit(Resource::Nofile, limit)?;
            }
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if let Some(socket) = &socket {
                place(socket.as_fd())?;
            }
            // SAFETY: both lists end with a null, and what they point to is theirs.
            unsafe { libc::execve(file.as_ptr(), args.pointers(), environment.pointers()) };
            Err(io::Error::last_os_error())
        };
        // SAFETY: the closure makes system calls on descriptors and texts it owns and does nothing
        // else: no allocation, no lock.
        unsafe { command.pre_exec(before_exec) };
        command.spawn()
    }
}

/// Texts as execve(2) takes them.
struct Strings {
    _texts: Vec<CString>,
    /// To each of the texts, and a null.
    pointers: Vec<*const libc::c_char>,
}

// SAFETY: the pointers are to memory that this value owns and nobody changes.
unsafe impl Send for Strings {}
// SAFETY: as above.
unsafe impl Sync for Strings {}

impl Strings {
    fn new(texts: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let texts: Result<Vec<_>, _> = texts.map(|t| CString::new(t.into_vec())).collect();
        let texts = texts?;
        let pointers = texts.iter().map(|t| t.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { _texts: texts, pointers })
    }

    fn pointers(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

/// Duplicates `socket` to [`SOCKET_NUMBER`], open across exec.
fn place(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: dup2 onto a number of this child, which has no other owner in it.
    let done = unsafe { libc::dup2(socket.as_raw_fd(), SOCKET_NUMBER) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The pidfd of a child that has not been waited for, so that its number cannot be another's.
///
/// # Errors
/// What pidfd_open(2) says.
pub fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_child(child);
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{memory, socket};

    fn program(path: &str, args: &[&str], socket: Option<OwnedFd>) -> Program {
        let bytes = std::fs::read(path).unwrap();
        Program {
            image: memory::sealed_copy("test", &bytes).unwrap(),
            name: "test".into(),
            args: args.iter().map(Into::into).collect(),
            environment: vec![("ONLY".into(), "not this".into()), ("ONLY".into(), "this".into())],
            directory: "/".into(),
            socket,
            descriptors: None,
        }
    }

    #[test]
    fn a_program_has_the_limit_of_descriptors_that_it_is_given() {
        let child = program("/bin/sh", &["-c", "test $(ulimit -Sn) = 77"], None);
        let mut child = Program { descriptors: Some(77), ..child }.start().unwrap();
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn spawn_of_no_executable_fails_without_a_shell() {
        let mark = std::env::temp_dir().join(format!("st-shell-{}", std::process::id()));
        for bytes in [format!("touch {}\n", mark.display()).as_bytes(), b"\x7fELF\x02\x01\x01"] {
            let image = memory::sealed_copy("test", bytes).unwrap();
            let refused = Program { image, ..program("/bin/true", &[], None) }.start().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOEXEC), "{refused}");
        }
        assert!(!mark.exists(), "a shell has run it");
    }

    #[test]
    fn a_program_finds_its_socket_and_nothing_but_its_environment() {
        let (ours, theirs) = socket::pair().unwrap();
        let script = "test \"$(env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= -e ^OLDPWD=)\" = ONLY=this && printf ok >&3";
        let mut child = program("/bin/sh", &["-c", script], Some(theirs)).start().unwrap();
        assert!(child.wait().unwrap().success());
        let mut buffer = [0; 8];
        let p = socket::receive(ours.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..p.len], b"ok");
    }

    #[test]
    fn program_writes_to_the_output_that_it_is_given() {
        use std::io::Read;
        let (mut out, to_out) = io::pipe().unwrap();
        let (mut errors, to_errors) = io::pipe().unwrap();
        let child = program("/bin/sh", &["-c", "echo out; echo errors >&2"], None);
        let mut child = child.start_saying([to_out.into(), to_errors.into()]).unwrap();
        assert!(child.wait().unwrap().success());
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert_eq!(said, "out\nerrors\n");
    }

    #[test]
    fn spawned_child_dies_with_its_parent_thread() {
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let child = program("/bin/sleep", &["60"], None).start().unwrap();
            tx.send((pidfd(&child).unwrap(), child)).unwrap();
        })
        .join()
        .unwrap();
        let (pidfd, mut child) = rx.recv().unwrap();
        for _ in 0..500 {
            if !socket::alive(pidfd.as_fd()) {
                assert!(!child.wait().unwrap().success());
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the child outlived its parent's thread");
    }
}
