//! The TOML form of a policy.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use partywall_abi::control::Grant;
use partywall_abi::limits;
use partywall_abi::name::{MethodPattern, MethodSet, NameError, PatternError, ServiceName};
use partywall_abi::security::{Security, UnknownLevel};
use partywall_shm::address::Addresses;
use partywall_trust::record::Suite;
use partywall_trust::{IdError, TrustDomain};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use toml::Spanned;

use super::seal::{AuthorityPlace, Form, SignWish};
use super::signed::{Signed, Signers};
use super::{ANYONE, Policy, PolicyError, Principal, Rule, Service, Wish, did_you_mean};
use crate::container::{self, Engines};
use crate::engine;
use crate::identity;
use crate::quota::Limits;
use crate::signatures::KEYS;

/// How long certificates may hold, in seconds.
const LIVES: std::ops::RangeInclusive<u32> = 10..=30 * 24 * 3600;
/// What a principal of a signed program lacks.
const NO_KEYS: &str = "`signed`, and no key is trusted; add `keys = [\"/etc/partywall/keys/builder.pub\"]` \
     under [signatures], as `partywall sign --new-key` makes them";
const NO_IMAGES: &str = "`signed = \"image\"`, and nobody knows where signatures of images are; add `images = \
     \"/etc/partywall/images\"` under [signatures], the directory in which `partywall sign --image` writes them";
