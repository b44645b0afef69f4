//! Which files are compiled, and what is said of those that cannot be.

use super::{Files, texts};
use partywall_build::{Config, FileDescriptorSet, configure};
use prost::Message as _;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::process::Command;

const GREETER: &str = r#"syntax = "proto3";
package hello;
import "texts/name.proto";
import "shared.proto";
service Greeter {
  rpc SayHello(texts.Name) returns (shared.Reply);
}
"#;
const NAME: &str = r#"syntax = "proto3";
package texts;
message Name { string name = 1; }
"#;
const SHARED: &str = r#"syntax = "proto3";
package shared;
message Reply { string text = 1; }
"#;

fn greeter() -> Files {
    Files::of(&[
        ("own/greeter.proto", GREETER),
        ("own/texts/name.proto", NAME),
        ("others/shared.proto", SHARED),
    ])
}

/// What is said of the one file `bad.proto`, whose path is `{}`.
fn said_of(text: impl AsRef<[u8]>) -> Error {
    let files = Files::of(&[("proto/bad.proto", "")]);
    let (path, directory) = (files.path("proto/bad.proto"), files.path("proto"));
    std::fs::write(&path, text).expect("a file");
    // The directory before is looked in as well.
    let includes = [files.out("out"), directory];
    let compiled =
        configure().out_dir(files.path("out")).compile_protos(&[&path], &includes.each_ref());
    let said = compiled.expect_err("a file that cannot be compiled");
    Error::new(said.kind(), said.to_string().replace(&path.display().to_string(), "{}"))
}

#[test]
fn imports_come_from_each_of_several_directories() {
    let files = greeter();
    let out = files.out("out");
    let builder = configure().out_dir(&out).include_file("all.rs");
    let includes = [files.path("own"), files.path("others")];
    builder.compile_protos(&[files.path("own/greeter.proto")], &includes).expect("stubs");
    let texts = texts(&out);
    let names: Vec<_> = texts.keys().map(String::as_str).collect();
    assert_eq!(names, ["all.rs", "hello.rs", "shared.rs", "texts.rs"]);
    assert!(texts["hello.rs"].contains("super::super::texts::Name"), "{}", texts["hello.rs"]);
    for file in &names[1..] {
        assert!(texts["all.rs"].contains(&format!("include!(\"{file}\")")), "{}", texts["all.rs"]);
    }
}

#[test]
fn descriptors_are_written_where_they_are_wanted_alone() {
    let files = greeter();
    let (out, path) = (files.out("out"), files.path("greeter.bin"));
    let builder = configure().out_dir(&out).file_descriptor_set_path(&path);
    let includes = [files.path("own"), files.path("others")];
    builder.compile_protos(&[files.path("own/greeter.proto")], &includes).expect("stubs");
    let made = texts(&out);
    assert_eq!(made.len(), 3, "{:?}", made.keys());

    // They are all that is needed.
    let again = files.out("again");
    let builder = configure().out_dir(&again).file_descriptor_set_path(path).skip_protoc_run();
    builder.compile_protos::<&str>(&[], &[]).expect("stubs");
    assert_eq!(texts(&again), made);
}

#[test]
fn descriptors_in_memory_are_written_where_they_are_wanted() {
    let mut fds = FileDescriptorSet::default();
    fds.file.push(Default::default());
    fds.file[0].name = Some("name.proto".into());
    let files = Files::of(&[]);
    let (path, out) = (files.path("name.bin"), files.out("out"));
    let builder = configure().out_dir(out).file_descriptor_set_path(&path);
    builder.compile_fds(fds.clone()).expect("stubs");
    assert_eq!(std::fs::read(path).expect("descriptors"), fds.encode_to_vec());
}

#[test]
fn well_known_types_of_a_directory_of_imports_come_first() {
    let empty =
        "syntax = \"proto3\";\npackage google.protobuf;\n// Nothing at all.\nmessage Empty {}\n";
    let name = "syntax = \"proto3\";\npackage texts;\nimport \"google/protobuf/empty.proto\";\n\
                message Name { google.protobuf.Empty empty = 1; }\n";
    let files =
        Files::of(&[("proto/name.proto", name), ("own/google/protobuf/empty.proto", empty)]);
    let made = |name: &str, includes: &[PathBuf]| {
        let out = files.out(name);
        let builder = configure().out_dir(&out).compile_well_known_types(true);
        let proto = files.path("proto/name.proto");
        builder.compile_protos(&[proto], includes).expect("stubs");
        let made = texts(&out)["google.protobuf.rs"].clone();
        assert!(made.contains("pub struct Empty"), "{made}");
        made.contains("///")
    };
    // Those that are built in have no comments.
    assert!(!made("built_in", &[files.path("proto")]));
    assert!(made("own_ones", &[files.path("proto"), files.path("own")]));
}

