//! What prost's own config says of descriptors: it is done as tonic-prost-build does it, or refused.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use partywall_build::{Builder, Config, configure};

use super::{Files, texts};

const NAME: &str = r#"syntax = "proto3";
package texts;
message Name { string name = 1; }
service Greeter { rpc SayHello(Name) returns (Name); }
"#;

/// A file and its descriptors.
struct Compiled {
    files: Files,
    descriptors: PathBuf,
    made: BTreeMap<String, String>,
}

impl Compiled {
    fn new() -> Self {
        let files = Files::of(&[("proto/name.proto", NAME)]);
        let (descriptors, out) = (files.path("name.bin"), files.out("made"));
        let builder = configure().out_dir(&out).file_descriptor_set_path(&descriptors);
        builder.compile_protos(&[files.path("proto/name.proto")], &[files.path("proto")]).unwrap();
        Self { files, descriptors, made: texts(&out) }
    }

    /// What is generated from the file, or from descriptors.
    fn make(&self, builder: Builder, config: Config) -> io::Result<BTreeMap<String, String>> {
        let out = tempfile::tempdir_in(self.files.path("")).expect("a directory");
        let (proto, include) = (self.files.path("proto/name.proto"), self.files.path("proto"));
        builder.out_dir(out.path()).compile_with_config(config, &[proto], &[include])?;
        Ok(texts(out.path()))
    }
}

/// A config with this setting.
fn config(set: impl FnOnce(&mut Config) -> &mut Config) -> Config {
    let mut config = Config::new();
    set(&mut config);
    config
}

#[test]
fn descriptors_are_read_where_the_config_has_them() {
    let compiled = Compiled::new();
    let path = &compiled.descriptors;
    // What is in the file is of no account.
    std::fs::write(compiled.files.path("proto/name.proto"), "no file of protobuf").unwrap();
    let both = || config(|config| config.file_descriptor_set_path(path).skip_protoc_run());
    assert_eq!(compiled.make(configure(), both()).unwrap(), compiled.made);
    // The builder has one of both, and the config the other.
    let skips = config(Config::skip_protoc_run);
    let builder = configure().file_descriptor_set_path(path);
    assert_eq!(compiled.make(builder, skips).unwrap(), compiled.made);
    let has_path = config(|config| config.file_descriptor_set_path(path));
    assert_eq!(compiled.make(configure().skip_protoc_run(), has_path).unwrap(), compiled.made);
    // The builder's path is the one that counts.
    let missing = compiled.files.path("missing.bin");
    let builder = configure().file_descriptor_set_path(&missing);
    let said = compiled.make(builder, both()).expect_err("no such file");
    assert_eq!(said.kind(), ErrorKind::NotFound);
    assert!(said.to_string().contains(&missing.display().to_string()), "{said}");
    assert!(!missing.exists());
}

#[test]
fn missing_descriptors_of_a_config_are_told() {
    let compiled = Compiled::new();
    let missing = compiled.files.path("missing.bin");
    let own = config(|config| config.file_descriptor_set_path(&missing).skip_protoc_run());
    let said = compiled.make(configure(), own).expect_err("no such file");
    assert_eq!(said.kind(), ErrorKind::NotFound);
    assert!(said.to_string().contains(&missing.display().to_string()), "{said}");

    let said = compiled.make(configure(), config(Config::skip_protoc_run));
    assert_eq!(
        said.expect_err("no path").to_string(),
        "`skip_protoc_run` has no descriptors to read; remedy: set `file_descriptor_set_path`"
    );
}

#[test]
fn path_of_a_config_to_write_to_is_refused() {
    let compiled = Compiled::new();
    let missing = compiled.files.path("missing.bin");
    let old = compiled.files.path("old.bin");
    std::fs::write(&old, "no descriptors").unwrap();
    // Whatever is there.
    for path in [&compiled.descriptors, &missing, &old] {
        let config = config(|config| config.file_descriptor_set_path(path));
        let said = compiled.make(configure(), config).expect_err("no way to write there");
        assert_eq!(
            said.to_string(),
            "prost's `Config` has a `file_descriptor_set_path`, where nothing would be written; remedy: set \
             `file_descriptor_set_path` of `partywall_build::Builder` in its place"
        );
        assert_eq!(said.kind(), ErrorKind::InvalidInput);
    }
    assert!(!missing.exists());
}

#[test]
fn files_are_compiled_with_a_config_that_has_no_path() {
    let compiled = Compiled::new();
    assert_eq!(compiled.make(configure(), Config::new()).unwrap(), compiled.made);
    // That of the builder counts, as tonic's does.
    let (own, lost) = (compiled.files.path("own.bin"), compiled.files.path("lost.bin"));
    let builder = configure().file_descriptor_set_path(&own);
    let config = config(|config| config.file_descriptor_set_path(&lost));
    assert_eq!(compiled.make(builder, config).unwrap(), compiled.made);
    assert_eq!(std::fs::read(own).unwrap(), std::fs::read(&compiled.descriptors).unwrap());
    assert!(!lost.exists());
}
