//! The container engine: Docker's command, and its Compose.

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Where the directory of the socket is in a container; the library looks here in any case.
pub(super) const MOUNTED_AT: &str = "/run/partywall";

/// Where the engine answers, unless DOCKER_HOST says otherwise.
const API: &str = "/run/docker.sock";

const ROOTLESS: &str = "the engine is rootless: its user can write the control groups of its containers, so that these prove no \
     more than the user; use a rootful engine, or `partywall coordinator` with a policy that goes by `uid`";

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

impl Engine {
    /// What is installed here.
    pub(super) fn find() -> Result<Self, Box<dyn Error>> {
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

    /// Whose users containers of the engine at `api` see; an error where no container could be known.
    pub(super) fn mapping(self, api: &Path) -> Result<Mapping, Box<dyn Error>> {
        let host = docker(&["context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])?;
        same(host.trim(), api)?;
        // Podman does not say that it is rootless. The kernel says whose process listens.
        let socket = api.display();
        let asked = |e: std::io::Error| format!("{socket}: {e}; is the engine running?");
        let engine = UnixStream::connect(api).map_err(asked)?;
        let user = rustix::net::sockopt::socket_peercred(engine)?.uid;
        if !user.is_root() {
            return Err(format!("{ROOTLESS} (user {} listens at {socket})", user.as_raw()).into());
        }
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
            return Err(ROOTLESS.into());
        }
        Ok(if has("userns") { Mapping::Remapped } else { Mapping::None })
    }
}

/// The socket of the engine that the run uses, which the coordinator asks.
pub(super) fn api() -> Result<PathBuf, String> {
    api_of(&std::env::var("DOCKER_HOST").unwrap_or_default())
}

fn api_of(here: &str) -> Result<PathBuf, String> {
    match here.strip_prefix("unix://") {
        None if here.is_empty() => Ok(API.into()),
        Some(path) if path.starts_with('/') => Ok(path.into()),
        _ => Err(format!(
            "DOCKER_HOST={here}: the coordinator asks the engine of this host, at a Unix socket, what containers \
             are, and containers of another host would not find it; unset it, or name a socket of this host, such \
             as unix://{API}"
        )),
    }
}

/// Whether Docker's command goes to the engine that the coordinator asks: a docker context may lead
/// elsewhere.
fn same(host: &str, api: &Path) -> Result<(), String> {
    // Where no engine runs there is no socket, and its directory is /run or /var/run all the same.
    let real = |path: &Path| match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(_), Some(dir), Some(name)) => dir.canonicalize().map(|dir| dir.join(name)).ok(),
        (real, ..) => real.ok(),
    };
    match host.strip_prefix("unix://") {
        Some(path) if Path::new(path) == api => Ok(()),
        Some(path) if real(api).is_some_and(|api| real(Path::new(path)) == Some(api)) => Ok(()),
        _ => Err(format!(
            "docker's context leads to the engine at {host}, and the coordinator would ask the one at {}; remedy: \
             set DOCKER_HOST to the engine that is meant",
            api.display()
        )),
    }
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
    fn a_docker_context_leads_to_the_engine_that_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("docker.sock"), dir.path().join("link"));
        std::fs::write(&socket, "").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let host = format!("unix://{}", link.display());
        assert_eq!(same(&host, &socket), Ok(()));
        assert_eq!(same("unix:///no/where", Path::new("/no/where")), Ok(()));
        // /var/run is /run, with an engine or without.
        let run = dir.path().join("run");
        std::os::unix::fs::symlink(dir.path(), &run).unwrap();
        let host = format!("unix://{}", run.join("none").display());
        assert_eq!(same(&host, &dir.path().join("none")), Ok(()));
        for other in ["ssh://user@host", "tcp://host:2375", "unix:///other.sock", ""] {
            let why = same(other, &socket).unwrap_err();
            assert!(why.contains(&format!("at {other},")) && why.contains("DOCKER_HOST"), "{why}");
        }
    }

    #[test]
    fn engine_of_a_run_is_one_of_this_host() {
        let api = |here: &str| api_of(here).map(|api| api.display().to_string());
        assert_eq!(api("").unwrap(), "/run/docker.sock");
        assert_eq!(api("unix:///run/podman/podman.sock").unwrap(), "/run/podman/podman.sock");
        for other in
            ["tcp://h:2375", "ssh://h", "unix://", "unix://docker.sock", "/run/docker.sock"]
        {
            let why = api(other).unwrap_err();
            assert!(
                why.contains(other) && why.contains("such as unix:///run/docker.sock"),
                "{why}"
            );
        }
    }
}
