//! How processes come in: accepted, looked at, challenged, looked at again, open.
//!
//! The proof is in [`crate::identity`]; this is who takes its steps when.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::control::{Message, SessionMessage, Token};
use partywall_abi::limits;
use partywall_abi::version::{Capabilities, Versions};
use partywall_shm::socket::{self, Credentials, Endpoint, Lingering};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::SocketFlags;

use super::{EventLoop, LISTENER, OPERATORS, RETRY};
use crate::engine::{Question, Told};
use crate::identity::{self, Facts, Measured};
use crate::measure::{Found, Job};
use crate::peer::{Challenged, Charges, Known, Look, Peer, Reason, Stage, Started};
use crate::quota::{Account, Resource, Usage};
use crate::signatures::Beside;
use crate::state::{Socket, Spoken, UNAVAILABLE};
use crate::workload::{Visit, Visitor};

/// How long a process may take to answer the challenge.
const PROOF_TIME: Duration = Duration::from_secs(5);
/// How long the program of a process may take to be measured, and its engine to answer, with the wait for a
/// thread: who mounts a file system can let a program file never be read.
const MEASURE_TIME: Duration = Duration::from_secs(60);
/// Descriptors that a look at a process takes: a pidfd, and files in /proc, on this thread and
/// where programs are measured and engines asked.
const LOOK: usize = 8;
/// What a control socket of ours holds unread, in bytes; the kernel doubles it.
const SEND_BUFFER: usize = limits::CONTROL_BYTES;

/// A socket to which processes connect.
pub(super) struct Listener {
    socket: Lingering,
    token: u64,
    /// It was made by another process: who connected before this one refused descriptors may have sent
    /// some.
    handed: bool,
    /// Something may be in its backlog.
    pub(super) backlog: bool,
}

impl Listener {
    /// The operators' socket and the common one, in this order, where they are.
    pub(super) fn both(
        epoll: &OwnedFd,
        operators: Option<Lingering>,
        common: Option<(Lingering, bool)>,
    ) -> Result<Vec<Self>, rustix::io::Errno> {
        let operators = operators.map(|socket| (socket, OPERATORS, false));
        let common = common.map(|(socket, handed)| (socket, LISTENER, handed));
        let listen = |(socket, token, handed)| {
            let (data, flags) = (EventData::new_u64(token), EventFlags::IN | EventFlags::ET);
            epoll::add(epoll, &socket, data, flags)?;
            Ok(Self { socket, token, handed, backlog: true })
        };
        operators.into_iter().chain(common).map(listen).collect()
    }
}

impl EventLoop {
    /// Something may be in the backlog of the listener with this token, or of all.
    pub(super) fn has_backlog(&mut self, token: Option<u64>) {
        let those = self.listeners.iter_mut().filter(|l| token.is_none_or(|t| t == l.token));
        those.for_each(|listener| listener.backlog = true);
    }

