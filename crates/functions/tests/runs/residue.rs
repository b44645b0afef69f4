//! What one function leaves behind, and the next one looks for: in its cell, its data and all registers.
//!
//! Both are built without lexer and lint, so that they reach what safe code does not.

use std::fmt::Write as _;
use std::time::Duration;

use partywall_abi::function::End;
use partywall_functions::builder::Layer;
use partywall_functions::store::Loaded;
use partywall_testkit::Random;

use super::host::{Host, OUT, builder, main_rs};

/// What the processor has: lines of assembly that fill all vectors with the word in `rdi`, and those that
/// write them to where `rsi` points, 64 bytes each.
fn vectors() -> (String, String, usize) {
    let (mut fill, mut show) = (String::new(), String::new());
    let avx512 = std::arch::is_x86_feature_detected!("avx512f");
    let avx2 = std::arch::is_x86_feature_detected!("avx2");
    let count = if avx512 { 32 } else { 16 };
    for n in 0..count {
        if avx512 {
            write!(fill, "\"vpbroadcastq zmm{n}, rdi\", ").unwrap();
            write!(show, "\"vmovdqu64 [rsi + {}], zmm{n}\", ", 64 * n).unwrap();
        } else if avx2 {
            write!(fill, "\"vmovq xmm{n}, rdi\", \"vpbroadcastq ymm{n}, xmm{n}\", ").unwrap();
            write!(show, "\"vmovdqu [rsi + {}], ymm{n}\", ", 64 * n).unwrap();
        } else {
            write!(fill, "\"movq xmm{n}, rdi\", \"punpcklqdq xmm{n}, xmm{n}\", ").unwrap();
            write!(show, "\"movdqu [rsi + {}], xmm{n}\", ", 64 * n).unwrap();
        }
    }
    for n in 0..if avx512 { 8 } else { 0 } {
        write!(fill, "\"kmovw k{n}, edi\", ").unwrap();
        write!(show, "\"kmovw eax, k{n}\", \"mov [rsi + {}], eax\", ", 64 * 32 + 4 * n).unwrap();
    }
    (fill, show, count)
}

/// Leaves a word wherever it can, and ends in one of four ways.
fn leaves() -> String {
    let fill = vectors().0;
    let legacy: String = (0..8).map(|n| format!("\"movq mm{n}, rdi\", ")).collect();
    format!(
        "use core::sync::atomic::{{AtomicU64, Ordering::Relaxed}};\n\
         static WORDS: [AtomicU64; 8] = [const {{ AtomicU64::new(0) }}; 8];\n\
         #[inline(never)] fn deep(word: u64, n: u32) -> u64 {{\n\
         let words = core::hint::black_box([word; 16]);\n\
         if n == 0 {{ words[3] }} else {{ deep(word, n - 1) ^ words[5] }} }}\n\
         pub fn handle(r: Request<'_>) -> Reply {{\n\
         let word = u64::from_le_bytes(r.body()[..8].try_into().unwrap());\n\
         for _ in 0..20 {{ core::mem::forget(vec![word; 1000]); }}\n\
         core::hint::black_box(deep(word, 20));\n\
         WORDS.iter().for_each(|w| w.store(word, Relaxed));\n\
         for _ in 0..100 {{ log!(\"{{}}\", char::from(word as u8 | 64)); }}\n\
         let way = u64::from(r.body()[8]);\n\
         unsafe {{ core::arch::asm!({fill} {legacy}\n\
         \"ldmxcsr [rsi]\",\n\
         \"mov rax, rdi\", \"mov rcx, rdi\", \"mov r8, rdi\", \"mov r9, rdi\", \"mov r10, rdi\", \"mov r11, rdi\",\n\
         \"cmp rdx, 2\", \"jb 3f\",\n\
         \"mov rsi, rdi\", \"mov rbx, rdi\", \"mov rbp, rdi\", \"mov r12, rdi\", \"mov r13, rdi\",\n\
         \"mov r14, rdi\", \"mov r15, rdi\",\n\
         \"cmp rdx, 3\", \"2:\", \"je 2b\", \"ud2\", \"3:\",\n\
         in(\"rdi\") word, in(\"rsi\") &0x7f80_u32, in(\"rdx\") way, out(\"rax\") _, out(\"rcx\") _,\n\
         out(\"r8\") _, out(\"r9\") _, out(\"r10\") _, out(\"r11\") _) }}\n\
         if way == 1 {{ panic!() }} Ok(vec![]) }}"
    )
}

