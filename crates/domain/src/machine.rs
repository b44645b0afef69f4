#![allow(unsafe_code, reason = "asks the kernel by system calls that have no safe wrapper")]
//! What this machine offers to domains, each found out by trying it, not by its name or
//! version.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;

use partywall_abi::security::Isolation;
use partywall_keys::Shown;

use crate::elf::PAGE;
use crate::keys;
use crate::sigaction;
use crate::sys::{self, Errno};
use crate::table::TABLES;

/// What keeps isolation `fault` from being had where a signal costs a thread its rights.
pub(crate) const RIGHTS_LOST: &str = "isolation `fault` needs a kernel that gives a thread its rights to \
     protection keys back after a signal, and this one does not (Linux 6.12.0 to 6.12.4 on some \
     processors); update it";

/// One thing that a machine may offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Protection keys: rights to pages that change without a system call (pkeys(7)).
    ProtectionKeys,
    /// Signal frames that the kernel writes whatever rights the interrupted code has (Linux 6.12), so that
    /// stacks of signal handlers need not be open to all domains.
    ClosedSignalStacks,
    /// Instructions for the base of thread-local storage.
    Fsgsbase,
    /// Syscall User Dispatch (Linux 5.11).
    SyscallUserDispatch,
    /// System-call filters (seccomp(2)).
    Seccomp,
    /// Barriers in all threads (membarrier(2)).
    Membarrier,
}

/// Whether there is one, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked for.
    pub feature: Feature,
    /// Whether it is there.
    pub there: bool,
    /// What was seen: a number, a version, an error.
    pub seen: String,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProtectionKeys => "protection keys",
            Self::ClosedSignalStacks => "closed signal stacks",
            Self::Fsgsbase => "FSGSBASE",
            Self::SyscallUserDispatch => "Syscall User Dispatch",
            Self::Seccomp => "seccomp",
            Self::Membarrier => "membarrier",
        })
    }
}

impl Feature {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 6] = [
        Self::ProtectionKeys,
        Self::ClosedSignalStacks,
        Self::Fsgsbase,
        Self::SyscallUserDispatch,
        Self::Seccomp,
        Self::Membarrier,
    ];

    /// Looks for it.
    pub fn look(self) -> Finding {
        let (there, seen) = match self {
            Self::ProtectionKeys => protection_keys(),
            Self::ClosedSignalStacks => signal_stacks(),
            Self::Fsgsbase => fsgsbase(),
            Self::SyscallUserDispatch => told(prctl(59, 0), "can be turned on"),
            Self::Seccomp => seccomp(),
            Self::Membarrier => told(call(libc::SYS_membarrier, [0; 6]), "answers"),
        };
        Finding { feature: self, there, seen }
    }
}

/// How many domains protection keys can keep apart here, if they have no arenas, which take keys as
/// well; an error says why they cannot. [`crate::address_space::AddressSpace::new`] tries them out.
pub fn keys_usable() -> Result<usize, String> {
    // One is for signal stacks, where those are open to all.
    let taken = match keys_come_to()? {
        Isolation::ProtectionKeys => 0,
        _ => 1,
    };
    match free_keys() {
        Ok(keys) if keys > taken => Ok(keys - taken),
        Ok(_) => Err("all but one are taken".to_owned()),
        Err(why) => Err(no_keys(why)),
    }
}

/// What isolation `protection-keys` comes to here: [`Isolation::ProtectionKeys`], or
/// [`Isolation::SharedSignalStacks`] on kernels before 6.12; an error says why it cannot be had.
pub fn keys_come_to() -> Result<Isolation, String> {
    match frames()? {
        Frames::Written => Ok(Isolation::ProtectionKeys),
        Frames::NotWritten => Ok(Isolation::SharedSignalStacks),
        Frames::RightsLost => Err(RIGHTS_LOST.to_owned()),
    }
}

/// What a signal comes to on a closed stack.
fn frames() -> Result<Frames, String> {
    let key = keys::allocate().map_err(no_keys)?;
    let frames = frames_of(key);
    keys::free(key);
    frames.map_err(|why| format!("trying a protection key out: {why}"))
}

