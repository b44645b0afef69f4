//! What is attached to the head of a request or an answer.
//!
//! ```text
//! sender     waits until descriptors are granted, and the peer takes one more; locks this side's ring
//!            where the peer has all memory: a frame with its places                      [`known`]
//!            else: one packet with all descriptors, and a frame that names it
//! reader     the packet, if there is one, in the order of the records; it opens no descriptor that somebody
//!            takes
//! program    takes them: each is checked and mapped then, if it is not known             [`Attached::open`]
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
//! System calls of one attachment: none of memory that the peer knows. Else sendmsg(2) at the sender; at
//! the receiver recvmsg(2), fcntl(2) twice, fstat(2) and close(2) twice of memory that is mapped, and
//! mmap(2) with some more of other.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

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
use super::known::{Came, Kind, Memory, Placed, Sent, Taking};
use crate::attachment::{Attachment, Descriptor};

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

    /// How long each parcel or lease of them is.
    pub(super) fn parcels(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(Attachment::bytes)
    }

    /// Appends as many bytes as [`Attaching::send`] writes.
    pub(crate) fn make_room(&self, block: &mut Vec<u8>) {
        let items = vec![Item::File; self.0.len()];
        frame::Attached::write(block, 0, &items);
    }

    /// What stands for it in a frame. Where the peer has not got all of it, `send` sends the descriptors. A
    /// lease is the peer's from then on. Memory gets one of so many places.
    pub(super) fn send(
        &self,
        sent: &Sent,
        places: usize,
        send: impl FnOnce(&[BorrowedFd<'_>]) -> std::io::Result<u64>,
    ) -> Result<Said, Status> {
        let known = sent.knows(self.0.iter().map(Attachment::memory));
        let mut placed = Placed::default();
        let item = |one: &Attachment| one.item(|memory| sent.place(&mut placed, places, memory));
        let items: Result<Vec<_>, _> = self.0.iter().map(item).collect();
        let items = items.map_err(|why| Status::failed_precondition(why.to_string()))?;
        let mut block = Vec::new();
        if known {
            frame::Attached::write(&mut block, 0, &items);
            return Ok(Said { block, flags: frame::KNOWN, placed });
        }
        let descriptors: Vec<_> = self.0.iter().map(Attachment::as_fd).collect();
        let packet = send(&descriptors).map_err(|why| {
            let text = format!("what is attached cannot be sent now: {why}");
            match why.kind() {
                // The link hears of its peer's end as well, and later perhaps.
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Status::unavailable(text),
                _ => Status::resource_exhausted(text),
            }
        })?;
        frame::Attached::write(&mut block, packet, &items);
        Ok(Said { block, flags: 0, placed })
    }
}

/// What stands for attachments in a frame that is going to be on the ring.
pub(crate) struct Said {
    /// As long as [`Attaching::make_room`] has made it.
    pub(crate) block: Vec<u8>,
    /// Flags of the frame besides.
    pub(crate) flags: u8,
    /// What the frame takes places for.
    pub(crate) placed: Placed,
}

/// What is attached to a head that has come, as the peer has sent it. Nothing of it is checked but that each
/// descriptor is there, or has come before.
#[derive(Debug)]
pub(crate) struct Attached {
    all: Vec<Unopened>,
    _unread: Unread,
}

/// One attachment that no program has taken.
#[derive(Debug)]
enum Unopened {
    Sealed { descriptor: Passed, offset: u64, bytes: u64 },
    Memory { taking: Taking, bytes: u64, generation: u64 },
    File(Passed),
}

impl Attached {
    /// What a frame says is attached, with a descriptor for each, or with none for memory that has come
    /// before; none where it has not.
    pub(super) fn new(
        items: impl Iterator<Item = (Item, Option<Passed>)>,
        came: &mut Came,
        unread: impl FnOnce() -> Unread,
    ) -> Option<Self> {
        let all = items.map(|(item, descriptor)| {
            Some(match item {
                Item::Sealed { offset, bytes } => {
                    Unopened::Sealed { descriptor: descriptor?, offset, bytes }
                }
                Item::Owned { bytes, generation, place } => {
                    let taking = came.take(Kind::Owned, place, descriptor)?;
                    Unopened::Memory { taking, bytes, generation }
                }
                Item::Lease { bytes, generation, place } => {
                    let taking = came.take(Kind::Lease, place, descriptor)?;
                    Unopened::Memory { taking, bytes, generation }
                }
                Item::File => Unopened::File(descriptor?),
            })
        });
        let all = all.collect::<Option<_>>()?;
        Some(Self { all, _unread: unread() })
    }

    /// Checks and maps all of it.
    ///
    /// # Errors
    /// That of the first that is not what its sender has said; the others are closed.
    pub(crate) fn open(self) -> Result<Vec<Attachment>, ParcelError> {
        let Self { all, _unread } = self;
        let open = |one| {
            Ok(match one {
                Unopened::Sealed { descriptor, offset, bytes } => {
                    Attachment::Sealed(Sealed::accept(descriptor, offset, bytes)?)
                }
                Unopened::Memory { taking, bytes, generation } => match taking.memory()? {
                    Memory::Owned(memory) => {
                        Attachment::Owned(View::accept(memory, bytes, generation)?)
                    }
                    Memory::Lease(memory) => {
                        Attachment::Lease(Lease::accept(memory, bytes, generation)?)
                    }
                },
                Unopened::File(descriptor) => Attachment::File(Descriptor::passed(descriptor)),
            })
        };
        all.into_iter().map(open).collect()
    }
}

/// One of the few messages with attachments that a peer may have unread. Its drop lets the peer send another.
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

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_shm::parcel::view::Owned;

    /// What stands for this when it is sent, and how many descriptors were.
    fn send(attaching: &Attaching, sent: &mut Sent) -> (Vec<Item>, usize) {
        let mut descriptors = 0;
        let said = attaching.send(sent, limits::ATTACHED_PLACES, |all| {
            descriptors = all.len();
            Ok(5)
        });
        let Said { block, flags, placed } = said.unwrap();
        sent.committed(placed);
        let mut payload = Vec::new();
        let head = |out: &mut Vec<u8>| frame::ResponseHead::write(out, 0);
        frame::write_block(&mut payload, head).unwrap();
        payload.extend(block);
        let flags = frame::HEAD | frame::ATTACHED | flags;
        let attached = frame::Attached::of(flags, &payload).unwrap();
        assert_eq!(attached.packet, if flags & frame::KNOWN != 0 { 0 } else { 5 });
        (attached.items().collect(), descriptors)
    }

    #[test]
    fn a_descriptor_is_sent_again_where_the_peer_lacks_another() {
        let (file, parcel) = (std::fs::File::open("/dev/null").unwrap(), Owned::new(1).unwrap());
        let mut sent = Sent::default();
        let lease = Attaching(vec![Lease::new(4096).unwrap().into()]);
        let alone = Attaching(vec![(&parcel).into()]);
        for (of_lease, of_owned) in [(1, 1), (0, 1), (0, 0), (0, 0)] {
            assert_eq!(send(&lease, &mut sent).1, of_lease);
            assert_eq!(send(&alone, &mut sent).1, of_owned);
        }
        let both = Attaching(vec![(&parcel).into(), file.into()]);
        for _ in 0..2 {
            let (items, descriptors) = send(&both, &mut sent);
            assert_eq!((items[0].place(), items[1].place()), (frame::Place::new(1), None));
            assert_eq!(descriptors, 2);
        }
        assert_eq!(send(&alone, &mut sent).1, 0);
    }
}
