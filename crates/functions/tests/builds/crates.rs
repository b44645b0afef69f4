//! Crates that functions may use, messages of `.proto` files, and what is no way around the layers.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use partywall_functions::builder::{BuildError, Builder, Layer, Toolchain};
use partywall_functions::proto::ProtoError;
use partywall_functions::sandbox::Limits;
use partywall_functions::source::{File, PROTO_BYTES, SourceError};

use partywall_testkit::{Random, is_full};

use super::tricks::{By, HANDLE, stopped, without};
use super::{BUILDER, build};

/// How many tricks are tried without `--full`.
const QUICK: usize = 6;

fn file(path: &str, text: &str) -> File {
    File { path: path.into(), text: text.into() }
}

const ECHO: &str = "mod pb;\nuse pb::hello::v1::{Answer, Hello};\n\
    pub fn handle(r: Request<'_>) -> Reply {\n\
    let hello: Hello = r.message()?;\n\
    reply(&Answer { text: hello.name, at: hello.at }) }";
const PROTO: &str = "syntax = \"proto3\";\npackage hello.v1;\nimport \"google/protobuf/timestamp.proto\";\n\
    message Hello { string name = 1; google.protobuf.Timestamp at = 2; }\n\
    message Answer { string text = 1; google.protobuf.Timestamp at = 2; }";

/// A crate is linked where a path names it, and is in the digest then.
#[test]
fn crates_are_linked_where_they_are_named() {
    let plain =
        build("pub fn handle(r: Request<'_>) -> Reply { Ok(r.body().to_vec()) } // serde::")
            .unwrap();
    assert!(plain.image.code.len() < 8192, "{} bytes of code", plain.image.code.len());
    let own = "mod base64 { pub fn encode(b: &[u8]) -> &[u8] { b } }\n\
               pub fn handle(r: Request<'_>) -> Reply { Ok(base64::encode(r.body()).to_vec()) }";
    build(own).unwrap();
    let used = "use base64::prelude::*;\n\
                pub fn handle(r: Request<'_>) -> Reply { Ok(BASE64_STANDARD.encode(r.body()).into_bytes()) }";
    let built = build(used).unwrap();
    assert!(built.image.code.len() > plain.image.code.len() + 2000);
}

#[test]
fn messages_of_proto_files_are_a_module() {
    let files = [file("main.rs", ECHO), file("hello.proto", PROTO)];
    let built = BUILDER.build(&files).unwrap();
    assert_eq!(built.digest, BUILDER.digest(&files));
    let other = [files[0].clone(), file("hello.proto", &PROTO.replace("name = 1", "name = 3"))];
    assert_ne!(BUILDER.digest(&other), built.digest);
}

/// What is wrong with `.proto` files is said with its place, or is refused before a parser nests too deeply.
#[test]
fn proto_files_that_are_none_are_refused_with_their_place() {
    let refused = |protos: &[(&str, &str)]| {
        let protos = protos.iter().map(|(path, text)| file(path, text));
        let files: Vec<_> = [file("main.rs", ECHO)].into_iter().chain(protos).collect();
        BUILDER.build(&files).unwrap_err()
    };
    for (text, said) in [
        (
            "syntax = \"proto3\";\nmessage A { string a }",
            "hello.proto:2:22: expected '=', but found '}'",
        ),
        (
            "syntax = \"proto3\";\nmessage A { B b = 1; }",
            "hello.proto:2:13: name 'B' is not defined",
        ),
        (
            "syntax = \"proto3\";\nimport \"etc/passwd\";",
            "hello.proto:2:1: import 'etc/passwd' not found",
        ),
        (
            "syntax = \"proto3\";\nimport \"hello.proto\";",
            "import cycle detected: hello.proto -> hello.proto",
        ),
    ] {
        let why = refused(&[("hello.proto", text)]);
        assert!(matches!(&why, BuildError::Proto(ProtoError::Messages(_))), "{why:?}");
        assert_eq!(why.to_string(), said);
    }
    for deep in ["message A { ".repeat(500), format!("option (a) = {{ {}", "b < ".repeat(500))] {
        let why = refused(&[("a.proto", &deep)]);
        assert!(matches!(why, BuildError::Source(SourceError::Depth { .. })), "{why}");
    }
    let why = refused(&[("hello.proto", PROTO), ("pb.rs", "")]);
    assert!(matches!(why, BuildError::Proto(ProtoError::Module)), "{why}");
    // What becomes of them is checked as what authors write is.
    let why = refused(&[("a.proto", "syntax = \"proto3\"; message A { string unsafe = 1; }")]);
    assert!(why.to_string().contains("`unsafe` is refused"), "{why}");
    let text = "syntax = \"proto2\"; message A { optional string a = 1 [default = \"{ b }\"]; }";
    let why = refused(&[("a.proto", text)]);
    assert!(matches!(why, BuildError::Source(SourceError::Text { .. })), "{why}");
}

