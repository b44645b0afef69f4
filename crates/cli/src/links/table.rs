//! Links as a table: one that fits 80 columns, or all that is known.

use std::fmt::Write;

use partywall::operator::{LinkInfo, LinkStats, MethodStats, ParcelStats};
use partywall::{Digest, Identity};

use super::json::hex;
use super::{by_gate, via};
use crate::terminal::in_line;

/// Columns of a terminal, unless `--wide` says otherwise.
const WIDTH: usize = 80;
/// Least that is left of a name that is cut.
const CUT: usize = 6;

/// The links as a table with a line each, if it is wide with the methods of each below it.
pub(crate) fn table(links: &[LinkInfo], wide: bool) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    if wide {
        let head = [
            "LINK",
            "CALLER",
            "NAME",
            "SERVER",
            "VIA",
            "ISOLATION",
            "CONFIDENTIALITY",
            "EVIDENCE",
            "SEAL",
            "STATE",
            "CALLS",
            "FAILED",
            "DENIED",
            "REQUESTS",
            "REPLIES",
            "DESCRIPTORS",
            "IN PARCELS",
            "OUT PARCELS",
            "FORWARDS/CALL",
            "TIME/CALL",
        ];
        rows.push(head.map(String::from).to_vec());
        rows.extend(links.iter().map(wide_row));
        let lines = aligned_lines(&rows);
        let below = std::iter::once(String::new()).chain(links.iter().map(methods));
        return lines.into_iter().zip(below).map(|(line, below)| line + &below).collect();
    }
    let head =
        ["LINK", "CALLER", "NAME", "VIA", "ISOLATION", "STATE", "CALLS", "FAILED", "PARCELS"];
    rows.push(head.map(String::from).to_vec());
    rows.extend(links.iter().map(row));
    fit(&mut rows, &[1, 2]);
    aligned(&rows)
}

/// Cuts what stands in these columns, the widest first, until a line has 80 columns.
pub(crate) fn fit(rows: &mut [Vec<String>], columns: &[usize]) {
    let mut widths = widths(rows);
    let gaps = 2 * (widths.len() - 1);
    while widths.iter().sum::<usize>() + gaps > WIDTH {
        let widest = columns.iter().copied().max_by_key(|column| widths[*column]);
        let Some(widest) = widest.filter(|column| widths[*column] > CUT) else { break };
        widths[widest] -= 1;
    }
    for row in rows {
        for (cell, width) in row.iter_mut().zip(&widths) {
            if cell.chars().count() > *width {
                *cell = cell.chars().take(width - 1).chain(['…']).collect();
            }
        }
    }
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    (0..rows[0].len()).map(width).collect()
}

/// Rows of equal numbers of cells, the first of them the head, as text.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    aligned_lines(rows).concat()
}

