//! `cargo xtask licences`: what is linked against the rules of deny.toml.
//!
//! The file is that of cargo-deny, which takes as long to build as the whole workspace; what needs no
//! network of its rules is checked here, from `cargo metadata`: licences, forbidden crates, wildcard
//! versions, sources. A key that this does not know is an error, so no rule is written in vain.
//! Advisories and yanked versions need their data base: `cargo deny check advisories`, where there is
//! a network.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

use crate::workspace::Workspace;

const FILE: &str = "deny.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rules {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Graph {
    targets: Vec<String>,
    all_features: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Severity,
    wildcards: Severity,
    allow_wildcard_paths: bool,
    deny: Vec<Banned>,
}

#[derive(Deserialize, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Severity {
    Allow,
    Warn,
    Deny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Severity,
    unknown_git: Severity,
    allow_registry: Vec<String>,
}

/// Runs the check and prints what it looked at.
///
/// # Errors
/// When a rule is broken, or the file or cargo's metadata cannot be read.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let text = fs::read_to_string(workspace.root.join(FILE)).context(FILE)?;
    let rules: Rules = toml::from_str(&text).context(FILE)?;
    let mut line = vec!["metadata".to_owned(), "--format-version=1".into(), "--locked".into()];
    line.extend(rules.graph.all_features.then(|| "--all-features".to_owned()));
    line.extend(rules.graph.targets.iter().map(|target| format!("--filter-platform={target}")));
    let metadata = serde_json::from_str(&workspace.command("cargo").args(line).read()?)?;
    let packages = linked(&metadata)?;
    let (warnings, faults) = check(&rules, &packages)?;
    if !faults.is_empty() {
        bail!("{FILE} forbids: {}\n  {}", faults.len(), faults.join("\n  "));
    }
    warnings.iter().for_each(|warning| println!("warning: {warning}"));
    println!("licences: {} crates, all allowed", packages.len());
    Ok(())
}

/// The packages of the resolved graph.
fn linked(metadata: &Value) -> Result<Vec<&Value>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("metadata without a graph")?;
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    let resolved = |package: &&Value| nodes.iter().any(|node| node["id"] == package["id"]);
    let found: Vec<_> = packages.iter().filter(resolved).collect();
    ensure!(!found.is_empty(), "the graph has no packages");
    Ok(found)
}

