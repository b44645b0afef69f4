#![allow(unsafe_code, reason = "finds the launcher's table by address")]
//! What a program links to run as a protection domain: finding out that it does, lending threads,
//! calling other domains. The launcher's side is `partywall-domain`, of which nothing is in here.
//! Programs in C have `include/partywall_domain.h`.
//!
//! ```text
//! callee                                   caller
//!   Guest::here()                            Guest::here()
//!   serve(function)                          .
//!   a few threads: lend()                    .
//!   offer(caller's pid, number, cookie)      .
//!   .                                        take(number) -> link
//!   function(Entered) <===================== call(link, words, limit)
//! ```
//!
//! `function` runs in the calling thread of the other program, on a stack and with the thread-local
//! storage of one of the threads that were lent. It may do all that a function does; each system
//! call costs about as much as a round trip over a Unix socket.
//!
//! Bytes go through a link's arena, memory that only its two ends share ([`bytes`]).
//!
//! A callee with one context, and its caller; how they agree on a number is theirs:
//!
//! ```no_run
//! use std::time::Duration;
//! use partywall_guest::Guest;
//!
//! # fn callee(caller: u32, number: u64) -> std::io::Result<()> {
//! let Some(guest) = Guest::here()? else { return Ok(()) };
//! guest.serve(|entered| entered.words.iter().sum());
//! std::thread::spawn(move || guest.lend());
//! let _link = guest.offer(caller, number, 0)?;
//! # Ok(()) }
//!
//! # fn caller(number: u64) -> std::io::Result<()> {
//! let Some(guest) = Guest::here()? else { return Ok(()) };
//! let link = guest.take(number)?;
//! match guest.call(link, [1, 2, 3], Duration::from_millis(10)) {
//!     Ok(sum) => assert_eq!(sum, 6),
//!     Err(status) => eprintln!("the call ended with {status:?}"),
//! }
//! # Ok(()) }
//! ```

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("domains are for Linux on x86-64");

pub mod bytes;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::Duration;

pub use partywall_abi::domain::GateStatus;
use partywall_abi::domain::{
    AUXILIARY, Info, KEYS, KEYS_SHARED_STACKS, MAGIC, NO_KEYS, NO_SYSTEM_CALLS, VERSION,
};
pub use partywall_abi::security::Isolation;

/// What a function of a domain is called with.
#[derive(Debug)]
pub struct Entered<'call> {
    /// What [`Guest::offer`] was given for the link.
    pub cookie: u64,
    /// What the caller has passed.
    pub words: [u64; 3],
    /// Where the link's arena is; `None` when it has none.
    pub(crate) arena: Option<NonNull<u8>>,
    /// The arena is the function's as long as the call lasts.
    pub(crate) call: PhantomData<&'call ()>,
}

/// A right to call, or to be called. Another link can have its place when it has ended; 131,072 others come
/// before one has its number again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link(u32);

type Function = Box<dyn for<'call> Fn(Entered<'call>) -> u64 + Send + Sync>;

static FUNCTION: OnceLock<Function> = OnceLock::new();

thread_local! {
    /// The number of the running thread in the launcher's table of callers: of this one, or of the
    /// one that runs in this one's context.
    static CALLER: Cell<Option<u64>> = const { Cell::new(None) };
    /// What this thread gives back when it ends.
    static ARMED: Armed = const { Armed(Cell::new(None)) };
}

struct Armed(Cell<Option<(Guest, u64)>>);

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some((guest, at)) = self.0.take() {
            CALLER.set(None);
            (guest.info.disarm)(at);
        }
    }
}

/// What a function that panicked returns, when nobody has caught it.
pub const PANICKED: u64 = u64::MAX;

/// This program, as a domain.
///
/// ```
/// match partywall_guest::Guest::here()? {
///     Some(guest) => println!("a domain with isolation {}", guest.isolation()),
///     None => println!("a process of its own"),
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Guest {
    info: &'static Info,
}

