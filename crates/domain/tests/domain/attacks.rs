//! Attacks of one domain on another, and what comes of them at isolation `fault`: it contains mistakes,
//! so some must be stopped, and of all it is known which are. What is expected is the table in
//! docs/isolation-levels.md; any difference fails. It holds for the kernel of the emulated machine
//! (`cargo xtask vm-test`); elsewhere those that must be stopped are tried.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use partywall_abi::control::Isolation;
use partywall_abi::domain::Status;
use partywall_domain::guest::{Guest, Link};
use partywall_domain::space::Space;

use crate::host::{Running, body_of, c, in_a_launcher, is_body_of, is_emulated, path, start};

const LONG: Duration = Duration::from_secs(10);

/// A row of the list of attacks, the way in `attacker.c`, what it is, and whether it must be stopped.
type Attack = (u32, &'static str, &'static str, bool);

const ATTACKS: [Attack; 30] = [
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
    (5, "move_away", "mremap of the page to own memory", false),
    (5, "move_over", "mremap of own memory over the page", false),
    (5, "unmap", "munmap of the page", false),
    (5, "grow_heap", "brk", false),
    (5, "forget", "madvise(MADV_DONTNEED) of the page", false),
    (6, "write_and_execute", "own WRPKRU in a page that is writable and executable", false),
    (6, "twins", "own WRPKRU in a memfd mapped twice", false),
    (6, "rewritten_file", "own WRPKRU in a file that is written after it was mapped", false),
    (7, "reads_imply", "personality(READ_IMPLIES_EXEC), then a plain page", false),
    (8, "old_calls", "a 32-bit system call (int 0x80)", false),
    (8, "x32_calls", "an x32 system call", false),
    (9, "own_instruction", "WRPKRU in the program's own image", false),
    (10, "restore_state", "XRSTOR of rights that are not in the image", false),
    (12, "forged_return", "sigreturn with a forged frame", false),
    (13, "edited_frame", "rights changed in the frame of an own handler", false),
    (14, "call_the_handler", "the launcher's handler called as a function", true),
    (15, "register_rseq", "registering restartable sequences", true),
    (17, "ring", "io_uring write from the page", false),
    (18, "trace", "ptrace of the other domain", false),
    (18, "core", "a core file with all memory in it", true),
];

/// What came of an attack.
struct Outcome {
    is_open: bool,
    by: String,
}

/// A domain with a secret, and what this thread needs to ask it.
struct Victim {
    running: Running,
    guest: Guest,
    link: Link,
}

impl Victim {
    fn new(space: &Space) -> Self {
        let mut running = start(space, &c("callee.c"), &["1"]);
        running.ready();
        let guest = space.launcher();
        let link = guest.take(7).unwrap();
        let victim = Self { running, guest, link };
        let begin = Instant::now();
        while victim.call(0) == Err(Status::Busy) {
            assert!(begin.elapsed() < LONG, "no thread is lent");
        }
        victim
    }

    fn call(&self, what: u64) -> Result<u64, Status> {
        self.guest.call(self.link, [what, 0, 0], LONG)
    }
}

/// A launcher, the program that attacks, and its victim as long as that is unharmed.
struct Field<'a> {
    space: &'a Space,
    attacker: OwnedFd,
    victim: Option<Victim>,
}

impl<'a> Field<'a> {
    fn new(space: &'a Space) -> Self {
        Self { space, attacker: c("attacker.c"), victim: None }
    }

