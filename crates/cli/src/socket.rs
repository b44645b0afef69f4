//! Where a command looks for the coordinator, and what it says when there is none.

use std::error::Error;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use partywall_shm::socket::variable;

/// Longest path of a Unix socket, in bytes: `sun_path` of unix(7) less its zero.
pub(crate) const LONGEST: usize = 107;

/// The coordinator that a command asks.
#[derive(clap::Args)]
pub(crate) struct Socket {
    /// Where the coordinator listens; looked for in the usual places unless given.
    ///
    /// These are PARTYWALL_SOCKET, $XDG_RUNTIME_DIR/partywall/coordinator.sock if it is there, else
    /// /run/partywall/coordinator.sock.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// How a path was come by.
enum From {
    Flag,
    Variable,
    /// The usual places; the one of the user, which is not there, if it was looked for.
    Usual(Option<PathBuf>),
}

impl Socket {
    /// The one at this path.
    pub(crate) fn at(path: &Path) -> Self {
        Self { socket: Some(path.into()) }
    }

    /// Asks the coordinator; an error says which socket was asked, why that one and what to do.
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(Option<&Path>) -> Result<T, partywall::Error>,
    ) -> Result<T, Box<dyn Error>> {
        if let Some(path) = &self.socket {
            check(path, "--socket")?;
        }
        question(self.socket.as_deref()).map_err(|error| match error {
            partywall::Error::NoCoordinator { source, .. } => match self.path() {
                Some((path, from)) => nobody(&path, &from, &source).into(),
                None => format!("no coordinator at descriptor PARTYWALL_FD: {source}").into(),
            },
            other => other.into(),
        })
    }

    /// Where it listens, if that is a path.
    pub(crate) fn place(&self) -> Option<PathBuf> {
        self.path().map(|(path, _)| path)
    }

    /// As `partywall::operator::links` looks for it.
    fn path(&self) -> Option<(PathBuf, From)> {
        if let Some(path) = &self.socket {
            return Some((path.clone(), From::Flag));
        }
        let number = variable("PARTYWALL_FD").and_then(|n| n.to_str()?.parse::<i32>().ok());
        if number.is_some() {
            return None;
        }
        if let Some(path) = variable("PARTYWALL_SOCKET") {
            return Some((path.into(), From::Variable));
        }
        let own =
            variable("XDG_RUNTIME_DIR").map(|d| Path::new(&d).join("partywall/coordinator.sock"));
        Some(match own {
            Some(path) if path.exists() => (path, From::Usual(None)),
            other => ("/run/partywall/coordinator.sock".into(), From::Usual(other)),
        })
    }
}

/// Whether a socket can have this path.
pub(crate) fn check(path: &Path, flag: &str) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    match bytes {
        0 => Err(format!("{flag} is empty; name the coordinator's socket, or leave it out")),
        1..=LONGEST => Ok(()),
        _ => Err(format!(
            "{flag} {}: {bytes} bytes long, and a socket's path has at most {LONGEST}; name a \
             shorter one",
            path.display()
        )),
    }
}

fn nobody(path: &Path, from: &From, source: &std::io::Error) -> String {
    let shown = path.display();
    let origin = match from {
        From::Flag => "given by --socket".to_owned(),
        From::Variable => "given by PARTYWALL_SOCKET".to_owned(),
        From::Usual(None) => "one of the usual places".to_owned(),
        From::Usual(Some(own)) => {
            format!("the usual place, since there is no {}", own.display())
        }
    };
    let empty = std::env::var_os("PARTYWALL_SOCKET").is_some_and(|value| value.is_empty());
    let origin = match from {
        From::Usual(_) if empty => format!("{origin}; PARTYWALL_SOCKET is set, and empty"),
        _ => origin,
    };
    if source.kind() == ErrorKind::PermissionDenied {
        let own = rustix::process::geteuid().as_raw();
        return format!(
            "the coordinator at {shown} ({origin}): user {own} may not reach it, if there is one: {source}; \
             ask as root or as the coordinator's user, or let this user into each directory of the path \
             and write to the socket"
        );
    }
    let why = why(path, source);
    let no_socket = std::fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket());
    let remedy = match from {
        From::Flag | From::Variable if no_socket => "name the socket of one that runs".to_owned(),
        From::Flag | From::Variable => format!(
            "name the socket of one that runs, or start one with `partywall coordinator --socket \
             {shown} --policy FILE`"
        ),
        From::Usual(_) => "name one by --socket or PARTYWALL_SOCKET, or start one with `partywall \
                           coordinator --policy FILE`"
            .to_owned(),
    };
    let mut text = format!("no coordinator at {shown} ({origin}): {why}; {remedy}");
    for run in runs() {
        text.push_str(&format!(
            "\n`partywall up` is running; for its services: export PARTYWALL_SOCKET={}",
            run.display()
        ));
    }
    text
}