/// Few bytes keep the generator for ever, and a long row of messages takes much of its stack: the sandbox
/// does not wait, and does not break.
#[test]
fn proto_files_that_burn_end_at_the_limit() {
    let toolchain = Toolchain::of(Path::new("rustc")).unwrap();
    let sandbox = vec![env!("CARGO_BIN_EXE_functions-sandbox").to_owned()];
    let limits = Limits { time: Duration::from_secs(4), ..Limits::default() };
    let builder = Builder::new(toolchain, sandbox, limits);
    let row = |most: usize, fields: &str| {
        let mut text = String::from("syntax=\"proto3\";");
        let mut number = 0x1000;
        while number < 0x1000 + most && text.len() < PROTO_BYTES - 100 {
            let next = format!("M{:X}", number + 1);
            write!(text, "message M{number:X}{{{}}}", fields.replace('M', &next)).unwrap();
            number += 1;
        }
        write!(text, "message M{number:X}{{}}").unwrap();
        text
    };
    for text in [row(200, "M a=1; M b=2;"), row(10_000, "M a=1;")] {
        let files = [file("main.rs", ECHO), file("a.proto", &text)];
        let why = builder.build(&files).unwrap_err();
        assert!(matches!(why, BuildError::Limit(_)), "{} bytes: {why}", text.len());
    }
}

/// Ways to what no function has, that go through crates: their sources, and what stops them with all layers
/// and without the lexer.
const TRICKS: &[(&str, [By; 2])] = &[
    ("extern crate serde;", [By::Lexer, By::Compiler]),
    ("mod serde { pub fn f() {} } use serde::f; use serde::Serialize;", [By::Compiler; 2]),
    ("use std::fs; use serde::Serialize;", [By::Compiler; 2]),
    ("use prost::Message; use bytes::Bytes;", [By::Compiler; 2]),
    ("use serde::Serialize; use syn::Path;", [By::Compiler; 2]),
    ("use serde::Serialize; use proc_macro::TokenStream;", [By::Compiler; 2]),
    (
        "pub const V: fn() -> serde_json::Value = || serde_json::json!({ \"a\": unsafe { 1 } });",
        [By::Lexer, By::Lint],
    ),
    (
        "pub fn f() -> serde_json::Value { serde_json::json!([include_str!(\"/etc/passwd\")]) }",
        [By::Lexer, By::Compiler],
    ),
    (
        "#[derive(serde::Serialize)] #[serde(into = \"[u8; { unsafe { A } }]\")] struct A;",
        [By::Lexer, By::Compiler],
    ),
    (
        "#[derive(serde::Deserialize)] struct A { #[serde(default = \"f::<{ unsafe { 3 } }>\")] a: u8 }",
        [By::Lexer, By::Compiler],
    ),
    (
        "#[derive(serde::Serialize)] struct A { #[serde(with = \"std::fs\")] a: u8 }",
        [By::Compiler; 2],
    ),
    (
        "macro_rules! m { ($g:tt) => { # $g mod x; } } m!([path = \"/etc/passwd\"]);",
        [By::Lexer, By::Compiler],
    ),
    (
        "macro_rules! m { ($h:tt $g:tt) => { $h $g mod x; } } m!(# [path = \"/etc/passwd\"]);",
        [By::Lexer, By::Compiler],
    ),
];

/// An enumeration with a number, and a message that has it; `@` is the number as the macro reads it.
const MESSAGE: &str = "#[derive(Clone, Copy, PartialEq, Debug)] pub enum Z<const N: usize> { A }\n\
    impl<const N: usize> Default for Z<N> { fn default() -> Self { Z::A } }\n\
    impl<const N: usize> TryFrom<i32> for Z<N> { type Error = (); fn try_from(_: i32) -> Result<Self, ()> { Ok(Z::A) } }\n\
    impl<const N: usize> From<Z<N>> for i32 { fn from(_: Z<N>) -> i32 { N as i32 } }\n\
    macro_rules! m { ($s:literal) => { #[derive(Clone, PartialEq, ::prost::Message)]\n\
    pub struct M { #[prost(enumeration = $s, tag = \"1\")] pub a: i32 } } }\n";