/// Warnings and faults.
fn check(rules: &Rules, packages: &[&Value]) -> Result<(Vec<String>, Vec<String>)> {
    let allowed = rules.licenses.allow.iter().map(|name| {
        Licensee::parse(name).with_context(|| format!("{FILE}: {name:?} is no SPDX licence"))
    });
    let allowed = allowed.collect::<Result<Vec<_>>>()?;
    let (mut warnings, mut faults) = (Vec::new(), Vec::new());
    let mut say = |severity, what: String| match severity {
        Severity::Allow => {}
        Severity::Warn => warnings.push(what),
        Severity::Deny => faults.push(what),
    };
    let mut versions = BTreeMap::<&str, Vec<&str>>::new();
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        let version = package["version"].as_str().context("a package without a version")?;
        versions.entry(name).or_default().push(version);
        if let Some(why) = licence(&allowed, package["license"].as_str()) {
            say(Severity::Deny, format!("{name} {version}: {why}"));
        }
        if let Some(banned) = rules.bans.deny.iter().find(|banned| banned.name == name) {
            say(Severity::Deny, format!("{name} {version}: {}", banned.reason));
        }
        if let Some(source) = package["source"].as_str() {
            let severity = source_rule(&rules.sources, source);
            say(severity, format!("{name} {version}: {source} is not among the sources"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let pathless = dependency["path"].is_null() || !rules.bans.allow_wildcard_paths;
            if dependency["req"] == "*" && pathless {
                let what = format!("{name} {version}: any version of {}", dependency["name"]);
                say(rules.bans.wildcards, what);
            }
        }
    }
    for (name, versions) in versions.into_iter().filter(|(_, versions)| versions.len() > 1) {
        say(rules.bans.multiple_versions, format!("{name}: {}", versions.join(" and ")));
    }
    Ok((warnings, faults))
}

/// What is wrong with a licence.
fn licence(allowed: &[Licensee], expression: Option<&str>) -> Option<String> {
    let Some(expression) = expression else { return Some("it names no licence".to_owned()) };
    let Ok(parsed) = Expression::parse_mode(expression, ParseMode::LAX) else {
        return Some(format!("{expression:?} is no SPDX expression"));
    };
    let fits = parsed.evaluate(|wanted| allowed.iter().any(|licence| licence.satisfies(wanted)));
    (!fits).then(|| format!("its licence {expression:?} is not allowed"))
}

fn source_rule(rules: &Sources, source: &str) -> Severity {
    match source.split_once('+') {
        Some(("registry" | "sparse", url)) => match rules.allow_registry.iter().any(|r| r == url) {
            true => Severity::Allow,
            false => rules.unknown_registry,
        },
        Some(("git", _)) => rules.unknown_git,
        _ => Severity::Deny,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: &str = r#"
[graph]
targets = []
all-features = true
[licenses]
allow = ["MIT", "Apache-2.0"]
[bans]
multiple-versions = "warn"
wildcards = "deny"
allow-wildcard-paths = true
deny = [{ crate = "openssl-sys", reason = "no C cryptography" }]
[sources]
unknown-registry = "deny"
unknown-git = "deny"
allow-registry = ["https://good.example/index"]
"#;

    fn package(name: &str, licence: Option<&str>, source: Option<&str>) -> Value {
        json!({ "name": name, "version": "1.0.0", "license": licence, "source": source,
                "dependencies": [] })
    }

    fn found(packages: &[Value]) -> (Vec<String>, Vec<String>) {
        let rules = toml::from_str(RULES).unwrap();
        check(&rules, &packages.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn what_the_rules_allow_passes() {
        let good = Some("registry+https://good.example/index");
        let mut own = package("own", Some("MIT OR Apache-2.0"), None);
        own["dependencies"] = json!([{ "name": "other", "req": "*", "path": "../other" }]);
        let others = [Some("MIT/Apache-2.0"), Some("GPL-3.0 OR MIT"), Some("(MIT AND Apache-2.0)")];
        let others = others.map(|licence| package("a", licence, good));
        assert_eq!(found(&[&[own], &others[..1]].concat()), (vec![], vec![]));
        assert_eq!(found(&others).1, [""; 0]);
        assert_eq!(found(&others).0, ["a: 1.0.0 and 1.0.0 and 1.0.0"]);
    }

    #[test]
    fn each_broken_rule_names_the_crate() {
        let mut any = package("any", Some("MIT"), None);
        any["dependencies"] = json!([{ "name": "x", "req": "*", "path": null }]);
        let faults = found(&[
            package("gpl", Some("GPL-3.0"), None),
            package("mixed", Some("MIT AND GPL-3.0"), None),
            package("none", None, None),
            package("odd", Some("as you like"), None),
            package("openssl-sys", Some("MIT"), None),
            package("git", Some("MIT"), Some("git+https://good.example/repo")),
            package("bad", Some("MIT"), Some("registry+https://bad.example/index")),
            any,
        ])
        .1;
        let expected = [
            "gpl 1.0.0: its licence \"GPL-3.0\" is not allowed",
            "mixed 1.0.0: its licence \"MIT AND GPL-3.0\" is not allowed",
            "none 1.0.0: it names no licence",
            "odd 1.0.0: \"as you like\" is no SPDX expression",
            "openssl-sys 1.0.0: no C cryptography",
            "git 1.0.0: git+https://good.example/repo is not among the sources",
            "bad 1.0.0: registry+https://bad.example/index is not among the sources",
            "any 1.0.0: any version of \"x\"",
        ];
        assert_eq!(faults, expected);
    }

    #[test]
    fn a_rule_that_is_not_known_is_an_error() {
        let more = format!("{RULES}\n[advisories]\nyanked = \"deny\"\n");
        assert!(toml::from_str::<Rules>(&more).err().unwrap().to_string().contains("advisories"));
        assert!(toml::from_str::<Rules>(&RULES.replace("wildcards", "wildcats")).is_err());
    }
}
