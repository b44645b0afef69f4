//! The keys that Compose has for a service, beside those that [`super::read`] reads.
//!
//! | key | what `up` does with it |
//! | --- | --- |
//! | `working_dir`, `restart`, `stop_signal`, `stop_grace_period` | as Compose does |
//! | `user` | refused, unless it is the user who runs `up` |
//! | what would protect or limit, such as `cap_drop`, `read_only`, `mem_limit`, `deploy.replicas`; `profiles` | refused |
//! | what is about images and containers, such as `ports`, `volumes`, `healthcheck` | a note names it |
//! | `image`, `build`, and `command` beside `args` | not used: `x-partywall` says what runs |
//!
//! So no service has less protection than its file asks for without a word, and a key that is
//! mistyped is an error as it is for Compose.

use std::path::Path;
use std::time::Duration;

use partywall_coordinator::policy::{did_you_mean, nearest};
use rustix::process::Signal;

use super::error::{At, ComposeError};
use super::field::{Context, Field};
use super::tree::Value;
use super::{Manners, Restart};

/// The key that makes a service one of ours.
pub const EXTENSION: &str = "x-partywall";

/// Keys that are read here or in `read`.
const READ: [&str; 13] = [
    "build",
    "command",
    "deploy",
    "depends_on",
    "env_file",
    "environment",
    "extends",
    "image",
    "restart",
    "stop_grace_period",
    "stop_signal",
    "user",
    "working_dir",
];

/// Keys that protect or limit, or say whether a service runs at all, and that `up` does not apply.
pub(super) const REFUSED: [&str; 34] = [
    "blkio_config",
    "cap_drop",
    "cgroup",
    "cgroup_parent",
    "cpu_count",
    "cpu_percent",
    "cpu_period",
    "cpu_quota",
    "cpu_rt_period",
    "cpu_rt_runtime",
    "cpus",
    "cpuset",
    "credential_spec",
    "device_cgroup_rules",
    "ipc",
    "isolation",
    "mem_limit",
    "mem_swappiness",
    "memswap_limit",
    "network_mode",
    "oom_kill_disable",
    "pid",
    "pids_limit",
    "post_start",
    "pre_stop",
    "profiles",
    "read_only",
    "runtime",
    "scale",
    "security_opt",
    "storage_opt",
    "sysctls",
    "ulimits",
    "userns_mode",
];

/// Keys that are about containers; a process of this host does without them.
const NOTED: [&str; 45] = [
    "annotations",
    "attach",
    "cap_add",
    "configs",
    "container_name",
    "cpu_shares",
    "develop",
    "devices",
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "entrypoint",
    "expose",
    "external_links",
    "extra_hosts",
    "gpus",
    "group_add",
    "healthcheck",
    "hostname",
    "init",
    "label_file",
    "labels",
    "links",
    "logging",
    "mac_address",
    "mem_reservation",
    "models",
    "networks",
    "oom_score_adj",
    "platform",
    "ports",
    "privileged",
    "provider",
    "pull_policy",
    "pull_refresh_after",
    "secrets",
    "shm_size",
    "stdin_open",
    "tmpfs",
    "tty",
    "use_api_socket",
    "uts",
    "volumes",
    "volumes_from",
];

/// Signals that `stop_signal` may name.
const SIGNALS: [(&str, Signal); 10] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("WINCH", Signal::WINCH),
];

/// What keys of the whole file are, beside `x-...`.
const OF_FILE: [&str; 8] =
    ["name", "version", "services", "networks", "volumes", "configs", "secrets", "models"];

/// Checks the keys of the file itself.
pub fn of_file(root: &Field<'_>) -> Result<(), ComposeError> {
    mistyped_extension(root)?;
    for entry in root.entries()? {
        let known = OF_FILE.contains(&entry.name) || entry.name == "include";
        if !known && !entry.name.starts_with("x-") {
            return Err(unknown(&entry, OF_FILE.into_iter().chain(["include"])));
        }
    }
    Ok(())
}

