//! Whether what somebody deploys can be a function.

use std::collections::BTreeMap;

pub use partywall_functions::source::{BYTES as SOURCES, FILES};
use serde_bytes::ByteBuf;
use tonic::Status;

/// Bytes of a version's parameters and secrets, with their names.
pub const PARAMETERS: usize = 64 << 10;
/// Bytes of a name.
pub const NAME: usize = 63;

/// Parameters or secrets by their names.
pub type Values = BTreeMap<String, ByteBuf>;

/// Whether a function can have this name: 1 to 63 of `a-z 0-9 . _ -`, the first one a letter or digit.
///
/// # Errors
/// INVALID_ARGUMENT, with what a name is.
pub fn name(name: &str) -> Result<(), Status> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_name = (1..=NAME).contains(&name.len())
        && is_letter(name.as_bytes()[0])
        && name.bytes().all(|byte| is_letter(byte) || b"._-".contains(&byte));
    match is_name {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "{name:?} is no name of a function: 1 to {NAME} of a-z 0-9 . _ -, the first one a letter or \
             digit"
        ))),
    }
}

/// Parameters and secrets as a function finds them, if a version can have them.
///
/// # Errors
/// INVALID_ARGUMENT, with the one that is wrong, or the limit.
pub fn values(parameters: &Values, secrets: &Values) -> Result<Vec<u8>, Status> {
    if let Some(name) = parameters.keys().find(|name| secrets.contains_key(*name)) {
        return Err(Status::invalid_argument(format!(
            "`{name}` is both a parameter and a secret; give one of them another name"
        )));
    }
    if parameters.keys().chain(secrets.keys()).any(|name| name.is_empty() || name.contains('=')) {
        return Err(Status::invalid_argument(
            "the name of a parameter or secret is empty or has `=`; give it another one",
        ));
    }
    let bytes = block_bytes(parameters, secrets);
    match bytes <= PARAMETERS {
        true => Ok(block(parameters, secrets)),
        false => Err(Status::invalid_argument(format!(
            "parameters and secrets have {bytes} bytes with their names, and a function has {PARAMETERS} \
             at most"
        ))),
    }
}

/// The bytes of [`block`].
pub(crate) fn block_bytes(parameters: &Values, secrets: &Values) -> usize {
    parameters.iter().chain(secrets).map(|(name, value)| 8 + name.len() + value.len()).sum()
}

/// Parameters and secrets as a function finds them: each has the lengths of its name and its value as u32 in
/// little-endian order, then both.
pub(crate) fn block(parameters: &Values, secrets: &Values) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in parameters.iter().chain(secrets) {
        for part in [name.as_bytes(), value] {
            block.extend((part.len() as u32).to_le_bytes());
        }
        block.extend_from_slice(name.as_bytes());
        block.extend_from_slice(value);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_services() {
        for good in ["a", "0", "word-count_2.v1", &"x".repeat(63)] {
            name(good).unwrap();
        }
        for bad in ["", "-a", ".a", "A", "ä", "a b", "a/b", &"x".repeat(64)] {
            assert!(name(bad).unwrap_err().message().contains("is no name"), "{bad}");
        }
    }

    #[test]
    fn parameters_have_a_limit_and_one_meaning() {
        let values =
            |name: &str, bytes| Values::from([(name.into(), ByteBuf::from(vec![0; bytes]))]);
        super::values(&values("a", PARAMETERS - 9), &Values::new()).unwrap();
        let long = super::values(&values("a", PARAMETERS - 8), &Values::new()).unwrap_err();
        assert!(long.message().contains("65537 bytes"), "{}", long.message());
        let both = super::values(&values("a", 1), &values("a", 1)).unwrap_err();
        assert!(both.message().contains("`a` is both"), "{}", both.message());
        assert!(super::values(&values("a=b", 1), &Values::new()).is_err());
        let (a, b) = (values("a", 1), values("b", 0));
        let block = block(&a, &b);
        assert_eq!(block.len(), block_bytes(&a, &b));
        assert_eq!(
            block,
            [&[1, 0, 0, 0, 1, 0, 0, 0, b'a', 0][..], &[1, 0, 0, 0, 0, 0, 0, 0, b'b']].concat()
        );
    }
}