/// Largest policy file, in bytes.
pub(super) const LARGEST: u64 = 4 << 20;
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    harden: Option<Spanned<bool>>,
    #[serde(default)]
    principal: BTreeMap<Spanned<String>, PrincipalSection>,
    #[serde(default)]
    service: BTreeMap<Spanned<String>, ServiceSection>,
    #[serde(default)]
    engine: BTreeMap<Spanned<String>, EngineSection>,
    #[serde(default)]
    names: BTreeMap<Spanned<String>, Texts>,
    #[serde(default)]
    quota: Limits,
    #[serde(default)]
    authority: AuthoritySection,
    #[serde(default)]
    sealing: SealingSection,
    #[serde(default)]
    signatures: SignaturesSection,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct SignaturesSection {
    #[serde(default)]
    keys: Vec<Spanned<PathBuf>>,
    revoked: Option<Spanned<PathBuf>>,
    images: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct AuthoritySection {
    domain: Option<Spanned<String>>,
    directory: Option<Spanned<PathBuf>>,
    life_seconds: Option<Spanned<u32>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct SealingSection {
    suite: Option<Spanned<String>>,
    #[serde(default)]
    classes: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EngineSection {
    #[serde(default)]
    groups: Vec<String>,
    api: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrincipalSection {
    uid: Option<u32>,
    gid: Option<u32>,
    cgroup: Option<String>,
    container: Option<Texts>,
    pod: Option<Texts>,
    image: Option<Texts>,
    compose: Option<Texts>,
    program: Option<String>,
    evidence: Option<Evidence>,
    started: Option<String>,
    signed: Option<IsSigned>,
    quota: Option<Limits>,
}

/// What of a process is signed.
#[derive(Deserialize)]
#[serde(untagged, expecting = "true, false or \"image\"")]
enum IsSigned {
    Program(bool),
    Of(OfImage),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum OfImage {
    Image,
}

impl IsSigned {
    fn what(self) -> Option<Signed> {
        match self {
            Self::Program(is) => is.then_some(Signed::Program),
            Self::Of(OfImage::Image) => Some(Signed::Image),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, or a list of texts")]
enum Texts {
    One(String),
    AnyOf(Vec<String>),
}

impl Texts {
    fn all(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::AnyOf(texts) => texts,
        }
    }
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
    register: Vec<Spanned<String>>,
    #[serde(default)]
    fallback: bool,
    #[serde(default)]
    seal: Wish,
    #[serde(default)]
    sign: SignWish,
    #[serde(default)]
    call: BTreeMap<Spanned<String>, RuleSection>,
}

/// A list of methods, or a table with one.
#[derive(Default)]
struct RuleSection {
    methods: Vec<Spanned<String>>,
    require: Require,
    descriptors: Option<Spanned<u32>>,
    leases: Option<Spanned<bool>>,
    seal: Wish,
    sign: SignWish,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    methods: Vec<Spanned<String>>,
    #[serde(default)]
    require: Require,
    descriptors: Option<Spanned<u32>>,
    leases: Option<Spanned<bool>>,
    #[serde(default)]
    seal: Wish,
    #[serde(default)]
    sign: SignWish,
}

/// The least levels of a rule's links; a field that is left out requires nothing.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Require {
    isolation: Option<Spanned<String>>,
    confidentiality: Option<Spanned<String>>,
    evidence: Option<Spanned<String>>,
}

impl<'de> Deserialize<'de> for RuleSection {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = RuleSection;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a list of methods, or a table with `methods`, `require`, `descriptors`, \
                     `leases`, `seal` and `sign`",
                )
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                list: A,
            ) -> Result<RuleSection, A::Error> {
                let methods = Deserialize::deserialize(SeqAccessDeserializer::new(list))?;
                Ok(RuleSection { methods, ..RuleSection::default() })
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<RuleSection, A::Error> {
                let RuleTable { methods, require, descriptors, leases, seal, sign } =
                    Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                Ok(RuleSection { methods, require, descriptors, leases, seal, sign })
            }
        }
        from.deserialize_any(Either)
    }
}

impl Require {
    fn security(&self, place: &Place<'_>, key: &str) -> Result<Security, PolicyError> {
        let mut least = Security::LOWEST;
        level(&self.isolation, &mut least.isolation, place, key)?;
        level(&self.confidentiality, &mut least.confidentiality, place, key)?;
        level(&self.evidence, &mut least.evidence, place, key)?;
        Ok(least)
    }
}

/// Reads the level of one field, if it is there.
fn level<T: FromStr<Err = UnknownLevel>>(
    word: &Option<Spanned<String>>,
    to: &mut T,
    place: &Place<'_>,
    key: &str,
) -> Result<(), PolicyError> {
    if let Some(word) = word {
        let wrong = |e: UnknownLevel| place.wrong(word, format!("{key}.require"), e.to_string());
        *to = word.get_ref().parse().map_err(wrong)?;
    }
    Ok(())
}

impl RuleSection {
    /// What may cross on the links that it allows.
    fn grant(&self, place: &Place<'_>, key: &str) -> Result<Grant, PolicyError> {
        let limit = limits::PACKET_FDS as u32;
        let mut grant = Grant::NONE;
        if let Some(most) = &self.descriptors {
            grant.descriptors = *most.get_ref();
            if grant.descriptors > limit {
                let text =
                    format!("a message has at most {limit} descriptors; write a number up to that");
                return Err(place.wrong(most, format!("{key}.descriptors"), text));
            }
        }
        if let Some(leases) = self.leases.as_ref().filter(|leases| *leases.get_ref()) {
            grant.leases = true;
            if grant.is_none() {
                let text = "a lease crosses as a descriptor, and this rule has none; remedy: add \
                            `descriptors = 1`, or more, beside it, or drop `leases`";
                return Err(place.wrong(leases, format!("{key}.leases"), text.into()));
            }
        }
        Ok(grant)
    }
}

impl AuthoritySection {
    fn read(self, place: &Place<'_>) -> Result<AuthorityPlace, PolicyError> {
        let mut authority = AuthorityPlace::default();
        if let Some(domain) = self.domain {
            let checked = TrustDomain::new(domain.get_ref());
            let wrong = |e: IdError| place.wrong(&domain, "authority.domain".into(), e.to_string());
            authority.domain = checked.map_err(wrong)?.as_str().into();
        }
        if let Some(directory) = self.directory {
            if !directory.get_ref().is_absolute() {
                let text = "write an absolute path, as `/var/lib/partywall/authority`";
                return Err(place.wrong(&directory, "authority.directory".into(), text.into()));
            }
            authority.directory = Some(directory.into_inner());
        }
        if let Some(life) = self.life_seconds {
            if !LIVES.contains(life.get_ref()) {
                let text = format!(
                    "a certificate holds for {} to {} seconds; write a number of these",
                    LIVES.start(),
                    LIVES.end()
                );
                return Err(place.wrong(&life, "authority.life_seconds".into(), text));
            }
            authority.life = Duration::from_secs((*life.get_ref()).into());
        }
        Ok(authority)
    }
}

impl SignaturesSection {
    fn read(self, place: &Place<'_>) -> Result<Signers, PolicyError> {
        let absolute = |path: &Spanned<PathBuf>, key: &str, example: &str| {
            if path.get_ref().is_absolute() {
                return Ok(path.get_ref().clone());
            }
            let text = format!("write an absolute path, as `{example}`");
            Err(place.wrong(path, format!("signatures.{key}"), text))
        };
        if let Some(beyond) = self.keys.get(KEYS) {
            let text = format!("{KEYS} keys are the most; remove those that sign nothing any more");
            return Err(place.wrong(beyond, "signatures.keys".into(), text));
        }
        let mut signers = Signers::default();
        for key in &self.keys {
            signers.keys.push(absolute(key, "keys", "/etc/partywall/keys/builder.pub")?);
        }
        let revoked = self.revoked.as_ref();
        signers.revoked =
            revoked.map(|list| absolute(list, "revoked", "/etc/partywall/revoked")).transpose()?;
        let images = self.images.as_ref();
        signers.images =
            images.map(|place| absolute(place, "images", "/etc/partywall/images")).transpose()?;
        Ok(signers)
    }
}

impl SealingSection {
    fn read(self, place: &Place<'_>) -> Result<Form, PolicyError> {
        let mut form = Form { classes: self.classes, ..Form::default() };
        if let Some(word) = self.suite {
            let suite = Suite::ALL.into_iter().find(|suite| suite.word() == word.get_ref());
            form.suite = suite.ok_or_else(|| {
                let known = Suite::ALL.map(|suite| format!("`{}`", suite.word())).join(", ");
                let near = did_you_mean(word.get_ref(), Suite::ALL.map(Suite::word));
                let text = format!("no suite `{}`; there are {known}{near}", word.get_ref());
                place.wrong(&word, "sealing.suite".into(), text)
            })?;
        }
        Ok(form)
    }
}

/// Where something stands.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
}

impl Place<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self.text.get(..at).unwrap_or(self.text).matches('\n').count()
    }

    fn wrong<T>(&self, at: &Spanned<T>, key: String, text: String) -> PolicyError {
        PolicyError::Value { file: self.file.into(), line: self.line(at.span().start), key, text }
    }

    fn syntax(&self, error: &toml::de::Error) -> PolicyError {
        let line = error.span().map_or(1, |span| self.line(span.start));
        let key = error.span().and_then(|span| self.key(span.start));
        let key = key.map(|key| format!("`{key}`: ")).unwrap_or_default();
        let text = format!("{key}{}", said(error.message()));
        PolicyError::Syntax { file: self.file.into(), line, text }
    }

    /// The key whose value begins there.
    fn key(&self, value: usize) -> Option<&str> {
        let before = self.text.get(..value)?.trim_end().strip_suffix('=')?.trim_end();
        before.rsplit(['{', ',', '\n', ' ', '\t']).next()
    }
}

