//! The way into a container for the process of a sample.
//!
//! No engine passes open descriptors into a container. So each container of a run has this program as its
//! first process, the porter, which connects to a socket of the driver's and starts what it is told to:
//!
//! ```text
//! driver  order as JSON; descriptors: where to report, then those of the order -> porter
//! porter  Word::Started; a descriptor of the process (pidfd) -> driver
//! driver  Known -> porter
//! porter  Word::Ended -> driver
//! ```
//!
//! In place of Started and what follows it may say Word::Failed. A process has its number until the porter
//! has waited for it, so it does that only once the driver knows the number.
//!
//! One order at a time. The porter ends, and its container with it, when the driver hangs up. The driver
//! takes a connection only from the process that the engine says is the container's first.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::child::{Order, START};
use crate::error::Result;
use crate::sys::fd::inherit;

/// What a porter says.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// The process runs.
    Started,
    /// It has ended with this status, so long after it was started.
    Ended { status: i32, wall_ns: u64 },
    /// It could not be started.
    Failed(String),
}

/// What the driver says once it knows which number the process has outside.
#[derive(Debug, Serialize, Deserialize)]
struct Known(u32);

/// Bytes of a message, at most.
const MESSAGE: usize = 64 << 10;

/// Descriptors of a message, at most, as the kernel has it (SCM_MAX_FD).
const DESCRIPTORS: usize = 253;

/// Sends a message with descriptors.
fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(format!("{} descriptors for a container, not {DESCRIPTORS}", fds.len()).into());
    }
    let text = serde_json::to_vec(message)?;
    sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message and its descriptors; none once the other side has hung up.
fn receive(socket: impl AsFd) -> Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = vec![0; MESSAGE];
    let got = retry_on_intr(|| {
        let room = &mut [IoSliceMut::new(&mut text)];
        recvmsg(&socket, room, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err("a message of a porter or for one is too long".into());
    }
    text.truncate(got.bytes);
    Ok((got.bytes > 0).then_some((text, fds)))
}

/// Where the driver waits for the porter of a container.
#[derive(Debug)]
pub struct Door(OwnedFd);

impl Door {
    /// A socket with this name, to which anyone can connect.
    ///
    /// # Errors
    /// Those of the system calls for sockets.
    pub fn open(path: &Path) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(kind.0, kind.1, kind.2, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        listen(&socket, 8)?;
        Ok(Self(socket))
    }

    /// Takes the porter that is process `pid`; whoever else connects is hung up on.
    ///
    /// # Errors
    /// If it does not come in time.
    pub fn take(self, pid: u32, limit: Duration) -> Result<Porter> {
        let end = Instant::now() + limit;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if !readable(&[self.0.as_fd()], left)?[0] {
                continue;
            }
            let socket = accept_with(&self.0, SocketFlags::CLOEXEC)?;
            let peer = sockopt::socket_peercred(&socket)?;
            if peer.pid.as_raw_pid().unsigned_abs() == pid {
                sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(START))?;
                return Ok(Porter(socket));
            }
        }
        Err(format!("process {pid} of a container has not connected to the driver").into())
    }
}

/// A container's porter, as the driver has it.
#[derive(Debug)]
pub struct Porter(OwnedFd);

impl Porter {
    /// Has the process of `order` started, with these descriptors in the order of [`Order::numbers`].
    ///
    /// # Errors
    /// If that cannot be.
    pub fn start(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<(Remote, OwnedFd)> {
        let (says, output) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let all: Vec<_> = std::iter::once(output.as_fd()).chain(fds.iter().copied()).collect();
        send(&self.0, order, &all)?;
        drop(output);
        match hear(&self.0)? {
            (Word::Started, Some(pidfd)) => {
                let socket = self.0.try_clone()?;
                let pid = number(&pidfd)?;
                send(&socket, &Known(pid), &[])?;
                Ok((Remote { socket, pidfd, pid, status: None, wall_ns: None }, says))
            }
            (Word::Failed(why), _) => Err(format!("in a container: {why}").into()),
            (other, _) => Err(format!("a porter says {other:?}").into()),
        }
    }
}

/// What a porter says next, and the descriptor that it says it with.
fn hear(socket: impl AsFd) -> Result<(Word, Option<OwnedFd>)> {
    let (text, fds) = receive(socket)?.ok_or("a container has ended")?;
    Ok((serde_json::from_slice(&text)?, fds.into_iter().next()))
}

/// The number that a process has in this process's namespace.
fn number(pidfd: &OwnedFd) -> Result<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let line = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    let pid: u32 = line.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0);
    if pid == 0 { Err("a porter has sent something that is no process".into()) } else { Ok(pid) }
}

