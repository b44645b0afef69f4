//! Names that say nothing are not used for files, modules and types.

use super::Tree;

const FORBIDDEN: &[&str] = &["manager", "helper", "util"];

const DECLARES_TYPE: &[&str] = &["struct", "enum", "trait", "union", "type"];

/// No Rust file, directory, module or type has one of the forbidden words in its name.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        let stem = file.path.trim_end_matches(".rs");
        if let Some(part) = stem.split('/').find(|part| forbidden(part).is_some()) {
            faults.push(format!("{}: {part:?} says nothing about what is inside", file.path));
        }
        let words: Vec<_> = source.words().collect();
        for pair in words.windows(2) {
            let [(_, keyword), (offset, name)] = *pair else { continue };
            let declares = keyword == "mod" || DECLARES_TYPE.contains(&keyword);
            if let Some(word) = forbidden(name).filter(|_| declares) {
                let line = source.line(offset);
                faults.push(format!("{}:{line}: {keyword} {name}: no `{word}`", file.path));
            }
        }
    }
    faults
}

/// The forbidden word in a snake_case, kebab-case or CamelCase name.
fn forbidden(name: &str) -> Option<&'static str> {
    let mut parts = vec![String::new()];
    let mut after_lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && after_lower) {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut() {
            last.extend(c.to_lowercase().filter(|c| c.is_alphanumeric()));
        }
        after_lower = c.is_lowercase() || c.is_numeric();
    }
    let hit =
        |word: &&&str| parts.iter().any(|part| part.strip_suffix('s').unwrap_or(part) == **word);
    FORBIDDEN.iter().find(hit).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telling_names_pass() {
        let code = "mod utility {}\nstruct Ring;\nuse http_body_util::Full;\n// struct XManager\n";
        assert_eq!(check(&Tree::of(&[("crates/shm/src/ring.rs", code)])), [""; 0]);
        assert_eq!(forbidden("futile"), None);
        assert_eq!(forbidden("Reutilise"), None);
    }

    #[test]
    fn forbidden_words_in_files_modules_and_types_fail() {
        let code = "mod ring_utils;\npub struct RingManager<T>(T);\nenum TestHelper {}";
        let found = check(&Tree::of(&[("crates/shm/src/ring.rs", code)]));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[1].contains(":2: struct RingManager: no `manager`"));
        for path in ["crates/a/src/util.rs", "crates/a/src/helpers/x.rs", "tests/test-util/a.rs"] {
            assert_eq!(check(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
    }
}
