//! The launcher: the process whose address space holds the domains of one `partywall up`.
//!
//! It runs this program's own file, sealed, as `partywall launcher`, so that the C library begins as
//! domains need it (without restartable sequences) and before there are other threads. It decides
//! nothing: what is started when, and started again, is [`crate::up`]'s affair.
//!
//! ```text
//! up                                             launcher
//!    start it, descriptor 3: a socket ---------->   space made
//!    <----------------------------------- Ready      with what keeps domains apart (or Unfit: why it
//!    .                                               cannot hold them; it ends)
//!    Start + [image, coordinator's socket,  ----->   domain loaded and running
//!             its output and errors]
//!    <------------------------- Started + [pidfd]    (or Failed: why)
//!    .                                               its task ends, or a call in it was cut off
//!    <----------------------------------- Ended      after the domain was dropped
//! ```
//!
//! A message is one packet: JSON, and the descriptors beside it. A service has a number of `up`'s,
//! and one domain at a time. Signals to a domain go by its pidfd, past the launcher.
//!
//! A domain that has ended, or in which a call was cut off, is dropped at once: that ends what is left
//! of it, frees callers that are inside and closes its links. Only then is it reported, so that a
//! domain started after the report meets nothing of the one before.
//!
//! What happens when one of them dies:
//!
//! | who | when | then |
//! | --- | --- | --- |
//! | up | at any time | the kernel kills the launcher, whose parent's thread has ended, and so every domain |
//! | launcher | before `Ready` | `up` says so and ends |
//! | launcher | later | the kernel kills its domains; `up` sees the socket hang up and ends everything |
//! | domain | while it is being loaded | `Failed`; nothing of it is left |
//! | domain | later | its pidfd tells the launcher: `Ended` with its exit status |
//! | a call in a domain | in the middle | a thread that waits for poisonings tells the launcher: `Ended`, without a status |
//!
//! `up` ends the launcher by closing the socket; what still runs in it is killed.
//!
//! The coordinator takes the number and the pidfd of a domain from the launcher. Where nothing keeps
//! domains apart (isolation none), a hostile domain could make the launcher say anything; what
//! services of one launcher prove to each other is worth what their isolation is worth.

mod client;
mod process;
mod protocol;

pub(crate) use client::{Event, Launcher, LauncherError, NotSent};
pub(crate) use process::run;
