//! Programs of one address space run as if alone, and die alone.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::task::Domain;

use rustix::io::Errno;
use rustix::process::WaitOptions;

use crate::host::{
    Running, bytes, c, in_a_launcher, in_time, mapped, path, program, programs, rust, sealed,
    slowness, start, start_in, where_cores_are_written,
};

const LONG: Duration = Duration::from_secs(5);

in_a_launcher! {
    fn c_programs_run_as_if_alone(space) {
        let image = c("everything.c");
        // Where the next slot is, the program learns from its arguments.
        let slot = |n: u64| {
            let low = space.range().start + n * partywall_domain::address_space::SLOT;
            [low, low + partywall_domain::address_space::SLOT].map(|at| format!("{at:x}"))
        };
        let running: Vec<_> = (0..3)
            .map(|n| {
                let [low, high] = slot(n);
                start(space, &image, &[&low, &high, &path(&image)])
            })
            .collect();
        // This process's own heap is at work beside theirs.
        let mut blocks = Vec::new();
        for n in 0..200_000_usize {
            blocks.push(vec![n as u8; n % 3000]);
            if n % 3 == 0 {
                blocks.swap_remove(n * 7 % blocks.len());
            }
        }
        for running in running {
            let (status, said) = running.end();
            assert_eq!((status.code(), said.as_str()), (Some(0), "ok\n"), "{status}");
        }
        assert!(blocks.iter().all(|b| b.iter().all(|byte| *byte == b[0])));
        assert_eq!(mapped(space.range()), 0);
    }
}

in_a_launcher! {
    fn rust_programs_run_as_if_alone(space) {
        let image = rust("everything.rs");
        let running: Vec<_> =
            ["a b", "c"].iter().map(|word| start(space, &image, &[word])).collect();
        let said: Vec<_> = running.into_iter().map(Running::end).collect();
        for ((status, said), word) in said.iter().zip(["a b\n", "c\n"]) {
            assert_eq!((status.code(), said.as_str()), (Some(0), word));
        }
    }
}

in_a_launcher! {
    fn programs_that_end_at_once_have_been_started(space) {
        let image = c("end.c");
        for _ in 0..300 / slowness() {
            let (status, said) = start(space, &image, &["exit"]).end();
            assert_eq!((status.code(), said.as_str()), (Some(3), "ready\n"));
        }
    }
}

in_a_launcher! {
    fn a_domain_dies_alone_and_leaves_nothing(space) {
        let dir = where_cores_are_written();
        let image = c("end.c");
        let mut witness = start(space, &image, &["stay"]);
        witness.ready();
        let ways = [
            ("segv", libc::SIGSEGV),
            ("abort", libc::SIGABRT),
            ("ud2", libc::SIGILL),
            ("overflow", libc::SIGSEGV),
            ("loop", libc::SIGKILL),
            ("stay", libc::SIGKILL),
        ];
        for (way, signal) in ways {
            let mut victim = start_in(dir.path(), space, &image, &[way]);
            victim.ready();
            let range = victim.domain.range();
            assert!(mapped(range.clone()) > 3);
            if signal == libc::SIGKILL {
                victim.domain.signal(rustix::process::Signal::KILL).unwrap();
            }
            let (status, _) = victim.end();
            assert_eq!(status.signal(), Some(signal), "{way}");
            assert!(!status.core_dumped(), "{way}");
            assert_eq!(mapped(range), 0, "{way}");
        }
        let mut victim = start(space, &image, &["exit"]);
        victim.ready();
        assert_eq!(victim.end().0.code(), Some(3));
        assert!(witness.domain.try_wait().unwrap().is_none());
    }
}

