#![allow(unsafe_code, reason = "unshare(2) is unsafe in rustix, for the sake of one flag")]
//! Where the compiler runs: a process that sees the toolchain, the sources and nothing else.
//!
//! ```text
//! builder --job on stdin--> outer: new namespaces (user, mount, pid, net, ipc, uts)
//!                             `- inner, process 1 of the new ones: a root of its own, limits, Landlock,
//!                                |  no capabilities, filter of system calls
//!                                `- the job's commands, one after the other, or messages ([`proto`])
//! builder <--outcome on stdout-- inner
//! ```
//!
//! | layer | what it keeps from a compiler that a source has taken over |
//! | --- | --- |
//! | namespaces | files, processes, networks and users of the host |
//! | root | all files but the toolchain (read-only) and `/build`, [`Limits::files`] bytes that go with it |
//! | Landlock | as the root does, for the case that a mount goes wrong |
//! | filter | new namespaces, mounts, tracing, io_uring, keys, bpf: all that no compiler calls |
//! | limits | memory, CPU time, length of files, number of processes; the builder's clock |
//!
//! The kernel counts no processes of the host's root, who is another user inside. Where a container's user is
//! the host's root by another number, only the clock ends too many of them (setrlimit(2), RLIMIT_NPROC).
//!
//! Each layer is there or there is no sandbox: nothing is built without. The outer process dies with the
//! builder's thread, the inner one with the outer, and with process 1 all of its namespace.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::proto;
use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Where the toolchain is, inside.
pub const TOOLCHAIN: &str = "/toolchain";
/// Where the commands run, inside.
pub const BUILD: &str = "/build";

/// What a job may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// From its begin to its end.
    pub time: Duration,
    /// Memory of each process, in bytes.
    pub memory: u64,
    /// All files together, in bytes.
    pub files: u64,
    /// The longest file, in bytes.
    pub file: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// What is kept of what commands say, in bytes.
    pub text: usize,
}

impl Default for Limits {
    /// 60 s, 4 GiB, 256 MiB of files of at most 64 MiB, 128 processes and threads, 64 KiB of text.
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            memory: 4 << 30,
            files: 256 << 20,
            file: 64 << 20,
            processes: 128,
            text: 64 << 10,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The directory that becomes [`TOOLCHAIN`].
    pub toolchain: PathBuf,
    /// The host's libraries that the toolchain's programs need, which have the same paths inside.
    pub libraries: Vec<PathBuf>,
    /// Files in [`BUILD`], by their paths there.
    pub files: BTreeMap<String, ByteBuf>,
    /// What the commands have in their environment.
    pub environment: BTreeMap<String, String>,
    /// Whether the files are `.proto` files, whose module of messages is what comes out; no command runs.
    pub has_messages: bool,
    /// Programs with their arguments, run in [`BUILD`] one after the other until one fails.
    pub commands: Vec<Vec<String>>,
    /// The file in [`BUILD`] that comes out.
    pub output: String,
    /// What it may use up.
    pub limits: Limits,
}

impl Job {
    /// One whose toolchain is not chosen yet.
    pub(crate) fn new(
        files: BTreeMap<String, ByteBuf>,
        commands: Vec<Vec<String>>,
        output: &str,
        limits: Limits,
    ) -> Self {
        Self {
            toolchain: PathBuf::new(),
            libraries: Vec::new(),
            files,
            environment: BTreeMap::new(),
            has_messages: false,
            commands,
            output: output.into(),
            limits,
        }
    }
}

/// How a job has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The file that it was for.
    Output(ByteBuf),
    /// A command has failed: its place in the job, and what it has said.
    Failed(usize, String),
    /// A command has used up something, named.
    Limit(String),
}

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// A step of making the sandbox, or its program.
    #[error("the builder's sandbox: {step}: {source}")]
    Step {
        /// Which step.
        step: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The sandbox has said why it is not there.
    #[error("the builder's sandbox: {0}")]
    Refused(String),
}

fn step<T, E: Into<io::Error>>(step: &str, done: Result<T, E>) -> Result<T, SandboxError> {
    done.map_err(|source| SandboxError::Step { step: step.into(), source: source.into() })
}

