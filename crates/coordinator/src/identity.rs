//! Who a process is, from the kernel.
//!
//! connect(2) proves nothing about who speaks later: a process can connect, fork, and exec a
//! trusted program in the parent while the child keeps the socket. So identity is proven by a
//! message (`event_loop` runs this):
//!
//! ```text
//! 1  open a pidfd of the process that connected (SO_PEERPIDFD, else pidfd_open of SO_PEERCRED)
//! 2  read its facts
//! 3  send a nonce; the answer carries SCM_CREDENTIALS
//! 4  read the facts again: nothing may have changed since 2
//! 5  the answer's sender is the process of the pidfd, which is still alive
//! ```
//!
//! A number cannot be reused while its process lives, so 5 makes the number in the answer the
//! process of the pidfd, unless the sender may claim any number: see
//! [`partywall_shm::namespace`]. Then nothing that is read by the number is a fact of whoever
//! answered, and the process has no number, no control group, no container and no program here. 4 catches
//! an exec between 2 and 4, and a move to another container. Every later message must come from the same
//! process. An exec *after* the proof changes nothing that was proven: the facts are those of the process
//! that answered.
//!
//! A process is *contained* when its control groups say that it is in a container ([`crate::container`]), or
//! when it is in another PID, user or control group namespace than the coordinator. Its uid 0 is not that
//! of the host's root, so it is no operator, and has no share of theirs. What cannot be told counts as
//! contained.
//!
//! What its engine says of a container ([`crate::engine`]) is asked once, after 4, of the container that both
//! looks agree on.
//!
//! The digest of the program file is a fact only when the policy asks for it by
//! `evidence = "observed"`: a process chooses what its program file lies on, and one of FUSE
//! answers when its owner likes. So [`Programs`] is used on threads of their own
//! (`measure`), and everything else here comes from the kernel alone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

use partywall_abi::control::{Digest, Identity};
use partywall_abi::security::{Confidentiality, Evidence, Isolation, Security};
use partywall_shm::namespace;
use partywall_shm::socket::{self, Credentials};
use partywall_shm::users::Subordinates;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use sha2::{Digest as _, Sha256};

use crate::container::{Container, Engines};
use crate::engine::{Origin, Told};
use crate::quota::Account;
use crate::signatures::Beside;

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Process number here; none when this PID namespace cannot see it, or when it proves nothing.
    pub pid: Option<u32>,
    /// Digest of the program file.
    pub digest: Digest,
    /// Why the digest is unknown, with the remedy.
    pub digest_error: Option<String>,
    /// Control group path, empty when unknown.
    pub cgroup: String,
    /// The container, by its control groups; none of what an engine has not made.
    pub container: Option<Container>,
    /// What its container was made of, by its engine's word; none where the policy does not go by it.
    pub origin: Option<Origin>,
    /// Why that is not known, with the remedy, where the policy goes by it.
    pub origin_error: Option<String>,
    /// How it is known that it is contained, or why that cannot be told; none of a process of the host.
    pub contained: Option<Cow<'static, str>>,
    /// The name under which the coordinator started it.
    pub started_as: Option<String>,
    /// What was found beside its program then.
    pub signature: Option<Beside>,
    /// Where it was started as a domain.
    pub domain: Option<Domain>,
    /// The user to whom its uid is lent, else its uid.
    pub user: u32,
    /// A child of the coordinator, or a child's, where those are services ([`Reader::confines`]).
    pub descends: bool,
    /// What could not be read of it any more if it was hardened.
    pub fades: Fades,
}

/// What /proc stops telling a coordinator of a process once that is hardened (proc_pid(5)).
///
/// A process proves itself before it is hardened; then to the next coordinator, when it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fades {
    /// Nothing that it tells now.
    Nothing,
    /// Its program file.
    Program,
    /// That, and whether its number can be believed: it is in a PID namespace of its own.
    All,
}

/// A process that shares its memory with others of its launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The launcher, by a number of whoever started it.
    pub launcher: u32,
    /// What keeps its domains apart.
    pub isolation: Isolation,
}

/// Reads facts.
#[derive(Debug, Default)]
pub struct Reader {
    /// Whose the uids are.
    pub subordinates: Subordinates,
    /// Where the control groups of containers are.
    pub engines: Engines,
    /// Every process that descends from this one is a service, and no operator. This process is to
    /// be a reaper of its descendants then (PR_SET_CHILD_SUBREAPER(2const)), or they could escape.
    pub confines: bool,
    /// See [`blind`].
    pub blind: Option<u32>,
}

