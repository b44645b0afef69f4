//! The crates that functions may use, whose sources this program has in it.
//!
//! ```text
//! build.rs: reviewed/Cargo.toml --cargo metadata--> sources, compared with REVIEWED --> this program
//! a build:  names in a function's paths --[named]--> crates and what they need --> builder::libraries
//! ```
//!
//! A crate is linked when a path of the function begins with its name; a function that has a module of that
//! name has its own instead. What stands beneath a crate is compiled with it, and no function can name it.
//!
//! | crate | for | with it |
//! | --- | --- | --- |
//! | `base64` | bytes in texts, such as keys and pictures in JSON | |
//! | `prost` | protobuf messages, also those of `.proto` files | `bytes`; `prost-derive` |
//! | `serde` | values as data of any format | `serde_core`; `serde_derive` |
//! | `serde_json` | JSON | `serde_core`, `itoa`, `memchr`, `zmij` |
//! | `sha2` | SHA-256 and its kin | `digest`, `block-buffer`, `crypto-common`, `hybrid-array`, `typenum`, `cfg-if` |
//!
//! docs/crates.md has what the review found in each.

mod package;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr as _;
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};

use crate::source::File;
pub(crate) use package::Package;
use package::REVIEWED;

/// What a function may name.
pub const ALLOWED: [&str; 5] = ["base64", "prost", "serde", "serde_json", "sha2"];

/// All packages, each behind those that it needs.
pub(crate) static PACKAGES: LazyLock<Vec<Package>> = LazyLock::new(|| {
    let packed = include_bytes!(concat!(env!("OUT_DIR"), "/crates"));
    let bytes = miniz_oxide::inflate::decompress_to_vec(packed).expect("packed by build.rs");
    postcard::from_bytes(&bytes).expect("packed by build.rs")
});

/// Which of [`PACKAGES`] those are that a function names.
fn places(names: &BTreeSet<&str>) -> impl Iterator<Item = usize> {
    names.iter().filter_map(|name| PACKAGES.iter().position(|package| package.name == **name))
}

/// These crates with all that is linked with them, in the order to compile them. Macros are among them, but
/// not what is linked with macros.
pub(crate) fn linked(names: &BTreeSet<&str>) -> BTreeSet<usize> {
    closure(places(names), |package| !package.is_macro)
}

/// What a macro is linked with, and itself, in the order to compile them.
pub(crate) fn of_macro(place: usize) -> BTreeSet<usize> {
    closure([place], |_| true)
}

fn closure(
    roots: impl IntoIterator<Item = usize>,
    goes_on: impl Fn(&Package) -> bool,
) -> BTreeSet<usize> {
    let (mut all, mut open) = (BTreeSet::new(), Vec::from_iter(roots));
    while let Some(place) = open.pop() {
        if all.insert(place) && goes_on(&PACKAGES[place]) {
            open.extend(PACKAGES[place].needs.iter().map(|(_, place)| *place));
        }
    }
    all
}

/// What the digest of an image has of these crates.
pub(crate) fn digests(names: &BTreeSet<&str>) -> BTreeMap<String, &'static str> {
    let all = closure(places(names), |_| true);
    let digest = |package: &Package| {
        let is = |(name, version, _): &&(&str, &str, _)| {
            *name == package.name && *version == package.version
        };
        let known = REVIEWED.iter().find(is).map_or("", |(_, _, digest)| *digest);
        (format!("{} {}", package.name, package.version), known)
    };
    all.into_iter().map(|place| digest(&PACKAGES[place])).collect()
}

