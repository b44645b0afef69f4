//! A process that gets the number of another one, in PID and user namespaces of its own: `unshare --user
//! --map-root-user --pid --fork --mount-proc at-heir`.
//!
//! ```text
//! heir      makes a socket, and starts a trusted program with it, which connects it and ends
//! kernel    gives the next process the number of the ended one, as the heir has asked (pid_namespaces(7))
//! heir      starts a program of its own with the socket: it answers for the trusted one
//! ```
//!
//! The coordinator stands still from the challenge to the answer, so that it finds both at once.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use clap::Parser;
use partywall_abi::control::{Message, SessionMessage};
use partywall_coordinator::{Coordinator, Policy};
use partywall_shm::socket;
use partywall_testkit::{Conversation, PATIENCE, Result, proof};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

#[derive(Parser)]
struct Arguments {
    /// The part that is played.
    part: String,
    /// Where the coordinator is.
    #[arg(long)]
    socket: PathBuf,
    /// The policy.
    #[arg(long)]
    policy: Option<PathBuf>,
    /// The program that the policy trusts, which is this one under another name.
    #[arg(long)]
    trusted: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.part.as_str() {
        "heir" => heir(&arguments),
        "connect" => {
            let mine = std::io::stdin();
            rustix::net::connect(mine.as_fd(), &SocketAddrUnix::new(&arguments.socket)?)?;
            if !socket::wait_readable(mine.as_fd(), Instant::now() + PATIENCE)? {
                return Err("no challenge".into());
            }
            say("asked")?;
            std::thread::sleep(PATIENCE);
            Ok(())
        }
        "prove" => prove(),
        "itself" => {
            println!("{:?}", Conversation::open(&arguments.socket)?.you().principals);
            Ok(())
        }
        "coordinate" => {
            let policy = arguments.policy.as_ref().ok_or("no policy")?;
            let policy = Policy::parse("policy", &std::fs::read_to_string(policy)?)?;
            let _coordinator = Coordinator::start(Some(&arguments.socket), policy)?;
            say("ready")?;
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Ok(())
        }
        part => Err(format!("no part {part}").into()),
    }
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// Waits until a program says a word of five letters; the rest of what it says.
fn hears(child: &mut Child) -> Result<ChildStdout> {
    let mut out = child.stdout.take().ok_or("piped")?;
    out.read_exact(&mut [0; 6])?;
    Ok(out)
}

/// Answers for whoever has connected its standard input, and says what comes of it.
fn prove() -> Result<()> {
    let mine = std::io::stdin();
    let conversation = Conversation::from(mine.as_fd().try_clone_to_owned()?);
    let nonce = conversation.challenge()?;
    conversation.say(&proof(nonce))?;
    say("sent!")?;
    // A proof that is not read resets the connection: what was said before that is lost, if it is not read
    // in time. So nothing is read before the end, where one comes.
    let patience = Timespec::try_from(PATIENCE)?;
    poll(&mut [PollFd::new(&mine, PollFlags::empty())], Some(&patience))?;
    let answer = match conversation.next_or_end()? {
        Some((Message::Session(SessionMessage::Refused { text, .. }), _)) => {
            format!("refused: {text}")
        }
        None => "closed".into(),
        Some((Message::Session(SessionMessage::Welcome { you }), _)) => {
            format!("taken for {:?} with number {:?}", you.principals, you.pid)
        }
        Some((other, _)) => format!("{other:?}"),
    };
    println!("{answer}");
    Ok(())
}

fn heir(arguments: &Arguments) -> Result<()> {
    let own = std::env::current_exe()?;
    let trusted = arguments.trusted.as_ref().ok_or("no trusted program")?;
    let mut coordinator = Command::new(&own)
        .args(["coordinate", "--socket"])
        .arg(&arguments.socket)
        .arg("--policy")
        .arg(arguments.policy.as_ref().ok_or("no policy")?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    hears(&mut coordinator)?;
    // The one is trusted, the other is not.
    for program in [trusted, &own] {
        let mut itself = Command::new(program);
        itself.arg("itself").arg("--socket").arg(&arguments.socket);
        print!("{}", String::from_utf8(itself.output()?.stdout)?);
    }
    let socket = unconnected()?;
    let mut connects = part(trusted, "connect", &arguments.socket, &socket)?;
    let number = connects.id();
    hears(&mut connects)?;
    kill_process(Pid::from_child(&coordinator), Signal::STOP)?;
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&coordinator)), stopped)?;
    connects.kill()?;
    connects.wait()?;
    let mut proves = loop {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string())?;
        let mut proves = part(&own, "prove", &arguments.socket, &socket)?;
        if proves.id() == number {
            break proves;
        }
        proves.kill()?;
        proves.wait()?;
    };
    let mut out = hears(&mut proves)?;
    kill_process(Pid::from_child(&coordinator), Signal::CONT)?;
    let mut said = String::new();
    out.read_to_string(&mut said)?;
    proves.wait()?;
    println!("{}", said.trim());
    drop(coordinator.stdin.take());
    coordinator.wait()?;
    Ok(())
}

fn unconnected() -> Result<OwnedFd> {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?)
}

fn part(program: &Path, part: &str, at: &Path, with: &OwnedFd) -> Result<Child> {
    let mut command = Command::new(program);
    command.arg(part).arg("--socket").arg(at);
    command.stdin(Stdio::from(with.try_clone()?)).stdout(Stdio::piped());
    Ok(command.spawn()?)
}