    pub(super) fn add(&mut self, s: Started) {
        let credentials = Credentials {
            pid: s.pid,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let signature = Beside { found: s.signature, at: self.state.time() };
        let known = Known { name: s.name, digest: s.digest, signature, domain: s.domain };
        match charges(&self.usage(credentials, Some(&known))) {
            Ok(charges) => self.admit(s.socket, credentials, Some(s.pidfd), Some(known), charges),
            Err(why) => tracing::error!(why, name = known.name, "a service was turned away"),
        }
    }

    /// A workload has connected, for which a part of this process speaks from now on.
    pub(super) fn visited(&mut self, visit: Visit) {
        let end = self.take_workload(visit.visitor);
        (visit.answer)(end);
    }

    fn take_workload(&mut self, visitor: Visitor) -> Result<OwnedFd, String> {
        let Visitor { credentials, pidfd } = visitor;
        self.spare.clear();
        let (start, usage) = (Instant::now(), self.usage(credentials, None));
        let _else_nobody_is_accepted = self.room();
        let take = || {
            if pidfd.as_ref().is_some_and(|pidfd| !socket::alive(pidfd.as_fd())) {
                return Err("the process that connected has ended".into());
            }
            // Four descriptors, of which others have two.
            let charges = charges_of(&usage, 2)?;
            let pair = socket::pair().map_err(|e| format!("socketpair: {e}"))?;
            Ok((charges, pair))
        };
        let taken: Result<_, String> = take();
        let end = taken.map(|(charges, (ours, theirs))| {
            let token = self.next_token;
            self.admit(Endpoint::new(ours), credentials, pidfd, None, charges);
            if let Some(peer) = self.peers.get_mut(&token) {
                peer.came_by = Socket::Workload;
            }
            theirs
        });
        self.spent(&usage, start);
        end
    }

    /// Takes one from this listener's backlog.
    pub(super) fn accept(&mut self, at: usize) {
        let room = self.room();
        let listener = &mut self.listeners[at];
        let (at_operators, handed) = (listener.token == OPERATORS, listener.handed);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match room.and_then(|()| rustix::net::accept_with(&listener.socket, flags)) {
            Ok(socket) => {
                if std::mem::take(&mut self.short) {
                    tracing::warn!("there are descriptors again");
                }
                if handed { Endpoint::used(socket) } else { Endpoint::new(socket) }
            }
            Err(rustix::io::Errno::AGAIN) => {
                // Who comes from here on finds a socket that refuses descriptors.
                (listener.backlog, listener.handed) = (false, false);
                return;
            }
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                if !std::mem::replace(&mut self.short, true) {
                    tracing::warn!("out of descriptors; connections wait (see `ulimit -n`)");
                }
                self.listeners.iter_mut().for_each(|listener| listener.backlog = false);
                self.accept_at = Some(Instant::now() + RETRY.1);
                return;
            }
            Err(_) => return,
        };
        let Ok(credentials) = socket::peer_credentials(socket.as_fd()) else { return };
        self.spare.clear();
        let pidfd = match identity::pidfd(socket.as_fd(), credentials) {
            Ok(pidfd) => pidfd,
            Err(errno) => {
                return tracing::warn!(
                    ?credentials,
                    %errno,
                    "no pidfd of a connecting process; the connection is closed"
                );
            }
        };
        let (start, usage) = (Instant::now(), self.usage(credentials, None));
        // What was read by the number of a process that has ended may be another one's.
        if pidfd.as_ref().is_some_and(|pidfd| !socket::alive(pidfd.as_fd())) {
            return turn_away(&socket, "the process that connected has ended".into());
        }
        let token = self.next_token;
        self.take_in(socket, credentials, pidfd, &usage);
        if let Some(peer) = self.peers.get_mut(&token) {
            peer.came_by = if at_operators { Socket::Operators } else { Socket::Common };
        }
        self.spent(&usage, start);
    }

    fn take_in(
        &mut self,
        socket: Endpoint,
        credentials: Credentials,
        pidfd: Option<OwnedFd>,
        usage: &Arc<Usage>,
    ) {
        match charges(usage) {
            Ok(charges) => self.admit(socket, credentials, pidfd, None, charges),
            Err(why) => {
                tracing::debug!(why, "a connection was turned away");
                turn_away(&socket, why);
            }
        }
    }