/// The parser's words in ours; serde writes "unknown field `a`, expected `b` or `c`".
fn said(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match (message.starts_with("unknown field"), &quoted[..]) {
        (true, [unknown, known @ ..]) => format!(
            "unknown key `{unknown}`; there are {} here{}",
            known.join(", "),
            did_you_mean(unknown, known.iter().copied())
        ),
        _ if message.ends_with("expected u32") || message.ends_with("expected usize") => {
            let found = message.rsplit_once(", expected").map_or(message, |(found, _)| found);
            let found = found.split_once(": ").map_or(found, |(_, found)| found);
            // What has no room in 64 bits is called so.
            let is_large = found.ends_with(" as i128")
                || message.starts_with("invalid value: integer") && !found.contains('-');
            let found = found.trim_end_matches(" as i128");
            let large = if is_large { ", which is too large" } else { "" };
            format!(
                "found {found}{large}; write a whole number from 0 on, without quotes or a unit"
            )
        }
        _ if message.starts_with("string values must be quoted") => {
            "neither a number nor a text in quotes; a number has no unit".into()
        }
        _ => format!("{message}; remedy: correct this line, as docs/policy.md has it"),
    }
}

impl Policy {
    /// Checks a text; `file` is what errors call it.
    ///
    /// # Errors
    /// [`PolicyError::Syntax`], [`PolicyError::Value`].
    pub fn parse(file: &str, text: &str) -> Result<Self, PolicyError> {
        Self::parse_for(identity::blind(), file, text)
    }

