//! Sources that try to get out of the language, and the layer that stops each: with all of them, and with
//! those before it left out.

use std::path::Path;

use partywall_functions::builder::{BuildError, Builder, Layer, Toolchain};
use partywall_functions::sandbox::Limits;
use partywall_functions::verify;
use partywall_testkit::{Random, is_full};

use super::{BUILDER, File};

/// What stops a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Lexer,
    Lint,
    Compiler,
    Linker,
    Verifier,
    /// Nothing: it is built, and the worker is to contain it.
    Nobody,
}

/// A builder without these layers.
pub(super) fn without(layers: &[Layer]) -> Builder {
    let toolchain = Toolchain::of(Path::new("rustc")).unwrap();
    let sandbox = vec![env!("CARGO_BIN_EXE_functions-sandbox").to_owned()];
    Builder::new(toolchain, sandbox, Limits::default()).without_for_tests(layers)
}

/// What stops a source with all layers, or in one try of a builder that has no lexer.
pub(super) fn stopped(builder: Option<&Builder>, text: &str) -> (By, String) {
    let files = [File { path: "main.rs".into(), text: text.into() }];
    let image = match builder {
        None => BUILDER.build(&files).map(|built| built.image),
        Some(builder) => {
            builder.object_for_tests(&files, false).and_then(|o| Ok(verify::image(&o)?))
        }
    };
    match image {
        Ok(image) => (By::Nobody, format!("{} bytes", image.code.len())),
        Err(why) => {
            let by = match &why {
                BuildError::Source(_) => By::Lexer,
                BuildError::Compiler(said) if said.contains("-F unsafe-code") => By::Lint,
                BuildError::Compiler(_) => By::Compiler,
                BuildError::Linker(_) => By::Linker,
                BuildError::Verify(_) | BuildError::Forbidden(_) => By::Verifier,
                other => panic!("{other}"),
            };
            (by, why.to_string())
        }
    }
}

/// How many tricks are tried without `--full`.
const QUICK: usize = 8;

/// What stands behind each trick.
pub(super) const HANDLE: &str = "\npub fn handle(_: Request<'_>) -> Reply { Ok(vec![]) }";