#[test]
fn missing_file_is_named_with_where_it_was_looked_for() {
    let files = greeter();
    let builder = configure().out_dir(files.out("out"));
    let (proto, own) = (files.path("own/greter.proto"), files.path("own"));
    let said = builder.compile_protos(&[&proto], &[&own]).expect_err("no such file");
    assert_eq!(said.kind(), ErrorKind::NotFound);
    let text = format!(
        "there is no file `{}`, neither as such nor in `{}`; remedy: correct the path, which begins in the \
         directory of the package's Cargo.toml",
        proto.display(),
        own.display()
    );
    assert_eq!(said.to_string(), text);
}

#[test]
fn file_outside_of_the_directories_of_imports_is_named() {
    let files = greeter();
    let builder = configure().out_dir(files.out("out"));
    let (proto, others) = (files.path("own/greeter.proto"), files.path("others"));
    let said = builder.compile_protos(&[&proto], &[&others]).expect_err("not below it");
    assert_eq!(said.kind(), ErrorKind::NotFound);
    let text = format!(
        "`{}` is not below a directory of imports (`{}`); remedy: add its directory to them",
        proto.display(),
        others.display()
    );
    assert_eq!(said.to_string(), text);
}

#[test]
fn missing_import_is_named_with_its_line() {
    let files = greeter();
    let builder = configure().out_dir(files.out("out"));
    let own = files.path("own");
    let said =
        builder.compile_protos(&[files.path("own/greeter.proto")], std::slice::from_ref(&own));
    let said = said.expect_err("no such import");
    assert_eq!(said.kind(), ErrorKind::NotFound);
    let text = format!(
        "{0}/greeter.proto:4:1: import 'shared.proto' not found in `{0}`; remedy: add the directory that has it \
         to those of imports, or correct the import",
        own.display()
    );
    assert_eq!(said.to_string(), text);
}

#[test]
fn syntax_error_is_told_with_file_line_and_reason() {
    let said = said_of("syntax = \"proto3\";\nmessage Name {\n  string name 1;\n}\n");
    assert_eq!(said.kind(), ErrorKind::InvalidInput);
    assert_eq!(said.to_string(), "{}:3:15: expected '=', but found '1'");
}

#[test]
fn unknown_type_is_told_with_file_line_and_reason() {
    let said = said_of(
        "syntax = \"proto3\";\nservice Greeter {\n  rpc Greet(Nobody) returns (Nobody);\n}\n",
    );
    assert_eq!(said.kind(), ErrorKind::InvalidInput);
    assert_eq!(said.to_string(), "{}:3:13: name 'Nobody' is not defined");
}

#[test]
fn file_that_is_no_text_is_told_with_its_path() {
    let said = said_of(b"syntax = \"proto3\";\n// \xff\n");
    assert_eq!(said.kind(), ErrorKind::InvalidInput);
    assert_eq!(said.to_string(), "{}: file 'bad.proto' is not valid utf-8");
}

#[test]
fn edition_is_told_with_a_remedy() {
    let said = said_of("edition = \"2023\";\nmessage Name {}\n");
    assert_eq!(said.kind(), ErrorKind::InvalidInput);
    let said = said.to_string();
    assert!(said.starts_with("{}:1:1: expected "), "{said}");
    let end = "found 'edition': the compiler (protox) does not support editions; remedy: `syntax = \"proto3\";` \
               in its place";
    assert!(said.ends_with(end), "{said}");
}

#[test]
fn imports_in_a_circle_are_told_with_a_remedy() {
    let [one, other] =
        ["other", "one"].map(|name| format!("syntax = \"proto3\";\nimport \"{name}.proto\";\n"));
    let files = Files::of(&[("proto/one.proto", &one), ("proto/other.proto", &other)]);
    let (path, directory) = (files.path("proto/one.proto"), files.path("proto"));
    let builder = configure().out_dir(files.out("out"));
    let said = builder.compile_protos(&[&path], &[&directory]).expect_err("a circle");
    let text = format!(
        "{}: import cycle detected: one.proto -> other.proto -> one.proto; remedy: move what the files share \
         to a file that both import",
        path.display()
    );
    assert_eq!(said.to_string(), text);
}

#[test]
fn directory_in_place_of_a_file_is_told_with_a_remedy() {
    let files = greeter();
    let out = files.out("out");
    let (own, texts) = (files.path("own"), files.path("own/texts"));
    // Below a directory of imports, as such a one, and elsewhere.
    for (proto, include) in [(&texts, &own), (&own, &own), (&own, &texts)] {
        let builder = configure().out_dir(&out);
        let said = builder.compile_protos(&[proto], &[include]).expect_err("a directory");
        let text = format!(
            "`{}` is a directory; remedy: give the path of each .proto file to compile",
            proto.display()
        );
        assert_eq!((said.kind(), said.to_string()), (ErrorKind::IsADirectory, text));
    }
}

