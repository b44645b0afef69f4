//! Who may serve which name and who may call which method: a TOML file, deny by default.
//!
//! ```toml
//! [principal.web]                 # a principal: facts that must all hold
//! uid = 1000
//! gid = 100
//! cgroup = "/system.slice/web.service"
//! program = "sha256:9f86d081..."  # of the program file
//! evidence = "started"            # "started" (default): the coordinator itself started it from
//!                                 # a sealed copy; "observed": /proc/PID/exe will do, and is
//!                                 # read for every process if one principal has it
//!
//! [principal.greeter]
//! started = "greeter"             # started by the coordinator under this name
//!
//! [service.greeter]               # a name
//! register = ["greeter"]          # principals that may serve it
//! [service.greeter.call]          # principals that may call it, and what
//! web = ["helloworld.Greeter/SayHello", "grpc.health.v1.Health/*"]
//!
//! [names]                         # names that are reached over the network instead
//! billing = "http://10.0.0.7:50051"
//! ```
//!
//! The principal `anyone` needs no section and covers every process. A method is written
//! `package.Service/Method`, `package.Service/*`, `Method` or `*`.

use std::collections::BTreeMap;
use std::path::Path;

use partywall_abi::control::Digest;
use partywall_abi::limits;
use partywall_abi::name::{MethodPattern, MethodSet, NameError, PatternError, ServiceName};
use serde::Deserialize;

use crate::identity::Facts;

/// The principal that covers every process.
pub const ANYONE: &str = "anyone";

/// Why a policy cannot be used. Every message names the file and the place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not the TOML that a policy is.
    #[error("{file}: {text}")]
    Syntax {
        /// The file.
        file: String,
        /// The parser's words, with line and column.
        text: String,
    },
    /// A value makes no sense.
    #[error("{file}: {key}: {text}")]
    Value {
        /// The file.
        file: String,
        /// The key, dotted.
        key: String,
        /// What is wrong and what would be right.
        text: String,
    },
    /// A principal cannot have this name.
    #[error("principal `{name}`: {text}")]
    Principal {
        /// The name.
        name: String,
        /// What is wrong and what would be right.
        text: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    principal: BTreeMap<String, PrincipalSection>,
    #[serde(default)]
    service: BTreeMap<String, ServiceSection>,
    #[serde(default)]
    names: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrincipalSection {
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<String>,
    program: Option<String>,
    evidence: Option<Evidence>,
    started: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Evidence {
    Started,
    Observed,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceSection {
    #[serde(default)]
    register: Vec<String>,
    #[serde(default)]
    call: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Principal {
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<String>,
    program: Option<([u8; 32], bool)>,
    started: Option<String>,
}

#[derive(Debug, Clone, Default)]
struct Service {
    register: Vec<String>,
    call: BTreeMap<String, MethodSet>,
}

/// A checked policy.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    principals: BTreeMap<String, Principal>,
    services: BTreeMap<ServiceName, Service>,
    urls: BTreeMap<ServiceName, String>,
}

impl Policy {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| PolicyError::Read { file: file.clone(), source })?;
        Self::parse(&file, &text)
    }

    /// Checks a text; `file` is what errors call it.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn parse(file: &str, text: &str) -> Result<Self, PolicyError> {
        let parsed: File = toml::from_str(text)
            .map_err(|e| PolicyError::Syntax { file: file.into(), text: e.to_string() })?;
        let wrong = |key: String, text: String| PolicyError::Value { file: file.into(), key, text };
        let mut policy = Self::default();
        for (name, section) in parsed.principal {
            let key = format!("principal.{name}");
            let principal = principal(&name, section).map_err(|t| wrong(key, t))?;
            policy.principals.insert(name, principal);
        }
        for (name, section) in parsed.service {
            let key = format!("service.{name}");
            let service_name = ServiceName::new(&name)
                .map_err(|e: NameError| wrong(key.clone(), e.to_string()))?;
            let known = |p: &String| p == ANYONE || policy.principals.contains_key(p);
            let named: Vec<_> = section.register.iter().chain(section.call.keys()).collect();
            if let Some(unknown) = named.iter().find(|p| !known(p)) {
                let remedy = format!("no principal `{unknown}`: add [principal.{unknown}]");
                return Err(wrong(key, remedy));
            }
            let mut service = Service { register: section.register, ..Service::default() };
            for (principal, methods) in section.call {
                let mut set = MethodSet::default();
                let at = format!("{key}.call.{principal}");
                for m in &methods {
                    let pattern = MethodPattern::new(m)
                        .map_err(|e: PatternError| wrong(at.clone(), e.to_string()))?;
                    set.add(pattern);
                }
                if methods.len() > limits::PATTERNS {
                    let text = format!("{} methods, at most {}", methods.len(), limits::PATTERNS);
                    return Err(wrong(at, text));
                }
                service.call.insert(principal, set);
            }
            policy.services.insert(service_name, service);
        }
        for (name, url) in parsed.names {
            let key = format!("names.{name}");
            let service_name =
                ServiceName::new(&name).map_err(|e| wrong(key.clone(), e.to_string()))?;
            let ok = url.starts_with("http://") || url.starts_with("unix:");
            if !ok || url.len() > limits::URL_BYTES {
                let text = format!("`{url}`: write http://host:port or unix:/path");
                return Err(wrong(key, text));
            }
            policy.urls.insert(service_name, url);
        }
        Ok(policy)
    }

    /// Adds a principal for what the coordinator starts under `name`.
    ///
    /// # Errors
    /// [`PolicyError::Principal`] when the name is `anyone` or is taken.
    pub fn add_started(&mut self, name: &str) -> Result<(), PolicyError> {
        let refuse = |text| Err(PolicyError::Principal { name: name.into(), text });
        if name == ANYONE {
            return refuse("that is every process; give the service another name");
        }
        if self.principals.contains_key(name) {
            return refuse("there is one of that name; give the service another name");
        }
        let principal = Principal { started: Some(name.into()), ..Principal::default() };
        self.principals.insert(name.into(), principal);
        Ok(())
    }

    /// Lets a principal serve a name.
    pub fn allow_register(&mut self, principal: &str, name: &ServiceName) {
        self.services.entry(name.clone()).or_default().register.push(principal.into());
    }

    /// Lets a principal call methods of a name.
    pub fn allow_call(&mut self, principal: &str, name: &ServiceName, methods: MethodPattern) {
        let service = self.services.entry(name.clone()).or_default();
        service.call.entry(principal.into()).or_default().add(methods);
    }

    /// The names of the principals that these facts are, `anyone` left out.
    pub fn principals(&self, facts: &Facts) -> Vec<String> {
        self.principals
            .iter()
            .filter(|(_, p)| p.covers(facts))
            .map(|(name, _)| name.clone())
            .take(limits::PRINCIPALS)
            .collect()
    }

    /// Whether one of the principals may serve the name.
    pub fn may_register(&self, principals: &[String], name: &ServiceName) -> bool {
        self.services
            .get(name)
            .is_some_and(|s| s.register.iter().any(|p| p == ANYONE || principals.contains(p)))
    }

    /// What the principals may call at the name, all together.
    pub fn methods(&self, principals: &[String], name: &ServiceName) -> MethodSet {
        let mut all = MethodSet::default();
        if let Some(service) = self.services.get(name) {
            for (principal, set) in &service.call {
                if principal == ANYONE || principals.contains(principal) {
                    set.patterns().iter().for_each(|p| all.add(p.clone()));
                }
            }
        }
        all
    }

    /// Where the network has the name.
    pub fn url(&self, name: &ServiceName) -> Option<&str> {
        self.urls.get(name).map(String::as_str)
    }

    /// Whether some principal is known by its program file.
    pub fn asks_for_programs(&self) -> bool {
        self.principals.values().any(|p| p.program.is_some())
    }

    /// Whether some principal is known by a program file that /proc tells of.
    pub fn observes_programs(&self) -> bool {
        self.principals.values().any(|p| p.program.is_some_and(|(_, strong)| !strong))
    }
}

