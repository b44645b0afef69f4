#![allow(unsafe_code, reason = "maps the ring, as a worker does")]
//! A worker that runs nothing and writes to the ring whatever it is asked for; for the tests of a dispatcher.
//!
//! `functions-liar DIRECTORY WORKER`. Of those that are started with one directory, the second one is
//! WORKER, which is honest. The others answer a request in capitals, except for `lie WHAT`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use partywall_abi::function::{
    CLOSED, Completion, End, GRAIN, Input, Ring, SLOTS, Short, Submission, WORDS, begun, following,
};
use partywall_functions::layout::{RING_BYTES, SAYS};
use partywall_functions::worker::Start;
use rustix::mm::{MapFlags, ProtFlags};

/// The words of the ring, of a slot, and before the first slot.
const ALL: usize = RING_BYTES as usize / 8;
const OF_SLOT: usize = 2 * WORDS;
const BEFORE: usize = 32;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, directory, worker] = &arguments[..] else { return ExitCode::FAILURE };
    if ordinal(Path::new(directory)) == 1 {
        let why = Command::new(worker).exec();
        eprintln!("{worker}: {why}");
        return ExitCode::FAILURE;
    }
    let start = Start::of_this_process().expect("a dispatcher has started this");
    Liar::new(&start).run()
}

/// How many were started before with this directory.
fn ordinal(directory: &Path) -> usize {
    let is_next = |number: &usize| File::create_new(directory.join(number.to_string())).is_ok();
    (0..10_000).find(is_next).expect("so many are not started")
}

struct Liar {
    memory: File,
    ring: &'static Ring,
    words: &'static [AtomicU64; ALL],
}

fn done(end: End, bytes: usize) -> Completion {
    let (bytes, detail) = (bytes as u32, 0);
    Completion { end, code: 0, bytes, log: 0, lost: 0, detail, ticks: 0, short: None }
}

impl Liar {
    fn new(start: &Start) -> Self {
        let path = format!("/proc/self/fd/{}", start.descriptors[0]);
        let memory = File::options().read(true).write(true).open(path).expect("it is open");
        let (bytes, rights) = (RING_BYTES as usize, ProtFlags::READ | ProtFlags::WRITE);
        let (anywhere, shared) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: where nothing is.
        let at = unsafe { rustix::mm::mmap(anywhere, bytes, rights, shared, &memory, 0) };
        let at = at.expect("memory can be mapped");
        // SAFETY: mapped for ever, and all of it is atomic.
        let ring = unsafe { &*at.cast::<Ring>() };
        // SAFETY: as above.
        let words = unsafe { &*at.cast::<[AtomicU64; ALL]>() };
        Self { memory, ring, words }
    }

    fn run(self) -> ! {
        // A text of 4 GiB that is no UTF-8.
        self.memory.write_all_at(&[0xff; 1024], SAYS).expect("behind the ring");
        self.ring.begin(begun::NONE);
        while self.ring.sleep.0.load(Ordering::Acquire) == CLOSED {
            pause();
        }
        self.ring.sleep.0.store(0, Ordering::Relaxed);
        let mut number = 1;
        loop {
            let Some(submission) = self.ring.slot(number).submission.submission(number) else {
                pause();
                continue;
            };
            let request = self.request(&submission);
            match request.strip_prefix(b"lie ") {
                Some(what) => self.lie(&String::from_utf8_lossy(what), number, &submission),
                None => self.answer(number, &submission, &request.to_ascii_uppercase()),
            }
            number = following(number);
        }
    }

    fn payload(at: u32) -> u64 {
        RING_BYTES + u64::from(at) * GRAIN as u64
    }

    fn request(&self, submission: &Submission) -> Vec<u8> {
        let mut bytes = vec![0; submission.bytes as usize];
        match submission.input {
            Input::Short(short) => {
                let end = bytes.len();
                bytes.copy_from_slice(&short.bytes()[..end]);
            }
            Input::Long { at, .. } => {
                self.memory.read_exact_at(&mut bytes, Self::payload(at)).expect("its payload");
            }
        }
        bytes
    }

    /// Writes to the room for a reply.
    fn write(&self, submission: &Submission, bytes: &[u8]) {
        self.memory.write_all_at(bytes, Self::payload(submission.output)).expect("its payload");
    }

    fn complete(&self, number: u32, completion: &Completion) {
        self.ring.slot(number).completion.complete(number, completion);
    }

    /// The answer of an honest worker.
    fn answer(&self, number: u32, submission: &Submission, reply: &[u8]) {
        let short = Short::new(reply);
        if short.is_none() {
            self.write(submission, reply);
        }
        self.complete(number, &Completion { short, ..done(End::Reply, reply.len()) });
    }

    /// The words of a line: of the submission, or of the completion behind it.
    fn line(&self, number: u32, is_completion: bool) -> &[AtomicU64] {
        let slot = BEFORE + (number % SLOTS) as usize * OF_SLOT;
        let at = slot + usize::from(is_completion) * WORDS;
        &self.words[at..at + WORDS]
    }

    /// Writes the words before the slots, all lines of submissions that have not come, and all of completions
    /// but this one's and those behind it.
    fn scribble(&self, number: u32, mut word: impl FnMut() -> u64) {
        self.words[..BEFORE].iter().for_each(|at| at.store(word(), Ordering::Relaxed));
        for other in (16..SLOTS).map(|behind| number.wrapping_add(behind)) {
            let lines = [false, true].map(|is_completion| self.line(other, is_completion));
            lines.into_iter().flatten().for_each(|at| at.store(word(), Ordering::Relaxed));
        }
    }

