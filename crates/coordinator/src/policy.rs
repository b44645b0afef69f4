//! Who may serve which name and who may call which method: a TOML file, deny by default.
//!
//! ```toml
//! harden = true                   # processes are closed to others of their user; true unless given,
//!                                 # but for those that could not be known again
//!
//! [principal.web]                 # a principal: facts that must all hold
//! uid = 1000
//! gid = 100
//! cgroup = "/system.slice/web.service"
//! container = "4f5e6d7c8b9a"      # the begin of its container's id, or a list of which one is enough
//! pod = "0f0e0d0c-1a2b-..."       # the UID of its container's pod, or a list
//! image = "sha256:..."            # the id of its container's image, by its engine's word, or a list
//! compose = "shop/web"            # the Compose service that its container was made for, or a list
//! program = "sha256:9f86d081..."  # of the program file
//! evidence = "started"            # "started" (default): the coordinator itself started it from
//!                                 # a sealed copy; "observed": /proc/PID/exe will do, and is
//!                                 # read where uid, gid and cgroup hold
//! [principal.web.quota]           # counted apart from its user, with these limits
//! links = 100
//!
//! [engine.docker]                 # where the control groups of containers are; see `container`
//! groups = ["/docker/{id}", "/shop.slice/docker-{id}.scope"]
//! api = "/run/docker.sock"        # where it is asked for `image` and `compose`
//!
//! [principal.greeter]
//! started = "greeter"             # started by the coordinator under this name
//! signed = true                   # its program is signed for that name, by a key under [signatures]
//!
//! [service.greeter]               # a name
//! register = ["greeter"]          # principals that may serve it
//! fallback = true                 # while nobody serves it, the address under [names] will do
//! seal = "required"               # links to it are sealed: "required", "prefer", "off" (default)
//! sign = "required"               # and each of their messages is signed: "required", "off" (default)
//! [service.greeter.call]          # principals that may call it, and what
//! web = ["helloworld.Greeter/SayHello", "grpc.health.v1.Health/*"]
//! [service.greeter.call.admin]    # the same with a requirement: over links of at least this security
//! methods = ["*"]
//! require = { isolation = "process", confidentiality = "host", evidence = "started" }
//! descriptors = 1                 # descriptors may cross, so many beside a message; parcels need one
//! leases = true                   # among them memory that both ends write
//!
//! [names]                         # names that are reached over the network
//! billing = "http://10.0.0.7:50051"
//!
//! [authority]                     # who certifies processes; without it one for each run
//! domain = "shop.example"         # the trust domain of their SPIFFE IDs
//! directory = "/var/lib/partywall/authority"
//!
//! [signatures]                    # whose signatures of programs count
//! keys = ["/etc/partywall/keys/builder.pub"]
//! revoked = "/etc/partywall/revoked"
//!
//! [sealing]                       # how records of sealed links are made
//! suite = "aes-128-gcm"
//!
//! [quota]                         # for each user; what is left out is as in `quota::Limits`
//! connections = 4096
//! ```
//!
//! The principal `anyone` needs no section and covers every process. A method is written
//! `package.Service/Method`, `package.Service/*`, `Method` or `*`.
//!
//! A name that some principal may serve is a name on this host: a call to it goes over the network
//! only if the name says `fallback = true`. A policy that has it both under `register` and under
//! `[names]` without saying so is refused.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use partywall_abi::control::{Digest, Grant};
use partywall_abi::limits;
use partywall_abi::name::{EXAMPLE, MethodPattern, MethodSet, ServiceName};
use partywall_abi::security::{Seal, Security, Sign};
use partywall_shm::address::Addresses;

use crate::container::Engines;
use crate::identity::{Facts, Fades};
use crate::quota::{Account, Limits};
use crate::trust::Clock;

mod file;
mod read;
mod seal;
mod signed;

pub use seal::{AuthorityPlace, Plain, PlainRoute, Wish};
use seal::{Form, SignWish};
use signed::{Signed, Signers};