#[test]
fn no_files_are_told_with_a_remedy() {
    let files = greeter();
    let out = files.out("out");
    let text = "there is no .proto file to compile; remedy: give the path of one, or set \
                `file_descriptor_set_path` and `skip_protoc_run` of `partywall_build::Builder` to read descriptors";
    let builder = || configure().out_dir(&out).file_descriptor_set_path(files.path("greeter.bin"));
    let said = builder().compile_protos::<&str>(&[], &[]).expect_err("no files");
    assert_eq!((said.kind(), said.to_string()), (ErrorKind::InvalidInput, text.to_string()));
    let said = builder().compile_with_config::<&str>(Config::new(), &[], &[]);
    assert_eq!(said.expect_err("no files").to_string(), text);
    assert!(texts(&out).is_empty() && !files.path("greeter.bin").exists());
}

#[test]
fn nowhere_to_write_is_told_with_a_remedy() {
    let files = greeter();
    let missing = files.path("missing");
    let includes = [files.path("own"), files.path("others")];
    let proto = files.path("own/greeter.proto");
    let compiled = |builder: partywall_build::Builder| {
        builder.compile_protos(&[&proto], &includes.each_ref()).expect_err("nowhere").to_string()
    };
    let said = compiled(configure().out_dir(&missing));
    let text = format!(
        "`{}` is no directory for stubs; remedy: make it before this is called",
        missing.display()
    );
    assert_eq!(said, text);

    let file = files.path("greeter.txt");
    std::fs::write(&file, "").expect("a file");
    for out in [file.clone(), file.join("below")] {
        let text = format!(
            "`{}` is no directory for stubs: the file `{}` is in its way; remedy: remove the file, or set \
             `out_dir` to a directory",
            out.display(),
            file.display()
        );
        assert_eq!(compiled(configure().out_dir(out)), text);
    }

    // No script runs here.
    let said = compiled(configure());
    assert_eq!(said, "there is no OUT_DIR; remedy: call this in build.rs, or set `out_dir`");

    let path = missing.join("greeter.bin");
    let said = compiled(configure().out_dir(files.out("out")).file_descriptor_set_path(&path));
    let begin = format!("descriptors cannot be written to `{}`: No such file", path.display());
    assert!(said.starts_with(&begin), "{said}");
    assert!(
        said.contains("; remedy: set `file_descriptor_set_path` to a file in a directory"),
        "{said}"
    );
}

#[test]
fn descriptors_that_are_nowhere_are_told_with_a_remedy() {
    let files = greeter();
    let builder = || configure().out_dir(files.out("out")).skip_protoc_run();
    let said = builder().compile_protos::<&str>(&[], &[]).expect_err("no descriptors");
    assert_eq!(
        said.to_string(),
        "`skip_protoc_run` has no descriptors to read; remedy: set `file_descriptor_set_path`"
    );
    let path = files.path("missing.bin");
    let builder = builder().file_descriptor_set_path(&path);
    let said = builder.compile_protos::<&str>(&[], &[]).expect_err("no such file");
    assert!(said.to_string().contains(&path.display().to_string()), "{said}");
}

/// Set for a process of its own, whose output is looked at: whether cargo is told of files.
const WATCHES: &str = "PARTYWALL_BUILD_TEST_WATCHES";

#[test]
fn cargo_is_told_of_files_and_imports_if_asked_for() {
    let files = greeter();
    if let Ok(watches) = std::env::var(WATCHES) {
        let builder = configure().out_dir(files.out("out"));
        let builder = match &*watches {
            "unset" => builder,
            watches => builder.emit_rerun_if_changed(watches == "true"),
        };
        let includes = [files.path("own"), files.path("others")];
        return builder.compile_protos(&[files.path("own/greeter.proto")], &includes).unwrap();
    }
    let told = |watches: &str| {
        let mut own = Command::new(std::env::current_exe().expect("this program"));
        own.args([
            "--exact",
            "files::cargo_is_told_of_files_and_imports_if_asked_for",
            "--nocapture",
        ]);
        let output = own.env(WATCHES, watches).output().expect("this program");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("text");
        let lines = text.lines().filter_map(|line| line.strip_prefix("cargo:rerun-if-changed="));
        let ends = lines.map(|line| line.rsplit('/').next().expect("a name").to_string());
        ends.collect::<Vec<_>>()
    };
    assert_eq!(told("true"), ["name.proto", "shared.proto", "greeter.proto"]);
    assert!(told("false").is_empty());
    assert!(told("unset").is_empty());
}
