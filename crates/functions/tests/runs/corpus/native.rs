//! The corpus as an ordinary program: one module for each function, compiled by the same compiler without
//! the builder, without optimization and with the standard library. Where functions use crates, cargo
//! compiles those, as for anybody.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use partywall_functions::proto;
use partywall_functions::source::File;

use super::sources::Function;

/// The package of a corpus that uses crates: those that functions may use, as they mostly are.
const PACKAGE: &str = "
[package]
name = \"corpus\"
edition = \"2024\"
[workspace]
[[bin]]
name = \"corpus\"
path = \"main.rs\"
[profile.dev]
debug = false
debug-assertions = false
overflow-checks = false
[dependencies]
base64 = \"0.22\"
prost = \"0.14\"
serde = { version = \"1\", features = [\"derive\"] }
serde_json = \"1\"
sha2 = \"0.11\"
";

const MAIN: &str = "
fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    for (function, handle, requests) in FUNCTIONS {
        for (request, body) in requests.iter().enumerate() {
            let reply = std::panic::catch_unwind(|| handle(partywall_fn::Request::of(body)));
            let (kind, bytes) = match reply {
                Ok(Ok(reply)) => (0, reply),
                Ok(Err(error)) => (error.code as u32, error.message.into_bytes()),
                Err(_) => (99, vec![]),
            };
            let digits: String = bytes.iter().map(|byte| format!(\"{byte:02x}\")).collect();
            println!(\"{function} {request} {kind} {digits}\");
        }
    }
}
";

/// The kind of a panic, beside 0 for a reply and the codes of errors.
pub(super) const PANIC: u32 = 99;

/// What each function answers to each of its requests: a kind and bytes.
pub(super) fn answers(functions: &[&Function]) -> Vec<Vec<(u32, Vec<u8>)>> {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let mut main = String::from("#![allow(warnings)]\nextern crate alloc;\n");
    let mut table = String::from(
        "static FUNCTIONS: &[(usize, fn(partywall_fn::Request<'_>) -> partywall_fn::Reply, &[&[u8]])] = &[\n",
    );
    for (number, function) in functions.iter().enumerate() {
        let protos = function.files.iter().filter(|file| file.path.ends_with(".proto"));
        let protos = protos.map(|file| (file.path.clone(), file.text.clone())).collect();
        let module = File { path: proto::MODULE.into(), text: proto::module(protos).unwrap() };
        for file in function.files.iter().chain([&module]) {
            let path = match file.path.as_str() {
                "main.rs" => format!("f{number}.rs"),
                other => format!("f{number}/{other}"),
            };
            let text = format!("{}\nuse partywall_fn::prelude::*;\n", file.text);
            std::fs::create_dir_all(at.join(&path).parent().unwrap()).unwrap();
            std::fs::write(at.join(path), text).unwrap();
        }
        writeln!(main, "mod f{number};").unwrap();
        write!(table, "    ({number}, f{number}::handle, &[").unwrap();
        for request in &function.requests {
            write!(table, "&{:?}, ", request.bytes).unwrap();
        }
        table += "]),\n";
    }
    std::fs::write(at.join("main.rs"), main + &table + "];\n" + MAIN).unwrap();
    let run = |mut command: Command| {
        let out = command.current_dir(at).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let said = if functions.iter().any(|function| function.has_crates) {
        let ours = here.join("../fn");
        let ours = format!("partywall-fn = {{ path = {ours:?}, features = [\"prost\"] }}\n");
        std::fs::write(at.join("Cargo.toml"), PACKAGE.to_owned() + &ours).unwrap();
        std::fs::copy(here.join("../../Cargo.lock"), at.join("Cargo.lock")).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus");
        cargo.args(["run", "--quiet", "--offline", "--target-dir"]).arg(target);
        run(cargo)
    } else {
        let rustc = |arguments: &str| {
            let mut command = Command::new("rustc");
            command.args(["--edition", "2024", "--cap-lints", "allow", "-C", "debuginfo=0"]);
            command.args(["-C", "debug-assertions=off"]).args(arguments.split(' '));
            command
        };
        let ours = "--crate-type rlib --crate-name partywall_fn -o libpartywall_fn.rlib";
        let mut command = rustc(ours);
        command.arg(here.join("../fn/src/lib.rs"));
        run(command);
        run(rustc("--extern partywall_fn=libpartywall_fn.rlib main.rs -o main"));
        run(Command::new(at.join("main")))
    };
    let mut answers = vec![Vec::new(); functions.len()];
    for line in said.lines() {
        let [function, _, kind, digits] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let digit = |n: usize| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).unwrap();
        let bytes = (0..digits.len() / 2).map(digit).collect();
        answers[function.parse::<usize>().unwrap()].push((kind.parse().unwrap(), bytes));
    }
    answers
}
