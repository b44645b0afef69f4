//! Flow control. Each direction of a stream has a window, and so has each direction of a link; a
//! sender never has more data under way than both allow.
//!
//! ```text
//! receiver                                   sender
//! left: what may still come                  credit: what may still be sent
//! data comes: left -= n                      data goes: credit -= n
//! the program takes it: owed += n
//! owed is worth a record: left += owed,
//!   Window(owed) ------------------------->  credit += owed
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use partywall_abi::limits;

use crate::error::Rule;

/// What this side may receive on the whole link.
#[derive(Debug)]
pub(crate) struct LinkWindow {
    left: u32,
    owed: u32,
    whole: u32,
}

impl LinkWindow {
    #[inline]
    pub(crate) fn new(whole: u32) -> Self {
        Self { left: whole, owed: 0, whole }
    }

    /// Data has come. A grant may be due afterwards: what slow readers hold back must not keep the
    /// others' share below a portion.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u32) -> Result<Option<u32>, Rule> {
        self.left = self.left.checked_sub(bytes).ok_or(Rule::OverWindow)?;
        Ok(self.grant())
    }

    /// The program has taken data, or nobody will; what is to be granted.
    #[inline]
    pub(crate) fn give_back(&mut self, bytes: u32) -> Option<u32> {
        self.owed += bytes;
        debug_assert!(self.owed + self.left <= self.whole, "data given back twice");
        self.grant()
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    #[inline]
    fn grant(&mut self) -> Option<u32> {
        let beside = self.left.saturating_sub(self.whole / limits::RESERVE);
        if self.owed == 0 || (self.owed < self.whole / 2 && self.owed < beside) {
            return None;
        }
        let owed = std::mem::take(&mut self.owed);
        self.left += owed;
        Some(owed)
    }
}

/// What this side may send on the whole link.
#[derive(Debug)]
pub(crate) struct LinkCredit {
    left: u32,
    whole: u32,
}

impl LinkCredit {
    #[inline]
    pub(crate) fn new(whole: u32) -> Self {
        Self { left: whole, whole }
    }

    /// The service has said how wide the window really is.
    pub(crate) fn widen(&mut self, whole: u32) {
        self.left += whole.saturating_sub(self.whole);
        self.whole = whole;
    }

    #[inline]
    pub(crate) fn add(&mut self, credit: u32) -> Result<(), Rule> {
        let left = self.left.checked_add(credit).filter(|left| *left <= self.whole);
        self.left = left.ok_or(Rule::OverCredit)?;
        Ok(())
    }

    #[inline]
    pub(crate) fn spend(&mut self, bytes: u32) {
        self.left -= bytes;
    }

    /// What may be sent. Data of messages that one record does not hold whole leaves a part of the
    /// window to the others: readers that take nothing stop no short call.
    #[inline]
    pub(crate) fn left(&self, whole_message: bool) -> u32 {
        let reserve = if whole_message { 0 } else { self.whole / limits::RESERVE };
        self.left.saturating_sub(reserve)
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct Receive {
    left: u32,
    owed: u32,
    /// Bytes of data that have come, and of those, what the program has taken.
    came: u64,
    taken: u64,
    /// Where the message ends for which the program keeps memory.
    message_end: u64,
    /// What comes beside the windows: from the first such byte, if one has come, up to here.
    room: (Option<u64>, u64),
    /// Where the parcels lie that have come and are not taken; most streams never have any.
    parcels: VecDeque<Range<u64>>,
    /// The peer's head has come.
    pub(crate) headed: bool,
    /// The peer sends nothing more.
    pub(crate) ended: bool,
    /// The program takes nothing more.
    discards: bool,
}

impl Receive {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            left: limits::STREAM_WINDOW,
            owed: 0,
            came: 0,
            taken: 0,
            message_end: 0,
            room: (None, 0),
            parcels: VecDeque::new(),
            headed: false,
            ended: false,
            discards: false,
        }
    }

