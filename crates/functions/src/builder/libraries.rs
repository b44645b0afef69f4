//! What is linked with functions, compiled once by the builder's compiler, in its sandbox.
//!
//! Each crate of [`crates`] is a job of its own, with those that it needs. A macro is a library for the
//! compiler itself: one job compiles it with all that it is linked with, and its linker finds no library of
//! the host, whose symbols the compiler has anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_bytes::ByteBuf;

use super::{BuildError, CRATE, TARGET, rustc};
use crate::crates::{self, PACKAGES, Package};
use crate::sandbox::{BUILD, Job, Limits, Outcome, TOOLCHAIN};

/// What a crate's job may use up: more than an author's.
fn limits() -> Limits {
    Limits { time: Duration::from_secs(300), ..Limits::default() }
}

/// The libraries that the linker asks for where a macro is linked; there is nothing in them.
const NOTHING: [&str; 8] = ["c", "dl", "gcc_s", "m", "pthread", "rt", "util", "atomic"];

/// The libraries of a builder, by their files.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    compiled: Mutex<BTreeMap<String, ByteBuf>>,
}

/// What a function is linked with.
#[derive(Debug)]
pub(super) struct Linked {
    /// Its files.
    pub(super) files: BTreeMap<String, ByteBuf>,
    /// The compiler's arguments for the function itself: what it may name.
    pub(super) arguments: Vec<String>,
}

impl Libraries {
    /// `partywall-fn` and the crates of these names. What is not there yet is compiled by `run`.
    pub(super) fn linked(
        &self,
        names: &BTreeSet<&str>,
        run: impl Fn(Job) -> Result<Outcome, BuildError>,
    ) -> Result<Linked, BuildError> {
        // Who needs the same waits.
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = BTreeMap::new();
        let mut arguments = vec![format!("-Ldependency={BUILD}")];
        let places = if names.is_empty() { BTreeSet::new() } else { crates::linked(names) };
        for place in places {
            let package = &PACKAGES[place];
            let output = file(place);
            if !compiled.contains_key(&output) {
                let job = match package.is_macro {
                    true => of_macro(place),
                    false => of_crate(place, files.clone()),
                };
                compiled.insert(output.clone(), output_of(&package.name, run(job)?)?);
            }
            if names.contains(package.name.as_str()) {
                arguments.push(format!("--extern={}={output}", package.name));
            }
            files.insert(output.clone(), compiled[&output].clone());
        }
        let has_prost = arguments.iter().find(|argument| argument.starts_with("--extern=prost="));
        let key = format!("partywall_fn{}", if has_prost.is_some() { " prost" } else { "" });
        if !compiled.contains_key(&key) {
            let job = of_ours(has_prost, files.clone());
            compiled.insert(key.clone(), output_of("partywall-fn", run(job)?)?);
        }
        arguments.push(format!("--extern=partywall_fn={OURS}"));
        files.insert(OURS.into(), compiled[&key].clone());
        Ok(Linked { files, arguments })
    }
}

const OURS: &str = "libpartywall_fn.rlib";

fn output_of(name: &str, outcome: Outcome) -> Result<ByteBuf, BuildError> {
    let why = match outcome {
        Outcome::Output(bytes) => return Ok(bytes),
        Outcome::Failed(_, said) => said,
        Outcome::Limit(what) => format!("it takes {what}"),
    };
    Err(BuildError::Library { name: name.into(), why })
}

/// The file of a compiled package.
fn file(place: usize) -> String {
    let package = &PACKAGES[place];
    let kind = if package.is_macro { "so" } else { "rlib" };
    format!("lib{}-{place}.{kind}", word(&package.name))
}

fn word(name: &str) -> String {
    name.replace('-', "_")
}

/// Where a package's sources are, as places in panics have it.
fn directory(package: &Package) -> String {
    format!("{}-{}", package.name, package.version)
}

fn of_ours(prost: Option<&String>, mut files: BTreeMap<String, ByteBuf>) -> Job {
    files.extend(CRATE.map(|(path, text)| (format!("fn/{path}"), ByteBuf::from(text))));
    let mut command = rustc("3", "2024");
    let arguments = "--crate-type rlib --crate-name partywall_fn --cfg partywall_function \
                     --cap-lints allow fn/lib.rs -o libpartywall_fn.rlib";
    command.extend(arguments.split_whitespace().map(String::from));
    if let Some(prost) = prost {
        command.extend(["--cfg=feature=\"prost\"".into(), format!("-Ldependency={BUILD}")]);
        command.push(prost.clone());
    }
    Job::new(files, vec![command], OURS, limits())
}

