//! Which services become domains, and what keeps them apart.
//!
//! | wanted | with protection keys | without |
//! | --- | --- | --- |
//! | `protection-keys` | domain, isolation protection-keys | not started |
//! | `prefer` | domain, isolation protection-keys | a process of its own, linked by rings |
//! | `none` | domain, isolation none | the same |
//!
//! On a kernel before Linux 6.12 isolation protection-keys is shared-signal-stacks, and a note says so.
//!
//! So a domain that nothing keeps apart is one that was asked for by name. All domains of a file
//! share one launcher, and therefore one isolation.

use partywall::Isolation;
use partywall_domain::machine::{self, Feature, Finding};

use crate::compose::{At, Link, Service, Wanted};

/// What a domain cannot do without.
pub(crate) const NEEDED: [Feature; 4] =
    [Feature::Fsgsbase, Feature::SyscallUserDispatch, Feature::Seccomp, Feature::Membarrier];

/// What a machine offers to domains.
pub(crate) struct Machine {
    /// What it misses, of all that a domain needs.
    pub(crate) missing: Vec<String>,
    /// What isolation `protection-keys` comes to, and how many domains have it; or why it cannot be had.
    pub(crate) keys: Result<(Isolation, usize), String>,
}

impl Machine {
    /// This one.
    pub(crate) fn look() -> Self {
        let keys = Feature::ProtectionKeys.look();
        Self::of(&NEEDED.map(Feature::look), &keys)
    }

    /// One with these features.
    pub(crate) fn of(findings: &[Finding], keys: &Finding) -> Self {
        let lacks = |f: &&Finding| !f.there && NEEDED.contains(&f.feature);
        let missing = findings.iter().filter(lacks).map(|f| f.feature.to_string()).collect();
        let keys = match keys.there {
            true => machine::keys_come_to().and_then(|fault| Ok((fault, machine::keys_usable()?))),
            false => Err(format!("this machine has no protection keys ({})", keys.seen)),
        };
        Self { missing, keys }
    }
}

/// An isolation that can be asked for of domains, by its name.
pub(crate) fn of_domains(text: &str) -> Result<Isolation, String> {
    let known = [Isolation::None, Isolation::ProtectionKeys];
    let found = known.into_iter().find(|isolation| isolation.to_string() == text);
    found.ok_or_else(|| "domains have `none` or `protection-keys`".to_owned())
}

/// How a service is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// As a process of its own.
    Process,
    /// In the launcher's address space.
    Domain,
}

/// Where all services are to run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Of each service.
    pub(crate) placements: Vec<Placement>,
    /// What keeps the domains apart.
    pub(crate) isolation: Isolation,
    /// What the user should know.
    pub(crate) notes: Vec<String>,
}

/// Decides where services run; an error names the place and the remedy.
pub(crate) fn plan(services: &[Service], machine: &Machine) -> Result<Plan, String> {
    let mut plan = Plan { placements: Vec::new(), isolation: Isolation::None, notes: Vec::new() };
    let mut first: Option<(&Service, Isolation)> = None;
    let mut domains = 0;
    for service in services {
        let Link::Domain(wanted) = &service.link else {
            plan.placements.push(Placement::Process);
            continue;
        };
        let isolation = match resolve(wanted, machine)? {
            Ok(isolation) => isolation,
            Err(why) => {
                let what = "started as a process of its own, linked by rings";
                plan.notes.push(format!("{}: {what}: {why}", wanted.place));
                plan.placements.push(Placement::Process);
                continue;
            }
        };
        let (other, before) = *first.get_or_insert((service, isolation));
        if before != isolation {
            return Err(format!(
                "{}: isolation `{isolation}`, but `{}` has `{before}`, and all domains of a file \
                 share one launcher and so one isolation; give them the same",
                wanted.place, other.name
            ));
        }
        domains += 1;
        if let (true, Ok((_, most))) = (isolation != Isolation::None, &machine.keys)
            && domains > *most
        {
            return Err(format!(
                "{}: the protection keys of this machine keep {most} domains apart, and this is \
                 one more; give some `link: ring`",
                wanted.place
            ));
        }
        if isolation == Isolation::SharedSignalStacks && domains == 1 {
            plan.notes.push(format!(
                "{}: isolation `{isolation}`: on this kernel, older than Linux 6.12, the stacks of \
                 signal handlers are open to all domains, and a stray write there can end another one",
                wanted.place
            ));
        }
        plan.isolation = isolation;
        plan.placements.push(Placement::Domain);
    }
    Ok(plan)
}

