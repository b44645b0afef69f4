//! What is attached to the head of a request or an answer.
//!
//! ```text
//! sender     waits until descriptors are granted, and the peer takes one more
//!            one packet with all descriptors, then the frame that names it, with this side's ring locked
//!            memory that was sent stays mapped, as it may come back or be sent again     [`Kept`]
//! reader     the packet, in the order of the records; it opens none of the descriptors
//! program    takes them: each is checked and mapped then                                 [`Attached::open`]
//!            the peer may send one more, when they are taken or dropped                  [`Unread`]
//! ```
//!
//! Where nothing can be attached the call fails before it is sent: FAILED_PRECONDITION, with the remedy.
//! Where the peer takes no packet now, or this user has too many descriptors under way, RESOURCE_EXHAUSTED;
//! where it has ended, UNAVAILABLE.
//!
//! A sender that dies leaves its receiver with what has come. A receiver that dies has mapped what it has
//! taken, and the rest goes with the descriptor socket. A lease is with whoever has taken it, or was to.
//!
//! System calls of one attachment: sendmsg(2) at the sender; at the receiver recvmsg(2), fstat(2), fcntl(2)
//! and close(2) of memory that is known, and mmap(2) with some more when it comes first.

use std::any::Any;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

use partywall_abi::control::Grant;
use partywall_abi::frame::{self, Item};
use partywall_abi::limits;
use partywall_abi::sync::{AtomicU32, Ordering};
use partywall_shm::parcel::lease::Lease;
use partywall_shm::parcel::view::View;
use partywall_shm::parcel::{ParcelError, Sealed};
use partywall_shm::socket::Passed;
use tonic::Status;

use super::Link;
use crate::attachment::{Attachment, Descriptor};
use crate::lock::lock;

/// Memory that a link keeps mapped, last used last.
const KEPT: usize = 8;

/// Memory of owned parcels and leases that have crossed a link lately.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<VecDeque<Arc<dyn Any + Send + Sync>>>);

impl Kept {
    fn keep(&self, memory: Arc<dyn Any + Send + Sync>) {
        let mut kept = lock(&self.0);
        kept.retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&memory)));
        kept.push_back(memory);
        let forgotten = if kept.len() > KEPT { kept.pop_front() } else { None };
        drop(kept);
        // Its pages may go with it, which takes the kernel some time.
        drop(forgotten);
    }
}

/// What a program has attached to a request or an answer.
#[derive(Debug, Default)]
pub(crate) struct Attaching(Vec<Attachment>);

impl Attaching {
    /// None where there is nothing.
    pub(crate) fn of(attachments: Vec<Attachment>) -> Option<Box<Self>> {
        (!attachments.is_empty()).then(|| Box::new(Self(attachments)))
    }

    /// Whether they may cross where this is granted.
    ///
    /// # Errors
    /// What keeps them from it, and the remedy.
    pub(crate) fn fits(&self, grant: Grant) -> Result<(), Status> {
        let Grant { descriptors: most, leases } = grant;
        let count = self.0.len();
        if count > most as usize {
            let text = format!(
                "{count} descriptors are attached, and the policy lets {most} cross here; remedy: \
                 `descriptors = {count}` in the caller's rule, of {} at most",
                limits::PACKET_FDS
            );
            return Err(Status::failed_precondition(text));
        }
        if !leases && self.0.iter().any(|one| matches!(one, Attachment::Lease(_))) {
            let text = "a lease is attached, and the policy lets none cross here; remedy: `leases = true` in \
                        the caller's rule, or an owned parcel";
            return Err(Status::failed_precondition(text));
        }
        Ok(())
    }

    /// Appends as many bytes as [`Attaching::send`] writes.
    pub(crate) fn make_room(&self, block: &mut Vec<u8>) {
        let items = vec![Item::File; self.0.len()];
        frame::Attached::write(block, 0, &items);
    }

    /// Sends the descriptors by `send`, and writes to the end of the block what stands for them. A lease is
    /// the peer's from then on.
    pub(super) fn send(
        &self,
        kept: &Kept,
        send: impl FnOnce(&[BorrowedFd<'_>]) -> std::io::Result<u64>,
    ) -> Result<Vec<u8>, Status> {
        let descriptors: Vec<_> = self.0.iter().map(Attachment::as_fd).collect();
        let items: Result<Vec<_>, _> = self.0.iter().map(Attachment::item).collect();
        let items = items.map_err(|why| Status::failed_precondition(why.to_string()))?;
        let packet = send(&descriptors).map_err(|why| {
            let text = format!("what is attached cannot be sent now: {why}");
            match why.kind() {
                // The link hears of its peer's end as well, and later perhaps.
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Status::unavailable(text),
                _ => Status::resource_exhausted(text),
            }
        })?;
        self.0.iter().filter_map(Attachment::memory).for_each(|memory| kept.keep(memory));
        let mut block = Vec::new();
        frame::Attached::write(&mut block, packet, &items);
        Ok(block)
    }
}

/// What is attached to a head that has come, as the peer has sent it. Nothing of it is checked but that each
/// descriptor is there.
#[derive(Debug)]
pub(crate) struct Attached {
    items: Vec<(Item, Passed)>,
    kept: Arc<Kept>,
    _unread: Unread,
}

impl Attached {
    pub(super) fn new(items: Vec<(Item, Passed)>, kept: Arc<Kept>, unread: Unread) -> Self {
        Self { items, kept, _unread: unread }
    }

    /// Checks and maps all of it.
    ///
    /// # Errors
    /// That of the first that is not what its sender has said; the others are closed.
    pub(crate) fn open(self) -> Result<Vec<Attachment>, ParcelError> {
        let Self { items, kept, _unread } = self;
        let open = |(item, descriptor): (Item, Passed)| {
            let attachment = match item {
                Item::Sealed { offset, bytes } => {
                    Attachment::Sealed(Sealed::accept(descriptor, offset, bytes)?)
                }
                Item::Owned { bytes, generation } => {
                    Attachment::Owned(View::accept(descriptor, bytes, generation)?)
                }
                Item::Lease { bytes, generation } => {
                    Attachment::Lease(Lease::accept(descriptor, bytes, generation)?)
                }
                Item::File => Attachment::File(Descriptor::passed(descriptor)),
            };
            if let Some(memory) = attachment.memory() {
                kept.keep(memory);
            }
            Ok(attachment)
        };
        items.into_iter().map(open).collect()
    }
}

/// One of the few messages with descriptors that a peer may have unread. Its drop lets the peer send another.
#[derive(Debug)]
pub(crate) struct Unread(Tells);

#[derive(Debug)]
enum Tells {
    /// The link says so at once.
    Link(Weak<Link>),
    /// The thread that has the link says so when it uses it next.
    #[cfg_attr(not(feature = "blocking"), expect(dead_code, reason = "a blocking channel's"))]
    Counted(Arc<AtomicU32>),
}

impl Unread {
    /// On a link that is driven.
    pub(super) fn on(link: Weak<Link>) -> Self {
        Self(Tells::Link(link))
    }

    /// On a link that one thread uses, which looks at this number.
    #[cfg(feature = "blocking")]
    pub(crate) fn counted(count: &Arc<AtomicU32>) -> Self {
        Self(Tells::Counted(Arc::clone(count)))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        match &self.0 {
            Tells::Link(link) => {
                if let Some(link) = link.upgrade() {
                    link.send_control(link.calls.attached_read());
                }
            }
            Tells::Counted(count) => {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
