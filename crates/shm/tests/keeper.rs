//! What is counted while the keeper of the quota answers: its coordinator goes, another one refuses, memory
//! is made meanwhile. One process has one keeper, so that its tests take turns.

use std::collections::VecDeque;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use partywall_abi::sync::{AtomicUsize, Ordering};
use partywall_shm::parcel::budget::{self, Keeper};
use partywall_shm::parcel::{Draft, ParcelError};

const PAGE: usize = 4096;
/// What stays allowed where something is given back.
const SPARE: usize = 64 << 20;

type Want = Box<dyn FnOnce(usize) -> Result<usize, ParcelError> + Send>;
type GiveBack = Box<dyn FnOnce(usize, usize) -> usize + Send>;

/// One that answers as a test says, and from then on gives what it is asked for.
struct Scripted {
    wants: Mutex<VecDeque<Want>>,
    gives_back: Mutex<VecDeque<GiveBack>>,
    asked: Mutex<Vec<Question>>,
}

#[derive(Debug, PartialEq)]
enum Question {
    Want(usize),
    GiveBack(usize, usize),
}

static KEEPER: Scripted = Scripted {
    wants: Mutex::new(VecDeque::new()),
    gives_back: Mutex::new(VecDeque::new()),
    asked: Mutex::new(Vec::new()),
};
static TURN: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper for Scripted {
    fn want(&self, bytes: usize, _within: Duration) -> Result<usize, ParcelError> {
        lock(&self.asked).push(Question::Want(bytes));
        let answer = lock(&self.wants).pop_front();
        answer.map_or(Ok(bytes), |answer| answer(bytes))
    }

    fn give_back(&self, bytes: usize, more: usize) -> usize {
        lock(&self.asked).push(Question::GiveBack(bytes, more));
        let answer = lock(&self.gives_back).pop_front();
        answer.map_or(bytes + more, |answer| answer(bytes, more))
    }
}

/// A turn, in which nothing is there and nothing allowed at first.
fn begin() -> MutexGuard<'static, ()> {
    let turn = lock(&TURN);
    budget::keep(&KEEPER);
    budget::void();
    lock(&KEEPER.wants).clear();
    lock(&KEEPER.gives_back).clear();
    lock(&KEEPER.asked).clear();
    assert_eq!(budget::has(), 0);
    turn
}

fn next_want(answer: impl FnOnce(usize) -> Result<usize, ParcelError> + Send + 'static) {
    lock(&KEEPER.wants).push_back(Box::new(answer));
}

fn next_give_back(answer: impl FnOnce(usize, usize) -> usize + Send + 'static) {
    lock(&KEEPER.gives_back).push_back(Box::new(answer));
}

/// What the keeper was asked since the last look.
fn asked() -> Vec<Question> {
    std::mem::take(&mut *lock(&KEEPER.asked))
}

fn refusal() -> Result<usize, ParcelError> {
    Err(ParcelError::Quota("no more".into()))
}

#[test]
fn sealed_memory_counts_until_the_last_of_its_bytes_is_dropped() {
    let _turn = begin();
    let sealed = Draft::new(PAGE + 1).unwrap().seal().unwrap();
    assert_eq!(budget::has(), 2 * PAGE, "the seal changes nothing");
    let clone = sealed.clone();
    assert_eq!(budget::has(), 2 * PAGE, "clones share it");
    drop(sealed);
    assert_eq!(budget::has(), 2 * PAGE);
    let bytes = clone.into_bytes();
    let part = bytes.slice(PAGE..);
    drop(bytes);
    assert_eq!(budget::has(), 2 * PAGE, "a part keeps all of it");
    drop(part);
    assert_eq!(budget::has(), 0);
}

#[test]
fn what_a_coordinator_gave_that_has_gone_does_not_count() {
    let _turn = begin();
    next_want(|bytes| {
        budget::void();
        Ok(bytes + SPARE)
    });
    let first = Draft::new(PAGE).unwrap();
    assert_eq!(asked(), [Question::Want(PAGE), Question::Want(PAGE)], "the next one is asked too");
    let second = Draft::new(PAGE).unwrap();
    assert_eq!(asked(), [Question::Want(2 * PAGE)], "it has given no more");
    drop((first, second));
}

#[test]
fn what_one_coordinator_gave_goes_back_when_another_refuses() {
    let _turn = begin();
    let given = Arc::new(AtomicUsize::new(0));
    let (gives, takes_back) = (Arc::clone(&given), Arc::clone(&given));
    next_want(move |bytes| {
        gives.store(bytes, Ordering::SeqCst);
        refusal()
    });
    next_give_back(move |bytes, more| {
        takes_back.fetch_min(bytes + more, Ordering::SeqCst);
        bytes + more
    });
    assert!(matches!(Draft::new(4 * SPARE), Err(ParcelError::Quota(_))));
    // Before the refusal is told, and not when some thread comes to it.
    assert_eq!(given.load(Ordering::SeqCst), 2 * SPARE);
    assert_eq!(asked(), [Question::Want(4 * SPARE), Question::GiveBack(0, 2 * SPARE)]);
}

#[test]
fn no_more_counts_than_will_be_left_while_some_is_given_back() {
    let _turn = begin();
    let (tx, rx) = channel();
    next_want(|bytes| Ok(bytes + 4 * SPARE));
    next_give_back(move |bytes, more| {
        let made = [PAGE, SPARE + PAGE].map(|len| Draft::at_once(len).map(drop));
        tx.send((bytes, more, made)).unwrap();
        bytes + more
    });
    let draft = Draft::new(PAGE).unwrap();
    let (bytes, more, [small, large]) = rx.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!((bytes, more), (PAGE, SPARE));
    small.expect("it is among what is left");
    assert!(matches!(large, Err(ParcelError::Unanswered(_))), "{large:?}");
    drop(draft);
}

#[test]
fn what_is_left_by_a_coordinator_that_has_gone_is_void() {
    let _turn = begin();
    next_want(|_| refusal());
    next_give_back(|bytes, more| {
        budget::void();
        bytes + more
    });
    assert!(matches!(Draft::new(PAGE), Err(ParcelError::Quota(_))));
    assert_eq!(asked(), [Question::Want(PAGE), Question::GiveBack(0, 2 * SPARE)]);
    Draft::new(PAGE).unwrap();
    assert_eq!(asked(), [Question::Want(PAGE)], "the next one is asked");
}
