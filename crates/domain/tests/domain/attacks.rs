//! Attacks of one domain on another, and what comes of them at isolation `protection-keys`: it
//! contains mistakes,
//! so some must be stopped, and of all it is known which are. What is expected is the table in
//! docs/isolation-levels.md; any difference fails. It holds for the kernels of the emulated machine
//! (`cargo xtask vm-test`); elsewhere those that must be stopped are tried. At `none` all are: what keys
//! alone stop must come to something there, or it would be no attack.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use partywall_abi::domain::GateStatus;
use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_guest::{Guest, Link};

use crate::gate::{pair, pair_for};
use crate::host::{
    Running, body_of, c, in_a_launcher, is_body_of, is_emulated, path, start, start_in,
    where_cores_are_written,
};
use crate::launcher::launcher;

const LONG: Duration = Duration::from_secs(10);

/// A row of the list of attacks, the way in `attacker.c`, what it is, and whether it must be stopped.
type Attack = (u32, &'static str, &'static str, bool);

const ATTACKS: [Attack; 48] = [
    (1, "direct_read", "read of a closed page", true),
    (1, "direct_write", "write to a closed page", true),
    (2, "vm_readv", "process_vm_readv of the own process", false),
    (2, "vm_writev", "process_vm_writev of the own process", false),
    (3, "proc_mem_read", "read of /proc/self/mem", false),
    (3, "proc_mem_write", "write to /proc/self/mem", false),
    (4, "retag", "pkey_mprotect of the page to key 0", false),
    (4, "reprotect", "mprotect of the page", false),
    (4, "free_and_take", "pkey_free of all keys, then pkey_alloc", false),
    (5, "map_over", "mmap with MAP_FIXED over the page", false),
    (5, "map_by_gate", "the same by the system-call instruction of the gate", false),
    (5, "move_away", "mremap of the page to own memory", false),
    (5, "move_by_gate", "the same by the system-call instruction of the gate", false),
    (5, "move_over", "mremap of own memory over the page", false),
    (5, "unmap", "munmap of the page", false),
    (5, "grow_heap", "brk", false),
    (5, "forget", "madvise(MADV_DONTNEED) of the page", false),
    (5, "fault_in", "UFFDIO_COPY into the page, thrown away before", false),
    (6, "write_and_execute", "own WRPKRU in a page that is writable and executable", false),
    (6, "twins", "own WRPKRU in a memfd mapped twice", false),
    (6, "rewritten_file", "own WRPKRU in a file that is written after it was mapped", false),
    (7, "reads_imply", "personality(READ_IMPLIES_EXEC), then a plain page", false),
    (8, "old_calls", "a 32-bit system call (int 0x80)", false),
    (8, "x32_calls", "an x32 system call", false),
    (9, "own_instruction", "WRPKRU in the program's own image", false),
    (10, "restore_state", "XRSTOR of rights that are not in the image", false),
    (
        11,
        "into_a_handler",
        "a jump to WRPKRU in a handler's entry, with a frame of one's own",
        false,
    ),
    (12, "forged_return", "sigreturn with a forged frame", false),
    (13, "edited_frame", "rights changed in the frame of an own handler", false),
    (13, "stepped", "the gate in single steps, left in the middle by a trap's frame", false),
    (14, "call_the_handler", "the launcher's handler called as a function", true),
    (15, "register_rseq", "registering restartable sequences", true),
    (17, "ring", "io_uring write from the page, rings in own memory", false),
    (18, "trace", "ptrace of the other domain", false),
    (18, "trace_parent", "ptrace of the own process by a child of it", false),
    (18, "core", "a core file with all memory in it", true),
    (18, "raised_core", "the same as root, after RLIMIT_CORE was raised", false),
    (21, "signal_stack", "a store to a signal stack of the launcher's", false),
    (22, "read_launcher", "a read of the launcher's memory", false),
    (22, "write_launcher", "a store to the launcher's memory", true),
    (22, "write_tables", "a store to what the launcher tells of itself", true),
    (22, "write_gate", "a store to the gate's page", true),
    (22, "close_launcher", "mprotect(PROT_NONE) of the launcher's memory", false),
    (23, "fetch", "code of the other domain, run with the own rights", false),
    (24, "descriptor", "a descriptor of the other domain by /proc", false),
    (25, "segment", "modify_ldt", false),
    (26, "no_dispatch", "Syscall User Dispatch turned off by who calls", false),
    (27, "kill_it", "kill of the other domain", false),
];

