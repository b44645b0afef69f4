//! What a worker stops by itself: functions that no lexer, no lint and no verifier has seen.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use partywall_abi::function::End;
use partywall_functions::builder::Layer;
use partywall_functions::clock::Exactness;
use partywall_functions::store::Loaded;

use super::host::{Host, UPPER, WILD, builder, main_rs};

/// Puts a function in that was built without these layers.
fn put_without(host: &mut Host, layers: &[Layer], text: &str) -> Loaded {
    let built = builder(layers).build(&[main_rs(text)]).unwrap();
    host.load(&built.image)
}

const ALL: [Layer; 3] = [Layer::Lexer, Layer::Lint, Layer::Verifier];

/// The system calls that a worker's filter lets through.
const ALLOWED: [i64; 3] = [libc::SYS_futex, libc::SYS_getrandom, libc::SYS_exit_group];

/// Makes the system call whose number and second argument the request has; the others are 0.
const CALLS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     let (number, rest) = r.body().split_first_chunk::<8>().unwrap();\n\
     let mut result = u64::from_le_bytes(*number);\n\
     unsafe { core::arch::asm!(\"syscall\", inout(\"rax\") result, in(\"rdi\") 0, in(\"rsi\") rest[0] as u64,\n\
     in(\"rdx\") 0, in(\"r10\") 0, in(\"r8\") 0, in(\"r9\") 0, out(\"rcx\") _, out(\"r11\") _) }\n\
     Ok(result.to_le_bytes().to_vec()) }";

fn asked(number: i64, second: u8) -> Vec<u8> {
    [&number.to_le_bytes()[..], &[second]].concat()
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
fn row_50_system_calls_of_every_number_but_three_are_faults() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let calls = put_without(&mut host, &ALL, CALLS);
    // Those of the x32 ABI are other numbers.
    let others = [-1, i64::MAX, 1 << 30 | libc::SYS_getrandom, 1 << 30 | 514, 1 << 32 | 39];
    for number in (0..=600).chain(others).filter(|number| !ALLOWED.contains(number)) {
        let done = host.call(&calls, &asked(number, 0));
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
    // Waiting on an address that is none, waking nobody, no random bytes; all other operations are faults.
    for (number, second, result) in [
        (libc::SYS_futex, libc::FUTEX_WAIT, -libc::EFAULT),
        (libc::SYS_futex, libc::FUTEX_WAKE, -libc::EFAULT),
        (libc::SYS_getrandom, 0, 0),
    ] {
        let done = host.call(&calls, &asked(number, second as u8));
        assert_eq!((done.end, done.bytes), (End::Reply, 8), "{number}: {done:?}");
        assert_eq!(done.short.unwrap().words[0] as i64, i64::from(result), "{number}");
    }
    for operation in (2..=255).filter(|n| *n != libc::FUTEX_WAIT && *n != libc::FUTEX_WAKE) {
        let done = host.call(&calls, &asked(libc::SYS_futex, operation as u8));
        assert_eq!((done.end, i32::from(done.code)), (End::Fault, libc::SIGSYS), "{operation}");
    }
    // The one that ends the worker, which its dispatcher sees.
    host.submit(&calls, &asked(libc::SYS_exit_group, 0));
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
                host.link.stop(number);
                std::thread::sleep(Duration::from_micros(200));
            }
            let end = host.wait().end;
            let expected = [End::Reply, End::Fault, End::Stopped][usize::from(way)];
            // A flag of alignment may be the fault of what the compiler has put behind it.
            assert!(end == expected || (way == 0 && end == End::Fault), "{flag:#x}: {end:?}");
            // The next one goes on after a signal that is not for it, and has none of the flags.
            let number = host.submit(&sets, &asked(0, 3));
            host.link.stop(number.wrapping_sub(1));
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
