//! Generates the messages, service and client of `proto/functions.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/functions.proto");
    let files = protox::compile(["functions.proto"], ["proto"])?;
    partywall_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
