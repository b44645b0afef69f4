//! The TOML form of a host's policy.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use partywall_functions::dispatcher::Share;
use partywall_functions::schedule::Limits;
use serde::Deserialize;
use toml::Spanned;

use super::{ANYONE, Method, NETWORK, Names, Policy, PolicyError, Rules};
use crate::registry::Room;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    default: Section,
    #[serde(default)]
    owner: BTreeMap<Spanned<String>, Section>,
}

/// What is said of an owner, or of all that do not say.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Section {
    functions: Option<Spanned<u64>>,
    image_bytes: Option<Spanned<u64>>,
    concurrency: Option<Spanned<u64>>,
    waiting: Option<Spanned<u64>>,
    rate: Option<Spanned<u64>>,
    burst: Option<Spanned<u64>>,
    queue: Option<Spanned<u64>>,
    cpu_share: Option<Spanned<u64>>,
    share: Option<Share>,
    budget_us: Option<Spanned<u64>>,
    most_budget_us: Option<Spanned<u64>>,
    call: Option<Vec<Spanned<String>>>,
    logs: Option<Vec<Spanned<String>>>,
    ban: Option<Vec<Spanned<String>>>,
    services: Option<Vec<Spanned<String>>>,
}

/// What is wrong, and where in the text.
struct Wrong {
    at: Range<usize>,
    text: String,
}

impl Policy {
    /// The policy of a text; `file` is for errors.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn parse(file: &str, text: &str) -> Result<Self, PolicyError> {
        let wrong = |Wrong { at, text: what }| {
            let before = text.get(..at.start).unwrap_or(text);
            let line = before.rsplit('\n').next().unwrap_or_default();
            PolicyError {
                file: file.into(),
                line: 1 + before.matches('\n').count(),
                column: 1 + line.chars().count(),
                text: what,
            }
        };
        let read: Result<File, _> = toml::from_str(text);
        let read = read.map_err(|error| {
            wrong(Wrong { at: error.span().unwrap_or_default(), text: said(error.message()) })
        })?;
        let under = |key: String| {
            move |Wrong { at, text }| wrong(Wrong { at, text: format!("{key}: {text}") })
        };
        // What is wrong with the defaults is said of them, and not of each owner.
        let none = Section::default();
        rules(ANYONE, &read.default, &none).map_err(under("default".into()))?;
        let mut owners = BTreeMap::new();
        for (owner, section) in &read.owner {
            let name = owner.get_ref();
            let rules = check_name(name, false)
                .map_err(|text| Wrong { at: owner.span(), text })
                .and_then(|()| rules(name, section, &read.default))
                .map_err(under(format!("owner.{name}")))?;
            owners.insert(name.clone(), rules);
        }
        Ok(Self { owners })
    }
}

/// The parser's words in ours; serde writes "unknown field `a`, expected `b` or `c`".
fn said(message: &str) -> String {
    if let Some((found, known)) =
        message.strip_prefix("unknown field ").and_then(|rest| rest.split_once(", expected "))
    {
        let known: Vec<_> = known.split('`').skip(1).step_by(2).collect();
        return format!("unknown key {found}; there are {} here", known.join(", "));
    }
    match message.split_once(", expected u64") {
        Some((found, _)) => {
            let found = found.split_once(": ").map_or(found, |(_, found)| found);
            format!("found {found}; write a whole number from 0 on, without quotes or a unit")
        }
        None => format!("{message}; correct this line, as docs/functions.md has it"),
    }
}

/// Functions of an owner, at most.
const MOST_FUNCTIONS: u64 = 1_000_000;
/// Calls in a second, at most: times are counted in nanoseconds.
const MOST_RATE: u64 = 1_000_000_000;
/// The longest budget, in microseconds.
const MOST_BUDGET_US: u64 = 60_000_000;

