//! The lists of links and of instances, for an operator, and what ends of links count for them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::fields::{flag, identity, name, put_identity, put_name, put_text};
use super::terms::{put_role, role};
use super::{Grant, Identity, Role, start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::frame;
use crate::limits;
use crate::name::ServiceName;
use crate::security::Security;

pub(super) const KINDS: u16 = 0x0500;
const LIST: u16 = KINDS | 1;
const ROW: u16 = KINDS | 2;
const LISTED: u16 = KINDS | 3;
const QUERY: u16 = KINDS | 4;
const COUNTED: u16 = KINDS | 5;
const COUNTED_ALL: u16 = KINDS | 6;
/// As [`ROW`] and [`COUNTED`], with methods; for whoever has
/// [`Capabilities::WAYS`](crate::version::Capabilities::WAYS).
const ROW_WITH_METHODS: u16 = KINDS | 7;
const COUNTED_WITH_METHODS: u16 = KINDS | 8;
/// As [`ROW_WITH_METHODS`], with containers; for whoever has
/// [`Capabilities::CONTAINERS`](crate::version::Capabilities::CONTAINERS).
const ROW_WITH_CONTAINERS: u16 = KINDS | 9;
/// As [`ROW_WITH_CONTAINERS`], with parcels; this and the next for whoever has
/// [`Capabilities::PARCELS`](crate::version::Capabilities::PARCELS).
const ROW_WITH_PARCELS: u16 = KINDS | 10;
const SENT: u16 = KINDS | 11;
/// This and the next are for whoever has
/// [`Capabilities::INSTANCES`](crate::version::Capabilities::INSTANCES).
const INSTANCES: u16 = KINDS | 12;
const INSTANCE: u16 = KINDS | 13;
/// These are for whoever has [`Capabilities::PACE`](crate::version::Capabilities::PACE).
const OBSERVE: u16 = KINDS | 14;
const MEASURE: u16 = KINDS | 15;
const MEASURED: u16 = KINDS | 16;
const PACE: u16 = KINDS | 17;
/// As [`ROW_WITH_CONTAINERS`] and [`INSTANCE`], with images and Compose services, and the row with parcels
/// where there are some; for whoever has
/// [`Capabilities::ORIGINS`](crate::version::Capabilities::ORIGINS).
const ROW_WITH_ORIGINS: u16 = KINDS | 18;
const INSTANCE_WITH_ORIGIN: u16 = KINDS | 19;
/// As [`INSTANCE_WITH_ORIGIN`], with memory for parcels; for whoever has
/// [`Capabilities::MEMORY`](crate::version::Capabilities::MEMORY).
const INSTANCE_WITH_PARCELS: u16 = KINDS | 20;
/// For whoever has [`Capabilities::SEAL`](crate::version::Capabilities::SEAL).
const UNABLE: u16 = KINDS | 21;

/// Messages about the lists of links and of instances.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListMessage {
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
        row: Box<LinkRow>,
    },
    /// To the coordinator: which links to this name are there, and what do their ends measure?
    Observe {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
    },
    /// To an end's process: what have your links to this name counted, and what do you measure at them? Who
    /// is asked measures for a while.
    Measure {
        /// Number of the question.
        request: u32,
        /// The name.
        name: ServiceName,
    },
    /// To the coordinator: this end has measured so much.
    Measured {
        /// Number of the question.
        request: u32,
        /// The link's number.
        link: u64,
        /// The end that says so.
        role: Role,
        /// What it has measured.
        pace: PaceStats,
    },
    /// To the process, after the row of a link: what its ends say they have measured.
    Pace {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
        /// By the caller.
        caller: Option<PaceStats>,
        /// By the server.
        server: Option<PaceStats>,
    },
    /// To the process, after the row of an open link that is not sealed: this end cannot seal.
    Unable {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
        /// The end.
        role: Role,
    },
    /// To the coordinator: who serves which name?
    Instances {
        /// Request number.
        request: u32,
    },
    /// To the process: this one.
    Instance {
        /// Request number.
        request: u32,
        /// The instance.
        row: Box<InstanceRow>,
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
        /// The same by methods; for a coordinator that has
        /// [`Capabilities::WAYS`](crate::version::Capabilities::WAYS).
        methods: LinkMethods,
    },
    /// To the coordinator: this end has sent so much in parcels.
    Sent {
        /// Number of the question.
        request: u32,
        /// The link's number.
        link: u64,
        /// The end that says so.
        role: Role,
        /// What it has sent.
        parcels: ParcelStats,
    },
    /// To the coordinator: that was all.
    CountedAll {
        /// Number of the question.
        request: u32,
    },
}

