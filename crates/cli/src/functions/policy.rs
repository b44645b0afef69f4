//! `partywall fn policy`: checks the policy of a function host.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use partywall_fn_host::policy::Policy;

/// What is to be done with a policy.
#[derive(clap::Subcommand)]
pub(crate) enum Order {
    /// Check the policy file of a function host; `fn serve --policy` takes what this takes.
    Check {
        /// The file.
        file: PathBuf,
    },
}

impl Order {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let Self::Check { file } = self;
        crate::say(&checked(file, &read(file)?))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The policy of a file, which nobody else can change.
pub(super) fn read(file: &Path) -> Result<Policy, Box<dyn Error>> {
    let text = partywall_coordinator::Policy::text_of(file)?;
    Ok(Policy::parse(&file.display().to_string(), &text)?)
}

fn checked(file: &Path, policy: &Policy) -> String {
    let owners: Vec<_> = policy.all().map(|rules| rules.owner.as_str()).collect();
    match policy.note() {
        Some(note) => format!("{}: good\nnote: {note}\n", file.display()),
        None => format!("{}: good; its owners are {}\n", file.display(), owners.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_is_good_is_shown_with_its_owners() {
        let said = |text| checked(Path::new("p.toml"), &Policy::parse("p.toml", text).unwrap());
        let owners = said("[owner.web]\n[owner.\"uid:7\"]\n");
        assert_eq!(owners, "p.toml: good; its owners are uid:7, web\n");
        let none = said("");
        assert!(none.starts_with("p.toml: good\nnote: it has no owners"), "{none}");
    }
}
