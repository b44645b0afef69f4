//! What a function is called with.

use alloc::vec::Vec;

use crate::Error;

/// The answer: bytes, or an error with a code.
pub type Reply = Result<Vec<u8>, Error>;

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'call> {
    id: u64,
    body: &'call [u8],
    parameters: &'call [u8],
}

impl<'call> Request<'call> {
    pub(crate) fn new(id: u64, body: &'call [u8], parameters: &'call [u8]) -> Self {
        Self { id, body, parameters }
    }

    /// One with this body, for tests of a function.
    pub fn of(body: &'call [u8]) -> Self {
        Self::new(0, body, &[])
    }

    /// The number that its log lines carry.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its bytes.
    pub fn body(&self) -> &'call [u8] {
        self.body
    }

    /// Its bytes as a text.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the place of the first byte that is no UTF-8.
    pub fn text(&self) -> Result<&'call str, Error> {
        core::str::from_utf8(self.body).map_err(|e| {
            Error::invalid(alloc::format!(
                "the request is no UTF-8 from byte {} on",
                e.valid_up_to()
            ))
        })
    }

    /// Its bytes as a protobuf message.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with what is wrong with them.
    #[cfg(feature = "prost")]
    pub fn message<M: prost::Message + Default>(&self) -> Result<M, Error> {
        M::decode(self.body).map_err(|e| Error::invalid(alloc::format!("the request: {e}")))
    }

    /// A parameter or a secret of this version of the function, as `fn deploy` was given it.
    pub fn parameter(&self, name: &str) -> Option<&'call [u8]> {
        parameters(self.parameters).find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value)
    }
}

/// A reply that is a protobuf message.
///
/// # Errors
/// None: it is what `handle` returns.
#[cfg(feature = "prost")]
pub fn reply<M: prost::Message>(message: &M) -> Reply {
    Ok(message.encode_to_vec())
}

/// The names and values of a block of parameters: each has the two lengths as u32 in little-endian order,
/// then its bytes. What does not fit ends it.
pub fn parameters(mut block: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    core::iter::from_fn(move || {
        let (name_bytes, rest) = block.split_first_chunk::<4>()?;
        let (value_bytes, rest) = rest.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*name_bytes) as usize)?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_bytes) as usize)?;
        block = rest;
        Some((name, value))
    })
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "prost")]
    use alloc::string::String;

    use super::*;

    #[test]
    fn parameters_are_found_by_name_and_a_cut_block_has_what_is_whole() {
        let mut block = Vec::new();
        for (name, value) in [("a", "1"), ("long name", ""), ("b", "22")] {
            block.extend((name.len() as u32).to_le_bytes());
            block.extend((value.len() as u32).to_le_bytes());
            block.extend(name.as_bytes());
            block.extend(value.as_bytes());
        }
        let request = Request::new(7, b"", &block);
        assert_eq!(request.parameter("b"), Some(&b"22"[..]));
        assert_eq!(request.parameter("long name"), Some(&b""[..]));
        assert_eq!(request.parameter("c"), None);
        let cut = Request::new(7, b"", &block[..block.len() - 1]);
        assert_eq!((cut.parameter("a"), cut.parameter("b")), (Some(&b"1"[..]), None));
        assert_eq!(parameters(&[255; 9]).count(), 0);
    }

    #[cfg(feature = "prost")]
    #[test]
    fn a_message_is_read_and_written() {
        let request = Request::of(b"\x0a\x02hi");
        let text = request.message::<String>().unwrap();
        assert_eq!((text.as_str(), reply(&text).unwrap()), ("hi", b"\x0a\x02hi".to_vec()));
        let error = Request::of(b"\x0a\x09hi").message::<String>().unwrap_err();
        assert_eq!(error.code, crate::Code::InvalidArgument);
        assert!(error.message.starts_with("the request: failed to decode"), "{}", error.message);
    }

    #[test]
    fn a_body_that_is_no_text_is_an_error_with_its_place() {
        let error = Request::of(b"ab\xff").text().unwrap_err();
        assert_eq!(error.message, "the request is no UTF-8 from byte 2 on");
    }
}
