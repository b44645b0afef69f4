//! Callees gone astray, in the gate's page and with rights of their own making: it is their own end, and
//! nobody else's.

use std::time::Duration;

use iced_x86::{Decoder, DecoderOptions};
use partywall_abi::domain::Status;
use partywall_domain::space::Space;

use crate::gate::{Callee, pair};
use crate::host::{c, in_a_launcher, in_time, is_emulated, start};

const LONG: Duration = Duration::from_secs(5);

/// Where instructions of the gate's page begin.
fn instructions(space: &Space) -> Vec<u64> {
    let callee = Callee::start(space, &c("callee.c"), 1);
    let word = |at| callee.call([42, at, 0]).unwrap().to_le_bytes();
    let page: Vec<u8> = (0..4096).step_by(8).flat_map(word).collect();
    let decoder = Decoder::new(64, &page, DecoderOptions::NONE);
    let code = decoder.into_iter().take_while(|instruction| instruction.ip() < code_of(&page));
    code.map(|instruction| instruction.ip()).collect()
}

/// How long the page's code is: what the assembler fills it up with is of one kind.
fn code_of(page: &[u8]) -> u64 {
    let filled = page.iter().rev().take_while(|byte| **byte == page[page.len() - 1]).count();
    (page.len() - filled) as u64
}

in_a_launcher! {
    fn a_callee_astray_in_the_gate_is_its_own_end_and_not_its_callers(space) {
        let all = instructions(space);
        assert!(all.len() > 300, "{} instructions", all.len());
        // Emulation is slow: a part of them in each run, and those before and after what enters the kernel
        // or sets rights in all.
        let places: Vec<_> = all.iter().map(u64::to_string).collect();
        let arguments: Vec<_> = ["astray"].into_iter().chain(places.iter().map(String::as_str)).collect();
        let image = c("callee.c");
        let mut caller = start(space, &c("caller.c"), &arguments);
        caller.ready();
        let pid = caller.domain.pid().to_string();
        let mut ended = [0; 10];
        for place in &places {
            let mut callee = start(space, &image, &["1", &pid]);
            callee.ready();
            let line = in_time(LONG, &format!("a call astray at {place}"), || caller.line());
            let status = line.trim().strip_prefix(place).and_then(|rest| rest.trim().parse().ok());
            let status: usize = status.unwrap_or_else(|| {
                panic!("at {place}: {:?} {line:?}", caller.domain.try_wait().unwrap())
            });
            ended[status] += 1;
        }
        caller.says("ok\n");
        println!("{} places, calls by status: {ended:?}", places.len());
        assert!(ended[Status::Fault as usize] > places.len() / 2, "{ended:?}");
        let _ = is_emulated();
    }
}

in_a_launcher! {
    fn rights_that_a_failing_callee_leaves_are_not_its_callers(space) {
        let (caller, callee) = pair(space, "rights");
        let (status, said) = caller.end();
        assert_eq!((status.code(), said.as_str()), (Some(0), "ok\n"), "{status}");
        assert!(callee.running.domain.is_poisoned());
    }
}