impl ListMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::List { request } => start(w, LIST, *request),
            Self::Row { request, row } => {
                let with_origins = row.ends().any(has_origin);
                let with_parcels = !row.grant.is_none();
                let with_containers =
                    with_origins || with_parcels || row.ends().any(|end| !end.container.is_empty());
                let with_methods = with_containers || row.methods.are_told();
                let kind = match (with_origins, with_parcels, with_containers, with_methods) {
                    (true, ..) => ROW_WITH_ORIGINS,
                    (false, true, ..) => ROW_WITH_PARCELS,
                    (false, false, true, _) => ROW_WITH_CONTAINERS,
                    (false, false, false, true) => ROW_WITH_METHODS,
                    (false, false, false, false) => ROW,
                };
                start(w, kind, *request);
                put_row(w, row);
                if with_methods {
                    put_methods(w, &row.methods);
                }
                if with_containers {
                    row.ends().for_each(|end| put_text(w, &end.container, limits::CONTAINER_BYTES));
                }
                if with_origins {
                    row.ends().for_each(|end| put_origin(w, end));
                    w.u8(with_parcels.into());
                }
                if with_parcels {
                    row.grant.put(w);
                    put_parcels(w, &row.caller_parcels);
                    put_parcels(w, &row.stats.parcels);
                }
            }
            Self::Observe { request, name } => {
                start(w, OBSERVE, *request);
                put_name(w, name);
            }
            Self::Measure { request, name } => {
                start(w, MEASURE, *request);
                put_name(w, name);
            }
            Self::Measured { request, link, role, pace } => {
                start(w, MEASURED, *request);
                w.u64(*link);
                put_role(w, *role);
                pace.put(w);
            }
            Self::Pace { request, link, caller, server } => {
                start(w, PACE, *request);
                w.u64(*link);
                for pace in [caller, server] {
                    w.u8(pace.is_some().into());
                    pace.iter().for_each(|pace| pace.put(w));
                }
            }
            Self::Unable { request, link, role } => {
                start(w, UNABLE, *request);
                w.u64(*link);
                put_role(w, *role);
            }
            Self::Instances { request } => start(w, INSTANCES, *request),
            Self::Instance { request, row } => {
                let kind = match (row.parcel_bytes > 0, has_origin(&row.server)) {
                    (true, _) => INSTANCE_WITH_PARCELS,
                    (false, true) => INSTANCE_WITH_ORIGIN,
                    (false, false) => INSTANCE,
                };
                start(w, kind, *request);
                put_text(w, &row.name, limits::NAME_BYTES);
                put_identity(w, &row.server);
                put_text(w, &row.server.container, limits::CONTAINER_BYTES);
                row.security.put(w);
                w.u32(row.links);
                w.u32(row.callers);
                w.u64(row.memory);
                if kind != INSTANCE {
                    put_origin(w, &row.server);
                }
                if kind == INSTANCE_WITH_PARCELS {
                    w.u64(row.parcel_bytes);
                }
            }
            Self::Listed { request } => start(w, LISTED, *request),
            Self::Query { request } => start(w, QUERY, *request),
            Self::Counted { request, link, stats, methods } => {
                let with_methods = methods.are_told();
                start(w, if with_methods { COUNTED_WITH_METHODS } else { COUNTED }, *request);
                w.u64(*link);
                put_stats(w, stats);
                if with_methods {
                    put_methods(w, methods);
                }
            }
            Self::Sent { request, link, role, parcels } => {
                start(w, SENT, *request);
                w.u64(*link);
                put_role(w, *role);
                put_parcels(w, parcels);
            }
            Self::CountedAll { request } => start(w, COUNTED_ALL, *request),
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            LIST => Self::List { request },
            ROW | ROW_WITH_METHODS | ROW_WITH_CONTAINERS | ROW_WITH_PARCELS | ROW_WITH_ORIGINS => {
                let mut row = row(r)?;
                if kind != ROW {
                    row.methods = methods(r)?;
                }
                if [ROW_WITH_CONTAINERS, ROW_WITH_PARCELS, ROW_WITH_ORIGINS].contains(&kind) {
                    for end in core::iter::once(&mut row.caller).chain(&mut row.server) {
                        end.container = r.short_text("container", limits::CONTAINER_BYTES)?;
                    }
                }
                let mut with_parcels = kind == ROW_WITH_PARCELS;
                if kind == ROW_WITH_ORIGINS {
                    for end in core::iter::once(&mut row.caller).chain(&mut row.server) {
                        take_origin(r, end)?;
                    }
                    with_parcels = flag(r, "has parcels")?;
                }
                if with_parcels {
                    row.grant = Grant::take(r)?;
                    row.caller_parcels = parcels(r)?;
                    row.stats.parcels = parcels(r)?;
                }
                Self::Row { request, row: row.into() }
            }
            OBSERVE => Self::Observe { request, name: name(r)? },
            MEASURE => Self::Measure { request, name: name(r)? },
            MEASURED => Self::Measured {
                request,
                link: r.u64("link")?,
                role: role(r)?,
                pace: PaceStats::take(r)?,
            },
            PACE => {
                let link = r.u64("link")?;
                let mut pace = || flag(r, "has pace")?.then(|| PaceStats::take(r)).transpose();
                Self::Pace { request, link, caller: pace()?, server: pace()? }
            }
            UNABLE => Self::Unable { request, link: r.u64("link")?, role: role(r)? },
            INSTANCES => Self::Instances { request },
            INSTANCE | INSTANCE_WITH_ORIGIN | INSTANCE_WITH_PARCELS => {
                let mut row = instance(r)?;
                if kind != INSTANCE {
                    take_origin(r, &mut row.server)?;
                }
                if kind == INSTANCE_WITH_PARCELS {
                    row.parcel_bytes = r.u64("bytes of parcels")?;
                }
                Self::Instance { request, row: row.into() }
            }
            LISTED => Self::Listed { request },
            QUERY => Self::Query { request },
            COUNTED | COUNTED_WITH_METHODS => {
                let (link, stats) = (r.u64("link")?, stats(r)?);
                let is_long = kind == COUNTED_WITH_METHODS;
                let methods = if is_long { methods(r)? } else { LinkMethods::default() };
                Self::Counted { request, link, stats, methods }
            }
            SENT => {
                Self::Sent { request, link: r.u64("link")?, role: role(r)?, parcels: parcels(r)? }
            }
            COUNTED_ALL => Self::CountedAll { request },
            _ => return Err(unknown(kind)),
        })
    }
}

