//! `partywall policy`: checking a policy, asking what it says, having it read again.

mod plain;

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use partywall::{Confidentiality, Evidence, Isolation, Security};
use partywall_abi::name::{MethodPattern, ServiceName};
use partywall_coordinator::Policy;
use partywall_coordinator::policy::{ANYONE, Explanation, did_you_mean};
use partywall_shm::address::Addresses;

use crate::socket::Socket;

/// What is to be done.
#[derive(Subcommand)]
pub(crate) enum Order {
    /// Check a policy file; the coordinator takes what this takes.
    ///
    /// Routes that `seal = "required"` would refuse are listed, and with --socket the open links as well. The
    /// exit status is that of the file alone.
    Check {
        /// The file.
        file: PathBuf,
        /// The coordinator whose open links are looked at; none unless given.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
    /// Say whether a caller may call a method, and why. The exit status is 0 if it may, 1 if not.
    Explain {
        /// The policy file.
        #[arg(long, value_name = "FILE", default_value = "/etc/partywall/policy.toml")]
        policy: PathBuf,
        /// Principals of the policy, with commas: all that the caller is. `anyone` is everybody.
        caller: String,
        /// The name that is called.
        service: String,
        /// The method, `package.Service/Method`.
        method: String,
    },
    /// Have a running coordinator read its policy again. One that cannot be used changes nothing.
    Reload {
        #[command(flatten)]
        socket: Socket,
    },
}

/// Does it, and says what came of it.
pub(crate) fn run(order: &Order) -> Result<ExitCode, Box<dyn Error>> {
    match order {
        Order::Check { file, socket } => {
            let policy = Policy::load(file)?;
            let mut text = checked(file, &policy);
            if let Some(socket) = socket {
                let plain = Socket::at(socket).ask(partywall::operator::plain_links);
                text.push_str(&match plain {
                    Ok(plain) => plain::links(&policy, &plain),
                    Err(error) => format!("note: open links are not known: {error}\n"),
                });
            }
            crate::say(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        Order::Explain { policy, caller, service, method } => {
            let (text, allowed) = explain(policy, caller, service, method)?;
            crate::say(&text)?;
            Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Order::Reload { socket } => {
            let done = socket.ask(partywall::operator::reload_policy)?;
            let (ended, changed) = (done.ended, done.changed);
            crate::say(&format!(
                "the policy was read again and is in force; links ended: {ended}, changed: {changed}\n"
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn checked(file: &Path, policy: &Policy) -> String {
    let mut text =
        format!("{}: good; it speaks of {} names\n", file.display(), policy.names().len());
    for principal in policy.covering_strangers() {
        let _ = writeln!(
            text,
            "note: principal `{principal}` covers every user that has no number here, strangers in containers \
             among them: that is what uid 65534 means (user_namespaces(7))"
        );
    }
    text.push_str(&plain::routes(policy));
    text
}

fn explain(
    file: &Path,
    caller: &str,
    service: &str,
    method: &str,
) -> Result<(String, bool), Box<dyn Error>> {
    let policy = Policy::load(file)?;
    let name = ServiceName::new(service)?;
    let path = format!("/{}", method.trim_start_matches('/'));
    if path.contains('*') {
        let text = "is a pattern; ask for one method, package.Service/Method";
        return Err(format!("`{method}` {text}").into());
    }
    if MethodPattern::new(path.trim_start_matches('/')).is_err() || path.matches('/').count() != 2 {
        return Err(format!("`{method}` is no method; write package.Service/Method").into());
    }
    let principals: Vec<String> = caller.split(',').map(|p| p.trim().to_string()).collect();
    if let Some(unknown) = principals.iter().find(|p| !policy.has_principal(p)) {
        let known = policy.principal_names();
        let near = match Path::new(unknown).is_file() {
            true => "; the policy's file is named by --policy".to_owned(),
            false => did_you_mean(unknown, known.iter().copied()),
        };
        let there = if known.is_empty() { "none".into() } else { known.join(", ") };
        let (file, anyone) = (file.display(), format!("and `{ANYONE}`, which is everybody"));
        return Err(
            format!("{file}: no principal `{unknown}`; it has {there}, {anyone}{near}").into()
        );
    }
    let principals: Vec<_> = principals.into_iter().filter(|p| p != ANYONE).collect();
    let e = policy.explain(&principals, &name, &path);
    let allowed = !e.allowed_by.is_empty();
    let caller = principals.join(" and ");
    let caller = if caller.is_empty() { ANYONE } else { &caller };
    let names = policy.names();
    let text = match names.contains(&name) {
        true => shown(caller, service, method, &e),
        false => format!(
            "{caller} may not call {method} at `{service}`\n  the policy does not speak of `{service}`{}\n",
            did_you_mean(service, names.iter().map(|name| name.as_str()))
        ),
    };
    Ok((text, allowed))
}

fn shown(caller: &str, service: &str, method: &str, e: &Explanation) -> String {
    let mut text = String::new();
    let verdict = if e.allowed_by.is_empty() { "may not call" } else { "may call" };
    let _ = writeln!(text, "{caller} {verdict} {method} at `{service}`");
    for (principal, pattern) in &e.allowed_by {
        let _ = writeln!(text, "  [service.{service}.call] {principal} = [\"{pattern}\"]");
    }
    let required = required(e.require);
    if !required.is_empty() {
        let _ = writeln!(text, "  its links to `{service}` have at least {}", required.join(", "));
    }
    if !e.grant.is_none() {
        let beside = format!("up to {} beside each message", e.grant.descriptors);
        let _ = writeln!(text, "  descriptors may cross on its links to `{service}`, {beside}");
    }
    if e.grant.leases {
        let _ = writeln!(
            text,
            "  leases may be among them: memory that both ends write, at any moment"
        );
    }
    if e.allowed_by.is_empty() {
        let all: Vec<String> = e.methods.patterns().iter().map(ToString::to_string).collect();
        let what = if all.is_empty() { "nothing".into() } else { all.join(", ") };
        let _ = writeln!(text, "  at `{service}` it may call: {what}");
        let whom = match caller {
            ANYONE => {
                "`anyone`, or for a principal that the caller is: [principal.NAME] with `uid = N`"
            }
            _ => "one of its principals",
        };
        let _ =
            writeln!(text, "  remedy: under [service.{service}.call] list \"{method}\" for {whom}");
    }
    let below = |url: &str| Addresses::parse(url).ok()?.security().shortfall(&e.require);
    match (&e.served_by[..], &e.url) {
        ([], None) => {
            let _ = writeln!(text, "  nobody may serve `{service}`, and [names] has no address");
        }
        ([], Some(url)) => {
            let _ = writeln!(text, "  `{service}` is reached over the network, at {url}");
        }
        (who, url) => {
            let _ = writeln!(text, "  `{service}` may be served by {}", who.join(", "));
            if let Some(url) = url {
                let _ = writeln!(text, "  while nobody does, calls go over the network, to {url}");
            }
        }
    }
    if let Some(short) = e.url.as_deref().and_then(below) {
        let _ = writeln!(text, "  this caller's calls do not: {short}");
    }
    text
}

/// The levels that a requirement asks for.
fn required(least: Security) -> Vec<String> {
    let mut required = Vec::new();
    if least.isolation > Isolation::LOWEST {
        required.push(format!("isolation {}", least.isolation));
    }
    if least.confidentiality > Confidentiality::LOWEST {
        required.push(format!("confidentiality {}", least.confidentiality));
    }
    if least.evidence > Evidence::LOWEST {
        required.push(format!("evidence {}", least.evidence));
    }
    required
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explain_shows_required_security() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.toml");
        let text = "[principal.web]\nuid = 1000\n[service.a]\nregister = ['web']\n\
                    [service.a.call.web]\nmethods = ['*']\n\
                    require = { confidentiality = 'host', evidence = 'started' }\n\
                    [service.b.call]\nweb = { methods = ['*'], require = { evidence = 'observed' } }\n\
                    [names]\nb = 'http://h:1'\n";
        std::fs::write(&file, text).unwrap();
        let (said, allowed) = explain(&file, "web", "a", "p.S/M").unwrap();
        assert!(allowed, "{said}");
        let line = "  its links to `a` have at least confidentiality host, evidence started\n";
        assert!(said.contains(line), "{said}");
        let (said, _) = explain(&file, "web", "b", "p.S/M").unwrap();
        let line =
            "  this caller's calls do not: evidence `observed` is required, and there is `none`\n";
        assert!(said.ends_with(line), "{said}");
        assert!(required(Security::LOWEST).is_empty());
    }

    #[test]
    fn explain_shows_that_descriptors_may_cross() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.toml");
        let text = "[principal.web]\nuid = 1000\n[service.a.call]\n\
                    web = { methods = ['*'], descriptors = 3 }\nanyone = ['*']\n\
                    [service.b.call]\nweb = { methods = ['*'], descriptors = 2, leases = true }\n";
        std::fs::write(&file, text).unwrap();
        let line = "  descriptors may cross on its links to `a`, up to 3 beside each message\n";
        for (caller, cross) in [("web", true), ("anyone", false)] {
            let (said, _) = explain(&file, caller, "a", "p.S/M").unwrap();
            assert_eq!(said.contains(line), cross, "{said}");
            assert_eq!(said.contains("descriptors"), cross, "{said}");
            assert!(!said.contains("leases"), "{said}");
        }
        let (said, _) = explain(&file, "web", "b", "p.S/M").unwrap();
        let lines =
            "`b`, up to 2 beside each message\n  leases may be among them: memory that both";
        assert!(said.contains(lines), "{said}");
    }

    #[test]
    fn check_names_a_principal_that_covers_strangers() {
        let text = "[principal.nobody]\nuid = 65534\n[principal.web]\nuid = 1000\n\
                    [service.a]\nregister = ['web']\n[service.a.call]\nnobody = ['*']\n";
        let said = checked(Path::new("p.toml"), &Policy::parse("p.toml", text).unwrap());
        assert!(
            said.starts_with("p.toml: good; it speaks of 1 names\nnote: principal `nobody`"),
            "{said}"
        );
        assert!(!said.contains("web"), "{said}");
    }
}