/// The rules of an owner, by what is said of it, and else by the defaults.
fn rules(owner: &str, own: &Section, default: &Section) -> Result<Rules, Wrong> {
    let most_given = own.most_budget_us.as_ref().or(default.most_budget_us.as_ref());
    let number = |key: &str,
                  of: fn(&Section) -> &Option<Spanned<u64>>,
                  usual: u64,
                  [least, most]: [u64; 2]| {
        let given = of(own).as_ref().or(of(default).as_ref());
        let value = given.map_or(usual, |given| *given.get_ref());
        match (least..=most).contains(&value) {
            true => Ok(value),
            false => Err(Wrong {
                // One that is not given can be wrong beside another one only.
                at: given.or(most_given).map(Spanned::span).unwrap_or_default(),
                text: format!("{key} = {value}; write a number from {least} to {most}"),
            }),
        }
    };
    let names = |key: &str, of: fn(&Section) -> &Option<Vec<Spanned<String>>>| {
        let given = of(own).as_ref().or(of(default).as_ref());
        let checked = given.into_iter().flatten().map(|name| {
            let wrong = |text| Wrong { at: name.span(), text: format!("{key}: {text}") };
            check_name(name.get_ref(), true).map_err(wrong)?;
            Ok(name.get_ref().clone())
        });
        Ok::<_, Wrong>(Names(checked.collect::<Result<_, _>>()?))
    };
    let usual = Limits::default();
    let limits = Limits {
        concurrency: number(
            "concurrency",
            |of| &of.concurrency,
            usual.concurrency as u64,
            [1, 1 << 16],
        )? as usize,
        waiting: number("waiting", |of| &of.waiting, usual.waiting.into(), [1, 1 << 16])? as u32,
        // To have no calls at all, nobody is named under `call`.
        rate: number("rate", |of| &of.rate, usual.rate, [1, MOST_RATE])?,
        burst: number("burst", |of| &of.burst, usual.burst, [0, u64::MAX])?,
        queue: number("queue", |of| &of.queue, usual.queue as u64, [0, 1 << 20])? as usize,
        share: number("cpu_share", |of| &of.cpu_share, usual.share.into(), [1, 1 << 16])? as u32,
    };
    let most = number("most_budget_us", |of| &of.most_budget_us, 1_000_000, [1, MOST_BUDGET_US])?;
    let budget = number("budget_us", |of| &of.budget_us, 10_000, [1, most])?;
    let services = own.services.as_ref().or(default.services.as_ref());
    Ok(Rules {
        owner: owner.into(),
        room: Room {
            functions: number("functions", |of| &of.functions, 1000, [0, MOST_FUNCTIONS])?,
            image_bytes: number("image_bytes", |of| &of.image_bytes, 256 << 20, [0, u64::MAX])?,
        },
        limits,
        share: own.share.or(default.share).unwrap_or(Share::Owner),
        budgets: [budget, most].map(Duration::from_micros),
        rights: [
            names("call", |of| &of.call)?,
            names("logs", |of| &of.logs)?,
            names("ban", |of| &of.ban)?,
        ],
        services: services.into_iter().flatten().map(method).collect::<Result<_, _>>()?,
    })
}

/// A method, or several, of a service.
fn method(text: &Spanned<String>) -> Result<Method, Wrong> {
    let parts = |text: &str| {
        let (service, path) = text.split_once('/').filter(|(name, _)| !name.is_empty())?;
        let service = service.into();
        if path == "*" {
            return Some(Method { service, path: path.into() });
        }
        let (of, name) = path.split_once('/').filter(|(of, name)| {
            let is_whole = !of.is_empty() && !name.is_empty() && !name.contains('/');
            is_whole && !of.contains('*') && (*name == "*" || !name.contains('*'))
        })?;
        Some(Method { service, path: format!("/{of}/{name}") })
    };
    parts(text.get_ref()).ok_or_else(|| Wrong {
        at: text.span(),
        text: format!(
            "services: `{}` is no method; write SERVICE/package.Service/Method, \
             SERVICE/package.Service/* or SERVICE/*",
            text.get_ref()
        ),
    })
}

/// Whether this is a name of callers, or of an owner.
fn check_name(name: &str, is_caller: bool) -> Result<(), String> {
    if let Some(number) = name.strip_prefix("uid:") {
        let is_number = number.parse::<u32>().is_ok_and(|uid| uid.to_string() == number);
        return if is_number {
            Ok(())
        } else {
            Err(format!("`{name}` is no user; write uid:NUMBER"))
        };
    }
    if [ANYONE, NETWORK].contains(&name) && !is_caller {
        return Err(format!(
            "{name} is no owner, but many callers; name a principal or uid:NUMBER"
        ));
    }
    if name.is_empty()
        || name.len() > 63
        || name.contains(['+', ','])
        || name.contains(char::is_whitespace)
    {
        return Err(format!("`{name}` is no name: 1 to 63 bytes without blanks, `+` and `,`"));
    }
    Ok(())
}