    /// As [`Policy::parse`], for a coordinator that cannot look at hardened processes of this user, if any.
    pub(super) fn parse_for(
        blind: Option<u32>,
        file: &str,
        text: &str,
    ) -> Result<Self, PolicyError> {
        let place = Place { file, text };
        let parsed: File = toml::from_str(text).map_err(|e| place.syntax(&e))?;
        let harden = parsed.harden.as_ref().map(|harden| *harden.get_ref());
        let mut policy = Self { limits: parsed.quota, harden, ..Self::default() };
        policy.authority = parsed.authority.read(&place)?;
        policy.form = parsed.sealing.read(&place)?;
        policy.signers = parsed.signatures.read(&place)?;
        for (name, section) in parsed.engine {
            let key = format!("engine.{}", name.get_ref());
            let added = add_engine(&mut policy, name.get_ref(), &section);
            added.map_err(|text| place.wrong(&name, key, text))?;
        }
        for (name, section) in parsed.principal {
            let key = format!("principal.{}", name.get_ref());
            let read = principal(name.get_ref(), section, &policy.engines);
            let principal = read
                .and_then(|p| match p.signed {
                    Some(_) if policy.signers.keys.is_empty() => Err(NO_KEYS.into()),
                    Some(Signed::Image) if policy.signers.images.is_none() => Err(NO_IMAGES.into()),
                    _ => Ok(p),
                })
                .map_err(|text| place.wrong(&name, key, text))?;
            policy.principals.insert(name.into_inner(), principal);
        }
        if let (Some(harden), Some(uid)) = (parsed.harden.filter(|h| *h.get_ref()), blind)
            && let Some(principal) = policy.observing(uid)
        {
            let text = format!(
                "principal `{principal}` goes by `evidence = \"observed\"`, and a coordinator of user {uid} \
                 without CAP_SYS_PTRACE cannot read /proc/PID/exe of hardened processes of that user; remedy: \
                 drop `harden = true`, so that processes of that program are not hardened, give the \
                 coordinator CAP_SYS_PTRACE, or the principal another `uid`"
            );
            return Err(place.wrong(&harden, "harden".into(), text));
        }
        let mut fallback = Vec::new();
        for (name, section) in parsed.service {
            let (checked, service) = policy.service(&place, &name, &section)?;
            if section.fallback {
                fallback.push((checked.clone(), name));
            }
            policy.services.insert(checked, service);
        }
        for (name, list) in parsed.names {
            policy.address(&place, name, &list.all(), &fallback)?;
        }
        if let Some((name, at)) = fallback.iter().find(|(n, _)| !policy.urls.contains_key(n)) {
            let text = format!(
                "`fallback = true`, and no address to fall back to; remedy: add `{name} = \"http://host:port\"` under [names], or drop `fallback`"
            );
            return Err(place.wrong(at, format!("service.{name}"), text));
        }
        Ok(policy)
    }

    fn service(
        &self,
        place: &Place<'_>,
        name: &Spanned<String>,
        section: &ServiceSection,
    ) -> Result<(ServiceName, Service), PolicyError> {
        let key = format!("service.{}", name.get_ref());
        let checked = ServiceName::new(name.get_ref())
            .map_err(|e: NameError| place.wrong(name, key.clone(), e.to_string()))?;
        let named = section.register.iter().chain(section.call.keys());
        for principal in named {
            let p = principal.get_ref();
            if !self.has_principal(p) {
                let near = did_you_mean(p, self.principals.keys().map(String::as_str));
                let text = format!("no principal `{p}`: add [principal.{p}]{near}");
                return Err(place.wrong(principal, key, text));
            }
        }
        let register = section.register.iter().map(|p| p.get_ref().clone()).collect();
        let (seal, sign) = (section.seal, section.sign);
        let mut service = Service { register, call: BTreeMap::new(), seal, sign, least: None };
        for (principal, rule) in &section.call {
            let key = format!("{key}.call.{}", principal.get_ref());
            let mut set = MethodSet::default();
            for method in &rule.methods {
                let pattern = MethodPattern::new(method.get_ref())
                    .map_err(|e: PatternError| place.wrong(method, key.clone(), e.to_string()))?;
                set.add(pattern);
            }
            let require = rule.require.security(place, &key)?;
            let grant = rule.grant(place, &key)?;
            let is_sealed = rule.seal.max(section.seal) != Wish::Off
                || rule.sign.max(section.sign) != SignWish::Off;
            if let Some(most) = rule.descriptors.as_ref().filter(|_| is_sealed)
                && !grant.is_none()
            {
                let text = "what crosses as a descriptor is neither sealed nor signed, and these links are; \
                            remedy: drop `descriptors`, or `seal` and `sign`";
                return Err(place.wrong(most, format!("{key}.descriptors"), text.into()));
            }
            let rule = Rule { methods: set, require, grant, seal: rule.seal, sign: rule.sign };
            service.call.insert(principal.get_ref().clone(), rule);
        }
        service.fits().map_err(|text| place.wrong(name, format!("{key}.call"), text))?;
        Ok((checked, service))
    }

