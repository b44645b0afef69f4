//! A process that means harm. It prints what it holds, then `ready` when its attack is under way, and
//! answers each line of its input with how much it has done: connections made, packets sent, links mapped.
//! One that holds its attack back (`linger-caller-held`) begins it with the first line; one that counts
//! (`unread`, `unwatched`) prints `packets` and their number.

use std::io::{BufRead, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use partywall_abi::control::{
    Grant, LinkMessage, ListMessage, Message, RegistryMessage, Role, Token,
};
use partywall_abi::name::ServiceName;
use partywall_shm::setup::{Adopted, Pending};
use partywall_shm::socket;
use partywall_testkit::{Conversation, PATIENCE, Result, lingering};
use rustix::process::{Resource, Rlimit};

/// What it has done.
static DONE: AtomicU64 = AtomicU64::new(0);

fn done() {
    DONE.fetch_add(1, Ordering::Relaxed);
}

fn tell_when_asked() {
    for _line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
        say(&format!("done {}", DONE.load(Ordering::Relaxed)));
    }
}

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
    /// How many connections to use.
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Links whose memory `memory` keeps before it gives all of them up.
    #[arg(long, default_value_t = 64)]
    keep: usize,
    /// Of a CPU, for `burn`.
    #[arg(long, default_value_t = 1.0)]
    load: f64,
    #[arg(long)]
    mode: Mode,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Uses a CPU, and nothing else: what attacks are compared with.
    Burn,
    /// Connects, says nothing, connects again.
    Connect,
    /// Connects and proves who it is, again and again, beside the connections that it has.
    Prove,
    /// Proves who it is, again and again, on all connections at once, as a program that has changed since.
    Measured,
    /// Asks for links on all connections, and reads no answer.
    Ask,
    /// Asks for what it may not have, and reads no answer.
    Denied,
    /// As denied on one connection, until nothing more is taken: how many packets were.
    Unread,
    /// Asks for what it may not have, and reads the answers.
    Refused,
    /// Serves a name and gives it up, on all connections in turn.
    Register,
    /// Watches a name on all connections, and changes who serves it.
    Watch,
    /// Watches a name, changes who serves it 800 times and reads only then: how many counts have come.
    Unwatched,
    /// Asks for lists, and reads no answer.
    List,
    /// Asks for links, maps what it is given, gives up all else, and asks again.
    Memory,
    /// Has as many links as it gets; prints how many these are before `ready`.
    Links,
    /// Reports links that there never were.
    Report,
    /// Asks for links to `dead`, which it serves itself and never answers for.
    Hung,
    /// Sends sockets that linger to the coordinator before its proof.
    LingerUnproven,
    /// Sends them after its proof, with each message and without one.
    LingerProven,
    /// Sends them on its end of links to `test`, before it has filled them.
    LingerCallerEarly,
    /// Likewise, when the links are open.
    LingerCallerLate,
    /// Likewise, when its input says so; the links are open before.
    LingerCallerHeld,
    /// Sends them on the server's end of a link whose caller's end is on its way to a caller that does not
    /// read; it is both.
    LingerQueued,
    /// Sends them on its end of links that others ask of `bad`, which it serves, before it adopts.
    LingerServerEarly,
    /// Likewise, when the callers have filled the links; it never opens them.
    LingerServerFilled,
    /// Likewise, when the links are open.
    LingerServerLate,
    /// Sends them on descriptor 3, where the coordinator that has started it listens.
    LingerStarted,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    if !matches!(arguments.mode, Mode::LingerCallerHeld) {
        std::thread::spawn(tell_when_asked);
    }
    let crowd = Crowd { arguments };
    match crowd.arguments.mode {
        Mode::Burn => crowd.burn(),
        Mode::Connect => crowd.connect(),
        Mode::Prove => crowd.prove(),
        Mode::Measured => crowd.measured(),
        Mode::Ask => crowd.flood(connect_to("test"), false),
        Mode::Denied => crowd.flood(connect_to("closed"), false),
        Mode::Refused => crowd.flood(connect_to("closed"), true),
        Mode::List => crowd.flood(|request| Message::List(ListMessage::List { request }), false),
        Mode::Report => crowd.flood(report, true),
        Mode::Register => crowd.register(),
        Mode::Watch => crowd.watch(),
        Mode::Unread => unread(&crowd.arguments.socket),
        Mode::Unwatched => unwatched(&crowd.arguments.socket),
        Mode::Memory => crowd.memory(),
        Mode::Links => crowd.links(),
        Mode::Hung => crowd.hung(),
        Mode::LingerCallerHeld => linger_when_told(&crowd.arguments.socket),
        Mode::LingerQueued => linger_queued(&crowd.arguments.socket),
        Mode::LingerUnproven
        | Mode::LingerProven
        | Mode::LingerCallerEarly
        | Mode::LingerCallerLate
        | Mode::LingerServerEarly
        | Mode::LingerServerFilled
        | Mode::LingerServerLate
        | Mode::LingerStarted => linger(&crowd.arguments),
    }
}