/// What one end of a link has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Calls that have begun.
    pub calls: u64,
    /// Of these, the ones that have ended with a status other than OK.
    pub failed: u64,
    /// Of these, the ones that policy denied.
    pub denied: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// How often callers' threads came in through the gate and found something to do.
    pub visits: u64,
    /// System calls that were forwarded during these visits.
    pub forwards: u64,
    /// Time that callers' threads spent in the service, in nanoseconds.
    pub inside_ns: u64,
    /// What was sent in parcels. It travels apart from the other counts.
    pub parcels: ParcelStats,
}

/// What an end of a link has sent in parcels, by its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParcelStats {
    /// Parcels.
    pub parcels: u64,
    /// Bytes of messages that lay in them.
    pub bytes: u64,
}

impl ParcelStats {
    /// So many parcels with so many bytes.
    pub const fn new(parcels: u64, bytes: u64) -> Self {
        Self { parcels, bytes }
    }
}

/// What an end of a link has measured since it was first asked. Differences between two answers are what
/// happened between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PaceStats {
    /// How long it measures, in nanoseconds.
    pub elapsed_ns: u64,
    /// Calls that have ended.
    pub ended: u64,
    /// How long calls were open at this end, added up, in nanoseconds.
    pub open_ns: u64,
}

impl PaceStats {
    /// So long, so many, and so long again.
    pub const fn new(elapsed_ns: u64, ended: u64, open_ns: u64) -> Self {
        Self { elapsed_ns, ended, open_ns }
    }

    fn put(&self, w: &mut Writer<'_>) {
        [self.elapsed_ns, self.ended, self.open_ns].into_iter().for_each(|n| w.u64(n));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::new(r.u64("time")?, r.u64("calls ended")?, r.u64("time of calls")?))
    }
}

