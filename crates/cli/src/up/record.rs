//! What services an `up` runs, for `partywall ps`: a file beside its coordinator's socket, in the
//! directory that only this user can enter.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A service and how it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its name in the Compose file.
    pub(crate) service: String,
    /// The process that it runs as, while it does.
    pub(crate) pid: Option<u32>,
    /// `process` or `domain`.
    pub(crate) runs_as: String,
    /// `starting`, `running`, `waiting` to be started again, or `ended`.
    pub(crate) state: String,
    /// Whether another one's `calls` name it, or it has served its name.
    pub(crate) serves: bool,
    /// How often it has ended.
    pub(crate) ends: u32,
    /// How it ended last.
    pub(crate) last_end: Option<String>,
}

/// Where the file is, beside this socket.
pub(crate) fn beside(socket: &Path) -> PathBuf {
    socket.with_file_name("services.json")
}

/// Puts the file in place, whole.
pub(crate) fn write(path: &Path, services: &[Record]) -> io::Result<()> {
    let text: String = services
        .iter()
        .map(|s| serde_json::to_string(s).expect("texts and numbers") + "\n")
        .collect();
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

/// What the file says; none when no `up` keeps it.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Record>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
}