    /// Lets a new domain attack the victim.
    fn attack(&mut self, way: &str) -> Outcome {
        let victim = self.victim.get_or_insert_with(|| Victim::new(self.space));
        let secret = format!("{:x}", victim.call(33).unwrap());
        let pid = victim.running.domain.pid().to_string();
        let mut attacker = start(self.space, &self.attacker, &[way, &secret, &pid]);
        attacker.ready();
        let (status, said) = attacker.end();
        let said = said.trim();
        let outcome = match (said.split_once(": "), status.signal()) {
            (Some(("open", how)), _) => Outcome { is_open: true, by: how.to_owned() },
            (Some(("stopped", by)), _) => Outcome { is_open: false, by: by.to_owned() },
            (None, Some(signal)) => {
                assert!(!status.core_dumped(), "{way} left a core");
                Outcome { is_open: false, by: format!("the attacker dies by {}", name(signal)) }
            }
            _ => panic!("{way}: {status}, {said:?}"),
        };
        if outcome.is_open {
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
        assert!(!outcome.is_open, "place {place}: {}", outcome.by);
        if outcome.by == "there are no more" {
            break;
        }
        deaths.push(outcome.by);
    }
    assert!(deaths.len() > 10, "{deaths:?}");
    Outcome { is_open: false, by: format!("the attacker dies at each of {} places", deaths.len()) }
}

fn row(row: u32, what: &str, outcome: &Outcome) -> String {
    let came = if outcome.is_open { "open until `hardened`" } else { "stopped" };
    format!("| {row} | {what} | {came} | {} |", outcome.by)
}

in_a_launcher! {
    fn attacks_come_to_what_is_written_down(space) {
        let mut field = Field::new(space);
        if space.isolation() != Isolation::Fault {
            // Nothing is promised, and nothing is there: the page is open.
            assert!(field.attack("direct_read").is_open);
            return;
        }
        let emulated = is_emulated();
        let mut table = Vec::new();
        for (number, way, what, must) in ATTACKS {
            if !must && !emulated {
                continue;
            }
            let outcome = field.attack(way);
            assert!(!(must && outcome.is_open), "{number} {what}: {}", outcome.by);
            table.push((number, row(number, what, &outcome)));
        }
        let gate = into_the_gate(&mut field);
        table.push((11, row(11, "jumps to WRPKRU in the gate with eax=0", &gate)));
        if emulated {
            compare(table);
        }
    }
}

const DOCUMENT: &str = include_str!("../../../../docs/isolation-levels.md");
const BEGIN: &str = "<!-- begin of the generated table -->";
const END: &str = "<!-- end of the generated table -->";

/// Compares the rows with those that are expected.
fn compare(mut table: Vec<(u32, String)>) {
    // Tests of their own; here for the table's sake.
    for (number, what, by) in [
        (
            16,
            "entering the gate with TF, AC, DF, odd MXCSR, x87, stack or FS",
            "right answers, or a refusal",
        ),
        (19, "no protection keys, or none left", "the launcher refuses to start"),
        (20, "a filter that answers for pkey_mprotect", "the launcher refuses to start"),
    ] {
        table.push((number, row(number, what, &Outcome { is_open: false, by: by.into() })));
    }
    table.sort_by_key(|(number, _)| *number);
    let mut found = "| ROW | ATTACK | OUTCOME | BY |\n| --- | --- | --- | --- |\n".to_owned();
    for (_, line) in table {
        writeln!(found, "{line}").unwrap();
    }
    if let Some(dir) = std::env::var_os("PARTYWALL_VM_LEFT") {
        std::fs::write(std::path::Path::new(&dir).join("isolation-levels.txt"), &found).unwrap();
    }
    let expected = DOCUMENT.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    let expected = expected.expect("the document has the marks").0;
    assert_eq!(found, expected.trim_start(), "docs/isolation-levels.md is to be:\n{found}");
}

/// Runs the body of `test` with one system call answered in the kernel's place.
fn with_a_filter(test: &str, number: i64, errno: i32) {
    let program = c("filtered.c");
    let before = [path(&program), number.to_string(), errno.to_string()];
    let output = body_of(test, &before).output().unwrap();
    let said = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    assert!(output.status.success() && said[0].contains("1 passed"), "{said:?}");
}

#[test]
fn without_keys_the_launcher_refuses_to_start() {
    const TEST: &str = "attacks::without_keys_the_launcher_refuses_to_start";
    if is_body_of(TEST) {
        let why = Space::new(Isolation::Fault).unwrap_err().to_string();
        assert!(
            why.starts_with("isolation `fault` needs protection keys, and this machine gives none"),
            "{why}"
        );
        return;
    }
    // With 0 it says that it has given key 0.
    for errno in [libc::ENOSPC, libc::EINVAL, libc::ENOSYS, libc::EPERM, 0] {
        with_a_filter(TEST, libc::SYS_pkey_alloc, errno);
    }
}

#[test]
fn a_filter_that_answers_for_the_kernel_is_found_out() {
    const TEST: &str = "attacks::a_filter_that_answers_for_the_kernel_is_found_out";
    if is_body_of(TEST) {
        let why = Space::new(Isolation::Fault).unwrap_err().to_string();
        let keys = partywall_domain::machine::Feature::ProtectionKeys.look().there;
        let expected = if keys { "could be read" } else { "gives none" };
        assert!(why.contains(expected), "{why}");
        return;
    }
    with_a_filter(TEST, libc::SYS_pkey_mprotect, 0);
}
