//! The whole of a request that came in one record, or was put together.

use std::sync::Arc;

use bytes::Bytes;
use partywall_call::{Key, SHORT};

use super::Link;
use super::account::Charge;
use super::receiver::Receiver;

/// The data of a request that has come whole.
///
/// Long data is charged to its caller's account until the handler has taken it; where that has no
/// room, it counts against the link's window instead. Short data is too little to keep account of. Data in a
/// parcel count among the parcels that are not read.
pub(crate) struct Whole {
    data: Option<Bytes>,
    held: Held,
}

/// What counts a whole request that is not taken.
enum Held {
    Nothing,
    /// Given back by its drop.
    Account {
        _charge: Charge,
    },
    /// Given back to the link's window, or to its parcels, with a reference to the call.
    Link(Arc<Link>, Key),
    /// The charge of what brought it in several records.
    Receiver {
        _receiver: Box<Receiver>,
    },
}

impl Whole {
    #[inline]
    pub(super) fn new(link: &Arc<Link>, key: Key, data: Bytes, in_parcel: bool) -> Self {
        let len = data.len();
        let held = if len <= SHORT {
            // It counted as taken when it came.
            Held::Nothing
        } else if !in_parcel && let Some(charge) = link.calls.account.try_charge(len as u64) {
            link.send_control(link.calls.taken(key, len));
            Held::Account { _charge: charge }
        } else {
            link.calls.share(key);
            Held::Link(Arc::clone(link), key)
        };
        Self { data: (len > 0).then_some(data), held }
    }

    /// The whole of one that came in several records, which its receiver has charged.
    pub(crate) fn gathered(data: Bytes, receiver: Box<Receiver>) -> Self {
        Self { data: Some(data), held: Held::Receiver { _receiver: receiver } }
    }

    /// Data that count against nobody.
    #[cfg(test)]
    pub(crate) fn of(data: Bytes) -> Self {
        Self { data: Some(data), held: Held::Nothing }
    }

    /// It, if it is not taken.
    pub(crate) fn data(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// Whether it is taken, or there was none.
    pub(crate) fn is_empty(&self) -> bool {
        self.data.is_none()
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let data = self.data.take()?;
        let held = std::mem::replace(&mut self.held, Held::Nothing);
        if let Held::Link(link, key) = held {
            link.send_control(link.calls.taken(key, data.len()));
            link.release(key);
        }
        Some(data)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::account::{Accounts, Bounds};
    use crate::link::calls::{Accepted, Beside};
    use crate::link::inbound::Record;
    use partywall_abi::frame::{END, HEAD, Kind, RequestHead};
    use partywall_abi::layout::Geometry;
    use partywall_abi::limits;
    use partywall_shm::setup::local_pair;

    #[tokio::test]
    async fn a_long_request_counts_until_it_is_taken() {
        let (ours, theirs) = local_pair(Geometry::WIDE).unwrap();
        let len = limits::LINK_WINDOW / 128;
        let bytes = 64 * u64::from(len);
        let accounts = Accounts::new(Bounds { bytes, ..Bounds::default() });
        let account = accounts.open(1, Some(1));
        assert_eq!(account.window, len * 16);
        let link = Arc::new(Link::serving(ours, account, None).unwrap());
        let mut granted = theirs.consumer;
        assert_eq!(granted.peek().unwrap().map(|d| d.kind), Some(Kind::Limits as u8));
        granted.release();
        let mut grant = || -> Option<u32> {
            loop {
                let d = granted.peek().unwrap()?;
                let mut payload = Vec::with_capacity(d.len as usize);
                granted.read(&mut payload);
                granted.release();
                // Calls end without an answer here.
                if d.kind != Kind::Reset as u8 {
                    assert_eq!((d.kind, d.stream), (Kind::Window as u8, 0));
                    return Some(u32::from_le_bytes(payload.try_into().unwrap()));
                }
            }
        };
        let mut stream = 0;
        let mut arrive = |len: u32| {
            stream += 1;
            let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a/b", 0);
            let record = Record::frame(HEAD | END, stream, head, len as usize);
            let (accepted, due) = link.calls.accept(record, Beside::default(), None).unwrap();
            link.send_control(due);
            let Accepted::Opened(mut opened) = accepted else { panic!("it is refused") };
            let whole = Whole::new(&link, opened.key, opened.take_data().here(), false);
            link.release(opened.key);
            whole
        };
        // The account has room for so many: the window is given back.
        let mut kept: Vec<_> = (0..64).map(|_| arrive(len)).collect();
        let granted: u32 = std::iter::from_fn(&mut grant).sum();
        assert!(granted >= 56 * len, "{granted} bytes granted");
        // And none for more: they hold the window.
        kept.extend((0..8).map(|_| arrive(len)));
        assert!(kept.iter().skip(64).all(|whole| matches!(whole.held, Held::Link(..))));
        let before: u32 = std::iter::from_fn(&mut grant).sum();
        // One is read, the others are dropped unread.
        assert_eq!(kept[0].take().map(|data| data.len()), Some(len as usize));
        assert!(kept[0].is_empty());
        kept.clear();
        let last = arrive(1);
        let after: u32 = std::iter::from_fn(&mut grant).sum();
        assert!(granted + before + after >= 64 * len, "{granted} {before} {after}");
        drop(last);
        assert!(link.calls.account.try_charge(bytes).is_some(), "something is still charged");
        // The record's own copy is all that a short one needs.
        let held = [4096, 4097].map(|len| !matches!(arrive(len).held, Held::Nothing));
        assert_eq!(held, [false, true]);
    }
}
