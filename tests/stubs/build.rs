//! The same files, by both generators.

use std::path::{Path, PathBuf};

use prost::Message as _;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const INCLUDE: &str = "proto";
/// A type with a `prost::Message` of its own.
const OWN: [&str; 2] = [".stubs.v1.Own", "crate::Own"];
/// Derives of types: what they are of, and which.
const DERIVES: [(&str, &str); 2] =
    [("HelloReply", "#[derive(Eq)]"), ("HelloRequest", "#[derive(PartialOrd, Ord)]")];

fn main() -> Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    ours("proto/stubs.proto", &out.join("partywall"))?;
    ours("proto/later.proto", &out.join("partywall/later"))?;
    tonics("proto/stubs.proto", &out.join("tonic"))?;
    tonics("proto/later.proto", &out.join("tonic/later"))?;
    demands("proto/demands.proto", INCLUDE, &out.join("partywall/demands"))?;
    demands("proto/free/demands.proto", "proto/free", &out.join("partywall/free"))?;
    frames("proto/frames.proto", &out)
}

/// By partywall-build alone.
fn demands(proto: &str, include: &str, out: &Path) -> Result<()> {
    println!("cargo:rerun-if-changed={proto}");
    std::fs::create_dir_all(out)?;
    Ok(partywall_build::configure().out_dir(out).compile_protos(&[proto], &[include])?)
}

/// By both, with `bytes` that are cut and not copied.
fn frames(proto: &str, out: &Path) -> Result<()> {
    println!("cargo:rerun-if-changed={proto}");
    let [ours, tonics] = ["partywall/frames", "tonic/frames"].map(|dir| out.join(dir));
    std::fs::create_dir_all(&ours)?;
    std::fs::create_dir_all(&tonics)?;
    let builder = partywall_build::configure().bytes(".").out_dir(ours);
    builder.compile_protos(&[proto], &[INCLUDE])?;
    let descriptors = protox::compile([proto], [INCLUDE])?;
    Ok(tonic_prost_build::configure().bytes(".").out_dir(tonics).compile_fds(descriptors)?)
}

/// By partywall-build.
fn ours(proto: &str, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out)?;
    println!("cargo:rerun-if-changed={proto}");
    let mut builder = partywall_build::configure().extern_path(OWN[0], OWN[1]);
    for (message, derives) in DERIVES {
        builder = builder.message_attribute(message, derives);
    }
    let descriptors = out.join("descriptors.bin");
    let builder = builder.out_dir(out).file_descriptor_set_path(descriptors);
    Ok(builder.compile_protos(&[proto], &[INCLUDE])?)
}

/// By tonic-prost-build.
fn tonics(proto: &str, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out)?;
    let mut builder = tonic_prost_build::configure().extern_path(OWN[0], OWN[1]);
    for (message, derives) in DERIVES {
        builder = builder.message_attribute(message, derives);
    }
    let descriptors = protox::compile([proto], [INCLUDE])?;
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    Ok(builder.out_dir(out).compile_fds(descriptors)?)
}