fn principal(name: &str, s: PrincipalSection) -> Result<Principal, String> {
    if name == ANYONE {
        return Err("`anyone` is every process and cannot be defined".into());
    }
    if name.is_empty() || name.len() > limits::NAME_BYTES {
        return Err(format!("a principal's name has 1 to {} bytes", limits::NAME_BYTES));
    }
    if s.evidence.is_some() && s.program.is_none() {
        return Err("`evidence` says how `program` must be known; add `program`".into());
    }
    let strong = s.evidence != Some(Evidence::Observed);
    let program = match s.program {
        None => None,
        Some(text) => Some((sha256(&text)?, strong)),
    };
    let p = Principal { uid: s.uid, gid: s.gid, cgroup: s.cgroup, program, started: s.started };
    if p == Principal::default() {
        return Err("no fact: give at least one of uid, gid, cgroup, program, started".into());
    }
    Ok(p)
}

fn sha256(text: &str) -> Result<[u8; 32], String> {
    let bad = || format!("`{text}`: write sha256: and 64 hexadecimal digits");
    let hex = text.strip_prefix("sha256:").ok_or_else(bad)?;
    if hex.len() != 64 || !hex.is_ascii() {
        return Err(bad());
    }
    let mut out = [0; 32];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
    }
    Ok(out)
}

impl Principal {
    fn covers(&self, f: &Facts) -> bool {
        let program = |(wanted, strong): ([u8; 32], bool)| match f.digest {
            Digest::Started(d) => d == wanted,
            Digest::Observed(d) => !strong && d == wanted,
            Digest::Unknown => false,
        };
        self.uid.is_none_or(|u| u == f.uid)
            && self.gid.is_none_or(|g| g == f.gid)
            && self.cgroup.as_ref().is_none_or(|c| *c == f.cgroup)
            && self.program.is_none_or(program)
            && self.started.as_ref().is_none_or(|s| f.started_as.as_ref() == Some(s))
    }
}

