//! Bodies of the fuzz targets. Each returns whether the bytes were accepted.
//!
//! `fuzz/object.so` and `fuzz/compact.so` are objects of the builder, without their sections; the second one
//! becomes a compact image. Input that begins with 0 or 1 is a list of edits of one of them, or of the image
//! that it becomes; any other input is taken as it is.

use crate::image::{Binding, CONSTANTS, DATA, DATA_BYTES, Image, PART_BYTES, Target};
use crate::source::{self, File};
use crate::verify::{self, LINK};

/// Objects of the builder.
const OBJECTS: [&[u8]; 2] = [include_bytes!("fuzz/object.so"), include_bytes!("fuzz/compact.so")];

/// The bytes of an edit: what, which one, which field, how, and a number.
const EDIT: usize = 12;

/// Objects: what passes is an image that passes by itself, and comes out of its packed form as it was.
///
/// # Panics
/// When that does not hold.
pub fn function_object(data: &[u8]) -> bool {
    let file = match data {
        [which @ (0 | 1), edits @ ..] => edited_object(OBJECTS[usize::from(*which)], edits),
        _ => data.to_vec(),
    };
    let Ok(image) = verify::image(&file) else { return false };
    assert_eq!(image.check(), Ok(()));
    assert_sound(&image);
    assert_eq!(Image::unpack(&image.pack()), Ok(image));
    true
}

/// Packed images: what passes has its entry in its code, its words and addresses in its parts, and none of
/// the forbidden bytes.
///
/// # Panics
/// When that does not hold.
pub fn function_image(data: &[u8]) -> bool {
    let packed = match data {
        [which @ (0 | 1), edits @ ..] => edited_image(OBJECTS[usize::from(*which)], edits),
        _ => data.to_vec(),
    };
    let Ok(image) = Image::unpack(&packed) else { return false };
    assert_sound(&image);
    assert_eq!(image.pack(), packed);
    true
}

/// Sources: what passes has no token that a function may not have, as another reader of Rust sees it.
///
/// # Panics
/// When it has one.
pub fn function_source(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let file = File { path: "main.rs".into(), text: text.into() };
    if source::check(&[file]).is_err() {
        return false;
    }
    let words = words(text);
    for (at, word) in words.iter().enumerate() {
        let next = |n: usize| words.get(at + n).map(String::as_str);
        let plain = word.strip_prefix("r#").unwrap_or(word);
        let banned = ["unsafe", "extern", "asm", "global_asm", "naked_asm"];
        let reads = ["include", "include_str", "include_bytes", "option_env"];
        assert!(!banned.contains(&plain) && !reads.contains(&plain), "{word} in {text}");
        assert!(!(plain == "env" && next(1) == Some("!")), "env! in {text}");
        assert!(!(word == "#" && next(1) == Some("!") && next(2) == Some("[")), "#![ in {text}");
        let is_whole = next(1) == Some("[") || next(1) == Some("!") && next(2) == Some("[");
        assert!(word != "#" || is_whole, "# alone in {text}");
        if word == "#" && next(1) == Some("[") {
            let name = next(2).unwrap_or_default();
            assert!(name == "]" || source::ATTRIBUTES.contains(&name), "#[{name} in {text}");
        }
    }
    true
}

/// What the worker relies on, without a word of [`Image::check`].
fn assert_sound(image: &Image) {
    let Image { code, constants, data, zeros, entry, bindings, compact } = image;
    let begin = if *compact { code.len() as u32 } else { CONSTANTS };
    let (code_bytes, all_data) = (code.len() as u64, data.len() as u64 + u64::from(*zeros));
    assert!(code_bytes + 16 <= u64::from(PART_BYTES) && u64::from(*entry) < code_bytes);
    assert!(constants.len() as u64 <= PART_BYTES.into() && all_data <= DATA_BYTES.into());
    let inside = |begin: u32, bytes: u64, from: u64, to: u64| {
        u64::from(begin) <= from && to <= u64::from(begin) + bytes
    };
    let mut last = 0;
    for Binding { word, target } in bindings {
        let (from, to) = (u64::from(*word), u64::from(*word) + 8);
        let in_constants = inside(begin, constants.len() as u64, from, to);
        assert!(in_constants || inside(DATA, data.len() as u64, from, to), "{word:#x}");
        assert!(from >= last, "{word:#x} overlaps");
        last = to;
        if let Target::Here(address) = target {
            let at = u64::from(*address);
            let parts = [(0, code_bytes), (begin, constants.len() as u64), (DATA, all_data)];
            assert!(parts.iter().any(|(begin, bytes)| inside(*begin, *bytes, at, at)), "{at:#x}");
        }
    }
    let executable = image.bound(0, 0).code;
    assert!(!compact || executable.len() + 16 <= 4096 && image.bound(0, 0).constants.is_empty());
    for at in 0..executable.len() {
        match executable[at..] {
            [0x0f, 0x05 | 0x34, ..] | [0xcd, 0x80, ..] | [0x0f, 0x01, 0xef, ..] => {
                panic!("a system call or WRPKRU at {at:#x}")
            }
            [0x0f, 0xae, m, ..] if m < 0xc0 && m >> 3 & 7 == 5 => panic!("XRSTOR at {at:#x}"),
            [0x0f, 0xae, 0xd0..=0xdf, ..] => panic!("WRFSBASE at {at:#x}"),
            _ => {}
        }
    }
}

