//! Memory and files that can be attached to a request or an answer.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use partywall_abi::frame::Item;
use partywall_shm::parcel::lease::Lease;
use partywall_shm::parcel::view::{Owned, View};
use partywall_shm::parcel::{ParcelError, Sealed};
use partywall_shm::socket::Passed;

/// Memory or a file beside a message.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attachment {
    /// Bytes that never change.
    Sealed(Sealed),
    /// Bytes that their owner may change, and whoever reads them is told so.
    Owned(View),
    /// Bytes that whoever has the lease may write.
    Lease(Lease),
    /// A descriptor of anything else. Nothing is known of what has come: a read of it may block, and a socket
    /// may bring descriptors.
    File(Descriptor),
}

impl Attachment {
    /// What stands for it in a frame.
    pub(crate) fn item(&self) -> Result<Item, ParcelError> {
        Ok(match self {
            Self::Sealed(sealed) => {
                let (_, offset) = Sealed::of(sealed).expect("it is mapped");
                Item::Sealed { offset, bytes: sealed.len() as u64 }
            }
            Self::Owned(view) => {
                Item::Owned { bytes: view.len() as u64, generation: view.generation() }
            }
            Self::Lease(lease) => {
                Item::Lease { bytes: lease.len() as u64, generation: lease.hand_over()? }
            }
            Self::File(_) => Item::File,
        })
    }

    /// What is to stay mapped of it.
    pub(crate) fn memory(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        match self {
            Self::Sealed(_) | Self::File(_) => None,
            Self::Owned(view) => Some(view.memory()),
            Self::Lease(lease) => Some(lease.memory()),
        }
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Sealed(sealed) => sealed.as_fd(),
            Self::Owned(view) => view.as_fd(),
            Self::Lease(lease) => lease.as_fd(),
            Self::File(descriptor) => descriptor.as_fd(),
        }
    }
}

impl From<Sealed> for Attachment {
    fn from(sealed: Sealed) -> Self {
        Self::Sealed(sealed)
    }
}

impl From<&Owned> for Attachment {
    /// What its owner has written last. It goes to several, and again.
    fn from(owned: &Owned) -> Self {
        Self::Owned(owned.view())
    }
}

impl From<View> for Attachment {
    fn from(view: View) -> Self {
        Self::Owned(view)
    }
}

impl From<Lease> for Attachment {
    fn from(lease: Lease) -> Self {
        Self::Lease(lease)
    }
}

impl From<OwnedFd> for Attachment {
    fn from(file: OwnedFd) -> Self {
        Self::File(Descriptor(Whose::Own(file)))
    }
}

impl From<std::fs::File> for Attachment {
    fn from(file: std::fs::File) -> Self {
        OwnedFd::from(file).into()
    }
}

/// A descriptor, of this process or from a peer. One that has come is closed where nobody waits for that,
/// since its close may take as long as its sender likes.
#[derive(Debug)]
pub struct Descriptor(Whose);

#[derive(Debug)]
enum Whose {
    Own(OwnedFd),
    Peers(Passed),
}

impl Descriptor {
    pub(crate) fn passed(descriptor: Passed) -> Self {
        Self(Whose::Peers(descriptor))
    }

    /// The plain descriptor. Whoever has it closes it, and waits for that as long as its sender likes.
    pub fn into_fd(self) -> OwnedFd {
        match self.0 {
            Whose::Own(file) => file,
            Whose::Peers(passed) => passed.trusted(),
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Whose::Own(file) => file.as_fd(),
            Whose::Peers(passed) => passed.as_fd(),
        }
    }
}
