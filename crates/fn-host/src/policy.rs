//! Who may deploy, call, read logs and ban, and what each owner may have.
//!
//! ```toml
//! # What owners have that do not say.
//! [default]
//! functions = 1000
//!
//! # Whoever is the principal `web` of the coordinator's policy deploys as the owner `web`.
//! [owner.web]
//! call = ["shop", "network"]
//! logs = ["operators"]
//! services = ["rates/shop.v1.Rates/*"]
//! share = "owner"
//! ```
//!
//! Callers have names: `anyone` is every process of this host, `uid:1000` those of user 1000, and any other
//! name is a principal of the coordinator's policy. `network` is who comes over HTTP or HTTP/2, whom nobody
//! vouches for. An owner may do all with its own functions; what it does not list is nobody else's. What the
//! policy does not name is denied.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use partywall_functions::dispatcher::Share;
use partywall_functions::schedule::Limits;
use serde::Deserialize;

use crate::registry::Room;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A process of this host, by the kernel's word.
    Process {
        /// Its effective user.
        uid: u32,
        /// The names that the coordinator's policy has for it.
        principals: Vec<String>,
    },
    /// Somebody whom nobody vouches for.
    Network,
}

impl Caller {
    /// The names that a policy may have for it, but for `anyone`.
    fn names(&self) -> Vec<Cow<'_, str>> {
        match self {
            Self::Network => vec![NETWORK.into()],
            Self::Process { uid, principals } => {
                let own = std::iter::once(format!("uid:{uid}").into());
                own.chain(principals.iter().map(|name| name.as_str().into())).collect()
            }
        }
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.names().join("+"))
    }
}

const ANYONE: &str = "anyone";
const NETWORK: &str = "network";

/// Names of callers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(HashSet<String>);

impl Names {
    /// Whether this caller is among them.
    pub fn cover(&self, caller: &Caller) -> bool {
        let is_process = matches!(caller, Caller::Process { .. });
        !self.0.is_empty()
            && (is_process && self.0.contains(ANYONE)
                || caller.names().iter().any(|name| self.0.contains(&**name)))
    }
}

/// What others may do with an owner's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Call them.
    Call,
    /// Read their logs.
    Logs,
    /// Ban them, and let them be called again.
    Ban,
}

/// A service's method, or several, that functions may call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Method {
    service: String,
    /// As in `/package.Service/Method`; one that ends with `*` covers all that begin so.
    path: String,
}

impl Method {
    fn covers(&self, service: &str, path: &str) -> bool {
        self.service == service
            && match self.path.strip_suffix('*') {
                Some(begin) => path.starts_with(begin),
                None => self.path == path,
            }
    }
}

/// What an owner may have, and who may do what with its functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The owner.
    pub owner: String,
    /// How much it may keep.
    pub room: Room,
    /// How much may run.
    pub limits: Limits,
    /// Whose functions its own may meet in a worker.
    pub share: Share,
    /// The budget of functions that do not say, and the highest.
    pub budgets: [Duration; 2],
    rights: [Names; 3],
    services: Vec<Method>,
}

impl Rules {
    /// Whether a caller may do this with the owner's functions.
    pub fn allow(&self, right: Right, caller: &Caller) -> bool {
        self.is_owner(caller) || self.rights[right as usize].cover(caller)
    }

    /// Whether a caller may know which functions the owner has: who may do anything with them.
    pub fn sees(&self, caller: &Caller) -> bool {
        [Right::Call, Right::Logs, Right::Ban].iter().any(|right| self.allow(*right, caller))
    }

    /// Whether the caller is the owner.
    pub fn is_owner(&self, caller: &Caller) -> bool {
        caller.names().iter().any(|name| *name == self.owner)
    }

    /// Whether the owner's functions may call this method.
    pub fn may_call(&self, service: &str, path: &str) -> bool {
        self.services.iter().any(|method| method.covers(service, path))
    }
}

