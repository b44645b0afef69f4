//! `partywall doctor`: what this machine offers, what links would therefore be like, whether functions can be
//! built and run, and whether a coordinator answers.

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use partywall::{Confidentiality, Evidence, Isolation};
use partywall_domain::machine::{Feature, Finding};

use crate::functions::needs::{self, Need};
use crate::isolation::{Machine, NEEDED};
use crate::socket::Socket;

/// Which coordinator is looked for.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    socket: Socket,
}

/// Prints it.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let found = Feature::ALL.map(Feature::look);
    let others = [cgroups(), huge_pages(), sgx(), engine()];
    let at = arguments.socket.place().map_or_else(String::new, |p| format!(" at {}", p.display()));
    let coordinator = match arguments.socket.ask(partywall::operator::links) {
        Ok(links) => {
            let n = links.len();
            format!("answers{at}; it lists {n} {}", if n == 1 { "link" } else { "links" })
        }
        Err(why) => why.to_string(),
    };
    let needs = of_functions(&needs::look());
    let report = report(&found, &others);
    crate::say(&format!("{report}\n{needs}\nCoordinator:\n  {coordinator}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// What a feature is to domains.
fn meaning(feature: Feature) -> &'static str {
    match feature {
        Feature::ProtectionKeys => "keep domains apart: isolation `protection-keys`",
        Feature::ClosedSignalStacks => "keep domains off each other's signal stacks as well",
        Feature::Fsgsbase => "a thread that goes into another domain has that domain's storage",
        Feature::SyscallUserDispatch => "system calls of a callee are made as its own process",
        Feature::Seccomp => "what is about all domains at once is refused to each",
        Feature::Membarrier => "a domain that ends is closed to all threads at once",
    }
}

/// Something that a machine may offer, and that no domain needs.
struct Other {
    name: &'static str,
    /// What it is to Partywall; none when this version does not use it.
    meaning: Option<&'static str>,
    there: bool,
    seen: String,
}

fn cgroups() -> Other {
    let meaning = Some("the `cgroup` of a policy; of version 1, systemd's hierarchy");
    let (there, seen) = file("/sys/fs/cgroup/cgroup.controllers");
    Other { name: "cgroup v2", meaning, there, seen }
}

fn huge_pages() -> Other {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let (there, seen) = match std::fs::read_to_string(path) {
        Ok(text) => {
            let chosen = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
            (chosen != "never", chosen)
        }
        Err(why) => (false, format!("{path}: {why}")),
    };
    let meaning = Some("arenas of functions over bytes have them");
    Other { name: "huge pages", meaning, there, seen }
}

fn sgx() -> Other {
    let (there, seen) = file("/dev/sgx_enclave");
    Other { name: "SGX", meaning: None, there, seen }
}

fn engine() -> Other {
    let host = std::env::var("DOCKER_HOST").unwrap_or_default();
    let path = host.strip_prefix("unix://").unwrap_or("/var/run/docker.sock");
    let (there, seen) = match UnixStream::connect(path) {
        Ok(_) => (true, format!("listens at {path}")),
        Err(why) => (false, format!("{path}: {why}")),
    };
    let meaning = Some("`partywall compose` runs services by it");
    Other { name: "container engine", meaning, there, seen }
}

fn file(path: &str) -> (bool, String) {
    let there = Path::new(path).exists();
    (there, if there { path.to_owned() } else { format!("no {path}") })
}

fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}

/// A line with what something is for, and one with what was seen.
fn line(name: &str, there: bool, meaning: &str, seen: &str) -> String {
    format!("  {name:<22} {:<4} {meaning}\n  {:<22}      {seen}\n", yes(there), "")
}

/// What a function host finds here.
fn of_functions(needs: &[Need]) -> String {
    let mut out = String::from("Functions on it (`partywall fn`):\n");
    for need in needs {
        out.push_str(&line(need.name, need.there, need.meaning, &need.seen));
    }
    out
}

