//! Which versions of these bytes two processes have in common, and what they can do beyond that.

use core::fmt;

use crate::codec::{DecodeError, Reader, Writer};

/// A range of versions, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    lowest: u16,
    highest: u16,
}

impl Versions {
    /// What this release speaks.
    pub const OWN: Self = Self { lowest: crate::VERSION, highest: crate::VERSION };

    /// A range; none that is empty or begins at zero.
    pub const fn new(lowest: u16, highest: u16) -> Option<Self> {
        if lowest == 0 || lowest > highest {
            return None;
        }
        Some(Self { lowest, highest })
    }

    /// The version that a process and its coordinator use: the highest that both speak.
    ///
    /// # Errors
    /// [`NoCommonVersion`].
    pub fn agree(process: Self, coordinator: Self) -> Result<u16, NoCommonVersion> {
        let highest = process.highest.min(coordinator.highest);
        if highest >= process.lowest.max(coordinator.lowest) {
            Ok(highest)
        } else {
            Err(NoCommonVersion { process, coordinator })
        }
    }

    pub(crate) fn put(self, w: &mut Writer<'_>) {
        w.u16(self.lowest);
        w.u16(self.highest);
    }

    pub(crate) fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (lowest, highest) = (r.u16("lowest version")?, r.u16("highest version")?);
        let wrong = DecodeError::Value { field: "lowest version", found: lowest.into() };
        Self::new(lowest, highest).ok_or(wrong)
    }
}

/// A process and a coordinator that cannot speak with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the coordinator speaks {coordinator} of Partywall's protocol, and this program {process}; remedy: \
     update the {}",
    if .process.highest < .coordinator.lowest { "program" } else { "coordinator" }
)]
pub struct NoCommonVersion {
    process: Versions,
    coordinator: Versions,
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lowest == self.highest {
            return write!(f, "version {}", self.lowest);
        }
        write!(f, "versions {} to {}", self.lowest, self.highest)
    }
}