/// An `x-partywall` that is mistyped would be an extension that nobody reads.
pub fn mistyped_extension(service: &Field<'_>) -> Result<(), ComposeError> {
    for entry in service.entries()? {
        if entry.name != EXTENSION
            && (entry.name.starts_with("x") || entry.name.contains("partywall"))
            && nearest(entry.name, [EXTENSION]).is_some()
        {
            return Err(unknown(&entry, [EXTENSION]));
        }
    }
    Ok(())
}

/// A key that Compose has not in this place.
pub(super) fn unknown<'a>(
    entry: &Field<'_>,
    known: impl IntoIterator<Item = &'a str>,
) -> ComposeError {
    let near = did_you_mean(entry.name, known);
    entry.bad(format!("Compose has no such key; remove it, or begin it with `x-`{near}"))
}

/// Reads, refuses or notes each key of a service that is run. `args`: whether `x-partywall` has them.
pub fn of_service(
    service: &Field<'_>,
    args: bool,
    cx: &mut Context<'_>,
) -> Result<Manners, ComposeError> {
    let mut manners = Manners::default();
    let mut noted = Vec::new();
    for entry in service.entries()? {
        match entry.name {
            "user" => user(&entry, cx)?,
            "working_dir" => manners.working_dir = Some(directory(&entry, cx)?),
            "restart" => manners.restart = restart(&entry, cx)?,
            "stop_signal" => manners.stop_signal = signal(&entry, cx)?,
            "stop_grace_period" => manners.grace = Some(duration(&entry, cx)?),
            "deploy" => deploy(&entry, cx)?,
            "command" if !args => noted.push(entry),
            "scale" if is(&entry, "1") => {}
            "read_only" | "oom_kill_disable" if is(&entry, "false") => {}
            "network_mode" | "ipc" | "pid" if is(&entry, "host") => {}
            key if REFUSED.contains(&key) && !is_empty(&entry) => return Err(refused(&entry)),
            key if NOTED.contains(&key) => noted.push(entry),
            key if READ.contains(&key) || REFUSED.contains(&key) || key.starts_with("x-") => {}
            _ => {
                let known = READ.into_iter().chain(REFUSED).chain(NOTED).chain([EXTENSION]);
                return Err(unknown(&entry, known));
            }
        }
    }
    if let [first, ..] = &noted[..] {
        let keys: Vec<String> = noted.iter().map(|e| format!("`{}`", e.name)).collect();
        let mut place = first.place.clone();
        place.key.clone_from(&service.place.key);
        let text = "for containers, and not used: the service runs as a process of this host";
        cx.note(&place, &format!("{}: {text}", keys.join(", ")));
    }
    Ok(manners)
}

fn is(entry: &Field<'_>, value: &str) -> bool {
    matches!(&entry.node.value, Value::Text(text) if text == value)
}

/// Whether nothing is asked for: no value, an empty list or an empty mapping.
fn is_empty(entry: &Field<'_>) -> bool {
    match &entry.node.value {
        Value::Null => true,
        Value::Text(_) => false,
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
    }
}

fn refused(entry: &Field<'_>) -> ComposeError {
    entry.bad(
        "`up` runs services as processes of this host and does not apply this key, so the service \
         would run without it; remove the key if it may, or run the service in a container",
    )
}

fn deploy(field: &Field<'_>, cx: &mut Context<'_>) -> Result<(), ComposeError> {
    let mut noted = Vec::new();
    for entry in field.entries()? {
        match entry.name {
            "replicas" if is(&entry, "1") => {}
            "replicas" => {
                return Err(entry.bad(
                    "`up` runs each service once; remove the key, or list the service again under \
                     another name",
                ));
            }
            "resources" => {
                if let Some(limits) = entry.get("limits")?.filter(|limits| !is_empty(limits)) {
                    return Err(refused(&limits));
                }
                noted.push(entry.name);
            }
            other => noted.push(other),
        }
    }
    if !noted.is_empty() {
        cx.note(&field.place, &format!("not used: {}", noted.join(", ")));
    }
    Ok(())
}