/// The crates that the paths of a function's files begin with.
pub(crate) fn named(files: &[File]) -> BTreeSet<&'static str> {
    let (mut found, mut own) = (BTreeSet::new(), BTreeSet::new());
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        // What is no Rust has been refused, or the compiler will.
        let mut streams =
            vec![TokenStream::from_str(&file.text).unwrap_or_default().into_iter().peekable()];
        let mut last = String::new();
        while let Some(stream) = streams.last_mut() {
            let Some(token) = stream.next() else {
                streams.pop();
                continue;
            };
            if let TokenTree::Group(group) = &token {
                last.clear();
                streams.push(group.stream().into_iter().peekable());
                continue;
            }
            let text = token.to_string();
            if let Some(name) = ALLOWED.into_iter().find(|name| *name == text) {
                let next = stream.peek().map(ToString::to_string);
                match (last.as_str(), next.as_deref()) {
                    ("mod", _) => drop(own.insert(name)),
                    ("use", _) | (_, Some(":")) => drop(found.insert(name)),
                    _ => {}
                }
            }
            last = text;
        }
        proc_macro2::extra::invalidate_current_thread_spans();
    }
    &found - &own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_in(text: &str) -> Vec<&'static str> {
        let file = File { path: "main.rs".into(), text: text.into() };
        named(&[file]).into_iter().collect()
    }

    #[test]
    fn a_crate_is_named_by_a_path_and_not_by_a_text_or_a_module() {
        for (text, names) in [
            ("fn f() { base64::engine(); }", &["base64"][..]),
            ("use {serde::Serialize, sha2::{Digest, Sha256}};", &["serde", "sha2"]),
            ("#[derive(::prost::Message)] struct A;", &["prost"]),
            ("macro_rules! m { () => { serde_json::json!(1) } }", &["serde_json"]),
            ("use serde_json;", &["serde_json"]),
            ("mod base64 { } use base64::encode;", &[]),
            ("fn base64() { let sha2 = 1; } const T: &str = \"serde::a\"; // prost::", &[]),
        ] {
            assert_eq!(named_in(text), names, "{text}");
        }
    }

    #[test]
    fn what_is_packed_was_reviewed_and_macros_are_not_linked() {
        assert_eq!(PACKAGES.len(), REVIEWED.len());
        let all = BTreeSet::from(ALLOWED);
        assert_eq!(places(&all).count(), ALLOWED.len());
        let names = |places: BTreeSet<usize>| -> BTreeSet<_> {
            places.into_iter().map(|place| PACKAGES[place].name.as_str()).collect()
        };
        let linked = names(linked(&all));
        assert!(linked.contains("serde_derive") && !linked.contains("syn"), "{linked:?}");
        assert_eq!(digests(&all).len(), PACKAGES.len());
        assert!(digests(&all).values().all(|digest| digest.len() == 64));
        for (place, package) in PACKAGES.iter().enumerate() {
            assert!(package.needs.iter().all(|(_, need)| *need < place), "{}", package.name);
        }
    }

    /// The parser of the macros knows no blocks, so that no text can have one.
    #[test]
    fn the_parser_of_macros_is_compiled_without_blocks() {
        let parsers: Vec<_> = PACKAGES.iter().filter(|package| package.name == "syn").collect();
        assert!(!parsers.is_empty());
        for parser in parsers {
            assert!(!parser.features.contains(&"full".to_owned()), "{:?}", parser.features);
        }
    }

    /// The compiler does not look for `unsafe` in what macros of other crates write.
    #[test]
    fn no_macro_that_a_function_can_reach_writes_unsafe() {
        let tokens = |text: &str| TokenStream::from_str(text).unwrap();
        fn has_unsafe(tokens: TokenStream) -> bool {
            tokens.into_iter().any(|token| match token {
                TokenTree::Group(group) => has_unsafe(group.stream()),
                TokenTree::Ident(ident) => ident == "unsafe",
                _ => false,
            })
        }
        fn exported(tokens: TokenStream, all: &mut Vec<(String, TokenStream)>) {
            let tokens: Vec<_> = tokens.into_iter().collect();
            let mut is_exported = false;
            for (at, token) in tokens.iter().enumerate() {
                match token {
                    TokenTree::Group(group) if group.to_string().contains("macro_export") => {
                        is_exported = true;
                        exported(group.stream(), all);
                    }
                    TokenTree::Ident(word) if word == "macro_rules" && is_exported => {
                        let name = tokens.get(at + 2).map(ToString::to_string);
                        let body = tokens.get(at + 3).cloned().into_iter().collect();
                        all.push((name.unwrap_or_default(), body));
                        is_exported = false;
                    }
                    TokenTree::Group(group) => exported(group.stream(), all),
                    _ => {}
                }
            }
        }
        let mut all = Vec::new();
        for place in linked(&BTreeSet::from(ALLOWED)) {
            let package = &PACKAGES[place];
            for (path, text) in &package.files {
                if package.is_macro {
                    assert!(!has_unsafe(tokens(text)), "{} {path}", package.name);
                } else {
                    exported(tokens(text), &mut all);
                }
            }
        }
        let found: Vec<_> = all.iter().filter(|(_, body)| has_unsafe(body.clone())).collect();
        assert!(found.is_empty(), "{found:?}");
        assert!(all.iter().any(|(name, _)| name == "json"), "{all:?}");
    }
}
