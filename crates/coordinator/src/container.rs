//! Which container a process is in, from its control groups.
//!
//! An engine puts each container into a control group of its own, and names the group after the
//! container. The policy says where these groups are:
//!
//! ```text
//! /docker/{id}                                  {id}: 64 hexadecimal digits in lower case
//! /system.slice/docker-{id}.scope
//! /kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{id}.scope
//!                                               {pod}: a UID, or 32 or 64 hexadecimal digits
//! ```
//!
//! The pod of a container is what stands for `{pod}` in that path, the last one of several. `systemd`'s
//! driver writes a UID with `_`, since `-` stands between slices there; it is the same pod.
//!
//! A path is in a container when it begins with such a group, component by component. So the id is
//! found at one place of the path alone, and what a container makes below its own group is still that
//! container. A group that looks like a container's anywhere else is nobody's.
//!
//! A process has a path in each hierarchy of control groups (cgroups(7)), and all those that the
//! engine manages must say the same:
//!
//! - With version 2 that is the one hierarchy `0::`. Hierarchies of version 1 beside it, such as
//!   `net_cls` of a firewall, are none of the engine's.
//! - With version 1 the engine's runtime joins what is mounted of [`MANAGED`]: runc goes by this list
//!   (libcontainer/cgroups, `fs/fs.go` and `systemd/v1.go`). What is not mounted is no line of the text.
//!   Without `devices` runc does not start a container on version 1, so a text with that controller is one
//!   of version 1, and one without it of version 2. Newer releases of runc join `rdma` and `misc` as well,
//!   older ones do not; named hierarchies other than systemd's are left alone; and `0::` beside version 1
//!   is joined by systemd's driver and not by the other one. There a process may be anywhere, but not in
//!   another container.
//!
//! Who may write a group can put its own processes there. The groups of a rootless engine belong to
//! its user, so that they prove no more than the uid: the policy cannot name them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// What a container's group is called by in the text of a policy.
const ID: &str = "{id}";
/// A pod's likewise.
const POD: &str = "{pod}";
/// Digits of an id.
const DIGITS: usize = 64;
/// Least digits of the begin of an id, by which a policy may name it; as many as `docker ps` shows.
pub(crate) const PREFIX: usize = 12;
/// Groups of all engines together.
const GROUPS: usize = 64;

/// What a runtime joins of version 1, where it is mounted.
const MANAGED: [&str; 13] = [
    "cpuset",
    "devices",
    "memory",
    "cpu",
    "cpuacct",
    "pids",
    "blkio",
    "hugetlb",
    "net_cls",
    "net_prio",
    "perf_event",
    "freezer",
    "name=systemd",
];

/// Engines whose groups are known: each by both of its drivers, `cgroupfs` and `systemd`.
const KNOWN: [(&str, &[&str]); 3] = [
    ("docker", &["/docker/{id}", "/system.slice/docker-{id}.scope"]),
    (
        "podman",
        &[
            "/libpod_parent/libpod-{id}",
            "/libpod_parent/{pod}/libpod-{id}",
            "/machine.slice/libpod-{id}.scope",
            "/machine.slice/machine-libpod_pod_{pod}.slice/libpod-{id}.scope",
        ],
    ),
    (
        "kubernetes",
        &[
            "/kubepods/pod{pod}/{id}",
            "/kubepods/burstable/pod{pod}/{id}",
            "/kubepods/besteffort/pod{pod}/{id}",
            "/kubepods/pod{pod}/crio-{id}",
            "/kubepods/burstable/pod{pod}/crio-{id}",
            "/kubepods/besteffort/pod{pod}/crio-{id}",
            "/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{id}.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{id}.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{pod}.slice/cri-containerd-{id}.scope",
            "/kubepods.slice/kubepods-pod{pod}.slice/crio-{id}.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/crio-{id}.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{pod}.slice/crio-{id}.scope",
        ],
    ),
];

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Container {
    /// The policy's name for its engine.
    pub engine: Box<str>,
    /// Its engine's name for it, whole.
    pub id: String,
    /// The pod that it is in, where its group says so: a UID with `-`, whichever driver has written it, or
    /// digits.
    pub pod: Option<Box<str>>,
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = self.id.get(..PREFIX).unwrap_or(&self.id);
        write!(f, "container {short} of {}", self.engine)?;
        self.pod.as_ref().map_or(Ok(()), |pod| write!(f, ", in pod {pod}"))
    }
}

