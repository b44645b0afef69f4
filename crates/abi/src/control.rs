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
//!
//!  Register ----------------->             serve a name
//!          <---------------- Registered
//!  Connect ------------------>             a link to a name
//!          <-------------------- Linked    + fds [outbox of the caller, socket]
//!            (the server gets) Offer       + fds [outbox of the server, socket]
//!          or <--------------- Redirect    the name is reached over the network
//!          or <------------------ Refused  a gRPC code and a text
//!
//!  Switch ------------------->             open or close the gate of a domain
//!            (the domain gets) SetGate     and says GateSet
//!          <------------------ Switched
//! ```
//!
//! After `Linked` and `Offer` the two sides speak over their socket alone: each maps its outbox,
//! seals it and sends it to the other with a [`Setup`].

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::codec::{DecodeError, Reader, Writer};
use crate::layout::Geometry;
use crate::limits;
use crate::name::{MethodPattern, MethodSet, ServiceName};

mod link;

pub use link::{Isolation, LinkRow, LinkStats};
use link::{isolation, put_isolation, put_row, put_stats, row, stats};

/// How a program file became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// It is not known.
    Unknown,
    /// SHA-256 read through `/proc/PID/exe`: true when it was read, but a process can be made to
    /// run other code afterwards.
    Observed([u8; 32]),
    /// SHA-256 of the sealed copy that the coordinator itself started: strong.
    Started([u8; 32]),
}

/// Who a process is, as the kernel told the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Process, as the coordinator's PID namespace sees it; none when that cannot see it.
    pub pid: Option<u32>,
    /// Digest of the program file.
    pub digest: Digest,
    /// Control group path, empty when unknown.
    pub cgroup: String,
    /// The policy's names for it.
    pub principals: Vec<String>,
}

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
    /// To the caller: your end. Descriptors: your outbox, your end of the socket.
    Linked {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
        /// Size of both outboxes.
        geometry: Geometry,
        /// Who serves.
        server: Identity,
        /// What the caller may call.
        methods: MethodSet,
        /// What keeps the ends apart.
        isolation: Isolation,
    },
    /// To the caller: the name is reached over the network.
    Redirect {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
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
    /// To the server: a caller. Descriptors: your outbox, your end of the socket.
    Offer {
        /// The registration that was asked for.
        registration: u64,
        /// The link's number.
        link: u64,
        /// Size of both outboxes.
        geometry: Geometry,
        /// Who calls.
        caller: Identity,
        /// What it may call.
        methods: MethodSet,
        /// What keeps the ends apart.
        isolation: Isolation,
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
            Self::Register { request, name } => put_named(w, 4, *request, name),
            Self::Registered { request, registration } => {
                start(w, 5, *request);
                w.u64(*registration);
            }
            Self::Unregister { registration } => {
                start(w, 6, 0);
                w.u64(*registration);
            }
            Self::Connect { request, name } => put_named(w, 7, *request, name),
            Self::Linked { request, link, geometry, server, methods, isolation } => {
                start(w, 8, *request);
                w.u64(*link);
                put_geometry(w, *geometry);
                put_identity(w, server);
                put_methods(w, methods);
                put_isolation(w, *isolation);
            }
            Self::Redirect { request, link, url, methods } => {
                start(w, 9, *request);
                w.u64(*link);
                put_text(w, url, limits::URL_BYTES);
                put_methods(w, methods);
            }
            Self::Refused { request, code, text } => {
                start(w, 10, *request);
                w.u8(*code);
                put_text(w, text, limits::ERROR_TEXT_BYTES);
            }
            Self::Offer { registration, link, geometry, caller, methods, isolation } => {
                start(w, 11, 0);
                w.u64(*registration);
                w.u64(*link);
                put_geometry(w, *geometry);
                put_identity(w, caller);
                put_methods(w, methods);
                put_isolation(w, *isolation);
            }
            Self::Watch { request, name } => put_named(w, 12, *request, name),
            Self::Watched { request, instances } => {
                start(w, 13, *request);
                w.u32(*instances);
            }
            Self::Unwatch { request } => start(w, 14, *request),
            Self::Closed { link, stats } => {
                start(w, 15, 0);
                w.u64(*link);
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
        }
        out
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
            4 => Self::Register { request, name: name(r)? },
            5 => Self::Registered { request, registration: r.u64("registration")? },
            6 => Self::Unregister { registration: r.u64("registration")? },
            7 => Self::Connect { request, name: name(r)? },
            8 => Self::Linked {
                request,
                link: r.u64("link")?,
                geometry: geometry(r)?,
                server: identity(r)?,
                methods: methods(r)?,
                isolation: isolation(r)?,
            },
            9 => Self::Redirect {
                request,
                link: r.u64("link")?,
                url: r.short_text("url", limits::URL_BYTES)?,
                methods: methods(r)?,
            },
            10 => Self::Refused {
                request,
                code: code(r)?,
                text: r.short_text("text", limits::ERROR_TEXT_BYTES)?,
            },
            11 => Self::Offer {
                registration: r.u64("registration")?,
                link: r.u64("link")?,
                geometry: geometry(r)?,
                caller: identity(r)?,
                methods: methods(r)?,
                isolation: isolation(r)?,
            },
            12 => Self::Watch { request, name: name(r)? },
            13 => Self::Watched { request, instances: r.u32("instances")? },
            14 => Self::Unwatch { request },
            15 => Self::Closed { link: r.u64("link")?, stats: stats(r)? },
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
            found => return Err(DecodeError::Value { field: "kind", found: found.into() }),
        };
        core::mem::replace(r, Reader::new(&[])).end()?;
        Ok(message)
    }
}

