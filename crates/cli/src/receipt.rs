//! `partywall verify-receipt`: who has said what, by the receipts of signed messages in an audit log.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use partywall_coordinator::signatures;
use partywall_trust::message::{Receipt, Requests, Way};
use partywall_trust::{Described, Roots, TrustDomain};

use crate::files;

pub(crate) const HELP: &str = "\
Examples:
  partywall ca show /var/lib/partywall/authority --pem > roots.pem
  partywall verify-receipt audit.jsonl --roots roots.pem
  partywall verify-receipt audit.jsonl --roots roots.pem --message charge.pb
  partywall verify-receipt receipt.json --roots roots.pem --json

A file has a JSON object on each line: a line of an audit log, of which those of the event `signed` count, or a receipt
by itself. The message is as it was sent, without gRPC's prefix of five bytes.

Exit status: 0 when each receipt holds, and there is one; 1 when one does not, with its line and the reason; 2 for
wrong arguments.";

/// The most bytes of a line.
const LINE: u64 = 1 << 20;
/// The most bytes of a file of roots.
const ROOTS: u64 = 1 << 20;

/// Which receipts, and by whose word.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Audit logs, or files of receipts.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The certificates of the authorities that are trusted, as `partywall ca show --pem` prints them.
    #[arg(long, value_name = "FILE")]
    roots: PathBuf,
    /// The trust domain of those that do not say theirs.
    #[arg(long, value_name = "NAME", value_parser = domain)]
    domain: Option<TrustDomain>,
    /// Tell of receipts of this message alone.
    #[arg(long, value_name = "FILE")]
    message: Option<PathBuf>,
    /// Print a JSON object for each.
    #[arg(long)]
    json: bool,
}

fn domain(text: &str) -> Result<TrustDomain, String> {
    TrustDomain::new(text).map_err(|e| e.to_string())
}

