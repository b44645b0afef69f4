//! What a function host needs of a machine, each found out by trying it.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partywall_abi::security::Isolation;
use partywall_domain::machine;
use partywall_functions::builder::Toolchain;
use partywall_functions::sandbox::{self, Job, Limits};

/// One thing, and whether it is there.
pub(crate) struct Need {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is for.
    pub(crate) meaning: &'static str,
    /// Whether it is there.
    pub(crate) there: bool,
    /// What was seen, or why not and the remedy.
    pub(crate) seen: String,
}

/// Looks for all of them.
pub(crate) fn look() -> [Need; 4] {
    [compiler(Path::new(super::RUSTC)), workers(), sandbox(), keys()]
}

fn need(
    name: &'static str,
    meaning: &'static str,
    found: Result<String, impl std::fmt::Display>,
) -> Need {
    let there = found.is_ok();
    let seen = found.unwrap_or_else(|why| why.to_string());
    // A compiler's words have lines.
    Need { name, meaning, there, seen: seen.lines().next().unwrap_or_default().to_owned() }
}

fn compiler(rustc: &Path) -> Need {
    let found = Toolchain::of(rustc).map(|found| found.version().to_owned());
    need(
        "compiler",
        "`fn deploy` and `fn test` build; without it a host takes signed images",
        found,
    )
}

fn workers() -> Need {
    let found = super::worker().map(|mut program| program.swap_remove(0));
    need("program of workers", "a function runs in it", found)
}

/// Makes a sandbox, in which nothing is compiled.
fn sandbox() -> Need {
    let tried = || -> Result<String, Box<dyn Error>> {
        let program = super::this_program(super::SANDBOX)?;
        let job = Job {
            toolchain: PathBuf::from("/usr"),
            libraries: Vec::new(),
            files: BTreeMap::new(),
            environment: BTreeMap::new(),
            has_messages: true,
            commands: Vec::new(),
            output: String::new(),
            limits: Limits { time: Duration::from_secs(5), ..Limits::default() },
        };
        sandbox::run(&program, &job)?;
        Ok("user namespaces, Landlock and seccomp keep a process in".into())
    };
    need("sandbox", "the compiler runs in it; nothing is built without", tried())
}

fn keys() -> Need {
    let found = machine::keys_come_to().and_then(|isolation| match isolation {
        Isolation::ProtectionKeys => Ok(format!("isolation {isolation}")),
        _ => Err("functions need closed signal stacks as well (Linux 6.12)".to_owned()),
    });
    let found = found.map_err(|why| format!("isolation {}: {why}", Isolation::None));
    need("protection keys", "keep functions from their worker's memory; a host runs without", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_that_is_not_there_is_named_with_a_remedy() {
        let none = compiler(Path::new("/no/such/rustc"));
        assert!(!none.there && none.seen.contains("`/no/such/rustc`"), "{}", none.seen);
        assert!(none.seen.contains("install Rust"), "{}", none.seen);
    }

    #[test]
    fn each_need_is_told_in_one_line() {
        for need in look() {
            assert!(!need.seen.is_empty() && !need.seen.contains('\n'), "{}", need.name);
        }
    }
}
