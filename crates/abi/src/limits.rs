//! The bounds that two processes have to agree on, in one place. What one side alone decides is a
//! constant of the module that keeps it.
//!
//! A limit that a peer could exceed is checked where the bytes arrive, before anything is
//! allocated for them.

/// Longest service name, in bytes.
pub const NAME_BYTES: usize = 63;

/// Longest gRPC path (`/package.Service/Method`), in bytes.
pub const PATH_BYTES: usize = 1024;
/// Most methods of a link that have numbers.
pub const METHODS: u32 = 256;
/// Most bytes of their paths together.
pub const METHOD_BYTES: usize = 32 * 1024;

/// Most methods of a link of which the list of links tells.
pub const LISTED_METHODS: usize = 16;

/// Longest encoded head or trailers block of a call, in bytes: metadata, path and deadline.
///
/// A block travels in one record, so it must fit a quarter of the default arena.
pub const HEAD_BYTES: usize = 20 * 1024;

/// Most metadata entries in one head or trailers block: as many as fit the 16 KiB that an end of
/// HTTP/2 takes, which counts 32 bytes for each beside its name and value.
pub const METADATA_ENTRIES: usize = 512;

/// Longest method pattern in a method set, in bytes.
pub const PATTERN_BYTES: usize = PATH_BYTES;

/// Most patterns in the method set of one link.
pub const PATTERNS: usize = 256;

/// Longest control message, in bytes.
pub const CONTROL_BYTES: usize = 64 * 1024;

/// Most file descriptors beside one control message.
pub const CONTROL_FDS: usize = 4;

/// Longest cgroup path that is carried in an identity, in bytes.
pub const CGROUP_BYTES: usize = 4096;

/// Longest id of a container in a list of links, in bytes.
pub const CONTAINER_BYTES: usize = 64;

/// Longest id of an image in a list of links, in bytes.
pub const IMAGE_BYTES: usize = 71;

/// Longest `PROJECT/SERVICE` of Compose in a list of links, in bytes.
pub const COMPOSE_BYTES: usize = 255;

/// Longest SPIFFE ID, in bytes: those of this host have a short path, and a trust domain of up to 255 bytes.
pub const ID_BYTES: usize = 512;

/// Longest key or certificate on the control socket, in bytes.
pub const CERTIFICATE_BYTES: usize = 8 * 1024;

/// Longest receipt of a signed message on the control socket, in bytes: its certificates in base64, its
/// method and what else it says.
pub const RECEIPT_BYTES: usize = 24 * 1024;

/// Most bytes of receipts in one control message.
pub const RECEIPTS_BYTES: usize = 2 * RECEIPT_BYTES;

/// Longest text of an error on the control socket, in bytes.
pub const ERROR_TEXT_BYTES: usize = 2048;

/// Longest text of the addresses that a name stands for, in bytes.
pub const URL_BYTES: usize = 2048;

/// Most principals that one identity may match.
pub const PRINCIPALS: usize = 32;

/// Calls that a caller may have open on one link unless the service says otherwise. The next call
/// waits in the caller; a service answers RESOURCE_EXHAUSTED to a caller that does not wait.
pub const STREAMS: usize = 1024;

/// Most calls that a service may let one link have open.
pub const STREAMS_MAX: usize = 65_536;

/// Calls that a caller may have open before the service has sent its limits.
pub const FIRST_STREAMS: usize = 1;

/// Bytes of message data that a sender may have under way on one stream before its receiver
/// has taken some of them.
pub const STREAM_WINDOW: u32 = 1024 * 1024;

/// Bytes of message data that a sender may have under way on one link, all streams together; the
/// most that a service may say in its limits.
pub const LINK_WINDOW: u32 = 4 * 1024 * 1024;

/// Bytes of message data that a caller may have under way on one link before the service has sent
/// its limits, and the least that a service may say.
pub const FIRST_WINDOW: u32 = 64 * 1024;

/// The part of a link's window that a sender leaves to messages which one record holds whole: one
/// in so many.
pub const RESERVE: u32 = 4;

/// Default limit of a decoded message, in bytes (tonic's and gRPC's own default).
pub const MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Largest message limit that can be set, in bytes.
pub const MESSAGE_BYTES_MAX: usize = (2 << 30) - 1;

/// Doorbells that a receiver leaves unread before it empties the socket.
///
/// A sender's socket buffer holds more than 200 of them, so a bell is never lost to a full one.
pub const UNREAD_BELLS: u32 = 64;

/// Longest path of a Unix socket, in bytes (unix(7)).
pub const SOCKET_PATH_BYTES: usize = 107;

/// Most parcels that a receiver of a link has not read, and most that it may say it takes.
pub const UNREAD_PARCELS: u32 = 4;

/// Owned parcels that a link has in each direction.
pub const OWNED_PARCELS: u32 = 4;
/// Most bytes of one.
pub const OWNED_PARCEL_BYTES: usize = 128 << 20;

/// Places that each end of a link has for owned parcels and leases that it has attached.
pub const ATTACHED_PLACES: usize = 8;

/// Most descriptors beside one packet of a link's descriptor socket.
pub const PACKET_FDS: usize = 16;
