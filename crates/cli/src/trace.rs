//! `partywall trace LINK`: what crosses a link, record by record.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use partywall::Seal;
use partywall::operator::{Crossed, End, LinkInfo, TracedRecord};
use partywall_abi::frame::{HANDSHAKE, Kind};
use serde::Serialize;

use crate::links::{json::hex, principals};
use crate::socket::Socket;

/// What the columns and fields are; a part of the help.
pub(crate) const HELP: &str = "\
Columns:
  TIME           seconds since the begin, when the record was seen
  FROM           the end that has sent it: caller, server
  NUMBER         its number in that direction, from 0 on
  KIND           frame (of a call), limits, window, method, ...; what these are is in docs/abi.md
  STREAM         the call that it belongs to; 0 for the link itself
  LENGTH         of its payload, in bytes
  LEVEL          plain, or sealed: what follows is encrypted, and kind, stream and length are not
  FIRST BYTES    of the payload, in hexadecimal digits and as text; - where they were overwritten, or where
                 nobody says where they lie (of payloads over 48 bytes, until the link is idle for once)

A line says how many records were overwritten before they could be read. The ends of the link neither know nor
wait: they may write faster than this reads.

With --json a line is an object: time (seconds since 1970), link, from, number, kind, flags, stream, length,
level, bytes (null where they are not to be had); or time, link, from and missed.

Root may trace each link of this host, and a coordinator's user that is not root those between two of its own
processes, of which one is open to others of its user (`harden = false`). The audit log has it as `traced`.

Examples:
  partywall trace 7
  partywall trace 7 --for 5s --bytes 64
  partywall trace 7 --count 100 --json | jq -r .kind";

/// How long nothing has come before it is looked again.
const PAUSE: Duration = Duration::from_millis(1);

