//! The first check of a function's source: its tokens.
//!
//! The compiler sees a file only when no token of it leads out of the language: no `unsafe`, no foreign
//! items, no assembly, no file of the builder, and no attribute that is not in [`ATTRIBUTES`]. Macros cannot
//! make such a token of others, so it would have to be there. This is the first of several layers: what gets
//! past it is met by the compiler (`-F unsafe_code`), the verifier and the worker.

use std::fmt;
use std::str::FromStr as _;

use proc_macro2::{Delimiter, Group, LexError, Span, TokenStream, TokenTree};

/// The most bytes of all files together.
pub const BYTES: usize = 1 << 20;
/// The most bytes of all `.proto` files together.
pub const PROTO_BYTES: usize = 64 << 10;
/// The most files.
pub const FILES: usize = 64;
/// The most brackets within each other.
pub const DEPTH: usize = 128;

/// The attributes that a function may have.
pub const ATTRIBUTES: [&str; 24] = [
    "allow",
    "automatically_derived",
    "cfg",
    "clippy",
    "cold",
    "default",
    "deny",
    "deprecated",
    "derive",
    "doc",
    "expect",
    "forbid",
    "inline",
    "macro_export",
    "macro_use",
    "must_use",
    "non_exhaustive",
    "prost",
    "repr",
    "rustfmt",
    "serde",
    "test",
    "track_caller",
    "warn",
];

/// The attributes that the macros of crates read, texts in them as code.
const MACROS: [&str; 2] = ["prost", "serde"];
/// What would do more there than name a thing: `$` stands for what a macro of the function was given.
const CODE: [char; 5] = ['{', '}', '!', '\\', '$'];

/// What no token of a function may be, with the reason.
const TOKENS: [(&str, &str); 9] = [
    ("unsafe", "a function is safe code; what it needs of the machine is in `partywall_fn`"),
    (
        "extern",
        "a function has no foreign items, and names a crate in paths alone; there are base64, prost, \
         serde, serde_json, sha2, core and alloc",
    ),
    ("asm", "a function has no assembly"),
    ("global_asm", "a function has no assembly"),
    ("naked_asm", "a function has no assembly"),
    ("include", "a function reads no file of the builder; write modules as `mod name;`"),
    ("include_str", "a function reads no file of the builder; write the text as a constant"),
    ("include_bytes", "a function reads no file of the builder; write the bytes as a constant"),
    ("option_env", "the builder has no environment; use a parameter"),
];

/// One file of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path in the function's tree, such as `main.rs` or `shapes/circle.rs`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Why a source is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A token, and what to write instead.
    #[error("{at}: `{token}` is refused: {why}")]
    Token {
        /// Where it is.
        at: At,
        /// The token.
        token: String,
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// An attribute that is not in the list.
    #[error("{at}: the attribute `{name}` is refused; a function may have {}", ATTRIBUTES.join(", "))]
    Attribute {
        /// Where it is.
        at: At,
        /// Its name.
        name: String,
    },
    /// An attribute of a whole crate or module.
    #[error("{at}: attributes of a whole file (`#![..]`) are the builder's; write them at items")]
    Inner {
        /// Where it is.
        at: At,
    },
    /// What the macro of a crate would read as code.
    #[error(
        "{at}: `{text}` is refused in `#[{name}(..)]`: a text there is code, and has none of `{{`, `}}`, `!`, \
         `\\` and `$` in it; write a function, a type or a constant and name it"
    )]
    Text {
        /// Where it is.
        at: At,
        /// The attribute.
        name: String,
        /// The text.
        text: String,
    },
    /// Not Rust's tokens at all.
    #[error("{at}: this is no token of Rust, or a bracket or a quote is not closed")]
    Lex {
        /// Where it is.
        at: At,
    },
    /// Brackets in brackets.
    #[error("{at}: more than {DEPTH} brackets are open; use more functions, or a loop")]
    Depth {
        /// Where it is.
        at: At,
    },
    /// Too much of it.
    #[error("the function has {what}; the most is {most}")]
    Size {
        /// What there is.
        what: String,
        /// What there may be.
        most: String,
    },
    /// A path that is no source's.
    #[error(
        "`{path}` is no path of a source: it is made of letters, digits and `_`, with `/` between them, \
         and ends with `.rs` or `.proto`"
    )]
    Path {
        /// The path.
        path: String,
    },
}

/// A place in a source: file, line from 1, column from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    /// The file's path in the function's tree.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path, self.line, self.column)
    }
}

impl At {
    fn new(path: &str, span: Span) -> Self {
        let start = span.start();
        Self { path: path.into(), line: start.line, column: start.column + 1 }
    }
}

