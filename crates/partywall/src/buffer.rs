//! Memory for a long field of a message.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use crate::link::pool::Blank;

/// Memory for a long `bytes` field of a message, to be written before the message is made.
///
/// Where it is in a parcel of the channel's link ([`Buffer::is_in_parcel`]) and a message with it is sent by
/// native stubs on that channel, the field is not copied: the message is put together around it. It then goes
/// as any other message, and is copied once where it comes. Elsewhere the message is encoded as ever: over
/// another link, by tonic's stubs, where the field is a part of the buffer alone, and while another message
/// with it is under way.
///
/// The peer of the link can read a buffer in a parcel from the first write on, whether it is sent or not:
/// write nothing there that is not for it.
///
/// A child made by fork(2) has none of it, and must not read it.
///
/// ```
/// use std::io::Read;
///
/// use partywall::{Channel, Server};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_reporter, service) = tonic_health::server::health_reporter();
/// # let channel = Server::builder().add_service(service).in_process()?;
/// let mut text = channel.buffer(1 << 20).await;
/// std::io::repeat(b'x').read_exact(&mut text)?;
/// let text: bytes::Bytes = text.freeze();
/// assert_eq!(text.len(), 1 << 20);
/// # Ok(()) }
/// ```
pub struct Buffer(Memory);

enum Memory {
    Own(Vec<u8>),
    Parcel(Blank),
}

impl Buffer {
    /// In memory of this process, of zeros.
    pub fn new(len: usize) -> Self {
        Self(Memory::Own(vec![0; len]))
    }

    pub(crate) fn of(blank: Option<Blank>, len: usize) -> Self {
        blank.map_or_else(|| Self::new(len), |blank| Self(Memory::Parcel(blank)))
    }

    /// Whether it is in a parcel of the link that it was asked of. Its bytes are zeros then, or what was
    /// written there before.
    pub fn is_in_parcel(&self) -> bool {
        matches!(self.0, Memory::Parcel(_))
    }

    /// What was written, for a field. The memory is used again when all clones are dropped, here, and the
    /// peer has read what it was sent.
    pub fn freeze(self) -> Bytes {
        match self.0 {
            Memory::Own(bytes) => bytes.into(),
            Memory::Parcel(blank) => blank.freeze(),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Parcel(blank) => blank,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Parcel(blank) => blank,
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, is_in_parcel) = (self.len(), self.is_in_parcel());
        f.debug_struct("Buffer").field("len", &len).field("is_in_parcel", &is_in_parcel).finish()
    }
}
