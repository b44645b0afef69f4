//! Generates messages, services and clients from `proto/examples.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/examples.proto");
    partywall_build::compile_protos("proto/examples.proto")?;
    Ok(())
}
