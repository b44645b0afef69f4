//! What runs in containers: a server of frames, a caller that calls as each line of its input says, and
//! attacks on the coordinator's socket. The answer to a line is a line.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::{Parser, Subcommand};
use partywall::parcel::Sealed;
use partywall::{Channel, Endpoint, Server};
use partywall_stubs_tests::ours::frames::Frame;
use partywall_stubs_tests::ours::frames::frames_client::FramesClient;
use partywall_stubs_tests::ours::frames::frames_server::{Frames, FramesServer};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};

/// The number of a frame whose server takes memory until it has none.
const EATS: u64 = u64::MAX;
/// From so many bytes on messages travel in parcels.
const LONG: usize = 256 * 1024;
const MOST: usize = 64 << 20;

type Error = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Serves this name.
    Serve { name: String },
    /// Calls this name with so many bytes as each line says: `turned THERE BACK`, whether they were in a
    /// parcel there and back, or `failed CODE MESSAGE`. `eat` has the server take all memory. `join` has the
    /// caller itself try to leave its control groups: what comes of that. `start` has a child do the same as
    /// its parent, and ends the one before; `child LINE` is for the child.
    Ask { name: String },
    /// Does nothing.
    Idle,
    /// Listens here as a coordinator would.
    Listen { socket: PathBuf },
    /// Tries to put another socket where this one is: the name of each attempt and its error.
    Replace { socket: PathBuf },
}

fn main() -> Result<(), Error> {
    let role = Arguments::parse().role;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    partywall::parcel::pack_from(LONG);
    match role {
        Role::Serve { name } => {
            let service = FramesServer::new(Turns)
                .max_decoding_message_size(MOST)
                .max_encoding_message_size(MOST);
            let server = Server::builder().add_service(service);
            Ok(runtime.block_on(server.serve(&name))?)
        }
        Role::Ask { name } => runtime.block_on(ask(&name)),
        Role::Idle => runtime.block_on(std::future::pending()),
        Role::Listen { socket } => listen(&socket),
        Role::Replace { socket } => replace(&socket),
    }
}

struct Turns;

#[tonic::async_trait]
impl Frames for Turns {
    type PlayStream = Empty<Result<Frame, Status>>;

    async fn turn(&self, frame: Request<Frame>) -> Result<Response<Frame>, Status> {
        let mut frame = frame.into_inner();
        if frame.number == EATS {
            let mut eaten = Vec::new();
            loop {
                eaten.push(std::hint::black_box(vec![1_u8; 1 << 20]));
            }
        }
        frame.in_parcel = Sealed::of(&frame.pixels).is_some();
        Ok(Response::new(frame))
    }

    async fn play(&self, _: Request<Frame>) -> Result<Response<Self::PlayStream>, Status> {
        Err(Status::unimplemented("no streams here"))
    }

    async fn store(&self, _: Request<Streaming<Frame>>) -> Result<Response<Frame>, Status> {
        Err(Status::unimplemented("no streams here"))
    }
}

/// The channel of the first line serves all. What reads lines is a thread, so that the link is looked after
/// meanwhile.
async fn ask(name: &str) -> Result<(), Error> {
    let (tell, mut lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.blocking_send(line).is_err() {
                break;
            }
        }
    });
    let (mut client, mut child) = (None, None);
    while let Some(line) = lines.recv().await {
        let (number, len) = match line.as_str() {
            "join" => {
                println!("{}", join());
                continue;
            }
            "start" => {
                drop(child.take());
                child = Some(Child::start(name)?);
                println!("started");
                continue;
            }
            line if line.starts_with("child ") => {
                let child = child.as_mut().ok_or("no child")?;
                println!("{}", child.say(&line["child ".len()..])?);
                continue;
            }
            "eat" => (EATS, 1),
            len => (7, len.parse()?),
        };
        let said = match turn(&mut client, name, number, len).await {
            Ok((there, back)) => format!("turned {there} {back}"),
            Err(status) => format!("failed {:?} {}", status.code(), status.message()),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", said.replace('\n', " "))?;
        out.flush()?;
    }
    Ok(())
}

/// Another process of this program.
struct Child(std::process::Child);

