//! Certificates: a process makes a key, and the coordinator says whose it is.
//!
//! ```text
//! process                                coordinator
//!  Certify ------------------>             this key is mine: its signature over itself
//!          <----------------- Certified    your certificate, and whose others to believe
//!          or <-------------- Refused
//!  MayCall ------------------>             whom a certificate names may call what at my name?
//!          <------------------- Allowed
//!          <--------------------- Renew    another authority certifies from here on: ask again
//!  Receipts ----------------->             these messages were signed by the other end of a link
//!          <-------------------- Kept      they are in the audit log's queue: here are the next ones
//! ```
//!
//! Who asks is known by its connection, so the certificate is for whom the coordinator takes it. A process
//! asks again before a certificate is over, and when it speaks with another coordinator. The private key
//! never leaves the process.

use alloc::string::String;
use alloc::vec::Vec;

use super::fields::{methods, name, put_methods, put_name, put_text};
use super::{start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;
use crate::name::{MethodSet, ServiceName};

pub(super) const KINDS: u16 = 0x0900;
const CERTIFY: u16 = KINDS | 1;
const CERTIFIED: u16 = KINDS | 2;
const RENEW: u16 = KINDS | 3;
const MAY_CALL: u16 = KINDS | 4;
const ALLOWED: u16 = KINDS | 5;
const RECEIPTS: u16 = KINDS | 6;
const KEPT: u16 = KINDS | 7;

/// A root of a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The domain.
    pub domain: String,
    /// Its certificate in DER.
    pub certificate: Vec<u8>,
}

/// Messages about certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrustMessage {
    /// To the coordinator: a certificate for this key.
    Certify {
        /// Request number.
        request: u32,
        /// The public key, as SubjectPublicKeyInfo in DER.
        key: Vec<u8>,
        /// Its signature over [`TrustMessage::PROOF`] and itself.
        proof: Vec<u8>,
    },
    /// To the process: here it is.
    Certified {
        /// Request number.
        request: u32,
        /// Seconds since 1970, by the clock by which certificates are over.
        now: u64,
        /// The certificate in DER, then each that has signed the one before it, without the root.
        chain: Vec<Vec<u8>>,
        /// Who may have signed those of others.
        roots: Vec<Root>,
    },
    /// To the coordinator, of who may serve the name: what may be called there by whom a certificate names?
    MayCall {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
        /// The SPIFFE ID.
        id: String,
    },
    /// To the process: these methods.
    Allowed {
        /// Request number.
        request: u32,
        /// What may be called.
        methods: MethodSet,
    },
    /// To the process: what was certified is not what others go by any more.
    Renew,
    /// To the coordinator, of an end of a link with signed messages: receipts of those that it has got.
    Receipts {
        /// Request number.
        request: u32,
        /// Each as JSON, [`limits::RECEIPT_BYTES`] at most; [`limits::RECEIPTS_BYTES`] in all. The next
        /// ones are sent after the answer.
        receipts: Vec<Vec<u8>>,
    },
    /// To the process: its receipts are kept.
    Kept {
        /// Request number.
        request: u32,
    },
}

impl TrustMessage {
    /// What the signature of a key over itself begins with.
    pub const PROOF: &[u8] = b"partywall/certify/1";

    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Certify { request, key, proof } => {
                start(w, CERTIFY, *request);
                put_bytes(w, key);
                put_bytes(w, proof);
            }
            Self::MayCall { request, name, id } => {
                start(w, MAY_CALL, *request);
                put_name(w, name);
                put_text(w, id, limits::ID_BYTES);
            }
            Self::Allowed { request, methods } => {
                start(w, ALLOWED, *request);
                put_methods(w, methods);
            }
            Self::Renew => start(w, RENEW, 0),
            Self::Receipts { request, receipts } => {
                start(w, RECEIPTS, *request);
                w.u8(receipts.len() as u8);
                for receipt in receipts {
                    w.short_bytes(&receipt[..receipt.len().min(limits::RECEIPT_BYTES)]);
                }
            }
            Self::Kept { request } => start(w, KEPT, *request),
            Self::Certified { request, now, chain, roots } => {
                start(w, CERTIFIED, *request);
                w.u64(*now);
                w.u8(chain.len() as u8);
                chain.iter().for_each(|certificate| put_bytes(w, certificate));
                w.u8(roots.len() as u8);
                for root in roots {
                    put_text(w, &root.domain, limits::ID_BYTES);
                    put_bytes(w, &root.certificate);
                }
            }
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            CERTIFY => Self::Certify { request, key: bytes(r)?, proof: bytes(r)? },
            CERTIFIED => {
                let now = r.u64("time")?;
                let chain =
                    (0..r.u8("certificates")?).map(|_| bytes(r)).collect::<Result<_, _>>()?;
                let root = |r: &mut Reader<'_>| {
                    let domain = r.short_text("trust domain", limits::ID_BYTES)?;
                    Ok(Root { domain, certificate: bytes(r)? })
                };
                let roots = (0..r.u8("roots")?).map(|_| root(r)).collect::<Result<_, _>>()?;
                Self::Certified { request, now, chain, roots }
            }
            MAY_CALL => {
                let name = name(r)?;
                Self::MayCall { request, name, id: r.short_text("id", limits::ID_BYTES)? }
            }
            ALLOWED => Self::Allowed { request, methods: methods(r)? },
            RENEW => Self::Renew,
            RECEIPTS => {
                let receipt = |r: &mut Reader<'_>| {
                    Ok(r.short_bytes("receipt", limits::RECEIPT_BYTES)?.to_vec())
                };
                let receipts =
                    (0..r.u8("receipts")?).map(|_| receipt(r)).collect::<Result<_, _>>()?;
                Self::Receipts { request, receipts }
            }
            KEPT => Self::Kept { request },
            _ => return Err(unknown(kind)),
        })
    }
}

fn put_bytes(w: &mut Writer<'_>, bytes: &[u8]) {
    w.short_bytes(&bytes[..bytes.len().min(limits::CERTIFICATE_BYTES)]);
}

fn bytes(r: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    Ok(r.short_bytes("key or certificate", limits::CERTIFICATE_BYTES)?.to_vec())
}
