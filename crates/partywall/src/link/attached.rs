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
//! where it has ended, UNAVAILABLE. A program that has no descriptor or no memory left to take them by takes
//! them once more later, what is mapped already among them.
//!
//! A sender that dies leaves its receiver with what has come. A receiver that dies has mapped what it has
//! taken, and the rest goes with the descriptor socket. A lease is with whoever has taken it, or was to.
//!
//! System calls of one attachment: none of memory that the peer knows. Else sendmsg(2) at the sender; at
//! the receiver recvmsg(2), fcntl(2) twice, fstat(2) and close(2) twice of memory that is mapped, and
//! mmap(2) with some more of other.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use partywall_abi::control::Grant;
use partywall_abi::frame::{self, Item};
use partywall_abi::limits;
use partywall_abi::sync::{AtomicU32, Ordering};
use partywall_shm::link::LinkError;
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
        let packet = send(&descriptors).map_err(|why| match why.kind() {
            // The link hears of its peer's end as well, and later perhaps.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                let gone = LinkError::Dead;
                Status::unavailable(format!("what is attached cannot be sent: {gone}"))
            }
            _ => Status::resource_exhausted(format!("what is attached cannot be sent now: {why}")),
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
    unopened: VecDeque<Unopened>,
    /// Those before.
    opened: Vec<Attachment>,
    _unread: Unread,
}

/// One attachment that no program has taken.
#[derive(Debug)]
enum Unopened {
    Sealed {
        descriptor: Passed,
        offset: u64,
        bytes: u64,
    },
    Memory {
        taking: Taking,
        bytes: u64,
        generation: u64,
    },
    File(Passed),
    /// It could not be opened, and is not tried again.
    Lost,
}

impl Unopened {
    /// Checks and maps it.
    fn open(&mut self) -> Result<Attachment, ParcelError> {
        if let Self::Memory { taking, bytes, generation } = self {
            return Ok(match taking.memory()? {
                Memory::Owned(memory) => {
                    Attachment::Owned(View::accept(memory, *bytes, *generation)?)
                }
                Memory::Lease(memory) => {
                    Attachment::Lease(Lease::accept(memory, *bytes, *generation)?)
                }
            });
        }
        Ok(match std::mem::replace(self, Self::Lost) {
            Self::Sealed { descriptor, offset, bytes } => {
                Attachment::Sealed(Sealed::accept(descriptor, offset, bytes)?)
            }
            Self::File(descriptor) => Attachment::File(Descriptor::passed(descriptor)),
            Self::Memory { .. } | Self::Lost => return Err(ParcelError::Refused),
        })
    }
}

impl Attached {
    /// What a frame says is attached, with a descriptor for each, or with none for memory that has come
    /// before; none where it has not.
    pub(super) fn new(
        items: impl Iterator<Item = (Item, Option<Passed>)>,
        came: &mut Came,
        unread: impl FnOnce() -> Unread,
    ) -> Option<Self> {
        let unopened = items.map(|(item, descriptor)| {
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
        let unopened = unopened.collect::<Option<_>>()?;
        Some(Self { unopened, opened: Vec::new(), _unread: unread() })
    }

    /// Checks and maps all of it.
    ///
    /// # Errors
    /// That of the first that is not what its sender has said, or for which this process has no resources.
    /// All stay here then, but for a sealed parcel without resources.
    pub(crate) fn open(&mut self) -> Result<Vec<Attachment>, ParcelError> {
        while let Some(first) = self.unopened.front_mut() {
            self.opened.push(first.open()?);
            self.unopened.pop_front();
        }
        Ok(std::mem::take(&mut self.opened))
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
    use crate::attach;
    use crate::parcel::Attach as _;
    use partywall_abi::frame::Place;
    use partywall_shm::descriptors;
    use partywall_shm::parcel::Draft;
    use partywall_shm::parcel::view::Owned;
    use partywall_shm::socket;
    use partywall_testkit::in_own_process;
    use std::os::fd::AsRawFd as _;
    use std::time::Duration;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use tonic::Code;

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

    #[test]
    fn a_peer_that_is_gone_is_named_as_such() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let attaching = Attaching(vec![file.into()]);
        for (kind, code, text) in [
            (ErrorKind::BrokenPipe, Code::Unavailable, "be sent: the peer is gone"),
            (ErrorKind::ConnectionReset, Code::Unavailable, "be sent: the peer is gone"),
            (ErrorKind::WouldBlock, Code::ResourceExhausted, "cannot be sent now: "),
        ] {
            let sent = attaching.send(&Sent::default(), 0, |_| Err(kind.into()));
            let status = sent.map(drop).unwrap_err();
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(text), "{status}");
        }
    }

    /// A request with these, as a peer has sent them, and how often the peer may send another since.
    fn request(items: &[(Item, BorrowedFd<'_>)]) -> (tonic::Request<()>, Arc<AtomicU32>) {
        let (a, b) = socket::descriptor_pair().unwrap();
        let ((mut out, _), (_, mut incoming)) = (descriptors::halves(a), descriptors::halves(b));
        let descriptors: Vec<_> = items.iter().map(|(_, descriptor)| *descriptor).collect();
        out.send(&descriptors).unwrap();
        let came = incoming.receive(0).unwrap().into_iter().map(Some);
        let items = items.iter().map(|(item, _)| *item).zip(came);
        let read = Arc::new(AtomicU32::new(0));
        let unread = || Unread(Tells::Counted(Arc::clone(&read)));
        let attached = Attached::new(items, &mut Came::default(), unread).unwrap();
        let mut request = tonic::Request::new(());
        attach::put(request.extensions_mut(), Some(Box::new(attached)));
        (request, read)
    }

    /// More than a process may still map that has no more memory here: [`without`] leaves it half of this,
    /// for the allocator.
    const LARGE: u64 = 8 << 20;

    /// Takes them while this process may have no more of something.
    fn without(
        resource: Resource,
        request: &mut tonic::Request<()>,
    ) -> Result<Vec<Attachment>, ParcelError> {
        let limit = getrlimit(resource);
        let used = || -> u64 {
            if resource == Resource::Nofile {
                return std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
            }
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
            pages * rustix::param::page_size() as u64 + LARGE / 2
        };
        // Another thread that begins maps more for a moment than it keeps, and one closes what has come.
        let mut before = 0;
        let used = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(10));
            used()
        });
        let mut settled = used.skip_while(|now| std::mem::replace(&mut before, *now) != *now);
        let current = settled.next();
        setrlimit(resource, Rlimit { current, ..limit }).unwrap();
        let taken = request.attachments();
        setrlimit(resource, limit).unwrap();
        taken
    }