/// The user of this coordinator, if it cannot look at hardened processes of that user: it is not root, and
/// has no CAP_SYS_PTRACE (ptrace(2), "Ptrace access mode checking").
pub fn blind() -> Option<u32> {
    let own = rustix::process::geteuid();
    let has = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let traces = has.is_ok_and(|has| has.contains(CapabilitySet::SYS_PTRACE));
    (!own.is_root() && !traces).then(|| own.as_raw())
}

impl Reader {
    /// The facts of a process whose user and group the kernel gave with its socket, but for its
    /// program.
    ///
    /// The caller holds a pidfd and checks afterwards that the process is still alive; only then
    /// are these the facts of that process and not of a successor in its number.
    pub fn read(&self, uid: u32, gid: u32, pid: Option<u32>) -> Facts {
        let descends = self.descends(uid, pid);
        let (pid, why) = proven(pid);
        let groups = pid.map(control_groups);
        let (container, contained) = match (pid, &groups) {
            (Some(pid), Some(groups)) => self.contained(pid, groups),
            _ => (None, why.map(Cow::Borrowed)),
        };
        let text = groups.and_then(|groups| String::from_utf8(groups.ok()?).ok());
        Facts {
            uid,
            gid,
            pid,
            digest: Digest::Unknown,
            digest_error: why.map(str::to_string),
            cgroup: text.map(|text| cgroup_path(&text).to_string()).unwrap_or_default(),
            container,
            origin: None,
            origin_error: None,
            contained,
            started_as: None,
            signature: None,
            domain: None,
            user: self.owner(uid),
            descends,
            fades: self.fades(uid, pid),
        }
    }

    fn fades(&self, uid: u32, pid: Option<u32>) -> Fades {
        match pid.filter(|_| self.blind == Some(uid)) {
            Some(pid) if !namespace::has_one_number(pid).unwrap_or(false) => Fades::All,
            Some(_) => Fades::Program,
            None => Fades::Nothing,
        }
    }
}

impl Reader {
    /// The container of a process with these control groups, and how it is known that it is contained.
    fn contained(
        &self,
        pid: u32,
        groups: &io::Result<Vec<u8>>,
    ) -> (Option<Container>, Option<Cow<'static, str>>) {
        let container = match groups {
            Ok(text) => self.engines.container(text),
            // Nobody goes by what they say.
            Err(_) if self.engines.is_empty() => Ok(None),
            Err(e) => Err(format!("its control groups cannot be read: {e}")),
        };
        match container {
            Ok(Some(container)) => {
                let how = format!("it is in {container}");
                return (Some(container), Some(how.into()));
            }
            Ok(None) => {}
            Err(why) => return (None, Some(why.into())),
        }
        let how = match partywall_shm::namespace::elsewhere(pid) {
            Ok(None) => return (None, None),
            Ok(Some(kind)) => {
                format!("it is in another {kind} namespace than the coordinator").into()
            }
            Err(_) => UNREADABLE.into(),
        };
        (None, Some(how))
    }

    /// Whose account a process has before it has proven who it is.
    pub fn account(&self, uid: u32, gid: u32, pid: Option<u32>) -> Account {
        let own = rustix::process::geteuid().as_raw();
        if self.engines.is_empty() && uid != 0 && uid != own {
            return Account::User(self.owner(uid));
        }
        self.read(uid, gid, pid).account(own)
    }

    /// Whether it is what services have started, by all that can be seen.
    pub fn descends(&self, uid: u32, pid: Option<u32>) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.confines && uid == own && pid.is_none_or(descends)
    }

    /// Whose a uid is.
    pub fn owner(&self, uid: u32) -> u32 {
        self.subordinates.owner(uid, rustix::process::geteuid().as_raw())
    }
}