/// Body of the fuzz target: true when the text is a policy.
#[doc(hidden)]
pub fn fuzz_policy(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| Policy::parse("fuzz", text).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            uid: 1000,
            gid: 100,
            pid: Some(1),
            digest: Digest::Observed([0xab; 32]),
            digest_error: None,
            cgroup: "/a".into(),
            started_as: None,
            domain: None,
        }
    }

    fn name(n: &str) -> ServiceName {
        ServiceName::new(n).unwrap()
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let p = Policy::parse("p", "").unwrap();
        assert!(p.principals(&facts()).is_empty());
        assert!(!p.may_register(&[], &name("a")));
        assert!(p.methods(&[], &name("a")).is_empty());
    }

    #[test]
    fn all_facts_of_a_principal_must_hold() {
        let hex = "ab".repeat(32);
        let text = format!(
            "[principal.a]\nuid = 1000\ncgroup = '/a'\n[principal.b]\nuid = 1000\ngid = 5\n\
             [principal.weak]\nprogram = 'sha256:{hex}'\nevidence = 'observed'\n\
             [principal.strong]\nprogram = 'sha256:{hex}'\n[principal.s]\nstarted = 'x'\n"
        );
        let p = Policy::parse("p", &text).unwrap();
        assert_eq!(p.principals(&facts()), ["a", "weak"]);
        let strong = Facts { digest: Digest::Started([0xab; 32]), ..facts() };
        assert_eq!(p.principals(&strong), ["a", "strong", "weak"]);
        let started = Facts { started_as: Some("x".into()), uid: 0, ..facts() };
        assert_eq!(p.principals(&started), ["s", "weak"]);
    }

    #[test]
    fn calls_are_granted_by_method() {
        let p = Policy::parse(
            "p",
            "[principal.web]\nuid = 1\n[service.g]\nregister = ['anyone']\n\
             [service.g.call]\nweb = ['a.B/C']\nanyone = ['grpc.health.v1.Health/*']\n\
             [names]\nfar = 'http://h:1'",
        )
        .unwrap();
        let web = p.methods(&["web".into()], &name("g"));
        assert!(web.covers("/a.B/C") && web.covers("/grpc.health.v1.Health/Check"));
        let other = p.methods(&[], &name("g"));
        assert!(!other.covers("/a.B/C") && other.covers("/grpc.health.v1.Health/Watch"));
        assert!(p.may_register(&[], &name("g")));
        assert_eq!(p.url(&name("far")), Some("http://h:1"));
    }

    #[test]
    fn mistakes_name_file_key_and_remedy() {
        let at = |text: &str| Policy::parse("policy.toml", text).unwrap_err().to_string();
        for (text, part) in [
            ("[principal.a]\nuidd = 1", "uidd"),
            ("[principal.a]", "principal.a: no fact"),
            ("[principal.anyone]\nuid = 1", "cannot be defined"),
            ("[principal.a]\nuid = 1\nevidence = 'observed'", "add `program`"),
            ("[principal.a]\nprogram = 'sha1:00'", "sha256: and 64"),
            ("[service.g]\nregister = ['nobody']", "add [principal.nobody]"),
            ("[service.G]", "service.G"),
            ("[service.g.call]\nanyone = ['a/b/c']", "service.g.call.anyone"),
            ("[names]\nx = 'ftp://h'", "names.x"),
            ("x = 1", "unknown field"),
            ("[principal.a]\nuid = -1", "line 2"),
        ] {
            let message = at(text);
            assert!(message.starts_with("policy.toml: "), "{message}");
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }

    #[test]
    fn a_started_principal_is_neither_everybody_nor_another_one() {
        let mut p = Policy::parse("p", "[principal.web]\nuid = 1\n").unwrap();
        p.add_started("greeter").unwrap();
        for (name, part) in [("anyone", "every process"), ("web", "is one"), ("greeter", "is one")]
        {
            let error = p.add_started(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(part), "{error}");
        }
        let web = Facts { uid: 1, ..facts() };
        assert_eq!(p.principals(&web), ["web"]);
    }

    #[test]
    fn programs_are_observed_only_for_a_principal_that_says_so() {
        let section = |evidence: &str| {
            let hex = "ab".repeat(32);
            let text = format!("[principal.a]\nprogram = 'sha256:{hex}'\n{evidence}");
            Policy::parse("p", &text).unwrap().observes_programs()
        };
        assert!(section("evidence = 'observed'"));
        assert!(!section("evidence = 'started'") && !section(""));
    }

    #[test]
    fn fuzz_policy_accepts_and_refuses() {
        let seeds = [
            "[principal.a]\nuid = 1\n[service.g]\nregister = ['a']\n",
            "[names]\na = 'http://h:1'\n",
        ];
        let mut state = 88172645463325252_u64;
        let mut accepted = [0, 0];
        for i in 0..2_000 {
            let mut bytes = seeds[i % 2].as_bytes().to_vec();
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = state as usize % bytes.len();
            bytes[at] = (state >> 32) as u8;
            accepted[usize::from(fuzz_policy(&bytes))] += 1;
        }
        assert!(accepted[0] > 50 && accepted[1] > 50, "{accepted:?}");
    }
}
