//! docs/quick-start.md, done as it is written.

use std::path::Path;

use super::{command, root, text};

/// The files of the page: each block that follows a line which begins with a path in backticks.
fn files(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let (mut named, mut inside) = (None, None);
    for line in page.lines() {
        match (line.strip_prefix("```"), inside.take()) {
            (Some(_), Some((name, text))) => found.push((name, text)),
            (Some(kind), None) if kind != "sh" && kind != "text" => {
                inside = named.take().map(|name| (name, String::new()));
            }
            (Some(_), None) => {}
            (None, Some((name, text))) => inside = Some((name, format!("{text}{line}\n"))),
            (None, None) => {
                let path = line.strip_prefix('`').and_then(|rest| rest.split_once('`'));
                named = path.map(|(path, _)| path.to_string()).or(named);
            }
        }
    }
    found
}

/// What the page shows of runs, line by line.
fn shown(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("\n```text\n").skip(1);
    blocks.map(|b| b.split("\n```").next().unwrap().lines().map(likewise).collect()).collect()
}

/// The same line of another run: processes have other numbers then, and programs other digests.
fn likewise(line: &str) -> String {
    let marks = ["pid ", "uid ", "process ", "sha256:"];
    marks.iter().fold(line.trim_end().to_string(), |line, mark| {
        let mut parts = line.split(mark);
        let first = parts.next().unwrap_or_default().to_string();
        parts.fold(first, |said, rest| {
            said + mark + rest.trim_start_matches(|c: char| c == '.' || c.is_ascii_hexdigit())
        })
    })
}

/// In a project beside this one, with this one's versions of all crates and what was built of them.
#[test]
fn the_quick_start_works_as_it_is_written() {
    let page = std::fs::read_to_string(root().join("docs/quick-start.md")).unwrap();
    let files = files(&page);
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let sources = ["build.rs", "src/lib.rs", "src/bin/greeter.rs", "src/bin/client.rs"];
    for name in ["Cargo.toml", "proto/hello.proto", "compose.yaml"].iter().chain(&sources) {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    assert_eq!(files.len(), 7, "the page says seven: {names:?}");
    let dir = tempfile::tempdir().unwrap();
    let checkout = root().canonicalize().unwrap();
    for (name, content) in &files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let here = checkout.to_str().unwrap();
        std::fs::write(path, content.replace("../partywall/", &format!("{here}/"))).unwrap();
    }
    std::fs::copy(checkout.join("Cargo.lock"), dir.path().join("Cargo.lock")).unwrap();
    let built = target().join("quick-start");
    let up = |arguments: &[&str]| {
        let mut up = command(&[&["up", "compose.yaml", "--debug"], arguments].concat());
        up.current_dir(dir.path()).env("CARGO_TARGET_DIR", &built).output().unwrap()
    };
    let ran = up(&[]);
    let (said, logged) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{said}{logged}");
    let [all_goes_well, one_may_not] = <[_; 2]>::try_from(shown(&page)).unwrap();
    let is_there = |shown: &[String], said: &str| {
        let said: Vec<_> = said.lines().map(likewise).collect();
        for line in shown {
            assert!(said.contains(line), "`{line}` is not in\n{}", said.join("\n"));
        }
    };
    is_there(&all_goes_well, &format!("{said}\n{logged}"));
    let file = dir.path().join("compose.yaml");
    // "Take `calls` away from the client, and it may call nothing."
    let compose = std::fs::read_to_string(&file).unwrap();
    let without: Vec<&str> = compose.lines().filter(|line| !line.contains("calls:")).collect();
    std::fs::write(&file, without.join("\n")).unwrap();
    let ran = up(&[]);
    assert_eq!(ran.status.code(), Some(1));
    is_there(&one_may_not, &format!("{}\n{}", text(&ran.stdout), text(&ran.stderr)));
}

/// Where this workspace's programs are built.
fn target() -> std::path::PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_partywall"));
    program.parent().and_then(Path::parent).unwrap().to_path_buf()
}
