//! Measuring program files, and asking engines of containers, on threads of their own.
//!
//! What a program file lies on can be a process's own doing, and reading it can take for ever. So a
//! thread asks one engine and reads one file, this at the lowest priority, and ends; there are
//! [`THREADS`] at most, and [`PER_ACCOUNT`] for the processes of one account, who can hold up nobody but
//! themselves. Who does not get a thread in time has not proven itself in time.

use std::collections::VecDeque;
use std::sync::Arc;

use partywall_shm::threads;

use crate::engine::{Question, Told};
use crate::identity::Measured;
use crate::quota::Account;

/// Threads at once: so many that it takes more users who hold theirs for ever than a host has.
const THREADS: usize = 256;
/// Stack of a thread, in bytes.
const STACK: usize = 256 * 1024;
/// Threads at once for the processes of one account.
const PER_ACCOUNT: usize = 2;
/// Nice value of the threads that measure (setpriority(2)).
const NICE: i32 = 19;

/// What is to be found out of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Whose connection asks.
    pub(crate) token: u64,
    /// Whose process it is.
    pub(crate) account: Account,
    /// Its number, where its program is to be measured.
    pub(crate) program: Option<u32>,
    /// What its engine is to be asked.
    pub(crate) question: Option<Question>,
}

/// What was found out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) program: Option<Measured>,
    pub(crate) origin: Option<Told>,
}

type Measure = dyn Fn(u32) -> Measured + Send + Sync;
type Ask = dyn Fn(&Question) -> Told + Send + Sync;
type Report = dyn Fn(Job, Found) + Send + Sync;

/// The jobs under way and those that wait.
pub(crate) struct Measuring {
    measure: Arc<Measure>,
    ask: Arc<Ask>,
    report: Arc<Report>,
    /// The account of each thread.
    running: Vec<Account>,
    waiting: VecDeque<Job>,
}

impl Measuring {
    /// `measure` and `ask` block; `report` is called on the thread that has found out, and whoever hears of
    /// it calls [`Measuring::finished`].
    pub(crate) fn new(
        measure: impl Fn(u32) -> Measured + Send + Sync + 'static,
        ask: impl Fn(&Question) -> Told + Send + Sync + 'static,
        report: impl Fn(Job, Found) + Send + Sync + 'static,
    ) -> Self {
        let (measure, ask, report) = (Arc::new(measure), Arc::new(ask), Arc::new(report));
        Self { measure, ask, report, running: Vec::new(), waiting: VecDeque::new() }
    }

    /// Takes a job.
    pub(crate) fn take(&mut self, job: Job) {
        self.waiting.push_back(job);
        self.start();
    }

    /// A job has been reported.
    pub(crate) fn finished(&mut self, job: &Job) {
        if let Some(at) = self.running.iter().position(|account| *account == job.account) {
            self.running.swap_remove(at);
        }
        self.start();
    }

    /// Nobody waits for a connection's job any more. A thread that runs for it goes on.
    pub(crate) fn forget(&mut self, token: u64) {
        self.waiting.retain(|job| job.token != token);
    }

    fn start(&mut self) {
        while self.running.len() < THREADS {
            let running = |whose: &Account| self.running.iter().filter(|a| *a == whose).count();
            let free = |job: &Job| running(&job.account) < PER_ACCOUNT;
            let next = self.waiting.iter().position(free);
            let Some(job) = next.and_then(|at| self.waiting.remove(at)) else { return };
            let (measure, ask) = (Arc::clone(&self.measure), Arc::clone(&self.ask));
            let report = Arc::clone(&self.report);
            let thread = std::thread::Builder::new().name("measure".into()).stack_size(STACK);
            self.running.push(job.account.clone());
            let failed = job.clone();
            let run = move || {
                let origin = job.question.as_ref().map(|question| ask(question));
                let program = job.program.map(|pid| {
                    let _else_as_before = rustix::process::setpriority_process(None, NICE);
                    measure(pid)
                });
                report(job, Found { program, origin });
            };
            if let Err(error) = threads::spawn(thread, run) {
                let why = |what| format!("no thread to {what}: {error}");
                let program = failed.program.map(|_| Err(why("measure the program")));
                let origin = failed.question.as_ref().map(|_| Err(why("ask the engine")));
                (self.report)(failed, Found { program, origin });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::Container;
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// Programs of pids below 100 are measured when the gate opens, the others at once.
    #[derive(Default)]
    struct Gate(Mutex<bool>, Condvar);

    fn measuring(gate: &Arc<Gate>) -> (Measuring, Receiver<(Job, Found)>) {
        let (told, reports) = channel();
        let gate = Arc::clone(gate);
        let measure = move |pid: u32| {
            if pid < 100 {
                let open = gate.0.lock().unwrap();
                drop(gate.1.wait_while(open, |open| !*open).unwrap());
            }
            Ok([pid as u8; 32])
        };
        let ask = |question: &Question| Err(question.container.engine.to_string());
        (Measuring::new(measure, ask, move |job, m| told.send((job, m)).unwrap()), reports)
    }

    fn next(m: &mut Measuring, reports: &Receiver<(Job, Found)>) -> Job {
        let (job, found) = reports.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(found.program, job.program.map(|pid| Ok([pid as u8; 32])));
        let engine = job.question.as_ref().map(|question| question.container.engine.to_string());
        assert_eq!(found.origin, engine.map(Err));
        m.finished(&job);
        job
    }

    #[test]
    fn program_that_cannot_be_read_delays_its_own_user_only() {
        let gate = Arc::<Gate>::default();
        let (mut m, reports) = measuring(&gate);
        let job = |token, uid, pid| {
            let (account, program) = (Account::User(uid), Some(pid));
            Job { token, account, program, question: None }
        };
        for token in 0..50 {
            m.take(job(token, 1, 1));
        }
        assert_eq!((m.running.len(), m.waiting.len()), (PER_ACCOUNT, 48));
        for token in 100..105 {
            m.take(job(token, 2, 200));
            assert_eq!(next(&mut m, &reports), job(token, 2, 200));
        }
        let users = 10..10 + THREADS as u32 + 8;
        for uid in users.clone() {
            m.take(job(200 + u64::from(uid), uid, 1));
        }
        assert_eq!(m.running.len(), THREADS);
        m.forget(49);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let expected: Vec<u64> = (0..49).chain(users.map(|uid| 200 + u64::from(uid))).collect();
        let mut done: Vec<u64> = expected.iter().map(|_| next(&mut m, &reports).token).collect();
        done.sort_unstable();
        assert_eq!(done, expected);
        assert!(m.running.is_empty() && m.waiting.is_empty());
    }

    #[test]
    fn engine_is_asked_where_a_job_has_a_question() {
        let (mut m, reports) = measuring(&Arc::default());
        let container = Container { engine: "docker".into(), id: "0a".repeat(32), pod: None };
        let question = Some(Question { container, api: None, signatures: None });
        for (program, question) in [(Some(200), question.clone()), (None, question), (None, None)] {
            let job = Job { token: 1, account: Account::User(1), program, question };
            m.take(job.clone());
            assert_eq!(next(&mut m, &reports), job);
        }
    }
}
