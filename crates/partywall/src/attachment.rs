//! Memory and files that can be attached to a request or an answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use partywall_abi::frame::{Item, Place};
use partywall_shm::parcel::lease::Lease;
use partywall_shm::parcel::view::{Owned, View};
use partywall_shm::parcel::{ParcelError, Sealed};
use partywall_shm::socket::Passed;

use crate::link::known::Memory;

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
    /// What stands for it in a frame; `place` says where its memory is.
    pub(crate) fn item(
        &self,
        mut place: impl FnMut(&Memory) -> Option<Place>,
    ) -> Result<Item, ParcelError> {
        Ok(match self {
            Self::Sealed(sealed) => {
                let (_, offset) = Sealed::of(sealed).expect("it is mapped");
                Item::Sealed { offset, bytes: sealed.len() as u64 }
            }
            Self::Owned(view) => {
                let (bytes, generation) = (view.len() as u64, view.generation());
                let place = place(&Memory::Owned(view.memory()));
                Item::Owned { bytes, generation, place }
            }
            Self::Lease(lease) => {
                let (bytes, generation) = (lease.len() as u64, lease.hand_over()?);
                let place = place(&Memory::Lease(lease.memory()));
                Item::Lease { bytes, generation, place }
            }
            Self::File(_) => Item::File,
        })
    }

    /// How many bytes of memory it is; none of a file.
    pub(crate) fn bytes(&self) -> Option<usize> {
        match self {
            Self::Sealed(sealed) => Some(sealed.len()),
            Self::Owned(view) => Some(view.len()),
            Self::Lease(lease) => Some(lease.len()),
            Self::File(_) => None,
        }
    }

    /// Memory of it that may cross again.
    pub(crate) fn memory(&self) -> Option<Memory> {
        match self {
            Self::Sealed(_) | Self::File(_) => None,
            Self::Owned(view) => Some(Memory::Owned(view.memory())),
            Self::Lease(lease) => Some(Memory::Lease(lease.memory())),
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