/// The principal that covers every process.
pub const ANYONE: &str = "anyone";

/// The user of all that have no number in the coordinator's user namespace, unless the system says otherwise.
const OVERFLOW_UID: u32 = 65534;

/// What gives a process a principal, as the begin of a remedy.
const NEW_PRINCIPAL: &str = "add [principal.NAME] with `uid = N`, and";

/// Why a policy cannot be used. Every message names the file, the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{file}: {source}; remedy: {}", remedy(source))]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file cannot be a policy's: it is none, too large, or somebody else can change it.
    #[error("{file}: {text}")]
    File {
        /// The file.
        file: String,
        /// What is wrong, and the remedy.
        text: String,
    },
    /// It is not the TOML that a policy is.
    #[error("{file}:{line}: {text}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what would be right.
        text: String,
    },
    /// A value makes no sense.
    #[error("{file}:{line}: {key}: {text}")]
    Value {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key, dotted.
        key: String,
        /// What is wrong and what would be right.
        text: String,
    },
    /// The authority that it names cannot be used.
    #[error("[authority]: {0}")]
    Authority(#[from] crate::trust::TrustError),
    /// A key that it names, or the list of what is revoked, cannot be used.
    #[error("[signatures]: {0}")]
    Signatures(#[from] crate::signatures::SignaturesError),
    /// There is no file to be read again.
    #[error(
        "this coordinator has no policy file that it could read again; remedy: start it with one, or, where \
         `partywall up` has started it, change `calls` in the Compose file and start `up` again"
    )]
    NoFile,
    /// A principal cannot have this name.
    #[error("principal `{name}`: {text}")]
    Principal {
        /// The name.
        name: String,
        /// What is wrong and what would be right.
        text: &'static str,
    },
}

/// What to do about a file that cannot be read.
fn remedy(error: &std::io::Error) -> String {
    use std::io::ErrorKind::{InvalidData, NotFound, PermissionDenied};
    match error.kind() {
        NotFound => "write a policy there, or correct the path".into(),
        PermissionDenied => {
            let own = rustix::process::geteuid().as_raw();
            format!("let user {own} read it, and enter each directory of the path")
        }
        InvalidData => "save it as UTF-8, which TOML is".into(),
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            "correct the symbolic links, which lead back to themselves".into()
        }
        _ => "correct the path".into(),
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Principal {
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<String>,
    /// The begins of ids, of which one is enough.
    container: Option<Vec<String>>,
    /// Pods, of which one is enough.
    pod: Option<Vec<String>>,
    /// Ids of images, of which one is enough.
    image: Option<Vec<String>>,
    /// Services of Compose likewise.
    compose: Option<Vec<String>>,
    program: Option<([u8; 32], bool)>,
    started: Option<String>,
    /// What of it is signed, if something has to be.
    signed: Option<Signed>,
    quota: Option<Limits>,
}

#[derive(Debug, Clone, Default)]
struct Service {
    register: BTreeSet<String>,
    call: BTreeMap<String, Rule>,
    /// Whether links to it are sealed, whoever calls.
    seal: Wish,
    /// Whether their messages are signed.
    sign: SignWish,
    /// The least security of links to it, whoever calls, if something is demanded.
    least: Option<Security>,
}

/// What a principal may call at a name, and over which links.
#[derive(Debug, Clone)]
struct Rule {
    methods: MethodSet,
    /// The least security of its links.
    require: Security,
    /// What may cross on its links.
    grant: Grant,
    /// Whether its links are sealed.
    seal: Wish,
    /// Whether their messages are signed.
    sign: SignWish,
}

impl Default for Rule {
    fn default() -> Self {
        let (methods, require, grant) = (MethodSet::default(), Security::LOWEST, Grant::NONE);
        Self { methods, require, grant, seal: Wish::Off, sign: SignWish::Off }
    }
}

/// Bytes and patterns that all callers of a name may have together, so that what any of them is
/// told fits into one packet.
const METHODS_BYTES: usize = limits::CONTROL_BYTES - 16 * 1024;

impl Service {
    /// Whether what its callers may call goes into a message, whoever they are.
    fn fits(&self) -> Result<(), String> {
        let mut all = MethodSet::default();
        for pattern in self.call.values().flat_map(|rule| rule.methods.patterns()) {
            all.add(pattern.clone());
        }
        let bytes: usize = all.patterns().iter().map(|p| 2 + p.to_string().len()).sum();
        if all.patterns().len() <= limits::PATTERNS && bytes <= METHODS_BYTES {
            return Ok(());
        }
        Err(format!(
            "its callers may call {} methods together, of {bytes} bytes; at most {} of {METHODS_BYTES} \
             bytes go into a message: write `package.Service/*`",
            all.patterns().len(),
            limits::PATTERNS
        ))
    }
}

/// A checked policy.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    principals: BTreeMap<String, Principal>,
    services: BTreeMap<ServiceName, Service>,
    urls: BTreeMap<ServiceName, Addresses>,
    limits: Limits,
    /// Whether processes are to be hardened, if it says so.
    harden: Option<bool>,
    engines: Engines,
    /// How records of sealed links are made.
    form: Form,
    authority: AuthorityPlace,
    clock: Clock,
    /// Whose signatures of programs count.
    signers: Signers,
    /// The Compose file that it was made from, if it is not TOML.
    compose: Option<String>,
}