/// Where the groups of containers are, and which engines can be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    groups: BTreeMap<String, Vec<Group>>,
    /// The sockets of engines.
    apis: BTreeMap<String, PathBuf>,
}

/// The form of a group's path, without its first `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group(Vec<Component>);

/// The form of a component: a text, or what stands before and after a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Component {
    Text(String),
    Id(String, String),
    Pod(String, String),
}

/// What a component says.
enum Says<'t> {
    Nothing,
    Id(&'t str),
    Pod(&'t str),
}

/// One line of /proc/PID/cgroup.
struct Hierarchy<'t> {
    controllers: &'t str,
    path: &'t [u8],
}

impl Engines {
    /// Adds an engine whose containers have these groups; without any, those that an engine of this
    /// name has.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn add(&mut self, name: &str, groups: &[String]) -> Result<(), String> {
        let known = || KNOWN.iter().find(|(known, _)| *known == name);
        let texts: Vec<&str> = match (groups, known()) {
            ([], None) => {
                let names: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
                return Err(format!(
                    "no engine of this name is known ({} are); add `groups`, such as \
                     `[\"/docker/{ID}\"]`",
                    names.join(", ")
                ));
            }
            ([], Some((_, groups))) => groups.to_vec(),
            (groups, _) => groups.iter().map(String::as_str).collect(),
        };
        let groups = texts.into_iter().map(Group::parse).collect::<Result<Vec<_>, _>>()?;
        for (other, theirs) in &self.groups {
            if groups.iter().any(|group| theirs.contains(group)) {
                return Err(format!("engine `{other}` has the same group; drop one of the two"));
            }
        }
        if groups.len() + self.groups.values().map(Vec::len).sum::<usize>() > GROUPS {
            return Err(format!("all engines together have at most {GROUPS} groups"));
        }
        self.groups.insert(name.into(), groups);
        Ok(())
    }

    /// Whether there is none, so that no process is known to be in a container.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// An engine is asked at this socket ([`crate::engine`]).
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn answers_at(&mut self, name: &str, api: &Path) -> Result<(), String> {
        if !api.is_absolute() {
            return Err(format!(
                "`{}`: write the absolute path of the engine's Unix socket, such as `/run/docker.sock`; an \
                 engine on another host is not asked",
                api.display()
            ));
        }
        self.apis.insert(name.into(), api.into());
        Ok(())
    }

    /// Where an engine is asked.
    pub fn api(&self, name: &str) -> Option<&Path> {
        self.apis.get(name).map(PathBuf::as_path)
    }

    /// Whether some engine can be asked.
    pub fn answers(&self) -> bool {
        !self.apis.is_empty()
    }

    /// Whether the groups of some engine say which pod a container is in.
    pub fn has_pods(&self) -> bool {
        let is_pod = |component: &Component| matches!(component, Component::Pod(..));
        self.groups.values().flatten().any(|group| group.0.iter().any(is_pod))
    }

    /// The container of a process with this text of /proc/PID/cgroup, if it is in one.
    ///
    /// # Errors
    /// Why that cannot be told, in words.
    pub fn container(&self, text: &[u8]) -> Result<Option<Container>, String> {
        if self.is_empty() {
            return Ok(None);
        }
        let hierarchies = hierarchies(text)?;
        let is_legacy = hierarchies.iter().any(|h| h.has("devices"));
        let mut found: Option<(Container, &Hierarchy<'_>)> = None;
        let (mut agrees, mut outside) = (false, None);
        for hierarchy in &hierarchies {
            let managed = hierarchy.is_managed(is_legacy);
            let Some(container) = self.find(hierarchy)? else {
                outside = outside.or(managed.then_some(hierarchy));
                continue;
            };
            agrees |= managed;
            match &found {
                Some((other, by)) if *other != container => {
                    return Err(format!(
                        "its control groups disagree: it is in {other} by {by}, and in {container} by \
                         {hierarchy}"
                    ));
                }
                Some(_) => {}
                None => found = Some((container, hierarchy)),
            }
        }
        match (found, outside) {
            (None, _) => Ok(None),
            (Some((container, _)), None) if agrees => Ok(Some(container)),
            (Some((container, by)), None) => {
                Err(format!("it is in {container} by {by} alone, which engines leave to others"))
            }
            (Some((container, by)), Some(outside)) => Err(format!(
                "its control groups disagree: it is in {container} by {by}, and in no container by \
                 {outside}"
            )),
        }
    }

    /// The container in one hierarchy: of the groups that the path begins with, the shortest.
    fn find(&self, hierarchy: &Hierarchy<'_>) -> Result<Option<Container>, String> {
        let components = components(hierarchy)?;
        let of = |(engine, groups): (&String, &Vec<Group>)| {
            let found =
                groups.iter().filter_map(|group| Some((group.0.len(), group.of(&components)?)));
            let (length, (id, pod)) = found.min()?;
            let pod = pod.map(|pod| pod.replace('_', "-").into());
            Some((length, Container { engine: engine.as_str().into(), id: id.into(), pod }))
        };
        Ok(self.groups.iter().filter_map(of).min().map(|(_, container)| container))
    }
}

