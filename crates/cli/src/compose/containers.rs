//! Compose files whose services a container engine runs: what `x-partywall` says of them, and no more. The
//! engine reads, and checks, the rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use partywall_coordinator::policy::nearest;

use super::error::ComposeError;
use super::field::{Context, Field};
use super::interpolate::Vars;
use super::read::{self, Rights};

/// What Compose files say of services in containers, all files together.
pub struct Containers {
    /// The project's name, of the last file that has one.
    pub name: Option<String>,
    /// What the first file says of the version of its form, which all files of a project have to share.
    pub version: Option<String>,
    /// The services with an `x-partywall`. Where several files have one for a service, their `calls` add up.
    pub services: BTreeMap<String, Rights>,
    /// What the user should know though it is no error.
    pub notes: Vec<String>,
}

/// Reads them, in the order in which the engine puts them on top of each other.
pub fn load_containers(paths: &[PathBuf], vars: Vars<'_>) -> Result<Containers, ComposeError> {
    let mut all =
        Containers { name: None, version: None, services: BTreeMap::new(), notes: vec![] };
    let mut known = Vec::new();
    for path in paths {
        let file: Arc<Path> = path.as_path().into();
        let root = super::tree_of(&file)?;
        let root = Field::root(file.clone(), &root);
        let mut cx = Context { file, vars, notes: Vec::new() };
        for listed in read::containers(&root, &mut cx)? {
            if let Some(rights) = listed.rights {
                let service = all.services.entry(listed.name.clone()).or_default();
                let grant = &mut service.grant;
                grant.descriptors = grant.descriptors.max(rights.grant.descriptors);
                grant.leases |= rights.grant.leases;
                service.calls.extend(rights.calls);
                service.protos.extend(rights.protos);
            }
            known.push(listed.name);
        }
        if let Some(name) = root.get("name")? {
            all.name = Some(name.text("the name of the project", &mut cx)?);
        }
        if let (Some(version), true) = (root.get("version")?, *path == paths[0]) {
            all.version = Some(version.raw_text("the version of the file's form")?.to_owned());
        }
        all.notes.append(&mut cx.notes);
    }
    for call in all.services.values().flat_map(|service| &service.calls) {
        let (place, name) = (call.place.clone(), call.service.clone());
        if !known.contains(&name) {
            let near = nearest(&name, known.iter().map(String::as_str)).map(str::to_owned);
            return Err(ComposeError::UnknownService { place, name, known, near });
        }
        if !all.services.contains_key(&name) {
            let detail = format!(
                "service `{name}` cannot be called, for it has no `x-partywall`; add one to `{name}`, \
                 which may be empty"
            );
            return Err(ComposeError::Value { place, detail });
        }
    }
    if all.services.is_empty() {
        let (file, detail) = (
            paths[0].as_path().into(),
            "no service has an `x-partywall`; give one to each \
             service that calls or is called, which may be empty",
        );
        return Err(ComposeError::Form { file, line: 1, detail });
    }
    Ok(all)
}