/// Those that nothing but keys stops.
const BY_KEYS_ALONE: [&str; 7] = [
    "direct_read",
    "direct_write",
    "reprotect",
    "ring",
    "signal_stack",
    "write_launcher",
    "write_tables",
];

/// What came of an attack: what it got, by what it was stopped, or what this machine has not.
struct Outcome {
    came_to: Came,
    by: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Came {
    Open,
    Stopped,
    Untried,
}

impl Outcome {
    fn of(is_open: bool, by: &str) -> Self {
        Self { came_to: if is_open { Came::Open } else { Came::Stopped }, by: by.to_owned() }
    }

    fn is_open(&self) -> bool {
        self.came_to == Came::Open
    }
}

/// A domain with a secret, and what this thread needs to ask it.
struct Victim {
    running: Running,
    guest: Guest,
    link: Link,
}

impl Victim {
    fn new(space: &AddressSpace) -> Self {
        let mut running = start(space, &c("callee.c"), &["1"]);
        running.ready();
        let guest = launcher(space);
        let link = guest.take(7).unwrap();
        let victim = Self { running, guest, link };
        let begin = Instant::now();
        while victim.call(0) == Err(GateStatus::Busy) {
            assert!(begin.elapsed() < LONG, "no thread is lent");
        }
        victim
    }

    fn call(&self, what: u64) -> Result<u64, GateStatus> {
        self.guest.call(self.link, [what, 0, 0], LONG)
    }
}

/// A launcher, the program that attacks, and its victim as long as that is unharmed.
struct Field<'a> {
    space: &'a AddressSpace,
    attacker: OwnedFd,
    victim: Option<Victim>,
    /// Where the attackers would leave their cores.
    dir: tempfile::TempDir,
    /// Memory of the launcher's, on a page of its own that stays: it may be closed in the end.
    page: &'static Page,
}

/// A page with the same secret.
#[repr(align(4096))]
struct Page([u64; 512]);

impl<'a> Field<'a> {
    fn new(space: &'a AddressSpace) -> Self {
        let mut page = Page([0; 512]);
        page.0[0] = 0x5ec4_e75e_c4e7_5ec4;
        let (attacker, dir) = (c("attacker.c"), where_cores_are_written());
        Self { space, attacker, victim: None, dir, page: Box::leak(Box::new(page)) }
    }

    /// Lets a new domain attack the victim.
    fn attack(&mut self, way: &str) -> Outcome {
        let victim = self.victim.get_or_insert_with(|| Victim::new(self.space));
        let secret = format!("{:x}", victim.call(33).unwrap());
        let code = format!("{:x}", victim.call(43).unwrap());
        let pid = victim.running.domain.pid().to_string();
        let page = format!("{:x}", std::ptr::from_ref(self.page) as u64);
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        let arguments = [way, &secret, &pid, &code, &page, &thread];
        let mut attacker = start_in(self.dir.path(), self.space, &self.attacker, &arguments);
        attacker.ready();
        let (status, said) = attacker.end();
        let said = said.trim();
        let outcome = match (said.split_once(": "), status.signal()) {
            (Some(("open", how)), _) => Outcome::of(true, how),
            (Some(("stopped", by)), _) => Outcome::of(false, by),
            (Some(("untried", by)), _) => Outcome { came_to: Came::Untried, by: by.to_owned() },
            (None, Some(_)) if status.core_dumped() => Outcome::of(true, "a core is written"),
            (None, Some(signal)) => {
                Outcome::of(false, &format!("the attacker dies by {}", name(signal)))
            }
            _ => panic!("{way}: {status}, {said:?}"),
        };
        if outcome.is_open() {
            self.victim = None;
        } else {
            assert_eq!(victim.call(34), Ok(1), "{way}: the victim's secret is another one");
        }
        outcome
    }
}

