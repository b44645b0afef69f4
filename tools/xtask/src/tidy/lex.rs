//! Splits Rust text into code and comments, so that rules see neither words in strings nor code
//! in comments.

/// A Rust file taken apart.
pub(super) struct Source {
    /// The text with comments and the insides of literals replaced by spaces, byte for byte, so
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
        let bytes = text.as_bytes();
        let mut code = bytes.to_vec();
        let mut comments = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let end = if rest.starts_with(b"//") {
                let end = at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                comments.push(Comment { start: at, text: text[at + 2..end].to_owned() });
                blank(&mut code[at..end]);
                end
            } else if rest.starts_with(b"/*") {
                let end = at + block_comment(rest);
                let inner = text[at + 2..end].trim_end_matches("*/");
                comments.push(Comment { start: at, text: inner.to_owned() });
                blank(&mut code[at..end]);
                end
            } else if rest[0] == b'"' {
                let end = at + string(rest);
                blank(&mut code[at + 1..end.saturating_sub(1).max(at + 1)]);
                end
            } else if rest[0] == b'\'' {
                let end = at + char_or_lifetime(&text[at..]);
                if end > at + 1 {
                    blank(&mut code[at + 1..end - 1]);
                }
                end
            } else if is_word(rest[0]) {
                let word = rest.iter().position(|b| !is_word(*b)).unwrap_or(rest.len());
                match raw_string(&rest[..word], &rest[word..]) {
                    Some(length) => {
                        blank(&mut code[at + word..at + word + length]);
                        at + word + length
                    }
                    None => at + word,
                }
            } else {
                at + 1
            };
            at = end;
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

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || byte >= 0x80
}

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
}

/// Length of the block comment at the start, with the comments inside it.
fn block_comment(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Length of the string at the start, quotes included.
fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Length of the character literal at the start, or 1 for the tick of a lifetime.
fn char_or_lifetime(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((escaped, _))) => {
            let from = escaped + 1;
            text.as_bytes()
                .get(from..)
                .and_then(|rest| rest.iter().position(|b| *b == b'\''))
                .map_or(1, |n| from + n + 1)
        }
        (Some(_), Some((tick, '\''))) => tick + 1,
        _ => 1,
    }
}

/// Length of what follows `word` when both together are a raw string.
fn raw_string(word: &[u8], rest: &[u8]) -> Option<usize> {
    if ![b"r".as_slice(), b"br", b"cr"].contains(&word) {
        return None;
    }
    let hashes = rest.iter().position(|b| *b != b'#')?;
    if rest[hashes] != b'"' {
        return None;
    }
    let mut close = vec![b'#'; hashes + 1];
    close[0] = b'"';
    let body = &rest[hashes + 1..];
    let end = body.windows(close.len()).position(|w| w == close).unwrap_or(body.len());
    Some((hashes + 1 + end + close.len()).min(rest.len()))
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
        let expected = ["let", "a", "let", "b", "r", "let", "c", "br", "let", "d", "b", "let", "e"];
        assert_eq!(words(text), [expected.as_slice(), &["let", "f"]].concat());
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