/// Compiles a crate that is linked with functions.
fn of_crate(place: usize, mut files: BTreeMap<String, ByteBuf>) -> Job {
    let package = &PACKAGES[place];
    files.extend(sources(package));
    let mut command = rustc("3", &package.edition);
    command.push("--crate-type=rlib".into());
    command.extend(arguments(place));
    let mut job = Job::new(files, vec![command], &file(place), limits());
    job.environment = environment(package);
    job
}

/// Compiles a macro, and what it is linked with. A debug build of them is made twice as fast.
fn of_macro(place: usize) -> Job {
    let lld = format!("{TOOLCHAIN}/lib/rustlib/{TARGET}/bin/rust-lld");
    let (mut files, mut commands) = (BTreeMap::new(), Vec::new());
    for library in NOTHING {
        files.insert(format!("nothing/lib{library}.so"), ByteBuf::new());
    }
    for each in crates::of_macro(place) {
        let package = &PACKAGES[each];
        files.extend(sources(package));
        let mut command = vec![format!("{TOOLCHAIN}/bin/rustc")];
        let plain = format!(
            "--sysroot {TOOLCHAIN} --target {TARGET} --edition {} --color never -C debuginfo=0 \
             -C opt-level=0 -C codegen-units=16",
            package.edition
        );
        command.extend(plain.split_whitespace().map(String::from));
        if each == place {
            let linked = format!(
                "--crate-type proc-macro --extern proc_macro -C linker={lld} \
                 -C linker-flavor=ld.lld -C link-self-contained=no -C strip=symbols \
                 -L native=nothing"
            );
            command.extend(linked.split_whitespace().map(String::from));
        } else {
            command.push("--crate-type=rlib".into());
        }
        command.extend(arguments(each));
        commands.push(command);
    }
    let mut job = Job::new(files, commands, &file(place), limits());
    job.environment = environment(&PACKAGES[place]);
    job
}

/// The sources of a package, and what its build script would make.
fn sources(package: &Package) -> BTreeMap<String, ByteBuf> {
    let at = directory(package);
    let source = |(path, text): &(String, String)| {
        (format!("{at}/src/{path}"), ByteBuf::from(text.as_bytes()))
    };
    let mut files: BTreeMap<_, _> = package.files.iter().map(source).collect();
    files.insert(format!("{at}/README.md"), ByteBuf::new());
    let private = format!("__private{}", patch(package));
    let mut text = format!("#[doc(hidden)] pub mod {private} {{ pub use crate::private::*; }}\n");
    match package.name.as_str() {
        "serde_core" => {}
        "serde" => text += &format!("use serde_core::{private} as serde_core_private;\n"),
        _ => return files,
    }
    files.insert("out/private.rs".into(), ByteBuf::from(text));
    files
}

fn patch(package: &Package) -> &str {
    package.version.rsplit('.').next().unwrap_or_default()
}

fn environment(package: &Package) -> BTreeMap<String, String> {
    let patch = ("CARGO_PKG_VERSION_PATCH".to_owned(), patch(package).to_owned());
    BTreeMap::from([("OUT_DIR".to_owned(), format!("{BUILD}/out")), patch])
}

fn arguments(place: usize) -> Vec<String> {
    let package = &PACKAGES[place];
    let name = word(&package.name);
    let mut all = vec![
        format!("--crate-name={name}"),
        "--cap-lints=allow".into(),
        format!("-Cmetadata={place}"),
        format!("-Cextra-filename=-{place}"),
        format!("-Ldependency={BUILD}"),
        format!("{}/src/lib.rs", directory(package)),
    ];
    all.extend(package.features.iter().map(|feature| format!("--cfg=feature=\"{feature}\"")));
    let needs = package.needs.iter();
    all.extend(needs.map(|(name, place)| format!("--extern={name}={}", file(*place))));
    // What its build script would find, with this compiler. SHA-2 is code for any processor, as loops:
    // written out, its constants meet the bytes behind them, which are those of WRPKRU then.
    let cfgs: &[&str] = match package.name.as_str() {
        "proc-macro2" => &["wrap_proc_macro"],
        "serde" => &["if_docsrs_then_no_serde_core"],
        "serde_json" => &["fast_arithmetic=\"64\""],
        "sha2" => &["sha2_backend=\"soft\"", "sha2_backend_soft=\"compact\""],
        _ => &[],
    };
    all.extend(cfgs.iter().map(|cfg| format!("--cfg={cfg}")));
    all
}