fn name(signal: i32) -> String {
    match signal {
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGILL => "SIGILL".into(),
        libc::SIGABRT => "SIGABRT".into(),
        libc::SIGSYS => "SIGSYS".into(),
        libc::SIGBUS => "SIGBUS".into(),
        libc::SIGFPE => "SIGFPE".into(),
        other => format!("signal {other}"),
    }
}

/// Jumps to every instruction of the gate's page that sets rights, with all of them.
fn into_the_gate(field: &mut Field<'_>) -> Outcome {
    let mut deaths = Vec::new();
    for place in 0.. {
        let outcome = field.attack(&format!("gate{place}"));
        assert!(!outcome.is_open(), "place {place}: {}", outcome.by);
        if outcome.by == "there are no more" {
            break;
        }
        deaths.push(outcome.by);
    }
    assert!(deaths.len() > 10, "{deaths:?}");
    Outcome::of(false, &format!("the attacker dies at each of {} places", deaths.len()))
}

/// Enters the gate with odd flags, numbers, stacks and storage.
fn odd_entries(space: &AddressSpace) -> Outcome {
    let (caller, callee) = pair(space, "all");
    let (status, said) = caller.end();
    let is_right = status.success() && said == "ok\n" && callee.call([0, 1, 1]) == Ok(2);
    let by = if is_right { "right answers, or a refusal" } else { "a wrong answer" };
    Outcome::of(!is_right, by)
}

/// Closes another domain's gate with that one's thread-local storage.
fn forged_storage(space: &AddressSpace) -> Outcome {
    let (caller, callee) = pair_for(space, &["entrances", "0"]);
    let (status, said) = caller.end();
    let is_open = callee.call([0, 1, 1]) != Ok(2);
    let by = match status.signal() {
        _ if is_open => "closed".to_owned(),
        Some(signal) => format!("the attacker dies by {}", name(signal)),
        None => said.trim().to_owned(),
    };
    Outcome::of(is_open, &by)
}

/// Starts a launcher where a system call is answered in the kernel's place.
fn answered(test: &str, number: i64, errno: i32) -> Outcome {
    let refused = with_a_filter(test, number, errno).is_ok();
    let by = if refused { "the launcher refuses to start" } else { "it starts" };
    Outcome::of(!refused, by)
}

/// What an attack came to, as the document has it.
fn cell(outcome: &Outcome) -> String {
    format!("{}: {}", format!("{:?}", outcome.came_to).to_lowercase(), outcome.by)
}

in_a_launcher! {
    fn attacks_come_to_what_is_written_down(space) {
        let mut field = Field::new(space);
        if space.isolation() == Isolation::None {
            without_keys(&mut field);
            return;
        }
        let mut table = Vec::new();
        for (number, way, what, must) in ATTACKS {
            if !must && !is_emulated() {
                continue;
            }
            let outcome = field.attack(way);
            assert!(!(must && outcome.is_open()), "{number} {what}: {}", outcome.by);
            table.push((number, what, cell(&outcome)));
        }
        let mut more = vec![
            (11, "jumps to WRPKRU in the gate with eax=0", into_the_gate(&mut field)),
            (16, "entering the gate with TF, AC, DF, odd MXCSR, x87, stack or FS", odd_entries(space)),
            (16, "closing another domain's gate with that one's FS", forged_storage(space)),
            (19, "no protection keys, or none left", answered(NO_KEYS, libc::SYS_pkey_alloc, libc::ENOSPC)),
            (20, "a filter that answers for pkey_mprotect", answered(NO_TAGS, libc::SYS_pkey_mprotect, 0)),
        ];
        if space.isolation() == Isolation::ProtectionKeys {
            // Its kernel lets nobody's signal stack be open.
            let stack = field.attack("signal_stack");
            assert!(!stack.is_open(), "{}", stack.by);
        }
        for (number, what, outcome) in more.drain(..) {
            assert!(!outcome.is_open(), "{number} {what}: {}", outcome.by);
            table.push((number, what, cell(&outcome)));
        }
        if is_emulated() {
            compare(table, space.isolation());
        }
    }
}

