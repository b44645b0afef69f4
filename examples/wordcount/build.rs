//! Generates the word-count messages, service and client from `proto/wordcount.proto`: by tonic's generator,
//! and the client for large texts by Partywall's.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/wordcount.proto");
    let files = protox::compile(["wordcount.proto"], ["proto"])?;
    let native = PathBuf::from(std::env::var("OUT_DIR")?).join("native");
    std::fs::create_dir_all(&native)?;
    let builder = partywall_build::configure().bytes(".").build_server(false);
    builder.out_dir(native).compile_fds(files.clone())?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
