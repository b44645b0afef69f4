//! Links as objects of JSON, whose fields stay as they are.

use partywall::operator::{LinkInfo, MethodStats, ParcelStats};
use partywall::{Digest, Identity, Security};
use serde::Serialize;

/// One link.
#[derive(Serialize)]
pub(crate) struct Row<'l> {
    link: u64,
    name: &'l str,
    caller: Who<'l>,
    server: Option<Who<'l>>,
    via: &'static str,
    url: Option<&'l str>,
    security: Levels,
    open: bool,
    calls: Option<u64>,
    failed: Option<u64>,
    denied: Option<u64>,
    request_bytes: Option<u64>,
    reply_bytes: Option<u64>,
    visits: Option<u64>,
    forwards: Option<u64>,
    inside_ns: Option<u64>,
    methods: Option<Vec<Method<'l>>>,
    more_methods: Option<u32>,
    descriptors: u32,
    leases: bool,
    caller_parcels: Option<Parcels>,
    server_parcels: Option<Parcels>,
}

/// What an end says that it has sent in parcels.
#[derive(Serialize)]
struct Parcels {
    parcels: u64,
    bytes: u64,
}

impl Parcels {
    /// None on a link on which no descriptor may cross.
    fn of(link: &LinkInfo, sent: ParcelStats) -> Option<Self> {
        let ParcelStats { parcels, bytes, .. } = sent;
        (!link.grant.is_none()).then_some(Self { parcels, bytes })
    }
}

/// One of its methods.
#[derive(Serialize)]
struct Method<'l> {
    path: &'l str,
    native: u64,
    ordinary: u64,
}

impl<'l> Method<'l> {
    fn of(method: &'l MethodStats) -> Self {
        Self { path: &method.path, native: method.native, ordinary: method.ordinary }
    }
}

/// What protects it, by the words of the levels.
#[derive(Debug, Serialize)]
pub(crate) struct Levels {
    isolation: &'static str,
    confidentiality: &'static str,
    evidence: &'static str,
    seal: &'static str,
    sign: &'static str,
}

impl Levels {
    pub(crate) fn of(security: Security) -> Self {
        let Security { isolation, confidentiality, evidence, seal, sign, .. } = security;
        Self {
            isolation: isolation.word(),
            confidentiality: confidentiality.word(),
            evidence: evidence.word(),
            seal: seal.word(),
            sign: sign.word(),
        }
    }
}

impl std::fmt::Display for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}", self.isolation, self.confidentiality, self.evidence)
    }
}

/// One end of it.
#[derive(Serialize)]
pub(crate) struct Who<'l> {
    pub(crate) principals: &'l [String],
    pub(crate) pid: Option<u32>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) cgroup: &'l str,
    pub(crate) container: Option<&'l str>,
    pub(crate) image: Option<&'l str>,
    pub(crate) compose: Option<&'l str>,
    pub(crate) digest: Option<String>,
    pub(crate) evidence: &'static str,
}

impl<'l> Who<'l> {
    pub(crate) fn of(identity: &'l Identity) -> Self {
        let digest = match &identity.digest {
            Digest::Observed(digest) | Digest::Started(digest) => Some(hex(digest)),
            _ => None,
        };
        let evidence = identity.evidence().word();
        let known = |text: &'l String| Some(text.as_str()).filter(|text| !text.is_empty());
        Self {
            principals: &identity.principals,
            pid: identity.pid,
            uid: identity.uid,
            gid: identity.gid,
            cgroup: &identity.cgroup,
            container: known(&identity.container),
            image: known(&identity.image),
            compose: known(&identity.compose),
            digest: digest.map(|digest| format!("sha256:{digest}")),
            evidence,
        }
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<'l> Row<'l> {
    pub(crate) fn of(link: &'l LinkInfo) -> Self {
        // Nobody counts the calls of a redirect: they do not pass through anything of ours.
        let is_counted = link.server.is_some();
        let counted = |count: u64| is_counted.then_some(count);
        let methods = || link.methods.most_called.iter().map(Method::of).collect();
        let s = &link.stats;
        Self {
            link: link.link,
            name: &link.name,
            caller: Who::of(&link.caller),
            server: link.server.as_ref().map(Who::of),
            via: super::via(link),
            url: Some(link.url.as_str()).filter(|url| !url.is_empty()),
            security: Levels::of(link.security),
            open: link.open,
            calls: counted(s.calls),
            failed: counted(s.failed),
            denied: counted(s.denied),
            request_bytes: counted(s.received_bytes),
            reply_bytes: counted(s.sent_bytes),
            visits: counted(s.visits),
            forwards: counted(s.forwards),
            inside_ns: counted(s.inside_ns),
            methods: is_counted.then(methods),
            more_methods: is_counted.then_some(link.methods.more),
            descriptors: link.grant.descriptors,
            leases: link.grant.leases,
            caller_parcels: Parcels::of(link, link.caller_parcels),
            server_parcels: Parcels::of(link, s.parcels),
        }
    }

    /// It as a line.
    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers") + "\n"
    }
}