    #[test]
    fn what_finds_no_resources_is_there_for_a_second_call() {
        let name = "what_finds_no_resources_is_there_for_a_second_call";
        if in_own_process(module_path!(), name, &[]).is_some() {
            return;
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        let large = LARGE as usize;
        let sealed = Draft::new(large).unwrap().seal().unwrap();
        let sealed_item = Item::Sealed { offset: 0, bytes: LARGE };
        let owned = |place| Item::Owned { bytes: LARGE, generation: 0, place };
        let leased = Item::Lease { bytes: LARGE, generation: 1, place: Place::new(1) };
        let has_asan = std::env::var_os("PARTYWALL_ASAN").is_some();
        let limits: &[_] = match has_asan {
            true => &[Resource::Nofile],
            false => &[Resource::Nofile, Resource::As],
        };
        let items = [owned(None), owned(Place::new(0)), leased];
        // What is dropped is closed later, by another thread.
        let mut kept = Vec::new();
        for (resource, item) in limits.iter().flat_map(|of| items.map(|item| (*of, item))) {
            // It is not mapped here.
            let memory = match item {
                Item::Lease { .. } => Lease::new(large).unwrap().as_fd().try_clone_to_owned(),
                _ => Owned::new(large).unwrap().view().as_fd().try_clone_to_owned(),
            };
            let memory = memory.unwrap();
            let (mut request, read) = request(&[
                (Item::File, file.as_fd()),
                (item, memory.as_fd()),
                (sealed_item, sealed.as_fd()),
            ]);
            for _ in 0..3 {
                let failed = without(resource, &mut request).unwrap_err();
                assert!(failed.is_resource(), "{failed}");
                assert_eq!(read.load(Ordering::Relaxed), 0, "it is unread");
            }
            let came = request.attachments().unwrap();
            let [Attachment::File(_), memory, Attachment::Sealed(_)] = &came[..] else {
                panic!("{came:?}")
            };
            assert_eq!(matches!(memory, Attachment::Lease(_)), item == leased);
            assert_eq!(read.load(Ordering::Relaxed), 1);
            assert!(request.attachments().unwrap().is_empty(), "they are taken once");
            kept.push(came);
        }
        if has_asan {
            return;
        }
        // A sealed parcel is lost, and that is said.
        let (mut request, _) = self::request(&[(sealed_item, sealed.as_fd())]);
        assert!(without(Resource::As, &mut request).unwrap_err().is_resource());
        assert!(matches!(request.attachments(), Err(ParcelError::Refused)));
    }

    #[test]
    fn what_is_not_as_said_is_dropped_with_all_else() {
        let (file, sealed) =
            (std::fs::File::open("/dev/null").unwrap(), Draft::new(1).unwrap().seal().unwrap());
        let wrong = Item::Sealed { offset: 0, bytes: 2 };
        let (mut request, read) = request(&[
            (Item::File, file.as_fd()),
            (wrong, sealed.as_fd()),
            (Item::File, file.as_fd()),
        ]);
        assert!(matches!(request.attachments(), Err(ParcelError::Short { .. })));
        assert_eq!(read.load(Ordering::Relaxed), 1);
        assert!(request.attachments().unwrap().is_empty());
    }
}