/// Says what it finds: all vectors and masks, then the state of x87 and SSE (FXSAVE), then the other
/// registers, then how often a word whose complement it is told lies in its cell, how many bytes of its heap
/// are not 0, and the sum of its statics. With a request that begins with 1 it calls a service before.
fn finds() -> String {
    let show = vectors().1;
    format!(
        "use core::sync::atomic::{{AtomicU64, Ordering::Relaxed}};\n\
         use partywall_fn::cell::{{CELL_BYTES, Header, STACK_TOP}};\n\
         static WORDS: [AtomicU64; 8] = [const {{ AtomicU64::new(0) }}; 8];\n\
         #[repr(align(64))] struct Seen([u64; 8 * 33 + 64 + 16]);\n\
         #[inline(always)] fn look(seen: &mut Seen) {{ unsafe {{ core::arch::asm!({show}\n\
         \"fxsave64 [rsi + 2112]\", \"mov [rsi + 2624], rbx\", \"mov [rsi + 2632], rcx\",\n\
         \"mov [rsi + 2640], rdx\", \"mov [rsi + 2648], rdi\", \"mov [rsi + 2656], rbp\",\n\
         \"mov [rsi + 2664], r8\", \"mov [rsi + 2672], r9\", \"mov [rsi + 2680], r10\",\n\
         \"mov [rsi + 2688], r11\", \"mov [rsi + 2696], r12\", \"mov [rsi + 2704], r13\",\n\
         \"mov [rsi + 2712], r14\", \"mov [rsi + 2720], r15\",\n\
         in(\"rsi\") seen.0.as_mut_ptr(), out(\"rax\") _) }} }}\n\
         pub fn handle(r: Request<'_>) -> Reply {{\n\
         let mut seen = Seen([0; 8 * 33 + 64 + 16]);\n\
         if r.body()[0] == 1 {{\n\
         unsafe {{ core::arch::asm!(\"\", out(\"xmm0\") _) }}\n\
         let _ = partywall_fn::service::call(\"a\", \"/b\", b\"\"); }}\n\
         look(&mut seen);\n\
         let word = !u64::from_le_bytes(r.body()[1..9].try_into().unwrap());\n\
         let cell = core::ptr::from_ref(&seen) as usize & !(CELL_BYTES - 1);\n\
         let header = unsafe {{ &*(cell as *const Header) }};\n\
         let count = |from: usize, to: usize, is: &dyn Fn(u64) -> bool| (from..to).step_by(8)\n\
         .filter(|at| is(unsafe {{ (*at as *const u64).read_volatile() }})).count() as u64;\n\
         let (end, used) = (header.heap_end as usize, (header.heap_next as usize).next_multiple_of(8));\n\
         let top = cell + STACK_TOP;\n\
         let same = count(cell, end, &|w| w == word) + count(top - (8 << 10), top, &|w| w == word);\n\
         let log = count(cell + 4096, cell + 8192, &|w| w != 0);\n\
         let heap = count(used, end, &|w| w != 0);\n\
         let statics = WORDS.iter().map(|w| w.load(Relaxed)).fold(0, u64::wrapping_add);\n\
         let all = seen.0.iter().copied().chain([same, log, heap, statics]);\n\
         Ok(all.flat_map(u64::to_le_bytes).collect()) }}"
    )
}