impl Guest {
    /// This program, if it runs as a domain. One that a domain has started is none.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] when the launcher is of another version.
    pub fn here() -> io::Result<Option<Self>> {
        // SAFETY: looks a number up.
        let address = unsafe { libc::getauxval(AUXILIARY) };
        if address == 0 {
            return Ok(None);
        }
        // SAFETY: a launcher has put it there, and its table's first words are the same in all versions.
        let [magic, rest] = unsafe { *(address as *const [u64; 2]) };
        let (version, bytes) = (rest as u32, (rest >> 32) as usize);
        if magic != MAGIC || version != VERSION || bytes != size_of::<Info>() {
            let text = format!(
                "this program runs as a domain of version {VERSION}, and its launcher is of version \
                 {version}; build them from the same release"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        // SAFETY: the launcher's static table, as its first words say.
        Ok(Some(Self { info: unsafe { &*(address as *const Info) } }))
    }

    /// The launcher's own program, which finds no table in its auxiliary vector.
    ///
    /// # Safety
    /// `info` is the table that this process has made for itself: what its functions return is believed.
    pub unsafe fn of_launcher(info: &'static Info) -> Self {
        Self { info }
    }

    /// What keeps this program and the other domains of its launcher apart.
    pub fn isolation(&self) -> Isolation {
        match self.info.keys {
            NO_KEYS => Isolation::None,
            KEYS => Isolation::ProtectionKeys,
            KEYS_SHARED_STACKS => Isolation::SharedSignalStacks,
            // What this program does not know may be no isolation.
            _ => Isolation::None,
        }
    }

    /// Sets what calls to this program run. A second function has no effect. One that panics returns
    /// [`PANICKED`].
    pub fn serve<F>(&self, function: F)
    where
        F: for<'call> Fn(Entered<'call>) -> u64 + Send + Sync + 'static,
    {
        let _first = FUNCTION.set(Box::new(function));
    }

    /// Declares that this program's functions make no system calls: one that does is ended with
    /// [`GateStatus::SystemCall`], and the program is to be started again.
    ///
    /// # Errors
    /// `EINVAL` of the launcher's own program.
    pub fn declare_no_system_calls(&self) -> io::Result<()> {
        result((self.info.declare)(NO_SYSTEM_CALLS)).map(drop)
    }

    /// Says whether this program takes calls from now on. Those under way are not touched; callers
    /// find [`GateStatus::Closed`] until it does again.
    ///
    /// # Errors
    /// `EINVAL` of the launcher's own program, `ESRCH` of a program that has ended.
    pub fn accept(&self, open: bool) -> io::Result<()> {
        result((self.info.accept)(u64::from(open))).map(drop)
    }

    /// How many system calls have been forwarded in the context that the calling code runs in,
    /// since it was parked; 0 outside of a call.
    pub fn forwards(&self) -> u64 {
        let Some(caller) = CALLER.get() else { return 0 };
        (self.info.forwards)(caller)
    }

    /// Lends the calling thread to callers, until the program ends. Meanwhile it blocks all signals but
    /// those of the C library; to that it is no point at which a thread can be cancelled.
    ///
    /// # Errors
    /// `ENOSPC` when as many threads are lent as can be, `EBUSY` of a thread that calls others, or
    /// that is somebody else's, inside a function; or what mmap(2) says.
    pub fn lend(&self) -> io::Result<()> {
        loop {
            match result((self.info.park)(Some(entered))) {
                // A signal of the C library's own has been handled, such as for setuid(2).
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                lent => return lent.map(drop),
            }
        }
    }

    /// Lets the process `pid` of the same launcher call this program. `number` is how it finds the
    /// offer, `cookie` what the function learns of it.
    ///
    /// # Errors
    /// `ESRCH` when the process is no domain of this launcher, `ENOSPC` when no link is free,
    /// `ENOTRECOVERABLE`, whoever asks, when a call in this program was cut off: it is about to be
    /// ended.
    pub fn offer(&self, pid: u32, number: u64, cookie: u64) -> io::Result<Link> {
        result((self.info.offer)(u64::from(pid), number, cookie)).map(Link)
    }

    /// Takes up the offer with this number.
    ///
    /// # Errors
    /// `ENOENT` when there is none for this program.
    pub fn take(&self, number: u64) -> io::Result<Link> {
        result((self.info.take)(number)).map(Link)
    }

    /// Ends a link.
    pub fn release(&self, link: Link) {
        (self.info.release)(u64::from(link.0));
    }

    /// The arena of a link of which this program is the caller; made at the first time.
    ///
    /// # Errors
    /// `ENOTCONN` when the link is closed, `ENOSPC` when no protection key is left for it; what
    /// mmap(2) says.
    pub(crate) fn arena(&self, link: Link) -> io::Result<NonNull<u8>> {
        let address = (self.info.arena)(u64::from(link.0));
        // Negative only as an error number.
        u64::try_from(address)
            .ok()
            .and_then(|address| NonNull::new(address as *mut u8))
            .ok_or_else(|| io::Error::from_raw_os_error(-address as i32))
    }

    /// Opens the link's arena to this thread, or closes it again; without keys there is nothing to do.
    #[inline]
    pub(crate) fn open(&self, link: Link, open: bool) -> io::Result<()> {
        if self.info.keys == NO_KEYS {
            return Ok(());
        }
        result((self.info.open)(u64::from(link.0), u64::from(open))).map(drop)
    }

    /// Calls over a link. The callee has `limit` to return; after that it is ended as soon as it has
    /// used as much CPU time again, or has been in system calls for a tenth of a second. Waiting
    /// for a CPU before or after one counts a tenth of that.
    ///
    /// # Errors
    /// The [`GateStatus`] that is not [`GateStatus::Done`]. What it says of the callee: on
    /// [`GateStatus::Fault`], [`GateStatus::Deadline`], [`GateStatus::Died`] and
    /// [`GateStatus::SystemCall`] it may
    /// have done half of its work; on the others, none.
    #[inline]
    pub fn call(&self, link: Link, words: [u64; 3], limit: Duration) -> Result<u64, GateStatus> {
        self.call_as(self.caller()?, link, words, limit)
    }

    /// As the calling thread, by its number.
    #[inline]
    pub(crate) fn call_as(
        &self,
        caller: u64,
        link: Link,
        words: [u64; 3],
        limit: Duration,
    ) -> Result<u64, GateStatus> {
        let [a, b, c] = words;
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let outcome = (self.info.call)(caller, u64::from(link.0), a, b, c, limit);
            if outcome.status == GateStatus::Done as u64 {
                return Ok(outcome.word);
            }
            self.not_done(outcome.status, caller, link)?;
        }
    }

