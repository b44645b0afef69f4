//! The policy of a project: its services are principals, known by the word of the engine.

use std::fmt::Write as _;
use std::path::Path;

use partywall_abi::control::Grant;
use partywall_coordinator::Policy;
use partywall_coordinator::policy::{ANYONE, PolicyError};

use partywall::Evidence;

use crate::compose::Containers;
use crate::demands::{self, OfService};

/// The policy's text: of the files' `calls`, or of a policy file; checked, so that a mistake is found before
/// anything runs. The engine answers at `api`.
pub(super) fn policy_of(
    project: &str,
    read: &Containers,
    file: Option<&Path>,
    api: &Path,
) -> Result<String, Box<dyn std::error::Error>> {
    if read.services.contains_key(ANYONE) {
        return Err(
            format!("service `{ANYONE}`: that is every process; give it another name").into()
        );
    }
    let engines = engines(api.to_str().ok_or("the path of the engine's socket is not UTF-8")?);
    let (name, mut text) = match file {
        None => ("the policy of `calls`".to_owned(), of_calls(read, &engines)?),
        Some(file) => {
            let calls = read.services.values().flat_map(|service| &service.calls);
            let protos = read.services.values().flat_map(|service| &service.protos);
            let mut places =
                calls.map(|call| &call.place).chain(protos.map(|protos| &protos.place));
            if let Some(place) = places.next() {
                return Err(format!(
                    "{place}: what may be called, and over which links, is said by {} (--policy); write it there \
                     alone",
                    file.display()
                )
                .into());
            }
            (file.display().to_string(), with_engines(Policy::text_of(file)?, &engines))
        }
    };
    for service in read.services.keys() {
        let compose = format!("{project}/{service}");
        let _ = writeln!(text, "\n[principal.{service:?}]\ncompose = {compose:?}");
    }
    Policy::parse(&name, &text).map_err(|e| match (&e, file) {
        // A table of the file's own would have its line told, which is that of the second one.
        (PolicyError::Syntax { text, .. }, Some(_)) if text.contains("duplicate") => format!(
            "{name}: {text}: `partywall compose` adds [principal.NAME] for each service; leave these out"
        ),
        _ => e.to_string(),
    })?;
    Ok(text)
}

/// Whose control groups tell containers, and who is asked of them, unless the policy file says it.
fn engines(api: &str) -> String {
    ["docker", "podman"].map(|engine| format!("[engine.{engine}]\napi = {api:?}\n")).concat()
}

/// What `calls` allow, and nothing else, over links that are as the .proto files of services demand.
fn of_calls(read: &Containers, engines: &str) -> Result<String, String> {
    let mut text =
        format!("# Made by `partywall compose` of the `calls` of Compose files.\n{engines}");
    for (name, service) in &read.services {
        let found = demands::of(&service.protos)?;
        let (protection, require) = found.as_ref().map(of_demand).unwrap_or_default();
        let _ = writeln!(
            text,
            "\n[service.{name:?}]\nregister = [{name:?}]\n{protection}[service.{name:?}.call]"
        );
        for (caller, rights) in &read.services {
            let of_name = rights.calls.iter().filter(|call| call.service == *name);
            let methods: Vec<String> =
                of_name.map(|call| format!("{:?}", call.method.to_string())).collect();
            if !methods.is_empty() {
                let (methods, Grant { descriptors, leases }) = (methods.join(", "), rights.grant);
                let _ = writeln!(
                    text,
                    "{caller:?} = {{ methods = [{methods}], descriptors = {descriptors}, leases = {leases}{require} }}"
                );
            }
        }
    }
    Ok(text)
}

/// What a demand is in a policy: a key of the service, and one of each rule.
fn of_demand(found: &OfService) -> (&'static str, String) {
    let demand = found.demand;
    let require = match found.evidence() {
        Evidence::None => String::new(),
        least => format!(", require = {{ evidence = \"{least}\" }}"),
    };
    let protection = match (demand.seal, demand.sign) {
        // Links with signed messages are sealed as well.
        (_, true) => "sign = \"required\"\n",
        (true, false) => "seal = \"required\"\n",
        (false, false) => "",
    };
    (protection, require)
}