/// Fields of a structure: offset and length in bytes.
type Fields = &'static [(usize, usize)];

/// The file header, program headers, dynamic entries, relocations and symbols (elf(5)).
const HEADER: Fields = &[(4, 1), (5, 1), (16, 2), (18, 2), (24, 8), (32, 8), (54, 2), (56, 2)];
const SEGMENT: Fields = &[(0, 4), (4, 4), (8, 8), (16, 8), (32, 8), (40, 8)];
const ENTRY: Fields = &[(0, 8), (8, 8)];
const RELOCATION: Fields = &[(0, 8), (8, 4), (12, 4), (16, 8)];
const SYMBOL: Fields = &[(0, 4), (4, 1), (6, 2), (8, 8)];

/// Numbers at which something changes.
const EDGES: [u64; 14] = [
    0,
    1,
    7,
    8,
    37,
    0x7fff_ffff,
    u32::MAX as u64,
    u64::MAX,
    u64::MAX - 7,
    CONSTANTS as u64,
    DATA as u64,
    LINK as u64,
    PART_BYTES as u64,
    DATA_BYTES as u64,
];

/// Where the tables of an object are, with the length of an item and their number.
struct Tables([(usize, usize, usize, Fields); 5]);

impl Tables {
    fn new(object: &[u8]) -> Self {
        let word = |at: usize| number(object, at, 8).unwrap_or(0) as usize;
        let (link, dynamic) = (word(64 + 56 * 3 + 8), word(64 + 56 * 4 + 8));
        let entry = |tag: usize| {
            let entries = (dynamic..).step_by(16).take(word(64 + 56 * 4 + 32) / 16);
            entries.map(|at| (word(at), word(at + 8))).find(|(t, _)| *t == tag).map_or(0, |e| e.1)
        };
        let in_link = |address: usize| link + address - LINK as usize;
        let (symbols, names, relocations) =
            (in_link(entry(6)), in_link(entry(5)), in_link(entry(7)));
        Self([
            (0, 64, 1, HEADER),
            (64, 56, 6, SEGMENT),
            (dynamic, 16, 12, ENTRY),
            (relocations, 24, entry(8) / 24, RELOCATION),
            (symbols, 24, (names - symbols) / 24, SYMBOL),
        ])
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let field = bytes.get(at..at + length)?;
    Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Writes a field anew: with an edge, near an edge, near what it was, or with anything.
fn write(bytes: &mut [u8], (at, length): (usize, usize), edit: &[u8; EDIT]) {
    let Some(old) = number(bytes, at, length) else { return };
    let value = number(edit, 4, 8).unwrap_or(0);
    let near = (value as i8) as u64;
    let edge = EDGES[(value >> 8) as usize % EDGES.len()];
    let new = match edit[3] % 5 {
        0 => edge,
        1 => edge.wrapping_add(near),
        2 => old.wrapping_add(near),
        3 => old ^ 1 << (value % 64),
        _ => value,
    };
    bytes[at..at + length].copy_from_slice(&new.to_le_bytes()[..length]);
}

fn edited_object(object: &[u8], edits: &[u8]) -> Vec<u8> {
    let tables = Tables::new(object).0;
    let mut file = object.to_vec();
    for edit in edits.as_chunks::<EDIT>().0 {
        let (which, field) = (usize::from(edit[1]), usize::from(edit[2]));
        match edit[0] % 8 {
            kind @ 0..=4 => {
                let (begin, item, count, fields) = tables[usize::from(kind)];
                let (offset, length) = fields[field % fields.len()];
                let at = begin + which % count * item + offset;
                write(&mut file, (at, length), edit);
            }
            // A program header in another's place, or a dynamic entry.
            5 => {
                let (begin, item, count, _) = tables[1 + field % 2];
                let (from, to) = (begin + which % count * item, begin + which / 16 % count * item);
                if file.len() >= begin + item * count {
                    file.copy_within(from..from + item, to);
                }
            }
            6 => {
                let at = usize::from(u16::from_le_bytes([edit[4], edit[5]]));
                write(&mut file, (at, 1), edit);
            }
            _ if which < 16 => file.truncate(usize::from(u16::from_le_bytes([edit[4], edit[5]]))),
            _ => {}
        }
    }
    file
}

fn edited_image(object: &[u8], edits: &[u8]) -> Vec<u8> {
    const HEAD: usize = 36;
    let image = verify::image(object).expect("an object of the builder");
    let mut packed = image.pack();
    let bindings = packed.len() - image.bindings.len() * 8;
    for edit in edits.as_chunks::<EDIT>().0 {
        let (which, any) = (usize::from(edit[1]), u16::from_le_bytes([edit[4], edit[5]]));
        let at = match edit[0] % 4 {
            0 => (8 + which % 7 * 4, 4),
            1 => (bindings + which * 4 % (image.bindings.len() * 8), 4),
            2 => (HEAD + usize::from(any), 1),
            _ if which < 16 => {
                packed.truncate(usize::from(any));
                continue;
            }
            _ => (usize::from(any) % HEAD, 1),
        };
        write(&mut packed, at, edit);
    }
    packed
}

/// The words and signs of a source, without comments, and 0 for each text and number.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut rest) = (Vec::new(), text);
    let end = |rest: &str, until: &dyn Fn(char) -> bool| rest.find(until).unwrap_or(rest.len());
    // Marks of the direction, and of the order of bytes, are spaces.
    let is_space = |c: char| c.is_whitespace() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{feff}');
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || !(c.is_ascii() || is_space(c));
    // A word right behind a text is its suffix. All of it stands for one sign.
    let literal = |words: &mut Vec<String>, rest: &str, bytes: usize| {
        words.push("0".to_owned());
        let suffix = rest[bytes..].find(|c| !is_word(c)).unwrap_or(rest.len() - bytes);
        let is_one = !rest[bytes..].starts_with(|c: char| c.is_ascii_digit());
        bytes + if is_one { suffix } else { 0 }
    };
    while let Some(first) = rest.chars().next() {
        let taken = if rest.starts_with("//") {
            end(rest, &|c| c == '\n')
        } else if rest.starts_with("/*") {
            comment(rest)
        } else if let Some(bytes) = raw_text(rest) {
            literal(&mut words, rest, bytes)
        } else if first == '"' {
            literal(&mut words, rest, quoted(rest, '"'))
        } else if first == '\'' {
            // A character, or a lifetime.
            let mut chars = rest.chars().skip(1);
            match (chars.next(), chars.next()) {
                (Some('\\'), _) => literal(&mut words, rest, quoted(rest, '\'')),
                (Some(c), Some('\'')) => literal(&mut words, rest, 2 + c.len_utf8()),
                _ => 1,
            }
        } else if let Some(raw) = rest.strip_prefix("r#").filter(|r| r.starts_with(is_word)) {
            let bytes = 2 + end(raw, &|c| !is_word(c));
            words.push(rest[..bytes].to_owned());
            bytes
        } else if is_word(first) && !first.is_ascii_digit() {
            let bytes = end(rest, &|c| !is_word(c));
            // `b"..."` and the like: the letter is no word.
            let is_prefix =
                matches!(&rest[..bytes], "b" | "c") && rest[bytes..].starts_with(['"', '\'']);
            if !is_prefix {
                words.push(rest[..bytes].to_owned());
            }
            bytes
        } else if first.is_ascii_digit() {
            words.push("0".to_owned());
            end(rest, &|c| !is_word(c))
        } else {
            if !is_space(first) {
                words.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    words
}

/// The bytes of a comment that has others in it.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let step = if rest.starts_with("/*") {
            depth += 1;
            2
        } else if rest.starts_with("*/") {
            depth -= 1;
            2
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// The bytes of a text in quotes, with escapes.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// The bytes of a raw text, if one begins here.
fn raw_text(text: &str) -> Option<usize> {
    let rest = ["r", "br", "cr"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let marks = rest.len() - rest.trim_start_matches('#').len();
    let inside = rest[marks..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(marks));
    let length = inside.find(&close).map_or(inside.len(), |at| at + close.len());
    Some(text.len() - inside.len() + length)
}

#[cfg(test)]
mod tests {
    use partywall_testkit::{Random, trials};

    use super::*;

    /// Edits of the object or the image, a few at a time.
    fn edits(random: &mut Random) -> Vec<u8> {
        let mut data = vec![random.below(2) as u8];
        let count = EDIT * (1 + random.below(3));
        data.extend((0..count).map(|_| random.draw() as u8));
        data
    }

    #[test]
    fn row_55_fuzz_function_object() {
        assert!(OBJECTS.into_iter().chain([&[0][..], &[1]]).all(function_object));
        let compact = OBJECTS.map(|object| verify::image(object).unwrap().compact);
        assert_eq!(compact, [false, true]);
        let mut random = Random::of_this_run();
        let mut accepted = [0_u32; 2];
        let trials = trials(100_000);
        for _ in 0..trials {
            accepted[usize::from(function_object(&edits(&mut random)))] += 1;
        }
        for _ in 0..trials / 10 {
            accepted[usize::from(function_object(&random.mutated(&OBJECTS)))] += 1;
            assert!(!function_object(&[&[2][..], &random.bytes(2000)].concat()));
        }
        println!("{accepted:?} refused and accepted");
        assert!(accepted.iter().all(|n| *n > trials as u32 / 20), "{accepted:?}");
    }

    #[test]
    fn fuzz_function_image() {
        let packed = OBJECTS.map(|object| verify::image(object).unwrap().pack());
        let packed: [&[u8]; 2] = packed.each_ref().map(|packed| &packed[..]);
        assert!(packed.into_iter().chain([&[0][..], &[1]]).all(function_image));
        let mut random = Random::of_this_run();
        let mut accepted = [0_u32; 2];
        let trials = trials(100_000);
        for _ in 0..trials {
            accepted[usize::from(function_image(&edits(&mut random)))] += 1;
        }
        for _ in 0..trials / 10 {
            accepted[usize::from(function_image(&random.mutated(&packed)))] += 1;
            assert!(!function_image(&[&[2][..], &random.bytes(2000)].concat()));
        }
        println!("{accepted:?} refused and accepted");
        assert!(accepted.iter().all(|n| *n > trials as u32 / 20), "{accepted:?}");
    }

    /// Pieces of sources, with what may not be in one and what hides it.
    const PIECES: [&str; 62] = [
        "unsafe",
        "extern",
        "asm",
        "include_str",
        "include",
        "env",
        "option_env",
        "naked_asm",
        "!",
        "#",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "\"",
        "'",
        "\\",
        "\n",
        "//",
        "/*",
        "*/",
        "//!",
        "///",
        "/**",
        "r#",
        "r\"",
        "r#\"",
        "\"#",
        "b'",
        "b\"",
        "c\"",
        "br##\"",
        "\"##",
        "'a",
        "'\\''",
        "'\"'",
        "r#unsafe",
        "#![no_std]",
        "#[path = \"x\"]",
        "#[inline]",
        "#[r#inline]",
        "$",
        " ",
        "_",
        "0x",
        "1e",
        "fn f() {}",
        "macro_rules! m",
        "=>",
        ";",
        ",",
        "path",
        "doc",
        "é",
        "\u{200e}",
        "\u{feff}",
        "\r",
        "\r\n",
        "=",
        "k#",
    ];

    /// Random pieces of sources; most are refused, and what passes is read by another reader too.
    #[test]
    fn fuzz_function_source() {
        let mut random = Random::of_this_run();
        let honest = include_str!("../../fn/src/request.rs");
        assert!(function_source(honest.as_bytes()));
        let mut accepted = [0_u32; 2];
        let trials = trials(400_000);
        for _ in 0..trials {
            let mut text = String::new();
            for _ in 0..1 + random.below(8) {
                text += PIECES[random.below(PIECES.len())];
                if random.below(3) == 0 {
                    text.push(' ');
                }
            }
            accepted[usize::from(function_source(text.as_bytes()))] += 1;
        }
        for _ in 0..trials / 100 {
            let mut bytes = honest.as_bytes().to_vec();
            let piece = PIECES[random.below(PIECES.len())].bytes();
            let at = random.below(bytes.len());
            bytes.splice(at..at + random.below(3).min(bytes.len() - at), piece);
            accepted[usize::from(function_source(&bytes))] += 1;
        }
        println!("{accepted:?} refused and accepted");
        assert!(accepted.iter().all(|n| *n > trials as u32 / 20), "{accepted:?}");
    }

    /// What the other reader leaves out, and what it does not.
    #[test]
    fn words_are_those_of_the_code() {
        let text = "'''s \"n\"x! a // b\n/* c /* d */ e */ f \"g \\\" h\" 'i' '\\'' 'j r#k r#\"l \" \"# m b'n' 0x_o é!";
        let expected =
            ["0", "0", "!", "a", "f", "0", "0", "0", "j", "r#k", "0", "m", "0", "0", "é", "!"];
        assert_eq!(words(text), expected);
    }
}
