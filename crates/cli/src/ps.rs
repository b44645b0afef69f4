//! `partywall ps`: the services of an `up`, and the processes at the ends of links.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::ExitCode;

use partywall::operator::{InstanceInfo, LinkInfo};
use partywall::{Evidence, Identity};
use serde::Serialize;

use crate::links::{aligned, bytes, fit, json};
use crate::socket::Socket;
use crate::up::record::{self, Record};

/// What the columns and fields are; a part of the help.
pub(crate) const HELP: &str = "\
Listed are the services of the `partywall up` whose socket this is, every process that serves a name,
whether anybody has called it or not, and every process that is an end of a link.

Columns:
  PROCESS  principals of the process, or its service's name
  PID      process number;  UID: its user
  RUNS AS  process or domain; process for what `up` has not started
  STATE    running, starting, waiting (to be started again) or ended; for what `up` has not started
           linked; when it has no link that is open, serving, or unlinked if it may have ended
  SERVES   names that others call it by;  CALLS: names that it calls
  LINKS    links to it that their callers hold;  CALLERS: processes among these. The kernel says who
           holds a link's memory: a link counts until its caller has neither descriptor nor mapping
With --wide also:
  MEMORY   shared memory of these links, in both directions
  PARCELS  memory that the process has made for parcels and attachments, by its own word; - of what serves
           nothing, of which that is not listed
  CONTAINER  begin of its id
  SECURITY  what protects a link to it, as far as that depends on it: isolation, confidentiality,
           evidence; - of what serves nothing
  PROGRAM  first bytes of its SHA-256, and started (of the copy that ran) or observed (from /proc)

With --json a line is an object: principals, service (null for what `up` has not started), pid, uid,
container (its id, or null), image (its id) and compose (PROJECT/SERVICE), which are null where the
policy does not go by them, runs_as, state, serves, calls, ends (how often it has ended),
last_end, digest, evidence (none of what the coordinator does not know), links and callers (numbers),
memory (bytes), and, null for what serves nothing, parcel_bytes and security (isolation, confidentiality,
evidence).";

/// Whose processes are shown, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    socket: Socket,
    /// All that is known, in lines that may have more than 80 columns.
    #[arg(long)]
    wide: bool,
    /// An object for each process, one a line.
    #[arg(long, conflicts_with = "wide")]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Row {
    principals: Vec<String>,
    service: Option<String>,
    pid: Option<u32>,
    uid: Option<u32>,
    container: Option<String>,
    image: Option<String>,
    compose: Option<String>,
    runs_as: String,
    state: String,
    serves: BTreeSet<String>,
    calls: BTreeSet<String>,
    ends: u32,
    last_end: Option<String>,
    digest: Option<String>,
    evidence: &'static str,
    links: u32,
    callers: u32,
    memory: u64,
    parcel_bytes: Option<u64>,
    security: Option<json::Levels>,
}

