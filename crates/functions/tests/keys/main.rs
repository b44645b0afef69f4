//! What protection keys stop: functions in assembly, before which there is no language, no verifier and, for
//! memory, no filter. With keys off the same functions succeed.
//!
//! On a machine without keys each test says so, and that is checked: no worker begins that needs them, one
//! that prefers them says why there are none, and functions are not said to be kept from anything.

mod programs;

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use partywall_abi::function::{Completion, End, Input, Short, Submission, Task};
use partywall_abi::security::Isolation;
use partywall_functions::clock::{Clock, Exactness};
use partywall_functions::dispatcher::worker::Worker;
use partywall_functions::dispatcher::{Dispatcher, Preemption, Workers};
use partywall_functions::image::Image;
use partywall_functions::isolation::Wanted;
use partywall_functions::layout::{COLOURS, HEAVY_HEAP, Layout, RING_BYTES, SAYS};
use partywall_functions::store::{Loaded, Store};
use partywall_keys::Shown;
use partywall_testkit::{Random, trials};

/// Where requests and replies are, among the payloads.
const IN: u32 = 0;
const OUT: u32 = 1024;

/// Where a worker has things, as it says itself.
#[derive(Debug, Clone, Copy)]
struct Places {
    ring: u64,
    running: u64,
    stack: u64,
    window: u64,
    handler: u64,
    enter: u64,
    resume: u64,
    out: u64,
    begin: u64,
    end: u64,
    state: u64,
}

/// A store, and one worker.
struct Host {
    layout: Layout,
    store: Store,
    link: Worker,
    places: Places,
    calls: u64,
    cell: u16,
    _clock: Clock,
}

fn workers(isolation: Wanted, more: &[&str]) -> Workers {
    let program = [env!("CARGO_BIN_EXE_functions-worker")].into_iter().chain(more.iter().copied());
    Workers {
        program: program.map(str::to_owned).collect(),
        cpus: vec![None],
        exactness: Exactness::Exact,
        preemption: Preemption::Dispatcher,
        resident: 1 << 30,
        recycle: 10_000,
        processes: 1,
        isolation,
        archive: std::env::temp_dir(),
    }
}

impl Host {
    fn start(isolation: Wanted) -> std::io::Result<Self> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("places");
        let layout = Layout::draw([u64::from(std::process::id()) << 32, 7 << 32]);
        let store = Store::new(layout, 2).unwrap();
        let clock = Clock::new(&store, Exactness::Exact).unwrap();
        let workers = workers(isolation, &["--places", file.to_str().unwrap()]);
        let mut link = Worker::start(&workers, 0, &store)?;
        link.wait()?;
        let text = std::fs::read_to_string(&file).unwrap();
        let words: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [ring, running, stack, window, handler, enter, resume, out, begin, end, state] =
            words[..]
        else {
            panic!("{text}")
        };
        let places =
            Places { ring, running, stack, window, handler, enter, resume, out, begin, end, state };
        Ok(Self { layout, store, link, places, calls: 0, cell: 0, _clock: clock })
    }

    fn isolation(&self) -> Isolation {
        self.link.begun().unwrap().as_ref().unwrap().isolation
    }

    fn put(&mut self, image: &Image) -> Loaded {
        self.store.put(image).unwrap().unwrap()
    }

    fn submit(&mut self, loaded: &Loaded, words: &[u64]) -> u32 {
        self.calls += 1;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let data: Vec<u8> = loaded.data.map(|data| data.to_bytes()).into_iter().flatten().collect();
        let input = match Short::new(&bytes) {
            Some(short) if data.is_empty() => Input::Short(short),
            _ => {
                self.link.write(IN, &[&data[..], &bytes].concat());
                Input::Long { at: IN, parameters: 0, has_data: !data.is_empty() }
            }
        };
        self.link.submit(&Submission {
            task: Task::Invoke,
            cell: self.cell,
            entry: loaded.entry,
            quanta: 0,
            call: self.calls,
            bytes: bytes.len() as u32,
            input,
            output: OUT,
            room: 4096,
        })
    }

    fn wait(&mut self) -> Completion {
        let begun = Instant::now();
        loop {
            if let Some((_, completion)) = self.link.completion() {
                return completion;
            }
            let ended = self.link.child().try_wait();
            assert!(begun.elapsed() < Duration::from_secs(60), "{ended:?}");
        }
    }

    fn call(&mut self, loaded: &Loaded, words: &[u64]) -> Completion {
        self.submit(loaded, words);
        self.wait()
    }

    /// What a call is answered with, or the signal by which it has ended.
    fn told(&mut self, loaded: &Loaded, words: &[u64]) -> Result<u64, i32> {
        let done = self.call(loaded, words);
        match (done.end, done.short) {
            (End::Reply, Some(short)) => Ok(short.words[0]),
            (End::Fault, _) => Err(done.code.into()),
            _ => panic!("{done:?}"),
        }
    }

    /// A place that is so many bytes before a gate, or nearer where that has a far return behind it: QEMU
    /// reads the stack of one as the kernel would (7.2, `helper_ret_protected`), by an address of 32 bits,
    /// and the kernel takes a fault of that for its own. What cannot be read here is on no emulator.
    fn before(&mut self, gate: u64, bytes: usize) -> Option<u64> {
        const FAR: [u8; 3] = [0xca, 0xcb, 0xcf];
        let first = gate - bytes as u64;
        let mut code = vec![0; bytes];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.link.child().id()));
        let read = memory.and_then(|memory| memory.read_exact_at(&mut code, first));
        if read.is_err() {
            return Some(first);
        }
        let behind_last = code.iter().rposition(|byte| FAR.contains(byte)).map_or(0, |at| at + 1);
        (behind_last < bytes).then(|| first + behind_last as u64)
    }

    /// The worker goes on, and answers what is right.
    fn goes_on(&mut self, reads: &Loaded, what: &str) {
        // The constants of an image are open.
        let at = reads.entry + u64::from(partywall_functions::image::CONSTANTS);
        let seven = u64::from_le_bytes([7; 8]);
        let before = std::mem::take(&mut self.cell);
        assert_eq!(self.told(reads, &[at]), Ok(seven), "after {what}");
        self.cell = before;
    }
}

