//! Text for a terminal: nothing that a peer says moves its cursor, sets its colours or turns its text round.
//!
//! Whatever is printed passes through [`printable`]. Of a peer's text that is to stay within its line,
//! [`in_line`] has escaped the ends of lines before. Both write `\u009b`, which is what JSON has for such a
//! character, so that objects keep their meaning.

use std::borrow::Cow;
use std::fmt::Write;

/// Text without controls, but for tabs and ends of lines.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && c != '\t' && is_control(c))
}

/// Text of a peer in a line of ours.
pub(crate) fn in_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_control)
}

/// Controls of ISO 6429 and of Unicode's bidirectional text, and Unicode's own ends of lines.
fn is_control(c: char) -> bool {
    let unicode = [
        '\u{61c}'..='\u{61c}',
        '\u{200e}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2066}'..='\u{2069}',
    ];
    c.is_control() || unicode.iter().any(|range| range.contains(&c))
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return text.into();
    }
    let mut shown = String::new();
    for c in text.chars() {
        match is_bad(c) {
            // All of them have four digits.
            true => drop(write!(shown, "\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\x1b[2J\r\x07\u{9b}31m\u{9d}0;\u{7f}\u{202e}\u{2066}\u{2028}";

    #[test]
    fn controls_are_escaped_and_other_text_stays() {
        let shown = printable(HOSTILE);
        let expected = r"\u001b[2J\u000d\u0007\u009b31m\u009d0;\u007f\u202e\u2066\u2028";
        assert_eq!(shown, expected);
        let text = "\u{e4} \u{5d0}\u{1f600}\ta\n";
        assert_eq!(printable(text), text);
        assert_eq!(in_line("a\nb"), r"a\u000ab");
    }

    #[test]
    fn json_that_was_escaped_means_the_same() {
        let text = serde_json::to_string(HOSTILE).unwrap();
        let shown = printable(&text);
        assert!(shown.chars().all(|c| !is_control(c)), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), HOSTILE);
    }
}