/// Whether a process is a child of this one, or a child's.
fn descends(pid: u32) -> bool {
    let own = std::process::id();
    let mut at = pid;
    // A chain of parents is not longer than there are processes; what cannot be read is no parent.
    while at > 1 {
        let Some(parent) = parent(at) else { return true };
        if parent == own {
            return true;
        }
        at = parent;
    }
    false
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

const UNREADABLE: &str = "its namespaces cannot be read in /proc";

/// The number of a process, or why it has none.
fn proven(pid: Option<u32>) -> (Option<u32>, Option<&'static str>) {
    let Some(pid) = pid else {
        return (None, Some("the process is in a PID namespace that the coordinator cannot see"));
    };
    match namespace::number_is_proven(pid) {
        Ok(true) => (Some(pid), None),
        Ok(false) => {
            let why = "the process is in a PID namespace whose owner can claim any number in it; \
                       remedy: run it in one that the coordinator's user namespace owns";
            (None, Some(why))
        }
        Err(_) => (None, Some(UNREADABLE)),
    }
}

/// The process that connected, with these credentials; none in a PID namespace that cannot be seen from here.
pub(crate) fn pidfd(socket: BorrowedFd<'_>, of: Credentials) -> Result<Option<OwnedFd>, Errno> {
    if let Some(pidfd) = socket::peer_pidfd(socket) {
        return Ok(Some(pidfd));
    }
    let pid = rustix::process::Pid::from_raw(of.pid as i32);
    let open = |pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    pid.map(open).transpose()
}

/// A program's digest, or why there is none.
pub type Measured = Result<[u8; 32], String>;

impl Facts {
    /// Whether the process may see and change how others call: root, or the coordinator's own user,
    /// but for what the coordinator has started and for what is contained.
    pub fn is_operator(&self, coordinator: u32) -> bool {
        let may = self.uid == 0 || self.uid == coordinator;
        may && self.started_as.is_none() && !self.descends && self.contained.is_none()
    }

    /// To whose account it is charged, unless the policy has one for it.
    pub fn account(&self, coordinator: u32) -> Account {
        match (&self.container, &self.started_as) {
            (Some(container), _) => Account::Container(container.clone()),
            (None, Some(name)) => Account::Service(name.clone()),
            (None, None) if self.descends => Account::Descendants,
            (None, None) if self.contained.is_some() && [0, coordinator].contains(&self.user) => {
                Account::Contained(self.user)
            }
            (None, None) => Account::User(self.user),
        }
    }

    /// The same with what was read of the program file.
    pub fn observed(self, measured: Measured) -> Self {
        match measured {
            Ok(digest) => Self { digest: Digest::Observed(digest), ..self },
            Err(why) => Self { digest_error: Some(why), ..self },
        }
    }

    /// The same with what its engine says of its container.
    pub fn told(self, told: Told) -> Self {
        let (origin, origin_error) = match told {
            Ok(origin) => (Some(origin), None),
            Err(why) => (None, Some(why)),
        };
        Self { origin, origin_error, ..self }
    }

    /// The same for a process that the coordinator has started from a sealed copy.
    pub fn started(
        self,
        name: String,
        digest: [u8; 32],
        signature: Beside,
        domain: Option<Domain>,
    ) -> Self {
        // That does not come from /proc, and it proves itself to no other coordinator.
        let (digest, fades) = (Digest::Started(digest), Fades::Nothing);
        let (started_as, signature) = (Some(name), Some(signature));
        Self { digest, started_as, signature, domain, fades, ..self }
    }

    /// What others are told of it.
    pub fn identity(&self, principals: Vec<String>) -> Identity {
        let mut identity = Identity::new(self.uid, self.gid);
        identity.pid = self.pid;
        identity.digest = self.digest;
        identity.cgroup.clone_from(&self.cgroup);
        identity.container = self.container.as_ref().map(|c| c.id.clone()).unwrap_or_default();
        if let Some(Origin { image, compose, .. }) = &self.origin {
            identity.image.clone_from(image);
            identity.compose = compose.clone().unwrap_or_default();
        }
        identity.principals = principals;
        identity
    }

    /// How it is known who the process is.
    pub fn evidence(&self) -> Evidence {
        match self.digest.evidence() {
            Evidence::Observed if self.origin.is_some() => Evidence::Image,
            evidence => evidence,
        }
    }

    /// Whether both are domains of one launcher, so that calls can go by a gate.
    pub fn shares_launcher(&self, other: &Self) -> bool {
        matches!((self.domain, other.domain), (Some(a), Some(b)) if a.launcher == b.launcher)
    }

    /// What protects a link through memory between this process and another one, if each is closed to
    /// other processes of its user.
    pub fn security_with(&self, other: &Self) -> Security {
        let isolation = match (self.domain, other.domain) {
            (Some(a), Some(b)) if a.launcher == b.launcher => a.isolation.min(b.isolation),
            _ => Isolation::Process,
        };
        // An outbox that a domain has mapped is in the address space of its launcher's other domains.
        let confidentiality = match self.domain.or(other.domain) {
            Some(_) => Confidentiality::Space,
            None => Confidentiality::Host,
        };
        Security::new(isolation, confidentiality, self.evidence().min(other.evidence()))
    }
}

/// Measures program files, remembering digests of those that have not changed.
#[derive(Default)]
pub struct Programs {
    digests: Mutex<HashMap<FileKey, [u8; 32]>>,
}

/// Device, inode, change time (s, ns) and size.
type FileKey = (u64, u64, i64, i64, u64);

/// Largest program file that is read.
const LARGEST_PROGRAM: u64 = 256 * 1024 * 1024;
/// Digests that are remembered.
const REMEMBERED: usize = 1024;
/// Bytes of /proc/PID/cgroup that are too many: a path of 4 KiB for each hierarchy, of which there are fewer
/// than 30.
const LONGEST_GROUPS: u64 = 128 * 1024;

impl Programs {
    /// Measures the program of a process. Blocks for as long as the file's file system likes.
    pub fn measure(&self, pid: u32) -> Measured {
        self.read(pid).map_err(|e| unreadable(pid, &e))
    }

    fn read(&self, pid: u32) -> io::Result<[u8; 32]> {
        let digests = || self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = File::open(format!("/proc/{pid}/exe"))?;
        let m = file.metadata()?;
        if m.len() > LARGEST_PROGRAM {
            let text = format!("over {LARGEST_PROGRAM} bytes, which is too large to be measured");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let key = (m.dev(), m.ino(), m.ctime(), m.ctime_nsec(), m.len());
        if let Some(digest) = digests().get(&key) {
            return Ok(*digest);
        }
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 256 * 1024];
        let mut left = LARGEST_PROGRAM;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n if n as u64 > left => return Err(io::ErrorKind::FileTooLarge.into()),
                n => {
                    left -= n as u64;
                    hash.update(&buffer[..n]);
                }
            }
        }
        let digest = hash.finalize().into();
        let mut digests = digests();
        if digests.len() >= REMEMBERED {
            digests.clear();
        }
        digests.insert(key, digest);
        Ok(digest)
    }
}