/// The system calls of a compiler. All others fail with ENOSYS, as on an older kernel; those of another
/// architecture end the process.
const CALLS: [i64; 105] = [
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_brk,
    libc::SYS_chdir,
    libc::SYS_chmod,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fork,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_ioctl,
    libc::SYS_kill,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_lstat,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_pidfd_open,
    libc::SYS_pipe,
    libc::SYS_pipe2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_prlimit64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_restart_syscall,
    libc::SYS_rmdir,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendfile,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_stat,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_vfork,
    libc::SYS_wait4,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Runs a job. `program` is one that calls [`main`] with its last argument; here it is without that.
///
/// # Errors
/// [`SandboxError`] when there is no sandbox; what the job itself does is its [`Outcome`].
pub fn run(program: &[String], job: &Job) -> Result<Outcome, SandboxError> {
    let [file, arguments @ ..] = program else {
        return Err(SandboxError::Refused("no program is named for it".into()));
    };
    let mut command = Command::new(file);
    command.args(arguments).arg("outer").env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let parent = rustix::process::getpid();
    let before = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: it makes two system calls and nothing else.
    unsafe { command.pre_exec(before) };
    let mut child = step("starting its program", command.spawn())?;
    // The inner process has a clock of its own, which is to be first.
    let end = Instant::now() + job.limits.time + Duration::from_secs(5);
    let text = postcard::to_stdvec(job).expect("a job can be written down");
    let (mut stdin, stdout, stderr) = pipes(&mut child);
    // A program that fails early says why on its other pipe.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&text)));
    let most = job.limits.file + (1 << 20);
    let reader = std::thread::spawn(move || read_at_most(stdout, most));
    let complaints = std::thread::spawn(move || read_at_most(stderr, 4096));
    let status = wait_until(&mut child, end);
    // With the program all of its namespace is gone, and nobody has the other ends of the pipes.
    let (_, said) = (writer.join(), reader.join().unwrap_or_default());
    let complaint = complaints.join().unwrap_or_default();
    match step("waiting for its program", status)? {
        None => Ok(Outcome::Limit(format!("more than {:?}", job.limits.time))),
        Some(status) if status.success() => postcard::from_bytes(&said).map_err(|why| {
            SandboxError::Refused(format!("its program's answer is cut off: {why}"))
        }),
        Some(status) => {
            let complaint = String::from_utf8_lossy(&complaint).trim().to_owned();
            let text = if complaint.is_empty() { status.to_string() } else { complaint };
            Err(SandboxError::Refused(text))
        }
    }
}

type Pipes = (std::process::ChildStdin, std::process::ChildStdout, std::process::ChildStderr);

fn pipes(child: &mut Child) -> Pipes {
    let both = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let ((stdin, stdout), stderr) = both.expect("all three are piped");
    (stdin, stdout, stderr)
}

fn read_at_most(from: impl io::Read, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _cut = from.take(most).read_to_end(&mut bytes);
    bytes
}

/// Its exit status; none if the time was over first, and it is gone then.
fn wait_until(child: &mut Child, end: Instant) -> io::Result<Option<ExitStatus>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let pid = rustix::process::Pid::from_child(child);
    let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            Ok(_) => return child.wait().map(Some),
            Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
}

/// What a sandbox's program does in a role: the exit code.
pub fn main(role: &str) -> u8 {
    let done = match role {
        "outer" => outer(),
        "mapper" => mapper(),
        "inner" => inner().map(|()| 0),
        _ => Err(SandboxError::Refused(format!("`{role}` is no role of its program"))),
    };
    done.unwrap_or_else(|why| {
        let text = match why {
            SandboxError::Step { step, source } => format!("{step}: {source}"),
            SandboxError::Refused(text) => text,
        };
        eprintln!("{text}");
        1
    })
}

