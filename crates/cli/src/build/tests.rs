use std::fs;

use super::*;
use crate::compose::{self, Compose};

/// A workspace without dependencies: package `pw-first` with two binaries, one of which requires
/// a feature, package `pw-second` with one, and package `pw-lib` with none.
fn make() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let package = |name: &str| format!("[package]\nname = {name:?}\nedition = \"2021\"\n");
    let prints = |text: &str| format!("fn main() {{ println!({text:?}) }}\n");
    file("Cargo.toml", "[workspace]\nmembers = [\"one\", \"two\", \"lib\"]\nresolver = \"2\"\n");
    file(
        "one/Cargo.toml",
        &(package("pw-first")
            + "[features]\nextra = []\n[[bin]]\nname = \"pw-special\"\nrequired-features = \
                 [\"extra\"]\n"),
    );
    file("one/src/bin/pw-plain.rs", &prints("plain"));
    file("one/src/bin/pw-special.rs", &prints("special"));
    file("one/src/bin/pw-shared.rs", &prints("shared"));
    file("two/Cargo.toml", &package("pw-second"));
    file("two/src/main.rs", &prints("second"));
    file("two/src/bin/pw-shared.rs", &prints("shared"));
    file("two/src/bin/pw-broken.rs", "fn main() { missing() }\n");
    file("lib/Cargo.toml", &package("pw-lib"));
    file("lib/src/lib.rs", "");
    dir
}

fn compose(dir: &Path, extensions: &[&str]) -> Compose {
    let mut text = String::from("services:\n");
    for (i, extension) in extensions.iter().enumerate() {
        text.push_str(&format!("  s{i}:\n    x-partywall: {{{extension}}}\n"));
    }
    let path = dir.join("lib/compose.yaml");
    fs::write(&path, text).unwrap();
    compose::load(&path, &|_| None).unwrap()
}

fn now<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(what)
}

/// Builds and gives the executables, or the error without the temporary directory.
fn built(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
    let compose = compose(dir, extensions);
    let root = now(workspace(compose.dir(), &compose.services[0].place)).unwrap();
    let prefix = format!("{}/", root.display());
    let domains = vec![false; compose.services.len()];
    now(build(&compose.services, &domains, false, compose.dir()))
        .map_err(|error| error.to_string().replace(&prefix, ""))
}

#[test]
fn executables_come_in_the_order_of_the_services() {
    let dir = make();
    let wanted = [
        "package: pw-first, bin: pw-special",
        "package: pw-second",
        "package: pw-first, bin: pw-plain",
        "package: pw-second",
    ];
    // The second time nothing is left to compile.
    for _ in 0..2 {
        let executables = built(dir.path(), &wanted).unwrap();
        let printed: Vec<_> = executables
            .iter()
            .map(|path| String::from_utf8(Command::new(path).output().unwrap().stdout).unwrap())
            .collect();
        assert_eq!(printed, ["special\n", "second\n", "plain\n", "second\n"]);
    }
}

#[test]
fn binaries_of_domains_are_static_and_beside_those_of_others() {
    let dir = make();
    let compose = compose(
        dir.path(),
        &["package: pw-second, link: domain", "package: pw-first, bin: pw-plain, link: ring"],
    );
    let programs = now(build(&compose.services, &[true, false], false, compose.dir())).unwrap();
    let kind = |path: &Path| {
        let file = fs::read(path).unwrap();
        partywall_domain::elf::Image::parse(&file).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(kind(&programs[0]), Ok(()));
    assert!(kind(&programs[1]).is_err());
    let output = Command::new(&programs[0]).output().unwrap();
    assert_eq!(output.stdout, b"second\n");
}

#[test]
fn program_files_need_no_workspace_and_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lib")).unwrap();
    fs::write(dir.path().join("lib/there"), "\x7fELF").unwrap();
    let compose = compose(dir.path(), &["program: there"]);
    let found = now(build(&compose.services, &[true], false, compose.dir())).unwrap();
    assert_eq!(found, [dir.path().join("lib/there")]);
    for (program, why) in [("gone", "No such file or directory (os error 2)"), (".", "no file")] {
        let compose = self::compose(dir.path(), &[&format!("program: {program}")]);
        let error = now(build(&compose.services, &[false], false, compose.dir())).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("compose.yaml:3: services.s0.x-partywall.program: "), "{error}");
        assert!(error.contains(why) && error.contains("correct the path"), "{error}");
    }
}