/// All attacks where there are no keys. What keys alone stop gets what it wants, which shows that it can, or
/// this machine has not what it takes, and says so. What else must be stopped is stopped here as well.
fn without_keys(field: &mut Field<'_>) {
    let mut by_keys = 0;
    for (number, way, what, must) in ATTACKS {
        let outcome = field.attack(way);
        println!("| {number} | {what} | {} |", cell(&outcome));
        if BY_KEYS_ALONE.contains(&way) {
            by_keys += 1;
            let Outcome { came_to, by } = &outcome;
            let is_not_here = *came_to == Came::Untried && by.starts_with("no such rings");
            assert!(outcome.is_open() || is_not_here, "{number} {what}: {came_to:?}: {by}");
        } else if must {
            assert_eq!(outcome.came_to, Came::Stopped, "{number} {what}: {}", outcome.by);
        }
    }
    assert_eq!(by_keys, BY_KEYS_ALONE.len());
}

const DOCUMENT: &str = include_str!("../../../../docs/isolation-levels.md");
const BEGIN: &str = "<!-- begin of the generated table -->";
const END: &str = "<!-- end of the generated table -->";

/// Compares the rows with those that are expected, in the column of this isolation.
fn compare(mut table: Vec<(u32, &str, String)>, isolation: Isolation) {
    table.sort_by_key(|(number, ..)| *number);
    let column = if isolation == Isolation::ProtectionKeys { 4 } else { 3 };
    let found: Vec<_> = table
        .iter()
        .map(|(number, what, cell)| format!("| {number} | {what} | {cell} |"))
        .collect();
    let found = found.join("\n");
    if let Some(dir) = std::env::var_os("PARTYWALL_VM_LEFT") {
        let text = format!("{isolation}\n{found}\n");
        std::fs::write(std::path::Path::new(&dir).join("isolation-levels.txt"), text).unwrap();
    }
    let expected = DOCUMENT.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    let rows = expected.expect("the document has the marks").0.trim().lines().skip(2);
    let expected: Vec<_> = rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 6, "{row}");
            format!("| {} | {} | {} |", cells[1], cells[2], cells[column])
        })
        .collect();
    let what = "the column of docs/isolation-levels.md is to be";
    assert_eq!(found, expected.join("\n"), "{what} ({isolation}):\n{found}");
}

/// Runs the body of `test` with one system call answered in the kernel's place; what it said if it failed.
fn with_a_filter(test: &str, number: i64, errno: i32) -> Result<(), String> {
    let program = c("filtered.c");
    let before = [path(&program), number.to_string(), errno.to_string()];
    let output = body_of(test, &before).output().unwrap();
    let said = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    let passed = output.status.success() && said[0].contains("1 passed");
    if passed { Ok(()) } else { Err(said.concat()) }
}

const NO_KEYS: &str = "attacks::without_keys_the_launcher_refuses_to_start";
const NO_TAGS: &str = "attacks::a_filter_that_answers_for_the_kernel_is_found_out";

#[test]
fn without_keys_the_launcher_refuses_to_start() {
    if is_body_of(NO_KEYS) {
        let why = AddressSpace::new(Isolation::ProtectionKeys).unwrap_err().to_string();
        assert!(
            why.starts_with(
                "isolation `protection-keys` needs protection keys, and this machine gives none"
            ),
            "{why}"
        );
        return;
    }
    // With 0 it says that it has given key 0.
    for errno in [libc::ENOSPC, libc::EINVAL, libc::ENOSYS, libc::EPERM, 0] {
        with_a_filter(NO_KEYS, libc::SYS_pkey_alloc, errno).unwrap();
    }
}

#[test]
fn a_filter_that_answers_for_the_kernel_is_found_out() {
    if is_body_of(NO_TAGS) {
        let why = AddressSpace::new(Isolation::ProtectionKeys).unwrap_err().to_string();
        let keys = partywall_domain::machine::Feature::ProtectionKeys.look().there;
        let expected = if keys { "could be read" } else { "gives none" };
        assert!(why.contains(expected), "{why}");
        return;
    }
    with_a_filter(NO_TAGS, libc::SYS_pkey_mprotect, 0).unwrap();
}
