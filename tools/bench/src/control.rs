//! The page through which the two processes of a sample find each other.
//!
//! | byte | word | written by |
//! |---|---|---|
//! | 0 | state of the server: 0 starting, 1 ready, 2 failed | server |
//! | 4 | a number for the client, such as a port | server, before ready |
//! | 8 | process id of the server | server, before ready |
//! | 12 | process id of the launcher, where both sides are its domains | launcher, before either starts |
//! | 16, 24, 32 | what was held before the server made anything, in bytes | server, before ready |
//! | 64, 128 | last meeting the client, the server has come to | that side |
//! | 192 | number of the client's last question what the server has used and holds | client |
//! | 256 | number of the last question that has its answer | driver |
//! | 264, 272, 280, 288 | the answer: ns of CPU time; bytes of the server, of the host | driver |
//! | 1024.. | the lines that the probe bounces | both, in turn |

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use crate::sys::futex;
use crate::sys::shared::{self, Shared};

/// How long the other side may take once one has ended.
pub const GRACE: Duration = Duration::from_secs(5);

const STATE: usize = 0;
const NUMBER: usize = 4;
const PID: usize = 8;
const LAUNCHER: usize = 12;
const IDLE: [usize; 3] = [16, 24, 32];
const CLIENT_CAME: usize = 64;
const SERVER_CAME: usize = 128;
const ASKED: usize = 192;
const ANSWERED: usize = 256;
const ANSWER: [usize; 4] = [264, 272, 280, 288];
const LINES: usize = 1024;
const LINE: usize = 64;
const LEN: usize = 4096;

const READY: u32 = 1;
const FAILED: u32 = 2;

/// The page, mapped.
#[derive(Debug)]
pub struct Control(Shared);

impl Control {
    /// Creates the memory of a page.
    pub fn create() -> io::Result<OwnedFd> {
        shared::create(LEN)
    }

    /// Maps it.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self(Shared::map(fd)?))
    }

    /// The server can be reached.
    pub fn ready(&self) {
        self.0.word(PID).store(std::process::id(), Relaxed);
        self.announce(READY);
    }

    /// The server has given up.
    pub fn fail(&self) {
        self.announce(FAILED);
    }

    fn announce(&self, state: u32) {
        let word = self.0.word(STATE);
        // SYNC(control.state)
        word.store(state, Release);
        // The client and the driver may both be asleep here.
        futex::wake(word);
        futex::wake(word);
    }

    /// Sleeps until the server can be reached.
    ///
    /// # Errors
    /// If it has failed, or after `limit`.
    pub fn await_ready(&self, limit: Duration) -> io::Result<()> {
        // SYNC(control.state), acquired by wait_until
        match futex::wait_until(self.0.word(STATE), limit, |state| state != 0)? {
            READY => Ok(()),
            _ => Err(io::Error::other("the server did not start")),
        }
    }

    /// Leaves a number for the client; call before [`Control::ready`].
    pub fn set_number(&self, number: u32) {
        self.0.word(NUMBER).store(number, Relaxed);
    }

    /// The number the server left.
    pub fn number(&self) -> u32 {
        self.0.word(NUMBER).load(Relaxed)
    }

    /// Notes what was held before the server made anything; call before [`Control::ready`].
    pub fn set_idle(&self, bytes: [u64; 3]) {
        for (place, bytes) in IDLE.into_iter().zip(bytes) {
            self.0.long(place).store(bytes, Relaxed);
        }
    }

    /// What the server noted.
    pub fn idle(&self) -> [u64; 3] {
        IDLE.map(|place| self.0.long(place).load(Relaxed))
    }

    /// The server's process id; none before it is ready, and if there is no server.
    pub fn server(&self) -> Option<u32> {
        Some(self.0.word(PID).load(Relaxed)).filter(|pid| *pid != 0)
    }

    /// This process is the launcher of both sides.
    pub fn set_launcher(&self) {
        self.0.word(LAUNCHER).store(std::process::id(), Relaxed);
    }

    /// The launcher's process id, if there is one.
    pub fn launcher(&self) -> Option<u32> {
        Some(self.0.word(LAUNCHER).load(Relaxed)).filter(|pid| *pid != 0)
    }

    /// Sleeps until both sides have come to meeting `number`; numbers grow.
    pub fn meet(&self, client: bool, number: u32, limit: Duration) -> io::Result<()> {
        let (mine, other) =
            if client { (CLIENT_CAME, SERVER_CAME) } else { (SERVER_CAME, CLIENT_CAME) };
        // SYNC(control.meet)
        self.0.word(mine).store(number, Release);
        futex::wake(self.0.word(mine));
        // SYNC(control.meet), acquired by wait_until
        futex::wait_until(self.0.word(other), limit, |came| came >= number)?;
        Ok(())
    }

    /// Client: asks the driver what the server has used and holds; one question at a time.
    ///
    /// # Errors
    /// After `limit`.
    pub fn ask(&self, limit: Duration) -> io::Result<[u64; 4]> {
        let question = self.0.word(ASKED).load(Relaxed).wrapping_add(1);
        // SYNC(control.asked)
        self.0.word(ASKED).store(question, Release);
        futex::wake(self.0.word(ASKED));
        // SYNC(control.answered), acquired by wait_until
        futex::wait_until(self.0.word(ANSWERED), limit, |answered| answered == question)?;
        Ok(ANSWER.map(|place| self.0.long(place).load(Relaxed)))
    }

    /// Driver: sleeps until there is another question than this one; its number.
    ///
    /// # Errors
    /// After `limit`.
    pub fn await_question(&self, last: u32, limit: Duration) -> io::Result<u32> {
        // SYNC(control.asked), acquired by wait_until
        futex::wait_until(self.0.word(ASKED), limit, |asked| asked != last)
    }

    /// Driver: answers this question.
    pub fn answer(&self, question: u32, answer: [u64; 4]) {
        for (place, value) in ANSWER.into_iter().zip(answer) {
            self.0.long(place).store(value, Relaxed);
        }
        // SYNC(control.answered)
        self.0.word(ANSWERED).store(question, Release);
        futex::wake(self.0.word(ANSWERED));
    }

    /// The word that the probe bounces the `number`th time, alone in its cache line.
    pub fn line(&self, number: u64) -> &AtomicU64 {
        let lines = (LEN - LINES) / LINE;
        self.0.long(LINES + number as usize % lines * LINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_learns_of_readiness_and_failure() {
        let soon = Duration::from_secs(2);
        let fd = Control::create().expect("memfd");
        let (server, client) = (Control::map(&fd).expect("map"), Control::map(&fd).expect("map"));
        assert!(client.await_ready(Duration::ZERO).is_err());
        assert_eq!(client.server(), None);
        server.set_number(77);
        server.set_idle([1, u64::MAX, 3]);
        server.ready();
        client.await_ready(soon).expect("ready");
        assert_eq!((client.number(), client.server()), (77, Some(std::process::id())));
        assert_eq!(client.idle(), [1, u64::MAX, 3]);
        server.fail();
        assert!(client.await_ready(soon).is_err());
    }

    #[test]
    fn both_sides_come_to_a_meeting() {
        let fd = Control::create().expect("memfd");
        let page = Control::map(&fd).expect("map");
        assert!(page.meet(true, 1, Duration::from_millis(1)).is_err());
        std::thread::scope(|scope| {
            scope.spawn(|| page.meet(false, 2, Duration::from_secs(5)).expect("client comes"));
            page.meet(true, 2, Duration::from_secs(5)).expect("server comes");
        });
    }
}
