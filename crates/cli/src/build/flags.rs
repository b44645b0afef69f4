//! What makes a program one that can be a domain: position-independent, with its C library inside.
//!
//! Cargo takes rustc's flags from one place only: `CARGO_ENCODED_RUSTFLAGS`, else `RUSTFLAGS`, else
//! the configuration. So ours are put where the user's are.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What domains are built for. Named, so that build scripts and macros do not get the flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// On this target static programs are position-independent (static-pie) as well.
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Cargo's build of the same as programs that can be domains.
pub(super) fn static_pie(mut cargo: Command) -> Command {
    cargo.args(["--target", TARGET]);
    let set = |name: &str| env::var_os(name);
    match with(set("CARGO_ENCODED_RUSTFLAGS"), set("RUSTFLAGS")) {
        Some((name, flags)) => cargo.env(name, flags),
        None => {
            let key = format!("target.{TARGET}.rustflags");
            cargo.args(["--config", &format!("{key}=[\"{STATIC}\"]")])
        }
    };
    cargo
}

/// The environment variable that has the user's flags, with ours behind them.
fn with(encoded: Option<OsString>, plain: Option<OsString>) -> Option<(&'static str, OsString)> {
    let joined = |mut flags: OsString, between: &str| {
        if !flags.is_empty() {
            flags.push(between);
        }
        flags.push(STATIC);
        flags
    };
    match (encoded, plain) {
        (Some(flags), _) => Some(("CARGO_ENCODED_RUSTFLAGS", joined(flags, "\u{1f}"))),
        (None, Some(flags)) => Some(("RUSTFLAGS", joined(flags, " "))),
        (None, None) => None,
    }
}

/// Why such a build may have failed, as the end of a sentence.
pub(super) fn hint(workspace: &Path) -> &'static str {
    let rustc = env::var_os("RUSTC");
    let output = Command::new(rustc.as_deref().unwrap_or(OsStr::new("rustc")))
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let libraries = output.map(|o| String::from_utf8_lossy(&o.stdout).trim_end().to_owned());
    match libraries {
        Ok(path) if !path.is_empty() && !PathBuf::from(&path).is_dir() => {
            "; a domain is built for x86_64-unknown-linux-gnu, which is not installed: run `rustup \
             target add x86_64-unknown-linux-gnu`"
        }
        _ => "; a domain is built with its C library inside, as x86_64-unknown-linux-gnu",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_flags_are_kept_where_they_are() {
        let some = |text: &str| Some(OsString::from(text));
        let flags =
            |encoded, plain| with(encoded, plain).map(|(n, f)| (n, f.into_string().unwrap()));
        assert_eq!(flags(None, None), None);
        assert_eq!(flags(None, some("-Cx -Cy")), Some(("RUSTFLAGS", format!("-Cx -Cy {STATIC}"))));
        assert_eq!(
            flags(some("-Cx\u{1f}-Cy"), some("-Cz")),
            Some(("CARGO_ENCODED_RUSTFLAGS", format!("-Cx\u{1f}-Cy\u{1f}{STATIC}")))
        );
        assert_eq!(flags(some(""), None), Some(("CARGO_ENCODED_RUSTFLAGS", STATIC.to_owned())));
    }
}
