//! How commands show functions, and calls that failed.

use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use partywall_abi::frame::CODES;
use partywall_fn_host::{proto, reply};
use tonic::Status;

use crate::terminal::in_line;

/// A call that ended with a status other than OK.
#[derive(Debug)]
pub(super) struct Failed {
    /// What was asked for.
    what: String,
    status: Status,
}

impl Failed {
    /// 64 and the code.
    pub(super) fn exit_code(&self) -> ExitCode {
        // There are 17 codes.
        ExitCode::from(64 + self.status.code() as u8)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.what, CODES[self.status.code() as usize])?;
        let mut lines = self.status.message().lines();
        f.write_str(&in_line(lines.next().unwrap_or_default()))?;
        // A compiler's errors have lines; indented, none looks like one of ours.
        lines.try_for_each(|line| write!(f, "\n  {}", in_line(line)))?;
        let call = self.status.metadata().get(reply::CALL).and_then(|call| call.to_str().ok());
        call.map_or(Ok(()), |call| write!(f, " (call {})", in_line(call)))
    }
}

impl Error for Failed {}

/// A call that ended with this status.
pub(super) fn failed(what: &str, status: Status) -> Box<dyn Error> {
    Box::new(Failed { what: what.into(), status })
}

/// Writes bytes to standard output as they are.
pub(super) fn write(bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => crate::Unread.into(),
        _ => format!("standard output: {error}").into(),
    })
}

/// A table with a line for each row, whose columns are as wide as they need be.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<_> = head.iter().map(|name| name.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// A time in nanoseconds.
pub(super) fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0 => "-".into(),
        1..1_000_000 => format!("{:.1}us", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.1}s", nanoseconds as f64 / 1e9),
    }
}

/// What `fn ls` has a line for.
pub(super) fn row(function: &proto::Function) -> Vec<String> {
    let version = function.version.clone().unwrap_or_default();
    let counts = function.counts.unwrap_or_default();
    let mut state = if function.loaded { "loaded" } else { "cold" };
    if function.banned {
        state = "banned";
    }
    vec![
        in_line(&version.function).into_owned(),
        version.number.to_string(),
        in_line(&version.owner).into_owned(),
        in_line(&function.share).into_owned(),
        state.into(),
        counts.calls.to_string(),
        (counts.errors + counts.failures).to_string(),
        counts.overruns.to_string(),
        counts.refused.to_string(),
        function.strikes.to_string(),
        counts.cold.to_string(),
        time(counts.p50_ns),
        time(counts.p99_ns),
        format!("{}us", counts.cpu_us),
    ]
}

/// The columns of [`row`].
pub(super) const COLUMNS: [&str; 14] = [
    "NAME", "VERSION", "OWNER", "SHARE", "STATE", "CALLS", "FAILED", "OVERRUNS", "REFUSED",
    "STRIKES", "COLD", "P50", "P99", "CPU",
];

/// What `fn ls --versions` has a line for.
pub(super) fn version_rows(functions: &[proto::Function]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for function in functions {
        let current = function.version.as_ref().map_or(0, |version| version.number);
        let mut all: Vec<_> = function.version.iter().chain(&function.others).collect();
        all.sort_by_key(|version| std::cmp::Reverse(version.number));
        rows.extend(all.into_iter().map(|version| {
            let names = |names: &[String]| match names {
                [] => "-".to_owned(),
                names => in_line(&names.join(",")).into_owned(),
            };
            let short =
                |digest: &str| in_line(&digest.chars().take(12).collect::<String>()).into_owned();
            vec![
                in_line(&version.function).into_owned(),
                format!("{}{}", version.number, if version.number == current { "*" } else { "" }),
                date(version.deployed_ms),
                version.image_bytes.to_string(),
                format!("{}us", version.budget_us),
                short(&version.sources),
                short(&version.key),
                names(&version.parameters),
                names(&version.secrets),
            ]
        }));
    }
    rows
}

/// The columns of [`version_rows`].
pub(super) const VERSION_COLUMNS: [&str; 9] =
    ["NAME", "VERSION", "DEPLOYED", "BYTES", "BUDGET", "SOURCES", "KEY", "PARAMETERS", "SECRETS"];

/// A line of a log.
pub(super) fn log_line(line: &proto::LogLine) -> String {
    let text = String::from_utf8_lossy(&line.text);
    format!("{} {} {}\n", date(line.time_ms), line.call, in_line(&text))
}

/// Milliseconds since 1970 as a date (RFC 3339).
fn date(milliseconds: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(milliseconds);
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_several_lines_is_indented_and_has_its_code() {
        let status = Status::invalid_argument("error[E0425]\n --> main.rs:1:5\n\u{1b}[31m");
        let failed = Failed { what: "fn deploy".into(), status };
        let text = failed.to_string();
        assert_eq!(
            text,
            "fn deploy: INVALID_ARGUMENT: error[E0425]\n   --> main.rs:1:5\n  \\u001b[31m"
        );
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let text = table(&["A", "LONG"], &[vec!["words".into(), "1".into()]]);
        assert_eq!(text, "A      LONG\nwords  1\n");
        assert_eq!(
            (time(0), time(1500), time(2_000_000)),
            ("-".into(), "1.5us".into(), "2.0ms".into())
        );
    }

    #[test]
    fn every_column_has_a_head() {
        let function = proto::Function {
            version: Some(proto::Version::default()),
            others: vec![proto::Version { number: 3, ..proto::Version::default() }],
            ..proto::Function::default()
        };
        assert_eq!(row(&function).len(), COLUMNS.len());
        let rows = version_rows(&[function]);
        assert_eq!((rows.len(), rows[0].len()), (2, VERSION_COLUMNS.len()));
        assert_eq!((rows[0][1].as_str(), rows[1][1].as_str()), ("3", "0*"));
        assert_eq!(rows[0][2], "1970-01-01T00:00:00.000Z");
    }
}