/// What each side sends first on a link's socket, with its sealed outbox as the one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The link's number, as the coordinator told both.
    pub link: u64,
}

impl Setup {
    const MAGIC: u32 = u32::from_le_bytes(*b"PWst");

    /// Length of the packet.
    pub const BYTES: usize = 16;

    /// The packet.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&crate::VERSION.to_le_bytes());
        out[8..].copy_from_slice(&self.link.to_le_bytes());
        out
    }

    /// The message in a copied packet.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(packet);
        let magic = r.u32("setup magic")?;
        if magic != Self::MAGIC {
            return Err(DecodeError::Value { field: "setup magic", found: magic.into() });
        }
        let version = r.u32("setup version")?;
        if version != u32::from(crate::VERSION) {
            return Err(DecodeError::Value { field: "setup version", found: version.into() });
        }
        let link = r.u64("setup link")?;
        r.end()?;
        Ok(Self { link })
    }
}

fn start(w: &mut Writer<'_>, kind: u16, request: u32) {
    w.u16(kind);
    w.u16(0);
    w.u32(request);
}

fn put_named(w: &mut Writer<'_>, kind: u16, request: u32, name: &ServiceName) {
    start(w, kind, request);
    w.short_bytes(name.as_str().as_bytes());
}

fn name(r: &mut Reader<'_>) -> Result<ServiceName, DecodeError> {
    let text = r.short_text("name", limits::NAME_BYTES)?;
    ServiceName::new(&text).map_err(|_| DecodeError::Text { field: "name" })
}

fn code(r: &mut Reader<'_>) -> Result<u8, DecodeError> {
    match r.u8("code")? {
        code @ 0..=16 => Ok(code),
        found => Err(DecodeError::Value { field: "code", found: found.into() }),
    }
}

fn put_text(w: &mut Writer<'_>, text: &str, limit: usize) {
    let end = (0..=limit.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    w.short_bytes(&text.as_bytes()[..end]);
}

fn put_geometry(w: &mut Writer<'_>, g: Geometry) {
    w.u32(g.slots());
    w.u32(g.arena_bytes());
}

fn geometry(r: &mut Reader<'_>) -> Result<Geometry, DecodeError> {
    let (slots, arena) = (r.u32("slots")?, r.u32("arena bytes")?);
    Geometry::new(slots, arena)
        .map_err(|_| DecodeError::Value { field: "geometry", found: u64::from(slots) })
}

fn put_identity(w: &mut Writer<'_>, id: &Identity) {
    w.u32(id.uid);
    w.u32(id.gid);
    w.u32(id.pid.unwrap_or(0));
    let (kind, digest) = match id.digest {
        Digest::Unknown => (0, [0; 32]),
        Digest::Observed(d) => (1, d),
        Digest::Started(d) => (2, d),
    };
    w.u8(kind);
    w.raw(&digest);
    put_text(w, &id.cgroup, limits::CGROUP_BYTES);
    let principals = &id.principals[..id.principals.len().min(limits::PRINCIPALS)];
    w.u16(principals.len() as u16);
    for p in principals {
        put_text(w, p, limits::NAME_BYTES);
    }
}

fn identity(r: &mut Reader<'_>) -> Result<Identity, DecodeError> {
    let (uid, gid, pid) = (r.u32("uid")?, r.u32("gid")?, r.u32("pid")?);
    let kind = r.u8("digest kind")?;
    let digest = r.array("digest")?;
    let digest = match kind {
        0 => Digest::Unknown,
        1 => Digest::Observed(digest),
        2 => Digest::Started(digest),
        found => return Err(DecodeError::Value { field: "digest kind", found: found.into() }),
    };
    let cgroup = r.short_text("cgroup", limits::CGROUP_BYTES)?;
    let found = usize::from(r.u16("principals")?);
    if found > limits::PRINCIPALS {
        let limit = limits::PRINCIPALS;
        return Err(DecodeError::TooLarge { field: "principals", found, limit });
    }
    let principals = (0..found)
        .map(|_| r.short_text("principal", limits::NAME_BYTES))
        .collect::<Result<_, _>>()?;
    Ok(Identity { uid, gid, pid: (pid != 0).then_some(pid), digest, cgroup, principals })
}

fn put_methods(w: &mut Writer<'_>, set: &MethodSet) {
    let patterns = &set.patterns()[..set.patterns().len().min(limits::PATTERNS)];
    w.u16(patterns.len() as u16);
    for p in patterns {
        w.short_bytes(p.to_string().as_bytes());
    }
}

fn methods(r: &mut Reader<'_>) -> Result<MethodSet, DecodeError> {
    let found = usize::from(r.u16("methods")?);
    if found > limits::PATTERNS {
        return Err(DecodeError::TooLarge { field: "methods", found, limit: limits::PATTERNS });
    }
    let mut set = MethodSet::default();
    for _ in 0..found {
        let text = r.short_text("method", limits::PATTERN_BYTES)?;
        let pattern =
            MethodPattern::new(&text).map_err(|_| DecodeError::Text { field: "method" })?;
        set.add(pattern);
    }
    Ok(set)
}

fn flag(r: &mut Reader<'_>, field: &'static str) -> Result<bool, DecodeError> {
    match r.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(DecodeError::Value { field, found: found.into() }),
    }
}

#[cfg(test)]
mod tests;