/// A process in a container, ended with its handle.
#[derive(Debug)]
pub struct Remote {
    socket: OwnedFd,
    pidfd: OwnedFd,
    pid: u32,
    status: Option<ExitStatus>,
    wall_ns: Option<u64>,
}

impl Remote {
    /// Its number on the host.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What is readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// How long it ran; none before it has ended.
    pub fn wall_ns(&self) -> Option<u64> {
        self.wall_ns
    }

    /// Its exit status once there is one.
    ///
    /// # Errors
    /// If its porter says something else.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() && readable(&[self.pidfd.as_fd()], Duration::ZERO)?[0] {
            match hear(&self.socket)?.0 {
                Word::Ended { status, wall_ns } => {
                    self.status = Some(ExitStatus::from_raw(status));
                    self.wall_ns = Some(wall_ns);
                }
                other => return Err(format!("a porter says {other:?}").into()),
            }
        }
        Ok(self.status)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.status.is_none() {
            // It may have ended; and where its porter has gone, so has it.
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            let _ = hear(&self.socket);
        }
    }
}

/// Waits for so long until one of these is readable or hung up; which are.
fn readable(fds: &[BorrowedFd<'_>], limit: Duration) -> Result<Vec<bool>> {
    let mut all: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    retry_on_intr(|| poll(&mut all, Some(&Timespec::try_from(limit).unwrap_or_default())))?;
    Ok(all.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// Runs the porter of a container: does what the driver at `socket` says until that hangs up.
pub fn run(socket: &Path) -> ExitCode {
    match serve(socket, &|| Ok(Command::new(std::env::current_exe()?))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}

/// Connects to the driver.
fn call(path: &Path) -> Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let driver = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    connect(&driver, &SocketAddrUnix::new(path)?)?;
    Ok(driver)
}

/// How this program is started again.
type Program<'a> = &'a dyn Fn() -> Result<Command>;

fn serve(path: &Path, program: Program<'_>) -> Result<()> {
    let driver = call(path)?;
    while let Some((order, fds)) = receive(&driver)? {
        let begun = Instant::now();
        let (mut child, pidfd) = match start(program, &order, fds) {
            Ok(started) => started,
            Err(error) => {
                send(&driver, &Word::Failed(error.to_string()), &[])?;
                continue;
            }
        };
        send(&driver, &Word::Started, &[pidfd.as_fd()])?;
        let Some(ended) = watch(&driver, &pidfd, begun)? else {
            // What it has started ends with its container.
            return Ok(());
        };
        let status = child.wait()?.into_raw();
        send(&driver, &Word::Ended { status, wall_ns: ended.as_nanos() as u64 }, &[])?;
    }
    Ok(())
}

/// Waits for the end of a process, and until the driver knows its number: how long after `begun` it has
/// ended. None once the driver has hung up.
fn watch(driver: &OwnedFd, pidfd: &OwnedFd, begun: Instant) -> Result<Option<Duration>> {
    let (mut known, mut ended) = (false, None);
    loop {
        // What is ready already is not waited for.
        let waited = if ended.is_some() {
            vec![driver.as_fd()]
        } else {
            vec![driver.as_fd(), pidfd.as_fd()]
        };
        let ready = readable(&waited, START)?;
        if ready.get(1) == Some(&true) {
            ended = Some(begun.elapsed());
        }
        if ready[0] {
            match receive(driver)? {
                Some(_) => known = true,
                None => return Ok(None),
            }
        }
        if known && ended.is_some() {
            return Ok(ended);
        }
    }
}

/// Starts this program again as the process of an order, whose descriptors have other numbers here.
fn start(program: Program<'_>, order: &[u8], fds: Vec<OwnedFd>) -> Result<(Child, OwnedFd)> {
    let order: Order = serde_json::from_slice(order)?;
    let mut fds = fds.into_iter();
    let output = fds.next().ok_or("an order without a place for its report")?;
    let own: Vec<OwnedFd> = fds.collect();
    for fd in &own {
        inherit(fd.as_fd())?;
    }
    let numbers: Vec<_> = own.iter().map(AsRawFd::as_raw_fd).collect();
    let order = order.renumbered(std::process::id(), &numbers)?;
    let child = program()?
        .args(["child", &serde_json::to_string(&order)?])
        .stdin(Stdio::null())
        .stdout(output)
        .spawn()?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    Ok((child, pidfd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::tests::order;
    use std::io::{Read, Write};
    use std::thread::{self, JoinHandle};

    /// In the place of this program: says its order and what is in its control page, and ends with status 3;
    /// by the label "forever" it does not end.
    const PROGRAM: &str = "control=$(echo \"$2\" | sed 's/.*\"control\":\\([0-9]*\\).*/\\1/')
echo \"$2\"
cat /proc/self/fd/$control
case \"$2\" in *forever*) exec sleep 1000;; esac
exit 3
";

    struct Container {
        dir: tempfile::TempDir,
        porter: Porter,
        thread: JoinHandle<Result<()>>,
    }

    fn program() -> Result<Command> {
        let mut program = Command::new("sh");
        program.args(["-c", PROGRAM, "sh"]);
        Ok(program)
    }

    fn container() -> Container {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("door");
        let door = Door::open(&path).expect("a socket");
        let thread = thread::spawn(move || serve(&path, &program));
        let porter = door.take(std::process::id(), START).expect("a porter");
        Container { dir, porter, thread }
    }

    impl Container {
        /// Starts the order with a file as its page and no other descriptor.
        fn start(&self, label: &str) -> Result<(Remote, OwnedFd)> {
            let mut page = tempfile::tempfile_in(self.dir.path())?;
            page.write_all(b"the page")?;
            std::io::Seek::rewind(&mut page)?;
            let mut order = order();
            (order.lifeline, order.ends) = (None, vec![None]);
            order.sample.label = label.into();
            self.porter.start(&order, &[page.as_fd()])
        }
    }

    /// Its status, once it has ended.
    fn ended(remote: &mut Remote) -> ExitStatus {
        assert!(readable(&[remote.pidfd()], START).expect("poll")[0], "it has not ended");
        remote.try_wait().expect("a word").expect("a status")
    }

    #[test]
    fn a_process_gets_its_order_and_descriptors_and_is_waited_for() {
        let container = container();
        for _ in 0..2 {
            let (mut remote, says) = container.start("once").expect("started");
            assert_eq!(ended(&mut remote).code(), Some(3));
            assert!(remote.wall_ns().expect("a time") > 0);
            let mut said = String::new();
            std::fs::File::from(says).read_to_string(&mut said).expect("read");
            let (given, page) = said.split_once('\n').expect("two lines");
            let given: Order = serde_json::from_str(given).expect("an order");
            assert_eq!((given.driver, given.close), (std::process::id(), vec![]));
            assert_eq!((given.sample.label.as_str(), page), ("once", "the page"));
        }
        drop(container.porter);
        container.thread.join().expect("no panic").expect("the driver has hung up");
    }

    #[test]
    fn a_process_that_goes_on_ends_with_its_handle() {
        let container = container();
        let (remote, _says) = container.start("forever").expect("started");
        let pid = remote.pid();
        let is_there = || Path::new(&format!("/proc/{pid}")).exists();
        assert!(is_there());
        drop(remote);
        assert!(!is_there(), "it goes on, or was not waited for");
        let (mut next, _says) = container.start("once").expect("the porter goes on");
        assert_eq!(ended(&mut next).code(), Some(3));
    }

    #[test]
    fn an_order_that_does_not_fit_its_descriptors_is_refused() {
        let container = container();
        let error = container.porter.start(&order(), &[]).expect_err("no page").to_string();
        assert!(error.contains("0 descriptors for an order of 4"), "{error}");
        let many = vec![container.dir.path(); DESCRIPTORS];
        let many: Vec<_> =
            many.iter().map(|dir| std::fs::File::open(dir).expect("a directory")).collect();
        let many: Vec<_> = many.iter().map(AsFd::as_fd).collect();
        assert!(container.porter.start(&order(), &many).is_err(), "one more than the kernel takes");
        container.start("once").expect("the porter goes on");
    }

    #[test]
    fn a_stranger_at_the_door_is_no_porter() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("door");
        let door = Door::open(&path).expect("a socket");
        let stranger = call(&path).expect("there is room");
        let error = door.take(1, Duration::from_millis(200)).expect_err("not process 1");
        assert!(error.to_string().contains("process 1 "), "{error}");
        assert!(receive(&stranger).expect("hung up on").is_none());
    }
}
