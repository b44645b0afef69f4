//! The `sealed` bench: calls over links whose records are encrypted and authenticated, beside the same calls
//! over plain links and over TLS, and what it takes to make such links.
//!
//! Calls are echoed and checked as in `calls`, from 1 B to 16 MiB. None is passed in parcels, which are not
//! sealed: what is longer than a record goes in several.
//!
//! | contenders | what is between the two sides |
//! | --- | --- |
//! | `ring-*-tonic`, `native-*` | the stubs of both generators over a link of a policy with or without `seal` or `sign` |
//! | `ring-sealed-rotating` | `ring-sealed-tonic` while the authority is replaced, again and again |
//! | `gate-*` | native stubs between two domains: the same links, told of by the gate |
//! | `ring-*-raw` | a link without calls |
//! | `tonic-uds`, `tonic-uds-tls`, `tonic-tcp-mtls` | tonic's own transport |
//! | `aead-floor` | nothing: the bytes are sealed and opened, in one thread |
//! | `sign-floor` | nothing: the bytes are signed and verified twice, in one thread |
//! | `connect-*` | a link is made, answers one call, and is dropped |
//! | `handshake-*` | both ends of a handshake in one thread, without a link |
//!
//! All who encrypt use AES-128-GCM of AWS-LC.

pub mod aead_floor;
pub mod connect;
pub mod handshake;
pub mod identity;
pub mod raw;
pub mod rotating;
pub mod sign_floor;
pub mod stubs;
pub mod tls;

use crate::case::{Case, Placement, SEALED_SIZES, Wait};

/// Every size on one core with sides that sleep, and on two cores with sides that wait so.
fn cases(on_two: Wait) -> Vec<Case> {
    let at = |placement, wait| SEALED_SIZES.map(|size| Case::sealed(size, placement, Some(wait)));
    [at(Placement::SameCore, Wait::Block), at(Placement::TwoCores, on_two)].concat()
}

/// On a ring, where sides that sleep on two cores would measure the wake-up.
fn on_rings() -> Vec<Case> {
    cases(Wait::Spin)
}

/// On a socket.
fn on_sockets() -> Vec<Case> {
    cases(Wait::Block)
}

/// Every size on one core alone, of a single thread or of sides that wait so.
fn on_one_core(wait: Option<Wait>) -> Vec<Case> {
    SEALED_SIZES.map(|size| Case::sealed(size, Placement::SameCore, wait)).into()
}
