//! What metadata may be: the fields of HTTP (RFC 9110, sections 5.1 and 5.5), names in lower case
//! as HTTP/2 has them (RFC 9113, section 8.2).

use partywall_abi::frame::Metadata;

use crate::error::Rule;

/// Whether each byte may be in a name.
const NAME: [bool; 256] = {
    let mut allowed = [false; 256];
    let token = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
    let mut i = 0;
    while i < token.len() {
        allowed[token[i] as usize] = true;
        i += 1;
    }
    allowed
};

#[inline]
pub(crate) fn check(metadata: &Metadata<'_>) -> Result<(), Rule> {
    if metadata.is_empty() { Ok(()) } else { check_entries(metadata) }
}

fn check_entries(metadata: &Metadata<'_>) -> Result<(), Rule> {
    for (name, value) in metadata.iter() {
        if !name.iter().all(|byte| NAME[usize::from(*byte)]) {
            return Err(Rule::MetadataName);
        }
        let is_control = |byte: &u8| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f;
        if value.iter().any(is_control) {
            return Err(Rule::MetadataValue);
        }
    }
    Ok(())
}
