//! What the ends of a link are told of it, and which end is meant.

use alloc::boxed::Box;
use alloc::string::String;

use super::Identity;
use super::fields::{
    flag, geometry, identity, methods, put_geometry, put_identity, put_methods, put_text,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::layout::Geometry;
use crate::limits;
use crate::name::MethodSet;
use crate::security::Security;
use crate::version::Capabilities;

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
    /// The one that calls over the network, where the identity of the other end is not verified.
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
    /// What both ends can do, beyond what their version says.
    pub capabilities: Capabilities,
    /// What protects the link.
    pub security: Security,
    /// How its records are sealed, if they are.
    pub sealing: Option<Box<Sealing>>,
}

/// What both ends of a sealed link are told of it, and what their handshake has to agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealing {
    /// The SPIFFE ID of the caller, which its certificate has.
    pub caller: String,
    /// That of the server.
    pub server: String,
    /// The name that the caller has asked for, which the server's certificate is for.
    pub name: String,
    /// The policy, by a number that each change of it changes.
    pub policy: u64,
    /// The number of the cipher suite of records.
    pub suite: u8,
    /// Whether records have lengths of classes.
    pub classes: bool,
    /// Whether messages are signed.
    pub sign: bool,
    /// Whether the coordinator keeps receipts of those.
    pub receipts: bool,
}

pub(super) fn put_sealing(w: &mut Writer<'_>, sealing: &Sealing) {
    put_text(w, &sealing.caller, limits::ID_BYTES);
    put_text(w, &sealing.server, limits::ID_BYTES);
    put_text(w, &sealing.name, limits::NAME_BYTES);
    w.u64(sealing.policy);
    w.u8(sealing.suite);
    w.u8(sealing.classes.into());
    w.u8(sealing.sign.into());
    w.u8(sealing.receipts.into());
}

pub(super) fn sealing(r: &mut Reader<'_>) -> Result<Box<Sealing>, DecodeError> {
    Ok(Box::new(Sealing {
        caller: r.short_text("caller's id", limits::ID_BYTES)?,
        server: r.short_text("server's id", limits::ID_BYTES)?,
        name: r.short_text("sealed name", limits::NAME_BYTES)?,
        policy: r.u64("policy")?,
        suite: r.u8("suite")?,
        classes: flag(r, "classes of sizes")?,
        sign: flag(r, "signed messages")?,
        receipts: flag(r, "receipts")?,
    }))
}

pub(super) fn put_terms(w: &mut Writer<'_>, t: &Terms) {
    w.u64(t.link);
    w.raw(&t.token.0);
    put_geometry(w, t.geometry);
    put_identity(w, &t.peer);
    put_methods(w, &t.methods);
    w.u64(t.capabilities.bits());
    t.security.put(w);
}

pub(super) fn terms(r: &mut Reader<'_>) -> Result<Terms, DecodeError> {
    Ok(Terms {
        link: r.u64("link")?,
        token: token(r)?,
        geometry: geometry(r)?,
        peer: identity(r)?,
        methods: methods(r)?,
        capabilities: Capabilities::from_bits(r.u64("capabilities")?),
        security: Security::take(r)?,
        sealing: None,
    })
}

pub(super) fn token(r: &mut Reader<'_>) -> Result<Token, DecodeError> {
    Ok(Token(r.array("token")?))
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