    fn lie(&self, what: &str, number: u32, submission: &Submission) {
        let room = submission.room as usize;
        let far = u32::MAX;
        let short = Short::new(&[b'x'; 24]);
        let say = |completion: Completion| self.complete(number, &completion);
        let honest = || self.answer(number, submission, what.as_bytes());
        let text = |end, bytes: usize| {
            self.write(submission, &vec![0xff; bytes.min(room)]);
            self.complete(number, &done(end, bytes));
        };
        match what {
            "number later" => {
                let later = number.wrapping_add(1);
                self.line(later, true)[0].store(u64::from(later) | 1 << 32, Ordering::Release);
            }
            "number earlier" => {
                let before = number.wrapping_sub(1);
                self.line(number, true)[0].store(u64::from(before) | 1 << 32, Ordering::Release);
            }
            "number far" => self.complete(number.wrapping_add(1 << 20), &done(End::Reply, 0)),
            "number 0" => self.complete(0, &done(End::Reply, 0)),
            "ahead" => {
                self.complete(following(number), &done(End::Reply, 100));
                honest();
            }
            "end 0" => self.line(number, true)[0].store(number.into(), Ordering::Release),
            "end 11" | "end 255" => {
                let end: u64 = what[4..].parse().expect("a number");
                let word = u64::from(number) | end << 32;
                self.line(number, true)[0].store(word, Ordering::Release);
            }
            "reply 1 more" => say(done(End::Reply, room + 1)),
            "reply far" => say(done(End::Reply, far as usize)),
            "log far" => say(Completion { log: far, ..done(End::Reply, 0) }),
            "log 1 more" => say(Completion { log: 4097, ..done(End::Reply, 0) }),
            "both far" => say(Completion { log: far, ..done(End::Reply, far as usize) }),
            "short 25" => say(Completion { short, ..done(End::Reply, 25) }),
            "short far" => say(Completion { short, ..done(End::Reply, far as usize) }),
            "short log" => say(Completion { short, log: 24, ..done(End::Reply, 0) }),
            "calls" => say(Completion { log: 1, lost: 1, ..done(End::Calls, 1) }),
            "calls far" => {
                say(Completion { log: far, lost: far, ..done(End::Calls, far as usize) })
            }
            "calls service far" => say(done(End::Calls, far as usize)),
            "calls method far" => say(Completion { log: far, ..done(End::Calls, 0) }),
            "calls body far" => say(Completion { lost: far, ..done(End::Calls, 1) }),
            "calls 1 more" => say(Completion { log: 1, ..done(End::Calls, room) }),
            "calls all" => text(End::Calls, room),
            "refused" => say(done(End::Refused, 0)),
            "stopped" => say(done(End::Stopped, 0)),
            "room" => say(done(End::Room, 0)),
            "room far" => say(Completion { detail: u64::MAX, ..done(End::Room, 0) }),
            "memory" => say(done(End::Memory, 0)),
            "panic 513" => text(End::Panic, 513),
            "error all" => text(End::Error, room),
            "panic" => text(End::Panic, 512),
            "reply all" => text(End::Reply, room),
            "words" => {
                self.words[..BEFORE].iter().for_each(|at| at.store(u64::MAX, Ordering::Relaxed));
                honest();
            }
            "lines" => {
                self.scribble(number, || u64::MAX);
                honest();
            }
            "shrink" => {
                let refused = self.memory.set_len(0).is_err();
                self.answer(number, submission, if refused { b"refused" } else { b"shrunk" });
            }
            "late" => {
                std::thread::sleep(Duration::from_millis(100));
                honest();
            }
            "exit" => std::process::exit(3),
            "die" => std::process::abort(),
            _ => self.lie_at_random(what, number, submission),
        }
    }

    /// The seed is the whole text.
    fn lie_at_random(&self, what: &str, number: u32, submission: &Submission) {
        let mut seed = what.bytes().fold(7_u64, |all, byte| all.rotate_left(8) ^ u64::from(byte));
        let mut draw = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed ^ seed >> 33
        };
        // Small numbers, powers of two and those about them, and all others.
        let mut word = || match draw() % 4 {
            0 => draw() % 64,
            1 => (1 << (draw() % 64)) - draw() % 2,
            2 => (draw() % 5000) << 32 | (draw() % 5000),
            _ => draw(),
        };
        if word() % 2 == 0 {
            self.scribble(number, &mut word);
        }
        // Of this one or one of those behind it.
        let behind = if word() % 4 == 0 { word() as u32 % 4 } else { 0 };
        let other = number.wrapping_add(behind);
        let (line, end) = (self.line(other, true), word() % 12);
        line[1..].iter().for_each(|at| at.store(word(), Ordering::Relaxed));
        let short = word() % 2;
        let first = u64::from(other) | end << 32 | short << 40 | word() << 48;
        match word() % 8 {
            0 => line[0].store(word(), Ordering::Release),
            1 => self.answer(number, submission, what.as_bytes()),
            2 => std::process::exit(4),
            _ => line[0].store(first, Ordering::Release),
        }
    }
}

fn pause() {
    std::thread::sleep(Duration::from_micros(50));
}