/// A policy file's text, and the engines unless it has some.
fn with_engines(text: String, engines: &str) -> String {
    let has_engines = text.lines().any(|line| line.trim_start().starts_with("[engine."));
    let engines = if has_engines { "" } else { engines };
    format!("{text}\n{engines}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compose::load_containers;

    fn read(text: &str) -> (tempfile::TempDir, Result<Containers, String>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("compose.yaml");
        std::fs::write(&file, text).unwrap();
        let read = load_containers(&[file], &|_| None).map_err(|e| e.to_string());
        (dir, read)
    }

    fn policy(
        read: &Containers,
        file: Option<&Path>,
    ) -> Result<String, Box<dyn std::error::Error>> {
        policy_of("shop", read, file, Path::new("/run/docker.sock"))
    }

    const SHOP: &str = "services:\n  web:\n    image: web\n    read_only: true\n    x-partywall: {calls: \
                        [store/a.B/C, store/D], descriptors: 4, leases: true}\n  store:\n    image: store\n    \
                        x-partywall:\n  db:\n    image: db\n";

    #[test]
    fn calls_of_containers_are_allowed_and_nothing_else() {
        let (_dir, shop) = read(SHOP);
        let text = policy(&shop.unwrap(), None).unwrap();
        let policy_of_shop = Policy::parse("p", &text).unwrap();
        let store = partywall_abi::name::ServiceName::new("store").unwrap();
        let said = |who: &str, method: &str| policy_of_shop.explain(&[who.into()], &store, method);
        assert_eq!(said("web", "/a.B/C").allowed_by.len(), 1);
        assert_eq!(
            (said("web", "/a.B/C").grant, said("web", "/x.Y/D").allowed_by.len()),
            (Grant { descriptors: 4, leases: true }, 1)
        );
        assert!(said("web", "/a.B/E").allowed_by.is_empty());
        assert!(said("store", "/a.B/C").allowed_by.is_empty());
        assert_eq!(said("web", "/a.B/C").served_by, ["store"]);
        assert!(!policy_of_shop.has_principal("db"), "it has no `x-partywall`");
        assert!(text.contains("[principal.\"web\"]\ncompose = \"shop/web\"\n"), "{text}");
        for engine in ["docker", "podman"] {
            let api = policy_of_shop.engines().api(engine).unwrap();
            assert_eq!(api, Path::new("/run/docker.sock"), "{engine}");
        }
    }

    #[test]
    fn links_are_as_proto_files_demand() {
        let dir = tempfile::tempdir().unwrap();
        let made = |option: &str, policy_file: Option<&Path>| {
            let proto = format!(
                "syntax = \"proto3\"; package a; import \"partywall/security.proto\"; message C {{}}\n\
                 service B {{ rpc D(C) returns (C) {{ option (partywall.method_security) = {{ {option} }}; }} }}"
            );
            std::fs::write(dir.path().join("b.proto"), proto).unwrap();
            let file = dir.path().join("compose.yaml");
            let text = "services:\n  web:\n    x-partywall: {calls: [store/a.B/D]}\n  store:\n    x-partywall: \
                        {proto: [b.proto]}\n";
            std::fs::write(&file, text).unwrap();
            let read = load_containers(&[file], &|_| None).unwrap();
            policy(&read, policy_file).map_err(|e| e.to_string())
        };
        let text = made("seal: REQUIRED evidence: IMAGE", None).unwrap();
        let policy = Policy::parse("p", &text).unwrap();
        let store = partywall_abi::name::ServiceName::new("store").unwrap();
        let least = policy.require(&["web".into()], &store);
        assert_eq!(least.to_string(), "none, open, image, sealed", "{text}");
        let text = made("seal: OFF", None).unwrap();
        assert!(!text.contains("seal") && !text.contains("require"), "{text}");
        let policy = Policy::parse("p", &made("sign: REQUIRED", None).unwrap()).unwrap();
        assert_eq!(
            policy.require(&["web".into()], &store).to_string(),
            "none, open, none, sealed, signed"
        );
        let twice = made("seal: REQUIRED", Some(&dir.path().join("policy.toml"))).unwrap_err();
        assert!(twice.contains("and over which links, is said by"), "{twice}");
    }

    #[test]
    fn policy_file_says_all_but_who_the_services_are() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.toml");
        let (_dir, quiet) = read("services:\n  web: {x-partywall: }\n  store: {x-partywall: {}}\n");
        let quiet = quiet.unwrap();
        let rules = |text: &str| {
            std::fs::write(&file, text).unwrap();
            policy(&quiet, Some(&file))
        };
        let text = rules(
            "[principal.host]\nuid = 7\n[service.store]\nregister = ['store']\n[service.store.call]\n\
             web = ['*']\nhost = ['*']\n",
        );
        let parsed = Policy::parse("p", &text.unwrap()).unwrap();
        assert_eq!(parsed.principal_names(), ["host", "store", "web"]);
        let groups = "[engine.docker]\ngroups = ['/shop/{id}']\n";
        let own = rules(&format!("{groups}api = '/run/x.sock'\n")).unwrap();
        assert!(!own.contains("[engine.podman]"), "{own}");
        let silent = rules(groups).unwrap_err().to_string();
        assert!(silent.contains("none can be asked; add `api ="), "{silent}");
        let wrong = rules("\n[service.store]\nregister = ['sotre']\n").unwrap_err().to_string();
        assert!(wrong.contains("policy.toml:3:") && wrong.contains("mean `store`?"), "{wrong}");
        let twice = rules("[principal.web]\nuid = 7\n").unwrap_err().to_string();
        assert!(twice.contains("leave these out"), "{twice}");
        let (_dir, shop) = read(SHOP);
        let both = policy(&shop.unwrap(), Some(&file)).unwrap_err().to_string();
        assert!(
            both.contains("services.web.x-partywall.calls[0]: what may be called, and"),
            "{both}"
        );
    }

    #[test]
    fn mistakes_in_files_for_containers_name_the_place() {
        for (text, part) in [
            ("services:\n  a: {image: x}\n", "compose.yaml:1: no service has an `x-partywall`"),
            (
                "services:\n  a:\n    x-partywall: {calls: [b/*]}\n",
                "compose.yaml:3: services.a.x-partywall.calls",
            ),
            (
                "services:\n  a:\n    x-partywall: {calls: [b/*]}\n  b: {image: x}\n",
                "which may be empty",
            ),
            ("services:\n  a:\n    x-partywal: {}\n", "did you mean `x-partywall`?"),
            (
                "services:\n  a:\n    x-partywall: {descriptors: 17}\n",
                "a number of descriptors, from 0 to 16",
            ),
            (
                "services:\n  a:\n    x-partywall: {leases: true}\n",
                "compose.yaml:3: services.a.x-partywall.leases: a lease crosses as a descriptor",
            ),
            ("services:\n  A_:\n    x-partywall: {}\n", "services.A_"),
        ] {
            let error = read(text).1.map(|_| ()).unwrap_err();
            assert!(error.contains(part), "{error}\n{text}");
        }
    }
}
