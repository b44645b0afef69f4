//! What a worker stops by itself: functions that no lexer, no lint and no verifier has seen.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use partywall_abi::function::End;
use partywall_functions::builder::Layer;
use partywall_functions::clock::Exactness;
use partywall_functions::store::Loaded;

use super::host::{self, Host, UPPER, WILD, builder, main_rs};

/// Puts a function in that was built without these layers.
fn put_without(host: &mut Host, layers: &[Layer], text: &str) -> Loaded {
    let built = builder(layers).build(&[main_rs(text)]).unwrap();
    host.load(&built.image)
}

const ALL: [Layer; 3] = [Layer::Lexer, Layer::Lint, Layer::Verifier];

/// The system calls that a worker's filter lets through with zeros.
const ALLOWED: [i64; 3] = [libc::SYS_futex, libc::SYS_getrandom, libc::SYS_exit_group];

/// Makes the system call whose number and two arguments the request has; the others are 0.
const CALLS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     let (number, rest) = r.body().split_first_chunk::<8>().unwrap();\n\
     let mut result = u64::from_le_bytes(*number);\n\
     unsafe { core::arch::asm!(\"syscall\", inout(\"rax\") result, in(\"rdi\") rest[0] as u64, in(\"rsi\") rest[1] as u64,\n\
     in(\"rdx\") 0, in(\"r10\") 0, in(\"r8\") 0, in(\"r9\") 0, out(\"rcx\") _, out(\"r11\") _) }\n\
     Ok(result.to_le_bytes().to_vec()) }";

fn asked(number: i64, arguments: [u8; 2]) -> Vec<u8> {
    [&number.to_le_bytes()[..], &arguments].concat()
}

/// How the worker itself has ended.
fn end_of_worker(host: &mut Host) -> std::process::ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = host.link.child().try_wait().unwrap() {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the worker goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The lint lets a naked function through (rustc 1.95), and without lexer and verifier the filter is left.
#[test]
fn row_46_a_naked_system_call_is_stopped_by_the_filter() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let naked = "#[unsafe(naked)] extern \"C\" fn n() -> i32 {\n\
         core::arch::naked_asm!(\"mov eax, 39\", \"syscall\", \"ret\") }\n\
         pub fn handle(_: Request<'_>) -> Reply { Ok(n().to_le_bytes().to_vec()) }";
    let naked = put_without(&mut host, &[Layer::Lexer, Layer::Verifier], naked);
    for _ in 0..20 {
        let done = host.call(&naked, b"");
        assert_eq!((done.end, i32::from(done.code)), (End::Fault, libc::SIGSYS), "{done:?}");
        let done = host.call(&upper, b"next");
        assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "NEXT"));
    }
}