/// The candidate that a typing error most likely meant, if one is close enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = match word.chars().count() {
        0 | 1 => 0,
        2 | 3 => 1,
        _ => 2,
    };
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// `nearest`, as the end of a sentence.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let near = nearest(word, candidates);
    near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"))
}

/// What a policy lets a caller do, and by which of its principals.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The principals that a method is allowed to, each with a pattern that covers it.
    pub allowed_by: Vec<(String, String)>,
    /// What the caller may call at the name at all.
    pub methods: MethodSet,
    /// The least security of its links to the name.
    pub require: Security,
    /// What may cross on them.
    pub grant: Grant,
    /// The principals that may serve the name.
    pub served_by: Vec<String>,
    /// Where the name is reached over the network, while nobody serves it.
    pub url: Option<String>,
}

impl Policy {
    /// Lets descriptors cross on a principal's links to a name, which it may call.
    pub fn allow_descriptors(&mut self, principal: &str, name: &ServiceName, grant: Grant) {
        let service = self.services.entry(name.clone()).or_default();
        service.call.entry(principal.into()).or_default().grant = grant;
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

    /// It was made from this Compose file: what is denied says what to write there.
    pub fn comes_from_compose(&mut self, file: &str) {
        self.compose = Some(file.into());
    }

    /// What to write so that these principals may call something at the name, as the end of a
    /// sentence.
    pub(crate) fn remedy_to_call(&self, principals: &[String], name: &ServiceName) -> String {
        let mut text = self.where_to_list(principals, name);
        // Of the names that it may call only: the others are not its business.
        let known = self.services.keys().filter(|known| *known != name);
        let known = known.filter(|known| !self.methods(principals, known).is_empty());
        text.push_str(&did_you_mean(name.as_str(), known.map(ServiceName::as_str)));
        text
    }

    /// Where these principals' calls of the name are listed, as the end of a sentence.
    fn where_to_list(&self, principals: &[String], name: &ServiceName) -> String {
        match (&self.compose, principals) {
            (None, []) => format!(
                "{NEW_PRINCIPAL} for it, or for `{ANYONE}`, list `{EXAMPLE}`, or `*`, under \
                 [service.{name}.call]"
            ),
            (None, _) => {
                format!(
                    "list `{EXAMPLE}`, or `*`, for one of its principals under [service.{name}.call]"
                )
            }
            (Some(file), []) => format!(
                "start it as a service of {file}, with `calls: [\"{name}/*\"]` in its x-partywall; \
                 nobody else may call there"
            ),
            (Some(file), [service, ..]) => format!(
                "list `{name}/{EXAMPLE}`, or `{name}/*`, under `calls` in the \
                 x-partywall of service `{service}` of {file}"
            ),
        }
    }

    /// What to write so that these principals may serve the name, as the end of a sentence.
    pub(crate) fn remedy_to_serve(&self, principals: &[String], name: &ServiceName) -> String {
        match (&self.compose, principals) {
            (None, []) => {
                format!("{NEW_PRINCIPAL} list NAME, or `{ANYONE}`, under [service.{name}] register")
            }
            (None, _) => {
                format!("list one of its principals under [service.{name}] register")
            }
            (Some(file), []) => format!(
                "start it as the service `{name}` of {file}; nobody else may serve that name"
            ),
            (Some(file), [service, ..]) => format!(
                "serve `{service}`, which is its name in {file}, or rename the service there"
            ),
        }
    }

    /// Lets a principal serve a name.
    pub fn allow_register(&mut self, principal: &str, name: &ServiceName) {
        self.services.entry(name.clone()).or_default().register.insert(principal.into());
    }

    /// Lets a principal call methods of a name.
    ///
    /// # Errors
    /// When its callers may call more methods together than go into a message.
    pub fn allow_call(
        &mut self,
        principal: &str,
        name: &ServiceName,
        methods: MethodPattern,
    ) -> Result<(), String> {
        let service = self.services.entry(name.clone()).or_default();
        service.call.entry(principal.into()).or_default().methods.add(methods);
        service.fits()
    }

    /// The names of the principals that these facts are, `anyone` left out.
    pub fn principals(&self, facts: &Facts) -> Vec<String> {
        let program = OnceCell::new();
        let is_signed = |name: &str, what| match what {
            // Whatever the principal is, it is the same one.
            Signed::Program => *program.get_or_init(|| self.signature(what, name, facts).is_ok()),
            Signed::Image => self.signature(what, name, facts).is_ok(),
        };
        self.principals
            .iter()
            .filter(|(name, p)| {
                p.covers(facts) && p.signed.is_none_or(|what| is_signed(name, what))
            })
            .map(|(name, _)| name.clone())
            .take(limits::PRINCIPALS)
            .collect()
    }

    /// Whether the policy has a principal of this name.
    pub fn has_principal(&self, name: &str) -> bool {
        name == ANYONE || self.principals.contains_key(name)
    }

    /// The names of all principals, `anyone` left out.
    pub fn principal_names(&self) -> Vec<&str> {
        self.principals.keys().map(String::as_str).collect()
    }

    /// Principals that cover strangers: their `uid` is what the kernel says of every user that has no number
    /// here (/proc/sys/kernel/overflowuid, user_namespaces(7)).
    pub fn covering_strangers(&self) -> impl Iterator<Item = &str> {
        let strangers = self.principals.iter().filter(|(_, p)| p.uid == Some(OVERFLOW_UID));
        strangers.map(|(name, _)| name.as_str())
    }

    /// To whose account a process with these facts is charged, and with which limits, if not those
    /// of every user, at the coordinator of the user `coordinator`.
    ///
    /// A container has an account of its own, unless the principal is known by a fact of containers.
    pub fn account(
        &self,
        facts: &Facts,
        principals: &[String],
        coordinator: u32,
    ) -> (Account, Option<&Limits>) {
        let own = principals.iter().find_map(|name| {
            let principal = self.principals.get(name)?;
            let limits = principal.quota.as_ref()?;
            let is_whole = facts.container.is_none() || principal.is_of_containers();
            is_whole.then(|| (Account::Principal(name.clone()), Some(limits)))
        });
        own.unwrap_or_else(|| (facts.account(coordinator), None))
    }

    /// Where the control groups of containers are.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// The limits of every account that has none of its own.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether one of the principals may serve the name.
    pub fn may_register(&self, principals: &[String], name: &ServiceName) -> bool {
        self.services.get(name).is_some_and(|s| {
            s.register.contains(ANYONE) || principals.iter().any(|p| s.register.contains(p))
        })
    }

    /// What the principals may call at the name, all together.
    pub fn methods(&self, principals: &[String], name: &ServiceName) -> MethodSet {
        let mut all = MethodSet::default();
        for (_, rule) in self.calls(principals, name) {
            rule.methods.patterns().iter().for_each(|p| all.add(p.clone()));
        }
        all.with_remedy(self.where_to_list(principals, name))
    }

    /// The least security of these principals' links to the name: what all the rules require that let them
    /// call something there.
    pub fn require(&self, principals: &[String], name: &ServiceName) -> Security {
        let rules = self.calls(principals, name).map(|(_, rule)| rule.require);
        let seal = match self.seal(principals, name) {
            Wish::Required => Seal::Sealed,
            Wish::Off | Wish::Prefer => Seal::Off,
        };
        let sign = if self.sign(principals, name) { Sign::Signed } else { Sign::Off };
        let demanded = self.services.get(name).and_then(|service| service.least);
        let least = Security::LOWEST.with_seal(seal).with_sign(sign);
        let least = demanded.map_or(least, |demanded| demanded.max_per_field(least));
        rules.fold(least, Security::max_per_field)
    }

    /// What may cross on these principals' links to the name: the most that a rule of theirs has, and leases
    /// where one of them has these.
    pub fn grant(&self, principals: &[String], name: &ServiceName) -> Grant {
        self.calls(principals, name).fold(Grant::NONE, |all, (_, Rule { grant, .. })| Grant {
            descriptors: all.descriptors.max(grant.descriptors),
            leases: all.leases || grant.leases,
        })
    }

    /// Whether anybody may serve the name here.
    pub fn may_be_served(&self, name: &ServiceName) -> bool {
        self.services.get(name).is_some_and(|s| !s.register.is_empty())
    }

    /// Each of the principals that may call something at the name, and what.
    fn calls<'a>(
        &'a self,
        principals: &'a [String],
        name: &ServiceName,
    ) -> impl Iterator<Item = (&'a String, &'a Rule)> {
        let calls = self.services.get(name).into_iter().flat_map(|s| &s.call);
        calls.filter(|(p, _)| *p == ANYONE || principals.contains(p))
    }