fn ready() {
    say("ready");
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody listens");
}

fn name(name: &str) -> ServiceName {
    ServiceName::new(name).expect("a name")
}

fn connect_to(to: &'static str) -> impl Fn(u32) -> Message {
    move |request| Message::Link(LinkMessage::Connect { request, name: name(to) })
}

fn report(request: u32) -> Message {
    let mut token = [0; 16];
    token[..4].copy_from_slice(&request.to_ne_bytes());
    Message::Link(LinkMessage::Report {
        request,
        token: Token(token),
        role: Role::Caller,
        name: name("test"),
        security: partywall::Security::HIGHEST,
        grant: Grant::NONE,
    })
}

struct Crowd {
    arguments: Arguments,
}

impl Crowd {
    fn burn(&self) -> Result<()> {
        ready();
        let part = Duration::from_millis(2);
        let load = self.arguments.load.clamp(0.001, 1.0);
        loop {
            let start = Instant::now();
            while start.elapsed() < part {
                std::hint::spin_loop();
            }
            std::thread::sleep(part.mul_f64(1.0 / load - 1.0));
        }
    }

    /// As many connections as are asked for; fewer when the coordinator gives no more.
    fn open(&self) -> Vec<Conversation> {
        let open = |_| Conversation::open(&self.arguments.socket).ok();
        let held: Vec<_> = (0..self.arguments.connections).map_while(open).collect();
        say(&format!("holds {}", held.len()));
        held
    }

