//! What is told of a link: its ends, what keeps them apart, what was counted.

use alloc::string::String;

use super::Identity;
use super::fields::{
    flag, geometry, identity, methods, put_geometry, put_identity, put_methods, put_text,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::layout::Geometry;
use crate::limits;
use crate::name::MethodSet;

/// What the two ends of a link know it by, and nobody else: 16 random bytes.
///
/// A coordinator that has not made the link pairs its two ends by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub [u8; 16]);

impl core::fmt::Debug for Token {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // A secret of the two ends has no place in a log.
        f.write_str("Token(..)")
    }
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that calls.
    Caller,
    /// The one that serves.
    Server,
    /// The one that calls over the network, where nobody vouches for the other end.
    Redirected,
}

/// Whose doing the end of a link was, as the end that reports it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// Nobody's: it was given up, or the peer went.
    Nobody,
    /// The peer's, which broke a rule.
    Peer,
}

/// What each end of a link is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The link's number.
    pub link: u64,
    /// What both ends know it by.
    pub token: Token,
    /// Size of both outboxes.
    pub geometry: Geometry,
    /// Who is at the other end.
    pub peer: Identity,
    /// What the caller may call.
    pub methods: MethodSet,
    /// What keeps the ends apart.
    pub isolation: Isolation,
}

/// What keeps the two ends of a link apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Nothing: one address space, no protection keys.
    None,
    /// One address space with protection keys: contains bugs, not hostile code.
    Fault,
    /// The same on a kernel before Linux 6.12, where the stacks of signal handlers are open to all: a
    /// stray write to one of those can end another program as well.
    FaultSharedStacks,
    /// Separate processes; they share only the two outboxes, each written by one side.
    Process,
    /// A network protocol; what protects it is that protocol's business.
    Network,
}

impl Isolation {
    /// Whether it is that of domains, which share one address space.
    pub fn is_of_domains(self) -> bool {
        matches!(self, Self::None | Self::Fault | Self::FaultSharedStacks)
    }
}

impl core::fmt::Display for Isolation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Fault => "fault",
            Self::FaultSharedStacks => "fault-shared-stacks",
            Self::Process => "process",
            Self::Network => "network",
        })
    }
}

/// What one end of a link has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

/// One row of the coordinator's list of links.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What keeps the ends apart.
    pub isolation: Isolation,
    /// Whether callers may come into the service by its gate.
    pub gate: bool,
    /// Whether it is still open.
    pub open: bool,
    /// What the server's end has counted.
    pub stats: LinkStats,
}

pub(super) fn put_terms(w: &mut Writer<'_>, t: &Terms) {
    w.u64(t.link);
    w.raw(&t.token.0);
    put_geometry(w, t.geometry);
    put_identity(w, &t.peer);
    put_methods(w, &t.methods);
    put_isolation(w, t.isolation);
}

pub(super) fn terms(r: &mut Reader<'_>) -> Result<Terms, DecodeError> {
    Ok(Terms {
        link: r.u64("link")?,
        token: Token(r.array("token")?),
        geometry: geometry(r)?,
        peer: identity(r)?,
        methods: methods(r)?,
        isolation: isolation(r)?,
    })
}

pub(super) fn put_role(w: &mut Writer<'_>, role: Role) {
    w.u8(match role {
        Role::Caller => 0,
        Role::Server => 1,
        Role::Redirected => 2,
    });
}

pub(super) fn role(r: &mut Reader<'_>) -> Result<Role, DecodeError> {
    match r.u8("role")? {
        0 => Ok(Role::Caller),
        1 => Ok(Role::Server),
        2 => Ok(Role::Redirected),
        found => Err(DecodeError::Value { field: "role", found: found.into() }),
    }
}

pub(super) fn put_blame(w: &mut Writer<'_>, blame: Blame) {
    w.u8((blame == Blame::Peer).into());
}

pub(super) fn blame(r: &mut Reader<'_>) -> Result<Blame, DecodeError> {
    Ok(if flag(r, "blame")? { Blame::Peer } else { Blame::Nobody })
}

fn put_isolation(w: &mut Writer<'_>, isolation: Isolation) {
    w.u8(match isolation {
        Isolation::None => 0,
        Isolation::Process => 1,
        Isolation::Network => 2,
        Isolation::Fault => 3,
        Isolation::FaultSharedStacks => 4,
    });
}

fn isolation(r: &mut Reader<'_>) -> Result<Isolation, DecodeError> {
    Ok(match r.u8("isolation")? {
        0 => Isolation::None,
        1 => Isolation::Process,
        2 => Isolation::Network,
        3 => Isolation::Fault,
        4 => Isolation::FaultSharedStacks,
        found => return Err(DecodeError::Value { field: "isolation", found: found.into() }),
    })
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
    })
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
    put_isolation(w, row.isolation);
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
        isolation: isolation(r)?,
        gate: flag(r, "gate")?,
        open: flag(r, "open")?,
        stats: stats(r)?,
    })
}