    fn address(
        &mut self,
        place: &Place<'_>,
        name: Spanned<String>,
        list: &[String],
        fallback: &[(ServiceName, Spanned<String>)],
    ) -> Result<(), PolicyError> {
        let key = format!("names.{}", name.get_ref());
        let checked = ServiceName::new(name.get_ref())
            .map_err(|e| place.wrong(&name, key.clone(), e.to_string()))?;
        let addresses =
            Addresses::of(list).map_err(|e| place.wrong(&name, key.clone(), e.to_string()))?;
        let served = self.services.get(&checked).filter(|s| !s.register.is_empty());
        if let Some(service) = served
            && !fallback.iter().any(|(n, _)| *n == checked)
        {
            let who: Vec<&str> = service.register.iter().map(String::as_str).collect();
            let text = format!(
                "{} may serve `{checked}` on this host, and this address has neither its identity \
                 nor its methods checked; remedy: add `fallback = true` under [service.{checked}] if \
                 calls may go there while nobody serves it, or drop one of the two",
                who.join(", ")
            );
            return Err(place.wrong(&name, key, text));
        }
        self.urls.insert(checked, addresses);
        Ok(())
    }
}

fn add_engine(policy: &mut Policy, name: &str, section: &EngineSection) -> Result<(), String> {
    ServiceName::new(name).map_err(|e| e.to_string())?;
    policy.engines.add(name, &section.groups)?;
    match &section.api {
        Some(api) => policy.engines.answers_at(name, api).map_err(|text| format!("`api`: {text}")),
        None => Ok(()),
    }
}

fn principal(name: &str, s: PrincipalSection, engines: &Engines) -> Result<Principal, String> {
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
    let signed = s.signed.and_then(IsSigned::what);
    if signed == Some(Signed::Program) && !strong {
        return Err("`signed` is for what the coordinator has started from a sealed copy; remove `evidence = \
                    \"observed\"`, or `signed`"
            .into());
    }
    let program = match s.program {
        None => None,
        Some(text) => Some((sha256(&text)?, strong)),
    };
    let container = s.container.map(Texts::all);
    if let Some(ids) = &container {
        if let Some(id) = ids.iter().find(|id| !container::is_id_or_begin(id)) {
            return Err(format!(
                "`{id}`: write a container's id as its engine has it, {} to 64 hexadecimal digits from its \
                 begin on",
                container::PREFIX
            ));
        }
        if engines.is_empty() {
            return Err(
                "`container` says nothing without an engine; add [engine.docker], or that of \
                        another one"
                    .into(),
            );
        }
    }
    let pod = s.pod.map(Texts::all);
    if let Some(pods) = &pod {
        if let Some(wrong) = pods.iter().find(|pod| !container::is_pod_of_policy(pod)) {
            return Err(format!(
                "`{wrong}`: write a pod's UID, whole and in lower case, as `kubectl get pod POD -o \
                 jsonpath={{.metadata.uid}}` has it; or 32 or 64 hexadecimal digits"
            ));
        }
        if !engines.has_pods() {
            return Err("`pod` says nothing without an engine whose `groups` have `{pod}`; add [engine.kubernetes]"
                .into());
        }
    }
    let image = s.image.map(Texts::all);
    if let Some(id) = image.iter().flatten().find(|id| !engine::is_image(id)) {
        return Err(format!(
            "`{id}`: write an image's id, whole: sha256: and 64 hexadecimal digits, as `docker image inspect \
             --format '{{{{.Id}}}}' IMAGE` has it"
        ));
    }
    let compose = s.compose.map(Texts::all);
    if let Some(service) = compose.iter().flatten().find(|service| !engine::is_service(service)) {
        return Err(format!(
            "`{service}`: write PROJECT/SERVICE, as Compose has them, at most {} bytes of letters, digits, `.`, \
             `_` and `-` beside the `/`",
            limits::COMPOSE_BYTES
        ));
    }
    let p = Principal {
        uid: s.uid,
        gid: s.gid,
        cgroup: s.cgroup,
        container,
        pod,
        image,
        compose,
        program,
        started: s.started,
        signed,
        quota: None,
    };
    if p.goes_by_origin() && !engines.answers() {
        let what = match (&p.image, &p.compose) {
            (Some(_), _) => "image",
            (None, Some(_)) => "compose",
            (None, None) => "signed = \"image\"",
        };
        return Err(format!(
            "`{what}` is what an engine says, and none can be asked; add `api = \"/run/docker.sock\"` under \
             [engine.docker], or that of another one"
        ));
    }
    if p == Principal::default() {
        let facts = "uid, gid, cgroup, container, pod, image, compose, program, started, signed";
        return Err(format!("no fact: give at least one of {facts}"));
    }
    Ok(Principal { quota: s.quota, ..p })
}

fn sha256(text: &str) -> Result<[u8; 32], String> {
    let bad = || format!("`{text}`: write sha256: and 64 hexadecimal digits");
    let hex = text.strip_prefix("sha256:").ok_or_else(bad)?;
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(bad());
    }
    let mut out = [0; 32];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
    }
    Ok(out)
}