/// Checks how much there is of a function.
///
/// # Errors
/// [`SourceError::Size`].
pub fn check_size(files: &[File]) -> Result<(), SourceError> {
    if files.len() > FILES {
        let (what, most) = (format!("{} files", files.len()), FILES.to_string());
        return Err(SourceError::Size { what, most });
    }
    let bytes = files.iter().map(|file| file.text.len()).sum::<usize>();
    if bytes > BYTES {
        let (what, most) = (format!("{bytes} bytes of source"), BYTES.to_string());
        return Err(SourceError::Size { what, most });
    }
    let protos = files.iter().filter(|file| file.path.ends_with(".proto"));
    let bytes = protos.map(|file| file.text.len()).sum::<usize>();
    if bytes > PROTO_BYTES {
        let (what, most) = (format!("{bytes} bytes of .proto files"), PROTO_BYTES.to_string());
        return Err(SourceError::Size { what, most });
    }
    Ok(())
}

/// Checks the files of a function.
///
/// # Errors
/// [`SourceError`] with the first thing that is refused.
pub fn check(files: &[File]) -> Result<(), SourceError> {
    check_size(files)?;
    for file in files {
        if !is_source(&file.path) {
            return Err(SourceError::Path { path: file.path.clone() });
        }
        check_depth(file)?;
    }
    check_made(files)
}

/// Checks the tokens of Rust alone: for what is made of other files too.
///
/// # Errors
/// [`SourceError`] with the first thing that is refused.
pub(crate) fn check_made(files: &[File]) -> Result<(), SourceError> {
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let tokens = TokenStream::from_str(&file.text)
            .map_err(|e: LexError| SourceError::Lex { at: At::new(&file.path, e.span()) })?;
        check_tokens(&file.path, tokens)?;
        // All files together are few; what the lexer keeps of them for its places is not needed again.
        proc_macro2::extra::invalidate_current_thread_spans();
    }
    Ok(())
}

fn is_source(path: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let bare = path.strip_suffix(".rs").or(path.strip_suffix(".proto"));
    path.len() <= 255 && bare.is_some_and(|path| path.split('/').all(word))
}

/// A bound on brackets before the lexer sees them: those in texts and comments count as well.
fn check_depth(file: &File) -> Result<(), SourceError> {
    // In a message's text in a `.proto` file, they may be of this kind as well.
    let is_proto = file.path.ends_with(".proto");
    let (mut depth, mut line, mut column) = (0_usize, 1, 0);
    for c in file.text.chars() {
        column += 1;
        match c {
            '(' | '[' | '{' => depth += 1,
            '<' if is_proto => depth += 1,
            '>' if is_proto => depth = depth.saturating_sub(1),
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '\n' => (line, column) = (line + 1, 0),
            _ => {}
        }
        if depth > DEPTH {
            return Err(SourceError::Depth { at: At { path: file.path.clone(), line, column } });
        }
    }
    Ok(())
}

fn check_tokens(path: &str, tokens: TokenStream) -> Result<(), SourceError> {
    let mut streams = vec![tokens.into_iter()];
    // The two tokens before this one, where they are punctuation.
    let (mut before, mut last) = (' ', ' ');
    let mut hash = Span::call_site();
    while let Some(stream) = streams.last_mut() {
        let token = stream.next();
        let is_bracket = |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket);
        let is_inner =
            |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == '!');
        // In a macro, what `#` stands before may be anything: it would become an attribute unseen.
        let is_whole = match (before, last) {
            ('#', '!') => token.as_ref().is_some_and(is_bracket),
            (_, '#') => token.as_ref().is_some_and(|token| is_bracket(token) || is_inner(token)),
            _ => true,
        };
        if !is_whole {
            let name = token.as_ref().map(ToString::to_string).unwrap_or_default();
            let at = At::new(path, token.map_or(hash, |token| token.span()));
            return Err(SourceError::Attribute { at, name });
        }
        let Some(token) = token else {
            streams.pop();
            (before, last) = (' ', ' ');
            continue;
        };
        let mut this = ' ';
        match token {
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let name = name.strip_prefix("r#").unwrap_or(&name);
                let found = TOKENS.iter().find(|(token, _)| *token == name);
                if let Some((token, why)) = found {
                    let (at, token) = (At::new(path, ident.span()), (*token).to_owned());
                    return Err(SourceError::Token { at, token, why });
                }
                if name == "env" && is_macro(stream.clone()) {
                    let why = "the builder has no environment; use a parameter";
                    let (at, token) = (At::new(path, ident.span()), "env!".to_owned());
                    return Err(SourceError::Token { at, token, why });
                }
            }
            TokenTree::Punct(punct) => {
                this = punct.as_char();
                hash = punct.span();
            }
            TokenTree::Group(group) => {
                if group.delimiter() == Delimiter::Bracket {
                    match (before, last) {
                        ('#', '!') => check_inner(path, &group)?,
                        (_, '#') => check_attribute(path, &group)?,
                        _ => {}
                    }
                }
                streams.push(group.stream().into_iter());
                (before, last) = (' ', ' ');
                continue;
            }
            TokenTree::Literal(_) => {}
        }
        (before, last) = (last, this);
    }
    Ok(())
}