#[test]
fn row_50_system_calls_that_are_not_in_the_list_are_faults() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let calls = put_without(&mut host, &ALL, CALLS);
    // Those of the x32 ABI are other numbers.
    let others = [-1, i64::MAX, 1 << 30 | libc::SYS_getrandom, 1 << 30 | 514, 1 << 32 | 39];
    for number in (0..=600).chain(others).filter(|number| !ALLOWED.contains(number)) {
        let done = host.call(&calls, &asked(number, [0, 0]));
        let ended = match (done.end, done.short) {
            (End::Reply, Some(result)) => (End::Reply, result.words[0] as i32),
            _ => (done.end, i32::from(done.code)),
        };
        let known = match number {
            // The kernel's own probes, which new kernels take before any filter and refuse themselves.
            335 => &[(End::Fault, libc::SIGSYS), (End::Fault, libc::SIGILL)][..],
            336 => &[(End::Fault, libc::SIGSYS), (End::Reply, -libc::ENXIO)],
            _ => &[(End::Fault, libc::SIGSYS)],
        };
        assert!(known.contains(&ended), "{number}: {ended:?}");
        let done = host.call(&upper, b"next");
        assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "NEXT"), "{number}");
    }
    // Waiting on an address that is none, waking nobody, no random bytes, what this thread has had of the CPU
    // to no address; all other operations are faults.
    let thread = [libc::CLOCK_THREAD_CPUTIME_ID, libc::RUSAGE_THREAD];
    for (number, arguments, result) in [
        (libc::SYS_futex, [0, libc::FUTEX_WAIT], -libc::EFAULT),
        (libc::SYS_futex, [0, libc::FUTEX_WAKE], -libc::EFAULT),
        (libc::SYS_getrandom, [0, 0], 0),
        (libc::SYS_clock_gettime, [thread[0], 0], -libc::EFAULT),
        (libc::SYS_getrusage, [thread[1], 0], -libc::EFAULT),
    ] {
        let done = host.call(&calls, &asked(number, arguments.map(|it| it as u8)));
        assert_eq!((done.end, done.bytes), (End::Reply, 8), "{number}: {done:?}");
        assert_eq!(done.short.unwrap().words[0] as i64, i64::from(result), "{number}");
    }
    let waits = [libc::FUTEX_WAIT, libc::FUTEX_WAKE];
    for (number, first, but) in [
        (libc::SYS_futex, false, &waits[..]),
        (libc::SYS_clock_gettime, true, &thread[..1]),
        (libc::SYS_getrusage, true, &thread[1..]),
    ] {
        for operation in (0..=255).filter(|operation| !but.contains(operation)) {
            let operation = operation as u8;
            let arguments = if first { [operation, 0] } else { [0, operation] };
            let done = host.call(&calls, &asked(number, arguments));
            let ended = (done.end, i32::from(done.code));
            assert_eq!(ended, (End::Fault, libc::SIGSYS), "{number}, {operation}");
        }
    }
    // The one that ends the worker, which its dispatcher sees.
    host.submit(&calls, &asked(libc::SYS_exit_group, [0, 0]));
    assert_eq!(end_of_worker(&mut host).code(), Some(0));
}

/// Another architecture's way into the kernel ends the worker at once.
#[test]
fn row_50_system_calls_of_another_architecture_end_the_worker() {
    let mut host = Host::new();
    let text = "pub fn handle(_: Request<'_>) -> Reply { let mut result = 20_u64;\n\
         unsafe { core::arch::asm!(\"int 0x80\", inout(\"rax\") result) }\n\
         Ok(result.to_le_bytes().to_vec()) }";
    let old = put_without(&mut host, &ALL, text);
    host.submit(&old, b"");
    assert_eq!(end_of_worker(&mut host).signal(), Some(libc::SIGSYS));
}

