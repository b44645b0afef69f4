//! Generates the gRPC stubs by both generators, without `protoc`, and records the compiler's version.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/bench.proto");
    let files = protox::compile(["bench.proto"], ["proto"])?;
    let native = PathBuf::from(std::env::var("OUT_DIR")?).join("native");
    std::fs::create_dir_all(&native)?;
    partywall_build::configure().bytes(".").out_dir(native).compile_fds(files.clone())?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;

    let rustc = std::env::var("RUSTC")?;
    let output = Command::new(rustc).arg("--version").output()?;
    println!("cargo::rustc-env=BENCH_RUSTC={}", String::from_utf8(output.stdout)?.trim());
    Ok(())
}