/// What the server's end of a link has counted for its methods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkMethods {
    /// Those with most calls, the first of them with most; at most [`limits::LISTED_METHODS`].
    pub most_called: Vec<MethodStats>,
    /// How many more methods were called.
    pub more: u32,
}

impl LinkMethods {
    /// These methods, in this order, and so many more.
    pub fn new(most_called: Vec<MethodStats>, more: u32) -> Self {
        Self { most_called, more }
    }

    fn are_told(&self) -> bool {
        !self.most_called.is_empty() || self.more > 0
    }
}

/// What was counted for one method of a link: calls that the policy allowed, by the way that the service
/// took each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodStats {
    /// Path of the method, `/package.Service/Method`.
    pub path: String,
    /// Calls that went the native way: to the handler without a request of HTTP.
    pub native: u64,
    /// Calls that went the ordinary way: as a request of HTTP.
    pub ordinary: u64,
}

impl MethodStats {
    /// Of the method at this path.
    pub fn new(path: &str, native: u64, ordinary: u64) -> Self {
        Self { path: path.into(), native, ordinary }
    }
}

/// One row of the coordinator's list of links.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRow {
    /// The link's number.
    pub link: u64,
    /// The name that was connected to.
    pub name: String,
    /// Who calls.
    pub caller: Identity,
    /// Who serves; none when the link is a redirect to the network.
    pub server: Option<Identity>,
    /// Where a redirect leads, else empty.
    pub url: String,
    /// What protects the link.
    pub security: Security,
    /// Whether callers may come into the service by its gate.
    pub gate: bool,
    /// Whether it is still open.
    pub open: bool,
    /// What the server's end has counted.
    pub stats: LinkStats,
    /// The same by methods.
    pub methods: LinkMethods,
    /// What may cross beside its records.
    pub grant: Grant,
    /// What the caller's end says that it has sent in parcels; the server's is among its counts.
    pub caller_parcels: ParcelStats,
    /// Ends that cannot seal, of an open link that is not sealed. They are told apart from the row.
    pub unable: Vec<Role>,
}

impl LinkRow {
    /// A link that is open, over a ring, of which no more is known than this.
    pub fn new(link: u64, name: &str, caller: Identity, server: Option<Identity>) -> Self {
        Self {
            link,
            name: name.into(),
            caller,
            server,
            url: String::new(),
            security: Security::LOWEST,
            gate: false,
            open: true,
            stats: LinkStats::default(),
            methods: LinkMethods::default(),
            grant: Grant::NONE,
            caller_parcels: ParcelStats::default(),
            unable: Vec::new(),
        }
    }

    fn ends(&self) -> impl Iterator<Item = &Identity> {
        core::iter::once(&self.caller).chain(&self.server)
    }
}

/// One row of the coordinator's list of instances: a name, and a process that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstanceRow {
    /// The name.
    pub name: String,
    /// Who serves it.
    pub server: Identity,
    /// What protects a link to it, as far as that depends on who serves.
    pub security: Security,
    /// Links to it that their callers hold: of memory that the coordinator has made, by the kernel's word.
    pub links: u32,
    /// Processes among these callers.
    pub callers: u32,
    /// Bytes of shared memory of its links that the coordinator has made and that somebody holds.
    pub memory: u64,
    /// Bytes that the process has made for parcels, by its own word.
    pub parcel_bytes: u64,
}

impl InstanceRow {
    /// An instance that nobody refers to.
    pub fn new(name: &str, server: Identity, security: Security) -> Self {
        let (links, callers, memory, parcel_bytes) = (0, 0, 0, 0);
        Self { name: name.into(), server, security, links, callers, memory, parcel_bytes }
    }
}

fn has_origin(end: &Identity) -> bool {
    !(end.image.is_empty() && end.compose.is_empty())
}

fn put_origin(w: &mut Writer<'_>, end: &Identity) {
    put_text(w, &end.image, limits::IMAGE_BYTES);
    put_text(w, &end.compose, limits::COMPOSE_BYTES);
}

fn take_origin(r: &mut Reader<'_>, end: &mut Identity) -> Result<(), DecodeError> {
    end.image = r.short_text("image", limits::IMAGE_BYTES)?;
    end.compose = r.short_text("compose", limits::COMPOSE_BYTES)?;
    Ok(())
}

