#![allow(unsafe_code, reason = "reads the register of rights")]
//! Protection keys (pkeys(7)), as the launcher of domains and the workers of functions have them.
//!
//! Each page has one of 16 keys; those of a program have key 0 unless it gives them another. The rights of
//! a thread to all keys are one register (PKRU, Intel SDM volume 3, 4.6.2) with two bits a key: the lower
//! denies access, the upper writing. Instructions are fetched whatever it says. Code of a process writes
//! the register by WRPKRU, and by XRSTOR where part 9 of the state is asked for.
//!
//! Who uses this makes the system calls by itself, since code of the launcher may run where no C library
//! may be touched.

/// How many keys there are, key 0 with them.
pub const KEYS: u32 = 16;

/// Rights that deny access to all of them.
pub const CLOSED: u32 = 0x5555_5555;

/// The rights that the kernel gives to a program that begins, and to signal handlers: key 0 alone
/// (arch/x86/mm/pkeys.c, `init_pkru_value`).
pub const FIRST: u32 = CLOSED & !denied(0);

/// Rights that deny access to a key.
pub const fn denied(key: u32) -> u32 {
    1 << (2 * key)
}

/// Rights that deny writing with a key.
pub const fn unwritable(key: u32) -> u32 {
    2 << (2 * key)
}

/// Takes a key from the kernel, which nobody has yet. The calling thread has rights to it only if it is
/// `open`; none is returned where what has answered is not the kernel.
///
/// # Errors
/// The call's: pkey_alloc(2) has one number for a processor without keys and for keys that are taken.
pub fn allocate<E>(
    call: impl FnOnce(i64, [u64; 6]) -> Result<u64, E>,
    open: bool,
) -> Result<Option<u32>, E> {
    const PKEY_DISABLE_ACCESS: u64 = 1;
    let rights = if open { 0 } else { PKEY_DISABLE_ACCESS };
    let key = call(libc::SYS_pkey_alloc, [0, rights, 0, 0, 0, 0])?;
    Ok(u32::try_from(key).ok().filter(|key| (1..KEYS).contains(key)))
}

/// Gives a key back to the kernel that no page has.
///
/// # Errors
/// The call's.
pub fn free<E>(call: impl FnOnce(i64, [u64; 6]) -> Result<u64, E>, key: u32) -> Result<(), E> {
    call(libc::SYS_pkey_free, [key.into(), 0, 0, 0, 0, 0]).map(drop)
}

/// Gives pages a key, with the protection that they have.
///
/// # Errors
/// The call's.
pub fn tag<E>(
    call: impl FnOnce(i64, [u64; 6]) -> Result<u64, E>,
    (start, bytes): (u64, u64),
    protection: u64,
    key: u32,
) -> Result<(), E> {
    call(libc::SYS_pkey_mprotect, [start, bytes, protection, key.into(), 0, 0]).map(drop)
}

/// The rights of the calling thread. Only where there are keys.
pub fn rights() -> u32 {
    let rights: u32;
    // SAFETY: reads a register; the kernel has turned the instruction on with the first key.
    unsafe {
        core::arch::asm!("rdpkru", out("eax") rights, out("edx") _, in("ecx") 0, options(nomem, nostack));
    }
    rights
}

/// What the processor shows of protection keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// None.
    None,
    /// It has some, and the kernel leaves them off.
    Off,
    /// It has some, and the kernel has turned them on.
    On,
}

impl Shown {
    /// By this processor.
    pub fn look() -> Self {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        const LEAF: u32 = 7;
        Self::of(if __cpuid(0).eax < LEAF { 0 } else { __cpuid_count(LEAF, 0).ecx })
    }

    /// By CPUID.(EAX=7,ECX=0):ECX (Intel SDM volume 2, CPUID).
    fn of(features: u32) -> Self {
        const PKU: u32 = 1 << 3;
        const OSPKE: u32 = 1 << 4;
        match (features & PKU, features & OSPKE) {
            (0, _) => Self::None,
            (_, 0) => Self::Off,
            _ => Self::On,
        }
    }

    /// Why there are no keys; none where it is the kernel's affair.
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Self::None => Some("the processor shows none, as where a virtual machine hides them"),
            Self::Off => Some(
                "the kernel leaves those of the processor off; it is to be started without `nopku`",
            ),
            Self::On => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_or_the_kernel_is_named() {
        assert!(Shown::of(0).why_not().is_some_and(|why| why.starts_with("the processor")));
        assert!(Shown::of(1 << 3).why_not().is_some_and(|why| why.contains("without `nopku`")));
        assert_eq!((Shown::of(3 << 3), Shown::On.why_not()), (Shown::On, None));
    }

    #[test]
    fn a_key_that_is_none_is_not_taken() {
        let answers = |key: u64| allocate(|_, _| Ok::<_, ()>(key), true);
        assert_eq!(
            [0, 1, 15, 16, 1 << 32 | 1].map(answers),
            [Ok(None), Ok(Some(1)), Ok(Some(15)), Ok(None), Ok(None)]
        );
        assert_eq!(FIRST | denied(0), CLOSED);
        assert_eq!((denied(1), unwritable(1)), (4, 8));
    }
}
