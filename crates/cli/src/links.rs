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

fn row(link: &LinkInfo) -> [String; 12] {
    let via = match link.isolation {
        Isolation::Process => "ring".to_string(),
        Isolation::Network => link.url.clone(),
        other => other.to_string(),
    };
    let s = &link.stats;
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
    ]
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
            open: true,
            stats: LinkStats {
                calls: 5,
                denied: 1,
                failed: 1,
                sent_bytes: 9,
                received_bytes: 20_480,
            },
        };
        let far = LinkInfo {
            server: None,
            url: "http://h:1".into(),
            isolation: Isolation::Network,
            open: false,
            ..link.clone()
        };
        let text = table(&[link, far]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
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