/// The policy of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    owners: BTreeMap<String, Rules>,
}

/// What is wrong with a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {text}")]
pub struct PolicyError {
    /// Its file.
    file: String,
    /// What, where, and the remedy.
    text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    default: toml::Table,
    #[serde(default)]
    owner: BTreeMap<String, toml::Table>,
}

/// The keys of an owner.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Keys {
    functions: u64,
    image_bytes: u64,
    concurrency: usize,
    waiting: u32,
    rate: u64,
    burst: u64,
    queue: usize,
    cpu_share: u32,
    share: Share,
    budget_us: u64,
    most_budget_us: u64,
    call: Vec<String>,
    logs: Vec<String>,
    ban: Vec<String>,
    services: Vec<String>,
}

impl Default for Keys {
    fn default() -> Self {
        let Limits { rate, burst, queue, concurrency, waiting, share } = Limits::default();
        Self {
            functions: 1000,
            image_bytes: 256 << 20,
            concurrency,
            waiting,
            rate,
            burst,
            queue,
            cpu_share: share,
            share: Share::Owner,
            budget_us: 10_000,
            most_budget_us: 1_000_000,
            call: Vec::new(),
            logs: Vec::new(),
            ban: Vec::new(),
            services: Vec::new(),
        }
    }
}

impl Policy {
    /// The policy of a text; `file` is for errors.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn parse(file: &str, text: &str) -> Result<Self, PolicyError> {
        let wrong = |text: String| PolicyError { file: file.into(), text };
        let read: File = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        // What is wrong with the defaults is said of them, and not of each owner.
        let default = keys(read.default.clone())
            .and_then(|keys| Rules::new(ANYONE, keys))
            .map_err(|text| wrong(format!("[default]: {text}")));
        default?;
        let mut owners = BTreeMap::new();
        for (owner, table) in read.owner {
            let mut merged = read.default.clone();
            merged.extend(table);
            let rules = check_name(&owner, false)
                .and_then(|()| keys(merged))
                .and_then(|keys| Rules::new(&owner, keys))
                .map_err(|text| wrong(format!("[owner.{owner:?}]: {text}")))?;
            owners.insert(owner, rules);
        }
        Ok(Self { owners })
    }

    /// The policy of a host without one: its own user deploys and calls, and nobody else.
    pub fn of_user(uid: u32) -> Self {
        let text = format!("[owner.\"uid:{uid}\"]\n");
        Self::parse("the policy of this user", &text).expect("it is one")
    }

    /// The rules of an owner; none if it may not deploy any more.
    pub fn rules(&self, owner: &str) -> Option<&Rules> {
        self.owners.get(owner)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Rules> {
        self.owners.values()
    }

    /// The owner as which a caller deploys: the one that it names, or the only one that it is.
    ///
    /// # Errors
    /// A text that says which owners it is.
    pub fn deployer(&self, caller: &Caller, named: &str) -> Result<&Rules, String> {
        let is: Vec<_> = self.owners.values().filter(|rules| rules.is_owner(caller)).collect();
        let shown: Vec<_> = is.iter().map(|rules| rules.owner.as_str()).collect();
        match (&is[..], named) {
            ([], _) => Err(format!(
                "{caller} may not deploy: the policy of the function host has none of these names \
                 under [owner.NAME]"
            )),
            ([only], "") => Ok(only),
            (_, "") => Err(format!("{caller} is several owners; name one: {}", shown.join(", "))),
            (_, named) => is.iter().copied().find(|rules| rules.owner == named).ok_or_else(|| {
                format!("{caller} is not the owner `{named}`, but {}", shown.join(", "))
            }),
        }
    }
}

fn keys(table: toml::Table) -> Result<Keys, String> {
    Keys::deserialize(table).map_err(|error| error.to_string().trim_end().to_owned())
}