fn unreadable(pid: u32, e: &io::Error) -> String {
    if e.kind() == io::ErrorKind::PermissionDenied {
        format!(
            "/proc/{pid}/exe cannot be read: the coordinator needs CAP_SYS_PTRACE, or to be the \
             one that starts the service; or the process is hardened, and was not known by its program when \
             that was done: start it again"
        )
    } else {
        format!("/proc/{pid}/exe: {e}")
    }
}

/// SHA-256 of bytes.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The text of /proc/PID/cgroup, which is not longer than the paths of a process can be.
fn control_groups(pid: u32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/cgroup"))?.take(LONGEST_GROUPS).read_to_end(&mut text)?;
    match text.len() as u64 {
        LONGEST_GROUPS => Err(io::ErrorKind::FileTooLarge.into()),
        _ => Ok(text),
    }
}

/// The path in a /proc/PID/cgroup text: the first one other than `/` of version 2, of version 1's
/// systemd hierarchy, or of any hierarchy, in this order; else `/`. See cgroups(7).
fn cgroup_path(text: &str) -> &str {
    let fields = |line: &'_ str| -> Option<(String, usize)> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some((controllers.to_string(), line.len() - path.len()))
    };
    let find = |wanted: &dyn Fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (controllers, at) = fields(line)?;
            let path = &line[at..];
            (wanted(&controllers) && path != "/").then_some(path)
        })
    };
    find(&|c| c.is_empty())
        .or_else(|| find(&|c| c == "name=systemd"))
        .or_else(|| find(&|_| true))
        .unwrap_or(if text.is_empty() { "" } else { "/" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Stdio;

    #[test]
    fn cgroup_paths_of_both_versions() {
        assert_eq!(cgroup_path("0::/user.slice/a\n"), "/user.slice/a");
        assert_eq!(cgroup_path("5:cpu,cpuacct:/x\n1:name=systemd:/s\n0::/\n"), "/s");
        assert_eq!(cgroup_path("5:cpu,cpuacct:/x:y\n"), "/x:y");
        assert_eq!(cgroup_path("0::/\n"), "/");
        assert_eq!(cgroup_path("nonsense"), "/");
        assert_eq!(cgroup_path(""), "");
    }

    #[test]
    fn the_digest_is_that_of_the_program_and_is_remembered() {
        let programs = Programs::default();
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let measured = programs.measure(std::process::id());
        assert_eq!(measured, Ok(digest(&program)));
        assert_eq!(programs.digests.lock().unwrap().len(), 1);
        assert_eq!(programs.measure(std::process::id()), measured);
        let facts = Reader::default().read(1, 2, Some(std::process::id()));
        assert_eq!(facts.digest, Digest::Unknown);
        assert_eq!(facts.observed(measured).digest, Digest::Observed(digest(&program)));
    }

    #[test]
    fn an_unknown_process_has_no_digest_and_the_reason() {
        let facts = Reader::default().read(1, 2, None);
        assert_eq!((facts.pid, facts.digest), (None, Digest::Unknown));
        assert!(facts.digest_error.unwrap().contains("PID namespace"));
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(unreadable(7, &denied).contains("CAP_SYS_PTRACE"));
    }

    #[test]
    fn process_of_another_namespace_is_no_operator() {
        let own = rustix::process::geteuid().as_raw();
        let reader = Reader::default();
        let here = reader.read(own, 1, Some(std::process::id()));
        assert!(here.is_operator(own) && here.contained.is_none(), "{here:?}");
        assert_eq!(here.account(own), Account::User(own));
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It answers when it is where it is to be.
        child.stdin.as_ref().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let there = reader.read(own, 1, Some(child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(there.pid, Some(child.id()), "its number is proven all the same");
        let how = there.contained.clone().unwrap();
        assert_eq!(how, "it is in another user namespace than the coordinator");
        assert!(!there.is_operator(own) && !there.is_operator(0));
        assert_eq!(there.account(own), Account::Contained(own));
        // What cannot be seen, or not be read, is not taken for the host's.
        for pid in [None, Some(u32::MAX >> 1)] {
            let facts = reader.read(own, 1, pid);
            assert!(facts.contained.is_some() && !facts.is_operator(own), "{facts:?}");
            assert_eq!(facts.account(own), Account::Contained(own));
        }
    }

    #[test]
    fn control_groups_of_an_engine_are_the_container() {
        let mut reader = Reader::default();
        reader.engines.add("docker", &[]).unwrap();
        let pid = std::process::id();
        let contained = |text: &str| reader.contained(pid, &Ok(text.into()));
        let id = "0a".repeat(32);
        let (container, how) = contained(&format!("0::/docker/{id}/x\n"));
        assert_eq!(container.unwrap().id, id);
        assert_eq!(how.unwrap(), "it is in container 0a0a0a0a0a0a of docker");
        assert_eq!(contained("0::/\n"), (None, None));
        let (none, why) = reader.contained(u32::MAX >> 1, &Ok("0::/\n".into()));
        assert_eq!((none, why.as_deref()), (None, Some(UNREADABLE)));
        let (none, why) = contained(&format!("1:devices:/docker/{id}\n2:cpu:/\n0::/\n"));
        assert!(none.is_none() && why.unwrap().contains("disagree"));
        let unreadable = || Err(io::Error::from(io::ErrorKind::FileTooLarge));
        let (none, why) = reader.contained(pid, &unreadable());
        assert!(none.is_none() && why.unwrap().contains("cannot be read"));
        // Where nobody goes by them, they say nothing.
        assert_eq!(Reader::default().contained(pid, &unreadable()), (None, None));
    }

    #[test]
    fn operator_is_no_started_process() {
        let own = rustix::process::geteuid().as_raw();
        let confines = Reader { confines: true, ..Reader::default() };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for (reader, pid, operator) in [
            (&confines, child.id(), false),
            (&confines, std::process::id(), true),
            (&Reader::default(), child.id(), true),
        ] {
            assert_eq!(reader.read(own, 1, Some(pid)).is_operator(own), operator, "{pid}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let other = confines.read(own + 1, 1, Some(std::process::id()));
        assert!(!other.is_operator(own));
    }
}
