#![allow(unsafe_code, reason = "a signal for the parent's end, and the counter")]
//! A process that is a function, as ATC'18 has it: std, with shared libraries. It is compiled when a run
//! begins. Its arguments are what it is and numbers: `udp` for one that waits, `once` for one that ends.
//!
//! `udp` binds its address, says to the dispatcher that it is there, and answers each datagram of 8 bytes,
//! which is its number, with 16: number and stamp. `once` writes its stamp into its cell (`processes.rs`).

use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::FileExt;

unsafe extern "C" {
    fn prctl(option: i32, signal: u64) -> i32;
    fn sched_setaffinity(pid: i32, bytes: usize, mask: *const u64) -> i32;
}

fn now(boot: u64, ticks: u64, rate: u64) -> u64 {
    // SAFETY: reads a register.
    let counter = unsafe { core::arch::x86_64::_rdtsc() };
    boot + ((u128::from(counter.saturating_sub(ticks)) * u128::from(rate)) >> 32) as u64
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next().expect("a role");
    let numbers: Vec<u64> = arguments.map(|text| text.parse().expect("a number")).collect();
    let [index, parent, cpu, boot, ticks, rate, file] = numbers[..] else { panic!("seven numbers") };
    let stamp = now(boot, ticks, rate);
    // SAFETY: a system call on numbers.
    unsafe { prctl(1, 9) };
    if role == "once" {
        // Its parent is the dispatcher, or was `taskset`, which it replaces.
        let mask = [1_u64 << (cpu % 64)];
        if cpu < 64 {
            // SAFETY: a mask of these bytes.
            unsafe { sched_setaffinity(0, size_of_val(&mask), mask.as_ptr()) };
        }
        let cells = std::fs::File::options().write(true).open(format!("/proc/self/fd/{file}"));
        let cells = cells.expect("the cells");
        let at = index * 128;
        cells.write_all_at(&(index as u32).to_le_bytes(), at + 68).expect("a cell");
        cells.write_all_at(&stamp.to_le_bytes(), at + 72).expect("a cell");
        cells.write_all_at(&1_u32.to_le_bytes(), at + 64).expect("a cell");
        return;
    }
    assert_eq!(u64::from(std::os::unix::process::parent_id()), parent);
    let address = |index: u64| {
        let place = index + 2;
        Ipv4Addr::new(127, 0, (place / 250) as u8, (place % 250) as u8 + 1)
    };
    let dispatcher = (Ipv4Addr::LOCALHOST, file as u16);
    let socket = UdpSocket::bind((address(index), file as u16)).expect("an address");
    let said = |stamp: u64| [index.to_le_bytes(), stamp.to_le_bytes()].concat();
    socket.send_to(&said(0), dispatcher).expect("a dispatcher");
    let mut asked = [0; 8];
    loop {
        let (bytes, from) = socket.recv_from(&mut asked).expect("a datagram");
        let stamp = now(boot, ticks, rate);
        if bytes == 8 && from.port() == file as u16 {
            socket.send_to(&said(stamp), dispatcher).expect("a dispatcher");
        }
    }
}
