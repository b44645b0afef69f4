//! Functions over bytes: arguments and answers in place, between just two domains.

use std::time::{Duration, Instant};

use partywall_abi::domain::{GateStatus, HALF};
use partywall_guest::bytes::{CallError, Function};

use crate::host::{c, in_a_launcher, mapped, start};
use crate::launcher::launcher;

const LONG: Duration = Duration::from_secs(3);

in_a_launcher! {
    fn bytes_go_there_and_come_back(space) {
        let mut callee = start(space, &c("callee.c"), &["1", "bytes"]);
        callee.ready();
        let mut function = Function::take(launcher(space), 7).unwrap();
        let begin = Instant::now();
        while function.call(b"", LONG, <[u8]>::len) == Err(CallError::Gate(GateStatus::Busy)) {
            assert!(begin.elapsed() < LONG, "no thread is lent");
        }
        for bytes in [0, 1, 4095, 4096, 65_537, 3 << 20] {
            let request: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let right = |reply: &[u8]| {
                let one_more = |(at, byte): (usize, &u8)| *byte == (at as u8).wrapping_add(1);
                reply.len() == bytes && reply.iter().enumerate().all(one_more)
            };
            assert_eq!(function.call(&request, LONG, right), Ok(true), "{bytes}");
        }
        let long = HALF as usize + 1;
        assert_eq!(function.call_with(long, |_| {}, LONG, |_| {}), Err(CallError::TooLong(long)));
        // A panic of the reader leaves the arena closed, and the function usable.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            function.call(b"x", LONG, |_| panic!("reading"))
        }));
        assert!(panicked.is_err());
        assert_eq!(function.call(b"x", LONG, |reply| reply[0]), Ok(b'y'));
        // The callee is gone: what it has written stays readable until the next call.
        drop(callee);
        assert_eq!(function.call(b"x", LONG, |_| {}), Err(CallError::Gate(GateStatus::Closed)));
    }
}

in_a_launcher! {
    fn the_first_call_of_a_thread_can_be_one_over_bytes(space) {
        let mut callee = start(space, &c("callee.c"), &["2", "bytes"]);
        callee.ready();
        let mut function = Function::take(launcher(space), 7).unwrap();
        while function.call(b"", LONG, <[u8]>::len) == Err(CallError::Gate(GateStatus::Busy)) {}
        std::thread::sleep(Duration::from_millis(100));
        let first = std::thread::spawn(move || function.call(b"ab", LONG, <[u8]>::to_vec));
        assert_eq!(first.join().unwrap(), Ok(b"bc".to_vec()));
    }
}

in_a_launcher! {
    fn calls_over_bytes_nest(space) {
        let image = c("callee.c");
        let mut functions = Vec::new();
        let mut callees = Vec::new();
        for _ in 0..2 {
            let mut callee = start(space, &image, &["2", "bytes"]);
            callee.ready();
            let mut function = Function::take(launcher(space), 7).unwrap();
            while function.call(b"", LONG, <[u8]>::len) == Err(CallError::Gate(GateStatus::Busy)) {}
            functions.push(function);
            callees.push(callee);
        }
        let [first, second] = &mut functions[..] else { unreachable!("two") };
        let nested = first.call(b"ab", LONG, |answer| {
            let inner = second.call(answer, LONG, <[u8]>::to_vec);
            (inner, answer.to_vec())
        });
        assert_eq!(nested, Ok((Ok(b"cd".to_vec()), b"bc".to_vec())));
    }
}

in_a_launcher! {
    fn an_arena_goes_with_its_link(space) {
        let mut callee = start(space, &c("callee.c"), &["1", "bytes"]);
        callee.ready();
        let beyond = space.range().end..u64::MAX >> 17;
        let before = mapped(beyond.clone());
        let function = Function::take(launcher(space), 7).unwrap();
        assert!(mapped(beyond.clone()) > before);
        drop(function);
        // A signal stack may have come.
        assert!(mapped(beyond) <= before + 1);
    }
}
