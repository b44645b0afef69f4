//! What prost's config has been told of descriptors. It has no functions to ask for it: it is made to try.

use std::io::{self, ErrorKind};
use std::path::Path;

use prost_build::Config;
use tonic_prost_build::FileDescriptorSet;

use crate::error;

const NO_FILES: [&Path; 0] = [];

/// The descriptors at the config's path, if it reads them from there: it has been told to skip protoc.
pub(crate) fn read_descriptors(config: &mut Config) -> io::Result<Option<FileDescriptorSet>> {
    // No program has such a name, so none is run.
    config.protoc_executable("\0");
    match config.load_fds(&NO_FILES, &NO_FILES) {
        Ok(files) => Ok(Some(files)),
        // Of the name.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(None),
        Err(error) if error.kind() == ErrorKind::Other => Err(error::no_descriptors()),
        Err(error) => Err(error),
    }
}

/// Whether the config has a path for descriptors. It skips protoc from now on.
pub(crate) fn has_a_path(config: &mut Config) -> bool {
    let loaded = config.skip_protoc_run().load_fds(&NO_FILES, &NO_FILES);
    // Another kind of error is of the file.
    !matches!(loaded, Err(error) if error.kind() == ErrorKind::Other)
}
