//! Links: how one is made, and how one that is there is told to a new coordinator.

use alloc::string::String;

use super::fields::{methods, name, put_methods, put_name, put_text};
use super::terms::{put_role, put_sealing, put_terms, role, sealing, terms, token};
use super::{Grant, Role, Terms, Token, start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;
use crate::name::{MethodSet, ServiceName};
use crate::security::Security;

pub(super) const KINDS: u16 = 0x0300;
const CONNECT: u16 = KINDS | 1;
const CANCEL: u16 = KINDS | 2;
const OFFER: u16 = KINDS | 3;
const ADOPTED: u16 = KINDS | 4;
const LINKED: u16 = KINDS | 5;
const OPEN: u16 = KINDS | 6;
const REDIRECT: u16 = KINDS | 7;
const REPORT: u16 = KINDS | 8;
const REPORTED: u16 = KINDS | 9;
const GRANTED: u16 = KINDS | 10;
/// As [`REPORT`], of an end that has a descriptor socket; for a coordinator that has
/// [`Capabilities::PARCELS`](crate::version::Capabilities::PARCELS).
const REPORT_WITH_DESCRIPTORS: u16 = KINDS | 11;
/// As [`OFFER`] and [`LINKED`], of a link that is sealed; for an end that has
/// [`Capabilities::SEAL`](crate::version::Capabilities::SEAL).
const OFFER_SEALED: u16 = KINDS | 12;
const LINKED_SEALED: u16 = KINDS | 13;

/// Messages about links that are made or reported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkMessage {
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
        /// What protects it, as this end finds. It can lower what was told.
        security: Security,
    },
    /// To the caller: your end. Descriptors: your outbox for writing, the server's for reading,
    /// your end of the socket.
    Linked {
        /// Request number.
        request: u32,
        /// The link; its peer is the server.
        terms: Terms,
    },
    /// To the server: the caller is ready. Descriptor: its outbox for reading.
    Open {
        /// The link's number.
        link: u64,
        /// What protects it, as both ends find.
        security: Security,
    },
    /// To the caller: the name is reached over the network.
    Redirect {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
        /// What the caller knows it by.
        token: Token,
        /// Where: an address, or several with a comma and a space between them, to a process with
        /// [`Capabilities::ADDRESSES`](crate::version::Capabilities::ADDRESSES).
        url: String,
        /// What the caller may call.
        methods: MethodSet,
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
        /// What protects it, as this end was told. It can lower what the coordinator finds itself.
        security: Security,
        /// What this end was granted; none where it has no descriptor socket.
        grant: Grant,
    },
    /// To the process: that link has this number here.
    Reported {
        /// Request number.
        request: u32,
        /// The link's number.
        link: u64,
    },
    /// To both ends of an open link, where they can take it: descriptors may cross. Descriptor: your end of
    /// the link's descriptor socket.
    Granted {
        /// The link's number.
        link: u64,
        /// The end that is meant.
        role: Role,
        /// What may cross.
        grant: Grant,
    },
}

impl LinkMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Connect { request, name } => {
                start(w, CONNECT, *request);
                put_name(w, name);
            }
            Self::Cancel { request } => start(w, CANCEL, *request),
            Self::Offer { registration, terms } => {
                start(w, if terms.sealing.is_some() { OFFER_SEALED } else { OFFER }, 0);
                w.u64(*registration);
                put_terms(w, terms);
                terms.sealing.iter().for_each(|sealing| put_sealing(w, sealing));
            }
            Self::Adopted { link, security } => put_secured(w, ADOPTED, *link, security),
            Self::Linked { request, terms } => {
                start(w, if terms.sealing.is_some() { LINKED_SEALED } else { LINKED }, *request);
                put_terms(w, terms);
                terms.sealing.iter().for_each(|sealing| put_sealing(w, sealing));
            }
            Self::Open { link, security } => put_secured(w, OPEN, *link, security),
            Self::Redirect { request, link, token, url, methods } => {
                start(w, REDIRECT, *request);
                w.u64(*link);
                w.raw(&token.0);
                put_text(w, url, limits::URL_BYTES);
                put_methods(w, methods);
            }
            Self::Report { request, token, role, name, security, grant } => {
                let has_socket = !grant.is_none();
                start(w, if has_socket { REPORT_WITH_DESCRIPTORS } else { REPORT }, *request);
                put_name(w, name);
                w.raw(&token.0);
                put_role(w, *role);
                security.put(w);
                if has_socket {
                    grant.put(w);
                }
            }
            Self::Reported { request, link } => {
                start(w, REPORTED, *request);
                w.u64(*link);
            }
            Self::Granted { link, role, grant } => {
                start(w, GRANTED, 0);
                w.u64(*link);
                put_role(w, *role);
                grant.put(w);
            }
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            CONNECT => Self::Connect { request, name: name(r)? },
            CANCEL => Self::Cancel { request },
            OFFER => Self::Offer { registration: r.u64("registration")?, terms: terms(r)? },
            OFFER_SEALED => {
                Self::Offer { registration: r.u64("registration")?, terms: sealed_terms(r)? }
            }
            LINKED_SEALED => Self::Linked { request, terms: sealed_terms(r)? },
            ADOPTED => Self::Adopted { link: r.u64("link")?, security: Security::take(r)? },
            LINKED => Self::Linked { request, terms: terms(r)? },
            OPEN => Self::Open { link: r.u64("link")?, security: Security::take(r)? },
            REDIRECT => Self::Redirect {
                request,
                link: r.u64("link")?,
                token: token(r)?,
                url: r.short_text("url", limits::URL_BYTES)?,
                methods: methods(r)?,
            },
            REPORT | REPORT_WITH_DESCRIPTORS => Self::Report {
                request,
                name: name(r)?,
                token: token(r)?,
                role: role(r)?,
                security: Security::take(r)?,
                grant: if kind == REPORT { Grant::NONE } else { Grant::take(r)? },
            },
            REPORTED => Self::Reported { request, link: r.u64("link")? },
            GRANTED => {
                Self::Granted { link: r.u64("link")?, role: role(r)?, grant: Grant::take(r)? }
            }
            _ => return Err(unknown(kind)),
        })
    }
}

fn sealed_terms(r: &mut Reader<'_>) -> Result<Terms, DecodeError> {
    let terms = terms(r)?;
    Ok(Terms { sealing: Some(sealing(r)?), ..terms })
}

fn put_secured(w: &mut Writer<'_>, kind: u16, link: u64, security: &Security) {
    start(w, kind, 0);
    w.u64(link);
    security.put(w);
}