    /// Data has come. What of the link's window nobody will take; `None` if the program takes it.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u32, by_room: bool) -> Result<Option<u32>, Rule> {
        let came = self.came + u64::from(bytes);
        if by_room {
            if came > self.room.1 {
                return Err(Rule::OverWindow);
            }
            self.room.0.get_or_insert(self.came);
        } else if bytes > 0 {
            // Once data has come by room, all up to its end does.
            let in_room = self.room.0.is_some() && self.came < self.room.1;
            self.left =
                self.left.checked_sub(bytes).filter(|_| !in_room).ok_or(Rule::OverWindow)?;
        }
        self.came = came;
        if !self.discards {
            return Ok(None);
        }
        self.taken = came;
        Ok(Some(if by_room { 0 } else { bytes }))
    }

    /// Data in a parcel has come, beside the windows; how many parcels nobody will take.
    pub(crate) fn charge_parcel(&mut self, bytes: u64) -> u32 {
        let begin = self.came;
        self.came += bytes;
        if self.discards {
            self.taken = self.came;
            return 1;
        }
        self.parcels.push_back(begin..self.came);
        0
    }

    /// How many of `len` bytes from an offset on came by the windows.
    fn windowed(&self, from: u64, len: u64) -> u32 {
        let to = from + len;
        let within = |range: &Range<u64>| to.min(range.end).saturating_sub(from.max(range.start));
        let room = match self.room {
            (Some(begin), end) => begin..end,
            (None, _) => 0..0,
        };
        let mut beside = within(&room);
        for parcel in &self.parcels {
            // What of one has come among what has room is counted with that.
            let is_in_room = room.contains(&parcel.start);
            let start = if is_in_room { room.end } else { parcel.start };
            beside += within(&(start..parcel.end));
        }
        (len - beside) as u32
    }

    /// The parcels that are taken by now.
    fn taken_parcels(&mut self) -> u32 {
        let mut count = 0;
        while self.parcels.pop_front_if(|parcel| parcel.end <= self.taken).is_some() {
            count += 1;
        }
        count
    }

    /// The program has taken data: what that gives back to the link's window, what is to be granted to the
    /// stream, and how many parcels are read.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> (u32, Option<u32>, u32) {
        let bytes = bytes as u64;
        debug_assert!(self.taken + bytes <= self.came, "data taken that has not come");
        let windowed = self.windowed(self.taken, bytes);
        self.taken += bytes;
        let parcels = self.taken_parcels();
        self.owed += windowed;
        if self.ended || self.owed < limits::STREAM_WINDOW / 2 {
            return (windowed, None, parcels);
        }
        let owed = std::mem::take(&mut self.owed);
        self.left += owed;
        (windowed, Some(owed), parcels)
    }

    /// The program takes nothing more, if it has taken all that has come.
    #[inline]
    pub(crate) fn discard_nothing(&mut self) -> bool {
        let all = self.taken == self.came && self.parcels.is_empty();
        self.discards |= all;
        all
    }

    /// The program takes nothing more: what goes back to the link's window, and how many parcels are unread.
    #[inline]
    pub(crate) fn discard(&mut self) -> (u32, u32) {
        self.discards = true;
        let windowed = self.windowed(self.taken, self.came - self.taken);
        self.taken = self.came;
        (windowed, self.taken_parcels())
    }

    /// The program keeps memory for so many bytes, from what it takes next on.
    pub(crate) fn keep_room(&mut self, bytes: u64) {
        self.message_end = self.taken + bytes;
    }

    /// Up to which offset the peer is to be told that memory is kept, if that is news.
    pub(crate) fn room_to_tell(&mut self) -> Option<u64> {
        let end = self.message_end;
        let news = !self.ended && !self.discards && end > self.came && end > self.room.1;
        news.then(|| {
            self.room = (None, end);
            end
        })
    }
}

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct Send {
    credit: u32,
    sent: u64,
    /// Up to this offset the peer keeps memory: no credit is needed.
    room: u64,
    /// The head is on the ring.
    pub(crate) begun: bool,
    /// Nothing may be sent any more.
    pub(crate) stopped: bool,
}

