//! `partywall watch NAME`: the instances of a name, the links to it, and what their ends measure meanwhile.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use partywall::operator::{InstanceInfo, Observed, PaceStats};
use serde::Serialize;

use super::json::{Levels, Row, Who};
use super::table::{count, in_parcels, principals, time};
use super::{Watch, aligned, bytes, via};
use crate::terminal::printable;

/// What both ends of a link said at the last look.
type Before = BTreeMap<u64, [Option<PaceStats>; 2]>;

/// What happened between two looks, as an end says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Pace {
    calls_per_second: f64,
    /// None where no call has ended.
    mean_ns: Option<u64>,
}

impl Pace {
    /// None before the second look, and where an end does not go on from what it said.
    fn between(before: Option<PaceStats>, now: Option<PaceStats>) -> Option<Self> {
        let (before, now) = (before?, now?);
        let elapsed = now.elapsed_ns.checked_sub(before.elapsed_ns).filter(|ns| *ns > 0)?;
        let ended = now.ended.checked_sub(before.ended)?;
        let open = now.open_ns.checked_sub(before.open_ns)?;
        let calls_per_second = ended as f64 / (elapsed as f64 / 1e9);
        Some(Self { calls_per_second, mean_ns: open.checked_div(ended) })
    }
}

/// One look.
#[derive(Serialize)]
struct Look<'l> {
    name: &'l str,
    instances: Vec<Instance<'l>>,
    links: Vec<Link<'l>>,
}

#[derive(Serialize)]
struct Instance<'l> {
    #[serde(flatten)]
    server: Who<'l>,
    links: u32,
    callers: u32,
    memory: u64,
    parcel_bytes: u64,
    security: Levels,
}

#[derive(Serialize)]
struct Link<'l> {
    #[serde(flatten)]
    row: Row<'l>,
    caller_pace: Option<Pace>,
    server_pace: Option<Pace>,
}

fn look<'l>(
    name: &'l str,
    instances: &'l [InstanceInfo],
    links: &'l [Observed],
    before: &Before,
) -> Look<'l> {
    let of_name = instances.iter().filter(|instance| instance.name == name);
    let instance = |i: &'l InstanceInfo| Instance {
        server: Who::of(&i.server),
        links: i.links,
        callers: i.callers,
        memory: i.memory,
        parcel_bytes: i.parcel_bytes,
        security: Levels::of(i.security),
    };
    let link = |o: &'l Observed| {
        let [caller, server] = before.get(&o.link.link).copied().unwrap_or_default();
        Link {
            row: Row::of(&o.link),
            caller_pace: Pace::between(caller, o.caller),
            server_pace: Pace::between(server, o.server),
        }
    };
    let links = links.iter().filter(|o| o.link.open).map(link).collect();
    Look { name, instances: of_name.map(instance).collect(), links }
}