/// What one domain gets; the inner error says why it is to be a process of its own.
fn resolve(wanted: &At<Wanted>, machine: &Machine) -> Result<Result<Isolation, String>, String> {
    let needs = match &machine.missing[..] {
        [] => None,
        missing => Some(format!("this machine lacks {}", missing.join(", "))),
    };
    let fault = match (&needs, &machine.keys) {
        (Some(why), _) | (None, Err(why)) => Err(why.clone()),
        (None, Ok((fault, _))) => Ok(*fault),
    };
    let place = &wanted.place;
    match (wanted.value, fault, needs) {
        (Wanted::Prefer, fault, _) => Ok(fault),
        (_, _, Some(why)) => Err(format!(
            "{place}: {why}, which domains cannot do without; write `link: ring` (see `partywall \
             doctor`)"
        )),
        (Wanted::None, ..) => Ok(Ok(Isolation::None)),
        (Wanted::ProtectionKeys, Ok(isolation), _) => Ok(Ok(isolation)),
        (Wanted::ProtectionKeys, Err(why), _) => Err(format!(
            "{place}: isolation `protection-keys` needs protection keys: {why}; write `isolation: prefer` \
             for a process of its own where there are none, or `isolation: none` for domains that \
             nothing keeps apart (see `partywall doctor`)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compose;

    fn machine(keys: Result<usize, &str>, missing: &[&str]) -> Machine {
        let missing = missing.iter().map(ToString::to_string).collect();
        let keys = keys.map(|most| (Isolation::ProtectionKeys, most));
        Machine { missing, keys: keys.map_err(str::to_owned) }
    }

    fn planned(links: &[&str], machine: &Machine) -> Result<Plan, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("compose.yaml");
        let services = links
            .iter()
            .enumerate()
            .map(|(n, link)| format!("  s{n}:\n    x-partywall: {{program: p, {link}}}\n"));
        std::fs::write(&path, format!("services:\n{}", services.collect::<String>())).unwrap();
        let services = compose::load(&path, &|_| None).unwrap().services;
        let prefix = format!("{}/", dir.path().display());
        plan(&services, machine).map_err(|e| e.replace(&prefix, ""))
    }

    const FAULT: &str = "link: domain";
    const PREFER: &str = "link: domain, isolation: prefer";
    const NONE: &str = "link: domain, isolation: none";
    const RING: &str = "link: ring";

    #[test]
    fn with_keys_fault_and_prefer_are_the_same() {
        let plan = planned(&[FAULT, RING, PREFER], &machine(Ok(2), &[])).unwrap();
        use Placement::{Domain, Process};
        assert_eq!(plan.placements, [Domain, Process, Domain]);
        assert_eq!((plan.isolation, plan.notes.len()), (Isolation::ProtectionKeys, 0));
        let error = planned(&[FAULT, PREFER, FAULT], &machine(Ok(2), &[])).unwrap_err();
        assert!(error.starts_with("compose.yaml:7: services.s2.x-partywall.link: "), "{error}");
        assert!(error.contains("keep 2 domains apart"), "{error}");
    }

    #[test]
    fn without_keys_there_is_no_bare_domain_but_by_name() {
        let none = machine(Err("no keys here"), &[]);
        let error = planned(&[RING, FAULT], &none).unwrap_err();
        assert!(error.starts_with("compose.yaml:5: services.s1.x-partywall.link: "), "{error}");
        for part in ["needs protection keys: no keys here", "isolation: prefer", "isolation: none"]
        {
            assert!(error.contains(part), "{error}");
        }
        let plan = planned(&[PREFER, NONE], &none).unwrap();
        assert_eq!(plan.placements, [Placement::Process, Placement::Domain]);
        assert_eq!(plan.isolation, Isolation::None);
        assert_eq!(
            plan.notes.concat().split_once("/compose.yaml").unwrap().1,
            ":3: services.s0.x-partywall.isolation: started as a process of its own, linked by \
             rings: no keys here"
        );
    }

    #[test]
    fn on_an_old_kernel_isolation_fault_has_another_name_and_a_note() {
        let shared = Isolation::SharedSignalStacks;
        let old = Machine { missing: Vec::new(), keys: Ok((shared, 2)) };
        let plan = planned(&[RING, FAULT, PREFER], &old).unwrap();
        assert_eq!((plan.isolation, plan.notes.len()), (shared, 1), "{plan:?}");
        let note = &plan.notes[0];
        assert!(note.contains("compose.yaml:5: services.s1.x-partywall.link: "), "{note}");
        assert!(note.contains("`shared-signal-stacks`") && note.contains("6.12"), "{note}");
        let error = planned(&[FAULT, PREFER, FAULT], &old).unwrap_err();
        assert!(error.contains("keep 2 domains apart"), "{error}");
    }

    #[test]
    fn domains_of_one_file_have_one_isolation() {
        let error = planned(&[NONE, PREFER], &machine(Ok(9), &[])).unwrap_err();
        assert!(error.contains("isolation `protection-keys`, but `s0` has `none`"), "{error}");
        assert!(error.starts_with("compose.yaml:5: "), "{error}");
    }

    #[test]
    fn a_machine_that_cannot_have_domains_says_what_it_lacks() {
        let old = machine(Ok(9), &["FSGSBASE"]);
        for link in [NONE, FAULT] {
            let error = planned(&[link], &old).unwrap_err();
            assert!(error.contains("lacks FSGSBASE") && error.contains("link: ring"), "{error}");
        }
        assert_eq!(planned(&[PREFER], &old).unwrap().placements, [Placement::Process]);
    }
}