#[test]
fn unknown_packages_and_binaries() {
    let dir = make();
    let error = |extension| built(dir.path(), &["package: pw-second", extension]).unwrap_err();
    assert_eq!(
        error("package: pw-frist, bin: x"),
        "lib/compose.yaml:5: services.s1.x-partywall.package: no package `pw-frist` in the \
         workspace, which has pw-first, pw-second (did you mean `pw-first`?)"
    );
    assert_eq!(
        error("package: pw-first, bin: pw-plane"),
        "lib/compose.yaml:5: services.s1.x-partywall.bin: no binary `pw-plane` in package \
         `pw-first`, which has pw-plain, pw-shared, pw-special (did you mean `pw-plain`?)"
    );
    assert_eq!(
        error("package: pw-first"),
        "lib/compose.yaml:5: services.s1.x-partywall.package: no binary `pw-first` in package \
         `pw-first`, which has pw-plain, pw-shared, pw-special; name the one to run with `bin`"
    );
    assert_eq!(
        error("package: pw-lib, bin: x"),
        "lib/compose.yaml:5: services.s1.x-partywall.bin: no binary `x` in package `pw-lib`, which \
         has none"
    );
}

#[test]
fn two_binaries_of_one_name_are_refused() {
    let dir = make();
    let wanted = ["package: pw-first, bin: pw-shared", "package: pw-second, bin: pw-shared"];
    assert_eq!(
        built(dir.path(), &wanted).unwrap_err(),
        "lib/compose.yaml:5: services.s1.x-partywall.package: binary `pw-shared` is in package \
         `pw-first` and in package `pw-second`, and Cargo writes both to the same file; rename one \
         of them"
    );
}

#[test]
fn failures_of_cargo() {
    let dir = make();
    let error = built(dir.path(), &["package: pw-second, bin: pw-broken"]).unwrap_err();
    assert!(error.starts_with("`cargo build` in "), "{error}");
    assert!(error.ends_with("failed (exit status: 101); its message is above"), "{error}");

    let compose = compose(dir.path(), &["package: pw-second"]);
    fs::write(dir.path().join("two/Cargo.toml"), "[package\n").unwrap();
    let error =
        now(build(&compose.services, &[false], false, compose.dir())).unwrap_err().to_string();
    assert!(error.starts_with("`cargo metadata` in "), "{error}");
}

#[test]
fn directory_without_a_workspace_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lib")).unwrap();
    let compose = compose(dir.path(), &["package: pw-first"]);
    let error =
        now(build(&compose.services, &[false], false, compose.dir())).unwrap_err().to_string();
    assert!(error.contains("services.s0.x-partywall.package: no Cargo workspace in"), "{error}");
    assert!(error.contains("lib/compose.yaml:3: "), "{error}");
}

#[test]
fn messages_that_are_no_executables_are_skipped() {
    let artifact = |name: &str, kind: &str, executable: &str| {
        let target = format!(r#"{{"name":"{name}","kind":["{kind}"]}}"#);
        let start = r#"{"reason":"compiler-artifact","package_id":"p","target":"#;
        format!(r#"{start}{target},"executable":{executable}}}"#)
    };
    let output = [
        "text of a build script".to_owned(),
        r#"{"reason":"build-script-executed","package_id":"p","out_dir":"/o"}"#.to_owned(),
        artifact("l", "lib", "null"),
        artifact("b", "bin", r#""/t/b""#),
        r#"{"reason":"build-finished","success":true}"#.to_owned(),
    ]
    .join("\n");
    let found = executables(output.as_bytes()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[&("p".to_owned(), "b".to_owned())], Path::new("/t/b"));
    let error = executables(b"{broken\n").unwrap_err().to_string();
    assert!(error.starts_with("cannot understand the output of `cargo build`"), "{error}");
}