#[test]
fn crates_are_no_way_around_the_layers() {
    let no_lexer = without(&[Layer::Lexer]);
    let mut all: Vec<_> = TRICKS.iter().map(|(text, by)| ((*text).to_owned(), *by)).collect();
    // The compiler does not look for `unsafe` in what a macro writes. Behind the lexer is a parser of the
    // macros that was compiled without blocks.
    let block = "crate::Z::<{ unsafe { core::mem::transmute::<u64, usize>(3) } }>";
    all.push((format!("{MESSAGE}m!({block:?});"), [By::Lexer, By::Compiler]));
    let plain = MESSAGE.split("macro_rules").next().unwrap_or_default();
    let message = |text: &str| {
        format!(
            "{plain}#[derive(Clone, PartialEq, ::prost::Message)]\n\
             pub struct M {{ #[prost(enumeration = {text}, tag = \"1\")] pub a: i32 }}"
        )
    };
    all.push((message(&format!("{block:?}")), [By::Lexer, By::Compiler]));
    all.push((message(&format!("r#\"{block}\"#")), [By::Lexer, By::Compiler]));
    let escaped = format!("\"{}\"", block.replace('{', "\\u{7b}"));
    all.push((message(&escaped), [By::Lexer, By::Compiler]));
    all.push((message("\"crate::Z::<3>\""), [By::Nobody; 2]));
    if !is_full() {
        Random::of_this_run().shuffle(&mut all);
        all.truncate(QUICK);
    }
    let mut faults = Vec::new();
    for (text, expected) in &all {
        let text = format!("{text}{HANDLE}");
        let found = [stopped(None, &text), stopped(Some(&no_lexer), &text)];
        let by = [found[0].0, found[1].0];
        println!("{by:?}: {text}");
        if by != *expected {
            faults.push(format!("{text}: {found:#?}, where {expected:?} was to stop it"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Who names what is not there reads what there is.
#[test]
fn a_crate_that_is_not_there_is_named_with_those_that_are() {
    let said = |text: &str| match build(&format!("\n{text}{HANDLE}")) {
        Err(why @ (BuildError::Compiler(_) | BuildError::Source(_))) => why.to_string(),
        other => panic!("{other:?}"),
    };
    for (text, place) in [
        ("use regex::Regex;", "main.rs:2:5"),
        ("use regex;", "main.rs:2:5"),
        ("pub fn f() {\n  regex::f() }", "main.rs:3:3"),
        ("#[derive(regex::Regex)] struct A;", "main.rs:2:10"),
    ] {
        let said = said(text);
        let known = "there is no crate `regex` for functions; they may use `base64`, `prost`, `serde`, \
                     `serde_json`, `sha2`, `core` and `alloc`";
        assert!(said.ends_with(known) && said.contains(place), "{said}");
    }
    let text = said("use std::fs;");
    let known = "no standard library; much of it is in `core` and `alloc`, maps are \
                 `alloc::collections::BTreeMap`, and the time is in `partywall_fn::clock`";
    assert!(text.ends_with(known), "{text}");
    for of_floats in ["fn f(x: f64) -> f64 { x.sqrt() }", "fn f(x: f32) -> f32 { x.floor() }"] {
        let text = said(of_floats);
        assert!(
            text.contains("error[E0599]") && text.ends_with("is to be in its source"),
            "{text}"
        );
    }
    let text = said("fn f(x: f64) -> f64 { x.rooted() }");
    assert!(!text.contains("mathematics"), "{text}");
    let text = said("extern crate serde;");
    assert!(
        text.contains("there are base64, prost, serde, serde_json, sha2, core and alloc"),
        "{text}"
    );
    // A macro's complaints have the author's place.
    let text = said("#[derive(serde::Serialize)]\n#[serde(rename = 3)]\nstruct A;");
    assert!(text.contains("main.rs:3:18") && text.contains("expected serde rename"), "{text}");
    let text = said("#[derive(Clone, PartialEq, ::prost::Message)]\nstruct A { a: u32 }");
    assert!(text.contains("main.rs:2:28") && text.contains("invalid message field A.a"), "{text}");
}