/// Whom a service runs as is who runs `up`.
fn user(field: &Field<'_>, cx: &mut Context<'_>) -> Result<(), ComposeError> {
    let text = field.text("a user", cx)?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text.as_str(), None),
    };
    let own = number(user, "/etc/passwd") == Some(uid)
        && group.is_none_or(|group| number(group, "/etc/group") == Some(gid));
    if own {
        return Ok(());
    }
    Err(field.bad(format!(
        "`{text}`: `up` runs services as the user who runs it, who has number {uid} and group {gid}; \
         run it as that user, or remove the key if the service may run as this one"
    )))
}

/// A number of passwd(5) or group(5), or what it has by that name.
fn number(text: &str, file: &str) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let lines = std::fs::read_to_string(file).ok()?;
    let line = lines.lines().find(|l| l.split(':').next() == Some(text))?;
    line.split(':').nth(2)?.parse().ok()
}

fn directory(
    field: &Field<'_>,
    cx: &mut Context<'_>,
) -> Result<At<std::path::PathBuf>, ComposeError> {
    let text = field.text("a directory", cx)?;
    let place = field.place.clone();
    let value = place.file.parent().unwrap_or(Path::new("")).join(&text);
    if !value.is_dir() {
        return Err(field.bad(format!(
            "`{text}` is no directory of this host; create it, or remove the key: services then run \
             in the directory of this file"
        )));
    }
    Ok(At { value, place })
}

fn restart(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Restart, ComposeError> {
    const FORM: &str = "`no`, `always`, `unless-stopped`, `on-failure` or `on-failure:TIMES`";
    let text = field.text(FORM, cx)?;
    match text.as_str() {
        "no" | "false" => Ok(Restart::No),
        "always" | "unless-stopped" => Ok(Restart::Always),
        "on-failure" => Ok(Restart::OnFailure(None)),
        other => match other.strip_prefix("on-failure:").map(str::parse) {
            Some(Ok(times)) => Ok(Restart::OnFailure(Some(times))),
            _ => Err(field.wrong(FORM)),
        },
    }
}

fn signal(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Signal, ComposeError> {
    let text = field.text("a signal", cx)?;
    let bare = text.strip_prefix("SIG").unwrap_or(&text);
    let by_number = |signal: &Signal| bare.parse() == Ok(signal.as_raw());
    let found = SIGNALS.iter().find(|(name, signal)| *name == bare || by_number(signal));
    found.map(|(_, signal)| *signal).ok_or_else(|| {
        let known: Vec<String> = SIGNALS.iter().map(|(name, _)| format!("SIG{name}")).collect();
        field.bad(format!("`{text}` is no signal to stop by; write one of {}", known.join(", ")))
    })
}

fn duration(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Duration, ComposeError> {
    let text = field.text("a duration such as `10s` or `1m30s`", cx)?;
    parse_duration(&text).ok_or_else(|| {
        field.bad(format!("`{text}` is no duration; write one such as `10s`, `1m30s` or `500ms`"))
    })
}

/// `1h2m3s4ms5us`, each part at most once, of any size.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut left = text;
    let mut sum = Duration::ZERO;
    while !left.is_empty() {
        let digits = left.find(|c: char| !c.is_ascii_digit())?;
        let count: u32 = left[..digits].parse().ok()?;
        let unit_end = left[digits..].find(|c: char| c.is_ascii_digit()).map(|n| n + digits);
        let (unit, rest) = (&left[digits..unit_end.unwrap_or(left.len())], unit_end);
        let one = match unit {
            "h" => Duration::from_secs(3600),
            "m" => Duration::from_secs(60),
            "s" => Duration::from_secs(1),
            "ms" => Duration::from_millis(1),
            "us" => Duration::from_micros(1),
            _ => return None,
        };
        sum = sum.checked_add(one.checked_mul(count)?)?;
        left = rest.map_or("", |at| &left[at..]);
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_compose_writes_them() {
        for (text, ms) in [("10s", 10_000), ("1m30s", 90_000), ("500ms", 500), ("1h0s", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "10", "s", "1x", "-1s", "99999999999s", "1.5s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn no_key_is_in_two_lists() {
        let all = READ.into_iter().chain(REFUSED).chain(NOTED);
        let mut seen = std::collections::BTreeSet::new();
        for key in all {
            assert!(seen.insert(key), "{key}");
        }
    }
}
