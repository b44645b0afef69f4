#![allow(unsafe_code, reason = "ioctl(2) on a namespace has no safe wrapper")]
//! Whether a process's number can be believed, and whether it is in this process's namespaces.
//!
//! Whoever has CAP_SYS_ADMIN over a PID namespace may put any number of it into SCM_CREDENTIALS
//! (unix(7)): root of the user namespace that owns it, which any user can make for itself
//! (user_namespaces(7)). So the number in a message proves something only where the process's PID
//! namespace is this one, or is owned by this user namespace, whose root is trusted anyway.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// From linux/nsfs.h: a descriptor of the user namespace that owns a namespace.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// Whether only root of this user namespace, or one above it, can claim to be this process.
///
/// The caller holds a pidfd and checks afterwards that the process still lives. Reads /proc.
///
/// # Errors
/// What open(2) and read(2) say.
pub fn number_is_proven(pid: u32) -> io::Result<bool> {
    let theirs = match File::open(format!("/proc/{pid}/ns/pid")) {
        Ok(theirs) => theirs,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return has_one_number(pid),
        Err(e) => return Err(e),
    };
    let ours = File::open("/proc/self/ns/pid")?;
    if same(&theirs, &ours)? {
        return Ok(true);
    }
    // SAFETY: the ioctl takes no argument and gives a new descriptor.
    let owner = unsafe { libc::ioctl(theirs.as_raw_fd(), NS_GET_USERNS) };
    if owner < 0 {
        return match io::Error::last_os_error() {
            // A user namespace that is not below this one.
            e if e.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            e => Err(e),
        };
    }
    // SAFETY: a descriptor that was just made belongs to nobody else.
    let owner = File::from(unsafe { OwnedFd::from_raw_fd(owner) });
    same(&owner, &File::open("/proc/self/ns/user")?)
}

fn same(a: &File, b: &File) -> io::Result<bool> {
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Which of a process's PID, user and control group namespaces is not this one's; the first of them.
///
/// Who may not look at another user's namespaces goes by what everybody may read: how many numbers the
/// process has, and how its users are mapped. Nothing tells of its control group namespace then.
///
/// The caller holds a pidfd and checks afterwards that the process still lives. Reads /proc.
///
/// # Errors
/// What open(2) and read(2) say.
pub fn elsewhere(pid: u32) -> io::Result<Option<&'static str>> {
    for (kind, file) in [("PID", "pid"), ("user", "user"), ("control group", "cgroup")] {
        // A kernel without namespaces of this kind.
        let Ok(ours) = std::fs::metadata(format!("/proc/self/ns/{file}")) else { continue };
        let theirs = match std::fs::metadata(format!("/proc/{pid}/ns/{file}")) {
            Ok(theirs) => theirs,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return as_all_see_it(pid),
            Err(e) => return Err(e),
        };
        if (theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino()) {
            return Ok(Some(kind));
        }
    }
    Ok(None)
}

fn as_all_see_it(pid: u32) -> io::Result<Option<&'static str>> {
    let users = |of: &str| std::fs::read(format!("/proc/{of}/uid_map"));
    Ok(match (has_one_number(pid)?, users(&pid.to_string())? == users("self")?) {
        (false, _) => Some("PID"),
        (true, false) => Some("user"),
        (true, true) => None,
    })
}

/// Whether the process has one number, that of this PID namespace: the way of who may not look at the
/// process's namespaces, for they are another user's, or it is hardened.
///
/// # Errors
/// What open(2) and read(2) say.
pub fn has_one_number(pid: u32) -> io::Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    Ok(numbers.is_some_and(|n| n.split_whitespace().count() == 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn the_number_of_a_process_of_this_namespace_is_proven() {
        assert!(number_is_proven(std::process::id()).unwrap());
        assert!(has_one_number(std::process::id()).unwrap());
        assert!(number_is_proven(u32::MAX >> 1).is_err());
    }

    #[test]
    fn process_of_another_namespace_is_elsewhere() {
        assert_eq!(elsewhere(std::process::id()).unwrap(), None);
        assert_eq!(as_all_see_it(std::process::id()).unwrap(), None);
        assert!(elsewhere(u32::MAX >> 1).is_err());
        for (flags, kind, to_all) in [
            (&["--user"][..], "user", Some("user")),
            (&["--user", "--pid", "--fork"], "PID", Some("PID")),
            (&["--user", "--map-root-user", "--cgroup"], "user", Some("user")),
        ] {
            // What `cat` runs in, until its input ends.
            let mut command = Command::new("unshare");
            command.args(flags).arg("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.as_ref().unwrap().write_all(b"x").unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let pid = inmost(child.id());
            assert_eq!(elsewhere(pid).unwrap(), Some(kind), "{flags:?}");
            assert_eq!(as_all_see_it(pid).unwrap(), to_all, "{flags:?}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    /// The process itself, or the last one of the chain of its children.
    fn inmost(pid: u32) -> u32 {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().next().map_or(pid, |child| inmost(child.parse().unwrap()))
    }
}
