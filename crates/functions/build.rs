//! Packs the sources of the crates that functions may use, as cargo has them (`reviewed/Cargo.toml`). Sources
//! that are not the reviewed ones fail the build.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

#[path = "src/crates/package.rs"]
mod package;

use package::{Package, REVIEWED};

/// What a crate needs for other processors and choices than ours.
const LEFT_OUT: [&str; 1] = ["cpufeatures"];

fn main() {
    if let Err(why) = pack() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

fn pack() -> Result<(), Box<dyn Error>> {
    for path in ["build.rs", "reviewed", "src/crates/package.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let metadata = metadata()?;
    let packages = packages(&metadata)?;
    let unknown: Vec<_> = packages.iter().filter_map(unreviewed).collect();
    if !unknown.is_empty() || packages.len() != REVIEWED.len() {
        let text = "these crates for functions are not those of src/crates/package.rs; review what has \
                    changed in them, then put these lines there:";
        return Err(format!("{text}\n{}", unknown.join("\n")).into());
    }
    let bytes = postcard::to_stdvec(&packages)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("crates"), miniz_oxide::deflate::compress_to_vec(&bytes, 8))?;
    Ok(())
}

fn unreviewed(package: &Package) -> Option<String> {
    let (name, version, digest) = (&package.name, &package.version, digest(package));
    let known = REVIEWED.iter().any(|known| *known == (name, version, &digest));
    (!known).then(|| format!("    ({name:?}, {version:?}, {digest:?}),"))
}

/// SHA-256 over all but what it needs, in hexadecimal digits.
fn digest(package: &Package) -> String {
    let mut digest = Sha256::new();
    let head = [&package.name, &package.version, &package.edition];
    let files = package.files.iter().flat_map(|(path, text)| [path, text]);
    for part in head.into_iter().chain(&package.features).chain(files) {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn metadata() -> Result<Value, Box<dyn Error>> {
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args("metadata --format-version 1 --offline --locked".split(' '));
    // Functions are for this target, whatever this program is for.
    cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let out = cargo.args(["--manifest-path", "reviewed/Cargo.toml"]).output()?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        let text = "has the workspace's Cargo.lock other versions than crates/functions/reviewed?";
        return Err(format!("cargo metadata: {said}\n{text}").into());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

fn list<'v>(value: &'v Value, key: &str) -> Result<&'v Vec<Value>, String> {
    value[key].as_array().ok_or_else(|| format!("cargo metadata: no `{key}`"))
}

fn text(value: &Value, key: &str) -> Result<String, String> {
    let text = value[key].as_str().ok_or_else(|| format!("cargo metadata: no `{key}`"))?;
    Ok(text.to_owned())
}

/// All packages, each behind those that it needs.
fn packages(metadata: &Value) -> Result<Vec<Package>, Box<dyn Error>> {
    let mut nodes = BTreeMap::new();
    for node in list(&metadata["resolve"], "nodes")? {
        nodes.insert(text(node, "id")?, node);
    }
    let mut found = BTreeMap::new();
    for package in list(metadata, "packages")? {
        let id = text(package, "id")?;
        if LEFT_OUT.contains(&text(package, "name")?.as_str()) {
            nodes.remove(&id);
        }
        found.insert(id, package);
    }
    let root = text(&metadata["resolve"], "root")?;
    let (mut places, mut packages) = (BTreeMap::new(), Vec::new());
    while !places.contains_key(&root) {
        let before = places.len();
        for (id, node) in &nodes {
            let mut needs = Some(Vec::new());
            for need in list(node, "deps")? {
                let name = text(need, "name")?;
                let kinds = list(need, "dep_kinds")?;
                if LEFT_OUT.contains(&name.as_str()) || kinds.iter().all(|k| !k["kind"].is_null()) {
                    continue;
                }
                let place = places.get(&text(need, "pkg")?).copied();
                needs =
                    needs.zip(place).map(|(needs, place)| [needs, vec![(name, place)]].concat());
            }
            let Some(needs) = needs.filter(|_| !places.contains_key(id)) else { continue };
            places.insert(id.clone(), packages.len());
            if *id != root {
                packages.push(package(found[id], node, needs)?);
            }
        }
        if places.len() == before {
            return Err("the reviewed crates need each other".into());
        }
    }
    Ok(packages)
}

fn package(
    package: &Value,
    node: &Value,
    needs: Vec<(String, usize)>,
) -> Result<Package, Box<dyn Error>> {
    let is_macro = |target: &Value| target["kind"][0] == "proc-macro";
    let targets = list(package, "targets")?;
    let target = targets.iter().find(|target| target["kind"][0] == "lib" || is_macro(target));
    let target = target.ok_or("a crate without a library")?;
    let features = list(node, "features")?.iter().filter_map(Value::as_str).map(str::to_owned);
    let root = PathBuf::from(text(target, "src_path")?);
    let directory = root.parent().ok_or("a library without a directory")?;
    let mut files = Vec::new();
    read(directory, directory, &mut files)?;
    files.sort();
    Ok(Package {
        name: text(package, "name")?,
        version: text(package, "version")?,
        edition: text(target, "edition")?,
        is_macro: is_macro(target),
        features: features.collect(),
        needs,
        files,
    })
}

fn read(
    root: &Path,
    directory: &Path,
    files: &mut Vec<(String, String)>,
) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            read(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let below = path.strip_prefix(root)?.to_str().ok_or("a path that is no text")?;
            files.push((below.to_owned(), fs::read_to_string(&path)?));
        }
    }
    Ok(())
}