impl Send {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { credit: limits::STREAM_WINDOW, sent: 0, room: 0, begun: false, stopped: false }
    }

    #[inline]
    pub(crate) fn add(&mut self, credit: u32) -> Result<(), Rule> {
        let sum = self.credit.checked_add(credit).filter(|sum| *sum <= limits::STREAM_WINDOW);
        self.credit = sum.ok_or(Rule::OverCredit)?;
        Ok(())
    }

    #[inline]
    pub(crate) fn room(&mut self, until: u64) -> Result<(), Rule> {
        if until < self.room {
            return Err(Rule::OverCredit);
        }
        self.room = until;
        Ok(())
    }

    /// What may be sent with so much credit of the link, and whether that is by room, which needs
    /// no credit.
    #[inline]
    pub(crate) fn allowed(&self, link: u32) -> (usize, bool) {
        match self.room.saturating_sub(self.sent) {
            0 => (link.min(self.credit) as usize, false),
            room => (usize::try_from(room).unwrap_or(usize::MAX), true),
        }
    }

    #[inline]
    pub(crate) fn spend(&mut self, bytes: u64, is_windowed: bool) {
        self.sent += bytes;
        if is_windowed {
            self.credit -= bytes as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_send_more_than_its_window() {
        let mut receive = Receive::new();
        let half = limits::STREAM_WINDOW / 2;
        assert_eq!(receive.charge(half, false), Ok(None));
        assert_eq!(receive.charge(half, false), Ok(None));
        assert_eq!(receive.charge(1, false), Err(Rule::OverWindow));
        assert_eq!(receive.take(half as usize), (half, Some(half), 0));
        assert_eq!(receive.charge(half, false), Ok(None));
    }

    #[test]
    fn parcel_across_the_end_of_room_uses_no_window() {
        for taken in [1, 10, 11, 21] {
            let mut receive = Receive::new();
            receive.keep_room(10);
            assert_eq!(receive.room_to_tell(), Some(10));
            assert_eq!(receive.charge(1, true), Ok(None));
            assert_eq!(receive.charge_parcel(20), 0);
            assert_eq!(receive.take(taken), (0, None, u32::from(taken == 21)), "{taken}");
            assert_eq!(receive.discard(), (0, u32::from(taken < 21)));
        }
    }

    #[test]
    fn message_with_room_uses_no_window() {
        let mut receive = Receive::new();
        let whole = limits::STREAM_WINDOW;
        receive.charge(whole, false).unwrap();
        assert_eq!(receive.charge(1, true), Err(Rule::OverWindow), "nobody has given room");
        receive.keep_room(u64::from(whole) + 100);
        assert_eq!(receive.room_to_tell(), Some(u64::from(whole) + 100));
        assert_eq!(receive.room_to_tell(), None, "told twice");
        receive.charge(60, true).unwrap();
        assert_eq!(receive.charge(1, false), Err(Rule::OverWindow), "the window is used up");
        receive.charge(40, true).unwrap();
        assert_eq!(receive.charge(1, true), Err(Rule::OverWindow), "more than there is room for");
        assert_eq!(receive.take(whole as usize - 10), (whole - 10, Some(whole - 10), 0));
        receive.charge(5, false).unwrap();
        // Ten of the window, a hundred beside it, and five of the window again.
        assert_eq!(receive.take(50), (10, None, 0));
        assert_eq!(receive.discard(), (5, 0));
        assert_eq!(receive.charge(7, false), Ok(Some(7)), "later data is given back at once");
    }

    #[test]
    fn parcels_use_no_window_and_are_read_when_all_of_them_is_taken() {
        let mut receive = Receive::new();
        let whole = u64::from(limits::STREAM_WINDOW);
        receive.charge(10, false).unwrap();
        assert_eq!(receive.charge_parcel(3 * whole), 0);
        receive.charge(20, false).unwrap();
        assert_eq!(receive.charge_parcel(1), 0);
        assert_eq!(receive.take(10 + 2 * whole as usize), (10, None, 0));
        assert_eq!(receive.take(whole as usize + 5), (5, None, 1));
        assert_eq!(receive.discard(), (15, 1));
        assert_eq!(receive.charge_parcel(7), 1, "nobody takes it");
        assert_eq!(receive.discard(), (0, 0));
    }

    #[test]
    fn parcels_among_data_with_room_are_counted_once() {
        let mut receive = Receive::new();
        assert_eq!(receive.charge_parcel(100), 0);
        receive.charge(10, false).unwrap();
        receive.keep_room(1000);
        assert_eq!(receive.room_to_tell(), Some(1000));
        receive.charge(90, true).unwrap();
        assert_eq!(receive.charge_parcel(300), 0);
        receive.charge(500, true).unwrap();
        receive.charge(7, false).unwrap();
        assert_eq!(receive.charge_parcel(50), 0);
        let all = 100 + 10 + 90 + 300 + 500 + 7 + 50;
        assert_eq!(receive.take(all), (17, None, 3));
    }

    #[test]
    fn announced_room_never_shrinks_and_credit_fits_the_window() {
        let mut send = Send::new();
        send.room(10).unwrap();
        assert_eq!(send.allowed(0), (10, true));
        assert_eq!(send.room(9), Err(Rule::OverCredit));
        assert_eq!(send.add(1), Err(Rule::OverCredit));
        send.spend(10, false);
        send.spend(2, true);
        assert_eq!(send.add(2), Ok(()));
        assert_eq!(send.add(u32::MAX), Err(Rule::OverCredit));
        assert_eq!(send.allowed(7), (7, false));
    }

    #[test]
    fn a_link_grants_in_portions_and_before_the_others_run_short() {
        let mut window = LinkWindow::new(1000);
        assert_eq!(window.charge(1001), Err(Rule::OverWindow));
        assert_eq!(window.charge(100), Ok(None));
        assert_eq!(window.give_back(100), None);
        assert_eq!(window.charge(400), Ok(None));
        assert_eq!(window.give_back(400), Some(500));
        // 20 are owed when 10 are left beside the reserve of 250.
        assert_eq!(window.charge(500), Ok(None));
        assert_eq!(window.give_back(20), None);
        assert_eq!(window.charge(240), Ok(Some(20)));
    }

    #[test]
    fn long_messages_leave_a_reserve_and_limits_widen_the_window() {
        let mut credit = LinkCredit::new(400);
        assert_eq!((credit.left(true), credit.left(false)), (400, 300));
        credit.spend(350);
        assert_eq!((credit.left(true), credit.left(false)), (50, 0));
        credit.widen(1000);
        assert_eq!((credit.left(true), credit.left(false)), (650, 400));
        assert_eq!(credit.add(351), Err(Rule::OverCredit));
        assert_eq!(credit.add(350), Ok(()));
    }
}