fn text(look: &Look<'_>, links: &[Observed]) -> String {
    let instances = match look.instances.len() {
        0 => format!("`{}`: nobody serves it\n", look.name),
        1 => format!("`{}`: 1 instance\n", look.name),
        n => format!("`{}`: {n} instances\n", look.name),
    };
    let head =
        ["SERVER", "PID", "UID", "LINKS", "CALLERS", "MEMORY", "PARCELS", "CONTAINER", "SECURITY"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for i in &look.instances {
        rows.push(vec![
            if i.server.principals.is_empty() { "-".into() } else { i.server.principals.join("+") },
            i.server.pid.map_or("-".into(), |pid| pid.to_string()),
            i.server.uid.to_string(),
            i.links.to_string(),
            i.callers.to_string(),
            bytes(i.memory),
            bytes(i.parcel_bytes),
            i.server.container.map_or("-".into(), |id| id.chars().take(12).collect()),
            i.security.to_string(),
        ]);
    }
    let mut out = instances + &if rows.len() > 1 { aligned(&rows) } else { String::new() };
    let head = ["LINK", "CALLER", "VIA", "ISOLATION", "CALLS", "PARCELS"];
    let pace = ["CALLER/S", "CALLER MEAN", "SERVER/S", "SERVER MEAN"];
    let mut rows = vec![head.into_iter().chain(pace).map(String::from).collect::<Vec<_>>()];
    let open = links.iter().filter(|o| o.link.open);
    for (l, o) in look.links.iter().zip(open) {
        let (link, stats) = (&o.link, &o.link.stats);
        let parcels = stats.parcels.parcels.saturating_add(link.caller_parcels.parcels);
        let mut row = vec![
            link.link.to_string(),
            principals(&link.caller),
            via(link).into(),
            link.security.isolation.to_string(),
            count(stats.calls),
            in_parcels(link, count(parcels)),
        ];
        for pace in [l.caller_pace, l.server_pace] {
            row.push(pace.map_or("-".into(), |pace| format!("{:.1}", pace.calls_per_second)));
            row.push(pace.and_then(|pace| pace.mean_ns).map_or("-".into(), time));
        }
        rows.push(row);
    }
    if rows.len() > 1 {
        out += &aligned(&rows);
    }
    out
}

/// Prints it again and again: a table, or an object a line.
pub(super) fn watch(arguments: &Watch, name: &str) -> Result<ExitCode, Box<dyn Error>> {
    let clears = std::io::stdout().is_terminal() && !arguments.form.json;
    let mut before = Before::new();
    loop {
        let links = arguments.socket.ask(|at| partywall::operator::observe(at, name))?;
        let instances = arguments.socket.ask(partywall::operator::instances)?;
        let look = look(name, &instances, &links, &before);
        let said = match arguments.form.json {
            true => serde_json::to_string(&look).expect("texts and numbers") + "\n",
            false => text(&look, &links),
        };
        let clear = if clears { "\x1b[H\x1b[2J" } else { "" };
        crate::write_out(&format!("{clear}{}", printable(&said)))?;
        before = links.iter().map(|o| (o.link.link, [o.caller, o.server])).collect();
        std::thread::sleep(arguments.every);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall::operator::LinkInfo;
    use partywall::{Identity, Security};

    #[test]
    fn pace_is_what_happened_between_two_looks() {
        let stats = |ms: u64, ended, open_ms: u64| {
            Some(PaceStats::new(ms * 1_000_000, ended, open_ms * 1_000_000))
        };
        let between =
            |before, now| Pace::between(before, now).map(|p| (p.calls_per_second, p.mean_ns));
        assert_eq!(between(stats(100, 5, 50), stats(600, 15, 70)), Some((20.0, Some(2_000_000))));
        assert_eq!(between(stats(100, 5, 50), stats(600, 5, 70)), Some((0.0, None)));
        assert_eq!(between(None, stats(600, 5, 70)), None, "the first look");
        assert_eq!(between(stats(100, 5, 50), None), None, "it says nothing");
        assert_eq!(between(stats(600, 5, 50), stats(100, 5, 50)), None, "it began again");
        // Whatever an end claims.
        for lie in [PaceStats::new(u64::MAX, u64::MAX, 0), PaceStats::new(1, 0, u64::MAX)] {
            Pace::between(stats(0, 1, 1), Some(lie));
            Pace::between(Some(lie), stats(0, 1, 1));
        }
    }

    #[test]
    fn a_look_has_instances_open_links_and_the_word_of_each_end() {
        let who = |name: &str| {
            let mut who = Identity::new(7, 7);
            (who.pid, who.principals) = (Some(12), vec![name.into()]);
            who
        };
        let mut instance = InstanceInfo::new("greeter", who("server"), Security::HIGHEST);
        (instance.links, instance.callers, instance.memory) = (3, 2, 786_432);
        instance.parcel_bytes = 5 << 20;
        let other = InstanceInfo::new("other", who("else"), Security::LOWEST);
        let mut link = LinkInfo::new(4, "greeter", who("web"), Some(who("server")));
        (link.stats.calls, link.grant.descriptors) = (1234, 1);
        link.caller_parcels = partywall::operator::ParcelStats::new(5, 6);
        let mut closed = link.clone();
        (closed.link, closed.open) = (5, false);
        let mut observed = [Observed::new(link), Observed::new(closed)];
        observed[0].caller = Some(PaceStats::new(2_000_000_000, 30, 60_000_000));
        observed[0].server = Some(PaceStats::new(500_000_000, 9, 9_000_000));
        let first = PaceStats::new(1_000_000_000, 10, 20_000_000);
        let before = Before::from([(4, [Some(first), None])]);
        let instances = [instance, other];
        let look = look("greeter", &instances, &observed, &before);
        let table = text(&look, &observed);
        let words: Vec<String> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(words.len(), 5, "{table}");
        assert_eq!(words[0], "`greeter`: 1 instance");
        assert_eq!(words[2], "server 12 7 3 2 768 KiB 5120 KiB - process, host, started");
        assert_eq!(words[4], "4 web ring none 1234 5 20.0 2.0 ms - -");
        let json = serde_json::to_value(&look).unwrap();
        let link = &json["links"][0];
        assert_eq!((&link["link"], &link["calls"]), (&4.into(), &1234.into()));
        assert_eq!(
            link["caller_pace"],
            serde_json::json!({"calls_per_second": 20.0, "mean_ns": 2_000_000})
        );
        assert!(link["server_pace"].is_null() && json["links"].as_array().unwrap().len() == 1);
        assert_eq!(
            (&json["instances"][0]["pid"], &json["instances"][0]["callers"]),
            (&12.into(), &2.into())
        );
        for object in [&json, &json["instances"][0], link, &link["caller_pace"]] {
            for field in object.as_object().unwrap().keys() {
                assert!(crate::links::HELP.contains(field), "{field} is not in the help");
            }
        }
    }
}
