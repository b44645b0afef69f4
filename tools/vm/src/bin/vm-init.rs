//! The first process of the machine for tests: runs the programs of the manifest and powers off.
//!
//! Whatever cannot be done is said on the port of the transcript, or on the kernel's console as
//! long as there is none. The host sees either way that the last frame is missing.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use partywall_vm::frame::{End, Frame};
use partywall_vm::manifest::{self, Program};
use partywall_vm::{LEFT, MANIFEST, PORT};
use rustix::mount::{MountFlags, mount};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait,
};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};

/// How often ended processes are looked for while nothing is printed.
const LOOK: Duration = Duration::from_millis(20);

/// How long the output of a program may stay open after its end.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);

/// How long what a program has left may take to end.
const CLEAR_LIMIT: Duration = Duration::from_secs(30);

/// Name of the file system, and where it is mounted. Of control groups there is version 2 alone.
const MOUNTS: [(&str, &str); 4] =
    [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys"), ("cgroup2", "/sys/fs/cgroup")];

/// Where tests keep their files. Nothing is mounted there: programs of the host have their places in the
/// machine as well, and that may be one of them.
const TEMPORARY: &str = "/tmp";

fn main() {
    if let Err(error) = all() {
        eprintln!("vm-init: {error}");
    }
    let why = reboot(RebootCommand::PowerOff);
    // Only reached when it could not: the kernel stops the machine when this process ends.
    eprintln!("vm-init: powering off: {why:?}");
}

fn all() -> Result<(), String> {
    for (kind, path) in MOUNTS {
        fs::create_dir_all(path).map_err(at(path))?;
        mount(kind, path, kind, MountFlags::empty(), None).map_err(|e| at(path)(e.into()))?;
    }
    fs::create_dir_all(TEMPORARY).map_err(at(TEMPORARY))?;
    let anybody = Permissions::from_mode(0o1777);
    fs::set_permissions(TEMPORARY, anybody).map_err(at(TEMPORARY))?;
    fs::create_dir_all(LEFT).map_err(at(LEFT))?;
    let mut port = Port::open().map_err(at(PORT))?;
    let outcome = programs(&mut port);
    if let Err(fault) = &outcome {
        port.send(&Frame::Fault(fault.clone()))?;
    }
    tcdrain(&port.0).map_err(|e| at(PORT)(e.into()))?;
    outcome
}

fn programs(port: &mut Port) -> Result<(), String> {
    let text = fs::read_to_string(MANIFEST).map_err(at(MANIFEST))?;
    let programs = manifest::parse(&text).map_err(|why| why.to_string())?;
    for program in &programs {
        run(port, program)?;
        for name in &program.leaves {
            if let Err(fault) = send_file(port, name) {
                port.send(&Frame::Fault(format!("{} left no file: {fault}", program.name)))?;
            }
        }
    }
    port.send(&Frame::Done(programs.len()))
}

/// Says where an error happened.
fn at(path: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("{path}: {error}")
}

/// The serial port of the transcript.
struct Port(File);

impl Port {
    fn open() -> io::Result<Self> {
        let port = File::options().read(true).write(true).open(PORT)?;
        let mut modes = tcgetattr(&port)?;
        modes.make_raw();
        tcsetattr(&port, OptionalActions::Now, &modes)?;
        Ok(Self(port))
    }

    fn send(&mut self, frame: &Frame) -> Result<(), String> {
        self.0.write_all(format!("{frame}\n").as_bytes()).map_err(at(PORT))
    }
}

/// Runs one program; what it prints is sent as it comes.
fn run(port: &mut Port, program: &Program) -> Result<(), String> {
    port.send(&Frame::Begin(program.name.clone()))?;
    let begin = Instant::now();
    let (reader, pid) = start(program).map_err(at(&program.path))?;
    let lines = read_lines(reader);
    let mut ended: Option<(WaitStatus, Instant)> = None;
    let mut killed = false;
    let open = loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => port.send(&Frame::Text(line))?,
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break false,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            Err(RecvTimeoutError::Timeout) => {}
        }
        // Orphans come to this process as well; their ends are nobody's business.
        while let Ok(Some((who, status))) = wait(WaitOptions::NOHANG) {
            if who == pid {
                ended = Some((status, Instant::now()));
            }
        }
        if ended.is_some_and(|(_, since)| since.elapsed() > LEFTOVER_LIMIT) {
            break true;
        }
        if !killed && ended.is_none() && begin.elapsed() > program.limit {
            tasks(port)?;
            killed = kill_process_group(pid, Signal::KILL).is_ok();
        }
    };
    let seconds = i32::try_from(program.limit.as_secs()).unwrap_or(i32::MAX);
    let code = |status: WaitStatus| status.exit_status().unwrap_or(-1);
    let end = match ended {
        _ if killed => End::Limit(seconds),
        Some((status, _)) if open => End::Open(code(status)),
        Some((status, _)) => {
            status.terminating_signal().map_or(End::Exit(code(status)), End::Signal)
        }
        None => End::Exit(-1),
    };
    let time = begin.elapsed();
    clear(port, &program.name)?;
    port.send(&Frame::End { name: program.name.clone(), end, time })
}