impl Group {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            format!(
                "`{text}`: {why}; write the path of a container's group, such as `/docker/{ID}`"
            )
        };
        let path = text.strip_prefix('/').ok_or_else(|| wrong("it begins without `/`".into()))?;
        let mut components = Vec::new();
        for part in path.split('/') {
            if ["", ".", ".."].contains(&part) {
                return Err(wrong(format!("no group is called `{part}`")));
            }
            if part.starts_with("user@") || part.starts_with("user-") {
                return Err(wrong(format!(
                    "a user can write the groups in `{part}`, so that they prove no more than its uid, \
                     which a principal has as `uid`"
                )));
            }
            components.push(Component::parse(part).map_err(&wrong)?);
        }
        let ids = components.iter().filter(|c| matches!(c, Component::Id(..))).count();
        if ids != 1 || !matches!(components.last(), Some(Component::Id(..))) {
            return Err(wrong(format!("it has one `{ID}`, which is in its last component")));
        }
        Ok(Self(components))
    }

    /// The id, and the pod if it says one, when the path begins with such a group.
    fn of<'t>(&self, path: &[&'t [u8]]) -> Option<(&'t str, Option<&'t str>)> {
        let (mut id, mut pod) = (None, None);
        for (n, component) in self.0.iter().enumerate() {
            match component.of(path.get(n)?)? {
                Says::Nothing => {}
                Says::Id(text) => id = Some(text),
                Says::Pod(text) => pod = Some(text),
            }
        }
        id.map(|id| (id, pod))
    }
}

impl Component {
    fn parse(part: &str) -> Result<Self, String> {
        let (component, texts) = match (part.split_once(ID), part.split_once(POD)) {
            (Some((a, b)), _) => (Self::Id(a.into(), b.into()), [a, b]),
            (None, Some((a, b))) => (Self::Pod(a.into(), b.into()), [a, b]),
            (None, None) => (Self::Text(part.into()), [part, ""]),
        };
        match texts.iter().any(|text| text.contains(['{', '}'])) {
            true => Err(format!("`{part}` has more in braces than one `{ID}` or `{POD}`")),
            false => Ok(component),
        }
    }

    /// None when a component is not of this form; else what it says.
    fn of<'t>(&self, component: &'t [u8]) -> Option<Says<'t>> {
        let within = |before: &str, after: &str| {
            let rest = component.strip_prefix(before.as_bytes())?;
            std::str::from_utf8(rest.strip_suffix(after.as_bytes())?).ok()
        };
        match self {
            Self::Text(text) => (component == text.as_bytes()).then_some(Says::Nothing),
            Self::Id(before, after) => within(before, after).filter(|id| is_id(id)).map(Says::Id),
            Self::Pod(before, after) => within(before, after).filter(|p| is_pod(p)).map(Says::Pod),
        }
    }
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Whether this is an id as engines write it.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == DIGITS && is_id_or_begin(text)
}

