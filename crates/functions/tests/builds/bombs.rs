//! Sources that would have the compiler burn, fill or tell: each ends within its limits, and says why.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use partywall_functions::builder::{BuildError, Builder, Toolchain};
use partywall_functions::sandbox::Limits;
use partywall_testkit::{Random, is_full};

use super::File;

/// How many bombs there are without `--full`.
const QUICK: usize = 4;
/// The limit of a build.
const TIME: Duration = Duration::from_secs(8);

/// How a bomb ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The compiler has had enough of it first.
    Compiler,
    /// The sandbox has.
    Limit,
    /// The lexer refuses to give it to the compiler.
    Source,
    /// It is a large function, and nothing else.
    Built,
    /// It is no image.
    Verifier,
}

fn ended(text: &str) -> (End, String) {
    let toolchain = Toolchain::of(Path::new("rustc")).unwrap();
    let sandbox = vec![env!("CARGO_BIN_EXE_functions-sandbox").to_owned()];
    let limits = Limits { time: TIME, memory: 1 << 30, file: 16 << 20, ..Limits::default() };
    let text = format!("{text}\npub fn handle(_: Request<'_>) -> Reply {{ bomb() }}\n");
    let builder = Builder::new(toolchain, sandbox, limits);
    match builder.build(&[File { path: "main.rs".into(), text }]) {
        Ok(built) => (End::Built, format!("{} tries", built.tries)),
        Err(why) => {
            let end = match &why {
                BuildError::Compiler(_) => End::Compiler,
                BuildError::Limit(_) => End::Limit,
                BuildError::Source(_) => End::Source,
                BuildError::Verify(_) => End::Verifier,
                other => panic!("{other}"),
            };
            (end, why.to_string())
        }
    }
}

/// The bombs: what they do, and what may stop them.
fn bombs() -> Vec<(&'static str, String, &'static [End])> {
    let own = |text: &str| text.to_owned();
    let mut doubled = own("type T0 = u8;\n");
    for n in 1..40 {
        writeln!(doubled, "type T{n} = (T{0}, T{0});", n - 1).unwrap();
    }
    doubled += "fn bomb() -> Reply { Ok(vec![core::mem::size_of::<T39>() as u8]) }";
    let wrong: String = (0..20_000).map(|n| format!("const C{n}: u8 = \"\";\n")).collect();
    vec![
        (
            "a constant that never ends",
            own(
                "const N: u64 = { let mut n = 0_u64; loop { n = n.wrapping_add(1); if n == u64::MAX { break n } } };\n\
                 #[allow(long_running_const_eval)] fn bomb() -> Reply { Ok(vec![N as u8]) }",
            ),
            &[End::Compiler, End::Limit],
        ),
        (
            "a constant that never ends, and says that it may",
            own("#[allow(long_running_const_eval)] const N: u64 = { let mut n = 0_u64;\n\
                 while n != u64::MAX { n = n.wrapping_add(1) } n };\n\
                 fn bomb() -> Reply { Ok(vec![N as u8]) }"),
            &[End::Limit],
        ),
        (
            "types within types",
            own(
                "fn f<T>(n: u32) -> usize { if n == 0 { size_of::<T>() } else { f::<(T, T)>(n - 1) } }\n\
                 fn bomb() -> Reply { Ok(vec![f::<u8>(core::hint::black_box(9)) as u8]) }",
            ),
            &[End::Compiler, End::Limit],
        ),
        ("names for types within types", doubled, &[End::Compiler, End::Limit]),
        (
            "macros within macros",
            own(
                "macro_rules! m { ($($t:tt)*) => { m!($($t)* $($t)*) } }\nfn bomb() -> Reply { m!(1) }",
            ),
            &[End::Compiler, End::Limit],
        ),
        (
            "traits within traits",
            own(
                "trait T { const N: u64; } struct S<X>(X); impl<X> T for S<X> where S<S<X>>: T { const N: u64 = 1; }\n\
                 fn bomb() -> Reply { Ok(vec![<S<u8> as T>::N as u8]) }",
            ),
            &[End::Compiler],
        ),
        (
            "a large constant",
            own("static ALL: [u8; 200 << 20] = [7; 200 << 20];\n\
                 fn bomb() -> Reply { Ok(vec![ALL[core::hint::black_box(5)]]) }"),
            &[End::Limit],
        ),
        (
            "large data",
            own("use core::sync::atomic::{AtomicU8, Ordering};\n\
                 static ALL: [AtomicU8; 1 << 20] = [const { AtomicU8::new(0) }; 1 << 20];\n\
                 fn bomb() -> Reply { Ok(vec![ALL[core::hint::black_box(5)].fetch_add(1, Ordering::Relaxed)]) }"),
            &[End::Verifier],
        ),
        (
            "a text made of itself",
            own("macro_rules! m { ($t:expr) => { concat!($t, $t, $t, $t, $t, $t, $t, $t) } }\n\
                 fn bomb() -> Reply { Ok(m!(m!(m!(m!(m!(m!(m!(m!(m!(m!(\"0123456789abcdef\")))))))))).into()) }"),
            &[End::Compiler, End::Limit],
        ),
        ("many errors", wrong + "fn bomb() -> Reply { Ok(vec![]) }", &[End::Compiler, End::Limit]),
        (
            "brackets",
            format!("fn bomb() -> Reply {{ Ok(vec![{}1{}]) }}", "(".repeat(5000), ")".repeat(5000)),
            &[End::Source],
        ),
        (
            "signs",
            format!("fn bomb() -> Reply {{ Ok(vec![u8::from({}true)]) }}", "!".repeat(100_000)),
            &[End::Limit],
        ),
        (
            "patterns",
            own("fn bomb() -> Reply { let t = core::hint::black_box([Some(1_u8); 14]);\n\
                 Ok(vec![match t { [None, ..] => 1, [_, None, ..] => 2, [.., Some(3)] => 3, _ => 4 }]) }"),
            &[End::Built],
        ),
    ]
}

#[test]
fn row_56_sources_that_would_burn_or_fill_end_within_limits() {
    let mut bombs = bombs();
    if !is_full() {
        Random::of_this_run().shuffle(&mut bombs);
        bombs.truncate(QUICK);
    }
    for (name, text, ends) in bombs {
        let begun = Instant::now();
        let (end, why) = ended(&text);
        let taken = begun.elapsed();
        let short: String = why.chars().take(160).collect();
        println!("{name}: {end:?} in {taken:.1?}: {short:?}");
        assert!(ends.contains(&end), "{name}: {end:?}: {short}");
        // The crate that functions are written against is built before, with a limit of its own.
        assert!(taken < 2 * TIME + Duration::from_secs(10), "{name}: {taken:?}");
        assert!(why.len() <= Limits::default().text + 4096, "{name}: {} bytes of text", why.len());
        assert!(
            !["/toolchain/", "/build/", ".so"].iter().any(|host| why.contains(host)),
            "{name}: {short}"
        );
    }
}
