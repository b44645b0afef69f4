//! Memory for parcels that was made before there was a keeper of the quota. One test in a process of its own.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use partywall_shm::parcel::budget::{self, Keeper};
use partywall_shm::parcel::{Draft, ParcelError};

const PAGE: usize = 4096;
/// What stays allowed where something is given back.
const SPARE: usize = 64 << 20;

/// One that gives all, and says what is given back.
struct Generous(SyncSender<(usize, usize)>);

impl Keeper for Generous {
    fn want(&self, bytes: usize, _within: Duration) -> Result<usize, ParcelError> {
        Ok(bytes)
    }

    fn give_back(&self, bytes: usize, more: usize) -> usize {
        self.0.send((bytes, more)).unwrap();
        bytes + more
    }
}

#[test]
fn what_was_made_before_a_keeper_came_is_given_back_to_it() {
    let (kept, large) = (Draft::new(PAGE).unwrap(), Draft::new(2 * SPARE + PAGE).unwrap());
    let (tx, given_back) = sync_channel(1);
    budget::keep(Box::leak(Box::new(Generous(tx))));
    // It is told of all that is there.
    budget::void();
    drop(large);
    let said = given_back.recv_timeout(Duration::from_secs(10));
    assert_eq!(said, Ok((PAGE, SPARE)));
    drop(kept);
}