/// Ends what a program has left running, so that the next one has the machine to itself.
fn clear(port: &mut Port, name: &str) -> Result<(), String> {
    let begin = Instant::now();
    let mut left = processes();
    let many = left.len();
    while !left.is_empty() && begin.elapsed() < CLEAR_LIMIT {
        for pid in left.iter().filter_map(|process| number(process)) {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // It may have ended meanwhile.
            let _gone = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        std::thread::sleep(LOOK);
        left = processes();
    }
    if many > 0 {
        let took = begin.elapsed();
        let text = format!("{name} left {many} processes; {} are there after {took:?}", left.len());
        port.send(&Frame::Text(text))?;
    }
    Ok(())
}

/// Starts a program in a process group of its own, with its two outputs.
fn start(program: &Program) -> io::Result<([PipeReader; 2], Pid)> {
    use std::os::unix::process::CommandExt as _;
    let ((out, to_out), (err, to_err)) = (io::pipe()?, io::pipe()?);
    let mut command = Command::new(&program.path);
    command
        .args(&program.arguments)
        .env_clear()
        .envs(program.variables.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(to_out)
        .stderr(to_err);
    let child = command.spawn()?;
    Ok(([out, err], Pid::from_child(&child)))
}

/// Reads both pipes to their ends, one message per line, without its line break. A line of one output is
/// never within a line of the other.
fn read_lines(pipes: [PipeReader; 2]) -> Receiver<String> {
    let (sender, receiver) = channel();
    for pipe in pipes {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut bytes = Vec::new();
            while pipe.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&bytes);
                if sender.send(text.trim_end_matches(['\r', '\n']).to_owned()).is_err() {
                    break;
                }
                bytes.clear();
            }
        });
    }
    receiver
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn word(path: &Path, name: &str) -> String {
    fs::read_to_string(path.join(name)).unwrap_or_default().trim_end().to_owned()
}

fn number(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.parse().ok()
}

/// The user programs that run, but for this one: programs have mappings, tasks of the kernel none.
fn processes() -> Vec<PathBuf> {
    let mut all = entries(Path::new("/proc"));
    all.retain(|p| number(p).is_some_and(|number| number > 1) && !word(p, "maps").is_empty());
    all
}

/// Says what each task of a user program is at, for the reader of a run that hangs.
fn tasks(port: &mut Port) -> Result<(), String> {
    for process in processes() {
        for task in entries(&process.join("task")) {
            let stat = word(&task, "stat");
            let state = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').next());
            let text = format!(
                "at the limit: {} {} {} waits in {}, system call {}",
                task.display(),
                word(&task, "comm"),
                state.unwrap_or("?"),
                word(&task, "wchan"),
                word(&task, "syscall"),
            );
            port.send(&Frame::Text(text))?;
        }
    }
    Ok(())
}

fn send_file(port: &mut Port, name: &str) -> Result<(), String> {
    let path = format!("{LEFT}/{name}");
    let text = fs::read_to_string(&path).map_err(at(&path))?;
    port.send(&Frame::File(name.to_owned()))?;
    for line in text.lines() {
        port.send(&Frame::Text(line.to_owned()))?;
    }
    port.send(&Frame::Filed { name: name.to_owned(), lines: text.lines().count() })
}
