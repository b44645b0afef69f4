//! What the documents say that the code says too.

/// The metrics in a section of docs/metrics.md: name, kind, unit and meaning of each. Its tables of labels
/// have other columns, and are left out.
///
/// # Panics
/// Without the document or the section.
pub fn documented_metrics(section: &str) -> Vec<[String; 4]> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let text = std::fs::read_to_string(path).expect("docs/metrics.md");
    let section = text.split("\n## ").find(|s| s.starts_with(section)).expect("a section");
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| `")?.split(" | ").collect();
        let [name, kind, unit, _labels, meaning] = cells[..] else { return None };
        let words = [name, kind, unit, meaning];
        Some(words.map(|word| word.trim_end_matches([' ', '|', '`']).to_owned()))
    });
    rows.collect()
}
