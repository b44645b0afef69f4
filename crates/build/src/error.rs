//! What is said when nothing is generated: the thing, the place and the remedy.

use std::io::{Error, ErrorKind};
use std::path::Path;

/// A file cannot be compiled; imports were looked for in these directories.
pub(crate) fn not_compiled<P: AsRef<Path>>(
    error: &protox::Error,
    proto: &Path,
    includes: &[P],
) -> Error {
    let text = located(error, includes);
    if !error.is_file_not_found() {
        let remedy = match () {
            () if proto.is_dir() && error.is_io() => return is_directory(proto),
            () if is_cycle(error) => {
                "; remedy: move what the files share to a file that both import"
            }
            () if text.ends_with("found 'edition'") => {
                ": the compiler (protox) does not support editions; remedy: `syntax = \"proto3\";` in its place"
            }
            () if is_of_a_demand(&text) => {
                "; remedy: write `option (partywall.security) = { .. };` in a service, or `option \
                 (partywall.method_security) = { .. };` in a method, with `seal` and `sign` (OFF, REQUIRED) and \
                 `evidence` (OBSERVED, STARTED)"
            }
            () => "",
        };
        return Error::new(ErrorKind::InvalidInput, text + remedy);
    }
    let is_import = error.file().is_some();
    if !is_import && proto.is_dir() {
        return is_directory(proto);
    }
    let includes: Vec<_> =
        includes.iter().map(|include| format!("`{}`", include.as_ref().display())).collect();
    let includes = match &*includes {
        [] => String::from("no directory"),
        includes => includes.join(", "),
    };
    let is_there = proto.exists();
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

/// What protox says, with the path of the file in place of its name below a directory of imports.
fn located<P: AsRef<Path>>(error: &protox::Error, includes: &[P]) -> String {
    // protox says file, line and column in its `Debug` alone.
    let text = format!("{error:?}");
    let Some(name) = error.file() else { return text };
    let mut paths = includes.iter().map(|include| include.as_ref().join(name));
    let Some(path) = paths.find(|path| path.is_file()) else { return text };
    let path = path.display();
    match text.strip_prefix(name) {
        Some(place) => format!("{path}{place}"),
        None if error.is_parse() || is_cycle(error) => format!("{path}: {text}"),
        None => text,
    }
}

/// Whether files import each other. protox says so in its text alone.
fn is_cycle(error: &protox::Error) -> bool {
    error.to_string().starts_with("import cycle")
}

/// Whether a name that is wrong is one of demands, or was meant to be. protox says so in its text alone.
fn is_of_a_demand(text: &str) -> bool {
    let name = |rest: &str| rest.split('\'').next().is_some_and(|name| !name.contains('.'));
    text.contains("'(partywall.")
        || text.contains("'partywall.Security")
        || text.split("'partywall.").skip(1).any(name)
}

fn is_directory(proto: &Path) -> Error {
    let proto = proto.display();
    let text =
        format!("`{proto}` is a directory; remedy: give the path of each .proto file to compile");
    Error::new(ErrorKind::IsADirectory, text)
}

/// There is nothing to generate from.
pub(crate) fn no_files() -> Error {
    let text = "there is no .proto file to compile; remedy: give the path of one, or set \
                `file_descriptor_set_path` and `skip_protoc_run` of `partywall_build::Builder` to read \
                descriptors";
    Error::new(ErrorKind::InvalidInput, text)
}

/// Descriptors are wanted at a path that prost alone knows.
pub(crate) fn unknown_path() -> Error {
    let text = "prost's `Config` has a `file_descriptor_set_path`, where nothing would be written; remedy: set \
                `file_descriptor_set_path` of `partywall_build::Builder` in its place";
    Error::new(ErrorKind::InvalidInput, text)
}

/// A setting is not the Rust that it has to be.
pub(crate) fn not_rust(setting: &str, text: &str, error: &syn::Error) -> String {
    let (wanted, such) = match setting {
        "extern_path" => ("path", "::texts"),
        "proto_path" => ("path", "super"),
        "codec_path" => ("path", "crate::Codec"),
        _ => ("attribute", "#[derive(Eq)]"),
    };
    format!(
        "`{setting}` has been set to `{text}`, which is no {wanted} of Rust ({error}); remedy: set it to one, \
         such as `{such}`"
    )
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
    let in_the_way = out_dir.ancestors().find(|path| path.exists() && !path.is_dir());
    let out_dir = out_dir.display();
    let Some(file) = in_the_way else {
        let text =
            format!("`{out_dir}` is no directory for stubs; remedy: make it before this is called");
        return Error::new(ErrorKind::NotFound, text);
    };
    let file = file.display();
    let text = format!(
        "`{out_dir}` is no directory for stubs: the file `{file}` is in its way; remedy: remove the file, or set \
         `out_dir` to a directory"
    );
    Error::new(ErrorKind::NotADirectory, text)
}

/// A demand that may be stricter than what this release knows.
pub(crate) fn unknown_demand(of: &str, option: &str, what: &str) -> Error {
    let text = format!(
        "`{of}`: option `({option})` has {what}, which this release does not know; remedy: take a partywall-build \
         that does, or leave it out"
    );
    Error::new(ErrorKind::InvalidInput, text)
}

/// The options of demands cannot be read.
pub(crate) fn not_whole(error: &dyn std::error::Error) -> Error {
    let text = format!(
        "the descriptors import `partywall/security.proto`, and something that it needs is missing: {error}; \
         remedy: write them with their imports (`protoc --include_imports`)"
    );
    Error::new(ErrorKind::InvalidData, text)
}

/// Descriptors have lost the options of demands.
pub(crate) fn options_are_lost() -> Error {
    let text = "the descriptors import `partywall/security.proto`, and prost drops its options when it decodes \
                them; remedy: compile the files by `compile_protos`, or read the descriptors by `skip_protoc_run` \
                and `file_descriptor_set_path` of `partywall_build::Builder`";
    Error::new(ErrorKind::InvalidInput, text)
}