/// Makes namespaces, and the process that is the first in them.
fn outer() -> Result<u8, SandboxError> {
    let flags = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS;
    let mapper = match rustix::process::getuid().is_root() && step("its users", is_mapped(NOBODY))?
    {
        true => Some(step("its users", role("mapper").stdout(Stdio::piped()).spawn())?),
        false => None,
    };
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    // SAFETY: descriptors stay shared.
    let unshared = unsafe { rustix::thread::unshare_unsafe(flags) };
    step("new namespaces (is kernel.unprivileged_userns_clone off?)", unshared)?;
    step("its users", fs::write("/proc/self/setgroups", "deny"))?;
    match mapper {
        Some(mut mapper) => {
            drop(mapper.stdin.take());
            let status = step("its users", mapper.wait())?;
            if !status.success() {
                return Err(SandboxError::Refused(format!("mapping its users: {status}")));
            }
        }
        None => {
            let map = |number: u32| format!("{MAKER} {number} 1");
            step("its users", fs::write("/proc/self/uid_map", map(uid.as_raw())))?;
            step("its groups", fs::write("/proc/self/gid_map", map(gid.as_raw())))?;
        }
    }
    let status = step(
        "the first process in its namespaces",
        role("inner").stdin(Stdio::inherit()).status(),
    )?;
    match status.code() {
        Some(code) => Ok(code as u8),
        None => Err(SandboxError::Refused(format!("its first process ended with {status}"))),
    }
}

/// This program in another role, which ends with this process.
fn role(role: &str) -> Command {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    *arguments.last_mut().expect("the role") = role.into();
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).stdin(Stdio::piped());
    let before = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: it makes one system call.
    unsafe { command.pre_exec(before) };
    command
}

/// The user inside that makes the sandbox.
const MAKER: u32 = 0;
/// The user inside that the commands run as, where root is the one outside; `NOBODY` is who that is there.
/// The kernel does not count root's processes.
const COMMANDS: u32 = 1;
const NOBODY: u32 = 65534;

/// Maps two users for the outer process, which cannot map any but its own. It does so when its input ends:
/// the outer process has its namespaces then.
fn mapper() -> Result<u8, SandboxError> {
    step("its users", io::stdin().read_to_end(&mut Vec::new()))?;
    let outer = rustix::process::getppid().ok_or(io::Error::from(io::ErrorKind::NotFound));
    let outer = step("its users", outer)?.as_raw_nonzero();
    for map in ["uid_map", "gid_map"] {
        let users = format!("{MAKER} 0 1\n{COMMANDS} {NOBODY} 1");
        step("its users", fs::write(format!("/proc/{outer}/{map}"), users))?;
    }
    Ok(0)
}

/// Whether this namespace has such a user.
fn is_mapped(uid: u32) -> io::Result<bool> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    Ok(map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        matches!(numbers[..], [begin, _, count] if (begin..begin + count).contains(&uid.into()))
    }))
}

/// Takes the job, shuts itself in, and does it.
fn inner() -> Result<(), SandboxError> {
    let mut text = Vec::new();
    step("its job", io::stdin().read_to_end(&mut text))?;
    let job: Job = step("its job", postcard::from_bytes(&text).map_err(io::Error::other))?;
    let null = fs::File::options().read(true).write(true).open("/dev/null");
    let null = step("/dev/null", null)?;
    let user = if step("its users", is_mapped(COMMANDS))? { COMMANDS } else { MAKER };
    root(&job, user)?;
    shut(&job, user)?;
    for (path, bytes) in &job.files {
        let path = Path::new(BUILD).join(path);
        if let Some(directory) = path.parent() {
            step("a directory of the sources", fs::create_dir_all(directory))?;
        }
        step("a file of the sources", fs::write(path, bytes))?;
    }
    let outcome = match job.has_messages {
        true => messages(&job),
        false => commands(&job, &null)?,
    };
    let text = postcard::to_stdvec(&outcome).map_err(io::Error::other);
    step("its outcome", io::stdout().lock().write_all(&step("its outcome", text)?))
}

/// Makes the module of messages; the process ends before a thread that makes no end of it.
fn messages(job: &Job) -> Outcome {
    let text = |bytes: &ByteBuf| String::from_utf8_lossy(bytes).into_owned();
    let protos = job.files.iter().map(|(path, bytes)| (path.clone(), text(bytes))).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(proto::module(protos)));
    match receiver.recv_timeout(job.limits.time) {
        Ok(Ok(module)) => Outcome::Output(ByteBuf::from(module)),
        Ok(Err(why)) => Outcome::Failed(0, why.to_string()),
        Err(_) => Outcome::Limit(format!("more than {:?}", job.limits.time)),
    }
}

