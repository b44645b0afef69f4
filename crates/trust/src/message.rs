//! Signed messages: what one end of a channel has said in a call, for others to check as well.
//!
//! ```text
//! sender     Said --sign, with the key of its certificate--> Signature, which goes behind the message
//! receiver   Said, made of what it has itself, and the Signature --check--> Receipt
//! others     Receipt --verify, by the roots--> who has said what, when
//! ```
//!
//! What is signed ([`Said`]) begins with `partywall/message/1` and a zero. The way follows, the channel,
//! the call, the message's number in its direction, and the time. Then come the service's name and the
//! method, each with its length. The last are whether the message is compressed, and its SHA-256. A reply
//! has how many requests of its call its sender had checked by then, and the digest of those: SHA-256 over
//! the digest before it, 32 zeros at first, and SHA-256 of what was signed of the request. Integers are
//! little-endian.
//!
//! The receiver makes that anew of what it knows and has received: the signature has only what it cannot
//! know, the call's number, the time and how many requests were seen. So a message that is altered, comes
//! again, in another place, another call or on another channel does not fit. Whose the key is the chain says
//! that goes with each signature: it is the sender's certificate at that time, however long the channel is
//! open.
//!
//! A signature is ECDSA over P-256 with SHA-256, in ASN.1.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{Context, SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::certificate::{CHAIN_BYTES, CertificateError, Certified, Chain, Roots, SKEW};
use crate::handshake::Credentials;
use crate::key::{hex, unhex};

/// What is signed begins so.
const CONTEXT: &[u8] = b"partywall/message/1\0";
/// The first byte of a signature as it is sent.
const VERSION: u8 = 1;
/// Bytes of a SHA-256.
pub const DIGEST: usize = 32;
/// The most bytes of a signature as it is sent: the chain, its lengths, a signature and numbers.
pub const SIGNATURE_BYTES: usize = CHAIN_BYTES + 256;
/// The most bytes of a name or a method in a receipt.
const TEXT: usize = 4096;

/// Why a message, or a receipt of one, is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The signature is none.
    #[error("the signature of a message is malformed: {0}")]
    Malformed(&'static str),
    /// It is another one's, or of another message.
    #[error(
        "the signature of {0} does not fit the message: it was altered, or is of another message, call or channel"
    )]
    Altered(String),
    /// Somebody else has signed it.
    #[error("the message is signed by {found}, and {expected} is due")]
    Identity {
        /// Who is due.
        expected: String,
        /// Who it was.
        found: String,
    },
    /// The certificate did not hold when it was signed.
    #[error("{id} has signed it at a time at which the certificate did not hold")]
    Time {
        /// Whose certificate it is.
        id: String,
    },
    /// Its certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Way {
    /// From the caller.
    Request = 1,
    /// From the service.
    Reply = 2,
}

/// The requests of a call so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// How many.
    pub count: u64,
    /// Their digest.
    pub digest: [u8; DIGEST],
}

impl Requests {
    /// These, and one of which that was signed.
    #[must_use]
    pub fn and(self, said: &Said) -> Self {
        let all = [self.digest, sha256(&said.encoded())].concat();
        Self { count: self.count + 1, digest: sha256(&all) }
    }
}

/// What is signed of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Which way it goes.
    pub way: Way,
    /// The channel, as both ends of it know it and nobody else could have made it
    /// ([`crate::handshake::Channel::number`]).
    pub channel: [u8; DIGEST],
    /// The call, as its caller numbers those of the channel from 1; 0 in a reply before any request.
    pub call: u64,
    /// The message's number in its direction of the call, from 0.
    pub number: u64,
    /// Milliseconds since 1970, by the sender's clock.
    pub time: u64,
    /// The name that the caller has asked for.
    pub name: Arc<str>,
    /// `/package.Service/Method`.
    pub method: Arc<str>,
    /// Whether it is compressed.
    pub compressed: bool,
    /// SHA-256 of the message as it is sent, without gRPC's prefix.
    pub message: [u8; DIGEST],
    /// Of a reply, the requests that its sender had checked by then.
    pub requests: Requests,
}

/// SHA-256 of a message that comes in parts.
pub struct Hash(Context);