/// What a process can do beyond what its version says; what both ends of a link can do goes with its
/// terms.
///
/// A bit that has no name here is carried and has no effect, so that an older coordinator does not keep two
/// newer ends from what they have in common.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(u64);

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Self(0);
    /// A link's end takes and sends records of the kind [`crate::frame::Kind::Room`].
    pub const ROOM: Self = Self(1);
    /// A link's service takes records of the kind [`crate::frame::Kind::Method`].
    pub const METHODS: Self = Self(2);
    /// Who is told of a link takes what was counted for its methods, by the way of their calls.
    pub const WAYS: Self = Self(4);
    /// A link's end takes a descriptor socket, and messages in parcels; a coordinator takes what ends say of
    /// theirs, and who is told of a link takes that.
    pub const PARCELS: Self = Self(8);
    /// A process that is told to close itself to other processes of its user does so, and says so.
    pub const HARDEN: Self = Self(16);
    /// Who is told of a link takes the ids of its ends' containers.
    pub const CONTAINERS: Self = Self(32);
    /// A coordinator is asked who serves which name.
    pub const INSTANCES: Self = Self(128);
    /// A process is told where the operators' socket is.
    pub const OPERATORS: Self = Self(256);
    /// An end of a link measures its calls when it is asked; a coordinator asks.
    pub const PACE: Self = Self(512);
    /// Who is told of links and instances takes the images and Compose services of containers.
    pub const ORIGINS: Self = Self(2048);
    /// A coordinator is asked for memory for parcels, and who is told of instances takes how much they have.
    pub const MEMORY: Self = Self(4096);
    /// A link's end takes what is attached to a call, memory by its place where it has come before; in the
    /// terms of a link: descriptors are going to be granted.
    pub const ATTACHMENTS: Self = Self(8192);
    /// A process has its key certified, and seals the records of a link whose terms have it so; a coordinator
    /// certifies keys.
    pub const SEAL: Self = Self(16384);
    /// A coordinator lets operators look into links, and who has asked is told of their end.
    pub const TRACE: Self = Self(32768);
    /// A process takes a redirect to several addresses.
    pub const ADDRESSES: Self = Self(65536);
    /// What this release can do.
    pub const OWN: Self = Self(
        Self::ROOM.0
            | Self::METHODS.0
            | Self::WAYS.0
            | Self::PARCELS.0
            | Self::HARDEN.0
            | Self::CONTAINERS.0
            | Self::INSTANCES.0
            | Self::OPERATORS.0
            | Self::PACE.0
            | Self::ORIGINS.0
            | Self::MEMORY.0
            | Self::ATTACHMENTS.0
            | Self::SEAL.0
            | Self::TRACE.0
            | Self::ADDRESSES.0,
    );

    const NAMES: [(Self, &'static str); 15] = [
        (Self::ROOM, "room"),
        (Self::METHODS, "methods"),
        (Self::WAYS, "ways"),
        (Self::PARCELS, "parcels"),
        (Self::HARDEN, "harden"),
        (Self::CONTAINERS, "containers"),
        (Self::INSTANCES, "instances"),
        (Self::OPERATORS, "operators"),
        (Self::PACE, "pace"),
        (Self::ORIGINS, "origins"),
        (Self::MEMORY, "memory"),
        (Self::ATTACHMENTS, "attachments"),
        (Self::SEAL, "seal"),
        (Self::TRACE, "trace"),
        (Self::ADDRESSES, "addresses"),
    ];

    /// These bits, whether they have names or not.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// What both can do.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are not among `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut between = "";
        for (known, name) in Self::NAMES {
            if self.contains(known) {
                write!(f, "{between}{name}")?;
                rest &= !known.0;
                between = ", ";
            }
        }
        match (rest, self.0) {
            (0, 0) => f.write_str("none"),
            (0, _) => Ok(()),
            (rest, _) => write!(f, "{between}{rest:#x}"),
        }
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capabilities({self})")
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn the_highest_common_version_is_chosen() {
        let range = |lowest, highest| Versions::new(lowest, highest).unwrap();
        for (process, coordinator) in
            [(range(1, 3), range(2, 9)), (range(2, 9), range(1, 3)), (range(3, 3), range(1, 9))]
        {
            assert_eq!(Versions::agree(process, coordinator), Ok(3));
        }
        for (process, coordinator, remedy) in [
            (
                range(1, 2),
                range(3, 3),
                "speaks version 3 of Partywall's protocol, and this program \
                                        versions 1 to 2; remedy: update the program",
            ),
            (
                range(3, 4),
                range(1, 2),
                "and this program versions 3 to 4; remedy: update the coordinator",
            ),
        ] {
            let error = Versions::agree(process, coordinator).unwrap_err().to_string();
            assert!(error.ends_with(remedy), "{error}");
        }
        assert_eq!([Versions::new(0, 1), Versions::new(2, 1)], [None; 2]);
        assert_eq!(range(4, 4).to_string(), "version 4");
        assert_eq!(range(4, 6).to_string(), "versions 4 to 6");
    }

    #[test]
    fn capabilities_have_names_and_unknown_ones_no_effect() {
        let newer = Capabilities::from_bits((1 << 63) | 1);
        assert_eq!(newer.to_string(), "room, 0x8000000000000000");
        assert_eq!(alloc::format!("{:?}", Capabilities::NONE), "Capabilities(none)");
        assert_eq!(newer.common(Capabilities::OWN), Capabilities::ROOM);
        assert!(newer.contains(Capabilities::ROOM) && newer.contains(Capabilities::NONE));
        assert!(!Capabilities::NONE.contains(Capabilities::ROOM));
        assert_eq!(newer.without(Capabilities::OWN), Capabilities::from_bits(1 << 63));
        assert_eq!(Capabilities::ROOM.to_string(), "room");
        let own = Capabilities::OWN.to_string();
        assert!(own.ends_with(", trace, addresses"), "each of its own has a name: {own}");
    }
}
