//! Parcels: how many may come, and how many may be sent.

use partywall_abi::limits;

use super::Connection;
use crate::control::Control;

impl<T: Default> Connection<T> {
    /// This end takes so many parcels from here on, of [`limits::UNREAD_PARCELS`] at most, and says so.
    pub fn take_parcels(&mut self, count: u32) {
        debug_assert!(count <= limits::UNREAD_PARCELS && self.tells_parcels);
        self.read_parcels(count);
    }

    /// So many more may come, as there is room for as many more.
    pub(super) fn read_parcels(&mut self, count: u32) {
        if count > 0 {
            self.parcels_in += count;
            self.push(Control::Parcels(count));
        }
    }

    /// Whether data that lie in a parcel would go there now ([`Want::in_parcel`](super::Want::in_parcel)).
    #[inline]
    pub fn may_send_parcel(&self) -> bool {
        self.parcels_out > 0
    }
}