/// Why protection keys cannot be in force here.
fn lacks() -> Option<String> {
    if let Some(why) = Shown::look().why_not() {
        return Some(why.to_owned());
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    (version < (6, 12)).then(|| "before Linux 6.12".to_owned())
}

/// A worker with keys; where there are none, that it is said.
fn with_keys() -> Option<Host> {
    let Some(lacks) = lacks() else {
        let host = Host::start(Wanted::ProtectionKeys).unwrap();
        assert_eq!(host.isolation(), Isolation::ProtectionKeys);
        return Some(host);
    };
    let why = Host::start(Wanted::ProtectionKeys).map(drop).unwrap_err();
    assert_eq!(why.kind(), std::io::ErrorKind::Unsupported);
    let text = why.to_string();
    let begins =
        "a worker of functions does not begin: isolation `protection-keys` needs protection keys: ";
    assert!(text.starts_with(begins) && text.contains(&lacks), "{text}");
    let mut host = Host::start(Wanted::Prefer).unwrap();
    let begun = host.link.begun().unwrap().clone().unwrap();
    assert_eq!(begun.isolation, Isolation::None);
    assert!(begun.why_not.clone().unwrap().contains(&lacks), "{begun:?}");
    let reads = host.put(&programs::reads());
    host.goes_on(&reads, "nothing");
    println!("no protection keys are in force here: {begun}");
    None
}

/// What functions must not reach: a name, and where it is.
fn closed(host: &Host) -> [(&'static str, u64); 6] {
    let Places { ring, running, stack, .. } = host.places;
    [
        ("the ring", ring + SAYS),
        ("the first payload", ring + RING_BYTES),
        ("the last payload", ring + RING_BYTES + partywall_functions::layout::PAYLOAD_BYTES - 8),
        ("a static variable", running & !7),
        ("the stack", stack),
        ("the program", host.places.handler),
    ]
}

#[test]
fn row_1_a_function_reads_and_writes_nothing_of_its_worker() {
    let Some(mut host) = with_keys() else { return };
    let (reads, writes) = (host.put(&programs::reads()), host.put(&programs::writes()));
    for _ in 0..20 {
        for (what, at) in closed(&host) {
            for cell in [0, 1, 13] {
                host.cell = cell;
                let done = host.call(&reads, &[at]);
                let seen = (done.end, i32::from(done.code), done.detail);
                assert_eq!(seen, (End::Fault, libc::SIGSEGV, at), "{what} from {cell}");
                assert_eq!(host.told(&writes, &[at, 1]), Err(libc::SIGSEGV), "{what} from {cell}");
                host.goes_on(&reads, what);
            }
        }
    }
    // What is open to be read is not open to be written.
    host.cell = 0;
    let (calls, clock, window) = (host.layout.calls, host.layout.images, host.places.window);
    for at in [calls, clock, window, reads.entry] {
        assert!(host.told(&reads, &[at]).is_ok());
        assert_eq!(host.told(&writes, &[at, 0]), Err(libc::SIGSEGV));
    }
}

/// The same without keys, so that it is known what has stopped them.
#[test]
fn row_1_without_keys_the_same_function_reads_and_writes_all_of_it() {
    let mut host = Host::start(Wanted::None).unwrap();
    assert_eq!(host.isolation(), Isolation::None);
    let begun = host.link.begun().unwrap().clone().unwrap();
    assert_eq!(begun.to_string(), "none (they are not asked for)");
    let (reads, writes) = (host.put(&programs::reads()), host.put(&programs::writes()));
    for (what, at) in closed(&host) {
        assert!(host.told(&reads, &[at]).is_ok(), "{what}");
    }
    let at = host.places.ring + SAYS;
    assert_eq!(host.told(&writes, &[at, 0x1234]), Ok(0x1234));
    assert_eq!(host.told(&reads, &[at]), Ok(0x1234));
    host.goes_on(&reads, "all");
}

/// Functions that wait have secrets on their stacks; cells of other colours do not read them.
#[test]
fn row_52_what_waits_is_closed_to_functions_in_cells_of_other_colours() {
    let keyed = with_keys();
    let is_keyed = keyed.is_some();
    let mut host = keyed.unwrap_or_else(|| Host::start(Wanted::Prefer).unwrap());
    let (reads, waits) = (host.put(&programs::reads()), host.put(&programs::waits()));
    let service = host.layout.calls + 16;
    let secret = |cell: u16| 0x5ec2_e700 + u64::from(cell);
    for cell in [1, 2, 13] {
        host.cell = cell;
        let done = host.call(&waits, &[service, secret(cell)]);
        assert_eq!(done.end, End::Calls, "{done:?}");
    }
    for from in [0, 3, 12] {
        host.cell = from;
        for cell in [1, 2, 13] {
            // Behind the return address.
            let at = host.layout.cell(cell).stack_top() - 16;
            let told = host.told(&reads, &[at]);
            let expected = if is_keyed { Err(libc::SIGSEGV) } else { Ok(secret(cell)) };
            assert_eq!(told, expected, "{cell} from {from}");
            let at = host.layout.cell(cell).begin + HEAVY_HEAP;
            assert_eq!(host.told(&reads, &[at]).is_err(), is_keyed, "{cell} from {from}");
        }
        host.goes_on(&reads, "a look at those that wait");
    }
    // One key is all that cells of a colour have: the dispatcher gives them to one owner.
    host.cell = 1 + COLOURS as u16;
    let own = host.layout.cell(1).stack_top() - 16;
    host.cell += COLOURS as u16;
    assert_eq!(host.told(&reads, &[own]), Ok(secret(1)));
    for cell in [13, 2, 1] {
        host.link.submit(&Submission {
            task: Task::Resume,
            cell,
            entry: 0,
            quanta: 0,
            call: 0,
            bytes: 0,
            input: Input::Long { at: IN, parameters: 0, has_data: false },
            output: OUT,
            room: 4096,
        });
        let done = host.wait();
        assert_eq!((done.end, done.short.unwrap().words[0]), (End::Reply, secret(cell)));
    }
}

/// A function without data of its own does not reach that of others.
#[test]
fn row_52_data_of_images_are_closed_to_functions_without_any() {
    let Some(mut host) = with_keys() else { return };
    let (reads, writes) = (host.put(&programs::reads()), host.put(&programs::writes()));
    let with_data = |image: Image| Image { data: vec![9; 8], ..image };
    let (own, at) = {
        let own = host.put(&with_data(programs::writes()));
        (own, own.data.unwrap().at)
    };
    assert_eq!(host.told(&own, &[at, 77]), Ok(77));
    assert_eq!(host.told(&reads, &[at]), Err(libc::SIGSEGV));
    assert_eq!(host.told(&writes, &[at, 1]), Err(libc::SIGSEGV));
    // Those with some do: their key is one.
    let other = host.put(&with_data(programs::reads()));
    assert_eq!(host.told(&other, &[at]), Ok(77));
}

/// The kernel has the rights of the function for which it writes.
#[test]
fn the_kernel_writes_no_random_bytes_where_the_function_cannot() {
    let Some(mut host) = with_keys() else { return };
    let (reads, fills) = (host.put(&programs::reads()), host.put(&programs::fills()));
    let random = host.layout.calls + 32;
    let own: Vec<_> = (0..4).map(|_| host.told(&fills, &[random, 0]).unwrap()).collect();
    assert!(own.iter().any(|word| *word != 0) && own[0] != own[1], "{own:?}");
    for (what, at) in closed(&host) {
        assert_eq!(host.told(&fills, &[random, at]), Err(libc::SIGILL), "{what}");
        host.goes_on(&reads, what);
    }
}

/// A jump to an instruction that writes the rights leaves nothing open.
#[test]
fn row_11_jumps_to_gates_leave_nothing_open() {
    let Some(mut host) = with_keys() else { return };
    let (reads, jumps) = (host.put(&programs::reads()), host.put(&programs::jumps()));
    let Places { ring, enter, resume, out, begin, end, handler, .. } = host.places;
    let secret = ring + RING_BYTES;
    let jump = |to: u64, rax: u64| [to, rax, 0, 0, 0, 0, 0, 0, secret];
    // All rights; too many bits; those to the worker's memory and to what all can read; those to read it.
    let rights = [0, 1 << 32, 0x5555_5550, 0xffff_fff0, 2];
    for (what, gate) in [("enter", enter), ("resume", resume), ("begin", begin), ("end", end)] {
        for rax in rights {
            assert_eq!(host.told(&jumps, &jump(gate, rax)), Err(libc::SIGILL), "{what} {rax:#x}");
            host.goes_on(&reads, what);
        }
        // With those of a handler, or fewer, the look at what they should be is a fault itself.
        for rax in [1, 3, 0x5555_5554, 0x5555_5555, 0xffff_fffc, u64::from(u32::MAX)] {
            assert!(host.told(&jumps, &jump(gate, rax)).is_err(), "{what} {rax:#x}");
            host.goes_on(&reads, what);
        }
        // The processor takes no other registers.
        for (rcx, rdx) in [(1, 0), (0, 1)] {
            let request = [gate, 0, rcx, rdx, 0, 0, 0, 0, secret];
            assert_eq!(host.told(&jumps, &request), Err(libc::SIGSEGV), "{what}");
        }
    }
    // The rights that it has already: nothing is open that was not.
    let own = u64::from(host.told(&reads, &[host.places.window]).unwrap() as u32);
    for gate in [enter, end] {
        assert_eq!(host.told(&jumps, &jump(gate, own)), Err(libc::SIGSEGV));
    }
    // The way out is one, by whoever comes there, with how it says; but not with half of the rights.
    for how in [1, 2, 7] {
        let done = host.call(&jumps, &[out, 0, 0, 0, how, 0, 0, 0, secret]);
        assert!(matches!(done.end, End::Panic | End::Fault | End::Stopped), "{done:?}");
        host.goes_on(&reads, "the way out");
    }
    for rax in [1 << 2, 0x5555_5554, 1 << 4] {
        assert_eq!(host.told(&jumps, &jump(out, rax)), Err(libc::SIGILL), "{rax:#x}");
        host.goes_on(&reads, "the way out");
    }
    // The handler is no gate for who is not the kernel (row 14), and nothing before a gate is one.
    let before = [(begin, 30), (begin, 20), (end, 10), (end, 30), (enter, 10)];
    let before: Vec<_> =
        before.iter().filter_map(|(gate, bytes)| host.before(*gate, *bytes)).collect();
    assert!(before.len() > 2, "{before:?}");
    for to in [&[handler][..], &before].concat() {
        for signal in [libc::SIGURG, libc::SIGALRM, libc::SIGSEGV] {
            let cell = host.layout.cell(0).begin + 512;
            let request = [to, 0, 0, cell, 0, cell, signal as u64, cell, secret];
            let done = host.call(&jumps, &request);
            assert_eq!(done.end, End::Fault, "{done:?}");
            host.goes_on(&reads, "a call of the handler");
        }
    }
}

/// The state of the processor is not taken back with rights in it.
#[test]
fn row_10_the_runtimes_xrstor_opens_nothing() {
    let Some(mut host) = with_keys() else { return };
    let (reads, jumps) = (host.put(&programs::reads()), host.put(&programs::jumps()));
    let Places { ring, state, .. } = host.places;
    // A state without any part: those that are asked for are as the processor begins, all rights among them.
    let empty = host.layout.cell(0).begin + 16_384;
    for parts in [1 << 9, 1 << 9 | 7, u64::from(u32::MAX)] {
        let request = [state - 1, parts, 0, 0, 0, empty, 0, 0, ring + RING_BYTES];
        let told = host.told(&jumps, &request);
        // Parts that the processor does not have are a fault of their own.
        assert!(matches!(told, Err(libc::SIGILL | libc::SIGSEGV)), "{parts:#x}: {told:?}");
        assert!(parts != 1 << 9 || told == Err(libc::SIGILL), "{told:?}");
        host.goes_on(&reads, "a state");
    }
}

/// Signals that are for nobody come while a function knocks at a gate, or has its stack pointer where a
/// handler has its last words.
#[test]
fn row_54_signals_open_no_gate() {
    let Some(mut host) = with_keys() else { return };
    let (reads, spins) = (host.put(&programs::reads()), host.put(&programs::spins()));
    let knocks = host.put(&programs::knocks());
    let Places { window, stack, enter, .. } = host.places;
    let own = u64::from(host.told(&reads, &[window]).unwrap() as u32);
    let mut random = Random::of_this_run();
    let places = [0, 8, 64, 72, 100, 2000, 4095, 4096].map(|at| window + at);
    let places = places.into_iter().chain([stack, 0, u64::MAX, host.layout.cells]);
    let ways = places
        .map(|at| (spins, vec![at]))
        .chain([own, 0, 0x5555_5550].map(|rax| (knocks, vec![enter, rax])));
    let ways: Vec<_> = ways.collect();
    for trial in 0..trials(20_000) {
        let (program, words) = &ways[trial % ways.len()];
        let number = host.submit(program, words);
        for _ in 0..random.below(20) {
            host.link.stop(number.wrapping_sub(1), Duration::ZERO);
            (0..random.below(300)).for_each(|_| std::hint::spin_loop());
        }
        while host.link.peek(number).is_none() {
            host.link.stop(number, Duration::ZERO);
            (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
        }
        let done = host.wait();
        assert!(matches!(done.end, End::Stopped | End::Fault), "{done:?}");
        host.goes_on(&reads, "signals");
    }
}

/// A dispatcher says what is in force, and does not begin without what is required.
#[test]
fn a_dispatcher_says_what_is_in_force() {
    let start = |isolation| {
        let layout = Layout::draw([u64::from(std::process::id()) << 34, 3 << 33]);
        let store = Store::new(layout, 1).unwrap();
        Dispatcher::<()>::new(store, workers(isolation, &[]))
    };
    let none = start(Wanted::None).unwrap().in_force().unwrap();
    assert_eq!(none.to_string(), "none (they are not asked for)");
    let preferred = start(Wanted::Prefer).unwrap().in_force().unwrap();
    match (lacks(), start(Wanted::ProtectionKeys)) {
        (None, Ok(required)) => {
            assert_eq!(required.in_force().unwrap().to_string(), "protection-keys");
            assert_eq!(preferred.to_string(), "protection-keys");
        }
        (Some(lacks), Err(why)) => {
            assert!(why.to_string().contains(&lacks), "{why}");
            assert!(preferred.to_string().starts_with("none ("), "{preferred}");
        }
        (lacks, other) => panic!("{lacks:?} {other:?}"),
    }
}
