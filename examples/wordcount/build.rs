//! Generates the word-count messages, service and client from `proto/wordcount.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/wordcount.proto");
    let files = protox::compile(["wordcount.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
