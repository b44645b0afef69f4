//! Fields that several messages have: who a process is, what may be called, texts.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::codec::{DecodeError, Reader, Writer};
use crate::layout::Geometry;
use crate::limits;
use crate::name::{MethodPattern, MethodSet, ServiceName};
use crate::security::Evidence;

/// How a program file became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Digest {
    /// It is not known.
    Unknown,
    /// SHA-256 read through `/proc/PID/exe`: true when it was read, but a process can be made to
    /// run other code afterwards.
    Observed([u8; 32]),
    /// SHA-256 of the sealed copy that the coordinator itself started: strong.
    Started([u8; 32]),
}

impl Digest {
    /// How it is known who the process is, if its program is known so and no image.
    pub fn evidence(self) -> Evidence {
        match self {
            Self::Started(_) => Evidence::Started,
            Self::Observed(_) | Self::Unknown => Evidence::Observed,
        }
    }
}

/// Who a process is, as the kernel told the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Process, as the coordinator's PID namespace sees it; none when that cannot see it.
    pub pid: Option<u32>,
    /// Digest of the program file.
    pub digest: Digest,
    /// Control group path, empty when unknown.
    pub cgroup: String,
    /// Id of its container, empty when it is in none that the coordinator knows; only an operator's list
    /// of links has it.
    pub container: String,
    /// Id of its container's image, and `PROJECT/SERVICE` of the Compose service that the container was made
    /// for, by its engine's word; each empty when that is not known, or nobody has asked. Only an operator's
    /// list has them.
    pub image: String,
    /// See [`Identity::image`].
    pub compose: String,
    /// The policy's names for it.
    pub principals: Vec<String>,
}

impl Identity {
    /// Of a process of this user and group, of which nothing else is known.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            pid: None,
            digest: Digest::Unknown,
            cgroup: String::new(),
            container: String::new(),
            image: String::new(),
            compose: String::new(),
            principals: Vec::new(),
        }
    }

    /// How it is known who the process is, by what is said here.
    pub fn evidence(&self) -> Evidence {
        match self.digest.evidence() {
            Evidence::Observed if !self.image.is_empty() => Evidence::Image,
            evidence => evidence,
        }
    }
}

pub(super) fn put_name(w: &mut Writer<'_>, name: &ServiceName) {
    w.short_bytes(name.as_str().as_bytes());
}

pub(super) fn name(r: &mut Reader<'_>) -> Result<ServiceName, DecodeError> {
    let text = r.short_text("name", limits::NAME_BYTES)?;
    ServiceName::new(&text).map_err(|_| DecodeError::Text { field: "name" })
}

pub(super) fn code(r: &mut Reader<'_>) -> Result<u8, DecodeError> {
    match r.u8("code")? {
        code @ 0..=16 => Ok(code),
        found => Err(DecodeError::Value { field: "code", found: found.into() }),
    }
}

pub(super) fn put_text(w: &mut Writer<'_>, text: &str, limit: usize) {
    let end = (0..=limit.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    w.short_bytes(&text.as_bytes()[..end]);
}

pub(super) fn put_geometry(w: &mut Writer<'_>, g: Geometry) {
    w.u32(g.slots());
    w.u32(g.arena_bytes());
}

pub(super) fn geometry(r: &mut Reader<'_>) -> Result<Geometry, DecodeError> {
    let (slots, arena) = (r.u32("slots")?, r.u32("arena bytes")?);
    Geometry::new(slots, arena)
        .map_err(|_| DecodeError::Value { field: "geometry", found: u64::from(slots) })
}

pub(super) fn put_identity(w: &mut Writer<'_>, id: &Identity) {
    w.u32(id.uid);
    w.u32(id.gid);
    w.u32(id.pid.unwrap_or(0));
    let (kind, digest) = match id.digest {
        Digest::Unknown => (0, [0; 32]),
        Digest::Observed(d) => (1, d),
        Digest::Started(d) => (2, d),
    };
    w.u8(kind);
    w.raw(&digest);
    put_text(w, &id.cgroup, limits::CGROUP_BYTES);
    let principals = &id.principals[..id.principals.len().min(limits::PRINCIPALS)];
    w.u16(principals.len() as u16);
    for p in principals {
        put_text(w, p, limits::NAME_BYTES);
    }
}

pub(super) fn identity(r: &mut Reader<'_>) -> Result<Identity, DecodeError> {
    let (uid, gid, pid) = (r.u32("uid")?, r.u32("gid")?, r.u32("pid")?);
    let kind = r.u8("digest kind")?;
    let digest = r.array("digest")?;
    let digest = match kind {
        0 => Digest::Unknown,
        1 => Digest::Observed(digest),
        2 => Digest::Started(digest),
        found => return Err(DecodeError::Value { field: "digest kind", found: found.into() }),
    };
    let cgroup = r.short_text("cgroup", limits::CGROUP_BYTES)?;
    let found = usize::from(r.u16("principals")?);
    if found > limits::PRINCIPALS {
        let limit = limits::PRINCIPALS;
        return Err(DecodeError::TooLarge { field: "principals", found, limit });
    }
    let principals = (0..found)
        .map(|_| r.short_text("principal", limits::NAME_BYTES))
        .collect::<Result<_, _>>()?;
    let pid = (pid != 0).then_some(pid);
    Ok(Identity { pid, digest, cgroup, principals, ..Identity::new(uid, gid) })
}

pub(super) fn put_methods(w: &mut Writer<'_>, set: &MethodSet) {
    let patterns = &set.patterns()[..set.patterns().len().min(limits::PATTERNS)];
    w.u16(patterns.len() as u16);
    for p in patterns {
        w.short_bytes(p.to_string().as_bytes());
    }
    put_text(w, set.remedy(), limits::ERROR_TEXT_BYTES);
}

pub(super) fn methods(r: &mut Reader<'_>) -> Result<MethodSet, DecodeError> {
    let found = usize::from(r.u16("methods")?);
    if found > limits::PATTERNS {
        return Err(DecodeError::TooLarge { field: "methods", found, limit: limits::PATTERNS });
    }
    let mut set = MethodSet::default();
    for _ in 0..found {
        let text = r.short_text("method", limits::PATTERN_BYTES)?;
        let pattern =
            MethodPattern::new(&text).map_err(|_| DecodeError::Text { field: "method" })?;
        set.add(pattern);
    }
    Ok(set.with_remedy(r.short_text("remedy", limits::ERROR_TEXT_BYTES)?))
}

pub(super) fn flag(r: &mut Reader<'_>, field: &'static str) -> Result<bool, DecodeError> {
    match r.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(DecodeError::Value { field, found: found.into() }),
    }
}