    fn connect(&self) -> Result<()> {
        let mut held = std::collections::VecDeque::new();
        let mut said = false;
        loop {
            if held.len() >= self.arguments.connections {
                held.pop_front();
                if !said {
                    say(&format!("holds {}", held.len() + 1));
                    ready();
                    said = true;
                }
            }
            match Conversation::connect(&self.arguments.socket) {
                Ok(conversation) => {
                    held.push_back(conversation);
                    done();
                }
                // The backlog is full.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn prove(&self) -> Result<()> {
        let _held = self.open();
        ready();
        loop {
            if Conversation::open(&self.arguments.socket).is_ok() {
                done();
            }
        }
    }

    fn measured(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let program = std::env::current_exe()?;
        let again = || loop {
            // What was read of a file counts until the file changes, if only in its times.
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&program, mode).expect("it is this user's");
            if Conversation::open(&self.arguments.socket).is_ok() {
                done();
            }
        };
        ready();
        std::thread::scope(|all| {
            for _ in 0..self.arguments.connections {
                all.spawn(again);
            }
        });
        Ok(())
    }

    fn flood(&self, message: impl Fn(u32) -> Message, reads: bool) -> Result<()> {
        let mut held = self.open();
        ready();
        for request in 0_u32.. {
            for conversation in &mut held {
                let sent = conversation.try_say(&message(request));
                if matches!(sent, Ok(true)) {
                    done();
                }
                while reads && matches!(conversation.now(), Ok(Some(_))) {}
                if sent.is_err() {
                    // The coordinator has had enough of this one.
                    if let Ok(again) = Conversation::open(&self.arguments.socket) {
                        *conversation = again;
                    }
                }
            }
        }
        Ok(())
    }

    fn register(&self) -> Result<()> {
        let held = self.open();
        ready();
        for request in 0_u32.. {
            for (n, conversation) in held.iter().enumerate() {
                let flip = name(&format!("flip.{n}"));
                conversation.say(&Message::Registry(RegistryMessage::Register {
                    request,
                    name: flip,
                    places: 1,
                }))?;
                // One answer to each.
                match conversation.next()?.0 {
                    Message::Registry(RegistryMessage::Registered { registration, .. }) => {
                        conversation.say(&Message::Registry(RegistryMessage::Unregister {
                            registration,
                        }))?;
                        done();
                    }
                    other => return Err(format!("the coordinator says {other:?}").into()),
                }
            }
        }
        Ok(())
    }

    fn watch(&self) -> Result<()> {
        let mut flips = Conversation::open(&self.arguments.socket)?;
        let held = self.open();
        for conversation in &held {
            for request in 0..64 {
                let _full = conversation.try_say(&Message::Registry(RegistryMessage::Watch {
                    request,
                    name: name("flip.0"),
                }));
            }
        }
        ready();
        for request in 0_u32.. {
            match flip(&flips, request) {
                Ok(()) => done(),
                // Its account leaves too much unread: the coordinator has had enough of this one.
                Err(_) => flips = Conversation::open(&self.arguments.socket)?,
            }
        }
        Ok(())
    }

    fn memory(&self) -> Result<()> {
        let conversation = Conversation::open(&self.arguments.socket)?;
        ready();
        let mut kept = Vec::new();
        for request in 0_u32.. {
            conversation
                .say(&Message::Link(LinkMessage::Connect { request, name: name("test") }))?;
            match conversation.fill() {
                // What is mapped stays, whatever becomes of the link: its pages are this process's.
                Ok((_, pending)) => {
                    kept.push(pending);
                    done();
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            if kept.len() >= self.arguments.keep {
                kept.clear();
            }
        }
        Ok(())
    }

    fn links(&self) -> Result<()> {
        let mut held = Vec::new();
        let mut open = 0;
        'all: for _ in 0..self.arguments.connections {
            let Ok(conversation) = Conversation::open(&self.arguments.socket) else { break };
            let mut links = Vec::new();
            for request in 0..64_u32 {
                conversation
                    .say(&Message::Link(LinkMessage::Connect { request, name: name("test") }))?;
                let filled = conversation
                    .fill()
                    .and_then(|(_, pending)| Ok(pending.wait(Instant::now() + PATIENCE)?));
                match filled {
                    Ok(ends) => links.push(ends),
                    Err(refused) => {
                        say(&format!("refused: {refused}"));
                        held.push((conversation, links));
                        break 'all;
                    }
                }
                open += 1;
            }
            held.push((conversation, links));
        }
        say(&format!("holds {open}"));
        ready();
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn hung(&self) -> Result<()> {
        let server = Conversation::open(&self.arguments.socket)?;
        server.say(&Message::Registry(RegistryMessage::Register {
            request: 1,
            name: name("flip.dead"),
            places: 9999,
        }))?;
        self.flood(connect_to("flip.dead"), false)
    }
}

/// Serves a name that others watch, and gives it up.
fn flip(by: &Conversation, request: u32) -> Result<()> {
    by.say(&Message::Registry(RegistryMessage::Register {
        request,
        name: name("flip.0"),
        places: 1,
    }))?;
    match by.next()?.0 {
        Message::Registry(RegistryMessage::Registered { registration, .. }) => {
            by.say(&Message::Registry(RegistryMessage::Unregister { registration }))
        }
        other => Err(format!("the coordinator says {other:?}").into()),
    }
}

/// Sends sockets that linger until the receiver takes no more; true when the kernel refuses that.
fn send_lingering(to: std::os::fd::BorrowedFd<'_>, with: &[u8]) -> Result<bool> {
    for n in 0..4 {
        let (slow, other) = lingering(Duration::from_secs(3))?;
        // It lingers until this process ends.
        let _to_the_end = ManuallyDrop::new(other);
        match socket::send(to, with, &[slow.as_fd()]) {
            Ok(()) => {}
            Err(e) => {
                // This process is not to wait for itself.
                rustix::net::sockopt::set_socket_linger(&slow, None)?;
                let refused = e.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error());
                // Who has gone after the first one has had that.
                return if refused || n > 0 { Ok(refused) } else { Err(e.into()) };
            }
        }
    }
    Ok(false)
}

fn linger(arguments: &Arguments) -> Result<()> {
    let mut said = false;
    let mut serves = None;
    if matches!(
        arguments.mode,
        Mode::LingerServerEarly | Mode::LingerServerFilled | Mode::LingerServerLate
    ) {
        let server = Conversation::open(&arguments.socket)?;
        server.say(&Message::Registry(RegistryMessage::Register {
            request: 1,
            name: name("bad"),
            places: 999,
        }))?;
        server.next()?;
        ready();
        serves = Some(server);
    }
    loop {
        // A conversation, or a link, that is used up does not end the attack.
        let refused = one_lingering(arguments, serves.as_ref());
        if !said && let Ok(refused) = refused {
            say(if refused { "refused" } else { "sent" });
            if serves.is_none() {
                ready();
            }
            said = true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn one_lingering(arguments: &Arguments, serves: Option<&Conversation>) -> Result<bool> {
    let path = &arguments.socket;
    let ask = |conversation: &Conversation| {
        conversation.say(&Message::Link(LinkMessage::Connect { request: 1, name: name("test") }))
    };
    match arguments.mode {
        Mode::LingerUnproven => {
            let conversation = Conversation::connect(path)?;
            conversation.challenge()?;
            // An empty packet first: it looks like a hang-up.
            send_lingering(conversation.as_fd(), &[])?;
            send_lingering(conversation.as_fd(), b"no message")
        }
        Mode::LingerProven => {
            let conversation = Conversation::open(path)?;
            let list = Message::List(ListMessage::List { request: 1 }).encode();
            send_lingering(conversation.as_fd(), &list)?;
            send_lingering(conversation.as_fd(), &[])
        }
        Mode::LingerCallerEarly => {
            let conversation = Conversation::open(path)?;
            ask(&conversation)?;
            let (_, _, _, end) = conversation.linked()?;
            send_lingering(end.as_fd(), b"x")
        }
        Mode::LingerCallerLate => {
            let conversation = Conversation::open(path)?;
            ask(&conversation)?;
            let (terms, own, servers, end) = conversation.linked()?;
            let bare = end.as_fd().try_clone_to_owned()?;
            let pending = Pending::new(terms.link, terms.geometry, own, servers, end)?;
            conversation.say(&Message::Link(LinkMessage::Adopted {
                link: terms.link,
                security: terms.security,
            }))?;
            let _open = pending.wait(Instant::now() + PATIENCE)?;
            send_lingering(bare.as_fd(), &[])?;
            send_lingering(bare.as_fd(), b"x")
        }
        Mode::LingerServerEarly => {
            let (_, _own, end) = serves.expect("it serves").offered()?;
            // The coordinator waits for the word in vain, and the caller for the link.
            send_lingering(end.as_fd(), b"x")
        }
        Mode::LingerServerFilled => {
            let server = serves.expect("it serves");
            let (terms, own, end) = server.offered()?;
            let bare = end.as_fd().try_clone_to_owned()?;
            let _adopted = Adopted::new(terms.link, terms.geometry, own, end)?;
            server.say(&Message::Link(LinkMessage::Adopted {
                link: terms.link,
                security: terms.security,
            }))?;
            server.opened()?;
            // The caller waits for the word that the link is open.
            send_lingering(bare.as_fd(), b"x")
        }
        Mode::LingerServerLate => {
            let server = serves.expect("it serves");
            let (terms, own, end) = server.offered()?;
            let bare = end.as_fd().try_clone_to_owned()?;
            let adopted = Adopted::new(terms.link, terms.geometry, own, end)?;
            server.say(&Message::Link(LinkMessage::Adopted {
                link: terms.link,
                security: terms.security,
            }))?;
            let (_, callers) = server.opened()?;
            let _open = adopted.open(callers)?;
            send_lingering(bare.as_fd(), b"x")
        }
        Mode::LingerStarted => {
            let inherited = ManuallyDrop::new(socket::inherited(3)?);
            send_lingering(inherited.as_fd(), b"x")
        }
        _ => unreachable!("the others do not linger"),
    }
}

/// Callers that leave all answers unread, so that their end of a link waits in the coordinator's queue.
fn linger_queued(path: &Path) -> Result<()> {
    let refused = connect_to("closed")(9);
    let fits = answers_that_fit(path, &refused)?;
    let mut said = false;
    let mut _last = None;
    loop {
        let (server, caller) = (Conversation::open(path)?, Conversation::open(path)?);
        let own = name("flip.dead");
        server.say(&Message::Registry(RegistryMessage::Register {
            request: 1,
            name: own.clone(),
            places: 9,
        }))?;
        server.next()?;
        for _ in 0..fits + 4 {
            caller.say(&refused)?;
        }
        caller.say(&Message::Link(LinkMessage::Connect { request: 1, name: own }))?;
        // It comes when all else has been answered.
        let (terms, memory, end) = server.offered()?;
        let bare = end.as_fd().try_clone_to_owned()?;
        let _adopted = Adopted::new(terms.link, terms.geometry, memory, end)?;
        server.say(&Message::Link(LinkMessage::Adopted {
            link: terms.link,
            security: terms.security,
        }))?;
        // Its answer comes after the caller's end is on its way.
        server.say(&refused)?;
        server.next()?;
        // A busy coordinator may have given the link up by then.
        let Ok(refused) = send_lingering(bare.as_fd(), b"x") else { continue };
        if !std::mem::replace(&mut said, true) {
            say(if refused { "refused" } else { "sent" });
            ready();
        }
        // The caller of the last time goes, with what waits for it; this one stays for as long.
        _last = Some((server, caller));
    }
}

/// How many answers to a question a socket holds before they wait in the coordinator's queue.
fn answers_that_fit(path: &Path, question: &Message) -> Result<u64> {
    let reads_none = Conversation::open(path)?;
    reads_none.say(question)?;
    socket::wait_readable(reads_none.as_fd(), Instant::now() + PATIENCE)?;
    let one = rustix::io::ioctl_fionread(&reads_none)?;
    fill(path, &reads_none, question)?;
    Ok(rustix::io::ioctl_fionread(&reads_none)? / one)
}

/// Asks until nothing more is taken, at most a thousand times; how often that was.
fn fill(path: &Path, reads_none: &Conversation, question: &Message) -> Result<u64> {
    const MOST: u64 = 1000;
    let other = Conversation::open(path)?;
    // Connections of a user take turns: whose packets are not read while another one's are is not read
    // any more.
    let (mut idle, mut taken) = (0, 0);
    while idle < 4 && taken < MOST {
        idle += 1;
        while taken < MOST && reads_none.try_say(question)? {
            (idle, taken) = (0, taken + 1);
        }
        other.say(question)?;
        other.next()?;
    }
    Ok(taken)
}

fn unread(path: &Path) -> Result<()> {
    let reads_none = Conversation::open(path)?;
    // What waits here is not taken.
    rustix::net::sockopt::set_socket_send_buffer_size(&reads_none, 0)?;
    let taken = fill(path, &reads_none, &connect_to("closed")(9))?;
    say(&format!("packets {taken}"));
    Ok(())
}

fn unwatched(path: &Path) -> Result<()> {
    let (watches, flips) = (Conversation::open(path)?, Conversation::open(path)?);
    watches.say(&Message::Registry(RegistryMessage::Watch { request: 1, name: name("flip.0") }))?;
    (0..400).try_for_each(|request| flip(&flips, request))?;
    let (mut counts, mut before) = (0, None);
    // What is due comes when what was sent has been read: the turns of both are one after the other.
    while before != Some(counts) {
        before = Some(counts);
        while let Ok(Some(_)) = watches.now() {
            counts += 1;
        }
        for _ in 0..4 {
            flips.say(&connect_to("closed")(9))?;
            flips.next()?;
        }
    }
    say(&format!("packets {counts}"));
    Ok(())
}

/// Opens links, and sends sockets that linger on all of them at the first line of its input.
fn linger_when_told(path: &Path) -> Result<()> {
    let conversation = Conversation::open(path)?;
    let mut links = Vec::new();
    for request in 0..16 {
        conversation.say(&Message::Link(LinkMessage::Connect { request, name: name("test") }))?;
        let (terms, own, servers, end) = conversation.linked()?;
        let bare = end.as_fd().try_clone_to_owned()?;
        let pending = Pending::new(terms.link, terms.geometry, own, servers, end)?;
        conversation.say(&Message::Link(LinkMessage::Adopted {
            link: terms.link,
            security: terms.security,
        }))?;
        links.push((pending.wait(Instant::now() + PATIENCE)?, bare));
    }
    ready();
    std::io::stdin().lock().read_line(&mut String::new())?;
    let mut refused = true;
    for (_, bare) in &links {
        refused &= send_lingering(bare.as_fd(), b"x")?;
    }
    say(if refused { "refused" } else { "sent" });
    std::thread::sleep(Duration::MAX);
    Ok(())
}