impl Child {
    fn start(name: &str) -> Result<Self, Error> {
        let mut command = std::process::Command::new("/proc/self/exe");
        command.args(["ask", name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// Its answer to one line.
    fn say(&mut self, line: &str) -> Result<String, Error> {
        writeln!(self.0.stdin.as_mut().ok_or("piped")?, "{line}")?;
        let mut answer = String::new();
        std::io::BufReader::new(self.0.stdout.as_mut().ok_or("piped")?).read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn turn(
    client: &mut Option<FramesClient<Channel>>,
    name: &str,
    number: u64,
    len: usize,
) -> Result<(bool, bool), Status> {
    let client = match client {
        Some(client) => client,
        None => {
            let endpoint = Endpoint::new(format!("partywall:///{name}").as_str());
            let endpoint = endpoint.map_err(|e| Status::internal(e.to_string()))?;
            let channel = endpoint.connect().await?;
            let fresh = FramesClient::new(channel);
            client.insert(fresh.max_decoding_message_size(MOST).max_encoding_message_size(MOST))
        }
    };
    let pixels: Vec<u8> = (0..len).map(|n| (n / 4096 + n) as u8).collect();
    let frame = Frame { number, pixels: pixels.into(), in_parcel: false };
    let turned = client.turn(frame.clone()).await?.into_inner();
    if turned.pixels != frame.pixels || turned.number != number {
        return Err(Status::data_loss("other bytes"));
    }
    Ok((turned.in_parcel, Sealed::of(&turned.pixels).is_some()))
}

fn listen(socket: &Path) -> Result<(), Error> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(socket)?)?;
    rustix::fs::chmod(socket, Mode::from_raw_mode(0o666))?;
    rustix::net::listen(&listener, 8)?;
    let mut held = Vec::new();
    loop {
        held.push(rustix::net::accept(&listener)?);
    }
}

/// Each attempt is made, whatever became of those before it.
fn replace(socket: &Path) -> Result<(), Error> {
    let directory = socket.parent().ok_or("a socket is in a directory")?;
    let beside = directory.join("other.sock");
    let (mode, own) = (Mode::from_raw_mode(0o777), rustix::process::geteuid());
    let attempts = [
        ("unlink", rustix::fs::unlink(socket)),
        ("rename", rustix::fs::rename(socket, &beside)),
        ("bind", std::os::unix::net::UnixListener::bind(&beside).map(drop).map_err(errno)),
        ("create", rustix::fs::open(&beside, OFlags::CREATE | OFlags::WRONLY, mode).map(drop)),
        ("symlink", rustix::fs::symlink("/tmp", &beside)),
        ("chmod", rustix::fs::chmod(socket, mode)),
        ("chown", rustix::fs::chownat(CWD, socket, Some(own), None, rustix::fs::AtFlags::empty())),
        ("mount", rustix::mount::mount_bind("/proc", directory)),
        ("remount", rustix::mount::mount_remount(directory, MountFlags::BIND, "")),
        ("unmount", rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH)),
    ];
    for (name, done) in attempts {
        println!("{name} {}", done.map_or_else(code, |()| "done".to_owned()));
    }
    Ok(())
}

/// Tries to put itself into another group of each hierarchy that it sees, to make those writable, and to
/// mount them anew: each kind of attempt with each of its outcomes.
fn join() -> String {
    let root = Path::new("/sys/fs/cgroup");
    let is_dir = |path: &PathBuf| path.is_dir();
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let below = entries(root).map(|entry| entry.path()).filter(is_dir);
    let own = std::process::id().to_string();
    let outcome = |done: Result<(), Errno>| done.map_or_else(code, |()| "done".to_owned());
    let mut all = std::collections::BTreeSet::new();
    for group in below.chain([root.to_owned()]) {
        if group.join("cgroup.procs").exists() {
            let into = std::fs::write(group.join("cgroup.procs"), &own).map_err(errno);
            let made = std::fs::create_dir(group.join("other")).map_err(errno);
            all.extend([format!("write {}", outcome(into)), format!("make {}", outcome(made))]);
        }
        let again = rustix::mount::mount_remount(&group, MountFlags::BIND, "");
        all.insert(format!("remount {}", outcome(again)));
    }
    for kind in ["cgroup", "cgroup2"] {
        let mounted = rustix::mount::mount("none", "/proc", kind, MountFlags::empty(), None);
        all.insert(format!("mount {}", outcome(mounted)));
    }
    let host = rustix::fs::open("/proc/1/ns/cgroup", OFlags::RDONLY, Mode::empty());
    all.insert(format!(
        "namespace {}",
        outcome(host.and_then(|namespace| {
            let kind = Some(rustix::thread::LinkNameSpaceType::ControlGroup);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)
        }))
    ));
    all.into_iter().collect::<Vec<_>>().join(", ")
}

fn code(error: Errno) -> String {
    match error {
        Errno::ROFS => "EROFS".into(),
        Errno::PERM => "EPERM".into(),
        Errno::ACCESS => "EACCES".into(),
        other => other.raw_os_error().to_string(),
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}