/// A root with the toolchain, the libraries and an empty directory for the build.
fn root(job: &Job, user: u32) -> Result<(), SandboxError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("private mounts", rustix::mount::mount_change("/", private))?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    let tmpfs = |at: &Path, bytes: u64, user: u32| {
        let options = format!("size={bytes},mode=755,uid={user},gid={user}");
        let options = CString::new(options).expect("no zero in it");
        step("a file system in memory", rustix::mount::mount("none", at, "tmpfs", plain, &*options))
    };
    let new = Path::new("/tmp");
    let inside = |path: &Path| new.join(path.strip_prefix("/").unwrap_or(path));
    // By descriptor, for the new root hides what is below /tmp.
    let open = |path: &PathBuf| {
        let (flags, mode) = (OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty());
        step(&path.display().to_string(), rustix::fs::open(path, flags, mode))
    };
    let toolchain = open(&job.toolchain)?;
    let libraries = job.libraries.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    tmpfs(new, 1 << 20, MAKER)?;
    let bind = |from: &OwnedFd, to: &Path| {
        let from = format!("/proc/self/fd/{}", from.as_raw_fd());
        step("a bind mount", rustix::mount::mount_bind(from, to))?;
        let has = step("a bind mount's flags", rustix::fs::statvfs(to))?.f_flag.bits();
        // What the mount it comes from is without, this one cannot have either.
        let kept = MountFlags::from_bits_truncate(has as u32)
            & (MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC);
        let flags = MountFlags::BIND | MountFlags::RDONLY | plain | kept;
        step("a read-only mount", rustix::mount::mount_remount(to, flags, c""))
    };
    let place = |path: &Path| {
        let place = inside(path);
        step("a directory", fs::create_dir_all(place.parent().unwrap_or(new)))?;
        step("a place for a library", fs::write(&place, "")).map(|()| place)
    };
    let directory = inside(Path::new(TOOLCHAIN));
    step("a directory", fs::create_dir(&directory))?;
    bind(&toolchain, &directory)?;
    for (path, library) in job.libraries.iter().zip(&libraries) {
        bind(library, &place(path)?)?;
    }
    let build = inside(Path::new(BUILD));
    step("a directory", fs::create_dir(&build))?;
    tmpfs(&build, job.limits.files, user)?;
    step("a read-only root", {
        rustix::mount::mount_remount(new, MountFlags::RDONLY | plain, c"")
    })?;
    step("its root", std::env::set_current_dir(new))?;
    step("its root", rustix::process::pivot_root(".", "."))?;
    step("the host's root", rustix::mount::unmount(".", UnmountFlags::DETACH))?;
    step("its directory", std::env::set_current_dir(BUILD))
}

/// Gives up what the commands must not have. What a process has here its children have.
fn shut(job: &Job, user: u32) -> Result<(), SandboxError> {
    use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    // The one thread that there is.
    step("the commands' user", set_thread_res_gid(gid, gid, gid))?;
    let limit = |resource, most: u64| {
        // No more than the builder has itself, which nobody here may raise.
        let own = rustix::process::getrlimit(resource).maximum;
        let most = Some(own.map_or(most, |own| own.min(most)));
        let limit = Rlimit { current: most, maximum: most };
        step("its limits", rustix::process::setrlimit(resource, limit))
    };
    let Limits { time, memory, file, processes, .. } = job.limits;
    limit(Resource::As, memory)?;
    limit(Resource::Fsize, file)?;
    limit(Resource::Cpu, time.as_secs().max(1) * 2)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, 256)?;
    limit(Resource::Memlock, 0)?;
    limit(Resource::Nproc, processes)?;
    for number in 0..64 {
        if let Some(capability) = CapabilitySet::from_bits(1 << number) {
            // What the kernel does not know, nobody has.
            let _unknown = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
    step("the commands' user", set_thread_res_uid(uid, uid, uid))?;
    // Another user's process is nobody's to kill unless it says so again (PR_SET_PDEATHSIG(2const)).
    let death = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    step("an end with its parent", death)?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    step("giving up capabilities", rustix::thread::set_capabilities(None, none))?;
    step("no new privileges", rustix::thread::set_no_new_privs(true))?;
    let restricted = landlock(job).map_err(|why| SandboxError::Refused(why.to_string()))?;
    if restricted == RulesetStatus::NotEnforced {
        let text =
            "the kernel has no Landlock; start it with `lsm=landlock,..` (kernel.org, landlock)";
        return Err(SandboxError::Refused(text.into()));
    }
    let filter = filter().map_err(|why| SandboxError::Refused(why.to_string()))?;
    seccompiler::apply_filter(&filter).map_err(|why| SandboxError::Refused(why.to_string()))
}

fn landlock(job: &Job) -> Result<RulesetStatus, landlock::RulesetError> {
    let abi = ABI::V3;
    let (all, read) = (AccessFs::from_all(abi), AccessFs::from_read(abi));
    let readable = job.libraries.iter().map(PathBuf::as_path).chain([Path::new(TOOLCHAIN)]);
    let ruleset = Ruleset::default().handle_access(all)?.create()?;
    let ruleset = ruleset.add_rules(path_beneath_rules(readable, read))?;
    let ruleset = ruleset.add_rules(path_beneath_rules([BUILD], all))?;
    Ok(ruleset.restrict_self()?.ruleset)
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|call| (*call, Vec::new())).collect();
    // Threads and processes, but no namespaces.
    let spaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let none = SeccompCmpOp::MaskedEq(spaces as u64);
    let plain = SeccompCondition::new(0, SeccompCmpArgLen::Qword, none, 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![plain])?]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::ENOSYS as u32),
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    filter.try_into()
}

