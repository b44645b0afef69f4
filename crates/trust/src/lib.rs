//! Who somebody is, by certificates; signatures; and links that nobody else reads. No I/O, no clock.
//!
//! ```text
//! Authority   --issues-->   certificates of an Id   --verified by Roots-->   Certified
//! Statement: name, SHA-256, how it was made   --sign-->   Envelope (JSON)   --verify-->   Statement
//! ```
//!
//! An [`Envelope`] is one of DSSE 1.0 (Dead Simple Signing Envelope; secure-systems-lab/dsse, envelope.md and
//! protocol.md), its payload a [`Statement`] of in-toto (in-toto/attestation, spec/v1), and its signature
//! ECDSA over P-256 with SHA-256 (FIPS 186-5), in ASN.1 (RFC 3279, section 2.2.3). Other tools that know
//! these check it as well. Private keys are PKCS #8 (RFC 5958) and public ones SubjectPublicKeyInfo (RFC
//! 5280), both as PEM (RFC 7468).
//!
//! An envelope is hostile until it is verified: what it says of itself, its key's name too, is believed only
//! when a signature fits a key that the caller has named.

mod authority;
mod certificate;
mod described;
mod envelope;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod handshake;
mod id;
mod key;
pub mod message;
mod noise;
mod pin;
mod program;
pub mod record;
mod statement;

pub use authority::{Authority, AuthorityError, LEAF_LIFE, ROOT_LIFE};
pub use certificate::{
    CERTIFICATE_BYTES, CHAIN, CHAIN_BYTES, CertificateError, Certified, Chain, ROOTS, Roots,
};
pub use described::Described;
pub use envelope::{Envelope, EnvelopeError};
pub use id::{Id, IdError, TrustDomain};
pub use key::{KeyError, PublicKey, SigningKey};
pub use pin::{Pin, PinError};
pub use program::{Program, Revoked, SignatureError};
pub use statement::{Statement, StatementError};
