//! The memory of a link: one *outbox* per side, written by that side and read by the other.
//!
//! An outbox is one memfd. Its owner maps it for writing and then seals it
//! (`F_SEAL_FUTURE_WRITE`), so that every later mapping, the peer's first of all, is read-only.
//! It holds all that its owner ever writes: the ring of records it produces, and the words by
//! which it tells how far it has consumed the *peer's* ring and whether it sleeps.
//!
//! ```text
//! byte   size  field            written when
//!    0     4   magic            once, before the peer has the memory
//!    4     2   version          once
//!    6     2   (zero)
//!    8     4   slots            once
//!   12     4   arena_bytes      once
//!   64     4   bell             each time the owner wakes the peer by futex: +1
//!   68     4   consumer_sleep   when the owner goes to sleep for records, or wakes
//!   72     4   producer_sleep   when the owner goes to sleep for space, or wakes
//!   76     4   cpu              when the owner wakes: the CPU it runs on, +1
//!  128     8   taken_slots      after each record the owner has taken from the peer's ring
//!  136     8   taken_arena      likewise
//!  256  64*n   slot[n]          a record each
//!  256+64*n    arena            payloads over 48 bytes
//! ```
//!
//! A slot is one cache line: a stamp, a descriptor of 12 bytes, and 48 bytes of payload. What is
//! longer lies in the arena, where both sides know the place without being told: it begins where
//! the previous one ended, rounded up to 64, and wraps at the end.

/// First four bytes of an outbox: `PWL1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"PWL1");

/// Offset of the magic.
pub const MAGIC_AT: usize = 0;
/// Offset of the version and the zero behind it, read as one word.
pub const VERSION_AT: usize = 4;
/// Offset of the number of slots.
pub const SLOTS_AT: usize = 8;
/// Offset of the arena's size.
pub const ARENA_BYTES_AT: usize = 12;
/// Offset of the bell that the owner rings.
pub const BELL_AT: usize = 64;
/// Offset of the owner's sleep word as a consumer.
pub const CONSUMER_SLEEP_AT: usize = 68;
/// Offset of the owner's sleep word as a producer.
pub const PRODUCER_SLEEP_AT: usize = 72;
/// Offset of the CPU the owner was last seen on, plus one; zero when it does not say.
pub const CPU_AT: usize = 76;
/// Offset of the count of slots that the owner has taken from the peer's ring.
pub const TAKEN_SLOTS_AT: usize = 128;
/// Offset of the count of arena bytes that the owner has taken from the peer's ring.
pub const TAKEN_ARENA_AT: usize = 136;
/// Offset of the first slot.
pub const SLOTS_BASE: usize = 256;

/// Size of a slot: one cache line.
pub const SLOT_BYTES: usize = 64;
/// Offset of the payload inside a slot.
pub const SLOT_PAYLOAD_AT: usize = 16;
/// Longest payload that lies in its slot.
pub const INLINE_BYTES: usize = SLOT_BYTES - SLOT_PAYLOAD_AT;
/// What every arena allocation is rounded up to.
pub const ARENA_ALIGN: usize = 64;
/// What the size of an outbox is rounded up to.
pub const PAGE_BYTES: usize = 4096;

const _: () = {
    assert!(BELL_AT.is_multiple_of(64) && CPU_AT + 4 <= BELL_AT + 64);
    assert!(TAKEN_SLOTS_AT.is_multiple_of(64) && TAKEN_ARENA_AT.is_multiple_of(8));
    assert!(SLOTS_BASE.is_multiple_of(SLOT_BYTES) && SLOTS_BASE >= TAKEN_ARENA_AT + 8);
    assert!(INLINE_BYTES == 48);
};

/// How large the two parts of an outbox are.
///
/// Both sides are told by the coordinator; what an outbox says of itself is only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    slots: u32,
    arena_bytes: u32,
}

/// Why two numbers are no geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{slots} slots and {arena_bytes} arena bytes are no ring: slots are a power of two from 2 to \
     65536, the arena a multiple of 64 from 64 to 2^30"
)]
pub struct GeometryError {
    /// Slots asked for.
    pub slots: u32,
    /// Arena bytes asked for.
    pub arena_bytes: u32,
}

impl Geometry {
    /// 128 slots and an arena of 89,856 bytes: 96 KiB each way.
    ///
    /// A thousand links then hold 188 MiB, and a message of 64 KiB fits whole.
    pub const DEFAULT: Self = Self { slots: 128, arena_bytes: 98_304 - 256 - 128 * 64 };

    /// 128 slots and an arena of 253,696 bytes: 256 KiB each way.
    ///
    /// A long message takes half the time of [`Geometry::DEFAULT`], since both sides work at once
    /// for longer; a larger arena brings no more.
    pub const WIDE: Self = Self { slots: 128, arena_bytes: 262_144 - 256 - 128 * 64 };

    /// Checks the two numbers.
    ///
    /// # Errors
    /// [`GeometryError`] when one of them is out of its range.
    pub const fn new(slots: u32, arena_bytes: u32) -> Result<Self, GeometryError> {
        let ok = slots.is_power_of_two()
            && slots >= 2
            && slots <= 1 << 16
            && arena_bytes >= ARENA_ALIGN as u32
            && arena_bytes <= 1 << 30
            && arena_bytes.is_multiple_of(ARENA_ALIGN as u32);
        if ok { Ok(Self { slots, arena_bytes }) } else { Err(GeometryError { slots, arena_bytes }) }
    }

    /// Number of slots.
    #[inline]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Size of the arena in bytes.
    #[inline]
    pub const fn arena_bytes(self) -> u32 {
        self.arena_bytes
    }

