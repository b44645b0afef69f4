//! Parcels: how many may come, and how many may be sent; and owned ones, which are lent and given back. What
//! is attached to a head counts as one.
//!
//! ```text
//! owner      free --lend: generation + 1, the frame--> lent --Release of that generation--> free
//! receiver   free --the frame, of the next generation--> held --release--> free
//! ```
//!
//! The places are the owner's. A receiver that dies holds its memory until the link ends; an owner that dies
//! takes nothing away, since the memory is mapped.

use partywall_abi::frame::{self, Owned, ParcelRef};
use partywall_abi::limits;

use super::Connection;
use crate::control::Control;
use crate::error::{Error, Rule};
use crate::event::Event;

/// Owned parcels of one direction.
pub(super) const PLACES: usize = limits::OWNED_PARCELS as usize;

/// One of them, as its owner or its receiver knows it.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    /// Of the last time that it was lent.
    generation: u32,
    lent: bool,
}

impl<T: Default> Connection<T> {
    /// Whether both ends know parcels.
    pub fn knows_parcels(&self) -> bool {
        self.tells_parcels
    }

    /// This end takes so many parcels from here on, of [`limits::UNREAD_PARCELS`] at most, and says so.
    /// Descriptors may cross from here on.
    pub fn take_parcels(&mut self, count: u32) {
        debug_assert!(count <= limits::UNREAD_PARCELS && self.tells_parcels);
        self.is_granted = true;
        self.parcels_most += count;
        self.parcels_read += count;
        self.tell_parcels();
    }

    /// Whether something may be attached to a head, now or once descriptors are granted.
    pub fn may_attach(&self) -> bool {
        self.tells_attached
    }

    /// How many places this end has for memory that it attaches, and how many the peer has.
    pub fn attached_places(&self) -> [usize; 2] {
        // A receiver that takes one parcel alone has lent its other descriptors elsewhere.
        let places = |most: u32| if most > 1 { limits::ATTACHED_PLACES } else { 0 };
        [self.parcels_most_out, self.parcels_most].map(places)
    }

    /// Something is attached to a head that has come.
    #[cold]
    pub(super) fn came_attached(&mut self) -> Result<(), Rule> {
        if !self.tells_attached {
            return Err(Rule::NotAgreed);
        }
        self.parcel_comes()
    }

    /// One of those that may come. The peer hears of others that are read, if it waits for that now.
    fn parcel_comes(&mut self) -> Result<(), Rule> {
        self.parcels_in = self.parcels_in.checked_sub(1).ok_or(Rule::OverParcels)?;
        if self.parcels_in == 0 {
            self.tell_parcels();
        }
        Ok(())
    }

    /// The program has taken what was attached to a head, or nobody will. Said once for each that has come,
    /// also where the head had no effect. Whether the peer may wait for that: else it is told with what is
    /// sent next.
    pub fn attached_read(&mut self) -> bool {
        let waits = self.parcels_in == 0;
        self.read_parcels(1);
        waits
    }

    /// So many more may come. The peer is told so when half of all may, and when it could wait for that.
    pub(super) fn read_parcels(&mut self, count: u32) {
        self.parcels_read += count;
        if self.parcels_in == 0 || 2 * self.parcels_read >= self.parcels_most {
            self.tell_parcels();
        }
    }

    fn tell_parcels(&mut self) {
        let count = std::mem::take(&mut self.parcels_read);
        if count > 0 {
            self.parcels_in += count;
            self.push(Control::Parcels(count));
        }
    }

    /// Data have come in a parcel.
    #[cold]
    pub(super) fn came_in_parcel(&mut self, parcel: ParcelRef) -> Result<(), Rule> {
        if let Some(Owned { place, generation }) = parcel.owned {
            let held = &self.owned_in[place as usize];
            if held.lent || generation != held.generation.wrapping_add(1) {
                return Err(Rule::LentTwice(place));
            }
        }
        self.parcel_comes()?;
        if let Some(Owned { place, generation }) = parcel.owned {
            self.owned_in[place as usize] = Place { generation, lent: true };
        }
        Ok(())
    }

    /// Whether data that lie in a parcel would go there now ([`Want::in_parcel`](super::Want::in_parcel)).
    #[inline]
    pub fn may_send_parcel(&self) -> bool {
        self.parcels_out > 0
    }

    /// Lends an owned parcel, which is free, with the frame that is committed next; its generation.
    pub fn lend(&mut self, place: u32) -> u32 {
        let owned = &mut self.owned_out[place as usize];
        debug_assert!(!owned.lent, "it is not back");
        *owned = Place { generation: owned.generation.wrapping_add(1), lent: true };
        owned.generation
    }

    /// No frame was committed that lends it.
    pub fn take_back(&mut self, place: u32) {
        let owned = &mut self.owned_out[place as usize];
        *owned = Place { generation: owned.generation.wrapping_sub(1), lent: false };
    }

    /// Gives an owned parcel of the peer's back, of which nothing is read any more.
    pub fn give_back_owned(&mut self, place: u32) {
        let held = &mut self.owned_in[place as usize];
        // None whose frame has broken a rule.
        if std::mem::take(&mut held.lent) {
            let generation = held.generation;
            self.push(Control::Release(place, generation));
        }
    }

    pub(super) fn on_release<'a>(
        &mut self,
        place: u32,
        payload: &[u8],
    ) -> Result<Event<'a>, Error> {
        let generation = frame::decode_release(payload)?;
        if !self.tells_parcels {
            return Err(Rule::NotAgreed.into());
        }
        let owned = self.owned_out.get_mut(place as usize).ok_or(Rule::WrongStream(place))?;
        if !owned.lent || generation != owned.generation {
            return Err(Rule::NotLent(place).into());
        }
        owned.lent = false;
        Ok(Event::Released(place))
    }
}

#[cfg(test)]
impl<T> Connection<T> {
    /// Whether each parcel that may come is one that the peer may send, or will be told of.
    pub(crate) fn has_all_parcels(&self) -> bool {
        self.parcels_in + self.parcels_read == self.parcels_most
    }

    /// Owned parcels of this end that are lent, and of the peer's that are held.
    pub(crate) fn lent(&self) -> (usize, usize) {
        let count = |places: &[Place]| places.iter().filter(|place| place.lent).count();
        (count(&self.owned_out), count(&self.owned_in))
    }
}