fn is_macro(mut rest: impl Iterator<Item = TokenTree>) -> bool {
    matches!(rest.next(), Some(TokenTree::Punct(next)) if next.as_char() == '!')
}

/// The lexer makes `#![doc = ".."]` of a comment `//!`.
fn check_inner(path: &str, group: &Group) -> Result<(), SourceError> {
    let tokens: Vec<_> = group.stream().into_iter().take(4).collect();
    match &tokens[..] {
        [TokenTree::Ident(doc), TokenTree::Punct(is), TokenTree::Literal(_)]
            if doc == "doc" && is.as_char() == '=' =>
        {
            Ok(())
        }
        _ => Err(SourceError::Inner { at: At::new(path, group.span()) }),
    }
}

fn check_attribute(path: &str, group: &Group) -> Result<(), SourceError> {
    // In a macro's pattern, `$` or a bracket may stand in an attribute's place: what it becomes is not known.
    let first = group.stream().into_iter().next();
    let name = match &first {
        Some(TokenTree::Ident(name)) => name.to_string(),
        Some(other) => other.to_string(),
        None => return Ok(()),
    };
    if MACROS.contains(&name.as_str()) {
        return check_texts(path, &name, group.stream());
    }
    if ATTRIBUTES.contains(&name.as_str()) {
        return Ok(());
    }
    Err(SourceError::Attribute { at: At::new(path, group.span()), name })
}

