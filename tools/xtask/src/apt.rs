//! Debian's package tool.

use anyhow::Result;

use crate::command::Cmd;

/// `apt-get` that asks nothing.
pub(crate) fn get<const N: usize>(args: [&str; N]) -> Cmd {
    Cmd::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive")
}

/// Whether this user may install packages and renew their lists.
///
/// # Errors
/// When `id` does not run.
pub(crate) fn is_root() -> Result<bool> {
    Ok(Cmd::new("id").args(["-u"]).read()?.trim() == "0")
}
