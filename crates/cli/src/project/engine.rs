//! The container engine: Docker's command, and its Compose.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Where the directory of the socket is in a container; the library looks here in any case.
pub(super) const MOUNTED_AT: &str = "/run/partywall";

/// What Compose calls a container's service and project by.
const SERVICE: &str = "com.docker.compose.service";
const PROJECT: &str = "com.docker.compose.project";

/// How Compose is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Engine {
    /// `docker compose`
    Plugin,
    /// `docker-compose`
    Command,
}

/// Which users the engine's containers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapping {
    /// Those of the host.
    None,
    /// Others (`userns-remap`): the coordinator's user has no number there.
    Remapped,
}

/// What `docker inspect` says of a container, as far as it is needed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    config: Config,
    #[serde(default)]
    mounts: Vec<Mount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Mount {
    #[serde(rename = "Type")]
    kind: String,
    #[serde(default)]
    source: PathBuf,
    #[serde(default)]
    destination: PathBuf,
    #[serde(rename = "RW", default)]
    writable: bool,
}

impl Engine {
    /// What is installed here.
    pub(super) fn find() -> Result<Self, Box<dyn Error>> {
        let here = std::env::var("DOCKER_HOST").unwrap_or_default();
        if !here.is_empty() && !here.starts_with("unix://") {
            return Err(format!(
                "DOCKER_HOST={here}: the containers would be on another host than the coordinator; unset it, \
                 or name a socket of this host by unix://"
            )
            .into());
        }
        let quiet = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if quiet("docker", &["compose", "version"]) {
            return Ok(Self::Plugin);
        }
        if quiet("docker-compose", &["version"]) {
            return Ok(Self::Command);
        }
        Err("neither `docker compose` nor `docker-compose` runs here; install one of them (Debian: \
             docker.io and docker-compose), or run the services as processes with `partywall up`"
            .into())
    }

    /// Whose users containers see; an error where no container could be known.
    pub(super) fn mapping(self) -> Result<Mapping, Box<dyn Error>> {
        let options = docker(&["info", "--format", "{{json .SecurityOptions}}"])?;
        Self::mapping_of(&options).map_err(Into::into)
    }

    fn mapping_of(options: &str) -> Result<Mapping, String> {
        let options: Option<Vec<String>> = serde_json::from_str(options.trim())
            .map_err(|e| format!("docker info: {e}: {}", options.trim()))?;
        let has = |name: &str| {
            let mut parts = options.iter().flatten().flat_map(|option| option.split(','));
            parts.any(|part| part.strip_prefix("name=") == Some(name))
        };
        if has("rootless") {
            return Err("the engine is rootless: its user can write the control groups of its containers, so \
                        that these prove no more than the user; use a rootful engine, or `partywall \
                        coordinator` with a policy that goes by `uid`"
                .into());
        }
        Ok(if has("userns") { Mapping::Remapped } else { Mapping::None })
    }

    /// The ids of a project's containers, by service: those that have the directory mounted, read-only.
    pub(super) fn containers(
        self,
        project: &str,
        mounted: &Path,
    ) -> Result<BTreeMap<String, Vec<String>>, Box<dyn Error>> {
        let of_project = format!("label={PROJECT}={project}");
        let ids = docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &of_project])?;
        let ids: Vec<&str> = ids.split_whitespace().collect();
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let inspect = ["inspect", "--type", "container"].into_iter().chain(ids);
        let text = docker(&inspect.collect::<Vec<_>>())?;
        let inspected: Vec<Inspected> =
            serde_json::from_str(&text).map_err(|e| format!("docker inspect: {e}"))?;
        Ok(by_service(inspected, mounted))
    }
}

fn by_service(inspected: Vec<Inspected>, mounted: &Path) -> BTreeMap<String, Vec<String>> {
    let ours = |mount: &Mount| {
        mount.kind == "bind"
            && mount.source == mounted
            && mount.destination == Path::new(MOUNTED_AT)
            && !mount.writable
    };
    let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for container in inspected.into_iter().filter(|one| one.mounts.iter().any(ours)) {
        let mut labels = container.config.labels.unwrap_or_default();
        if let Some(service) = labels.remove(SERVICE) {
            ids.entry(service).or_default().push(container.id);
        }
    }
    ids.values_mut().for_each(|ids| ids.sort());
    ids
}

/// What Docker's command answers.
fn docker(arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let asked = || format!("docker {}", arguments.join(" "));
    let mut command = Command::new("docker");
    let out =
        command.args(arguments).stdin(Stdio::null()).output().map_err(|e| {
            format!("{}: {e}; install Docker's command (Debian: docker.io)", asked())
        })?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(format!(
            "{}: {}; is the engine running, and may this user ask it?",
            asked(),
            said.trim()
        )
        .into());
    }
    Ok(String::from_utf8(out.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rootless_engine_is_refused_and_a_remapped_one_is_known() {
        let of = |options: &str| Engine::mapping_of(options);
        assert_eq!(of("[\"name=seccomp,profile=default\"]\n"), Ok(Mapping::None));
        assert_eq!(of("null"), Ok(Mapping::None));
        assert_eq!(of("[\"name=seccomp,profile=default\",\"name=userns\"]"), Ok(Mapping::Remapped));
        assert!(of("[\"name=rootless\"]").unwrap_err().contains("no more than the user"));
        assert!(of("what").is_err());
    }

    #[test]
    fn container_without_our_mount_is_nobodys_whatever_its_labels() {
        let one = |id: &str, service: &str, mount: &str| {
            format!(
                r#"{{"Id":"{id}","Config":{{"Labels":{{"{SERVICE}":"{service}"}}}},"Mounts":[{mount}]}}"#
            )
        };
        let mount = |source: &str, at: &str, writable: bool| {
            format!(r#"{{"Type":"bind","Source":"{source}","Destination":"{at}","RW":{writable}}}"#)
        };
        let ours = mount("/run/x/socket", MOUNTED_AT, false);
        let volume = r#"{"Type":"volume","Name":"v","Source":"/run/x/socket","Destination":"/run/partywall","RW":false}"#;
        let list = [
            one("b", "web", &ours),
            one("a", "web", &ours),
            one("c", "store", &format!("{},{ours}", mount("/srv", "/srv", true))),
            one("d", "web", ""),
            one("e", "web", &mount("/run/x", MOUNTED_AT, false)),
            one("f", "web", &mount("/run/x/socket", "/elsewhere", false)),
            one("g", "web", &mount("/run/x/socket", MOUNTED_AT, true)),
            one("h", "web", volume),
            format!(r#"{{"Id":"i","Config":{{"Labels":null}},"Mounts":[{ours}]}}"#),
        ];
        let inspected = serde_json::from_str(&format!("[{}]", list.join(","))).unwrap();
        let ids = by_service(inspected, Path::new("/run/x/socket"));
        let expected = [("store", vec!["c"]), ("web", vec!["a", "b"])];
        let expected =
            expected.map(|(s, ids)| (s.to_owned(), ids.into_iter().map(String::from).collect()));
        assert_eq!(ids, BTreeMap::from(expected));
    }
}
