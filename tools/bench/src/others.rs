//! What the processes besides the client have used and hold.
//!
//! A process knows others by their numbers only where it is in their process namespace. The client in a
//! container asks the driver instead, by the control page; the driver is outside and sees all of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::control::{Control, GRACE};
use crate::memory::Held;
use crate::sys::cpu::process_cpu_ns;

/// How long a thread sleeps before it looks whether it is to end.
const SLICE: Duration = Duration::from_millis(100);

/// The processes besides the client.
#[derive(Clone, Debug)]
pub enum Others {
    /// By their numbers.
    Seen(Vec<u32>),
    /// A server that only the driver sees.
    Hidden(Arc<Control>),
}

impl Default for Others {
    fn default() -> Self {
        Self::Seen(Vec::new())
    }
}

impl Others {
    /// Whether there are any.
    pub fn are_there(&self) -> bool {
        !matches!(self, Self::Seen(pids) if pids.is_empty())
    }

    /// CPU time that they have used so far, in nanoseconds.
    pub fn cpu_ns(&self) -> io::Result<u64> {
        match self {
            Self::Seen(pids) => pids.iter().map(|pid| process_cpu_ns(*pid)).sum(),
            Self::Hidden(control) => Ok(control.ask(GRACE)?[0]),
        }
    }

    /// What they and the host hold.
    pub fn held(&self) -> io::Result<Held> {
        match self {
            Self::Seen(pids) => Held::look(pids),
            Self::Hidden(control) => {
                let [_, held @ ..] = control.ask(GRACE)?;
                Ok(Held(held))
            }
        }
    }
}

/// A thread of the driver that tells the client of a sample what its server has used and holds.
#[derive(Debug)]
pub struct Teller {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    /// Of the process with this number, for whoever asks by this page.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub fn start(control: Control, server: u32) -> io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = Builder::new().name("teller".into()).spawn(move || {
            let mut last = 0;
            while !seen.load(Relaxed) {
                let Ok(question) = control.await_question(last, SLICE) else { continue };
                last = question;
                // Of a server that has gone nothing is known. The client learns of that otherwise.
                let cpu = process_cpu_ns(server).unwrap_or(0);
                let Held([own, shared, sockets]) = Held::look(&[server]).unwrap_or_default();
                control.answer(question, [cpu, own, shared, sockets]);
            }
        })?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has no result, and its panic was printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_tells_what_the_client_cannot_see() {
        let fd = Control::create().expect("memfd");
        let me = std::process::id();
        let teller = Teller::start(Control::map(&fd).expect("map"), me).expect("a thread");
        let hidden = Others::Hidden(Arc::new(Control::map(&fd).expect("map")));
        let before = process_cpu_ns(me).expect("own clock");
        let told = hidden.cpu_ns().expect("an answer");
        let after = process_cpu_ns(me).expect("own clock");
        assert!((before..=after).contains(&told), "{before} {told} {after}");
        let Held([own, shared, _]) = hidden.held().expect("an answer");
        assert!(own > 0 && shared > 0, "{own} {shared}");
        assert!(hidden.are_there() && !Others::default().are_there());
        drop(teller);
        assert_eq!(Others::default().cpu_ns().expect("nobody"), 0);
    }
}