fn instance(r: &mut Reader<'_>) -> Result<InstanceRow, DecodeError> {
    let name = r.short_text("name", limits::NAME_BYTES)?;
    let mut server = identity(r)?;
    server.container = r.short_text("container", limits::CONTAINER_BYTES)?;
    let security = Security::take(r)?;
    let mut row = InstanceRow::new(&name, server, security);
    (row.links, row.callers) = (r.u32("links")?, r.u32("callers")?);
    row.memory = r.u64("memory")?;
    Ok(row)
}

pub(super) fn put_stats(w: &mut Writer<'_>, s: &LinkStats) {
    let counts = [s.calls, s.failed, s.denied, s.sent_bytes, s.received_bytes];
    for v in counts.into_iter().chain([s.visits, s.forwards, s.inside_ns]) {
        w.u64(v);
    }
}

pub(super) fn stats(r: &mut Reader<'_>) -> Result<LinkStats, DecodeError> {
    Ok(LinkStats {
        calls: r.u64("calls")?,
        failed: r.u64("failed")?,
        denied: r.u64("denied")?,
        sent_bytes: r.u64("sent bytes")?,
        received_bytes: r.u64("received bytes")?,
        visits: r.u64("visits")?,
        forwards: r.u64("forwards")?,
        inside_ns: r.u64("time inside")?,
        parcels: ParcelStats::default(),
    })
}

fn put_parcels(w: &mut Writer<'_>, p: &ParcelStats) {
    w.u64(p.parcels);
    w.u64(p.bytes);
}

fn parcels(r: &mut Reader<'_>) -> Result<ParcelStats, DecodeError> {
    Ok(ParcelStats { parcels: r.u64("parcels")?, bytes: r.u64("bytes in parcels")? })
}

pub(super) fn put_row(w: &mut Writer<'_>, row: &LinkRow) {
    w.u64(row.link);
    put_text(w, &row.name, limits::NAME_BYTES);
    put_identity(w, &row.caller);
    w.u8(row.server.is_some().into());
    if let Some(server) = &row.server {
        put_identity(w, server);
    }
    put_text(w, &row.url, limits::URL_BYTES);
    row.security.put(w);
    w.u8(row.gate.into());
    w.u8(row.open.into());
    put_stats(w, &row.stats);
}

pub(super) fn row(r: &mut Reader<'_>) -> Result<LinkRow, DecodeError> {
    Ok(LinkRow {
        link: r.u64("link")?,
        name: r.short_text("name", limits::NAME_BYTES)?,
        caller: identity(r)?,
        server: if flag(r, "has server")? { Some(identity(r)?) } else { None },
        url: r.short_text("url", limits::URL_BYTES)?,
        security: Security::take(r)?,
        gate: flag(r, "gate")?,
        open: flag(r, "open")?,
        stats: stats(r)?,
        methods: LinkMethods::default(),
        grant: Grant::NONE,
        caller_parcels: ParcelStats::default(),
        unable: Vec::new(),
    })
}

fn put_methods(w: &mut Writer<'_>, methods: &LinkMethods) {
    let listed = &methods.most_called[..methods.most_called.len().min(limits::LISTED_METHODS)];
    w.u8(listed.len() as u8);
    for method in listed {
        put_text(w, &method.path, limits::PATH_BYTES);
        w.u64(method.native);
        w.u64(method.ordinary);
    }
    w.u32(methods.more);
}

fn methods(r: &mut Reader<'_>) -> Result<LinkMethods, DecodeError> {
    let found = usize::from(r.u8("methods")?);
    if found > limits::LISTED_METHODS {
        let limit = limits::LISTED_METHODS;
        return Err(DecodeError::TooLarge { field: "methods", found, limit });
    }
    let method = |r: &mut Reader<'_>| {
        let len = usize::from(r.u16("path length")?);
        let path = frame::checked_path(r, len)?.into();
        Ok(MethodStats { path, native: r.u64("native calls")?, ordinary: r.u64("ordinary calls")? })
    };
    let most_called = (0..found).map(|_| method(r)).collect::<Result<_, _>>()?;
    Ok(LinkMethods { most_called, more: r.u32("more methods")? })
}
