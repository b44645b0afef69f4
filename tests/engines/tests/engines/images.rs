//! Programs that have another C library than the host's, or none that is loaded, and calls between images.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engine::{END, Engine, IMAGE, OWN, Project, said, service};

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// The program, built for this target with these flags, beside what the host runs.
fn built(triple: &str, flags: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("run by cargo");
    // With a target of its own, cargo keeps it apart from what has other flags.
    let target = Path::new(END).ancestors().nth(2).expect("cargo's directory of programs");
    let build = ["build", "--quiet", "-p", "partywall-engine-tests", "--bin", "et-end", "--target"];
    let built = Command::new(cargo)
        .args(build)
        .args([triple, "--target-dir"])
        .arg(target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .status()
        .unwrap();
    assert!(built.success(), "the program is not built for {triple}");
    target.join(triple).join("debug/et-end")
}

/// What the program's file says of how it is loaded.
fn headers(program: &Path) -> String {
    said(Command::new("readelf").args(["--wide", "--program-headers", "--dynamic"]).arg(program))
}

/// Two services and their callers: each image is called by the other one, by bytes and by parcels.
fn each_calls_the_other(engine: &Engine, image: &str) {
    let of = |service: String| service.replace(IMAGE, image);
    let calls = |name: &str| format!("x-partywall: {{calls: [{name}/*], descriptors: 4}}");
    let services = [
        service("store", 1001, "serve, store", "x-partywall:"),
        of(service("web", 1002, "idle", &calls("store"))),
        of(service("shelf", 1003, "serve, shelf", "x-partywall:")),
        service("desk", 1004, "idle", &calls("shelf")),
    ];
    let project = Project::new(engine, "images", &services);
    project.up(&[]);
    for (caller, name) in [("web", "store"), ("desk", "shelf")] {
        let mut asks = project.caller(caller, name);
        asks.call_until(1 << 20, "turned true true");
        assert_eq!(asks.call(100), "turned false false", "{caller}");
        let links = project.links();
        let link = links.iter().find(|link| link["caller"]["container"] == project.id(caller));
        let link = link.unwrap_or_else(|| panic!("no link of {caller}: {links:?}"));
        assert_eq!(link["server"]["container"], project.id(name));
    }
}

/// The image is one file that loads nothing: no library, no loader, no shell.
#[test]
fn a_static_program_alone_in_its_image_calls_and_is_called() {
    let program = built(TRIPLE, "-Ctarget-feature=+crt-static");
    let headers = headers(&program);
    assert!(!headers.contains("INTERP") && !headers.contains("NEEDED"), "{headers}");
    let engine = Engine::start();
    let image = "partywall-test:static";
    engine.build(image, OWN, &program, &[]);
    each_calls_the_other(&engine, image);
}

/// The image has another C library than the host, Debian's `musl`, and the program loads that one.
#[test]
fn a_program_with_musl_in_its_image_calls_and_is_called() {
    let target = "x86_64-unknown-linux-musl";
    let dir = tempfile::tempdir().unwrap();
    // Debian has no libgcc_s for it. What that is for, Rust has in an archive.
    let sysroot = said(Command::new("rustc").args(["--print", "sysroot"]));
    let archive = Path::new(sysroot.trim()).join("lib/rustlib").join(target);
    let archive = archive.join("lib/self-contained/libunwind.a");
    assert!(archive.exists(), "{}; remedy: rustup target add {target}", archive.display());
    let unwind = format!("INPUT({})\n", archive.display());
    std::fs::write(dir.path().join("libgcc_s.so"), unwind).unwrap();
    let search = format!("-Lnative={}", dir.path().display());
    let flags = ["-Ctarget-feature=-crt-static", "-Clinker=musl-gcc", &search].join("\x1f");
    let program = built(target, &flags);
    let headers = headers(&program);
    let loader = "/lib/ld-musl-x86_64.so.1";
    assert!(headers.contains(loader), "{headers}");
    let needed: Vec<_> = headers.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(matches!(needed[..], [libc] if libc.contains("[libc.so]")), "{needed:?}");
    let engine = Engine::start();
    let image = "partywall-test:musl";
    engine.build(image, OWN, &program, &[(loader.into(), loader.into())]);
    each_calls_the_other(&engine, image);
}
