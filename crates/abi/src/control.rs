//! Messages between a process and the coordinator.
//!
//! One `SOCK_SEQPACKET` Unix socket per process; every message is one packet: a kind, the number
//! of the request it belongs to (zero when it belongs to none), then the fields of that kind,
//! little-endian. File descriptors travel beside it (`SCM_RIGHTS`).
//!
//! ```text
//! process                                coordinator
//!          <------------------ Challenge   nonce
//!  Proof   ------------------>             the nonce, with SCM_CREDENTIALS of the sender
//!          <------------------ Welcome     who the coordinator takes the process for
//!          or <--------------- Refused     at any point before that, and the end
//!
//!  Register ----------------->             serve a name
//!          <---------------- Registered
//!  Connect ------------------>             a link to a name
//!  Cancel  ------------------>             or no longer
//!            (the server gets) Offer       + fds [its outbox, its socket]
//!            (and says)        Adopted
//!          <-------------------- Linked    + fds [its outbox, the server's outbox, its socket]
//!  Adopted ------------------>
//!            (the server gets) Open        + fd  [the caller's outbox]
//!          or <--------------- Redirect    the name is reached over the network
//!          or <------------------ Refused  a gRPC code and a text
//!
//!            (each end gets)   Allowed     other methods may be called from now on
//!            (each end gets)   Ended       the link is over
//!            (an end gets)     Died        the other end is over, or its process has ended
//!  Closed  ------------------>             this end is over, and what it counted
//!
//!  Report  ------------------>             to a new coordinator: this link is open
//!          <------------------ Reported
//!
//!  Switch ------------------->             open or close the gate of a domain
//!            (the domain gets) SetGate     and says GateSet
//!          <------------------ Switched
//! ```
//!
//! Only the coordinator sends descriptors. Who writes an outbox has it for writing, who reads it
//! for reading, and only when it is sealed against every other writer. After `Open` the two ends
//! speak over their socket alone, and the server begins with a [`Setup`].

use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;
use crate::name::{MethodSet, ServiceName};

mod fields;
mod link;
mod setup;

pub use fields::{Digest, Identity};
use fields::{code, flag, identity, methods, name, put_identity, put_methods, put_text};
pub use link::{Blame, Isolation, LinkRow, LinkStats, Role, Terms, Token};
use link::{blame, put_blame, put_role, put_row, put_stats, put_terms, role, row, stats, terms};
pub use setup::Setup;