#[test]
fn row_50_faults_of_a_function_are_its_own() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let text = "static CONSTANT: [u64; 4] = [1, 2, 3, 4];\n\
         fn write(to: *const u8) { unsafe { to.cast_mut().write_volatile(0) } }\n\
         fn read(from: usize) -> Vec<u8> { vec![unsafe { (from as *const u8).read_volatile() }] }\n\
         pub fn handle(r: Request<'_>) -> Reply { unsafe { match r.text()? {\n\
         \"null\" => return Ok(read(0)),\n\
         \"far\" => return Ok(read(0x7fff_ffff_f000)),\n\
         \"kernel\" => return Ok(read(0xffff_8000_0000_0000)),\n\
         \"no address\" => return Ok(read(0x8000_0000_0000_0000)),\n\
         \"constant\" => write(CONSTANT.as_ptr().cast()),\n\
         \"code\" => write(handle as fn(Request<'_>) -> Reply as *const u8),\n\
         \"data as code\" => { let f: fn() = core::mem::transmute(r.body().as_ptr()); f() }\n\
         \"undefined\" => core::arch::asm!(\"ud2\"),\n\
         \"division\" => core::arch::asm!(\"xor ecx, ecx\", \"div ecx\", out(\"ecx\") _, inout(\"eax\") 1 => _, inout(\"edx\") 0 => _),\n\
         \"breakpoint\" => core::arch::asm!(\"int3\"),\n\
         \"step\" => core::arch::asm!(\"pushfq\", \"or qword ptr [rsp], 256\", \"popfq\", \"nop\"),\n\
         \"alignment\" => core::arch::asm!(\"pushfq\", \"or qword ptr [rsp], 0x40000\", \"popfq\", \"mov eax, [rsp + 1]\", out(\"eax\") _),\n\
         \"halt\" => core::arch::asm!(\"hlt\"),\n\
         \"port\" => core::arch::asm!(\"in al, dx\", out(\"al\") _, in(\"dx\") 0x80_u16),\n\
         \"stack\" => core::arch::asm!(\"xor esp, esp\", \"push rax\"),\n\
         \"segment\" => core::arch::asm!(\"mov ds, ax\", in(\"ax\") 0x50_u16),\n\
         _ => {} } } Ok(b\"nothing\".to_vec()) }";
    let bad = put_without(&mut host, &ALL, text);
    for _ in 0..10 {
        for (what, signal) in [
            ("null", libc::SIGSEGV),
            ("far", libc::SIGSEGV),
            ("kernel", libc::SIGSEGV),
            ("no address", libc::SIGSEGV),
            ("constant", libc::SIGSEGV),
            ("code", libc::SIGSEGV),
            ("data as code", libc::SIGSEGV),
            ("undefined", libc::SIGILL),
            ("division", libc::SIGFPE),
            ("breakpoint", libc::SIGTRAP),
            ("step", libc::SIGTRAP),
            ("alignment", libc::SIGBUS),
            ("halt", libc::SIGSEGV),
            ("port", libc::SIGSEGV),
            ("stack", libc::SIGSEGV),
            ("segment", libc::SIGSEGV),
        ] {
            let done = host.call(&bad, what.as_bytes());
            assert_eq!((done.end, i32::from(done.code)), (End::Fault, signal), "{what}: {done:?}");
            let done = host.call(&upper, b"next");
            let said = host.said(&done).0;
            assert_eq!((done.end, said.as_str()), (End::Reply, "NEXT"), "after {what}");
        }
        let done = host.call(&bad, b"none of them");
        assert_eq!(host.said(&done).0, "nothing");
    }
    assert_eq!(host.cell_bytes_in_use(), 0);
}

/// Flags that a function leaves behind, however it ends, are not those of the worker or of the next one.
#[test]
fn row_50_flags_that_a_function_sets_end_with_it() {
    let mut host = Host::new();
    let text = r#"pub fn handle(r: Request<'_>) -> Reply { let all: u64; unsafe {
         let flags = u64::from_le_bytes(r.body()[..8].try_into().unwrap());
         match r.body()[8] {
         0 => core::arch::asm!("pushfq", "or [rsp], {0}", "popfq", in(reg) flags),
         1 => core::arch::asm!("pushfq", "or [rsp], {0}", "popfq", "ud2", in(reg) flags),
         2 => core::arch::asm!("pushfq", "or [rsp], {0}", "popfq", "2:", "jmp 2b", in(reg) flags),
         _ => {} }
         core::arch::asm!("pushfq", "pop {0}", out(reg) all); }
         if r.body()[8] == 0 { return Ok(vec![]) }
         Ok((all & 0x244500).to_le_bytes().to_vec()) }"#;
    let sets = put_without(&mut host, &[Layer::Lexer, Layer::Lint], text);
    let asked = |flags: u64, way: u8| [&flags.to_le_bytes()[..], &[way]].concat();
    for round in 0..50 {
        for flag in [1 << 10, 1 << 14, 1 << 18, 1 << 21, 1 << 14 | 1 << 18] {
            let way = round % 3;
            let number = host.submit(&sets, &asked(flag, way));
            while way == 2 && host.link.peek(number).is_none() {
                host.link.stop(number, Duration::ZERO);
                std::thread::sleep(Duration::from_micros(200));
            }
            let end = host.wait().end;
            let expected = [End::Reply, End::Fault, End::Stopped][usize::from(way)];
            // A flag of alignment may be the fault of what the compiler has put behind it.
            assert!(end == expected || (way == 0 && end == End::Fault), "{flag:#x}: {end:?}");
            // The next one goes on after a signal that is not for it, and has none of the flags.
            let number = host.submit(&sets, &asked(0, 3));
            host.link.stop(number.wrapping_sub(1), Duration::ZERO);
            let done = host.wait();
            assert_eq!(
                (done.end, done.short.unwrap().words[0]),
                (End::Reply, 0),
                "{flag:#x} {way}"
            );
        }
    }
}

