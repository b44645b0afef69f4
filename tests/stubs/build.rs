//! The same file, by both generators.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let (proto, include) = ("proto/stubs.proto", "proto");
    println!("cargo:rerun-if-changed={proto}");
    let (ours, tonics) = (out.join("partywall"), out.join("tonic"));
    for directory in [&ours, &tonics] {
        std::fs::create_dir_all(directory)?;
    }
    let derive = "#[derive(Eq)]";
    partywall_build::configure()
        .out_dir(ours)
        .message_attribute("HelloReply", derive)
        .file_descriptor_set_path(out.join("partywall.bin"))
        .compile_protos(&[proto], &[include])?;
    let fds = protox::compile([proto], [include])?;
    tonic_prost_build::configure()
        .out_dir(tonics)
        .message_attribute("HelloReply", derive)
        .compile_fds(fds)?;
    Ok(())
}
