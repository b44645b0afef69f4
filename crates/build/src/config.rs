//! What prost's config has been told of descriptors. It has no functions to ask for it: it is made to try.

use std::io::{self, ErrorKind};
use std::path::Path;

use prost_build::Config;

use crate::error;

const NO_FILES: [&Path; 0] = [];

/// Whether descriptors are read from the config's path: it has been told to skip protoc.
pub(crate) fn reads_descriptors(config: &mut Config) -> io::Result<bool> {
    // No program has such a name, so none is run.
    config.protoc_executable("\0");
    match config.load_fds(&NO_FILES, &NO_FILES) {
        Ok(_) => Ok(true),
        // Of the name.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(false),
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