/// Safe code that reads any address (rust-lang/rust#25860): every layer before the worker lets it through.
#[test]
fn row_46_lifetimes_that_are_too_long_end_as_a_fault() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let wild = host.put(WILD);
    for address in ["0", "8", "100000", "7fffffffe000", "ffffffffff600000", "deadbeef00000000"] {
        let done = host.call(&wild, address.as_bytes());
        let signal = i32::from(done.code);
        assert_eq!((done.end, signal), (End::Fault, libc::SIGSEGV), "{address}: {done:?}");
        let done = host.call(&upper, b"next");
        assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "NEXT"), "{address}");
    }
}

/// Where functions see the time coarsely, the instruction that reads the counter is a fault.
#[test]
fn the_counter_is_closed_where_the_clock_is_coarse() {
    let reads = "pub fn handle(_: Request<'_>) -> Reply { let (low, high): (u64, u64);\n\
         unsafe { core::arch::asm!(\"rdtsc\", out(\"rax\") low, out(\"rdx\") high) }\n\
         Ok((high << 32 | low).to_le_bytes().to_vec()) }";
    for (exactness, end) in [
        (Exactness::Exact, (End::Reply, 0)),
        (Exactness::Coarse(Duration::from_millis(1)), (End::Fault, libc::SIGSEGV)),
    ] {
        let mut host = Host::with(exactness);
        let (reads, upper) = (put_without(&mut host, &ALL, reads), host.put(UPPER));
        let done = host.call(&reads, b"");
        assert_eq!((done.end, i32::from(done.code)), end, "{exactness:?}");
        assert_eq!(host.call(&upper, b"next").end, End::Reply);
    }
}