fn aligned_lines(rows: &[Vec<String>]) -> Vec<String> {
    let widths = widths(rows);
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(link: &LinkInfo) -> Vec<String> {
    let s = &link.stats;
    let failed = match s.denied {
        0 => count(s.failed),
        denied => format!("{} ({} denied)", count(s.failed), count(denied)),
    };
    // Nobody counts the calls of a redirect: they do not pass through anything of ours.
    let counted = |text: String| if link.server.is_some() { text } else { "-".into() };
    vec![
        link.link.to_string(),
        principals(&link.caller),
        link.name.clone(),
        via(link).into(),
        link.security.isolation.to_string(),
        state(link).into(),
        counted(count(s.calls)),
        counted(failed),
        in_parcels(link, count(s.parcels.parcels.saturating_add(link.caller_parcels.parcels))),
    ]
}

/// What is said of parcels, where descriptors may cross.
pub(super) fn in_parcels(link: &LinkInfo, text: String) -> String {
    if link.grant.is_none() { "-".into() } else { text }
}

fn wide_row(link: &LinkInfo) -> Vec<String> {
    let s = &link.stats;
    let via = match via(link) {
        "http2" => link.url.clone(),
        other => other.into(),
    };
    // What a call costs beside its caller is known where the caller's own thread does the work.
    let each = |text: fn(&LinkStats) -> String| match by_gate(link) && s.calls > 0 {
        true => text(s),
        false => "-".into(),
    };
    let counted = |text: String| if link.server.is_some() { text } else { "-".into() };
    let sent = |p: ParcelStats| in_parcels(link, format!("{} ({})", p.parcels, bytes(p.bytes)));
    vec![
        link.link.to_string(),
        who(&link.caller),
        link.name.clone(),
        link.server.as_ref().map_or("-".into(), who),
        via,
        link.security.isolation.to_string(),
        link.security.confidentiality.to_string(),
        link.security.evidence.to_string(),
        link.security.seal.to_string(),
        state(link).into(),
        counted(s.calls.to_string()),
        counted(s.failed.to_string()),
        counted(s.denied.to_string()),
        counted(bytes(s.received_bytes)),
        counted(bytes(s.sent_bytes)),
        in_parcels(link, link.grant.to_string()),
        sent(link.caller_parcels),
        sent(s.parcels),
        each(|s| format!("{:.2}", s.forwards as f64 / s.calls as f64)),
        each(|s| time(s.inside_ns / s.calls)),
    ]
}

/// A line for each method that is listed, and one for how many there are beside.
fn methods(link: &LinkInfo) -> String {
    let cells = |m: &MethodStats| {
        [in_line(&m.path).into_owned(), m.native.to_string(), m.ordinary.to_string()]
    };
    let rows: Vec<_> = link.methods.most_called.iter().map(cells).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut out = String::new();
    for [path, native, ordinary] in &rows {
        let [w, n, o] = widths;
        let _never = writeln!(out, "  {path:<w$}  native {native:>n$}  ordinary {ordinary:>o$}");
    }
    let _never = match link.methods.more {
        0 => Ok(()),
        1 => writeln!(out, "  and 1 more method"),
        more => writeln!(out, "  and {more} more methods"),
    };
    out
}

fn state(link: &LinkInfo) -> &'static str {
    if link.open { "open" } else { "closed" }
}

/// Exact up to a million, then short.
pub(super) fn count(n: u64) -> String {
    match n {
        0..1_000_000 => n.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.1}G", n as f64 / 1e9),
        _ => format!("{:.1}T", n as f64 / 1e12),
    }
}

pub(super) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

pub(crate) fn principals(id: &Identity) -> String {
    match &id.principals[..] {
        [] => format!("(uid {})", id.uid),
        names => names.join("+"),
    }
}

/// `client (pid 12, uid 0, sha256:1a2b3c started)`.
fn who(id: &Identity) -> String {
    let mut facts = Vec::new();
    facts.push(id.pid.map_or("pid unseen".to_string(), |p| format!("pid {p}")));
    facts.push(format!("uid {}", id.uid));
    match &id.digest {
        Digest::Observed(d) => facts.push(format!("sha256:{} observed", hex(&d[..4]))),
        Digest::Started(d) => facts.push(format!("sha256:{} started", hex(&d[..4]))),
        _ => {}
    }
    let name = match &id.principals[..] {
        [] => "(no principal)".to_string(),
        names => names.join("+"),
    };
    format!("{name} ({})", facts.join(", "))
}

pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{} KiB", n / 1024),
        _ => format!("{} MiB", n / (1024 * 1024)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall::operator::LinkMethods;
    use partywall::{Confidentiality, Evidence, Isolation, Security};

    fn someone(name: &str) -> Identity {
        let mut identity = Identity::new(7, 7);
        identity.pid = Some(12);
        identity.digest = Digest::Started([0xab; 32]);
        identity.principals = vec![name.into()];
        identity
    }

    fn link() -> LinkInfo {
        let mut link = LinkInfo::new(3, "greeter", someone("web"), Some(someone("greeter")));
        link.security = Security::new(Isolation::Process, Confidentiality::Host, Evidence::Started);
        let stats = &mut link.stats;
        (stats.calls, stats.denied, stats.failed) = (5, 1, 1);
        (stats.sent_bytes, stats.received_bytes) = (9, 20_480);
        link
    }

    /// The same link with other isolation, or otherwise changed.
    fn but(link: &LinkInfo, isolation: Isolation, change: fn(&mut LinkInfo)) -> LinkInfo {
        let mut link = link.clone();
        link.security.isolation = isolation;
        change(&mut link);
        link
    }

    #[test]
    fn a_row_says_who_calls_whom_how_and_how_much() {
        let link = link();
        let far = but(&link, Isolation::Process, |link| {
            (link.server, link.open) = (None, false);
            link.url = "http://h:1".into();
            link.security = Security::NETWORK;
        });
        let near = but(&link, Isolation::None, |link| {
            link.gate = true;
            let stats = &mut link.stats;
            (stats.visits, stats.forwards, stats.inside_ns) = (4, 6, 6_250);
        });
        let around = but(&near, Isolation::ProtectionKeys, |link| link.stats.visits = 0);
        let disabled = but(&near, Isolation::None, |link| link.gate = false);
        let text = table(&[link, far, near, around, disabled], true);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 6);
        let words = |n: usize| lines[n].split("  ").map(str::trim).filter(|w| !w.is_empty());
        let ends = |n: usize| words(n).skip(words(n).count() - 2).collect::<Vec<_>>();
        assert_eq!(
            [ends(1), ends(2), ends(3), ends(4)].map(|e| e.join(" ")),
            ["- -", "- -", "1.20 1.2 µs", "- -",]
        );
        let has = |n: usize, word: &str| words(n).any(|w| w == word);
        assert!(has(3, "gate") && has(3, "none") && !has(3, "ring"), "{}", lines[3]);
        assert!(has(4, "ring") && has(4, "protection-keys") && !has(4, "gate"), "{}", lines[4]);
        assert!(has(5, "ring") && has(5, "none") && !has(5, "gate"), "{}", lines[5]);
        for part in [
            "web (pid 12, uid 7, sha256:abababab started)",
            "ring",
            "process",
            "open",
            "5",
            "20 KiB",
        ] {
            assert!(lines[1].contains(part), "{part} in {}", lines[1]);
        }
        assert!(lines[2].contains("http://h:1") && lines[2].contains("open "));
    }

    #[test]
    fn parcels_of_each_end_are_told_where_descriptors_may_cross() {
        let mut granted = link();
        granted.grant.descriptors = 4;
        granted.caller_parcels = ParcelStats::new(2, 600_000);
        granted.stats.parcels = ParcelStats::new(3, 3 << 20);
        let mut leased = granted.clone();
        leased.grant.leases = true;
        let links = [granted, link(), leased];
        let narrow = table(&links, false);
        let last = |line: &str| line.split_whitespace().last().map(str::to_owned);
        let ends: Vec<_> = narrow.lines().map(|line| last(line).unwrap()).collect();
        assert_eq!(ends, ["PARCELS", "5", "-", "5"], "{narrow}");
        let wide = table(&links, true);
        let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = wide.lines().map(squeezed).collect();
        assert!(lines[0].ends_with(" DESCRIPTORS IN PARCELS OUT PARCELS FORWARDS/CALL TIME/CALL"));
        assert!(lines[1].ends_with(" 4 2 (585 KiB) 3 (3072 KiB) - -"), "{wide}");
        assert!(lines[2].ends_with(" 9 B - - - - -"), "{wide}");
        assert!(lines[3].ends_with(" 4 with leases 2 (585 KiB) 3 (3072 KiB) - -"), "{wide}");
        let json =
            |link: &LinkInfo| serde_json::to_value(crate::links::json::Row::of(link)).unwrap();
        let (one, other) = (json(&links[0]), json(&links[1]));
        assert_eq!(one["descriptors"], 4);
        assert_eq!(one["caller_parcels"], serde_json::json!({"parcels": 2, "bytes": 600_000}));
        assert_eq!(one["server_parcels"], serde_json::json!({"parcels": 3, "bytes": 3 << 20}));
        let null = serde_json::Value::Null;
        assert_eq!((&other["descriptors"], &other["server_parcels"]), (&0.into(), &null));
        let leases = links.each_ref().map(|link| json(link)["leases"].clone());
        assert_eq!(leases, [false, false, true].map(serde_json::Value::from));
    }

    #[test]
    fn methods_stand_below_their_link_in_a_wide_table() {
        let mut first = link();
        let method = |path, native, ordinary| MethodStats::new(path, native, ordinary);
        first.methods = LinkMethods::new(
            vec![method("/a.B/SayHello", 1204, 3), method("/a.B/Chat\n\x1b[2J", 0, 12)],
            2,
        );
        let mut second = link();
        second.methods = LinkMethods::new(Vec::new(), 1);
        let links = [first, second, link()];
        let text = table(&links, true);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 3 + 4, "{text}");
        assert!(lines[1].starts_with("3 ") && lines[1].ends_with(" -"), "{text}");
        assert_eq!(lines[2], r"  /a.B/SayHello             native 1204  ordinary  3");
        assert_eq!(lines[3], r"  /a.B/Chat\u000a\u001b[2J  native    0  ordinary 12");
        assert_eq!(lines[4], "  and 2 more methods");
        assert_eq!(lines[6], "  and 1 more method");
        assert!(lines[5].starts_with("3 ") && lines[7].starts_with("3 "), "{text}");
        assert_eq!(table(&links, false).lines().count(), 4);
    }

    #[test]
    fn a_table_fits_a_terminal_unless_it_is_to_be_wide() {
        let long = "a-service-with-a-rather-long-name-that-goes-on-and-on";
        let plain = link();
        let mut widest = link();
        (widest.caller, widest.name) = (someone(long), long.into());
        widest.url = "http://a.host.with.a.long.name:12345".into();
        widest.security.isolation = Isolation::SharedSignalStacks;
        (widest.stats.calls, widest.stats.failed, widest.stats.denied) =
            (u64::MAX, 999_999, 999_999);
        for links in [&[plain.clone()][..], &[plain.clone(), widest.clone()], &[widest]] {
            let text = table(links, false);
            for line in text.lines() {
                assert!(line.chars().count() <= 103, "{} columns: {line}", line.chars().count());
            }
        }
        let mut busy = plain.clone();
        (busy.name, busy.caller) = (long.into(), someone(long));
        let text = table(&[busy, plain], false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.contains('…') && text.contains(" web ") && text.contains("1 (1 denied)"),
            "{text}"
        );
        assert!(text.starts_with("LINK  CALLER"), "{text}");
    }

    #[test]
    fn a_line_of_json_has_the_fields_that_are_promised() {
        let mut link = link();
        link.methods = LinkMethods::new(vec![MethodStats::new("/a.B/C", 2, 1)], 4);
        let line = crate::links::json::Row::of(&link).line();
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        let fields: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
        for field in fields {
            assert!(crate::links::HELP.contains(field), "{field} is not in the help");
        }
        assert_eq!(object["caller"]["digest"], format!("sha256:{}", "ab".repeat(32)));
        assert_eq!((&object["via"], &object["calls"]), (&"ring".into(), &5.into()));
        let security = serde_json::json!({
            "isolation": "process", "confidentiality": "host", "evidence": "started",
            "seal": "off", "sign": "off"
        });
        assert_eq!(object["security"], security);
        let method = serde_json::json!({"path": "/a.B/C", "native": 2, "ordinary": 1});
        assert_eq!(object["methods"], serde_json::json!([method]));
        assert_eq!(object["more_methods"], 4);
        for field in method.as_object().unwrap().keys() {
            assert!(crate::links::HELP.contains(field), "{field} is not in the help");
        }
        for field in object["caller"].as_object().unwrap().keys() {
            assert!(crate::links::HELP.contains(field), "{field} is not in the help");
        }
    }
}
