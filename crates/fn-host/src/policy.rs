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

mod read;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use partywall_functions::dispatcher::Share;
use partywall_functions::schedule::Limits;

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
#[error("{file}:{line}:{column}: {text}")]
pub struct PolicyError {
    /// Its file.
    file: String,
    /// The line, from 1.
    line: usize,
    /// The character in it, from 1.
    column: usize,
    /// What, and the remedy.
    text: String,
}

impl Policy {
    /// The policy of a host without one: its own user deploys and calls, and nobody else.
    pub fn of_user(uid: u32) -> Self {
        let text = format!("[owner.\"uid:{uid}\"]\n");
        Self::parse("the policy of this user", &text).expect("it is one")
    }

    /// The rules of an owner; none if it may not deploy any more.
    pub fn rules(&self, owner: &str) -> Option<&Rules> {
        self.owners.get(owner)
    }

    /// What is to be said of a policy that is one, and hardly meant so.
    pub fn note(&self) -> Option<&'static str> {
        self.owners.is_empty().then_some(
            "it has no owners, so nobody deploys and nothing is called; name one, such as \
             [owner.\"uid:1000\"]",
        )
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
            (_, "") => Err(format!(
                "{caller} is several owners; name one (`--owner`): {}",
                shown.join(", ")
            )),
            (_, named) => is.iter().copied().find(|rules| rules.owner == named).ok_or_else(|| {
                format!("{caller} is not the owner `{named}`, but {}", shown.join(", "))
            }),
        }
    }
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
        assert!(several.ends_with("name one (`--owner`): a, b, uid:7"), "{several}");
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
    fn a_policy_without_owners_is_one_with_a_note() {
        for text in ["", "# Nothing.\n", "[default]\nrate = 1\n"] {
            let policy = Policy::parse("f", text).unwrap();
            assert!(policy.note().unwrap().starts_with("it has no owners"), "{text}");
        }
        assert_eq!(Policy::parse("f", "[owner.a]\n").unwrap().note(), None);
    }

    #[test]
    fn a_mistake_is_named_with_its_place_and_remedy() {
        for (text, said) in [
            (
                "[owner.a]\nfunction = 1\n",
                "f.toml:2:1: unknown key `function`; there are functions, image_bytes,",
            ),
            (
                "[owner.a]\n  budget_us = 0\n",
                "f.toml:2:15: owner.a: budget_us = 0; write a number from 1 to 1000000",
            ),
            (
                "[default]\nbudget_us = 200\n\n[owner.\"ä\"] \nmost_budget_us = 7\n",
                "f.toml:2:13: owner.ä: budget_us = 200; write a number from 1 to 7",
            ),
            (
                "[owner.a]\nmost_budget_us = 7\n",
                "f.toml:2:18: owner.a: budget_us = 10000; write a number from 1 to 7",
            ),
            ("[owner.a]\nbudget_us = 0\n", "budget_us = 0; write a number from 1 to 1000000"),
            ("[owner.a]\nwaiting = 0\n", "waiting = 0; write a number from 1 to 65536"),
            ("[owner.a]\nrate = 0\n", "rate = 0; write a number from 1 to 1000000000"),
            ("[owner.a]\nshare = \"none\"\n", "unknown variant `none`"),
            ("[owner.a]\ncall = [\"uid:x\"]\n", "call: `uid:x` is no user; write uid:NUMBER"),
            ("[owner.a]\n[owner.anyone]\n", "f.toml:2:8: owner.anyone: anyone is no owner"),
            ("[owner.a]\ncall = [\"a\", \"\"]\n", "f.toml:2:14: owner.a: call: `` is no name"),
            ("[owner.network]\n", "network is no owner"),
            ("[owner.a]\nservices = [\"s\"]\n", "services: `s` is no method; write SERVICE/"),
            ("[owner.a]\nservices = [\"s/p.A\"]\n", "services: `s/p.A` is no method"),
            ("[owner.a]\nservices = [\"s//p.A/M\"]\n", "services: `s//p.A/M` is no method"),
            ("[owner.a]\nservices = [\"s/p.A/M*\"]\n", "services: `s/p.A/M*` is no method"),
            (
                "[default]\nqueue = -1\n",
                "f.toml:2:9: found integer `-1`; write a whole number from 0 on",
            ),
            ("[owner.a]\nqueue = \"1\"\n", "f.toml:2:9: found string \"1\"; write a whole number"),
            ("[default]\nrate = 0\n", "f.toml:2:8: default: rate = 0; write"),
            ("owners = 1\n", "f.toml:1:1: unknown key `owners`; there are default, owner here"),
            (
                "[owner.a]\ncall = \"b\"\n",
                "f.toml:2:8: invalid type: string \"b\", expected a sequence",
            ),
            ("[owner.a]\nrate\n", "f.toml:2:"),
            ("[owner.a]\nrate = 1\nrate = 2\n", "f.toml:3:1: duplicate key"),
        ] {
            let error = Policy::parse("f.toml", text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
