//! Programs in Go and Python with stock libraries: built and installed once, known by their digests.

use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use sha2::{Digest as _, Sha256};

/// Directory of programs and packages, which are kept.
const KEPT: &str = env!("CARGO_TARGET_TMPDIR");
const GO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go");
const PACKAGE: &str = "spiffe==0.3.2";

pub fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = output.unwrap_or_else(|e| panic!("{shown}: {e}"));
    assert!(status.success(), "{shown}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Builds a program of the Go module with go-spiffe; its path and the fact of its digest.
pub fn go(name: &str) -> (PathBuf, String) {
    let program = Path::new(KEPT).join(format!("go-spiffe-{name}"));
    let package = format!("./{name}");
    // Go builds what has changed, and puts a whole file in its place.
    run(Command::new("go").args(["build", "-C", GO, "-o"]).arg(&program).arg(package));
    let is_it = fact(&program);
    (program, is_it)
}

/// The fact of a program's digest.
pub fn fact(program: &Path) -> String {
    let digest = Sha256::digest(std::fs::read(program).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("program = 'sha256:{digest}'\nevidence = 'observed'\n")
}

/// The file that an interpreter of Python runs as.
pub fn program_of(interpreter: &str) -> PathBuf {
    let text = "import os; print(os.readlink('/proc/self/exe'))";
    run(Command::new(interpreter).args(["-c", text])).trim().into()
}

/// A process that is ended with the value, and the lines that it prints.
pub struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    pub fn line(&mut self) -> String {
        match self.lines.next() {
            Some(line) => line.unwrap(),
            None => {
                let mut why = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
                panic!("it has ended: {why}");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_before = self.child.kill();
        self.child.wait().expect("it is our child");
    }
}

/// The packages, installed once for each version of Python.
pub fn python() -> PathBuf {
    let version = run(Command::new("python3").arg("--version")).trim().replace(' ', "-");
    let name = format!("{PACKAGE}-{version}");
    let packages = Path::new(KEPT).join(&name);
    if packages.is_dir() {
        return packages;
    }
    // Installed aside and renamed, so that another process never sees half of it.
    let stage = packages.with_file_name(format!("{name}.{}", std::process::id()));
    let pip = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", PACKAGE, "--target"];
    run(Command::new("python3").args(pip).arg(&stage));
    if std::fs::rename(&stage, &packages).is_err() {
        // Another one was faster.
        assert!(packages.is_dir(), "{}", packages.display());
        std::fs::remove_dir_all(&stage).unwrap();
    }
    packages
}