fn report(findings: &[Finding], others: &[Other]) -> String {
    let mut out = String::from("This machine, and what each is for:\n");
    for finding in findings {
        let need = if NEEDED.contains(&finding.feature) { "domains need it: " } else { "" };
        let meaning = format!("{need}{}", meaning(finding.feature));
        let name = finding.feature.to_string();
        out.push_str(&line(&name, finding.there, &meaning, &finding.seen));
    }
    let mut unused = Vec::new();
    for other in others {
        match other.meaning {
            Some(meaning) => out.push_str(&line(other.name, other.there, meaning, &other.seen)),
            None => unused.push(format!("{} ({})", other.name, yes(other.there))),
        }
    }
    if !unused.is_empty() {
        out.push_str(&format!("  not used by this version: {}\n", unused.join(", ")));
    }
    let keys = findings.iter().find(|finding| finding.feature == Feature::ProtectionKeys);
    let machine = Machine::of(findings, keys.expect("all features were looked for"));
    let bare = "`isolation: none`: nothing keeps domains apart";
    let mut domain = match (&machine.missing[..], &machine.keys) {
        ([], Ok((fault, most))) => vec![
            format!("isolation {fault}, for up to {most} domains of one `up`"),
            format!("{bare}; as many as there is room for"),
        ],
        ([], Err(why)) => vec![
            format!("{bare}, and it is to be asked for by name"),
            format!("not isolation {}: {why}", Isolation::ProtectionKeys),
        ],
        (missing, _) => {
            vec![format!("none here: without {}; write `link: ring`", missing.join(", "))]
        }
    };
    let ring = vec![
        format!("isolation {}: two processes, as the kernel keeps them apart", Isolation::Process),
        format!("confidentiality {}: this host's kernel and root", Confidentiality::Host),
        format!(
            "confidentiality {}, where an end is not hardened: other processes of its user as well",
            Confidentiality::User
        ),
    ];
    let network = vec![
        format!("isolation {}: names that a policy gives an address", Isolation::Process),
        format!(
            "confidentiality {}, of a Unix socket {}",
            Confidentiality::Open,
            Confidentiality::User
        ),
        format!("evidence {}: the identity of who answers is not verified", Evidence::None),
    ];
    if machine.missing.is_empty() {
        domain.push(format!("confidentiality {}: one address space", Confidentiality::Space));
    }
    out.push_str("\nLinks on it:\n");
    for (link, what) in [("ring", ring), ("domain", domain), ("http2", network)] {
        for (n, line) in what.iter().enumerate() {
            let link = if n == 0 { link } else { "" };
            out.push_str(&format!("  {link:<8} {line}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(without: &[Feature]) -> Vec<Finding> {
        let look = |feature: Feature| Finding {
            feature,
            there: !without.contains(&feature),
            seen: "what was seen".into(),
        };
        Feature::ALL.into_iter().map(look).collect()
    }

    fn others() -> [Other; 3] {
        let other = |name, meaning| Other { name, meaning, there: true, seen: "seen".into() };
        [
            other("used", Some("for something")),
            Other { there: false, ..other("SGX", None) },
            engine(),
        ]
    }

    #[test]
    fn every_feature_and_every_link_has_a_line() {
        let report = report(&findings(&[Feature::ProtectionKeys]), &others());
        for feature in Feature::ALL {
            assert!(report.contains(&feature.to_string()), "{report}");
        }
        assert!(report.contains("protection keys        no   keep domains apart"), "{report}");
        assert!(report.contains("used                   yes  for something\n"), "{report}");
        assert!(report.contains("ring     isolation process"), "{report}");
        assert!(report.contains("domain   `isolation: none`: nothing keeps"), "{report}");
        assert!(
            report.contains("not isolation protection-keys: this machine has no protection keys")
        );
    }

    #[test]
    fn each_line_says_what_it_is_for_or_that_it_is_not_used() {
        let report = report(&findings(&[]), &others());
        assert!(report.contains("domains need it: system calls of a callee"), "{report}");
        assert!(report.contains("not used by this version: SGX (no)\n"), "{report}");
    }

    #[test]
    fn doctor_names_what_domains_miss() {
        let report = report(&findings(&[Feature::Fsgsbase, Feature::Seccomp]), &others());
        assert!(report.contains("domain   none here: without FSGSBASE, seccomp;"), "{report}");
    }

    #[test]
    fn what_functions_need_has_a_line_each_with_what_was_seen() {
        let need = |there| Need {
            name: "compiler",
            meaning: "builds",
            there,
            seen: "what was seen".into(),
        };
        let said = of_functions(&[need(true), need(false)]);
        let lines: Vec<_> = said.lines().map(str::trim).collect();
        assert_eq!(lines[1..3], ["compiler               yes  builds", "what was seen"]);
        assert_eq!(lines[3], "compiler               no   builds");
    }

    #[test]
    fn doctor_shows_other_features_as_seen() {
        for other in [cgroups(), huge_pages(), sgx(), engine()] {
            assert!(!other.seen.is_empty(), "{}", other.name);
        }
        let (there, seen) = file("/proc/self/stat");
        assert!(there && seen == "/proc/self/stat", "{seen}");
        assert_eq!(file("/proc/no-such-file"), (false, "no /proc/no-such-file".to_owned()));
    }
}
