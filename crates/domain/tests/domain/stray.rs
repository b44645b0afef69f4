//! Callees gone astray, in the gate's page and with rights of their own making: it is their own end, and
//! nobody else's. Where the kernel writes signal frames with the rights of the code that it interrupts
//! (before Linux 6.12), odd rights end the caller as well, whether domains have keys or not, and nothing else
//! does.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use iced_x86::{Decoder, DecoderOptions};
use partywall_abi::domain::GateStatus;
use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::machine::keys_come_to;

use crate::gate::{Callee, pair_for};
use crate::host::{Running, c, in_a_launcher, in_time, start};

const LONG: Duration = Duration::from_secs(5);

/// Where the instructions of the gate's page begin.
fn instructions(space: &AddressSpace) -> Vec<u64> {
    let callee = Callee::start(space, &c("callee.c"), 1);
    let word = |at| callee.call([42, at, 0]).unwrap().to_le_bytes();
    let page: Vec<u8> = (0..4096).step_by(8).flat_map(word).collect();
    // What the assembler fills it up with is of no interest.
    let end = page.windows(16).rposition(|bytes| bytes.starts_with(&[0x0f, 0x0b])).unwrap() as u64;
    let decoder = Decoder::new(64, &page, DecoderOptions::NONE);
    decoder.into_iter().map(|instruction| instruction.ip()).take_while(|at| *at <= end).collect()
}

/// A caller that is to go astray at these places, one call at each.
fn caller(space: &AddressSpace, places: &[u64]) -> Running {
    let places: Vec<_> = places.iter().map(u64::to_string).collect();
    let arguments: Vec<_> =
        ["astray"].into_iter().chain(places.iter().map(String::as_str)).collect();
    let mut caller = start(space, &c("caller.c"), &arguments);
    caller.ready();
    caller
}

/// Whether a signal that comes to code without rights to its stack ends the process.
fn rights_stop_signals(space: &AddressSpace) -> bool {
    match space.isolation() {
        // It has taken all keys: there is none left to try out.
        Isolation::ProtectionKeys => false,
        Isolation::SharedSignalStacks => true,
        _ => keys_come_to() == Ok(Isolation::SharedSignalStacks),
    }
}

in_a_launcher! {
    fn a_callee_astray_in_the_gate_is_its_own_end_and_not_its_callers(space) {
        let places = instructions(space);
        assert!(places.len() > 500, "{} instructions", places.len());
        let image = c("callee.c");
        let mut one = caller(space, &places);
        let mut ended = [0; 10];
        let mut killed = Vec::new();
        for (at, place) in places.iter().enumerate() {
            let mut callee = start(space, &image, &["1", &one.domain.pid().to_string()]);
            callee.ready();
            let line = in_time(LONG, &format!("a call astray at {place}"), || one.line());
            if let Some(status) = line.trim().strip_prefix(&format!("{place} ")) {
                ended[status.parse::<usize>().unwrap()] += 1;
                continue;
            }
            let status = one.domain.wait().unwrap();
            assert_eq!(status.signal(), Some(libc::SIGSEGV), "at {place}: {line:?}");
            assert!(rights_stop_signals(space), "the caller dies at {place}");
            killed.push(place);
            one = caller(space, &places[at + 1..]);
        }
        one.says("ok\n");
        println!("{} places, calls by status: {ended:?}, callers killed at {killed:?}", places.len());
        assert!(ended[GateStatus::Fault as usize] > places.len() / 2, "{ended:?}");
        // Those from which it comes to rights of its own making.
        assert!(killed.len() < places.len() / 10, "{killed:?}");
    }
}

in_a_launcher! {
    /// It has closed everything to itself, and then it fails, or returns: the gate reads its own memory
    /// before it opens that again.
    fn rights_that_a_failing_callee_leaves_are_not_its_callers(space) {
        for way in ["41", "44"] {
            let (caller, callee) = pair_for(space, &["rights", way]);
            let (status, said) = caller.end();
            if rights_stop_signals(space) {
                assert_eq!(status.signal(), Some(libc::SIGSEGV), "{way}: {said}");
                continue;
            }
            assert_eq!((status.code(), said.as_str()), (Some(0), "ok\n"), "{way}: {status}");
            assert!(callee.running.domain.is_poisoned(), "{way}");
        }
    }
}
