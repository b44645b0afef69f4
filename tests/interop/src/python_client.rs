//! Python's grpcio, installed from PyPI and pointed at a server's path; other packages likewise.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::go_client::target_tmp;

/// The package and its version.
pub const PACKAGE: &str = "grpcio==1.85.3";

const INTERPRETER: &str = "python3";

/// One call whose answer has a payload of 100 bytes, without generated code.
const CALL: &str = r#"
import sys, grpc
options = [tuple(option.split("=", 1)) for option in sys.argv[2:]]
with grpc.insecure_channel("unix:" + sys.argv[1], options=options) as channel:
    try:
        call = channel.unary_unary("/grpc.testing.TestService/UnaryCall")
        print("answered with", len(call(b"\x10\x64", timeout=10)), "bytes")
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"#;

/// What Python says of a call to the server at a path, by a channel with these options (`name=value`).
///
/// Blocks, longest while the package is installed: in the `tmp` directory of the cargo target that the
/// running program belongs to, once for each version of Python.
///
/// # Errors
/// Why Python or the package cannot be used.
pub fn call(path: &Path, options: &[&str]) -> Result<String, String> {
    let path = path.to_str().ok_or_else(|| format!("{}: no UTF-8", path.display()))?;
    says(CALL, &[&[path], options].concat())
}

/// What a program in Python says that has the package, with these arguments. Blocks as [`call`].
///
/// # Errors
/// As [`call`], and what the program says when it fails.
pub fn says(program: &str, arguments: &[&str]) -> Result<String, String> {
    says_with(PACKAGE, program, arguments)
}

/// As [`says`], by another package, as pip names it with its version.
///
/// # Errors
/// As [`says`].
pub fn says_with(package: &str, program: &str, arguments: &[&str]) -> Result<String, String> {
    let packages = installed(package)?;
    let mut python = Command::new(INTERPRETER);
    python.args(["-c", program]).args(arguments).env("PYTHONPATH", packages);
    run(&mut python)
}

fn installed(package: &str) -> Result<PathBuf, String> {
    let version = run(Command::new(INTERPRETER).arg("--version"))?.replace(' ', "-");
    let name = format!("{package}-{version}");
    let packages = target_tmp().join(&name);
    if packages.is_dir() {
        return Ok(packages);
    }
    // Installed aside and renamed, so that another process never sees half of it.
    let stage = packages.with_file_name(format!("{name}.{}", std::process::id()));
    let pip = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", package, "--target"];
    run(Command::new(INTERPRETER).args(pip).arg(&stage))?;
    match std::fs::rename(&stage, &packages) {
        Ok(()) => Ok(packages),
        // Another one was faster.
        Err(_) if packages.is_dir() => {
            std::fs::remove_dir_all(&stage).map_err(|e| e.to_string())?;
            Ok(packages)
        }
        Err(e) => Err(format!("{}: {e}", packages.display())),
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = output.map_err(|e| {
        format!("{INTERPRETER}: {e}; it and its pip are needed for packages such as {PACKAGE}")
    })?;
    if !status.success() {
        return Err(format!("{INTERPRETER}: {status}\n{}", String::from_utf8_lossy(&stderr)));
    }
    Ok(String::from_utf8_lossy(&stdout).trim().to_string())
}
