//! What protection keys keep a domain's code from, and what is open without them.

use std::time::{Duration, Instant};

use partywall_abi::domain::GateStatus;
use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::task::{Domain, StartError};
use partywall_guest::bytes::Function;
use partywall_guest::{Guest, Link};

use crate::host::{Running, c, in_a_launcher, program, start};
use crate::launcher::launcher;

const LONG: Duration = Duration::from_secs(3);

/// A callee with two lent threads, as seen by this thread.
fn callee(space: &AddressSpace) -> (Running, Guest, Link) {
    callee_for(space, &["2"])
}

/// The same, with these arguments.
fn callee_for(space: &AddressSpace, arguments: &[&str]) -> (Running, Guest, Link) {
    let mut running = start(space, &c("callee.c"), arguments);
    running.ready();
    let guest = launcher(space);
    let link = guest.take(7).unwrap();
    let begin = Instant::now();
    while guest.call(link, [0, 0, 0], LONG) == Err(GateStatus::Busy) {
        assert!(begin.elapsed() < LONG, "no thread is lent");
    }
    (running, guest, link)
}

in_a_launcher! {
    fn memory_of_others_is_closed_by_keys_and_open_without(space) {
        let keys = space.isolation() != Isolation::None;
        let own = Box::new(7_u64);
        let address = std::ptr::from_ref(&*own) as u64;
        // The launcher's memory can be read, and not written.
        let (_first, guest, link) = callee(space);
        assert_eq!(guest.call(link, [2, address, 0], LONG), Ok(7));
        let (first, guest, link) = callee(space);
        let written = guest.call(link, [30, address, 8], LONG);
        let now = std::hint::black_box(&own);
        if keys {
            assert_eq!((written, **now, first.domain.is_poisoned()), (Err(GateStatus::Fault), 7, true));
        } else {
            assert_eq!((written, **now), (Ok(30), 8));
        }
        // Another domain's cannot even be read, nor by the kernel for it.
        let (second, guest, link) = callee(space);
        let theirs = guest.call(link, [31, 0, 0], LONG).unwrap();
        assert!(second.domain.range().contains(&theirs));
        let (third, guest, link) = callee(space);
        assert_eq!(guest.call(link, [32, theirs, 0], LONG), Ok(if keys { 32 } else { 0 }));
        let read = guest.call(link, [2, theirs, 0], LONG);
        assert_eq!(read, if keys { Err(GateStatus::Fault) } else { Ok(u64::MAX) });
        assert_eq!(third.domain.is_poisoned(), keys);
    }
}

in_a_launcher! {
    fn a_stray_store_reaches_no_signal_stack_of_another(space) {
        let mut other = start(space, &c("caller.c"), &["load"]);
        other.ready();
        let (_called, guest, link) = callee_for(space, &["2", &other.domain.pid().to_string()]);
        // The top of the stack of a calling thread: places go by thread numbers.
        let stack = |thread: u32| {
            let first = space.range().end;
            first + (2 * u64::from(thread % 1024) + 2) * (64 << 10) - 8
        };
        // It is registered from its first call on.
        assert_eq!(guest.call(link, [0, 1, 1], LONG), Ok(2));
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        for thread in [other.domain.pid(), own] {
            let (stray, guest, link) = callee(space);
            let stored = guest.call(link, [30, stack(thread), 1], LONG);
            match space.isolation() {
                Isolation::ProtectionKeys => assert_eq!(stored, Err(GateStatus::Fault)),
                // As its name says.
                _ => assert_eq!(stored, Ok(30)),
            }
            drop(stray);
        }
    }
}

in_a_launcher! {
    fn an_arena_is_closed_to_a_third(space) {
        let mut callee_of_bytes = start(space, &c("callee.c"), &["1", "bytes"]);
        callee_of_bytes.ready();
        let mut function = Function::take(launcher(space), 7).unwrap();
        let mut address = 0;
        let begin = Instant::now();
        loop {
            let called = function.call_with(8, |arena| address = arena.as_ptr() as u64, LONG, |_| {});
            if called.is_ok() {
                break;
            }
            assert!(begin.elapsed() < LONG, "{called:?}");
        }
        let (_third, guest, link) = callee(space);
        let read = guest.call(link, [2, address, 0], LONG);
        assert_eq!(read.is_err(), space.isolation() != Isolation::None, "{read:?}");
    }
}

in_a_launcher! {
    fn as_many_domains_as_there_are_keys_and_then_an_error(space) {
        let keys = space.isolation() != Isolation::None;
        // Two of them offer a function, whose arena takes a key as a domain does.
        let offering: Vec<_> = (0..2)
            .map(|_| {
                let mut callee = start(space, &c("callee.c"), &["1", "bytes"]);
                callee.ready();
                callee
            })
            .collect();
        let image = c("end.c");
        let start_one = || {
            let (stays, output) = program(&image, &["stay"]);
            Domain::start(space, stays).map(|domain| (domain, output))
        };
        let mut running = Vec::new();
        let why = loop {
            match start_one() {
                Ok(domain) => running.push(domain),
                Err(why) => break why,
            }
        };
        let all = offering.len() + running.len();
        match (space.isolation(), why) {
            // Sixteen keys, of which the kernel has one or two, and signal stacks maybe one.
            (Isolation::ProtectionKeys, StartError::NoKeys { domains }) => {
                assert_eq!(domains, all);
                assert!((14..=15).contains(&domains), "{domains}");
            }
            (Isolation::SharedSignalStacks, StartError::NoKeys { domains }) => {
                assert_eq!(domains, all);
                assert!((13..=14).contains(&domains), "{domains}");
            }
            (Isolation::None, StartError::Full) => assert_eq!(all, 64),
            other => panic!("{other:?}"),
        }
        let take = || Function::take(launcher(space), 7);
        let without_a_key = take().err().and_then(|why| why.raw_os_error());
        assert_eq!(without_a_key, keys.then_some(libc::ENOSPC));
        // A key comes back with its domain, and the arena has it.
        running.pop();
        let function = take().unwrap();
        match start_one() {
            Err(StartError::NoKeys { domains }) if keys => assert_eq!(domains, all - 1),
            Ok(_) if !keys => {}
            other => panic!("{:?}", other.map(drop)),
        }
        // It comes back with the arena.
        drop(function);
        let _again = start_one().unwrap();
    }
}