impl Rules {
    fn new(owner: &str, keys: Keys) -> Result<Self, String> {
        let above = |key: &str, value: u64, least: u64, most: u64| match value {
            value if (least..=most).contains(&value) => Ok(()),
            value => Err(format!("{key} = {value}; write a number from {least} to {most}")),
        };
        above("functions", keys.functions, 0, MOST_FUNCTIONS)?;
        above("concurrency", keys.concurrency as u64, 1, 1 << 16)?;
        above("waiting", keys.waiting.into(), 1, 1 << 16)?;
        // To have no calls at all, nobody is named under `call`.
        above("rate", keys.rate, 1, MOST_RATE)?;
        above("queue", keys.queue as u64, 0, 1 << 20)?;
        above("cpu_share", keys.cpu_share.into(), 1, 1 << 16)?;
        above("most_budget_us", keys.most_budget_us, 1, MOST_BUDGET_US)?;
        above("budget_us", keys.budget_us, 1, keys.most_budget_us)?;
        let names = |key: &str, names: Vec<String>| {
            names
                .iter()
                .try_for_each(|name| check_name(name, true))
                .map_err(|e| format!("{key}: {e}"))?;
            Ok::<_, String>(Names(names.into_iter().collect()))
        };
        let method = |text: &String| {
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
        let method = |text: &String| {
            method(text).ok_or_else(|| {
                format!(
                    "services: `{text}` is no method; write SERVICE/package.Service/Method, \
                     SERVICE/package.Service/* or SERVICE/*"
                )
            })
        };
        let Keys { rate, burst, queue, concurrency, waiting, cpu_share, .. } = keys;
        Ok(Self {
            owner: owner.into(),
            room: Room { functions: keys.functions, image_bytes: keys.image_bytes },
            limits: Limits { rate, burst, queue, concurrency, waiting, share: cpu_share },
            share: keys.share,
            budgets: [keys.budget_us, keys.most_budget_us].map(Duration::from_micros),
            rights: [names("call", keys.call)?, names("logs", keys.logs)?, names("ban", keys.ban)?],
            services: keys.services.iter().map(method).collect::<Result<_, _>>()?,
        })
    }
}

/// Functions of an owner, at most.
const MOST_FUNCTIONS: u64 = 1_000_000;
/// Calls in a second, at most: times are counted in nanoseconds.
const MOST_RATE: u64 = 1_000_000_000;
/// The longest budget, in microseconds.
const MOST_BUDGET_US: u64 = 60_000_000;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn process(uid: u32, principals: &[&str]) -> Caller {
        Caller::Process { uid, principals: principals.iter().map(|name| (*name).into()).collect() }
    }

    #[test]
    fn what_is_not_named_is_denied() {
        let policy = Policy::parse(
            "f.toml",
            "[default]\nlogs = [\"operators\"]\n[owner.web]\ncall = [\"shop\"]\n\
             [owner.open]\ncall = [\"anyone\"]\nlogs = []\n[owner.public]\ncall = [\"network\"]\n",
        )
        .unwrap();
        let rules = |owner| policy.rules(owner).unwrap();
        let (web, shop) = (process(1, &["web"]), process(1, &["shop", "x"]));
        for right in [Right::Call, Right::Logs, Right::Ban] {
            assert!(rules("web").allow(right, &web));
            assert!(!rules("web").allow(right, &process(0, &[])), "not even root");
            assert!(!rules("web").allow(right, &Caller::Network));
            assert_eq!(rules("web").allow(right, &shop), right == Right::Call);
            assert_eq!(rules("open").allow(right, &shop), right == Right::Call);
            assert_eq!(rules("public").allow(right, &Caller::Network), right == Right::Call);
            assert!(!rules("public").allow(right, &shop));
            let operators = process(9, &["operators"]);
            assert_eq!(rules("web").allow(right, &operators), right == Right::Logs);
            assert_eq!(rules("open").allow(right, &operators), right == Right::Call);
        }
        assert!(!rules("open").allow(Right::Call, &Caller::Network), "nobody vouches for it");
        assert!(policy.rules("shop").is_none());
    }