    /// What the principals may call at a name, and why.
    pub fn explain(&self, principals: &[String], name: &ServiceName, path: &str) -> Explanation {
        let allowed_by = self.calls(principals, name).filter_map(|(principal, rule)| {
            let pattern = rule.methods.patterns().iter().find(|p| p.covers(path))?;
            Some((principal.clone(), pattern.to_string()))
        });
        Explanation {
            allowed_by: allowed_by.collect(),
            methods: self.methods(principals, name),
            require: self.require(principals, name),
            grant: self.grant(principals, name),
            served_by: self
                .services
                .get(name)
                .map_or_else(Vec::new, |s| s.register.iter().cloned().collect()),
            url: self.url(name).map(str::to_string),
        }
    }

    /// Names that the policy speaks of.
    pub fn names(&self) -> BTreeSet<&ServiceName> {
        self.services.keys().chain(self.urls.keys()).collect()
    }

    /// Where the network has the name.
    pub fn addresses(&self, name: &ServiceName) -> Option<&Addresses> {
        self.urls.get(name)
    }

    /// The text of that.
    pub fn url(&self, name: &ServiceName) -> Option<&str> {
        self.addresses(name).map(Addresses::as_str)
    }

    /// Says for all processes whether they are to be hardened.
    pub fn harden(&mut self, harden: bool) {
        self.harden = Some(harden);
    }