    /// Sees to it that a connection that is accepted now can be looked at; otherwise it waits where
    /// it is, for what is accepted and not looked at would be lost.
    pub(super) fn room(&mut self) -> Result<(), rustix::io::Errno> {
        while self.spare.len() < LOOK {
            self.spare.push(rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0)?);
        }
        Ok(())
    }

    /// Whose a process is that is not known yet.
    fn usage(&self, credentials: Credentials, started: Option<&Known>) -> Arc<Usage> {
        let Credentials { pid, uid, gid } = credentials;
        let account = match started {
            Some(known) => Account::Service(known.name.clone()),
            None => self.reader.account(uid, gid, (pid != 0).then_some(pid)),
        };
        self.quotas.account(account, None)
    }

    /// Step 1 of the proof. The next one is the connection's first turn.
    pub(super) fn admit(
        &mut self,
        mut socket: Endpoint,
        credentials: Credentials,
        pidfd: Option<OwnedFd>,
        started: Option<Known>,
        charges: Charges,
    ) {
        let token = self.next_token;
        self.next_token += 2;
        let Some(nonce) = random() else {
            return tracing::error!("no randomness; a connection is refused");
        };
        let buffer = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        if socket.pass_credentials().is_err() || buffer.is_err() {
            return tracing::error!("setsockopt failed; a connection is refused");
        }
        // Its first turn comes without an event.
        let flags = EventFlags::ONESHOT;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(token), flags).is_err() {
            return;
        }
        if let Some(pidfd) = &pidfd {
            let data = EventData::new_u64(token + 1);
            if epoll::add(&self.epoll, pidfd, data, EventFlags::IN).is_err() {
                return;
            }
        }
        let challenged = Challenged { nonce, spoken: None, until: None, look: Look::Due };
        let peer = Peer::new(socket, pidfd, credentials, started, challenged, charges);
        self.peers.insert(token, peer);
        self.is_ready(token);
    }

    /// Step 2 of the proof.
    pub(super) fn first_look(&mut self, token: u64) {
        let Some(mut peer) = self.peers.remove(&token) else { return };
        let facts = self.kernel_facts(&peer);
        let measures = self.measure(token, &peer, &facts, None);
        if let Stage::Challenged(challenged) = &mut peer.stage {
            challenged.look = if measures { Look::First(facts.clone()) } else { Look::Done };
        }
        self.peers.insert(token, peer);
        match measures {
            true => self.awaits(token, Some(MEASURE_TIME)),
            false => self.challenge(token, facts),
        }
    }

    /// What the kernel and the coordinator itself know of a process.
    pub(super) fn kernel_facts(&mut self, peer: &Peer) -> Facts {
        let Credentials { pid, uid, gid } = peer.credentials;
        self.spare.clear();
        let facts = self.reader.read(uid, gid, (pid != 0).then_some(pid));
        let _else_nobody_is_accepted = self.room();
        match &peer.started {
            Some(Known { name, digest, signature, domain }) => {
                facts.started(name.clone(), *digest, signature.clone(), *domain)
            }
            None => facts,
        }
    }

    /// Whether the program of a process is measured now, or this question asked: then
    /// [`EventLoop::measured`] follows.
    fn measure(
        &mut self,
        token: u64,
        peer: &Peer,
        facts: &Facts,
        question: Option<Question>,
    ) -> bool {
        // What was started is known from before it ran; /proc adds nothing to that.
        let pid = facts.pid.filter(|_| peer.started.is_none());
        let program = pid.filter(|_| self.state.policy().observes(facts));
        let asks = program.is_some() || question.is_some();
        if asks {
            let account = peer.usage().account().clone();
            self.measuring.take(Job { token, account, program, question });
        }
        asks
    }

    /// What the engine of a process's container is to be asked, if the policy goes by that.
    fn question(&self, facts: &Facts) -> Option<Question> {
        let container =
            facts.container.clone().filter(|_| self.state.policy().asks_engine(facts))?;
        let api = self.reader.engines.api(&container.engine).map(Path::to_path_buf);
        let signatures = self.state.policy().signatures_of_images();
        Some(Question { container, api, signatures })
    }

    /// It has been found out what was to be, for the first look or for the second.
    pub(super) fn measured(&mut self, token: u64, found: Found) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let Stage::Challenged(challenged) = &mut peer.stage else { return };
        match std::mem::replace(&mut challenged.look, Look::Done) {
            Look::First(facts) => self.challenge(token, observed(facts, found.program)),
            Look::Second(before, facts) => {
                let facts = observed(*facts, found.program);
                if let Err(reason) = self.open(token, &before, facts, found.origin) {
                    self.close(token, reason);
                }
            }
            Look::Due | Look::Asked(_) | Look::Done => {}
        }
    }

    /// Step 3 of the proof.
    pub(super) fn challenge(&mut self, token: u64, facts: Facts) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        if let Stage::Challenged(challenged) = &mut peer.stage {
            challenged.look = Look::Asked(facts);
            let (versions, capabilities) = (Versions::OWN, Capabilities::OWN);
            let nonce = challenged.nonce;
            let challenge = SessionMessage::Challenge { versions, capabilities, nonce };
            // A program that was started may need long before it answers: it loads, it is debugged.
            let time = peer.started.is_none().then_some(PROOF_TIME);
            self.awaits(token, time);
            self.post(token, &challenge.into(), Vec::new());
        }
    }

    /// The time for an answer is over. One that has come and was not looked at yet is in time: the
    /// coordinator is what was late.
    pub(super) fn late(&mut self, token: u64) {
        let Some(peer) = self.peers.get(&token) else { return };
        let Stage::Challenged(challenged) = &peer.stage else { return };
        if matches!(challenged.look, Look::First(_) | Look::Second(..)) {
            return self
                .close(token, "what its program is, or its container, was not known in time");
        }
        match socket::wait_readable(peer.socket.as_fd(), Instant::now()) {
            Ok(true) => self.is_ready(token),
            _ => self.close(token, "no proof of identity in time"),
        }
    }

    /// From now on something is to come from a process, or of it, within this time.
    fn awaits(&mut self, token: u64, time: Option<Duration>) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let Stage::Challenged(challenged) = &mut peer.stage else { return };
        let until = time.map(|time| Instant::now() + time);
        let before = std::mem::replace(&mut challenged.until, until);
        self.no_longer_due(before, token);
        self.proofs.extend(until.map(|until| (until, token)));
    }

    /// Step 4 of the proof.
    pub(super) fn prove(&mut self, token: u64, message: &Message) -> Result<(), Reason> {
        let mut peer = self.peers.remove(&token).expect("the caller has it");
        let answered = answer(&mut peer, message);
        let facts = self.kernel_facts(&peer);
        let question = self.question(&facts);
        let measures = answered.is_ok() && self.measure(token, &peer, &facts, question);
        self.peers.insert(token, peer);
        self.awaits(token, measures.then_some(MEASURE_TIME));
        let before = answered?;
        if !measures {
            return self.open(token, &before, facts, None);
        }
        let peer = self.peers.get_mut(&token).expect("just put back");
        if let Stage::Challenged(challenged) = &mut peer.stage {
            challenged.look = Look::Second(before.into(), facts.into());
        }
        Ok(())
    }

    /// Step 5 of the proof.
    fn open(
        &mut self,
        token: u64,
        before: &Facts,
        after: Facts,
        told: Option<Told>,
    ) -> Result<(), Reason> {
        self.awaits(token, None);
        let peer = self.peers.get_mut(&token).expect("the callers have it");
        if !peer.is_alive() {
            return Err("the process ended while it was being looked at".into());
        }
        if after != *before {
            return Err("the process changed while it proved itself".into());
        }
        let after = match told {
            Some(told) => after.told(told),
            None => after,
        };
        let usage = self.state.account(&after);
        if !Arc::ptr_eq(&usage, peer.usage()) {
            let exceeded = "its account has all the connections that it may have";
            let charge = |resource, n| usage.charge(resource, n).map_err(|_| exceeded);
            peer.charges = Charges {
                connection: charge(Resource::Connections, peer.charges.connection.amount())?,
                unproven: None,
                unread: charge(Resource::Unread, 0)?,
            };
        }
        peer.charges.unproven = None;
        let Stage::Challenged(challenged) = &peer.stage else {
            return Err("a proof of what was proven".into());
        };
        let Some(spoken) = challenged.spoken else {
            return Err("it has not said what it speaks".into());
        };
        tracing::debug!(version = spoken.version, capabilities = %spoken.capabilities, "proven");
        let conn = self.state.opened_at(peer.came_by, after, usage, spoken);
        peer.stage = Stage::Open(conn);
        self.tokens.insert(conn, token);
        Ok(())
    }
}