    /// After a call that was not made, or whose callee has failed: whether to make it again.
    #[cold]
    fn not_done(&self, status: u64, caller: u64, link: Link) -> Result<(), GateStatus> {
        match GateStatus::from_number(status) {
            Some(GateStatus::Unbound) => self.bind(caller, link).map_err(|_| GateStatus::Busy),
            status => Err(status.unwrap_or(GateStatus::Fault)),
        }
    }

    /// The calling thread's number, which is registered if it is not yet.
    #[inline]
    pub(crate) fn caller(&self) -> Result<u64, GateStatus> {
        // Inside a function that is being called, the thread is its caller's, and registered.
        match CALLER.get() {
            Some(caller) => Ok(caller),
            None => self.arm().map_err(|_| GateStatus::Denied),
        }
    }

    #[cold]
    fn bind(&self, caller: u64, link: Link) -> io::Result<()> {
        result((self.info.bind)(caller, u64::from(link.0))).map(drop)
    }

    /// Registers the calling thread, once: `EUSERS` when too many threads call; what mmap(2),
    /// sigaltstack(2) and prctl(2) say.
    #[cold]
    fn arm(&self) -> io::Result<u64> {
        // Gone only where the thread is ending.
        let ending = |_| io::Error::from_raw_os_error(libc::ESRCH);
        ARMED
            .try_with(|armed| {
                let at = u64::from(result((self.info.arm)())?);
                armed.0.set(Some((*self, at)));
                CALLER.set(Some(at));
                Ok(at)
            })
            .map_err(ending)?
    }
}

fn result(value: i64) -> io::Result<u32> {
    u32::try_from(value).map_err(|_| io::Error::from_raw_os_error(-value as i32))
}

/// Where the gate enters this program.
extern "C" fn entered(caller: u64, cookie: u64, a: u64, b: u64, c: u64, arena: *mut u8) -> u64 {
    let Some(function) = FUNCTION.get() else { return PANICKED };
    CALLER.set(Some(caller));
    let entered =
        Entered { cookie, words: [a, b, c], arena: NonNull::new(arena), call: PhantomData };
    catch_unwind(AssertUnwindSafe(|| function(entered))).unwrap_or(PANICKED)
}