fn signal_stacks() -> (bool, String) {
    match frames() {
        Ok(Frames::Written) => (true, "a signal's frame is written to a closed stack".to_owned()),
        Ok(Frames::NotWritten) => {
            (false, "they are open to all domains (the kernel is older than 6.12)".to_owned())
        }
        Ok(Frames::RightsLost) => (false, "a signal costs a thread its rights".to_owned()),
        Err(why) => (false, why),
    }
}

/// Whether a page that is closed by `key` can be read, as it can where somebody else answers for the
/// kernel (seccomp(2)).
///
/// # Errors
/// What failed before.
pub(crate) fn read_closed(key: u32) -> io::Result<bool> {
    let read = |page: u64| {
        // SAFETY: the page is there; that it cannot be read is the question.
        let _byte = unsafe { (page as *const u8).read_volatile() };
        0
    };
    Ok(with_closed(key, PAGE, read)? == Some(0))
}

/// What a signal comes to on a stack that is closed to the code which it interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frames {
    /// The kernel writes the frame all the same, and gives the rights back.
    Written,
    /// It ends the process.
    NotWritten,
    /// It writes it, and the rights are not those from before afterwards (Linux 6.12.0 to 6.12.4 on some
    /// processors).
    RightsLost,
}

/// Finds that out, by a signal to one of our handlers.
///
/// # Errors
/// What failed before.
pub(crate) fn frames_of(key: u32) -> io::Result<Frames> {
    let signalled = |stack: u64| {
        // The tables of the copy, which ends: handlers begin as they do with keys.
        TABLES.keys.store(1, Ordering::Relaxed);
        TABLES.handler_rights.store(keys::FIRST, Ordering::Relaxed);
        let before = keys::rights();
        match sigaction::try_out(stack, STACK) {
            Err(Errno(number)) => number,
            Ok(()) if keys::rights() == before => 0,
            Ok(()) => LOST,
        }
    };
    const STACK: u64 = 64 << 10;
    const LOST: i32 = 255;
    match with_closed(key, STACK, signalled)? {
        Some(0) => Ok(Frames::Written),
        Some(LOST) => Ok(Frames::RightsLost),
        Some(number) => Err(io::Error::from_raw_os_error(number)),
        None => Ok(Frames::NotWritten),
    }
}

/// Does something with pages that are closed by `key`, in a process of its own, which makes system calls
/// alone: what it returns, or nothing if a signal ends it.
fn with_closed(key: u32, bytes: u64, body: impl FnOnce(u64) -> i32) -> io::Result<Option<i32>> {
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let new = [0, bytes, rights as u64, flags as u64, u64::MAX, 0];
    // SAFETY: new pages.
    let page = unsafe { sys::call(libc::SYS_mmap, new)? };
    let tried =
        keys::tag(page, bytes, rights as u64, key).map_err(io::Error::from).and_then(|()| {
            // SAFETY: the child makes system calls alone.
            let child = unsafe { libc::fork() };
            if child < 0 {
                return Err(io::Error::last_os_error());
            }
            if child == 0 {
                // SAFETY: no core of what is a copy of this process.
                let _no_core = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
                let _default = sigaction::Action::DEFAULT.install(libc::SIGSEGV as u64);
                let code = body(page);
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) };
            }
            let mut status = 0;
            loop {
                // SAFETY: waits for the child.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                let why = io::Error::last_os_error();
                match waited {
                    -1 if why.kind() == io::ErrorKind::Interrupted => {}
                    -1 => return Err(why),
                    _ => return Ok(libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))),
                }
            }
        });
    // SAFETY: the pages that were mapped above.
    let _freed = unsafe { sys::call(libc::SYS_munmap, [page, bytes, 0, 0, 0, 0]) };
    tried
}

/// Why there are no keys, when the kernel said `why`: pkey_alloc(2) has one error number for a processor
/// without any and for keys that are taken, and by the second time it is asked not always the same.
pub(crate) fn no_keys(why: Errno) -> String {
    why_no_keys(Shown::look(), why)
}

/// Whether code here can change its rights to protection keys, whether domains have keys or not.
pub(crate) fn has_rights() -> bool {
    Shown::look() == Shown::On
}

/// The same on a processor that shows this.
fn why_no_keys(shown: Shown, why: Errno) -> String {
    shown.why_not().map_or_else(|| io::Error::from(why).to_string(), str::to_owned)
}

fn call(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: the calls of this module ask, or make something that they close again.
    unsafe { sys::call(number, arguments) }
}