/// Prints them.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let instances = arguments.socket.ask(partywall::operator::instances)?;
    let links = arguments.socket.ask(partywall::operator::links)?;
    let services = match arguments.socket.place() {
        Some(socket) => {
            let file = record::beside(&socket);
            record::read(&file).map_err(|e| format!("{}: {e}", file.display()))?
        }
        None => Vec::new(),
    };
    let rows = rows(&instances, &links, services);
    crate::say(&match (arguments.json, rows.is_empty()) {
        (true, _) => rows
            .iter()
            .map(|row| serde_json::to_string(row).expect("texts and numbers") + "\n")
            .collect(),
        (false, true) => "no processes\n".into(),
        (false, false) => table(&rows, arguments.wide),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn rows(instances: &[InstanceInfo], links: &[LinkInfo], services: Vec<Record>) -> Vec<Row> {
    let mut rows: Vec<Row> = services
        .into_iter()
        .map(|s| Row {
            principals: vec![s.service.clone()],
            serves: if s.serves { [s.service.clone()].into() } else { BTreeSet::new() },
            service: Some(s.service),
            pid: s.pid,
            runs_as: s.runs_as,
            state: s.state,
            ends: s.ends,
            last_end: s.last_end,
            evidence: Evidence::None.word(),
            ..Row::default()
        })
        .collect();
    let mut at: BTreeMap<(Option<u32>, Vec<String>), usize> = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.pid.is_some())
        .map(|(n, row)| ((row.pid, row.principals.clone()), n))
        .collect();
    let mut row_of = |rows: &mut Vec<Row>, identity: &Identity| {
        let key = (identity.pid, identity.principals.clone());
        let n = *at.entry(key).or_insert_with(|| {
            rows.push(unknown(identity));
            rows.len() - 1
        });
        let (row, who) = (&mut rows[n], json::Who::of(identity));
        (row.uid, row.digest, row.evidence) = (Some(who.uid), who.digest, who.evidence);
        row.container = who.container.map(str::to_string);
        row.image = who.image.map(str::to_string);
        row.compose = who.compose.map(str::to_string);
        n
    };
    for instance in instances {
        let n = row_of(&mut rows, &instance.server);
        let row = &mut rows[n];
        if row.service.is_none() {
            row.state = "serving".into();
        }
        row.serves.insert(instance.name.clone());
        row.links = row.links.saturating_add(instance.links);
        // One that calls two of its names may be counted twice.
        row.callers = row.callers.saturating_add(instance.callers);
        row.memory = row.memory.saturating_add(instance.memory);
        // Of the process, whichever of its names this is.
        row.parcel_bytes = Some(instance.parcel_bytes);
        row.security = Some(json::Levels::of(instance.security));
    }
    for link in links {
        let ends = [(Some(&link.caller), false), (link.server.as_ref(), true)];
        for (identity, serves) in ends {
            let Some(identity) = identity else { continue };
            let n = row_of(&mut rows, identity);
            let row = &mut rows[n];
            if row.service.is_none() && link.open {
                row.state = "linked".into();
            }
            let names = if serves { &mut row.serves } else { &mut row.calls };
            names.insert(link.name.clone());
        }
    }
    rows
}

/// One that `up` has not started, or that it has started again since.
fn unknown(identity: &Identity) -> Row {
    Row {
        principals: identity.principals.clone(),
        pid: identity.pid,
        runs_as: "process".into(),
        state: "unlinked".into(),
        ..Row::default()
    }
}

fn table(rows: &[Row], wide: bool) -> String {
    let mut head = vec!["PROCESS", "PID", "UID", "RUNS AS", "STATE", "SERVES", "CALLS"];
    head.extend(["LINKS", "CALLERS"]);
    if wide {
        head.extend(["MEMORY", "PARCELS", "CONTAINER", "SECURITY", "PROGRAM"]);
    }
    let mut lines = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    let number = |n: Option<u32>| n.map_or("-".into(), |n| n.to_string());
    let names = |names: &BTreeSet<String>| match names.is_empty() {
        true => "-".to_owned(),
        false => names.iter().map(String::as_str).collect::<Vec<_>>().join(","),
    };
    for row in rows {
        let mut line = vec![
            if row.principals.is_empty() { "-".into() } else { row.principals.join("+") },
            number(row.pid),
            number(row.uid),
            row.runs_as.clone(),
            row.state.clone(),
            names(&row.serves),
            names(&row.calls),
            row.links.to_string(),
            row.callers.to_string(),
        ];
        if wide {
            let begin = |text: Option<&String>, chars: usize| -> String {
                text.map_or("-".into(), |text| text.chars().take(chars).collect())
            };
            let digest = begin(row.digest.as_ref(), "sha256:".len() + 8);
            line.push(bytes(row.memory));
            line.push(row.parcel_bytes.map_or("-".into(), bytes));
            line.push(begin(row.container.as_ref(), 12));
            line.push(row.security.as_ref().map_or("-".into(), ToString::to_string));
            line.push(format!("{digest} {}", row.evidence));
        }
        lines.push(line);
    }
    if !wide {
        fit(&mut lines, &[0, 5, 6]);
    }
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall::{Digest, Security};

    fn identity(name: &str, pid: u32) -> Identity {
        let mut identity = Identity::new(7, 7);
        identity.pid = Some(pid);
        identity.digest = Digest::Started([0xab; 32]);
        identity.principals = vec![name.into()];
        identity
    }

    #[test]
    fn services_of_up_and_ends_of_links_are_one_list() {
        let (client, greeter) = (identity("client", 11), identity("greeter", 10));
        let link = LinkInfo::new(1, "greeter", client, Some(greeter));
        let mut stranger = link.clone();
        (stranger.caller, stranger.open) = (identity("guest", 99), false);
        stranger.caller.container = "4f5e".into();
        (stranger.caller.image, stranger.caller.compose) = ("sha256:1f".into(), "a/b".into());
        let record = |service: &str, pid, serves| Record {
            service: service.into(),
            pid,
            runs_as: "process".into(),
            state: if pid.is_some() { "running" } else { "ended" }.into(),
            serves,
            ends: 0,
            last_end: None,
        };
        let services = vec![
            record("greeter", Some(10), true),
            record("client", Some(11), false),
            record("once", None, false),
        ];
        let mut instance = InstanceInfo::new("greeter", identity("greeter", 10), Security::HIGHEST);
        (instance.links, instance.callers, instance.memory) = (3, 2, 786_432);
        instance.parcel_bytes = 5 << 20;
        let mut alone = InstanceInfo::new("later", identity("idle", 12), Security::UNIX_SOCKET);
        alone.server.container = "0123456789abcdef".into();
        let rows = rows(&[instance, alone], &[link, stranger], services);
        assert_eq!(rows.len(), 5, "{rows:?}");
        // Nobody tells what a process that serves nothing has made, which is not the same as nothing.
        let made = rows.iter().map(|row| row.parcel_bytes).collect::<Vec<_>>();
        assert_eq!(made, [Some(5 << 20), None, None, Some(0), None]);
        let containers = rows.iter().map(|row| row.container.as_deref());
        assert_eq!(
            containers.collect::<Vec<_>>(),
            [None, None, None, Some("0123456789abcdef"), Some("4f5e")]
        );
        let [.., last] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(
            [last.image.as_deref(), last.compose.as_deref()],
            [Some("sha256:1f"), Some("a/b")]
        );
        let text = table(&rows, false);
        let line = |name: &str| text.lines().find(|l| l.starts_with(name)).unwrap();
        let words = |name| line(name).split_whitespace().collect::<Vec<_>>();
        assert_eq!(
            words("greeter"),
            ["greeter", "10", "7", "process", "running", "greeter", "-", "3", "2"]
        );
        assert_eq!(
            words("client"),
            ["client", "11", "7", "process", "running", "-", "greeter", "0", "0"]
        );
        assert_eq!(words("once"), ["once", "-", "-", "process", "ended", "-", "-", "0", "0"]);
        assert_eq!(
            words("guest"),
            ["guest", "99", "7", "process", "unlinked", "-", "greeter", "0", "0"]
        );
        assert_eq!(
            words("idle"),
            ["idle", "12", "7", "process", "serving", "later", "-", "0", "0"]
        );
        let fits = |text: &str| text.lines().all(|l| l.chars().count() <= 80);
        assert!(fits(&text), "{text}");
        let many = ["one", "two", "three"].map(|name| format!("a-name-of-many-letters-{name}"));
        let row = Row {
            principals: vec![many.concat()],
            pid: Some(4_194_304),
            uid: Some(4_294_967_294),
            serves: many.iter().cloned().collect(),
            calls: many.iter().cloned().collect(),
            ..unknown(&identity("x", 1))
        };
        let text = table(&[row], false);
        assert!(fits(&text) && text.contains('…'), "{text}");
        let wide = super::table(&rows, true);
        for part in ["sha256:abababab started", " 0123456789ab ", "process, host, started"] {
            assert!(wide.contains(part), "{part} in {wide}");
        }
        let memory = wide.lines().map(|line| {
            let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
            cells.skip(9).take(2).collect::<Vec<_>>()
        });
        assert_eq!(
            memory.collect::<Vec<_>>(),
            [
                ["MEMORY", "PARCELS"],
                ["768 KiB", "5120 KiB"],
                ["0 B", "-"],
                ["0 B", "-"],
                ["0 B", "0 B"],
                ["0 B", "-"]
            ]
        );
        for field in serde_json::to_value(&rows[0]).unwrap().as_object().unwrap().keys() {
            assert!(HELP.contains(field.as_str()), "{field} is not in the help");
        }
    }
}