/// The facts with what was read of the program file, if it was.
fn observed(facts: Facts, measured: Option<Measured>) -> Facts {
    match measured {
        Some(measured) => facts.observed(measured),
        None => facts,
    }
}

/// What a connection is charged from the beginning.
fn charges(usage: &Arc<Usage>) -> Result<Charges, String> {
    charges_of(usage, 1)
}

/// The same of one that counts as so many.
fn charges_of(usage: &Arc<Usage>, connections: usize) -> Result<Charges, String> {
    let charge = |resource, n| usage.charge(resource, n).map_err(|e| e.to_string());
    Ok(Charges {
        connection: charge(Resource::Connections, connections)?,
        unproven: Some(charge(Resource::Unproven, 1)?),
        unread: charge(Resource::Unread, 0)?,
    })
}

/// Tells a process that has not proven itself why it will not be heard, if it has room for that.
pub(super) fn turn_away(socket: &Endpoint, text: String) {
    let refused = Message::from(SessionMessage::Refused { request: 0, code: UNAVAILABLE, text });
    let _unread = socket::send(socket.as_fd(), &refused.encode(), &[]);
}

pub(super) fn random_token() -> Token {
    // getrandom(2) gives up to 256 bytes whole once the system has started.
    Token(random().expect("the system has randomness"))
}

fn random() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    (got == Ok(bytes.len())).then_some(bytes)
}

/// What was known of the process when it was asked for the proof that it gives now.
fn answer(peer: &mut Peer, message: &Message) -> Result<Facts, Reason> {
    let Stage::Challenged(challenged) = &mut peer.stage else {
        return Err("a proof of what was proven".into());
    };
    let Message::Session(SessionMessage::Proof { versions, version, capabilities, nonce }) =
        message
    else {
        return Err("a message before the proof of identity".into());
    };
    challenged.spoken = Some(spoken(*versions, *version, *capabilities)?);
    if nonce != &challenged.nonce {
        return Err("a wrong nonce".into());
    }
    match std::mem::replace(&mut challenged.look, Look::Done) {
        Look::Asked(before) => Ok(before),
        Look::Due | Look::First(_) | Look::Second(..) | Look::Done => {
            Err("a proof that was not asked for".into())
        }
    }
}

/// What a process and this coordinator speak with each other.
fn spoken(versions: Versions, version: u16, capabilities: Capabilities) -> Result<Spoken, Reason> {
    let agreed = Versions::agree(versions, Versions::OWN).map_err(|why| why.to_string())?;
    if version != agreed {
        return Err(format!(
            "this program chose version {version} of Partywall's protocol; it speaks {versions}, and the \
             coordinator {}, so that version {agreed} was to be chosen",
            Versions::OWN
        )
        .into());
    }
    Ok(Spoken { version, capabilities })
}
