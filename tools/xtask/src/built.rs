//! Test binaries that cargo built, as its JSON messages tell.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// One test binary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What its tests' names start with in the list of tests that ran.
    pub(crate) prefix: String,
}

impl TestBinary {
    /// Name of the file.
    pub(crate) fn file(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The file name of each binary, and what its tests' names start with.
pub(crate) fn prefixes(binaries: &[TestBinary]) -> BTreeMap<String, String> {
    binaries.iter().map(|binary| (binary.file(), binary.prefix.clone())).collect()
}

/// The test binaries among cargo's messages.
///
/// # Errors
/// When a message cannot be read or is about a package of another workspace.
pub(crate) fn tests(metadata: &Value, messages: &str) -> Result<Vec<TestBinary>> {
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    let mut binaries = Vec::new();
    for message in read(messages)? {
        let Some(executable) = message["executable"].as_str() else { continue };
        if message["profile"]["test"] != true {
            continue;
        }
        let Some(package) = packages.iter().find(|p| p["id"] == message["package_id"]) else {
            bail!("{} is of no package of the workspace", message["package_id"]);
        };
        let name = package["name"].as_str().context("package without name")?.replace('-', "_");
        let target = &message["target"];
        let kind = target["kind"][0].as_str().context("target without kind")?;
        let prefix = if matches!(kind, "test" | "bench" | "example") {
            let target = target["name"].as_str().context("target without name")?;
            format!("{name}::{}", target.replace('-', "_"))
        } else {
            name
        };
        binaries.push(TestBinary { path: executable.into(), prefix });
    }
    Ok(binaries)
}

/// The programs among cargo's messages that tests start: binaries that are no tests.
///
/// # Errors
/// When a message cannot be read.
pub(crate) fn programs(messages: &str) -> Result<Vec<PathBuf>> {
    let mut programs = Vec::new();
    for message in read(messages)? {
        let is_bin = message["target"]["kind"][0] == "bin" && message["profile"]["test"] == false;
        if let (true, Some(executable)) = (is_bin, message["executable"].as_str()) {
            programs.push(executable.into());
        }
    }
    Ok(programs)
}

fn read(messages: &str) -> Result<Vec<Value>> {
    let lines = messages.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).context("message of cargo")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(id: &str, kind: &str, name: &str, test: bool) -> String {
        json!({
            "package_id": id,
            "target": { "kind": [kind], "name": name },
            "profile": { "test": test },
            "executable": format!("some/dir/{name}-01"),
        })
        .to_string()
    }

    #[test]
    fn test_binaries_are_distinguished_from_others() {
        let metadata = json!({ "packages": [{ "id": "p1", "name": "partywall-shm" }] });
        let messages = [
            artifact("p1", "lib", "partywall_shm", true),
            artifact("p1", "test", "ring-model", true),
            artifact("p1", "bin", "tool", false),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = tests(&metadata, &messages.join("\n")).unwrap();
        let expected =
            [("partywall_shm-01", "partywall_shm"), ("ring-model-01", "partywall_shm::ring_model")];
        assert_eq!(prefixes(&found), expected.map(|(f, p)| (f.to_owned(), p.to_owned())).into());
        assert_eq!(found[0].path, PathBuf::from("some/dir/partywall_shm-01"));
        assert!(tests(&metadata, &artifact("p2", "lib", "x", true)).is_err());
        assert_eq!(programs(&messages.join("\n")).unwrap(), [PathBuf::from("some/dir/tool-01")]);
    }
}
