//! Metadata of a call as text: `key: value`, with base64 for keys that end with `-bin`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use tonic::metadata::{
    AsciiMetadataKey, AsciiMetadataValue, BinaryMetadataKey, BinaryMetadataValue,
};
use tonic::metadata::{KeyAndValueRef, MetadataMap};

use crate::terminal::in_line;

/// One entry.
#[derive(Clone)]
pub(crate) enum Entry {
    Ascii(AsciiMetadataKey, AsciiMetadataValue),
    Binary(BinaryMetadataKey, BinaryMetadataValue),
}

/// Keys that the call sets itself.
const RESERVED: &[&str] = &["content-type", "te", "user-agent", "host", "connection"];

/// Reads `key: value`.
pub(crate) fn entry(text: &str) -> Result<Entry, String> {
    let (key, value) = text.split_once(':').ok_or("write KEY: VALUE, as in `user: me`")?;
    let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
    if key == "grpc-timeout" {
        return Err("gRPC sets `grpc-timeout`; write --timeout".into());
    }
    if key.starts_with("grpc-") || RESERVED.contains(&key.as_str()) {
        return Err(format!("gRPC sets `{key}` itself; take another key"));
    }
    let wrong = || format!("`{key}` is no key; write letters, digits, `-`, `_` and `.`");
    if key.ends_with("-bin") {
        let bytes = STANDARD_NO_PAD.decode(value.trim_end_matches('='));
        let bytes = bytes.map_err(|error| {
            format!("the value of `{key}` is to be base64: {error}; `base64 < FILE` writes it")
        })?;
        let key = BinaryMetadataKey::from_bytes(key.as_bytes()).map_err(|_| wrong())?;
        return Ok(Entry::Binary(key, BinaryMetadataValue::from_bytes(&bytes)));
    }
    let key = AsciiMetadataKey::from_bytes(key.as_bytes()).map_err(|_| wrong())?;
    let visible = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let value = AsciiMetadataValue::try_from(value).ok().filter(|_| visible).ok_or_else(|| {
        format!(
            "the value of `{key}` has other characters than visible ASCII; write it as base64 under \
             `{key}-bin`"
        )
    })?;
    Ok(Entry::Ascii(key, value))
}

/// All of a call.
pub(crate) fn map(entries: &[Entry]) -> MetadataMap {
    let mut map = MetadataMap::new();
    for entry in entries {
        match entry.clone() {
            Entry::Ascii(key, value) => drop(map.append(key, value)),
            Entry::Binary(key, value) => drop(map.append_bin(key, value)),
        }
    }
    map
}

/// Each entry as text.
pub(crate) fn lines(map: &MetadataMap) -> Vec<String> {
    let text = |bytes: &[u8]| in_line(&String::from_utf8_lossy(bytes)).into_owned();
    map.iter()
        .map(|entry| match entry {
            KeyAndValueRef::Ascii(key, value) => {
                format!("{key}: {}", text(value.as_encoded_bytes()))
            }
            KeyAndValueRef::Binary(key, value) => {
                format!("{key}: {}", text(value.as_encoded_bytes()))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_shown_as_it_is_written() {
        let entries = ["User: me", "user:you", "trace-bin: AAEC/w==", "raw-bin:AAEC/w"];
        let map = map(&entries.map(|text| entry(text).ok().unwrap()));
        assert_eq!(map.get_bin("trace-bin").unwrap().to_bytes().unwrap(), [0, 1, 2, 255][..]);
        let mut lines = lines(&map);
        lines.sort();
        assert_eq!(lines, ["raw-bin: AAEC/w", "trace-bin: AAEC/w", "user: me", "user: you"]);
    }

    #[test]
    fn what_is_no_entry_is_refused_with_the_remedy() {
        for (text, part) in [
            ("user", "write KEY: VALUE"),
            ("a b: c", "is no key"),
            (": c", "is no key"),
            ("grpc-timeout: 1S", "--timeout"),
            ("grpc-status: 0", "take another key"),
            ("Content-Type: x", "take another key"),
            ("x-bin: ???", "base64"),
            ("x: \u{e9}", "under `x-bin`"),
        ] {
            let error = entry(text).err().unwrap();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
