//! Authorities, signatures of programs, and certificates for others, as a user has them.

mod authority;
mod plain;
mod receipts;
mod signatures;
mod trace;
mod up;
mod workload;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory in which commands run.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn chmod(&self, name: &str, mode: u32) {
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn mode(&self, name: &str) -> u32 {
        std::fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o7777
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command.env_remove("PARTYWALL_LOG").env_remove("RUST_LOG").output().unwrap()
    }

    /// What it says when it succeeds.
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let out = self.run(arguments);
        assert_eq!(out.status.code(), Some(0), "{arguments:?}: {}", text(&out.stderr));
        assert_eq!(text(&out.stderr), "", "{arguments:?}");
        text(&out.stdout)
    }

    /// Why it fails, which has all these words.
    pub(crate) fn bad(&self, arguments: &[&str], words: &[&str]) -> String {
        self.fails(1, arguments, words)
    }

    /// What is wrong with the arguments.
    pub(crate) fn usage(&self, arguments: &[&str], words: &[&str]) {
        self.fails(2, arguments, words);
    }

    fn fails(&self, code: i32, arguments: &[&str], words: &[&str]) -> String {
        let out = self.run(arguments);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {said}");
        assert_eq!(text(&out.stdout), "", "{arguments:?}");
        for word in words {
            assert!(said.contains(word), "{arguments:?}: {said:?} lacks {word:?}");
        }
        said
    }

    pub(crate) fn openssl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("openssl");
        let out = command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null()).output();
        out.expect("openssl (apt-get install openssl)")
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A program that ends at once, and well.
pub(crate) fn program(place: &Place, name: &str) {
    std::fs::copy(Path::new("/bin/true"), place.path(name)).unwrap();
}