    /// What it says of that itself.
    pub(crate) fn says_of_hardening(&self) -> Option<bool> {
        self.harden
    }

    /// Whether a process is to be closed to other processes of its user. Root's is open to root alone, and
    /// what a domain has is in its launcher's address space. Unless the policy says otherwise, the others
    /// are, but for one that the next coordinator would not know any more for what it is.
    pub fn hardens(&self, facts: &Facts) -> bool {
        if facts.uid == 0 || facts.domain.is_some() {
            return false;
        }
        self.harden.unwrap_or_else(|| match facts.fades {
            Fades::Nothing => true,
            Fades::Program => !self.observes(facts),
            Fades::All => false,
        })
    }

    /// A principal for processes of this user that goes by a program that /proc tells of.
    fn observing(&self, uid: u32) -> Option<&str> {
        let is = |p: &Principal| {
            p.program.is_some_and(|(_, strong)| !strong) && p.uid.is_none_or(|u| u == uid)
        };
        self.principals.iter().find(|(_, p)| is(p)).map(|(name, _)| name.as_str())
    }

    /// Whether the engine of a process's container must be asked what that was made of: no principal that
    /// goes by it could be this process otherwise.
    pub fn asks_engine(&self, facts: &Facts) -> bool {
        self.principals.values().any(|p| p.goes_by_origin() && p.runs_as(facts))
    }