/// A receipt, and where it is.
struct Found {
    at: String,
    receipt: Receipt,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let roots = roots(&arguments.roots, arguments.domain.as_ref())?;
    let message = arguments.message.as_deref();
    let message = message.map(|path| {
        signatures::digest_of(path)
            .map_err(|e| format!("{}: {e}; remedy: name the message's file", path.display()))
    });
    let message = message.transpose()?;
    let mut found = Vec::new();
    for file in &arguments.files {
        read(file, &mut found)?;
    }
    let calls = Calls::of(&found);
    let (mut said, mut told) = (String::new(), 0);
    for Found { at, receipt } in &found {
        let by = receipt.verify(&roots).map_err(|e| format!("{at}: {e}"))?;
        let answers = calls.answers(receipt).map_err(|e| format!("{at}: {e}"))?;
        if message.is_some_and(|message| message != receipt.said.message) {
            continue;
        }
        told += 1;
        if arguments.json {
            let mut json = receipt.to_json();
            json["signer"] = by.id.as_str().into();
            json["at"] = files::date(receipt.time()).into();
            writeln!(said, "{json}")?;
        } else {
            writeln!(said, "{at}: {}", described(receipt, by.id.as_str(), &answers))?;
        }
    }
    let files = || {
        let names = arguments.files.iter().map(|file| file.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    match (told, message) {
        (0, Some(_)) => Err(format!(
            "{}: none of the {} receipts is of that message; remedy: name the message as it was sent",
            files(),
            found.len()
        )
        .into()),
        (0, None) => Err(format!(
            "{}: there is no receipt; remedy: name an audit log of a coordinator whose policy has `sign`",
            files()
        )
        .into()),
        _ => {
            crate::say(&said)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn roots(path: &Path, domain: Option<&TrustDomain>) -> Result<Roots, String> {
    let shown = path.display();
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(ROOTS).read_to_string(&mut text));
    let remedy = "remedy: write it by `partywall ca show DIRECTORY --pem`";
    read.map_err(|e| format!("{shown}: {e}; {remedy}"))?;
    let all = Described::all(&text).map_err(|e| format!("{shown}: {e}; {remedy}"))?;
    if all.is_empty() {
        return Err(format!("{shown}: no `-----BEGIN CERTIFICATE-----` in it; {remedy}"));
    }
    let mut roots = Roots::default();
    for root in all {
        let domain = root.domain.as_ref().or(domain).ok_or_else(|| {
            format!(
                "{shown}: `{}` does not say its trust domain; remedy: --domain NAME",
                root.subject
            )
        })?;
        roots.add(domain, &root.der).map_err(|e| format!("{shown}: {e}; {remedy}"))?;
    }
    Ok(roots)
}

/// Reads the receipts of a file.
fn read(path: &Path, found: &mut Vec<Found>) -> Result<(), String> {
    let shown = path.display();
    let failed = |e: std::io::Error| format!("{shown}: {e}; remedy: name an audit log");
    let mut lines = BufReader::new(File::open(path).map_err(failed)?);
    for number in 1.. {
        let mut line = Vec::new();
        let read = lines.by_ref().take(LINE + 1).read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            break;
        }
        let at = format!("{shown}:{number}");
        if line.len() as u64 > LINE {
            return Err(format!("{at}: a line of over {LINE} bytes; remedy: name an audit log"));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let json: serde_json::Value = serde_json::from_slice(&line).map_err(|e| {
            format!("{at}: no JSON object on one line: {e}; remedy: name an audit log")
        })?;
        let receipt = match json.get("event") {
            None => &json,
            Some(event) if event == "signed" => &json["receipt"],
            Some(_) => continue,
        };
        let receipt = Receipt::from_json(receipt).map_err(|e| format!("{at}: {e}"))?;
        found.push(Found { at, receipt });
    }
    Ok(())
}

/// The requests that there are receipts of, by their channel and call.
#[derive(Default)]
struct Calls<'a>(BTreeMap<([u8; 32], u64), BTreeMap<u64, &'a Receipt>>);

/// What is known of the requests of a receipt.
enum Answers {
    /// It is one itself.
    IsRequest,
    /// It was said before any.
    Nothing,
    /// So many, which are those that there are receipts of.
    These(u64),
    /// So many, of which some are not here.
    Others(u64),
}

impl<'a> Calls<'a> {
    fn of(found: &'a [Found]) -> Self {
        let mut calls = Self::default();
        let requests = found.iter().map(|found| &found.receipt);
        for receipt in requests.filter(|receipt| receipt.said.way == Way::Request) {
            let said = &receipt.said;
            let call = calls.0.entry((said.channel, said.call)).or_default();
            call.entry(said.number).or_insert(receipt);
        }
        calls
    }

    /// To what a reply answers.
    fn answers(&self, reply: &Receipt) -> Result<Answers, String> {
        let said = &reply.said;
        if said.way == Way::Request {
            return Ok(Answers::IsRequest);
        }
        let count = said.requests.count;
        if count == 0 {
            return Ok(Answers::Nothing);
        }
        let Some(call) = self.0.get(&(said.channel, said.call)) else {
            return Ok(Answers::Others(count));
        };
        let mut all = Requests::default();
        for number in 0..count {
            let Some(request) = call.get(&number) else { return Ok(Answers::Others(count)) };
            all = all.and(&request.said);
        }
        match all == said.requests {
            true => Ok(Answers::These(count)),
            false => Err("it answers other requests than those that are signed here".into()),
        }
    }
}

/// A receipt in words.
fn described(receipt: &Receipt, signer: &str, answers: &Answers) -> String {
    let said = &receipt.said;
    let way = match said.way {
        Way::Request => "request",
        Way::Reply => "reply",
    };
    let digest: String = said.message.iter().map(|byte| format!("{byte:02x}")).collect();
    let of =
        |count: u64| if count == 1 { "the request".into() } else { format!("{count} requests") };
    let answers = match answers {
        Answers::IsRequest => String::new(),
        Answers::Nothing => ", before any request".into(),
        Answers::These(count) => format!(", to {} above", of(*count)),
        Answers::Others(count) => format!(", to {} not in these files", of(*count)),
    };
    format!(
        "{way} {} of call {} to `{}` {}{answers}: sha256:{digest}{}, signed by {signer} at {}",
        said.number + 1,
        said.call,
        clean(&said.name),
        clean(&said.method),
        if said.compressed { " (compressed)" } else { "" },
        files::date(receipt.time())
    )
}

/// A text of somebody else, without controls.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}
