//! Relative links of Markdown files lead to files of the tree.

use super::Tree;

/// Every inline link and link definition that is not a URL resolves.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        let mut fenced = false;
        for (index, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            if fenced {
                continue;
            }
            for target in targets(&without_code(line)) {
                let found = resolve(&file.path, &target).is_some_and(|path| tree.contains(&path));
                if !found {
                    faults.push(format!("{}:{}: {target} leads nowhere", file.path, index + 1));
                }
            }
        }
    }
    faults
}

/// The line with `code spans` taken out.
fn without_code(line: &str) -> String {
    let mut parts = line.split('`');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.skip(1).step_by(2).fold(first, |text, part| text + "code" + part)
}

/// Files the line links to, without anchors and titles.
fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline
        .map(|(target, _)| target)
        .chain(definition.map(|(_, target)| target))
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_matches(['<', '>']))
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .map(|target| target.split_once('#').map_or(target, |(path, _)| path))
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Path from the root of what `from` calls `target`; none when it leaves the tree.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let mut parts: Vec<_> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        check(&Tree::of(&[("docs/a.md", text), ("docs/b.md", ""), ("README.md", "")]))
    }

    #[test]
    fn links_that_resolve_pass() {
        let text = "[b](b.md#part) [top](../README.md \"title\") [dir](../docs/) [self](#here)\n\
                    [web](https://example.org/x.md) `[code](none.md)`\n[ref]: ./b.md\n\
                    ```\n[fenced](none.md)\n```\n";
        assert_eq!(faults(text), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_fail() {
        for link in ["[x](none.md)", "[x](../b.md)", "[x](/docs/b.md)", "[x]: gone.md"] {
            assert_eq!(faults(link).len(), 1, "{link}");
        }
        assert_eq!(
            faults("ok\n`a` [x](../../out.md)"),
            ["docs/a.md:2: ../../out.md leads nowhere"]
        );
    }
}
