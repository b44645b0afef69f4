//! The contenders of `calls` and `domain` under policies that differ in `seal` and `sign` alone.
//!
//! Neither lets descriptors cross: parcels are not sealed, and would be something else to compare.

use partywall::{Channel, Seal, Sign};

use super::{on_one_core, on_rings};
use crate::calls::partywall::{NATIVE, TONIC, call_checked, coordinate_by};
use crate::calls::stubs::{native, ordinary};
use crate::case::Wait;
use crate::contender::{Contender, Serve};
use crate::domains::others::DOMAIN_NATIVE;
use crate::error::Result;

/// Names beside the bench's own, of which each is new to a caller once.
pub const FIRSTS: usize = 24;

/// Such a name.
pub fn first(number: usize) -> String {
    format!("first-{number}")
}

/// A policy by which anyone may do anything at the bench's names, with these keys for each of them.
fn policy(keys: &str) -> String {
    let names = (0..FIRSTS).map(first).chain([crate::calls::partywall::NAME.to_owned()]);
    let of = |name| {
        format!(
            "[service.{name}]\nregister = ['anyone']\n{keys}\n[service.{name}.call]\n\
             anyone = ['*']\n"
        )
    };
    names.map(of).collect()
}

/// That policy, by which links are sealed.
pub fn sealed_policy() -> String {
    policy("seal = 'required'")
}

/// The coordinator of plain links.
pub const COORDINATE_PLAIN: Serve = |seat| coordinate_by(seat, &policy("seal = 'off'"));
/// The coordinator of sealed links.
pub const COORDINATE_SEALED: Serve = |seat| coordinate_by(seat, &sealed_policy());
/// The coordinator of links whose messages are signed; it keeps no receipts.
pub const COORDINATE_SIGNED: Serve = |seat| coordinate_by(seat, &policy("sign = 'required'"));

/// That a channel's link is plain.
pub fn is_plain(channel: &Channel) -> Result<()> {
    has(channel, Seal::Off)
}

/// That a channel's link is sealed.
pub fn is_sealed(channel: &Channel) -> Result<()> {
    has(channel, Seal::Sealed)
}

/// That the messages on a channel's link are signed.
pub fn is_signed(channel: &Channel) -> Result<()> {
    let route = channel.route().ok_or("the channel has no link")?;
    match route.security().sign {
        Sign::Signed => is_sealed(channel),
        found => Err(format!("the link has sign {}, not signed", found.word()).into()),
    }
}

fn has(channel: &Channel, due: Seal) -> Result<()> {
    let found = channel.route().ok_or("the channel has no link")?.security().seal;
    match found == due {
        true => Ok(()),
        false => Err(format!("the link has seal {}, not {}", found.word(), due.word()).into()),
    }
}

/// tonic's stubs over a plain link.
pub const RING_PLAIN_TONIC: Contender = Contender {
    name: "ring-plain-tonic",
    about: "tonic's generated stubs over Partywall's channel, on a plain link without parcels",
    cases: on_rings,
    attend: Some(COORDINATE_PLAIN),
    call: Some(|seat| call_checked(seat, ordinary::client, is_plain)),
    ..TONIC
};

/// tonic's stubs over a sealed link.
pub const RING_SEALED_TONIC: Contender = Contender {
    name: "ring-sealed-tonic",
    about: "the same on a sealed link",
    attend: Some(COORDINATE_SEALED),
    call: Some(|seat| call_checked(seat, ordinary::client, is_sealed)),
    ..RING_PLAIN_TONIC
};

/// tonic's stubs over a link with signed messages.
pub const RING_SIGNED_TONIC: Contender = Contender {
    name: "ring-signed-tonic",
    about: "the same on a sealed link whose messages are signed",
    attend: Some(COORDINATE_SIGNED),
    call: Some(|seat| call_checked(seat, ordinary::client, is_signed)),
    ..RING_PLAIN_TONIC
};

/// Native stubs over a plain link.
pub const NATIVE_PLAIN: Contender = Contender {
    name: "native-plain",
    about: "partywall-build's generated stubs over Partywall's channel, on a plain link without parcels",
    cases: on_rings,
    attend: Some(COORDINATE_PLAIN),
    call: Some(|seat| call_checked(seat, native::client, is_plain)),
    ..NATIVE
};

/// Native stubs over a sealed link.
pub const NATIVE_SEALED: Contender = Contender {
    name: "native-sealed",
    about: "the same on a sealed link",
    attend: Some(COORDINATE_SEALED),
    call: Some(|seat| call_checked(seat, native::client, is_sealed)),
    ..NATIVE_PLAIN
};

/// Native stubs over a plain link between two domains.
pub const GATE_PLAIN: Contender = Contender {
    name: "gate-plain",
    about: "partywall-build's stubs between two domains, without protection keys: a plain link of which \
            the gate tells",
    cases: || on_one_core(Some(Wait::Block)),
    domains: DOMAIN_NATIVE.domains,
    ..NATIVE_PLAIN
};

/// Native stubs over a sealed link between two domains.
pub const GATE_SEALED: Contender = Contender {
    name: "gate-sealed",
    about: "the same on a sealed link",
    cases: GATE_PLAIN.cases,
    domains: DOMAIN_NATIVE.domains,
    ..NATIVE_SEALED
};
