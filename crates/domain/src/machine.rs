#![allow(unsafe_code, reason = "asks the kernel by system calls that have no safe wrapper")]
//! What this machine offers to keep programs apart, each found out by trying it, not by its name or
//! version.

use std::fmt;
use std::fs;
use std::path::Path;

use partywall_abi::security::Isolation;

use crate::keys::{self, Frames};
use crate::space::SpaceError;
use crate::sys::{self, Errno};

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
    /// Memory that not even the kernel reads (memfd_secret(2)).
    MemfdSecret,
    /// Rules for files and networks that a process gives itself (landlock(7)).
    Landlock,
    /// Enclaves.
    Sgx,
    /// Huge pages where memory allows (transparent huge pages).
    HugePages,
    /// Control groups, version 2.
    Cgroups2,
    /// A Docker daemon.
    Docker,
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
            Self::MemfdSecret => "memfd_secret",
            Self::Landlock => "Landlock",
            Self::Sgx => "SGX",
            Self::HugePages => "huge pages",
            Self::Cgroups2 => "cgroup v2",
            Self::Docker => "Docker",
        })
    }
}

impl Feature {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 12] = [
        Self::ProtectionKeys,
        Self::ClosedSignalStacks,
        Self::Fsgsbase,
        Self::SyscallUserDispatch,
        Self::Seccomp,
        Self::Membarrier,
        Self::MemfdSecret,
        Self::Landlock,
        Self::Sgx,
        Self::HugePages,
        Self::Cgroups2,
        Self::Docker,
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
            Self::MemfdSecret => memfd_secret(),
            Self::Landlock => landlock(),
            Self::Sgx => file("/dev/sgx_enclave"),
            Self::HugePages => huge_pages(),
            Self::Cgroups2 => file("/sys/fs/cgroup/cgroup.controllers"),
            Self::Docker => docker(),
        };
        Finding { feature: self, there, seen }
    }
}

/// How many domains protection keys can keep apart here, if they have no arenas, which take keys as
/// well; an error says why they cannot. [`crate::space::Space::new`] tries them out.
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
        Frames::RightsLost => Err(SpaceError::RightsLost.to_string()),
    }
}

/// What a signal comes to on a closed stack.
fn frames() -> Result<Frames, String> {
    let key = keys::allocate().map_err(no_keys)?;
    let frames = keys::frames(key);
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

/// Why there are no keys, when the kernel said `why`: pkey_alloc(2) has one error number for a processor
/// without any and for keys that are taken, and by the second time it is asked not always the same.
pub(crate) fn no_keys(why: Errno) -> String {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const LEAF: u32 = 7;
    let features = if __cpuid(0).eax < LEAF { 0 } else { __cpuid_count(LEAF, 0).ecx };
    why_no_keys(features, why)
}

/// The same on a processor with these features: CPUID.(EAX=7,ECX=0):ECX (Intel SDM volume 2, CPUID).
fn why_no_keys(features: u32, why: Errno) -> String {
    const PKU: u32 = 1 << 3;
    const OSPKE: u32 = 1 << 4;
    if features & PKU == 0 {
        "the processor shows none, as where a virtual machine hides them".to_owned()
    } else if features & OSPKE == 0 {
        "the kernel leaves those of the processor off; it is to be started without `nopku`"
            .to_owned()
    } else {
        std::io::Error::from(why).to_string()
    }
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
        Err(why) => (false, std::io::Error::from(why).to_string()),
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

fn memfd_secret() -> (bool, String) {
    let made = call(libc::SYS_memfd_secret, [0; 6]);
    if let Ok(fd) = made {
        let _closed = call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
    told(made, "can be made")
}

fn landlock() -> (bool, String) {
    const VERSION: u64 = 1;
    match call(libc::SYS_landlock_create_ruleset, [0, 0, VERSION, 0, 0, 0]) {
        Ok(version) => (true, format!("version {version}")),
        Err(why) => (false, std::io::Error::from(why).to_string()),
    }
}

fn file(path: &str) -> (bool, String) {
    let there = Path::new(path).exists();
    (there, if there { path.to_owned() } else { format!("no {path}") })
}

fn huge_pages() -> (bool, String) {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    match fs::read_to_string(path) {
        Ok(text) => {
            let chosen = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
            (chosen != "never", chosen)
        }
        Err(why) => (false, format!("{path}: {why}")),
    }
}

fn docker() -> (bool, String) {
    use std::os::unix::net::UnixStream;
    let path = "/var/run/docker.sock";
    match UnixStream::connect(path) {
        Ok(_) => (true, format!("answers at {path}")),
        Err(why) => (false, format!("{path}: {why}")),
    }
}

#[cfg(test)]
mod tests {
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
    fn what_signal_stacks_come_to_is_told() {
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
    fn what_domains_stand_on_is_found_where_they_run() {
        for feature in [Feature::Fsgsbase, Feature::SyscallUserDispatch, Feature::Seccomp] {
            let finding = feature.look();
            assert!(finding.there, "{finding:?}");
        }
    }

    #[test]
    fn without_keys_the_processor_or_the_kernel_is_named() {
        let why = |features| why_no_keys(features, Errno(libc::ENOSPC));
        assert!(why(0).starts_with("the processor shows none"), "{}", why(0));
        assert!(why(1 << 3).contains("without `nopku`"), "{}", why(1 << 3));
        assert_eq!(why(3 << 3), "No space left on device (os error 28)");
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
