//! The files of `tests/corpus`, taken apart into functions.
//!
//! | line | meaning |
//! | --- | --- |
//! | `//= NAME` | a function begins, or a family of them |
//! | `//: AXIS = A \| B` | a family has a member for each value, and for each pair of values of two axes |
//! | `//? REQUEST` | a request, with the escapes `\n`, `\r`, `\t`, `\\` and `\xNN` |
//! | `//& REQUEST` | the request above goes on |
//! | `//> REPLY` | the reply to the request above, as known from elsewhere, or more of it |
//! | `//+ NAME` | a part begins, which stands where a member says `@AXIS` and has NAME there |
//! | `//- PATH` | another file of the function begins |
//!
//! `$AXIS` stands for the member's value itself.

use std::path::Path;

use partywall_functions::source::File;

/// A function of the corpus.
#[derive(Debug, Clone)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) files: Vec<File>,
    pub(super) requests: Vec<Request>,
    /// Whether it asks the runtime for something, which no other program has.
    pub(super) needs_runtime: bool,
    /// Whether it uses crates.
    pub(super) has_crates: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    /// The reply that is known from elsewhere.
    pub(super) reply: Option<Vec<u8>>,
}

/// All functions, in the order of their files and lines.
pub(super) fn all() -> Vec<Function> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let texts = paths.iter().map(|path| (path, std::fs::read_to_string(path).unwrap()));
    texts
        .flat_map(|(path, text)| {
            text.split("\n//= ").skip(1).flat_map(|text| family(text, path)).collect::<Vec<_>>()
        })
        .collect()
}

fn family(text: &str, path: &Path) -> Vec<Function> {
    let mut sections = text.split("\n//+ ");
    let whole = sections.next().unwrap_or_default();
    let parts: Vec<_> = sections.filter_map(|part| part.split_once('\n')).collect();
    let (name, body) = whole.split_once('\n').unwrap();
    let (mut axes, mut lines) = (Vec::<(&str, Vec<&str>)>::new(), Vec::new());
    let mut requests = Vec::<Request>::new();
    for line in body.lines() {
        if let Some(axis) = line.strip_prefix("//: ") {
            let (axis, values) = axis.split_once(" = ").unwrap();
            if axes.last().is_none_or(|(last, _)| *last != axis) {
                axes.push((axis, Vec::new()));
            }
            axes.last_mut().unwrap().1.extend(values.split(" | "));
        } else if let Some(request) = line.strip_prefix("//?") {
            let bytes = unescaped(request.strip_prefix(' ').unwrap_or(request));
            requests.push(Request { bytes, reply: None });
        } else if let Some(more) = line.strip_prefix("//& ") {
            requests.last_mut().unwrap().bytes.extend(unescaped(more));
        } else if let Some(reply) = line.strip_prefix("//> ") {
            let request = requests.last_mut().unwrap();
            request.reply.get_or_insert_default().extend(unescaped(reply));
        } else {
            lines.push(line);
        }
    }
    assert!(!requests.is_empty(), "{name} has no request");
    let mut members: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
    for (axis, values) in &axes {
        let mut next = Vec::new();
        for member in &members {
            next.extend(values.iter().map(|value| [&member[..], &[(*axis, *value)]].concat()));
        }
        members = next;
    }
    let text = lines.join("\n");
    let function = |member: Vec<(&str, &str)>| {
        let filled = |mut text: String| {
            for (axis, value) in &member {
                if let Some((_, part)) = parts.iter().find(|(name, _)| name == value) {
                    text = text.replace(&format!("@{axis}"), part);
                }
            }
            for (axis, value) in &member {
                text = text.replace(&format!("${axis}"), value);
            }
            text
        };
        let mut files = filled(text.clone());
        let others = files.split_off(files.find("\n//- ").unwrap_or(files.len()));
        let other = |file: &str| {
            let (path, text) = file.split_once('\n').unwrap();
            File { path: path.into(), text: text.into() }
        };
        let main = File { path: "main.rs".into(), text: files };
        let word = |c: char| if c.is_alphanumeric() { c } else { '_' };
        Function {
            name: filled(name.into()).chars().map(word).collect(),
            files: [main].into_iter().chain(others.split("\n//- ").skip(1).map(other)).collect(),
            requests: requests.clone(),
            needs_runtime: path.ends_with("runtime.rs"),
            has_crates: path.ends_with("crates.rs"),
        }
    };
    members.into_iter().map(function).collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    loop {
        rest = match rest {
            [] => return bytes,
            [b'\\', b'x', digits @ ..] => {
                let (digits, rest) = digits.split_at(2);
                let digits = std::str::from_utf8(digits).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest
            }
            [b'\\', letter, rest @ ..] => {
                let escape = [(b'n', b'\n'), (b'r', b'\r'), (b't', b'\t'), (b'\\', b'\\')];
                let found = escape.iter().find(|(name, _)| name == letter).expect("an escape");
                bytes.push(found.1);
                rest
            }
            [byte, rest @ ..] => {
                bytes.push(*byte);
                rest
            }
        };
    }
}
