//! Splits Rust text into code and comments, so that rules see neither words in strings nor code
//! in comments.

use ra_ap_rustc_lexer::FrontmatterAllowed;
use ra_ap_rustc_lexer::LiteralKind::{Float, Int};
use ra_ap_rustc_lexer::TokenKind::{BlockComment, LineComment, Literal};
use ra_ap_rustc_lexer::tokenize;

/// A Rust file taken apart.
pub(super) struct Source {
    /// The text with comments, strings and characters replaced by spaces, byte for byte, so
    /// that offsets and lines stay the same.
    pub(super) code: String,
    /// All comments in order.
    pub(super) comments: Vec<Comment>,
}

/// One comment; each line of a run of line comments is its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comment {
    /// Byte offset of its first slash.
    pub(super) start: usize,
    /// What stands after `//` or between `/*` and `*/`; doc comments keep their third character.
    pub(super) text: String,
}

impl Comment {
    /// Whether rustdoc shows it.
    pub(super) fn is_doc(&self) -> bool {
        self.text.starts_with(['/', '!', '*'])
    }
}

impl Source {
    /// Takes `text` apart. Text that is not valid Rust is taken apart somehow; rustc refuses it.
    pub(super) fn new(text: &str) -> Self {
        let mut code = text.as_bytes().to_vec();
        let mut comments = Vec::new();
        let mut start = 0;
        for token in tokenize(text, FrontmatterAllowed::No) {
            let end = start + token.len as usize;
            match token.kind {
                LineComment { .. } | BlockComment { .. } => {
                    let inner = &text[start + 2..end];
                    let inner = inner.strip_suffix("*/").unwrap_or(inner);
                    comments.push(Comment { start, text: inner.to_owned() });
                    blank(&mut code[start..end]);
                }
                Literal { kind, .. } if !matches!(kind, Int { .. } | Float { .. }) => {
                    blank(&mut code[start..end]);
                }
                _ => {}
            }
            start = end;
        }
        Self { code: String::from_utf8_lossy(&code).into_owned(), comments }
    }

    /// Every word of the code (identifier, keyword or number) with its offset.
    pub(super) fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut at = 0;
        self.code.split(|c: char| !is_word_char(c)).filter_map(move |word| {
            let start = at;
            // What ends a word may be a character of more than one byte.
            let after = start + word.len();
            at = after + self.code[after..].chars().next().map_or(0, char::len_utf8);
            (!word.is_empty()).then_some((start, word))
        })
    }

    /// Every path that the file imports, groups taken apart, with the offset of its `use`.
    pub(super) fn uses(&self) -> Vec<(usize, String)> {
        let mut all = Vec::new();
        for (offset, word) in self.words() {
            if word == "use"
                && let Some((tree, _)) = self.code[offset + word.len()..].split_once(';')
            {
                let mut paths = Vec::new();
                expand("", tree, &mut paths);
                all.extend(paths.into_iter().map(|path| (offset, path)));
            }
        }
        all
    }

    /// Line of a byte offset, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        1 + self.code.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count()
    }
}

fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    if let Some((before, group)) = tree.split_once('{') {
        let prefix = format!("{prefix}{}", squeeze(before));
        let group = group.rsplit_once('}').map_or(group, |(inside, _)| inside);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&prefix, &group[start..at], paths);
                    start = at + 1;
                }
                _ => {}
            }
        }
        expand(&prefix, &group[start..], paths);
    } else {
        let name = tree.split_once(" as ").map_or(tree, |(path, _)| path);
        paths.push(format!("{prefix}{}", squeeze(name)));
    }
}

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        Source::new(text).words().map(|(_, word)| word.to_owned()).collect()
    }

    #[test]
    fn strings_and_comments_hold_no_words() {
        let text = r###"
            let a = "unsafe \" x"; // unsafe
            /* unsafe /* nested */ unsafe */
            let b = r#"unsafe " x"#; let c = br"\"; let d = b"y"; let e = 'u'; let f = '\'';
        "###;
        let expected = ["a", "b", "c", "d", "e", "f"].map(|name| ["let", name]).concat();
        assert_eq!(words(text), expected);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(words("fn f<'a>(x: &'a r#type) {}"), ["fn", "f", "a", "x", "a", "r", "type"]);
        assert_eq!(words(r"('\u{1f600}', 'é', x)"), ["x"]);
    }

    #[test]
    fn offsets_and_lines_are_kept() {
        let text = "é /* a\nb */ \"s\nt\" word // end";
        let source = Source::new(text);
        assert_eq!(source.code.len(), text.len());
        let (offset, word) = source.words().last().unwrap();
        assert_eq!((word, &text[offset..offset + 4]), ("word", "word"));
        assert_eq!(source.line(offset), 3);
        let start = text.find("// end").unwrap();
        assert_eq!(source.comments[1], Comment { start, text: " end".into() });
    }

    #[test]
    fn unfinished_text_does_not_panic() {
        for text in ["\"", "'", "'\\", "/*", "r#\"", "/", "//", "\"\\", "r##", "'a", "/*/"] {
            assert_eq!(Source::new(text).code.len(), text.len(), "{text}");
        }
    }
}