/// Makes any system call: the request has its number and six arguments, and behind them bytes whose address
/// is instead of each argument that is all ones.
const ANY: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     let (words, text) = r.body().split_at(56);\n\
     let word = |n: usize| match u64::from_le_bytes(words[8 * n..][..8].try_into().unwrap()) {\n\
     u64::MAX => text.as_ptr() as u64, word => word };\n\
     let mut result = word(0);\n\
     unsafe { core::arch::asm!(\"syscall\", inout(\"rax\") result, in(\"rdi\") word(1), in(\"rsi\") word(2),\n\
     in(\"rdx\") word(3), in(\"r10\") word(4), in(\"r8\") word(5), in(\"r9\") word(6), out(\"rcx\") _, out(\"r11\") _) }\n\
     Ok(result.to_le_bytes().to_vec()) }";

/// The argument that is the address of a text.
const TEXT: u64 = u64::MAX;

/// A worker that has all layers but its filter of system calls, and a function that makes any of them.
struct Unfiltered {
    host: Host,
    any: Loaded,
}

impl Unfiltered {
    fn new() -> Self {
        let mut workers = host::workers(1, Exactness::Exact);
        workers.program.push("--without-filter".into());
        let mut host = Host::of(&workers);
        let any = put_without(&mut host, &ALL, ANY);
        let mut unfiltered = Self { host, any };
        let pid = unfiltered.host.link.pid();
        assert_eq!(
            unfiltered.call(libc::SYS_getpid, [0; 3], b""),
            i64::from(pid),
            "it has a filter"
        );
        unfiltered
    }

    fn call(&mut self, number: i64, [first, second, third]: [u64; 3], text: &[u8]) -> i64 {
        let words = [number as u64, first, second, third, 0, 0, 0];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        let request: Vec<_> = words.chain(text.iter().copied()).collect();
        let done = self.host.call(&self.any, &request);
        assert_eq!((done.end, done.bytes), (End::Reply, 8), "{number}: {done:?}");
        done.short.unwrap().words[0] as i64
    }
}

/// Behind the filter are Landlock, which closes all files, and a limit by which no descriptor is made.
#[test]
fn row_50_behind_the_filter_all_files_are_closed() {
    let mut unfiltered = Unfiltered::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let path = |path: &std::path::Path| [path.as_os_str().as_encoded_bytes(), b"\0"].concat();
    let (there, new) = (path(&file), path(&directory.path().join("new")));
    let denied = -i64::from(libc::EACCES);
    let shell = path(std::path::Path::new("/bin/sh"));
    for (what, number, arguments, text) in [
        ("unlink", libc::SYS_unlink, [TEXT, 0, 0], &there),
        ("mkdir", libc::SYS_mkdir, [TEXT, 0o777, 0], &new),
        ("mknod", libc::SYS_mknod, [TEXT, libc::S_IFIFO.into(), 0], &new),
        ("symlink", libc::SYS_symlink, [TEXT, TEXT, 0], &new),
        ("execve", libc::SYS_execve, [TEXT, 0, 0], &shell),
    ] {
        assert_eq!(unfiltered.call(number, arguments, text), denied, "{what}");
    }
    let flags = [libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_TRUNC];
    let here = i64::from(libc::AT_FDCWD) as u64;
    let mut open = |text: &[u8]| {
        let mut open =
            |flags: i32| unfiltered.call(libc::SYS_openat, [here, TEXT, flags as u64], text);
        flags.map(&mut open)
    };
    for path in [&there[..], b"/etc/passwd\0", b"/proc/self/mem\0", b"/\0"] {
        assert_eq!(open(path), [-i64::from(libc::EMFILE); 3], "by the limit");
    }
    // Where somebody can raise the limit, Landlock is left.
    let more = [16_u64.to_le_bytes(), 16_u64.to_le_bytes()].concat();
    let limit = [u64::from(libc::RLIMIT_NOFILE), TEXT, 0];
    let why = match unfiltered.call(libc::SYS_setrlimit, limit, &more) {
        0 => libc::EACCES,
        raised => {
            assert_eq!(raised, -i64::from(libc::EPERM));
            libc::EMFILE
        }
    };
    let read = [here, TEXT, libc::O_RDONLY as u64];
    assert_eq!(unfiltered.call(libc::SYS_openat, read, &there), -i64::from(why));
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// Behind the filter a worker has three descriptors, from its dispatcher, and gets no rights by a program.
#[test]
fn row_50_behind_the_filter_nothing_is_open_and_no_right_comes() {
    let mut unfiltered = Unfiltered::new();
    let mut is_open = |number: &u64| {
        let flags = [*number, libc::F_GETFD as u64, 0];
        match unfiltered.call(libc::SYS_fcntl, flags, b"") {
            0 | 1 => true,
            why => {
                assert_eq!(why, -i64::from(libc::EBADF), "{number}");
                false
            }
        }
    };
    let open: Vec<_> = (0..1024).filter(&mut is_open).collect();
    assert_eq!(open, [0, 1, 2]);
    // The first is no input: it is at its end.
    assert_eq!(unfiltered.call(libc::SYS_read, [0, TEXT, 1], b" "), 0);
    let status = |host: &mut Host| {
        let status = format!("/proc/{}/status", host.link.pid());
        let status = std::fs::read_to_string(status).unwrap();
        // Capabilities are those of whoever runs this, root for example, if none are given up.
        ["NoNewPrivs", "CapPrm", "CapEff", "Seccomp", "Threads"].map(|key| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
            line.unwrap().to_owned()
        })
    };
    let none = "0000000000000000";
    assert_eq!(status(&mut unfiltered.host), ["1", none, none, "0", "1"]);
    assert_eq!(status(&mut Host::new()), ["1", none, none, "2", "1"]);
}