    #[test]
    fn a_deployer_is_one_owner() {
        let policy = Policy::parse("f", "[owner.a]\n[owner.b]\n[owner.\"uid:7\"]\n").unwrap();
        let owner =
            |caller: &Caller, named| policy.deployer(caller, named).map(|r| r.owner.clone());
        assert_eq!(owner(&process(7, &[]), ""), Ok("uid:7".into()));
        assert_eq!(owner(&process(1, &["a"]), ""), Ok("a".into()));
        assert_eq!(owner(&process(7, &["b"]), "b"), Ok("b".into()));
        let several = owner(&process(7, &["a", "b"]), "").unwrap_err();
        assert!(several.ends_with("name one: a, b, uid:7"), "{several}");
        assert!(owner(&process(1, &["a"]), "b").unwrap_err().contains("is not the owner `b`"));
        assert!(owner(&Caller::Network, "a").unwrap_err().contains("network may not deploy"));
    }

    #[test]
    fn an_owner_says_how_many_calls_of_a_function_wait() {
        let text = "[default]\nwaiting = 7\n[owner.a]\n[owner.b]\nwaiting = 65536\n";
        let policy = Policy::parse("f", text).unwrap();
        let waiting = |policy: &Policy, owner| policy.rules(owner).unwrap().limits.waiting;
        assert_eq!((waiting(&policy, "a"), waiting(&policy, "b")), (7, 65_536));
        assert_eq!(waiting(&Policy::of_user(1), "uid:1"), Limits::default().waiting);
    }

    #[test]
    fn methods_of_services_are_covered_by_their_begin() {
        let text = "[owner.a]\nservices = [\"s/p.A/M\", \"t/p.B/*\", \"u/*\"]\n";
        let policy = Policy::parse("f", text).unwrap();
        let rules = policy.rules("a").unwrap();
        for (service, path, may) in [
            ("s", "/p.A/M", true),
            ("s", "/p.A/Mx", false),
            ("t", "/p.B/M", true),
            ("t", "/p.Bx/M", false),
            ("u", "/any/thing", true),
            ("v", "/p.A/M", false),
        ] {
            assert_eq!(rules.may_call(service, path), may, "{service}{path}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_place_and_remedy() {
        for (text, said) in [
            ("[owner.a]\nfunction = 1\n", "f.toml: [owner.\"a\"]: unknown field `function`"),
            ("[owner.a]\nbudget_us = 0\n", "budget_us = 0; write a number from 1 to 1000000"),
            ("[owner.a]\nwaiting = 0\n", "waiting = 0; write a number from 1 to 65536"),
            ("[owner.a]\nrate = 0\n", "rate = 0; write a number from 1 to 1000000000"),
            ("[owner.a]\nshare = \"none\"\n", "unknown variant `none`"),
            ("[owner.a]\ncall = [\"uid:x\"]\n", "call: `uid:x` is no user; write uid:NUMBER"),
            ("[owner.anyone]\n", "anyone is no owner"),
            ("[owner.network]\n", "network is no owner"),
            ("[owner.a]\nservices = [\"s\"]\n", "services: `s` is no method; write SERVICE/"),
            ("[owner.a]\nservices = [\"s/p.A\"]\n", "services: `s/p.A` is no method"),
            ("[owner.a]\nservices = [\"s//p.A/M\"]\n", "services: `s//p.A/M` is no method"),
            ("[owner.a]\nservices = [\"s/p.A/M*\"]\n", "services: `s/p.A/M*` is no method"),
            ("[default]\nqueue = -1\n", "f.toml: [default]: "),
            ("owners = 1\n", "unknown field `owners`"),
        ] {
            let error = Policy::parse("f.toml", text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
