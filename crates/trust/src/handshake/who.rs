//! What an end says of itself in a handshake, and how the other one checks it.

use snow::HandshakeState;
use zeroize::Zeroizing;

use super::{Checks, Credentials, EVIDENCE_BYTES, HandshakeError, Peer};
use crate::certificate::Chain;
use crate::noise::KEY;

/// What is signed begins so.
const CONTEXT: &[u8] = b"partywall/noise/1";

/// What an end signs.
pub(super) fn signed(
    role: &[u8],
    hash: &[u8],
    static_key: &[u8; KEY],
    ephemeral: &[u8; KEY],
) -> Vec<u8> {
    [CONTEXT, &[0], role, &[0], hash, static_key, ephemeral].concat()
}

/// Who an end is, to be sent in the next message.
pub(super) fn who(
    own: &Credentials,
    role: &[u8],
    state: &HandshakeState,
    ephemeral: &[u8; KEY],
) -> Zeroizing<Vec<u8>> {
    let hash = state.get_handshake_hash();
    let signature = own.signer.sign(&signed(role, hash, &own.static_key.public(), ephemeral));
    let mut all = Zeroizing::new(vec![own.chain.certificates().len() as u8]);
    let chain = own.chain.certificates().iter().map(Vec::as_slice);
    for part in chain.chain([&own.evidence[..], &signature]) {
        all.extend_from_slice(&(part.len() as u16).to_le_bytes());
        all.extend_from_slice(part);
    }
    all
}

/// Who the other end is, by its payload; `hash` is that before its message.
pub(super) fn read_who(
    payload: &[u8],
    (role, hash): (&[u8], &[u8]),
    (static_key, ephemeral): (&[u8; KEY], &[u8; KEY]),
    checks: &Checks<'_>,
) -> Result<Peer, HandshakeError> {
    let short = HandshakeError::Payload("it is cut");
    let mut left = payload;
    let count = left.split_off_first().ok_or_else(|| short.clone())?;
    let mut part = || {
        let len = left.split_off(..2).ok_or_else(|| short.clone())?;
        let len = u16::from_le_bytes(len.try_into().expect("two bytes"));
        left.split_off(..len.into()).ok_or_else(|| short.clone())
    };
    // Each takes two bytes at least: so few are left for whatever count there is.
    let chain = (0..*count).map(|_| part().map(<[u8]>::to_vec)).collect::<Result<_, _>>()?;
    let (evidence, signature) = (part()?, part()?);
    if !left.is_empty() {
        return Err(HandshakeError::Payload("there are bytes behind it"));
    }
    if evidence.len() > EVIDENCE_BYTES {
        return Err(HandshakeError::Payload("its evidence is too long"));
    }
    let certified = checks.roots.verify(&Chain::new(chain)?, checks.now)?;
    if !certified.key.fits(&signed(role, hash, static_key, ephemeral), signature) {
        return Err(HandshakeError::Signature(certified.id.to_string()));
    }
    let peer = Peer { certified, static_key: *static_key, evidence: evidence.to_vec() };
    peer.holds(checks)?;
    Ok(peer)
}
