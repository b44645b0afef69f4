//! `partywall links` and `watch`, and the same table after `up`.

pub(crate) mod json;
mod observe;
mod table;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use partywall::operator::LinkInfo;

use crate::socket::Socket;
use crate::terminal::printable;
use json::Row;
pub(crate) use table::{aligned, bytes, fit, principals, table};

/// What the columns and fields are; a part of the help.
pub(crate) const HELP: &str = "\
Columns:
  LINK           number of the link; it is a handler's `Peer::link`
  CALLER         principals of who calls; (uid N) for one without
  NAME           the name that was connected to
  VIA            ring: shared memory; gate: the caller's thread goes into the service's domain;
                 http2: the network, where the policy names the address
  ISOLATION      what separates the memories of the two ends: process, protection-keys,
                 shared-signal-stacks, none
  STATE          open, or closed: the last that closed are listed as well
  CALLS          calls that have begun, with those that a client makes to warm up
  FAILED         of these, those with a status other than OK; (N denied): by the policy
  PARCELS        messages, or parts of them, that both ends have sent in parcels, and parcels and leases
                 that they have attached, by their own counts; - where the policy lets no descriptor cross
With --wide also:
  SERVER         who serves; both ends with process number, user and digest of the program:
                 started (of the copy that the coordinator ran) or observed (read from /proc)
  CONFIDENTIALITY  who else can read what passes: host (its kernel and root), user (other processes of
                 the users of the two ends as well), space (programs in the address space of an end as
                 well), open (whoever is on the network's path)
  EVIDENCE       how the two ends are known, the weaker of the two: started (from a sealed copy),
                 observed (running, by the kernel's word), none
  SEAL           whether what passes is encrypted with keys that the two ends alone have: sealed, off
  REQUESTS       bytes that the server received;  REPLIES: that it sent
  DESCRIPTORS    most descriptors that may cross beside one message, and whether leases (memory that both
                 ends write) may be among them; - where none may
  IN PARCELS     parcels that the caller has sent, and bytes in them, by its own count
  OUT PARCELS    those that the server has sent, by its own
  FORWARDS/CALL  system calls that one call through the gate has made in the caller's name
  TIME/CALL      time that the caller's thread spent in the service, for one call
and below each link its methods, the 16 with most calls, and how many more there are:
  native         calls that the service took the native way: by stubs of partywall-build, without a
                 request of HTTP;  ordinary: by a request of HTTP; those that were denied are in neither

With `watch NAME`, at each look:
  the instances of the name, as `partywall ps --wide` has them, and the open links to it with
  CALLER/S       calls that have ended in a second, as the caller says, and SERVER/S as the server says
  CALLER MEAN    how long a call is open at the caller on average, as it says, and SERVER MEAN at the
                 server; - before the second look, of an end that says nothing, and without a call.
                 Ends measure while somebody watches, and ten seconds longer: with --every over 10
                 there is nothing to compare
  with --json a line is a look: name, instances (links, callers, memory, parcel_bytes, security and the
  fields of server), links (the fields below, and caller_pace and server_pace: calls_per_second, mean_ns)

With --json a line is an object. The fields stay; others may join them:
  link, name, via, url, security (isolation, confidentiality, evidence, seal, sign), open, calls, failed,
  denied, request_bytes, reply_bytes, visits, forwards, inside_ns, methods (path, native, ordinary),
  more_methods (a number), descriptors (0 where none may cross), leases (true where these may be among
  them), caller_parcels and server_parcels (what that end says it has sent: parcels, bytes; null where no
  descriptor may cross); caller and server (null for http2): principals, pid, uid, gid, cgroup, container
  (its id, or null), image (its id) and compose (PROJECT/SERVICE), which are null where the policy does not
  go by them, digest (null when it is unknown), evidence (started, observed). Counts are null where nobody
  counts: over http2.";

/// Which links are shown, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    socket: Socket,
    #[command(flatten)]
    form: Form,
}

/// How links are shown.
#[derive(clap::Args)]
struct Form {
    /// All that is known, in lines of more than 80 columns.
    #[arg(long)]
    wide: bool,
    /// An object for each link, one a line.
    #[arg(long, conflicts_with = "wide")]
    json: bool,
}

/// How links are watched.
#[derive(clap::Args)]
pub(crate) struct Watch {
    /// The name that is watched: its instances, the links to it, and while this runs calls per second and
    /// the mean time of a call, as each end measures them. All links unless given.
    name: Option<String>,
    #[command(flatten)]
    socket: Socket,
    #[command(flatten)]
    form: Form,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    every: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "write a number of seconds, from 0.1 to 86400".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Prints the links.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let links = arguments.socket.ask(partywall::operator::links)?;
    crate::say(&match (arguments.form.json, links.is_empty()) {
        (true, _) => links.iter().map(|link| Row::of(link).line()).collect(),
        (false, true) => "no links\n".into(),
        (false, false) => table(&links, arguments.form.wide),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints them again and again: the table on a terminal, else what has changed.
pub(crate) fn watch(arguments: &Watch) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(name) = &arguments.name {
        return observe::watch(arguments, name);
    }
    let clears = std::io::stdout().is_terminal() && !arguments.form.json;
    let mut before = BTreeMap::new();
    let mut first = true;
    loop {
        let links = arguments.socket.ask(partywall::operator::links)?;
        let changed: Vec<LinkInfo> =
            links.iter().filter(|link| before.get(&link.link) != Some(*link)).cloned().collect();
        let all = if clears { &links } else { &changed };
        let text = match arguments.form.json {
            true => changed.iter().map(|link| Row::of(link).line()).collect(),
            false if links.is_empty() && first => "no links\n".into(),
            false if all.is_empty() => String::new(),
            false => table(all, arguments.form.wide),
        };
        if !text.is_empty() {
            let clear = if clears { "\x1b[H\x1b[2J" } else { "" };
            crate::write_out(&format!("{clear}{}", printable(&text)))?;
        }
        before = links.into_iter().map(|link| (link.link, link)).collect();
        first = false;
        std::thread::sleep(arguments.every);
    }
}

/// How calls of a link travel: `ring`, `gate` or `http2`.
fn via(link: &LinkInfo) -> &'static str {
    match link.url.is_empty() {
        false => "http2",
        true if by_gate(link) => "gate",
        true => "ring",
    }
}

/// Whether calls go through the gate: it is open, and no call has shown that they go by the ring all
/// the same.
fn by_gate(link: &LinkInfo) -> bool {
    link.gate && (link.stats.visits > 0 || link.stats.calls == 0)
}