/// Both sides of the control conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// To the process: prove who you are.
    Challenge {
        /// Version of the coordinator's ABI.
        version: u16,
        /// Sixteen random bytes.
        nonce: [u8; 16],
    },
    /// To the coordinator: here I am.
    Proof {
        /// Version of the process's ABI.
        version: u16,
        /// The nonce of the challenge.
        nonce: [u8; 16],
    },
    /// To the process: this is who you are.
    Welcome {
        /// Its identity.
        you: Identity,
    },
    /// To the coordinator: I serve this name.
    Register {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
        /// Links that it can serve at once, under all names of this process together.
        places: u32,
    },
    /// To the process: you do.
    Registered {
        /// Request number.
        request: u32,
        /// Number of this registration.
        registration: u64,
    },
    /// To the coordinator: I no longer serve it; open links go on.
    Unregister {
        /// Number of the registration.
        registration: u64,
    },
    /// To the coordinator: give me a link to this name.
    Connect {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
    },
    /// To the coordinator: I do not wait for this link any more.
    Cancel {
        /// Number of the connect request.
        request: u32,
    },
    /// To the caller: your end. Descriptors: your outbox for writing, the server's for reading,
    /// your end of the socket.
    Linked {
        /// Request number.
        request: u32,
        /// The link; its peer is the server.
        terms: Terms,
    },
    /// To the caller: the name is reached over the network.
    Redirect {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
        /// What the caller knows it by.
        token: Token,
        /// Where.
        url: String,
        /// What the caller may call.
        methods: MethodSet,
    },
    /// To the process: no.
    Refused {
        /// Request number.
        request: u32,
        /// gRPC status code.
        code: u8,
        /// What, where and the remedy.
        text: String,
    },
    /// To the server: a caller. Descriptors: your outbox for writing, your end of the socket.
    Offer {
        /// The registration that was asked for.
        registration: u64,
        /// The link; its peer is the caller.
        terms: Terms,
    },
    /// To the coordinator: my outbox is mapped and sealed; a caller's is filled, too, and so is
    /// the server's.
    Adopted {
        /// The link's number.
        link: u64,
    },
    /// To the server: the caller is ready. Descriptor: its outbox for reading.
    Open {
        /// The link's number.
        link: u64,
    },
    /// To each end: this is what the policy says from now on.
    Allowed {
        /// The link's number.
        link: u64,
        /// The end that is told; a process can have both.
        role: Role,
        /// Who is at the other end.
        peer: Identity,
        /// All that may be called.
        methods: MethodSet,
    },
    /// To each end: this link is over.
    Ended {
        /// The link's number.
        link: u64,
        /// The end that is told.
        role: Role,
        /// gRPC status code of the calls under way.
        code: u8,
        /// Why.
        text: String,
    },
    /// To an end: the other end is over, by its word or since its process has ended. What it has sent
    /// counts, and nothing comes any more, though a copy of that process that fork(2) has made may hold
    /// its end of the socket.
    Died {
        /// The link's number.
        link: u64,
        /// The end that is told.
        role: Role,
    },
    /// To the server: this registration is over.
    Unregistered {
        /// Number of the registration.
        registration: u64,
        /// Why.
        text: String,
    },
    /// To a coordinator that has not made it: this link is open.
    Report {
        /// Request number.
        request: u32,
        /// What both ends know it by.
        token: Token,
        /// The end that says so.
        role: Role,
        /// The name that was asked for.
        name: ServiceName,
    },
    /// To the process: that link has this number here.
    Reported {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
    },
    /// To the coordinator: tell me now, and at each change, how many serve this name.
    Watch {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
    },
    /// To the process: so many.
    Watched {
        /// Number of the watch request.
        request: u32,
        /// Instances that serve the name now.
        instances: u32,
    },
    /// To the coordinator: enough.
    Unwatch {
        /// Number of the watch request.
        request: u32,
    },
    /// To the coordinator: a link's end has closed, and this is what it counted.
    Closed {
        /// The link's number.
        link: u64,
        /// The end that says so.
        role: Role,
        /// Whose doing that was.
        blame: Blame,
        /// What was counted.
        stats: LinkStats,
    },
    /// To the coordinator: which links are there?
    List {
        /// Request number.
        request: u32,
    },
    /// To the process: this one.
    Row {
        /// Request number.
        request: u32,
        /// The link.
        row: LinkRow,
    },
    /// To the process: that was all.
    Listed {
        /// Request number.
        request: u32,
    },
    /// To a server: what have your links counted so far?
    Query {
        /// Number of the question.
        request: u32,
    },
    /// To the coordinator: this link so much.
    Counted {
        /// Number of the question.
        request: u32,
        /// The link's number.
        link: u64,
        /// What was counted.
        stats: LinkStats,
    },
    /// To the coordinator: that was all.
    CountedAll {
        /// Number of the question.
        request: u32,
    },
    /// To the coordinator: open or close the gates of the domains that serve this name.
    Switch {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
        /// Whether callers may come in by the gate.
        open: bool,
    },
    /// To the process: it is done.
    Switched {
        /// Request number.
        request: u32,
        /// How many domains have done it.
        domains: u32,
    },
    /// To a domain: open or close your gate.
    SetGate {
        /// Number of the order.
        request: u32,
        /// Whether callers may come in.
        open: bool,
    },
    /// To the coordinator: that is done, or cannot be.
    GateSet {
        /// Number of the order.
        request: u32,
        /// 0, or an error number.
        errno: u32,
    },
    /// To the coordinator: read your policy again.
    Reload {
        /// Request number.
        request: u32,
    },
    /// To the process: that is in force.
    Reloaded {
        /// Request number.
        request: u32,
        /// Links that it has ended.
        ended: u32,
        /// Links whose methods it has changed.
        changed: u32,
    },
}