impl Hash {
    /// Of nothing yet.
    #[expect(clippy::new_without_default, reason = "it is no value that there is by itself")]
    pub fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    /// And this part.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The digest of all parts.
    pub fn finish(self) -> [u8; DIGEST] {
        self.0.finish().as_ref().try_into().expect("SHA-256 has so many bytes")
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; DIGEST] {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has so many bytes")
}

impl Said {
    fn encoded(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(256);
        all.extend_from_slice(CONTEXT);
        all.push(self.way as u8);
        all.extend_from_slice(&self.channel);
        for number in [self.call, self.number, self.time] {
            all.extend_from_slice(&number.to_le_bytes());
        }
        for text in [&self.name, &self.method] {
            all.extend_from_slice(&(text.len() as u32).to_le_bytes());
            all.extend_from_slice(text.as_bytes());
        }
        all.push(self.compressed.into());
        all.extend_from_slice(&self.message);
        if self.way == Way::Reply {
            all.extend_from_slice(&self.requests.count.to_le_bytes());
            all.extend_from_slice(&self.requests.digest);
        }
        all
    }

    /// Signs it.
    pub fn sign(&self, own: &Credentials) -> Signature {
        Signature {
            call: self.call,
            time: self.time,
            requests: self.requests.count,
            signature: own.signer().sign(&self.encoded()),
            chain: Arc::clone(own.shared_chain()),
        }
    }
}

/// A signature as it goes behind its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The call's number.
    pub call: u64,
    /// When it was signed.
    pub time: u64,
    /// How many requests its sender had checked.
    pub requests: u64,
    signature: Vec<u8>,
    chain: Arc<Chain>,
}

impl Signature {
    /// Appends its bytes: the version, the call, the time, the requests, the count of certificates, and
    /// each of these and the signature behind its length in 16 bits.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        for number in [self.call, self.time, self.requests] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.push(self.chain.certificates().len() as u8);
        let chain = self.chain.certificates().iter().map(Vec::as_slice);
        for part in chain.chain([&self.signature[..]]) {
            out.extend_from_slice(&(part.len() as u16).to_le_bytes());
            out.extend_from_slice(part);
        }
    }

    /// How many bytes that is.
    pub fn bytes(&self) -> usize {
        let chain = self.chain.certificates().iter().map(|der| 2 + der.len());
        1 + 3 * 8 + 1 + chain.sum::<usize>() + 2 + self.signature.len()
    }

    /// What was sent. With a chain that is the same as `known`, it shares that.
    ///
    /// # Errors
    /// [`MessageError::Malformed`], [`MessageError::Certificate`].
    pub fn take(bytes: &[u8], known: Option<&Arc<Chain>>) -> Result<Self, MessageError> {
        const CUT: MessageError = MessageError::Malformed("it is cut");
        if bytes.len() > SIGNATURE_BYTES {
            return Err(MessageError::Malformed("it is too long"));
        }
        let mut left = bytes;
        if *left.split_off_first().ok_or(CUT)? != VERSION {
            return Err(MessageError::Malformed("it has another version"));
        }
        let mut number = || {
            let bytes = left.split_off(..8).ok_or(CUT)?;
            Ok::<_, MessageError>(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        };
        let (call, time, requests) = (number()?, number()?, number()?);
        let count = left.split_off_first().ok_or(CUT)?;
        let mut part = || {
            let len = left.split_off(..2).ok_or(CUT)?;
            let len = u16::from_le_bytes(len.try_into().expect("two bytes"));
            left.split_off(..len.into()).ok_or(CUT)
        };
        // Each takes two bytes at least: so few are left for whatever count there is.
        let chain = (0..*count).map(|_| part()).collect::<Result<Vec<_>, _>>()?;
        let signature = part()?.to_vec();
        if !left.is_empty() {
            return Err(MessageError::Malformed("there are bytes behind it"));
        }
        let chain = match known.filter(|known| known.certificates() == chain) {
            Some(known) => Arc::clone(known),
            None => Arc::new(Chain::new(chain.into_iter().map(<[u8]>::to_vec).collect())?),
        };
        Ok(Self { call, time, requests, signature, chain })
    }

    /// The sender's certificate.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// That the key of this certificate, which its chain has, has signed that, and at a time at which that
    /// held; it still does now.
    ///
    /// # Errors
    /// [`MessageError::Altered`], [`MessageError::Time`], [`MessageError::Certificate`].
    pub fn check(
        self,
        said: Said,
        by: &Certified,
        now: SystemTime,
    ) -> Result<Receipt, MessageError> {
        by.holds(now)?;
        let then = UNIX_EPOCH + Duration::from_millis(said.time);
        if then > now + SKEW || then + SKEW < by.not_before {
            return Err(MessageError::Time { id: by.id.to_string() });
        }
        if !by.key.fits(&said.encoded(), &self.signature) {
            return Err(MessageError::Altered(by.id.to_string()));
        }
        Ok(Receipt { said, signature: self.signature, chain: self.chain })
    }
}