    /// Whether some principal goes by what an engine says.
    pub(crate) fn asks_engines(&self) -> bool {
        self.principals.values().any(Principal::goes_by_origin)
    }

    /// Whether some principal is known by its program file.
    pub fn asks_for_programs(&self) -> bool {
        self.principals.values().any(|p| p.program.is_some())
    }

    /// Whether some principal is known by a program file that /proc tells of.
    pub fn observes_programs(&self) -> bool {
        self.principals.values().any(|p| p.program.is_some_and(|(_, strong)| !strong))
    }

    /// Whether /proc must be asked what the program of a process is: no principal that goes by an
    /// observed program could be this process otherwise.
    pub fn observes(&self, facts: &Facts) -> bool {
        let by_observed = |p: &&Principal| p.program.is_some_and(|(_, strong)| !strong);
        self.principals.values().filter(by_observed).any(|p| p.runs_as(facts))
    }
}

impl Principal {
    /// Whether it goes by what an engine says.
    fn goes_by_origin(&self) -> bool {
        self.image.is_some() || self.compose.is_some() || self.signed == Some(Signed::Image)
    }

    /// Whether it goes by what only a container has.
    fn is_of_containers(&self) -> bool {
        self.container.is_some() || self.pod.is_some() || self.goes_by_origin()
    }

    /// Whether what the container was made of is right.
    fn is_made_of(&self, f: &Facts) -> bool {
        let origin = f.origin.as_ref();
        let image = |ids: &Vec<String>| origin.is_some_and(|origin| ids.contains(&origin.image));
        let compose = |services: &Vec<String>| {
            let service = origin.and_then(|origin| origin.compose.as_ref());
            service.is_some_and(|service| services.contains(service))
        };
        self.image.as_ref().is_none_or(image) && self.compose.as_ref().is_none_or(compose)
    }

    /// Whether the user, the groups, the container and its pod are right.
    fn runs_as(&self, f: &Facts) -> bool {
        let container = |begins: &Vec<String>| {
            let begins_with = |id: &str| begins.iter().any(|begin| id.starts_with(begin));
            f.container.as_ref().is_some_and(|c| begins_with(&c.id))
        };
        let pod = |pods: &Vec<String>| {
            let of = f.container.as_ref().and_then(|c| c.pod.as_deref());
            of.is_some_and(|of| pods.iter().any(|pod| pod == of))
        };
        self.uid.is_none_or(|u| u == f.uid)
            && self.gid.is_none_or(|g| g == f.gid)
            && self.cgroup.as_ref().is_none_or(|c| *c == f.cgroup)
            && self.container.as_ref().is_none_or(container)
            && self.pod.as_ref().is_none_or(pod)
    }

    /// Whether all its facts hold, but for a signature.
    fn covers(&self, f: &Facts) -> bool {
        let program = |(wanted, strong): ([u8; 32], bool)| match f.digest {
            Digest::Started(d) => d == wanted,
            Digest::Observed(d) => !strong && d == wanted,
            // Unknown, or known in a way that no principal asks for.
            _ => false,
        };
        self.runs_as(f)
            && self.is_made_of(f)
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
mod tests;
