//! What is said when nothing is generated: the thing, the place and the remedy.

use std::io::{Error, ErrorKind};
use std::path::Path;

/// A file cannot be compiled; imports were looked for in these directories.
pub(crate) fn not_compiled<P: AsRef<Path>>(
    error: &protox::Error,
    proto: &Path,
    includes: &[P],
) -> Error {
    // protox says file, line and column in its `Debug` alone.
    let text = format!("{error:?}");
    if !error.is_file_not_found() {
        return Error::new(ErrorKind::InvalidInput, text);
    }
    let includes: Vec<_> =
        includes.iter().map(|include| format!("`{}`", include.as_ref().display())).collect();
    let includes = match &*includes {
        [] => String::from("no directory"),
        includes => includes.join(", "),
    };
    let (is_import, is_there) = (error.file().is_some(), proto.exists());
    let proto = proto.display();
    let text = match () {
        () if is_import => format!(
            "{text} in {includes}; remedy: add the directory that has it to those of imports, or correct the \
             import"
        ),
        () if is_there => format!(
            "`{proto}` is not below a directory of imports ({includes}); remedy: add its directory to them"
        ),
        () => format!(
            "there is no file `{proto}`, neither as such nor in {includes}; remedy: correct the path, which \
             begins in the directory of the package's Cargo.toml"
        ),
    };
    Error::new(ErrorKind::NotFound, text)
}

/// Descriptors are to be read, and it is not said from where.
pub(crate) fn no_descriptors() -> Error {
    let text =
        "`skip_protoc_run` has no descriptors to read; remedy: set `file_descriptor_set_path`";
    Error::new(ErrorKind::InvalidInput, text)
}

/// Descriptors cannot be written there.
pub(crate) fn not_written(error: &Error, path: &Path) -> Error {
    let path = path.display();
    let text = format!(
        "descriptors cannot be written to `{path}`: {error}; remedy: set `file_descriptor_set_path` to a file in \
         a directory that is there"
    );
    Error::new(error.kind(), text)
}

/// It is not known where stubs go.
pub(crate) fn no_out_dir() -> Error {
    let text = "there is no OUT_DIR; remedy: call this in build.rs, or set `out_dir`";
    Error::new(ErrorKind::NotFound, text)
}

/// Stubs cannot go there.
pub(crate) fn not_a_directory(out_dir: &Path) -> Error {
    let out_dir = out_dir.display();
    let text =
        format!("`{out_dir}` is no directory for stubs; remedy: make it before this is called");
    Error::new(ErrorKind::NotFound, text)
}