fn prctl(option: u64, value: u64) -> Result<u64, Errno> {
    call(libc::SYS_prctl, [option, value, 0, 0, 0, 0])
}

fn told(answer: Result<u64, Errno>, yes: &str) -> (bool, String) {
    match answer {
        Ok(_) => (true, yes.to_owned()),
        Err(why) => (false, io::Error::from(why).to_string()),
    }
}

fn protection_keys() -> (bool, String) {
    match free_keys() {
        Ok(keys) => (true, format!("{keys} keys")),
        Err(why) => (false, no_keys(why)),
    }
}

/// How many keys a process can have, by taking them all; an error when there is none.
fn free_keys() -> Result<usize, Errno> {
    let (taken, why) = keys::allocate_all();
    taken.iter().copied().for_each(keys::free);
    if taken.is_empty() { Err(why) } else { Ok(taken.len()) }
}

fn fsgsbase() -> (bool, String) {
    // SAFETY: looks a number up.
    let there = unsafe { libc::getauxval(libc::AT_HWCAP2) } & 2 != 0;
    (there, if there { "usable" } else { "not announced by the kernel (AT_HWCAP2)" }.to_owned())
}

fn seccomp() -> (bool, String) {
    let action = libc::SECCOMP_RET_TRAP;
    let at = &raw const action as u64;
    let available = u64::from(libc::SECCOMP_GET_ACTION_AVAIL);
    told(call(libc::SYS_seccomp, [available, 0, at, 0, 0, 0]), "filters can trap calls")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Two tests that take all keys at once would each see some of them.
    static KEYS: Mutex<()> = Mutex::new(());

    /// As the kernel says that the processor has them. The machine of `cargo xtask vm-test` is there for
    /// its keys: it must not do without.
    #[test]
    fn all_protection_keys_are_there_where_they_are_promised() {
        let _alone = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = Feature::ProtectionKeys.look();
        let flags = fs::read_to_string("/proc/cpuinfo").unwrap();
        assert_eq!(keys.there, flags.split_whitespace().any(|flag| flag == "ospke"), "{keys:?}");
        if std::env::var("PARTYWALL_VM").as_deref() != Ok("1") {
            return;
        }
        assert!(keys.there && keys.seen == "15 keys", "{keys:?}");
        let dir = std::env::var_os("PARTYWALL_VM_LEFT").expect("set beside PARTYWALL_VM");
        let line = |finding: Finding| {
            let there = if finding.there { "yes" } else { "no" };
            format!("{}: {there}, {}\n", finding.feature, finding.seen)
        };
        let findings: String = Feature::ALL.map(|feature| line(feature.look())).concat();
        fs::write(Path::new(&dir).join("machine.txt"), findings).unwrap();
    }

    #[test]
    fn signal_stacks_level_is_reported() {
        let _alone = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
        let finding = Feature::ClosedSignalStacks.look();
        match keys_come_to() {
            Ok(Isolation::ProtectionKeys) => assert!(finding.there, "{finding:?}"),
            Ok(isolation) => {
                assert_eq!(isolation, Isolation::SharedSignalStacks);
                assert!(
                    !finding.there && finding.seen.contains("open to all domains"),
                    "{finding:?}"
                );
            }
            Err(why) => assert!(!finding.there && finding.seen == why, "{finding:?} {why}"),
        }
    }

    #[test]
    fn needed_features_are_found_where_domains_run() {
        for feature in [Feature::Fsgsbase, Feature::SyscallUserDispatch, Feature::Seccomp] {
            let finding = feature.look();
            assert!(finding.there, "{finding:?}");
        }
    }

    #[test]
    fn without_keys_the_processor_or_the_kernel_is_named() {
        let why = |shown| why_no_keys(shown, Errno(libc::ENOSPC));
        assert!(why(Shown::None).starts_with("the processor shows none"), "{}", why(Shown::None));
        assert!(why(Shown::Off).contains("without `nopku`"), "{}", why(Shown::Off));
        assert_eq!(why(Shown::On), "No space left on device (os error 28)");
    }

    #[test]
    fn every_finding_says_what_was_seen_and_looking_changes_nothing() {
        let _alone = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
        let look = || Feature::ALL.map(Feature::look);
        let first = look();
        assert!(first.iter().all(|finding| !finding.seen.is_empty()));
        assert_eq!(first, look());
    }
}