in_a_launcher! {
    fn a_domain_that_stands_still_for_its_tracer_has_not_ended(space) {
        let mut traced = start(space, &c("end.c"), &["traced"]);
        traced.ready();
        let stopped = || std::fs::read_to_string(format!("/proc/{}/stat", traced.domain.pid()))
            .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" t")));
        in_time(LONG, "a trace stop", || while !stopped() { std::thread::yield_now() });
        assert_eq!(traced.domain.try_wait().unwrap(), None);
        let range = traced.domain.range();
        in_time(LONG, "the end of one that is traced", || drop(traced));
        assert_eq!(mapped(range), 0);
        assert_eq!(rustix::process::wait(WaitOptions::NOHANG).unwrap_err(), Errno::CHILD);
    }
}

in_a_launcher! {
    fn a_debugger_that_keeps_a_dead_domain_holds_up_nobody(space) {
        let (image, debugger) = (c("end.c"), c("tracer.c"));
        let mut witness = start(space, &image, &["stay"]);
        witness.ready();
        let mut victim = start(space, &image, &["stay"]);
        victim.ready();
        let range = victim.domain.range();
        let mut debugger = Command::new(path(&debugger))
            .arg(victim.domain.pid().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(debugger.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "traced\n");
        in_time(LONG, "the end of one that a debugger keeps", || drop(victim));
        assert_eq!(mapped(range.clone()), 0);
        assert!(witness.domain.try_wait().unwrap().is_none());
        debugger.kill().unwrap();
        debugger.wait().unwrap();
        // What the debugger has kept goes with the next start, into the same place.
        let next = start(space, &image, &["stay"]);
        assert_eq!(next.domain.range(), range);
        drop((next, witness));
        assert_eq!(rustix::process::wait(WaitOptions::NOHANG).unwrap_err(), Errno::CHILD);
    }
}

in_a_launcher! {
    fn domains_die_with_the_thread_that_started_them(space) {
        let image = c("end.c");
        let space = space.clone();
        let mut running = std::thread::spawn(move || {
            let mut running = start(&space, &image, &["stay"]);
            running.ready();
            running
        })
        .join()
        .unwrap();
        assert_eq!(running.domain.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

in_a_launcher! {
    fn a_file_that_can_change_is_refused(space) {
        let image = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::empty()).unwrap();
        let (program, _output) = program(&image, &[]);
        let why = Domain::start(space, program).unwrap_err().to_string();
        assert!(why.contains("not sealed"), "{why}");
    }
}

in_a_launcher! {
    fn what_cannot_be_entered_says_why(space) {
        let image = c("end.c");
        let (mut bad, _output) = program(&image, &[]);
        bad.directory = "/no/such/directory".into();
        let why = Domain::start(space, bad).unwrap_err().to_string();
        assert!(why.starts_with("changing to the working directory: No such file"), "{why}");
        assert_eq!(mapped(space.range()), 0);
        let dynamic = sealed(&std::fs::read("/bin/true").unwrap());
        let (program, _output) = program(&dynamic, &[]);
        let why = Domain::start(space, program).unwrap_err().to_string();
        assert!(why.contains("static-pie") && why.contains("interpreter"), "{why}");
    }
}

#[test]
fn a_process_with_restartable_sequences_is_refused() {
    if std::env::var_os("GLIBC_TUNABLES").is_none() {
        let why = AddressSpace::new(Isolation::None).unwrap_err().to_string();
        assert!(why.contains("GLIBC_TUNABLES=glibc.pthread.rseq=0"), "{why}");
    }
}

/// Also keeps the programs, where it is told to, for machines without a compiler.
#[test]
fn every_program_of_the_tests_is_there() {
    let names = programs();
    assert!(names.len() > 3, "{names:?}");
    let keep = std::env::var_os("PARTYWALL_KEEP_PROGRAMS").map(std::path::PathBuf::from);
    for name in names {
        let program = bytes(&name);
        assert!(program.starts_with(b"\x7fELF"), "{name}");
        if let Some(dir) = &keep {
            std::fs::write(dir.join(&name), program).unwrap();
        }
    }
}