/// Whether this is an id, or enough of one to name it.
pub(crate) fn is_id_or_begin(text: &str) -> bool {
    (PREFIX..=DIGITS).contains(&text.len()) && text.bytes().all(is_digit)
}

/// Whether this is how a policy names a pod: as [`Container::pod`] has it.
pub(crate) fn is_pod_of_policy(text: &str) -> bool {
    is_pod(text) && !text.contains('_')
}

/// Whether this is what a pod is called: a UID, by systemd's driver with `_`; a digest of 32 digits, for
/// one of a file; or an id of podman's.
fn is_pod(text: &str) -> bool {
    let digits = |part: &str, count: usize| part.len() == count && part.bytes().all(is_digit);
    let is_uid = |between: char| {
        let parts: Vec<&str> = text.split(between).collect();
        parts.len() == 5 && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, n)| digits(part, n))
    };
    digits(text, 32) || digits(text, DIGITS) || is_uid('-') || is_uid('_')
}

/// The lines of a text.
fn hierarchies(text: &[u8]) -> Result<Vec<Hierarchy<'_>>, String> {
    let whole = text.strip_suffix(b"\n").ok_or("its control groups are no whole text")?;
    let lines = whole.split(|byte| *byte == b'\n').map(|line| {
        let (_number, rest) = split(line)?;
        let (controllers, path) = split(rest)?;
        Some(Hierarchy { controllers: std::str::from_utf8(controllers).ok()?, path })
    });
    lines.collect::<Option<_>>().ok_or_else(|| "a line of its control groups is none".into())
}

/// What stands before and after the first colon.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..at], &line[at + 1..]))
}

/// The components of a path; of `/`, none.
fn components<'t>(hierarchy: &Hierarchy<'t>) -> Result<Vec<&'t [u8]>, String> {
    let not_below = || format!("its path by {hierarchy} is not one below the coordinator's root");
    let path = hierarchy.path.strip_prefix(b"/").ok_or_else(not_below)?;
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let components: Vec<_> = path.split(|byte| *byte == b'/').collect();
    match components.iter().any(|c| [&b""[..], b".", b".."].contains(c)) {
        true => Err(not_below()),
        false => Ok(components),
    }
}

impl Hierarchy<'_> {
    fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|c| c == controller)
    }

    /// Whether an engine puts containers into groups of it, with version 1 or with version 2.
    fn is_managed(&self, is_legacy: bool) -> bool {
        match is_legacy {
            true => MANAGED.iter().any(|controller| self.has(controller)),
            false => self.controllers.is_empty(),
        }
    }
}

impl fmt::Display for Hierarchy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.controllers {
            "" => f.write_str("the hierarchy of version 2"),
            controllers => write!(f, "the hierarchy of {controllers}"),
        }
    }
}

/// Body of the fuzz target: true when the text is one of control groups that agree.
#[doc(hidden)]
pub fn fuzz_container(data: &[u8]) -> bool {
    let mut engines = Engines::default();
    for (name, _) in KNOWN {
        engines.add(name, &[]).expect("groups that are known");
    }
    let found = engines.container(data);
    if let Ok(Some(Container { id, pod, .. })) = &found {
        let text = String::from_utf8_lossy(data);
        let begins = |path: &str| path.split('/').skip(2).any(|part| part.contains(id.as_str()));
        assert!(
            is_id(id) && text.lines().any(|line| line.split(':').skip(2).any(begins)),
            "{text}"
        );
        let has = |pod: &str| is_pod_of_policy(pod) && text.replace('_', "-").contains(pod);
        assert!(pod.as_deref().is_none_or(has), "{pod:?}: {text}");
    }
    found.is_ok()
}

#[cfg(test)]
mod tests;