fn why(path: &Path, source: &std::io::Error) -> String {
    let bytes = path.as_os_str().len();
    if bytes > LONGEST {
        return format!("{bytes} bytes long, and a socket's path has at most {LONGEST}");
    }
    match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => "nothing is there".into(),
        Err(e) => e.to_string(),
        Ok(found) if found.is_dir() => "this is a directory, and no socket".into(),
        Ok(found) if !found.file_type().is_socket() => "this is a file, and no socket".into(),
        Ok(_) if source.kind() == ErrorKind::ConnectionRefused => {
            "nobody listens there any more".into()
        }
        Ok(_) => source.to_string(),
    }
}

/// Sockets of each `partywall up` that this user runs.
fn runs() -> Vec<PathBuf> {
    let dirs = [variable("XDG_RUNTIME_DIR").map(PathBuf::from), Some(std::env::temp_dir())];
    let own = rustix::process::geteuid().as_raw();
    let entries = dirs.into_iter().flatten().filter_map(|dir| std::fs::read_dir(dir).ok());
    let is_run = |entry: &std::fs::DirEntry| {
        entry.file_name().to_string_lossy().starts_with("partywall-")
            && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own)
    };
    let mut found: Vec<PathBuf> = entries
        .flat_map(|entries| entries.flatten())
        .filter(is_run)
        .map(|entry| entry.path().join("coordinator.sock"))
        .filter(|socket| socket.exists() && partywall::operator::links(Some(socket)).is_ok())
        .collect();
    found.sort();
    found.dedup();
    found.truncate(4);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &Path, from: &From) -> String {
        nobody(path, from, &ErrorKind::ConnectionRefused.into())
    }

    #[test]
    fn socket_error_names_path_its_source_and_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let text = said(dir.path(), &From::Flag);
        assert!(text.contains("(given by --socket): this is a directory, and no socket"), "{text}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let text = said(&file, &From::Variable);
        assert!(text.contains("(given by PARTYWALL_SOCKET): this is a file"), "{text}");
        assert!(!text.contains("set PARTYWALL_SOCKET"), "it is set: {text}");
        let text = said(&dir.path().join("gone"), &From::Usual(Some("/x/y.sock".into())));
        assert!(text.contains("since there is no /x/y.sock"), "{text}");
        assert!(text.contains("nothing is there"), "{text}");
        let socket = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let text = said(&socket, &From::Usual(None));
        assert!(text.contains("nobody listens there any more"), "{text}");
    }

    #[test]
    fn a_socket_that_this_user_may_not_reach_is_not_taken_for_none() {
        let text = nobody(Path::new("/x/y.sock"), &From::Flag, &ErrorKind::PermissionDenied.into());
        assert!(text.contains("may not reach it") && !text.contains("no coordinator"), "{text}");
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused_with_the_limit() {
        let long = PathBuf::from("x".repeat(108));
        let refused = check(&long, "--socket").unwrap_err();
        assert!(refused.contains("108 bytes") && refused.contains("at most 107"), "{refused}");
        assert!(check(Path::new(&"x".repeat(107)), "--socket").is_ok());
        assert!(check(Path::new(""), "--socket").unwrap_err().contains("is empty"));
    }
}