/// The attack row's tricks: their names, sources, and what stops them with all layers, without the lexer,
/// and without the lint too.
const TRICKS: &[(&str, &str, [By; 3])] = &[
    (
        "naked",
        "#[unsafe(naked)] pub extern \"C\" fn n() { core::arch::naked_asm!(\"mov eax, 39\", \"syscall\", \"ret\") }\n\
      pub fn handle(_: Request<'_>) -> Reply { n(); Ok(vec![]) }",
        [By::Lexer, By::Verifier, By::Verifier],
    ),
    (
        "block",
        "pub fn handle(_: Request<'_>) -> Reply { unsafe { core::arch::asm!(\"syscall\") } Ok(vec![]) }",
        [By::Lexer, By::Lint, By::Verifier],
    ),
    (
        "macro",
        "macro_rules! m { () => { unsafe { core::arch::asm!(\"syscall\") } } }\n\
      pub fn handle(_: Request<'_>) -> Reply { m!(); Ok(vec![]) }",
        [By::Lexer, By::Lint, By::Verifier],
    ),
    (
        "macro of the crate",
        "pub fn handle(_: Request<'_>) -> Reply { log!(\"{}\", unsafe { core::mem::zeroed::<u8>() }); Ok(vec![]) }",
        [By::Lexer, By::Lint, By::Nobody],
    ),
    (
        "global assembly",
        "core::arch::global_asm!(\".globl x\", \"x: syscall\", \"ret\");\n\
      unsafe extern \"C\" { safe fn x(); }\npub fn handle(_: Request<'_>) -> Reply { x(); Ok(vec![]) }",
        [By::Lexer, By::Lint, By::Verifier],
    ),
    (
        "file as text",
        "pub const T: &str = include_str!(\"/etc/passwd\");",
        [By::Lexer, By::Compiler, By::Compiler],
    ),
    (
        "file as bytes",
        "pub const T: &[u8] = include_bytes!(\"/proc/self/environ\");",
        [By::Lexer, By::Compiler, By::Compiler],
    ),
    ("file as code", "include!(\"/etc/passwd\");", [By::Lexer, By::Compiler, By::Compiler]),
    ("path", "#[path = \"/etc/passwd\"] mod x;", [By::Lexer, By::Compiler, By::Compiler]),
    ("environment", "pub const T: &str = env!(\"HOME\");", [By::Lexer, By::Compiler, By::Compiler]),
    (
        "environment by another name",
        "use core::env as e; pub const T: &str = e!(\"HOME\");",
        [By::Compiler, By::Compiler, By::Compiler],
    ),
    (
        "foreign items",
        "unsafe extern \"C\" { safe fn getpid() -> i32; }\n\
      pub fn handle(_: Request<'_>) -> Reply { Ok(vec![getpid() as u8]) }",
        [By::Lexer, By::Lint, By::Verifier],
    ),
    (
        "library",
        "#[link(name = \"c\")] unsafe extern \"C\" { safe fn getpid() -> i32; }\n\
      pub fn handle(_: Request<'_>) -> Reply { Ok(vec![getpid() as u8]) }",
        [By::Lexer, By::Lint, By::Linker],
    ),
    (
        "standard library",
        "extern crate std;\n\
      pub fn handle(_: Request<'_>) -> Reply { Ok(std::fs::read(\"/proc/self/mem\").unwrap_or_default()) }",
        [By::Lexer, By::Linker, By::Linker],
    ),
    (
        "standard library by path",
        "pub fn handle(_: Request<'_>) -> Reply { Ok(std::fs::read(\"/x\").unwrap_or_default()) }",
        [By::Compiler, By::Compiler, By::Compiler],
    ),
    (
        "constructor",
        "#[used] #[unsafe(link_section = \".init_array\")] pub static F: fn() = f; fn f() {}",
        [By::Lexer, By::Lint, By::Verifier],
    ),
    (
        "constructor of old",
        "#[used] #[link_section = \".init_array\"] pub static F: fn() = f; fn f() {}",
        [By::Lexer, By::Lint, By::Compiler],
    ),
    (
        "symbol",
        "#[unsafe(no_mangle)] pub extern \"C\" fn partywall_entry() {}",
        [By::Lexer, By::Lint, By::Linker],
    ),
    (
        "exported name",
        "#[unsafe(export_name = \"memcpy\")] pub extern \"C\" fn f() {}",
        [By::Lexer, By::Lint, By::Linker],
    ),
    ("feature", "#![feature(naked_functions_rustic_abi)]", [By::Lexer, By::Compiler, By::Compiler]),
    (
        "allowed",
        "#![allow(unsafe_code)] pub fn f() { unsafe { core::arch::asm!(\"nop\") } }",
        [By::Lexer, By::Lint, By::Nobody],
    ),
    (
        "panic handler",
        "#[panic_handler] fn p(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }",
        [By::Lexer, By::Linker, By::Linker],
    ),
    (
        "allocator",
        "struct A; unsafe impl core::alloc::GlobalAlloc for A { unsafe fn alloc(&self, _: core::alloc::Layout) -> *mut u8 { 8 as _ }\n\
      unsafe fn dealloc(&self, _: *mut u8, _: core::alloc::Layout) {} }\n#[global_allocator] static H: A = A;",
        [By::Lexer, By::Lint, By::Linker],
    ),
    (
        "thread-local data",
        "#[thread_local] pub static T: core::cell::Cell<u8> = core::cell::Cell::new(1);",
        [By::Lexer, By::Compiler, By::Compiler],
    ),
    (
        "procedural macro",
        "extern crate proc_macro; pub fn f(t: proc_macro::TokenStream) -> String { t.to_string() }",
        [By::Lexer, By::Linker, By::Linker],
    ),
    (
        "time stamp counter",
        "pub fn handle(_: Request<'_>) -> Reply { Ok(vec![core::arch::x86_64::_rdtsc() as u8]) }",
        [By::Compiler, By::Compiler, By::Compiler],
    ),
    (
        "system call as a constant",
        "pub fn handle(r: Request<'_>) -> Reply { Ok(vec![u8::from(r.body().len() == 0x050f)]) }",
        [By::Verifier, By::Verifier, By::Verifier],
    ),
];

#[test]
fn row_46_each_source_trick_is_stopped_and_by_which_layer() {
    let (with_lint, without_lint) =
        (without(&[Layer::Lexer]), without(&[Layer::Lexer, Layer::Lint]));
    let builders = [None, Some(&with_lint), Some(&without_lint)];
    let mut tricks: Vec<_> = TRICKS.iter().collect();
    if !is_full() {
        Random::of_this_run().shuffle(&mut tricks);
        tricks.truncate(QUICK);
    }
    let mut faults = Vec::new();
    for (name, text, expected) in tricks {
        let text =
            if text.contains("fn handle") { (*text).to_owned() } else { format!("{text}{HANDLE}") };
        let found: Vec<_> = builders.iter().map(|builder| stopped(*builder, &text)).collect();
        let by = [found[0].0, found[1].0, found[2].0];
        println!("{name}: {by:?}");
        if by != *expected {
            faults.push(format!("{name}: {found:#?}, where {expected:?} was to stop it"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