/// What a macro of a crate reads is code to it, though its span is the macro's and the compiler's lint does
/// not look there. Without a block, a macro or an escape, it can name things, and do nothing.
fn check_texts(path: &str, name: &str, tokens: TokenStream) -> Result<(), SourceError> {
    for token in tokens {
        let (at, text) = (At::new(path, token.span()), token.to_string());
        match token {
            TokenTree::Group(group) => check_texts(path, name, group.stream())?,
            TokenTree::Literal(_) | TokenTree::Punct(_) if text.contains(CODE) => {
                return Err(SourceError::Text { at, name: name.into(), text });
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), SourceError> {
        check(&[File { path: "main.rs".into(), text: text.into() }])
    }

    #[test]
    fn honest_sources_pass() {
        for text in [
            "",
            "//! A word count.\n/// Counts.\npub fn handle(r: Request<'_>) -> Reply { Ok(vec![]) }",
            "#[derive(Debug, Clone)]\n#[allow(dead_code)]\nstruct A { environment: u8, env: u8 }",
            "macro_rules! twice { ($e:expr) => { $e + $e } }\nfn f() -> u32 { twice!(2) }",
            "const T: &str = \"unsafe { asm!() } include_str!\"; // extern unsafe\n/* #![no_std] */",
            "#[derive(::prost::Message)] struct M { #[prost(uint32, tag = \"1\")] a: u32 }",
            "#[derive(Serialize)] #[serde(bound(serialize = \"T: A<[u8; 3]>\"))] struct M<T> { #[serde(with = \"a::b\")] a: T }",
            "fn f<'a>(x: &'a str) -> char { 'u' }",
            "fn f(x: [u8; 3]) -> bool { !matches!(x, [1, ..]) && ![1][0] > 2 }",
        ] {
            assert_eq!(checked(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn tokens_that_lead_out_of_the_language_are_refused_with_their_place() {
        for (text, token, line, column) in [
            ("fn f() {\n  unsafe { }\n}", "unsafe", 2, 3),
            ("extern \"C\" { fn getpid() -> i32; }", "extern", 1, 1),
            ("extern crate std;", "extern", 1, 1),
            ("fn f() { core::arch::asm!(\"\") }", "asm", 1, 22),
            ("core::arch::global_asm!(\"\");", "global_asm", 1, 13),
            ("const S: &str = include_str!(\"/etc/passwd\");", "include_str", 1, 17),
            (
                "macro_rules! m { ($i:ident) => { $i!(\"/x\") } } m!(include_bytes);",
                "include_bytes",
                1,
                51,
            ),
            ("const S: &str = r#include_str!(\"/x\");", "include_str", 1, 17),
            ("include!(\"/etc/passwd\");", "include", 1, 1),
            ("const S: &str = env!(\"HOME\");", "env!", 1, 17),
            ("const S: Option<&str> = core::option_env!(\"HOME\");", "option_env", 1, 31),
            ("macro_rules! m { () => { unsafe { } } }", "unsafe", 1, 26),
        ] {
            let refused = checked(text).unwrap_err();
            let SourceError::Token { at, token: found, .. } = &refused else {
                panic!("{text}: {refused}")
            };
            assert_eq!((found.as_str(), at.line, at.column), (token, line, column), "{text}");
        }
    }

    #[test]
    fn attributes_that_are_not_in_the_list_are_refused() {
        for (text, name) in [
            ("#[path = \"/etc/passwd\"] mod x;", "path"),
            ("#[link(name = \"c\")] struct A;", "link"),
            ("#[no_mangle] fn f() {}", "no_mangle"),
            ("#[unsafe(naked)] fn f() {}", "unsafe"),
            ("#[cfg_attr(all(), path = \"/etc/passwd\")] mod x;", "cfg_attr"),
            ("#[global_allocator] static A: B = B;", "global_allocator"),
            ("#[panic_handler] fn p() -> ! { loop {} }", "panic_handler"),
            ("#[target_feature(enable = \"avx\")] fn f() {}", "target_feature"),
            ("macro_rules! m { ($a:meta) => { #[$a] fn f() {} } }", "$"),
            ("#[r#no_mangle] fn f() {}", "r#no_mangle"),
            ("macro_rules! m { ($g:tt) => { # $g mod x; } } m!([path = \"/x\"]);", "$"),
            ("macro_rules! m { ($h:tt $g:tt) => { } } m!(#, [path = \"/x\"]);", ","),
            ("m!([path = \"/x\"] #);", ""),
            ("m!(#!, [feature(x)]);", ","),
            ("m!(#!);", ""),
        ] {
            match checked(text) {
                Err(SourceError::Attribute { name: found, .. }) => {
                    assert_eq!(found, name, "{text}")
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in ["#![no_main]", "#![feature(asm)]", "mod a { #![allow(x)] }", "#! [doc(x)]"] {
            assert!(matches!(checked(text), Err(SourceError::Inner { .. })), "{text}");
        }
    }

    /// What macros of crates read in texts is nothing but names.
    #[test]
    fn texts_for_macros_have_no_code() {
        for (text, found) in [
            (
                "#[prost(enumeration = \"Z::<{ unsafe { 3 } }>\")] a: i32",
                "\"Z::<{ unsafe { 3 } }>\"",
            ),
            ("#[prost(enumeration = r#\"Z::<{ 3 }>\"#)] a: i32", "r#\"Z::<{ 3 }>\"#"),
            ("#[prost(enumeration = \"Z::<\\u{7b} 3\")] a: i32", "\"Z::<\\u{7b} 3\""),
            ("#[serde(from = \"[u8; n!()]\")] struct A;", "\"[u8; n!()]\""),
            ("#[serde(rename(serialize = \"}\"))] struct A;", "\"}\""),
            ("m!($s:tt) => { #[serde(with = $s)] a: u8 }", "$"),
        ] {
            match checked(text) {
                Err(SourceError::Text { text: refused, .. }) => assert_eq!(refused, found),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn sources_beyond_the_limits_are_refused() {
        let deep = |depth| format!("fn f() {{ {}1{} }}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(checked(&deep(DEPTH - 1)), Ok(()));
        assert!(matches!(checked(&deep(DEPTH)), Err(SourceError::Depth { .. })));
        assert!(matches!(checked(&deep(300_000)), Err(SourceError::Depth { .. })));
        assert!(matches!(checked(&" ".repeat(BYTES + 1)), Err(SourceError::Size { .. })));
        let file = |path: &str| File { path: path.into(), text: String::new() };
        let many = vec![file("a.rs"); FILES + 1];
        assert!(matches!(check(&many), Err(SourceError::Size { .. })));
        for path in ["../a.rs", "/a.rs", "a", "a//b.rs", ".rs", "a b.rs", "a/../b.rs"] {
            assert!(matches!(check(&[file(path)]), Err(SourceError::Path { .. })), "{path}");
        }
        assert_eq!(check(&[file("a/b_2.rs"), file("a/b.proto")]), Ok(()));
        let of_proto = |text: String| check(&[File { path: "a.proto".into(), text }]);
        assert!(matches!(of_proto(" ".repeat(PROTO_BYTES + 1)), Err(SourceError::Size { .. })));
        assert_eq!(of_proto("option (a) = { b <> };".repeat(DEPTH)), Ok(()));
        assert!(matches!(of_proto("{ a <".repeat(DEPTH)), Err(SourceError::Depth { .. })));
        for text in ["fn f() {", "\"", "fn f() )", "'", "\u{0}"] {
            assert!(matches!(checked(text), Err(SourceError::Lex { .. })), "{text:?}");
        }
    }
}
