//! `partywall links`, and the same table after `up`.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use partywall::{Digest, Isolation, LinkInfo};

/// Prints the table.
pub(crate) fn run(socket: Option<&Path>) -> Result<ExitCode, Box<dyn Error>> {
    let links = partywall::links(socket)?;
    crate::say(&if links.is_empty() { "no links\n".into() } else { table(&links) })?;
    Ok(ExitCode::SUCCESS)
}

/// The links as a table with a line each.
pub(crate) fn table(links: &[LinkInfo]) -> String {
    let mut rows = vec![
        [
            "LINK",
            "CALLER",
            "NAME",
            "SERVER",
            "VIA",
            "ISOLATION",
            "STATE",
            "CALLS",
            "FAILED",
            "DENIED",
            "REQUESTS",
            "REPLIES",
            "FORWARDS/CALL",
            "CPU/CALL",
        ]
        .map(String::from),
    ];
    rows.extend(links.iter().map(row));
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn row(link: &LinkInfo) -> [String; 14] {
    let s = &link.stats;
    let gate = by_gate(link);
    let via = match link.isolation {
        Isolation::Network => link.url.clone(),
        _ if gate => "gate".to_string(),
        _ => "ring".to_string(),
    };
    // What a call costs beside its caller is known where the caller's own thread does the work.
    let each = |text: fn(&partywall::LinkStats) -> String| match gate && s.calls > 0 {
        true => text(s),
        false => "-".into(),
    };
    // Nobody counts the calls of a redirect: they do not pass through anything of ours.
    let counted = |n: u64| if link.server.is_some() { n.to_string() } else { "-".into() };
    [
        link.link.to_string(),
        who(&link.caller),
        link.name.clone(),
        link.server.as_ref().map_or("-".into(), who),
        via,
        link.isolation.to_string(),
        if link.open { "open" } else { "closed" }.to_string(),
        counted(s.calls),
        counted(s.failed),
        counted(s.denied),
        if link.server.is_some() { bytes(s.received_bytes) } else { "-".into() },
        if link.server.is_some() { bytes(s.sent_bytes) } else { "-".into() },
        each(|s| format!("{:.2}", s.forwards as f64 / s.calls as f64)),
        each(|s| time(s.inside_ns / s.calls)),
    ]
}

/// Whether calls go through the gate: it is open, and no call has shown that they go by the ring all
/// the same.
fn by_gate(link: &LinkInfo) -> bool {
    link.gate && (link.stats.visits > 0 || link.stats.calls == 0)
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// `client (pid 12, uid 0, sha256:1a2b3c started)`.
fn who(id: &partywall_abi::control::Identity) -> String {
    let mut facts = Vec::new();
    facts.push(id.pid.map_or("pid unseen".to_string(), |p| format!("pid {p}")));
    facts.push(format!("uid {}", id.uid));
    let short = |d: &[u8; 32]| format!("{:02x}{:02x}{:02x}{:02x}", d[0], d[1], d[2], d[3]);
    match &id.digest {
        Digest::Unknown => {}
        Digest::Observed(d) => facts.push(format!("sha256:{} observed", short(d))),
        Digest::Started(d) => facts.push(format!("sha256:{} started", short(d))),
    }
    let name = match &id.principals[..] {
        [] => "(no principal)".to_string(),
        names => names.join("+"),
    };
    format!("{name} ({})", facts.join(", "))
}

fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{} KiB", n / 1024),
        _ => format!("{} MiB", n / (1024 * 1024)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall::LinkStats;
    use partywall_abi::control::Identity;

    fn someone(name: &str) -> Identity {
        Identity {
            uid: 7,
            gid: 7,
            pid: Some(12),
            digest: Digest::Started([0xab; 32]),
            cgroup: String::new(),
            principals: vec![name.into()],
        }
    }

    #[test]
    fn a_row_says_who_calls_whom_how_and_how_much() {
        let link = LinkInfo {
            link: 3,
            name: "greeter".into(),
            caller: someone("web"),
            server: Some(someone("greeter")),
            url: String::new(),
            isolation: Isolation::Process,
            gate: false,
            open: true,
            stats: LinkStats {
                calls: 5,
                denied: 1,
                failed: 1,
                sent_bytes: 9,
                received_bytes: 20_480,
                ..LinkStats::default()
            },
        };
        let far = LinkInfo {
            server: None,
            url: "http://h:1".into(),
            isolation: Isolation::Network,
            open: false,
            ..link.clone()
        };
        let stats = LinkStats { visits: 4, forwards: 6, inside_ns: 6_250, ..link.stats };
        let near = LinkInfo { isolation: Isolation::None, gate: true, stats, ..link.clone() };
        let stats = LinkStats { visits: 0, ..near.stats };
        let around = LinkInfo { isolation: Isolation::Fault, gate: true, stats, ..link.clone() };
        let disabled = LinkInfo { gate: false, ..near.clone() };
        let text = table(&[link, far, near, around, disabled]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 6);
        let words = |n: usize| lines[n].split("  ").map(str::trim).filter(|w| !w.is_empty());
        let ends = |n: usize| words(n).skip(words(n).count() - 2).collect::<Vec<_>>();
        assert_eq!(
            [ends(1), ends(2), ends(3), ends(4)].map(|e| e.join(" ")),
            ["- -", "- -", "1.20 1.2 us", "- -",]
        );
        let has = |n: usize, word: &str| words(n).any(|w| w == word);
        assert!(has(3, "gate") && has(3, "none") && !has(3, "ring"), "{}", lines[3]);
        assert!(has(4, "ring") && has(4, "fault") && !has(4, "gate"), "{}", lines[4]);
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
        assert!(lines[2].contains("http://h:1") && lines[2].contains("network"));
    }
}