/// `null` is the host's /dev/null, of which there is none inside.
fn commands(job: &Job, null: &fs::File) -> Result<Outcome, SandboxError> {
    let end = Instant::now() + job.limits.time;
    for (number, command) in job.commands.iter().enumerate() {
        let [program, arguments @ ..] = &command[..] else { continue };
        let mut child = Command::new(program);
        let nothing = || step("/dev/null", null.try_clone());
        child.args(arguments).env_clear().current_dir(BUILD).stdin(nothing()?);
        child.envs(&job.environment);
        // Without /proc the loader does not know where a program lies beside its libraries.
        child.env("LD_LIBRARY_PATH", format!("{TOOLCHAIN}/lib"));
        child.stdout(nothing()?).stderr(Stdio::piped());
        let mut child = step("starting a compiler", child.spawn())?;
        let mut said = child.stderr.take().expect("it is piped");
        let most = job.limits.text as u64;
        let reader = std::thread::spawn(move || {
            let text = read_at_most(&mut said, most);
            // The rest is not kept, and blocks nobody.
            let _rest = io::copy(&mut said, &mut io::sink());
            text
        });
        let status = step("waiting for a compiler", wait_until(&mut child, end))?;
        // What a command has left behind: all of the namespace but its first process, which is this one.
        // SAFETY: a system call on numbers.
        unsafe { libc::kill(-1, libc::SIGKILL) };
        let text = reader.join().unwrap_or_default();
        let Some(status) = status else {
            return Ok(Outcome::Limit(format!("more than {:?}", job.limits.time)));
        };
        let said = String::from_utf8_lossy(&text).into_owned();
        if let Some(outcome) = failed(status, (number, said), job) {
            return Ok(outcome);
        }
    }
    let output = Path::new(BUILD).join(&job.output);
    match fs::read(output) {
        Ok(bytes) => Ok(Outcome::Output(ByteBuf::from(bytes))),
        Err(why) => {
            let text = format!("there is no `{}`: {why}", job.output);
            Ok(Outcome::Failed(job.commands.len(), text))
        }
    }
}

fn failed(status: ExitStatus, (number, said): (usize, String), job: &Job) -> Option<Outcome> {
    if status.success() {
        return None;
    }
    let limits = job.limits;
    let over = match status.signal() {
        Some(libc::SIGXFSZ) => format!("more than {} bytes in one file", limits.file),
        Some(libc::SIGXCPU) => format!("more than {} s of CPU time", limits.time.as_secs() * 2),
        _ if said.contains("No space left on device") => {
            format!("more than {} bytes of files", limits.files)
        }
        _ if said.contains("memory allocation of") || said.contains("out of memory") => {
            format!("more than {} bytes of memory", limits.memory)
        }
        Some(libc::SIGKILL) => "more memory than this machine has".into(),
        // What it says then is its own: addresses, and paths of the host's libraries.
        Some(libc::SIGSEGV | libc::SIGBUS) => "more stack than the compiler has".into(),
        _ => return Some(Outcome::Failed(number, said)),
    };
    Some(Outcome::Limit(over))
}
