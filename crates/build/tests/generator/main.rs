//! What is generated from files of all kinds, with each setting, beside what tonic-prost-build generates.

mod config;
mod demands;
mod files;
mod settings;
mod stubs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Files to compile, each in a directory of its own if its name has one.
struct Files(tempfile::TempDir);

impl Files {
    fn of(files: &[(&str, &str)]) -> Self {
        let own = Self(tempfile::tempdir().expect("a directory"));
        for (name, text) in files {
            let path = own.path(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
        own
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A directory for what is generated.
    fn out(&self, name: &str) -> PathBuf {
        let out = self.path(name);
        std::fs::create_dir_all(&out).expect("a directory");
        out
    }
}

/// The files in a directory, by their names.
fn texts(directory: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let entries = entries.map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().expect("a name");
            (name, std::fs::read_to_string(entry.path()).expect("text"))
        })
        .collect()
}
