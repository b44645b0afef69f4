#![allow(unsafe_code, reason = "memory that two processes share is reached by pointer")]
//! Memory that two processes share, as three types: an [`Outbox`] that this process writes and the
//! other one reads, an [`Inbox`] the other way round, and [`Common`] memory that both write.
//!
//! No reference into shared memory leaves this module except to atomics. Words are read and
//! written atomically; payload is copied, and once only, by instructions that the compiler does
//! not look into, since the other side may be writing at the same moment. What a copy made while
//! the peer writes contains is unspecified, and the layers above check the copy.
//!
//! Loom builds replace the memory by loom's cells, which report every access that is not ordered.

#[cfg(not(loom))]
pub(crate) use mapped::{Common, copy_long};
#[cfg(not(loom))]
pub use mapped::{Inbox, Outbox, Words};
#[cfg(loom)]
pub use modelled::{Inbox, Outbox, pair};

#[cfg(not(loom))]
mod mapped {
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};
    use std::ptr::NonNull;
    use std::time::Duration;

    use bytes::BufMut;
    use partywall_abi::sync::{AtomicU32, AtomicU64, Ordering};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
    use rustix::thread::futex;

    struct Mapping {
        base: NonNull<u8>,
        len: usize,
    }

    // SAFETY: the mapping is process-wide memory; all access goes through atomics or copies, and
    // writers of plain bytes are single by `Producer: &mut self`.
    unsafe impl Send for Mapping {}
    // SAFETY: as above; `&Mapping` gives out atomics only, or copies of what the peer wrote.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        fn new(fd: BorrowedFd<'_>, len: usize, prot: ProtFlags) -> io::Result<Self> {
            // SAFETY: no address is asked for, so no existing mapping is replaced; the caller
            // (memory.rs) has checked that `fd` is a memfd of at least `len` bytes that is sealed
            // against shrinking, so that no access can fault.
            let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
            let base = NonNull::new(base.cast()).expect("mmap never returns null");
            Ok(Self { base, len })
        }

        fn advise(&self, how: Advice) -> io::Result<()> {
            // SAFETY: the range is this value's own mapping, and what is asked for changes no content.
            unsafe { madvise(self.base.as_ptr().cast(), self.len, how) }?;
            Ok(())
        }

        #[inline(always)]
        fn at(&self, at: usize, len: usize) -> *mut u8 {
            assert!(at <= self.len && len <= self.len - at, "access outside the region");
            // SAFETY: the assertion keeps the result inside the mapping.
            unsafe { self.base.as_ptr().add(at) }
        }

        #[inline(always)]
        fn u32(&self, at: usize) -> &AtomicU32 {
            assert!(at.is_multiple_of(4));
            // SAFETY: in bounds (`at`), aligned (the base is page-aligned and `at` a multiple of
            // 4), and every access of this word in either process is atomic.
            unsafe { AtomicU32::from_ptr(self.at(at, 4).cast()) }
        }

        #[inline(always)]
        fn u64(&self, at: usize) -> &AtomicU64 {
            assert!(at.is_multiple_of(8));
            // SAFETY: as for `u32`, with 8 for 4.
            unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
        }
    }

    impl Mapping {
        /// All 64-bit words of it. Of a mapping for reading none may be written.
        #[inline(always)]
        fn words(&self) -> &[AtomicU64] {
            let first = self.base.as_ptr().cast::<AtomicU64>();
            // SAFETY: so many words are in the mapping, whose base is aligned; they live as long as the
            // mapping, and are only accessed atomically, or by instructions that the compiler does not look
            // into.
            unsafe { std::slice::from_raw_parts(first, self.len / 8) }
        }

        /// As [`Inbox::read`].
        #[inline(always)]
        fn read(&self, mut at: usize, mut len: usize, to: &mut impl BufMut) {
            assert!(to.remaining_mut() >= len, "no room for the payload");
            while len > 0 {
                let chunk = to.chunk_mut();
                let n = chunk.len().min(len);
                let from = self.at(at, n);
                // SAFETY: `from` is readable for `n` bytes (checked by `at`), `chunk` writable
                // for `n` bytes, and private memory never overlaps the mapping.
                unsafe { copy_shared(from, chunk.as_mut_ptr(), n) };
                // SAFETY: the copy above initialised `n` bytes of the chunk.
                unsafe { to.advance_mut(n) };
                at += n;
                len -= n;
            }
        }
    }

    /// 64-bit words of memory that another process may be writing.
    #[derive(Clone, Copy, Debug)]
    pub struct Words<'a>(&'a [AtomicU64]);

    impl<'a> Words<'a> {
        /// The first of them.
        pub(crate) fn first(self, count: usize) -> Self {
            Self(&self.0[..count])
        }

        /// How many there are.
        pub fn len(self) -> usize {
            self.0.len()
        }

        /// Whether there are none.
        pub fn is_empty(self) -> bool {
            self.0.is_empty()
        }

        /// The word with this number, in the processor's order of bytes.
        ///
        /// # Panics
        /// When there are not so many.
        #[inline(always)]
        pub fn get(self, number: usize) -> u64 {
            self.0[number].load(Ordering::Relaxed)
        }

        /// All of them, in their order.
        pub fn iter(self) -> impl Iterator<Item = u64> + use<'a> {
            self.0.iter().map(|word| word.load(Ordering::Relaxed))
        }
    }

    /// Memory that this process and others write.
    pub(crate) struct Common(Mapping);

    impl Common {
        /// Maps `len` bytes of `fd` for both. A child that is forked has no mapping.
        ///
        /// # Errors
        /// What mmap(2) and madvise(2) say.
        pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
            let mapping = Mapping::new(fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
            mapping.advise(Advice::LinuxDontFork)?;
            Ok(Self(mapping))
        }

        /// Has every page of it, huge ones where there are some, and in this process's page table.
        ///
        /// # Errors
        /// What madvise(2) says: EFAULT or ENOMEM when a page cannot be had.
        pub(crate) fn populate(&self) -> io::Result<()> {
            if self.0.len >= crate::parcel::HUGE {
                // Where the system offers none there are small ones.
                let _asked = self.0.advise(Advice::LinuxHugepage);
            }
            self.0.advise(Advice::LinuxPopulateWrite)
        }

        /// All words of it.
        pub(crate) fn words(&self) -> &[AtomicU64] {
            self.0.words()
        }

        /// Copies bytes out, as [`Inbox::read`].
        pub(crate) fn read(&self, at: usize, len: usize, to: &mut impl BufMut) {
            self.0.read(at, len, to);
        }

        /// Copies bytes in.
        pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
            let to = self.0.at(at, bytes.len());
            // SAFETY: `to` has room (checked by `at`); `bytes` is private memory, so the ranges do not
            // overlap. The compiler looks into no access to it, so that another thread's is no race.
            unsafe { copy_long(bytes.as_ptr(), to, bytes.len()) };
        }

        /// Sets so many bytes to a word, again and again.
        pub(crate) fn fill(&self, at: usize, len: usize, word: u64) {
            let to = self.0.at(at, len);
            // SAFETY: `to` has room (checked by `at`), and as for `write`.
            unsafe { fill_long(to, len, word) };
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the range is this value's own mapping; borrowed atomics cannot outlive it.
            let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok());
        }
    }

    /// Memory that this process writes and the peer reads.
    pub struct Outbox(Mapping);

    impl Outbox {
        /// Maps `len` bytes of `fd` for writing.
        ///
        /// # Errors
        /// What mmap(2) says.
        pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
            Mapping::new(fd, len, ProtFlags::READ | ProtFlags::WRITE).map(Self)
        }

        /// Has every page of it, and in this process's page table.
        ///
        /// # Errors
        /// What madvise(2) says: EFAULT or ENOMEM when a page cannot be had.
        pub(crate) fn populate(&self) -> io::Result<()> {
            self.0.advise(Advice::LinuxPopulateWrite)
        }

        /// The 32-bit word at byte `at`.
        #[inline(always)]
        pub fn u32(&self, at: usize) -> &AtomicU32 {
            self.0.u32(at)
        }

        /// The 64-bit word at byte `at`.
        #[inline(always)]
        pub fn u64(&self, at: usize) -> &AtomicU64 {
            self.0.u64(at)
        }

        /// Writes three words that a Release store of another word publishes.
        #[inline(always)]
        pub fn write_words(&self, at: usize, words: [u32; 3]) {
            for (i, w) in words.into_iter().enumerate() {
                self.u32(at + 4 * i).store(w, Ordering::Relaxed);
            }
        }

        /// Copies `bytes` to byte `at`, to be published by a Release store.
        ///
        /// One thread at a time: callers hold the ring's only [`crate::ring::Producer`].
        #[inline(always)]
        pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
            let to = self.0.at(at, bytes.len());
            // SAFETY: `to` has room (checked by `at`); `bytes` is private memory, so the ranges
            // do not overlap; no other thread of this process touches these bytes, which belong
            // to a record that is not yet published.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }

        /// Where `len` bytes from `at` on lie.
        #[inline(always)]
        pub(crate) fn pointer(&self, at: usize, len: usize) -> *mut u8 {
            self.0.at(at, len)
        }

        /// Reads up to `len` bytes from `from` straight to byte `at`, to be published by a Release
        /// store. One thread at a time, as [`Outbox::write`].
        ///
        /// # Errors
        /// What read(2) says.
        pub(crate) fn read_from(
            &self,
            at: usize,
            len: usize,
            from: BorrowedFd<'_>,
        ) -> io::Result<usize> {
            let to = self.0.at(at, len);
            // SAFETY: `to` has room (checked by `at`) in memory that no other thread of this
            // process touches: it belongs to a record that is not yet published.
            let n = unsafe { libc::read(from.as_raw_fd(), to.cast(), len) };
            usize::try_from(n).map_err(|_| io::Error::last_os_error())
        }

        /// Copies `len` bytes that this process wrote to another place in its outbox, which they do
        /// not overlap.
        pub(crate) fn move_down(&self, from: usize, to: usize, len: usize) {
            assert!(from.abs_diff(to) >= len, "overlapping places");
            let (from, to) = (self.0.at(from, len), self.0.at(to, len));
            // SAFETY: both are in bounds (checked by `at`), do not overlap, and belong to a
            // record that is not yet published.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }

        /// Wakes whoever waits on the word at `at`, in this or the other process.
        pub fn futex_wake(&self, at: usize) {
            let _woken = futex::wake(self.u32(at), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Memory that the peer writes and this process reads, through a read-only mapping.
    pub struct Inbox(Mapping);

    impl Inbox {
        /// Maps `len` bytes of `fd` for reading.
        ///
        /// # Errors
        /// What mmap(2) says.
        pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
            Mapping::new(fd, len, ProtFlags::READ).map(Self)
        }

        /// Loads the 32-bit word at byte `at`.
        #[inline(always)]
        pub fn load_u32(&self, at: usize, order: Ordering) -> u32 {
            self.0.u32(at).load(order)
        }

        /// Loads the 64-bit word at byte `at`.
        #[inline(always)]
        pub fn load_u64(&self, at: usize, order: Ordering) -> u64 {
            self.0.u64(at).load(order)
        }

        /// All 64-bit words of it.
        pub(crate) fn words(&self) -> Words<'_> {
            Words(self.0.words())
        }

        /// Copies three words.
        #[inline(always)]
        pub fn read_words(&self, at: usize) -> [u32; 3] {
            let word = |i: usize| self.load_u32(at + 4 * i, Ordering::Relaxed);
            [word(0), word(1), word(2)]
        }

        /// Copies `len` bytes from byte `at` to the end of `to`.
        ///
        /// # Panics
        /// When `to` has no room for them.
        #[inline(always)]
        pub fn read(&self, at: usize, len: usize, to: &mut impl BufMut) {
            self.0.read(at, len, to);
        }

        /// Has every page of it, and in this process's page table.
        ///
        /// # Errors
        /// What madvise(2) says: EFAULT or ENOMEM when a page cannot be had.
        pub(crate) fn populate(&self) -> io::Result<()> {
            self.0.advise(Advice::LinuxPopulateRead)
        }

        /// Sleeps while the word at `at` is `expected`, at most for `timeout`.
        ///
        /// Returns on any wake-up, spurious ones too; the caller looks again.
        pub fn futex_wait(&self, at: usize, expected: u32, timeout: Option<Duration>) {
            let timeout = timeout.map(crate::socket::timespec);
            // EAGAIN, EINTR and ETIMEDOUT all mean: look again.
            let _any =
                futex::wait(self.0.u32(at), futex::Flags::empty(), expected, timeout.as_ref());
        }

        /// Wakes this process's own sleepers on the word at `at`.
        pub fn futex_wake(&self, at: usize) {
            let _woken = futex::wake(self.0.u32(at), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Copies memory of which another process may be writing either side.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
    #[inline(always)]
    unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
        // Payloads begin at the start of a slot's or of the arena's lines; the rest of one may not.
        if len > SHORT || !from.addr().is_multiple_of(align_of::<u64>()) {
            // SAFETY: forwarded.
            return unsafe { copy_long(from, to, len) };
        }
        let mut done = 0;
        while done + 8 <= len {
            // SAFETY: so many bytes are left, and what is done is a multiple of their number.
            unsafe { copy_word::<u64>(from, to, &mut done) };
        }
        if len & 4 != 0 {
            // SAFETY: as above.
            unsafe { copy_word::<u32>(from, to, &mut done) };
        }
        if len & 2 != 0 {
            // SAFETY: as above.
            unsafe { copy_word::<u16>(from, to, &mut done) };
        }
        if len & 1 != 0 {
            // SAFETY: as above.
            unsafe { copy_word::<u8>(from, to, &mut done) };
        }
    }

    /// Copies the next bytes, as many as a `T` has.
    ///
    /// # Safety
    /// From what is `done` on, `from` is readable and aligned for a `T`, and `to` writable.
    #[inline(always)]
    unsafe fn copy_word<T: Copy>(from: *const u8, to: *mut u8, done: &mut usize) {
        // SAFETY: forwarded.
        let from = unsafe { from.add(*done) };
        // SAFETY: forwarded.
        let to = unsafe { to.add(*done) };
        // SAFETY: readable and aligned; volatile, so the compiler assumes nothing.
        let word = unsafe { from.cast::<T>().read_volatile() };
        // SAFETY: writable.
        unsafe { to.cast::<T>().write_unaligned(word) };
        *done += size_of::<T>();
    }

    /// Up to here a word loop is faster than the start of a string instruction.
    const SHORT: usize = 64;

    /// Copies memory of which another process may be writing either side.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) unsafe fn copy_long(mut from: *const u8, mut to: *mut u8, mut len: usize) {
        // The string instruction is thirteen times slower on AMD's Zen where the target lies a few bytes
        // behind the source, as the last bits of addresses have it.
        let behind = to.addr().wrapping_sub(from.addr()) % 4096;
        if len >= BLOCK && (1..BLOCK).contains(&behind) {
            let blocks = len / BLOCK;
            // SAFETY: as below; so many whole blocks of `len` bytes.
            unsafe {
                core::arch::asm!(
                    "2:",
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups {d}, [{from} + 48]",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + 32], {c}",
                    "movups [{to} + 48], {d}",
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {blocks}",
                    "jnz 2b",
                    from = inout(reg) from,
                    to = inout(reg) to,
                    blocks = inout(reg) blocks => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack)
                );
            }
            len %= BLOCK;
        }
        // SAFETY: copies exactly `len` bytes between ranges that the caller vouches for; the
        // ABI has the direction flag clear.
        unsafe {
            core::arch::asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Bytes that are copied at a time where the string instruction is slow, and that are set at a time.
    const BLOCK: usize = 64;

    /// Sets memory of which another process may be writing some, twice as fast as by stores of words.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    unsafe fn fill_long(to: *mut u8, len: usize, word: u64) {
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if len >= BLOCK {
            // SAFETY: every processor with this architecture has SSE2.
            let words = unsafe { core::arch::x86_64::_mm_set1_epi64x(word as i64) };
            // SAFETY: so many whole blocks of `len` bytes.
            unsafe {
                core::arch::asm!(
                    "2:",
                    "movups [{to}], {words}",
                    "movups [{to} + 16], {words}",
                    "movups [{to} + 32], {words}",
                    "movups [{to} + 48], {words}",
                    "add {to}, 64",
                    "dec {blocks}",
                    "jnz 2b",
                    to = inout(reg) to => _,
                    blocks = inout(reg) len / BLOCK => _,
                    words = in(xmm_reg) words,
                    options(nostack)
                );
            }
            done = len - len % BLOCK;
        }
        for (at, byte) in (done..len).zip(word.to_ne_bytes().into_iter().cycle()) {
            // SAFETY: at < len, and a block is some whole words.
            let room = unsafe { to.add(at) };
            // SAFETY: writable; volatile, as it may be shared.
            unsafe { room.write_volatile(byte) };
        }
    }

    /// Copies memory of which another process may be writing either side.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: i < len.
            let at = unsafe { from.add(i) };
            // SAFETY: readable; volatile, so the compiler assumes nothing.
            let byte = unsafe { at.read_volatile() };
            // SAFETY: i < len.
            let at = unsafe { to.add(i) };
            // SAFETY: writable; volatile, as it may be shared.
            unsafe { at.write_volatile(byte) };
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use bytes::BufMut;
    use loom::cell::UnsafeCell;
    use loom::sync::{Condvar, Mutex};
    use partywall_abi::layout::{self, Geometry};
    use partywall_abi::sync::{AtomicU32, AtomicU64, Ordering};

    /// One outbox in loom's memory: atomics where the layout has atomics, cells elsewhere.
    struct Memory {
        u32s: BTreeMap<usize, AtomicU32>,
        u64s: BTreeMap<usize, AtomicU64>,
        words: BTreeMap<usize, UnsafeCell<[u32; 3]>>,
        /// Payload by 64-byte line; slots' inline payload counts with offset 16.
        lines: BTreeMap<usize, UnsafeCell<Vec<u8>>>,
        sleepers: Mutex<()>,
        woken: Condvar,
    }

    /// Memory that this side writes.
    pub struct Outbox(Arc<Memory>);
    /// Memory that the peer writes.
    pub struct Inbox(Arc<Memory>);

    /// One outbox, seen from both sides.
    pub fn pair(g: Geometry) -> (Outbox, Inbox) {
        let slots = (0..g.slots()).map(|i| g.slot_at(i.into()));
        let heads =
            [layout::BELL_AT, layout::CONSUMER_SLEEP_AT, layout::PRODUCER_SLEEP_AT, layout::CPU_AT];
        let memory = Memory {
            u32s: heads.into_iter().chain(slots.clone()).map(|a| (a, AtomicU32::new(0))).collect(),
            u64s: [layout::TAKEN_SLOTS_AT, layout::TAKEN_ARENA_AT]
                .map(|a| (a, AtomicU64::new(0)))
                .into_iter()
                .collect(),
            words: slots.clone().map(|a| (a + 4, UnsafeCell::new([0; 3]))).collect(),
            lines: slots
                .map(|a| a + layout::SLOT_PAYLOAD_AT)
                .chain((g.arena_base()..g.arena_base() + g.arena_bytes() as usize).step_by(64))
                .map(|a| (a, UnsafeCell::new(vec![0; 64])))
                .collect(),
            sleepers: Mutex::new(()),
            woken: Condvar::new(),
        };
        let memory = Arc::new(memory);
        (Outbox(Arc::clone(&memory)), Inbox(memory))
    }

    impl Memory {
        fn line(&self, at: usize) -> (&UnsafeCell<Vec<u8>>, usize) {
            let (start, cell) = self.lines.range(..=at).next_back().expect("a payload offset");
            (cell, at - start)
        }

        fn wake(&self) {
            let _guard = self.sleepers.lock().unwrap();
            self.woken.notify_all();
        }
    }

    impl Outbox {
        /// The 32-bit word at byte `at`.
        pub fn u32(&self, at: usize) -> &AtomicU32 {
            &self.0.u32s[&at]
        }
        /// The 64-bit word at byte `at`.
        pub fn u64(&self, at: usize) -> &AtomicU64 {
            &self.0.u64s[&at]
        }
        /// Writes three words.
        pub fn write_words(&self, at: usize, words: [u32; 3]) {
            // SAFETY: loom checks that no other access is concurrent.
            self.0.words[&at].with_mut(|p| unsafe { *p = words });
        }
        /// Copies bytes in.
        pub fn write(&self, at: usize, bytes: &[u8]) {
            for (i, b) in bytes.iter().enumerate() {
                let (cell, offset) = self.0.line(at + i);
                // SAFETY: loom checks that no other access is concurrent.
                cell.with_mut(|p| unsafe { (&mut *p)[offset] = *b });
            }
        }
        /// Wakes sleepers.
        pub fn futex_wake(&self, _at: usize) {
            self.0.wake();
        }
    }

    impl Inbox {
        /// Loads a word.
        pub fn load_u32(&self, at: usize, order: Ordering) -> u32 {
            self.0.u32s[&at].load(order)
        }
        /// Loads a word.
        pub fn load_u64(&self, at: usize, order: Ordering) -> u64 {
            self.0.u64s[&at].load(order)
        }
        /// Copies three words.
        pub fn read_words(&self, at: usize) -> [u32; 3] {
            // SAFETY: loom checks that no write is concurrent.
            self.0.words[&at].with(|p| unsafe { *p })
        }
        /// Copies bytes out.
        pub fn read(&self, at: usize, len: usize, to: &mut impl BufMut) {
            for i in 0..len {
                let (cell, offset) = self.0.line(at + i);
                // SAFETY: loom checks that no write is concurrent.
                to.put_u8(cell.with(|p| unsafe { (&*p)[offset] }));
            }
        }
        /// Sleeps while the word is `expected`.
        pub fn futex_wait(&self, at: usize, expected: u32, _timeout: Option<std::time::Duration>) {
            let guard = self.0.sleepers.lock().unwrap();
            if self.0.u32s[&at].load(Ordering::SeqCst) == expected {
                drop(self.0.woken.wait(guard).unwrap());
            }
        }
        /// Wakes own sleepers.
        pub fn futex_wake(&self, _at: usize) {
            self.0.wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::copy_long;

    #[test]
    fn a_copy_is_whole_wherever_it_begins() {
        const FAR: usize = 8 * 4096;
        let from: Vec<u8> = (0..FAR).map(|at| (at * 7 % 251) as u8).collect();
        // Both in one allocation, so that the last bits of their addresses are as far apart as is said.
        let mut memory = from.clone();
        memory.resize(2 * FAR, 255);
        for (a, b) in (0..80_usize).flat_map(|a| (0..80_usize).map(move |b| (a, b))) {
            for len in [0, 1, 63, 64, 65, 127, 128, 1000, 4160] {
                let base = memory.as_mut_ptr();
                let (from, to) = (base.wrapping_add(a), base.wrapping_add(FAR + b));
                // SAFETY: both have so many bytes from there on, and are apart.
                unsafe { copy_long(from, to, len) };
                let (before, rest) = memory[FAR..].split_at(b);
                let (copied, behind) = rest.split_at(len);
                assert!(copied == &memory[a..a + len], "{a} {b} {len}");
                let mut around = before.iter().chain(&behind[..256]);
                assert!(around.all(|byte| *byte == 255), "{a} {b} {len}");
                memory[FAR + b..][..len].fill(255);
            }
        }
        assert!(memory[..FAR] == from);
    }
}
