//! What the documents say that the code says too.

/// The rows of all tables in a section of a document in docs: those whose first cell begins with code, which
/// heads of tables do not. A cell is as it is written, without the blanks around it.
///
/// # Panics
/// Without the document or the heading.
pub fn documented_rows(document: &str, heading: &str) -> Vec<Vec<String>> {
    let path = format!("{}/../../docs/{document}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut lines = text.lines();
    let is_heading =
        |line: &str| line.starts_with('#') && line.trim_start_matches(['#', ' ']) == heading;
    assert!(lines.any(is_heading), "{path} has no heading `{heading}`");
    let section = lines.take_while(|line| !line.starts_with('#'));
    let rows = section.filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    rows.map(|row| format!("`{row}").split(" | ").map(str::to_owned).collect()).collect()
}

/// The first cells of these rows, without the marks of code.
///
/// # Panics
/// As [`documented_rows`].
pub fn documented_keys(document: &str, heading: &str) -> Vec<String> {
    let rows = documented_rows(document, heading);
    rows.into_iter().map(|row| row[0].trim_matches('`').to_owned()).collect()
}

/// The metrics in a section of docs/metrics.md: name, kind, unit and meaning of each. Its tables of labels
/// have other columns, and are left out.
///
/// # Panics
/// As [`documented_rows`].
pub fn documented_metrics(section: &str) -> Vec<[String; 4]> {
    let rows = documented_rows("metrics.md", section).into_iter().filter_map(|row| {
        let [name, kind, unit, _labels, meaning] = <[String; 5]>::try_from(row).ok()?;
        Some([name, kind, unit, meaning].map(|word| word.trim_matches('`').to_owned()))
    });
    rows.collect()
}
