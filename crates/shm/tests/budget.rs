#![allow(unsafe_code, reason = "fork(2) has no safe wrapper")]
//! Memory for parcels that is asked of a keeper. One test in a process of its own, which has one keeper.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use partywall_abi::sync::{AtomicUsize, Ordering};
use partywall_shm::parcel::budget::{self, Keeper};
use partywall_shm::parcel::lease::Lease;
use partywall_shm::parcel::owned::Memory;
use partywall_shm::parcel::view::Owned;
use partywall_shm::parcel::{Draft, ParcelError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PAGE: usize = 4096;
/// What this process may have.
const MOST: usize = 256 * PAGE;

/// What it gives to who has no time, when it has answered.
const FAR: usize = 160 << 20;

/// One that says when it is asked for far too much, and waits until it is to refuse that. Who has no time it
/// answers later ([`budget::given_in_vain`]).
struct Slow {
    asked: SyncSender<()>,
    refuse: Mutex<Receiver<()>>,
}

impl Keeper for Slow {
    fn want(&self, bytes: usize, within: Duration) -> Result<usize, ParcelError> {
        if within.is_zero() {
            let given = GIVEN.load(Ordering::SeqCst);
            return if given >= bytes {
                Ok(given)
            } else {
                Err(ParcelError::Unanswered("not yet"))
            };
        }
        if bytes > 2 * MOST {
            self.asked.send(()).unwrap();
            self.refuse.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap();
        }
        if bytes > MOST { Err(ParcelError::Quota(format!("{bytes} of {MOST}"))) } else { Ok(MOST) }
    }

    fn give_back(&self, bytes: usize, more: usize) -> usize {
        GIVEN_BACK.store(bytes + more, Ordering::SeqCst);
        GIVEN.fetch_min(bytes + more, Ordering::SeqCst);
        MOST.min(bytes + more)
    }
}

/// What it has given to who has no time.
static GIVEN: AtomicUsize = AtomicUsize::new(0);
/// What was left when something was given back last.
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(usize::MAX);

#[test]
fn what_is_made_counts_and_what_is_refused_does_not() {
    let ((asked, is_asked), (refuse, refused)) = (sync_channel(0), sync_channel(0));
    budget::keep(Box::leak(Box::new(Slow { asked, refuse: Mutex::new(refused) })));

    // By pages, which are what it takes.
    let lease = Lease::new(1).unwrap();
    let draft = Draft::new(PAGE + 1).unwrap();
    assert_eq!(budget::has(), 3 * PAGE);
    drop((lease, draft));
    assert_eq!(budget::has(), 0);

    // Who asks for too much is in nobody's way, neither while it waits nor when it is refused.
    for _ in 0..10 {
        let greedy = std::thread::spawn(|| Memory::new(4 * MOST).map(|_| ()));
        is_asked.recv().unwrap();
        let small = Draft::at_once(PAGE).expect("it is among what was given");
        assert_eq!(budget::has(), PAGE);
        let other = std::thread::spawn(|| Memory::new(PAGE).map(|_| ()));
        other.join().unwrap().expect("so is this");
        refuse.send(()).unwrap();
        assert!(matches!(greedy.join().unwrap(), Err(ParcelError::Quota(_))));
        drop(small);
    }

    // Threads at once never have more, and leave nothing.
    let barrier = Arc::new(std::sync::Barrier::new(8));
    let makes = |barrier: Arc<std::sync::Barrier>| {
        std::thread::spawn(move || {
            let round = |_| {
                barrier.wait();
                let made = Draft::new(100 * PAGE);
                barrier.wait();
                let has = budget::has();
                barrier.wait();
                drop(made);
                has
            };
            (0..100).map(round).collect::<Vec<_>>()
        })
    };
    let threads: Vec<_> = (0..8).map(|_| makes(Arc::clone(&barrier))).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), [200 * PAGE; 100], "two of three");
    }
    assert_eq!(budget::has(), 0);

    // A view keeps the pages of an owned parcel, and what they count.
    let owned = Owned::new(PAGE).unwrap();
    let view = owned.view();
    drop(owned);
    assert_eq!(budget::has(), 2 * PAGE);
    drop(view);
    assert_eq!(budget::has(), 0);

    // What another keeper has charged since is given back, though nothing more was asked of it.
    const SPARE: usize = 64 << 20;
    let kept = Lease::new(PAGE).unwrap();
    for charged in [1 << 30, 2 << 30] {
        GIVEN_BACK.store(usize::MAX, Ordering::SeqCst);
        budget::void();
        budget::given_in_vain(charged);
        let begin = Instant::now();
        while GIVEN_BACK.load(Ordering::SeqCst) != PAGE + SPARE {
            assert!(begin.elapsed() < Duration::from_secs(10), "{charged} stay charged");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(kept);

    // What was given later stays for who tries again, once or for a second.
    const MOMENT: Duration = Duration::from_millis(200);
    let at_once = || Draft::at_once(FAR).map(|draft| draft.len());
    for tries_again in [true, false] {
        let why = at_once();
        assert!(matches!(why, Err(ParcelError::Unanswered(_))), "{why:?}");
        GIVEN.store(FAR, Ordering::SeqCst);
        budget::given_in_vain(FAR);
        let begin = Instant::now();
        std::thread::sleep(MOMENT);
        assert_eq!(GIVEN.load(Ordering::SeqCst), FAR);
        if tries_again {
            assert_eq!(at_once().unwrap(), FAR);
        }
        while GIVEN.load(Ordering::SeqCst) > SPARE {
            assert!(begin.elapsed() < Duration::from_secs(10), "it stays charged");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    // A child of this process asks nobody, and waits for nobody who asks.
    let greedy = std::thread::spawn(|| Memory::new(4 * MOST).map(|_| ()));
    is_asked.recv().unwrap();
    // SAFETY: the child makes memory and ends. The C library keeps its allocator usable there (malloc(3)),
    // and of this crate's locks the only one that is held is that of who asks.
    match unsafe { libc::fork() } {
        0 => {
            let made = Memory::new(8 * MOST).is_ok();
            // SAFETY: it ends the child.
            unsafe { libc::_exit(i32::from(!made)) }
        }
        child => {
            let child = rustix::process::Pid::from_raw(child).unwrap();
            let (_, status) =
                rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
                    .unwrap()
                    .unwrap();
            assert_eq!(status.exit_status(), Some(0));
        }
    }
    refuse.send(()).unwrap();
    assert!(greedy.join().unwrap().is_err());

    // Nobody is killed for a file that is longer than its limit (`SIGXFSZ`).
    let before = getrlimit(Resource::Fsize);
    let short = Rlimit { current: Some(PAGE as u64), maximum: before.maximum };
    setrlimit(Resource::Fsize, short).unwrap();
    let why = Draft::new(2 * PAGE).unwrap_err();
    setrlimit(Resource::Fsize, before).unwrap();
    for part in ["File too large", "RLIMIT_FSIZE", "`ulimit -f`"] {
        assert!(why.to_string().contains(part), "{part} in {why}");
    }
    assert_eq!(budget::has(), 0);
}