impl Message {
    /// The packet.
    ///
    /// Texts over their limits are cut, for a peer would refuse them.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        let w = &mut Writer(&mut out);
        match self {
            Self::Challenge { version, nonce } | Self::Proof { version, nonce } => {
                let kind = if matches!(self, Self::Challenge { .. }) { 1 } else { 2 };
                start(w, kind, 0);
                w.u16(*version);
                w.raw(nonce);
            }
            Self::Welcome { you } => {
                start(w, 3, 0);
                put_identity(w, you);
            }
            Self::Register { request, name, places } => {
                put_named(w, 4, *request, name);
                w.u32(*places);
            }
            Self::Registered { request, registration } => {
                start(w, 5, *request);
                w.u64(*registration);
            }
            Self::Unregister { registration } => {
                start(w, 6, 0);
                w.u64(*registration);
            }
            Self::Connect { request, name } => put_named(w, 7, *request, name),
            Self::Linked { request, terms } => {
                start(w, 8, *request);
                put_terms(w, terms);
            }
            Self::Redirect { request, link, token, url, methods } => {
                start(w, 9, *request);
                w.u64(*link);
                w.raw(&token.0);
                put_text(w, url, limits::URL_BYTES);
                put_methods(w, methods);
            }
            Self::Refused { request, code, text } => {
                start(w, 10, *request);
                w.u8(*code);
                put_text(w, text, limits::ERROR_TEXT_BYTES);
            }
            Self::Offer { registration, terms } => {
                start(w, 11, 0);
                w.u64(*registration);
                put_terms(w, terms);
            }
            Self::Watch { request, name } => put_named(w, 12, *request, name),
            Self::Watched { request, instances } => {
                start(w, 13, *request);
                w.u32(*instances);
            }
            Self::Unwatch { request } => start(w, 14, *request),
            Self::Closed { link, role, blame, stats } => {
                start(w, 15, 0);
                w.u64(*link);
                put_role(w, *role);
                put_blame(w, *blame);
                put_stats(w, stats);
            }
            Self::List { request } => start(w, 16, *request),
            Self::Row { request, row } => {
                start(w, 17, *request);
                put_row(w, row);
            }
            Self::Listed { request } => start(w, 18, *request),
            Self::Query { request } => start(w, 19, *request),
            Self::Counted { request, link, stats } => {
                start(w, 20, *request);
                w.u64(*link);
                put_stats(w, stats);
            }
            Self::CountedAll { request } => start(w, 21, *request),
            Self::Switch { request, name, open } => {
                put_named(w, 22, *request, name);
                w.u8((*open).into());
            }
            Self::Switched { request, domains } => {
                start(w, 23, *request);
                w.u32(*domains);
            }
            Self::SetGate { request, open } => {
                start(w, 24, *request);
                w.u8((*open).into());
            }
            Self::GateSet { request, errno } => {
                start(w, 25, *request);
                w.u32(*errno);
            }
            Self::Adopted { link } => put_link(w, 26, *link),
            Self::Open { link } => put_link(w, 27, *link),
            Self::Allowed { link, role, peer, methods } => {
                put_link(w, 28, *link);
                put_role(w, *role);
                put_identity(w, peer);
                put_methods(w, methods);
            }
            Self::Ended { link, role, code, text } => {
                put_link(w, 29, *link);
                put_role(w, *role);
                w.u8(*code);
                put_text(w, text, limits::ERROR_TEXT_BYTES);
            }
            Self::Died { link, role } => {
                put_link(w, 36, *link);
                put_role(w, *role);
            }
            Self::Cancel { request } => start(w, 30, *request),
            Self::Unregistered { registration, text } => {
                put_link(w, 31, *registration);
                put_text(w, text, limits::ERROR_TEXT_BYTES);
            }
            Self::Report { request, token, role, name } => {
                put_named(w, 32, *request, name);
                w.raw(&token.0);
                put_role(w, *role);
            }
            Self::Reported { request, link } => {
                start(w, 33, *request);
                w.u64(*link);
            }
            Self::Reload { request } => start(w, 34, *request),
            Self::Reloaded { request, ended, changed } => {
                start(w, 35, *request);
                w.u32(*ended);
                w.u32(*changed);
            }
        }
        out
    }

    /// The number of the request that an encoded message belongs to; zero when it belongs to none.
    pub fn request_of(packet: &[u8]) -> u32 {
        let number = packet.get(4..8).and_then(|n| n.try_into().ok());
        number.map_or(0, u32::from_le_bytes)
    }

    /// The message in a copied packet.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let r = &mut Reader::new(packet);
        let kind = r.u16("kind")?;
        let zero = r.u16("reserved")?;
        if zero != 0 {
            return Err(DecodeError::Value { field: "reserved", found: zero.into() });
        }
        let request = r.u32("request")?;
        let message = match kind {
            1 => Self::Challenge { version: r.u16("version")?, nonce: r.array("nonce")? },
            2 => Self::Proof { version: r.u16("version")?, nonce: r.array("nonce")? },
            3 => Self::Welcome { you: identity(r)? },
            4 => Self::Register { request, name: name(r)?, places: r.u32("places")? },
            5 => Self::Registered { request, registration: r.u64("registration")? },
            6 => Self::Unregister { registration: r.u64("registration")? },
            7 => Self::Connect { request, name: name(r)? },
            8 => Self::Linked { request, terms: terms(r)? },
            9 => Self::Redirect {
                request,
                link: r.u64("link")?,
                token: Token(r.array("token")?),
                url: r.short_text("url", limits::URL_BYTES)?,
                methods: methods(r)?,
            },
            10 => Self::Refused {
                request,
                code: code(r)?,
                text: r.short_text("text", limits::ERROR_TEXT_BYTES)?,
            },
            11 => Self::Offer { registration: r.u64("registration")?, terms: terms(r)? },
            12 => Self::Watch { request, name: name(r)? },
            13 => Self::Watched { request, instances: r.u32("instances")? },
            14 => Self::Unwatch { request },
            15 => Self::Closed {
                link: r.u64("link")?,
                role: role(r)?,
                blame: blame(r)?,
                stats: stats(r)?,
            },
            16 => Self::List { request },
            17 => Self::Row { request, row: row(r)? },
            18 => Self::Listed { request },
            19 => Self::Query { request },
            20 => Self::Counted { request, link: r.u64("link")?, stats: stats(r)? },
            21 => Self::CountedAll { request },
            22 => Self::Switch { request, name: name(r)?, open: flag(r, "open")? },
            23 => Self::Switched { request, domains: r.u32("domains")? },
            24 => Self::SetGate { request, open: flag(r, "open")? },
            25 => Self::GateSet { request, errno: r.u32("errno")? },
            26 => Self::Adopted { link: r.u64("link")? },
            27 => Self::Open { link: r.u64("link")? },
            28 => Self::Allowed {
                link: r.u64("link")?,
                role: role(r)?,
                peer: identity(r)?,
                methods: methods(r)?,
            },
            29 => Self::Ended {
                link: r.u64("link")?,
                role: role(r)?,
                code: code(r)?,
                text: r.short_text("text", limits::ERROR_TEXT_BYTES)?,
            },
            30 => Self::Cancel { request },
            31 => Self::Unregistered {
                registration: r.u64("registration")?,
                text: r.short_text("text", limits::ERROR_TEXT_BYTES)?,
            },
            32 => Self::Report {
                request,
                name: name(r)?,
                token: Token(r.array("token")?),
                role: role(r)?,
            },
            33 => Self::Reported { request, link: r.u64("link")? },
            34 => Self::Reload { request },
            35 => Self::Reloaded { request, ended: r.u32("ended")?, changed: r.u32("changed")? },
            36 => Self::Died { link: r.u64("link")?, role: role(r)? },
            found => return Err(DecodeError::Value { field: "kind", found: found.into() }),
        };
        core::mem::replace(r, Reader::new(&[])).end()?;
        Ok(message)
    }
}

fn start(w: &mut Writer<'_>, kind: u16, request: u32) {
    w.u16(kind);
    w.u16(0);
    w.u32(request);
}

fn put_link(w: &mut Writer<'_>, kind: u16, number: u64) {
    start(w, kind, 0);
    w.u64(number);
}

fn put_named(w: &mut Writer<'_>, kind: u16, request: u32, name: &ServiceName) {
    start(w, kind, request);
    w.short_bytes(name.as_str().as_bytes());
}

#[cfg(test)]
mod tests;
