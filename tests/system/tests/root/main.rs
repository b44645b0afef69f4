//! What needs several users at once, and so root. Built with the feature `root` only; the step `root` of
//! `cargo xtask test` runs it.

mod attacks;
mod containers;
mod functions;
mod hosts;
mod many;
mod origins;
mod others;
mod workloads;

use std::io::IoSlice;
use std::mem::MaybeUninit;

use partywall_abi::control::{Message, SessionMessage};
use partywall_testkit::{Conversation, Host, Process, alone, proof};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred};
use rustix::process::{Pid, Uid, getegid, geteuid, getpid};

const CLIENT: &str = env!("CARGO_BIN_EXE_st-client");
const SERVER: &str = env!("CARGO_BIN_EXE_st-server");

/// A client of another user.
fn client_of(host: &Host, uid: u32, arguments: &[&str]) -> Process {
    Process::start(CLIENT, &host.socket, arguments, &[], Some(uid))
}

/// Root alone may say so to the kernel, and the test was run by others alone, who may not.
#[test]
fn forged_credentials_are_refused() {
    let _alone = alone();
    let host = Host::open();
    let (own, other) = (geteuid(), Uid::from_raw(2001));
    assert!(own.is_root(), "needs root, whom the kernel lets say it");
    let proves_as = |pid, uid| {
        let p = Conversation::connect(&host.socket).unwrap();
        let nonce = p.challenge().unwrap();
        let proof = proof(nonce).encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let says = UCred { pid, uid, gid: getegid() };
        assert!(ancillary.push(SendAncillaryMessage::ScmCredentials(says)));
        let data = [IoSlice::new(&proof)];
        rustix::net::sendmsg(&p, &data, &mut ancillary, SendFlags::empty()).unwrap();
        (p.next().unwrap().0, p)
    };
    // Who says what is so is welcome.
    let (welcome, _p) = proves_as(getpid(), own);
    assert!(matches!(welcome, Message::Session(SessionMessage::Welcome { .. })), "{welcome:?}");
    for (pid, uid) in [(Pid::INIT, own), (getpid(), other)] {
        let (refused, p) = proves_as(pid, uid);
        let says = |text: &str| text.contains("another process than the one that connected");
        let is_why = matches!(&refused, Message::Session(SessionMessage::Refused { code: 14, text, .. }) if says(text));
        assert!(is_why, "{refused:?}");
        assert!(p.next_or_end().unwrap().is_none());
    }
}
