//! Generates the gRPC stubs without `protoc` and records the compiler's version.

use std::error::Error;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/bench.proto");
    let files = protox::compile(["bench.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;

    let rustc = std::env::var("RUSTC")?;
    let output = Command::new(rustc).arg("--version").output()?;
    println!("cargo::rustc-env=BENCH_RUSTC={}", String::from_utf8(output.stdout)?.trim());
    Ok(())
}