struct Rig {
    host: Host,
    leaves: Loaded,
    finds: Loaded,
    vectors: usize,
}

impl Rig {
    fn new() -> Self {
        let builder = builder(&[Layer::Lexer, Layer::Lint]);
        let image = |text: &str| builder.build(&[main_rs(text)]).unwrap().image;
        let mut host = Host::new();
        let (leaves, finds) = (host.load(&image(&leaves())), host.load(&image(&finds())));
        Self { host, leaves, finds, vectors: vectors().2 }
    }

    fn leave(&mut self, word: u64, way: u8) {
        let request = [&word.to_le_bytes()[..], &[way]].concat();
        let number = self.host.submit(&self.leaves, &request);
        while way == 3 && self.host.link.peek(number).is_none() {
            self.host.link.stop(number, Duration::ZERO);
            std::thread::sleep(Duration::from_micros(200));
        }
        let ends = [End::Reply, End::Panic, End::Fault, End::Stopped];
        assert_eq!(self.host.wait().end, ends[usize::from(way)]);
    }

    /// What has been found is nothing of `word`.
    fn check(&self, bytes: &[u8], word: u64) {
        let word_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let copies: Vec<_> = (0..2736).filter(|at| word_at(*at) == word).collect();
        assert!(copies.is_empty(), "{word:#x} is in registers: {copies:?}");
        // Vectors that no code between the entry and the look has used, and masks.
        let unused = 64 * 8..64 * self.vectors;
        assert!(bytes[unused].iter().all(|byte| *byte == 0), "vectors are not zeros");
        assert!(bytes[64 * 32..64 * 33].iter().all(|byte| *byte == 0), "masks are not zeros");
        let legacy = &bytes[2112..];
        assert_eq!(legacy[..2], 0x37f_u16.to_le_bytes(), "the x87 control word");
        assert_eq!(legacy[4], 0, "x87 registers are in use");
        assert_eq!(legacy[24..28], 0x1f80_u32.to_le_bytes(), "MXCSR");
        for n in 0..8 {
            assert_eq!(legacy[32 + 16 * n..][..10], [0; 10], "x87 register {n}");
        }
        let counts = [0, 8, 16, 24].map(|at| word_at(64 * 33 + 512 + 128 + at));
        assert_eq!(counts, [0; 4], "in the cell, the log, the heap, the statics");
    }
}

#[test]
fn row_52_the_next_function_finds_zeros_however_one_ends() {
    let mut rig = Rig::new();
    let mut random = Random::of_this_run();
    for round in 0..200 {
        let word = random.draw();
        rig.leave(word, (round % 4) as u8);
        let request = [&[0][..], &(!word).to_le_bytes()].concat();
        let done = rig.host.call(&rig.finds, &request);
        assert_eq!(done.end, End::Reply, "{done:?}");
        let bytes = rig.host.link.read(OUT, done.bytes as usize);
        rig.check(&bytes, word);
    }
}

/// A function that waits goes on with what it had itself, and nothing of those that ran meanwhile.
#[test]
fn row_52_a_function_that_has_waited_finds_nothing_of_others() {
    let mut rig = Rig::new();
    let mut random = Random::of_this_run();
    for round in 0..40 {
        let word = random.draw();
        let request = [&[1][..], &(!word).to_le_bytes()].concat();
        rig.host.cell = 1;
        let done = rig.host.call(&rig.finds, &request);
        assert_eq!(done.end, End::Calls, "{done:?}");
        rig.host.cell = 0;
        rig.leave(word, (round % 4) as u8);
        rig.host.resume(1, 0, b"x");
        let done = rig.host.wait();
        assert_eq!(done.end, End::Reply, "{done:?}");
        let bytes = rig.host.link.read(OUT, done.bytes as usize);
        rig.check(&bytes, word);
        rig.host.link.clean(1).unwrap();
    }
}
