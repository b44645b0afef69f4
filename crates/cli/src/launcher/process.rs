//! The launcher's own side: one thread that waits for requests, for ends and for poisonings. The
//! kernel kills domains when the thread that started them ends, so all are started here, by the
//! main thread.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::task::{Called, Domain, Program};
use partywall_shm::{socket, spawn::SOCKET_NUMBER};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::protocol::{Ended, Report, Start, encode, receive};

struct Running {
    service: u32,
    domain: Domain,
}

struct Launcher {
    socket: OwnedFd,
    space: AddressSpace,
    running: Vec<Running>,
    /// What the socket did not take.
    outgoing: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

/// Holds domains, kept apart so, until whoever has started this process hangs up.
pub(crate) fn run(isolation: Isolation) -> Result<ExitCode, Box<dyn Error>> {
    let socket = socket::inherited(SOCKET_NUMBER)
        .map_err(|why| format!("descriptor {SOCKET_NUMBER}: {why}; `partywall up` starts this"))?;
    let unfit = |text: String| {
        let sent = encode(&Report::Unfit { text }).map(|p| socket::send(socket.as_fd(), &p, &[]));
        // Whoever does not hear it sees this process end.
        drop(sent);
        ExitCode::FAILURE
    };
    let space = match AddressSpace::new(isolation) {
        Ok(space) => space,
        Err(why) => return Ok(unfit(why.to_string())),
    };
    let poisonings = match poisonings(&space) {
        Ok(poisonings) => poisonings,
        Err(why) => return Ok(unfit(format!("watching for calls that are cut off: {why}"))),
    };
    let mut launcher = Launcher { socket, space, running: Vec::new(), outgoing: VecDeque::new() };
    let isolation = launcher.space.isolation().to_string();
    launcher.report(&Report::Ready { isolation }, None)?;
    while launcher.turn(poisonings.as_fd())? {}
    Ok(ExitCode::SUCCESS)
}

/// A descriptor that is readable when a context has been poisoned.
fn poisonings(space: &AddressSpace) -> io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (rung, space) = (bell.try_clone()?, space.clone());
    std::thread::Builder::new().name("domain-poisonings".into()).spawn(move || {
        let mut seen = 0;
        loop {
            seen = space.await_poisoning(seen);
            // A full counter is readable as well.
            let _ = rustix::io::write(&rung, &1_u64.to_ne_bytes());
        }
    })?;
    Ok(bell)
}

impl Launcher {
    /// Waits for something and does what there is to do; false after a hang-up.
    fn turn(&mut self, poisonings: BorrowedFd<'_>) -> io::Result<bool> {
        let ready = self.wait(poisonings)?;
        let [asked, poisoned, ended @ ..] = &ready[..] else {
            unreachable!("two are always there")
        };
        if *poisoned {
            let _counted = rustix::io::read(poisonings, &mut [0; 8]);
        }
        let ended: Vec<bool> = ended.to_vec();
        for at in (0..self.running.len()).rev() {
            if ended[at] || self.running[at].domain.is_poisoned() {
                self.end(at)?;
            }
        }
        self.flush()?;
        if !*asked {
            return Ok(true);
        }
        match receive::<Start>(self.socket.as_fd()) {
            Ok(Some((start, descriptors))) => self.start(start, descriptors).map(|()| true),
            Ok(None) => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Which are readable: the socket, the poisonings, each domain's pidfd.
    fn wait(&self, poisonings: BorrowedFd<'_>) -> io::Result<Vec<bool>> {
        let room = if self.outgoing.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let mut fds = vec![
            PollFd::new(&self.socket, PollFlags::IN | room),
            PollFd::from_borrowed_fd(poisonings, PollFlags::IN),
        ];
        let pidfds = self.running.iter().map(|r| r.domain.pidfd());
        fds.extend(pidfds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        let there = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok(fds.iter().map(|fd| fd.revents().intersects(there)).collect())
    }

    fn start(&mut self, start: Start, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let service = start.service;
        let started = self.try_start(start, descriptors);
        let (report, pidfd) = match started {
            Ok((pid, pidfd)) => (Report::Started { service, pid }, Some(pidfd)),
            // What it quotes may be as long as a request is.
            Err(text) => {
                (Report::Failed { service, text: text.chars().take(4096).collect() }, None)
            }
        };
        self.report(&report, pidfd)
    }

    fn try_start(
        &mut self,
        start: Start,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(u32, OwnedFd), String> {
        let Start { service, args, environment, directory } = start;
        let [image, coordinator, out, errors] = <[OwnedFd; 4]>::try_from(descriptors)
            .map_err(|found| format!("{} descriptors came with it, not 4", found.len()))?;
        if self.running.iter().any(|r| r.service == service) {
            return Err("it is running already".into());
        }
        let nothing = File::open("/dev/null").map_err(|e| format!("its standard input: {e}"))?;
        // The socket becomes number SOCKET_NUMBER.
        let descriptors = vec![nothing.into(), out, errors, coordinator];
        let program = Program {
            image,
            args: args.into_iter().map(Into::into).collect(),
            environment: environment.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            directory,
            descriptors,
        };
        let domain = Domain::start(&self.space, program).map_err(|e| e.to_string())?;
        let pidfd = domain.pidfd().try_clone_to_owned().map_err(|e| format!("its pidfd: {e}"))?;
        let pid = domain.pid();
        self.running.push(Running { service, domain });
        Ok((pid, pidfd))
    }

    /// Drops a domain, which frees whoever is inside, and reports it.
    fn end(&mut self, at: usize) -> io::Result<()> {
        let Running { service, mut domain } = self.running.remove(at);
        let poisoned = domain.is_poisoned();
        let status = domain.try_wait()?.map(ExitStatusExt::into_raw);
        let called = domain.called();
        drop(domain);
        let Called { calls, forwards, ticks, callee_time } = called;
        let away = callee_time;
        let ended = Ended { service, status, poisoned, calls, forwards, ticks, away };
        self.report(&Report::Ended(ended), None)
    }

    fn report(&mut self, report: &Report, fd: Option<OwnedFd>) -> io::Result<()> {
        let packet = encode(report).map_err(|_| io::Error::other("a report that is too long"))?;
        self.outgoing.push_back((packet, fd));
        self.flush()
    }

    /// Sends what waits, as far as the socket takes it.
    fn flush(&mut self) -> io::Result<()> {
        while let Some((packet, fd)) = self.outgoing.front() {
            let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
            match socket::send(self.socket.as_fd(), packet, &fds) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The next look at the socket finds the hang-up.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.outgoing.clear(),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