/// What was said, and what proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// What was said.
    pub said: Said,
    signature: Vec<u8>,
    chain: Arc<Chain>,
}

/// As it is in JSON.
#[derive(Serialize, Deserialize)]
struct Json {
    way: Way,
    channel: String,
    call: u64,
    number: u64,
    signed_at: u64,
    name: String,
    method: String,
    compressed: bool,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requests_digest: Option<String>,
    signature: String,
    chain: Vec<String>,
}

impl Receipt {
    /// The signature in ASN.1.
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// The certificate of who has signed.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// One of its parts, not checked.
    pub fn new(said: Said, signature: Vec<u8>, chain: Arc<Chain>) -> Self {
        Self { said, signature, chain }
    }

    /// Who has signed it, if one of these roots had certified that key then.
    ///
    /// # Errors
    /// [`MessageError`]
    pub fn verify(&self, roots: &Roots) -> Result<Certified, MessageError> {
        let then = UNIX_EPOCH + Duration::from_millis(self.said.time);
        let certified = match roots.verify(&self.chain, then) {
            Err(CertificateError::Expired { id, .. } | CertificateError::Early { id, .. }) => {
                return Err(MessageError::Time { id });
            }
            verified => verified?,
        };
        match certified.key.fits(&self.said.encoded(), &self.signature) {
            true => Ok(certified),
            false => Err(MessageError::Altered(certified.id.to_string())),
        }
    }

    /// When it was signed, by its sender's clock.
    pub fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.said.time)
    }

    /// As a JSON object: what was said by its fields, digests as hexadecimal digits, and the signature and
    /// the certificates, the own one first, in base64.
    pub fn to_json(&self) -> serde_json::Value {
        let Said { way, channel, call, number, time, name, method, compressed, message, requests } =
            &self.said;
        let is_reply = *way == Way::Reply;
        let json = Json {
            way: *way,
            channel: hex(channel),
            call: *call,
            number: *number,
            signed_at: *time,
            name: name.to_string(),
            method: method.to_string(),
            compressed: *compressed,
            message: hex(message),
            requests: is_reply.then_some(requests.count),
            requests_digest: is_reply.then(|| hex(&requests.digest)),
            signature: STANDARD.encode(&self.signature),
            chain: self.chain.certificates().iter().map(|der| STANDARD.encode(der)).collect(),
        };
        serde_json::to_value(json).expect("texts can be written down")
    }

    /// The same as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.to_json()).expect("texts can be written down")
    }

    /// The receipt of a JSON object, whose other fields are passed by. It is hostile until it is verified.
    ///
    /// # Errors
    /// What is wrong with it, as a text.
    pub fn from_json(value: &serde_json::Value) -> Result<Self, String> {
        let json = Json::deserialize(value).map_err(|e| format!("this is no receipt: {e}"))?;
        let digest = |field: &str, text: &str| {
            unhex(text).ok_or_else(|| format!("`{field}` is no SHA-256 in hexadecimal digits"))
        };
        let bytes = |field: &str, text: &str| {
            STANDARD.decode(text).map_err(|e| format!("`{field}` is no base64: {e}"))
        };
        for (field, text) in [("name", &json.name), ("method", &json.method)] {
            if text.len() > TEXT {
                return Err(format!("`{field}` has {} bytes, and {TEXT} are the most", text.len()));
            }
        }
        let requests = match (json.way, json.requests, &json.requests_digest) {
            (Way::Request, None, None) => Requests::default(),
            (Way::Reply, Some(count), Some(text)) => {
                Requests { count, digest: digest("requests_digest", text)? }
            }
            _ => return Err("`requests` and `requests_digest` are those of a reply".into()),
        };
        let chain = json.chain.iter().map(|der| bytes("chain", der)).collect::<Result<_, _>>()?;
        let said = Said {
            way: json.way,
            channel: digest("channel", &json.channel)?,
            call: json.call,
            number: json.number,
            time: json.signed_at,
            name: json.name.into(),
            method: json.method.into(),
            compressed: json.compressed,
            message: digest("message", &json.message)?,
            requests,
        };
        let signature = bytes("signature", &json.signature)?;
        let chain = Chain::new(chain).map_err(|e| e.to_string())?;
        Ok(Self { said, signature, chain: Arc::new(chain) })
    }
}

#[cfg(test)]
mod tests;
