#![allow(unsafe_code, reason = "a launcher's own table is believed")]
//! The launcher as a caller of its domains.

use partywall_domain::address_space::AddressSpace;
use partywall_guest::Guest;

/// The launcher's own program.
pub(crate) fn launcher(space: &AddressSpace) -> Guest {
    // SAFETY: the table of this process.
    unsafe { Guest::of_launcher(space.launcher()) }
}