    /// Size of the whole outbox in bytes, a multiple of the page size.
    pub const fn outbox_bytes(self) -> usize {
        (self.arena_base() + self.arena_bytes as usize).next_multiple_of(PAGE_BYTES)
    }

    /// Offset of the arena.
    #[inline]
    pub const fn arena_base(self) -> usize {
        SLOTS_BASE + self.slots as usize * SLOT_BYTES
    }

    /// Offset of the slot that record number `position` uses.
    #[inline]
    pub const fn slot_at(self, position: u64) -> usize {
        SLOTS_BASE + (position as usize & (self.slots as usize - 1)) * SLOT_BYTES
    }

    /// Longest payload of one record: a quarter of the arena, so that producing and consuming
    /// overlap.
    #[inline]
    pub const fn record_bytes(self) -> usize {
        let quarter = (self.arena_bytes as usize / 4) & !(ARENA_ALIGN - 1);
        if quarter < INLINE_BYTES { INLINE_BYTES } else { quarter }
    }
}

const _: () = assert!(Geometry::DEFAULT.outbox_bytes() == 98_304);
const _: () = assert!(Geometry::WIDE.outbox_bytes() == 262_144);

/// The stamp of record number `position`: never zero, and different on every lap.
///
/// It repeats after 2^32 records; by then its slot has been written 2^32 / slots times.
#[inline]
pub const fn stamp(position: u64) -> u32 {
    // A slot's stamps on consecutive laps differ by the number of slots, so `| 1 << 31` style
    // tricks are not needed: only zero must be avoided, for fresh memory is zero.
    let s = (position as u32).wrapping_add(1);
    if s == 0 { 0x8000_0000 } else { s }
}

/// Arena bytes that a payload of `len` bytes takes.
#[inline]
pub const fn arena_need(len: usize) -> u64 {
    if len <= INLINE_BYTES { 0 } else { len.next_multiple_of(ARENA_ALIGN) as u64 }
}

/// What a slot says of its record, beside the stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What the record is; the layer above gives it a meaning.
    pub kind: u8,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// The call the record belongs to; zero means the link itself.
    pub stream: u32,
    /// Length of the payload in bytes.
    pub len: u32,
}

impl Descriptor {
    /// The three words behind the stamp.
    #[inline]
    pub const fn to_words(self) -> [u32; 3] {
        [self.kind as u32 | (self.flags as u32) << 8, self.stream, self.len]
    }

    /// The record that three copied words describe, or `None` when the unused half of the first
    /// one is not zero.
    #[inline]
    pub const fn from_words(words: [u32; 3]) -> Option<Self> {
        if words[0] >> 16 != 0 {
            return None;
        }
        Some(Self {
            kind: words[0] as u8,
            flags: (words[0] >> 8) as u8,
            stream: words[1],
            len: words[2],
        })
    }
}

/// How a sleeper wants to be woken, from its sleep word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepMode {
    /// It is awake: no wake-up is owed.
    Awake,
    /// It waits on the *peer's* bell word: bump it and `FUTEX_WAKE`.
    Futex,
    /// It waits in epoll: send one byte on the link's socket.
    Doorbell,
}

/// A sleep word: how to wake, and which sleep it is, so that one sleep is rung for once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepWord(pub u32);

impl SleepWord {
    /// The word of an owner that is awake.
    pub const AWAKE: Self = Self(0);

    /// The word for sleep number `episode`.
    #[inline]
    pub const fn asleep(mode: SleepMode, episode: u32) -> Self {
        let bits = match mode {
            SleepMode::Awake => return Self::AWAKE,
            SleepMode::Futex => 1,
            SleepMode::Doorbell => 2,
        };
        Self(episode << 2 | bits)
    }

    /// How to wake; `None` when the peer wrote what no owner writes.
    #[inline]
    pub const fn mode(self) -> Option<SleepMode> {
        match self.0 & 3 {
            0 if self.0 == 0 => Some(SleepMode::Awake),
            1 => Some(SleepMode::Futex),
            2 => Some(SleepMode::Doorbell),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_is_checked() {
        for (slots, arena) in [(0, 64), (1, 64), (3, 64), (2, 0), (2, 63), (1 << 17, 64)] {
            assert!(Geometry::new(slots, arena).is_err(), "{slots} {arena}");
        }
        let g = Geometry::new(2, 64).unwrap();
        assert_eq!(g.outbox_bytes(), 4096);
        assert_eq!(g.slot_at(0), 256);
        assert_eq!(g.slot_at(3), 320);
        assert_eq!(g.record_bytes(), 48);
    }

    #[test]
    fn stamps_are_never_zero_and_change_every_lap() {
        assert_eq!(stamp(0), 1);
        assert_ne!(stamp(u64::from(u32::MAX)), 0);
        for position in [0, 1, 127, u64::from(u32::MAX) - 128] {
            assert_ne!(stamp(position), stamp(position + 128));
        }
    }

    #[test]
    fn descriptors_round_trip_and_refuse_unknown_bits() {
        let d = Descriptor { kind: 7, flags: 255, stream: u32::MAX, len: 12 };
        assert_eq!(Descriptor::from_words(d.to_words()), Some(d));
        assert_eq!(Descriptor::from_words([1 << 16, 0, 0]), None);
    }

    #[test]
    fn sleep_words_say_how_to_wake() {
        assert_eq!(SleepWord::AWAKE.mode(), Some(SleepMode::Awake));
        for mode in [SleepMode::Futex, SleepMode::Doorbell] {
            assert_eq!(SleepWord::asleep(mode, u32::MAX).mode(), Some(mode));
        }
        assert_eq!(SleepWord(3).mode(), None);
        assert_eq!(SleepWord(4).mode(), None);
    }
}