/// The link, and how much of it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The link, by its number in `partywall links`.
    link: u64,
    /// Ends after so long, as `5s`, `500ms` or `2m`; unless given with the link.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    within: Option<Duration>,
    /// Ends after so many records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Bytes of each payload that are shown, at most 65536.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(0..=65536))]
    bytes: u32,
    /// An object for each record, one a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: Socket,
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time, as 5s, 500ms or 2m, of at most a day".to_owned();
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0)];
    let unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = unit.ok_or_else(wrong)?;
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * factor;
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Prints what crosses.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let (number, start) = (arguments.link, Instant::now());
    let links = arguments.socket.ask(partywall::operator::links)?;
    let link = links.iter().find(|link| link.link == number);
    let trace = arguments.socket.ask(|socket| partywall::operator::trace(socket, number))?;
    let is_sealed = trace.security().seal != Seal::Off;
    if !arguments.json {
        crate::say(&head(number, link, is_sealed))?;
    }
    let end = arguments.within.and_then(|within| start.checked_add(within));
    let mut left = arguments.count.unwrap_or(u64::MAX);
    loop {
        // Whether it is over is asked first: what came before that is shown.
        let is_over = trace.is_over();
        let crossed = trace.take(arguments.bytes as usize);
        let mut text = String::new();
        for crossed in &crossed {
            if left == 0 {
                break;
            }
            left -= u64::from(matches!(crossed, Crossed::Record(_)));
            match arguments.json {
                true => text.push_str(&object(number, crossed, is_sealed)),
                false => text.push_str(&line(start.elapsed(), crossed, is_sealed)),
            }
        }
        if !text.is_empty() {
            crate::say(&text)?;
        }
        if left == 0 || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(ExitCode::SUCCESS);
        }
        if crossed.is_empty() {
            if is_over {
                if !arguments.json {
                    crate::say("the link is over, or its coordinator has gone\n")?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn head(number: u64, link: Option<&LinkInfo>, is_sealed: bool) -> String {
    let mut text = format!("link {number}");
    if let Some(link) = link {
        let server = link.server.as_ref().map(principals).unwrap_or_default();
        let _ = write!(
            text,
            ": {} calls `{}`, served by {server}",
            principals(&link.caller),
            link.name
        );
    }
    let how = if is_sealed { "sealed" } else { "plain" };
    let _ = writeln!(text, "; its records are {how}");
    text + "TIME        FROM    NUMBER  KIND       STREAM   LENGTH  LEVEL   FIRST BYTES\n"
}

fn from(end: End) -> &'static str {
    match end {
        End::Caller => "caller",
        End::Server => "server",
    }
}

fn kind(record: &TracedRecord) -> String {
    let Some(number) = record.kind else { return "none".into() };
    let name = match Kind::from_number(number) {
        Some(Kind::Frame) => "frame",
        Some(Kind::Reset) => "reset",
        Some(Kind::Window) => "window",
        Some(Kind::Drain) => "drain",
        Some(Kind::Message) => "message",
        Some(Kind::Limits) => "limits",
        Some(Kind::Room) => "room",
        Some(Kind::Method) => "method",
        Some(Kind::Parcels) => "parcels",
        Some(Kind::Release) => "release",
        None if number == HANDSHAKE => "handshake",
        None => return number.to_string(),
    };
    name.into()
}

/// Records of a handshake come before there are keys.
fn level(record: &TracedRecord, is_sealed: bool) -> &'static str {
    match is_sealed && record.kind != Some(HANDSHAKE) {
        true => "sealed",
        false => "plain",
    }
}

fn line(at: Duration, crossed: &Crossed, is_sealed: bool) -> String {
    let at = at.as_secs_f64();
    let record = match crossed {
        Crossed::Record(record) => record,
        Crossed::Missed { from: end, records } => {
            return format!("{at:<10.6}  {}  {records} records were overwritten\n", from(*end));
        }
        // What a later release finds.
        _ => return String::new(),
    };
    let bytes = match &record.bytes {
        None => "-".to_owned(),
        Some(bytes) if bytes.is_empty() => String::new(),
        Some(bytes) => format!("{}  {}", hex(bytes), readable(bytes)),
    };
    let TracedRecord { number, stream, len, .. } = record;
    let line = format!(
        "{at:<10.6}  {}  {number:<6}  {:<9}  {stream:<7}  {len:<6}  {:<6}  {bytes}",
        from(record.from),
        kind(record),
        level(record, is_sealed)
    );
    line.trim_end().to_owned() + "\n"
}

/// Bytes as the text that they may be.
fn readable(bytes: &[u8]) -> String {
    let shown = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' };
    bytes.iter().map(shown).collect()
}

#[derive(Serialize)]
struct Object {
    time: f64,
    link: u64,
    from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    record: Option<Record>,
}

#[derive(Serialize)]
struct Record {
    number: u64,
    kind: String,
    flags: u8,
    stream: u32,
    length: u32,
    level: &'static str,
    bytes: Option<String>,
}

fn object(link: u64, crossed: &Crossed, is_sealed: bool) -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = time.as_micros() as f64 / 1e6;
    let (end, missed, record) = match crossed {
        Crossed::Missed { from, records } => (*from, Some(*records), None),
        Crossed::Record(record) => {
            let TracedRecord { number, flags, stream, len: length, .. } = *record;
            let (kind, level) = (kind(record), level(record, is_sealed));
            let bytes = record.bytes.as_deref().map(hex);
            let told = Record { number, kind, flags, stream, length, level, bytes };
            (record.from, None, Some(told))
        }
        _ => return String::new(),
    };
    let object = Object { time, link, from: from(end), missed, record };
    serde_json::to_string(&object).expect("texts and numbers") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, ms) in [("5s", 5000), ("500ms", 500), ("2m", 120_000), ("0.5s", 500)] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "0s", "2d", "infs", "nans", "1e9s", "0.0001ms"] {
            assert!(time(text).unwrap_err().contains("500ms"), "{text}");
        }
    }
}
