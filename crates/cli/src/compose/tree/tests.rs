use super::*;

fn tree(text: &str) -> Result<Option<Node>, String> {
    parse(&Path::new("f.yaml").into(), text).map_err(|error| error.to_string())
}

fn error(text: &str) -> String {
    tree(text).unwrap_err()
}

/// The tree in one line: `line:text`, `line:[...]`, `line:{key@line=value ...}`.
fn show(node: &Node) -> String {
    let value = match &node.value {
        Value::Null => "null".to_owned(),
        Value::Text(text) => format!("{text:?}"),
        Value::List(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" "))
        }
        Value::Map(entries) => {
            let entry = |e: &Entry| format!("{}@{}={}", e.key, e.line, show(&e.value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(" "))
        }
    };
    format!("{}:{value}", node.line)
}

fn shown(text: &str) -> String {
    show(&tree(text).unwrap().unwrap())
}

#[test]
fn lines_of_keys_and_values() {
    assert_eq!(
        shown("# head\na: 1\nb:\n  - x\n  - y: [p,\n      q]\nc:\n"),
        "2:{a@2=2:\"1\" b@3=4:[4:\"x\" 5:{y@5=5:[5:\"p\" 6:\"q\"]}] c@7=7:null}"
    );
}

#[test]
fn scalars_stay_as_written() {
    assert_eq!(
        shown("[1.10, yes, 0o17, ~, null, '', \"null\", !!str null, 'a\n  b']"),
        "1:[1:\"1.10\" 1:\"yes\" 1:\"0o17\" 1:null 1:null 1:\"\" 1:\"null\" 1:\"null\" 1:\"a b\"]"
    );
    assert_eq!(shown("a: |\n  x\n  y\n"), "1:{a@1=2:\"x\\ny\\n\"}");
    assert_eq!(shown("a: !reset null\nb: !override [x]\n"), "1:{a@1=1:null b@2=2:[2:\"x\"]}");
}

#[test]
fn aliases_and_merge_keys() {
    assert_eq!(shown("a: &x [1]\nb: *x\n"), "1:{a@1=1:[1:\"1\"] b@2=2:[1:\"1\"]}");
    assert_eq!(
        shown("a: &x {p: 1, q: 2}\nb:\n  q: 3\n  <<: *x\n"),
        "1:{a@1=1:{p@1=1:\"1\" q@1=1:\"2\"} b@2=3:{q@3=3:\"3\" p@1=1:\"1\"}}"
    );
    // The first of several wins.
    assert_eq!(
        shown("- &x {p: 1}\n- &y {p: 2, r: 5}\n- <<: [*x, *y]\n"),
        "1:[1:{p@1=1:\"1\"} 2:{p@2=2:\"2\" r@2=2:\"5\"} 3:{p@1=1:\"1\" r@2=2:\"5\"}]"
    );
    assert_eq!(
        error("a:\n  <<: text\n"),
        "f.yaml:2: a.<<: expected a mapping or a list of mappings, found the text `text`"
    );
}

#[test]
fn empty_files() {
    assert!(tree("").unwrap().is_none());
    assert!(tree("# only a comment\n").unwrap().is_none());
}

#[test]
fn duplicate_keys_name_both_lines() {
    assert_eq!(
        error("a: 1\nb: 2\na: 3\n"),
        "f.yaml:3: a: duplicate key; it is already on line 1, keep one of the two"
    );
    assert_eq!(
        error("s:\n  w:\n    - x: 1\n    - y: 1\n\n      y: 2\n"),
        "f.yaml:6: s.w[1].y: duplicate key; it is already on line 4, keep one of the two"
    );
}

#[test]
fn syntax_errors_have_line_and_column() {
    assert!(error("a: 1\nb: [x\nc: 2\n").starts_with("f.yaml:3:"), "{}", error("a: [\nb: 2\n"));
    assert!(error("a: 'x\n").contains("not valid YAML"));
    assert!(error("a: *nowhere\n").starts_with("f.yaml:1:4: not valid YAML"));
    assert!(error("a:\n\t- x\n").starts_with("f.yaml:2:"));
}

#[test]
fn forms_no_compose_file_needs() {
    assert_eq!(
        error("a: 1\n---\nb: 2\n"),
        "f.yaml:2: a second YAML document; keep one in the file"
    );
    assert_eq!(error("a: 1\n? [x]\n: 2\n"), "f.yaml:2: a key of a mapping must be text");
    assert_eq!(
        error("a: &x [1, *x]\n"),
        "f.yaml:1: an alias stands inside the value it stands for"
    );
}

#[test]
fn hostile_nesting_and_copying_ends_in_an_error() {
    assert!(tree(&format!("{}{}", "[".repeat(64), "]".repeat(64))).is_ok());
    assert!(error(&format!("{}{}", "[".repeat(65), "]".repeat(65))).contains("nest deeper"));

    let mut chained = String::from("- &a0 [x]\n");
    let mut doubled = String::from("- &a0 [x, x]\n");
    for i in 1..100 {
        chained.push_str(&format!("- &a{i} [*a{}]\n", i - 1));
        doubled.push_str(&format!("- &a{i} [*a{0}, *a{0}]\n", i - 1));
    }
    assert_eq!(error(&chained), "f.yaml:64: lists and mappings nest deeper than 64; flatten them");
    assert!(error(&doubled).ends_with("aliases copy more than 100000 values; use fewer"));
}
