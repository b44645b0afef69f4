//! Compiles the SPIFFE Workload API, and what SDS needs of Envoy's API, without a protoc binary.

use std::error::Error;

const ROOT: &str = "proto";
const FILES: [&str; 2] = ["workload.proto", "envoy/service/secret/v3/sds.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ROOT}");
    tonic_prost_build::configure()
        .bytes(".")
        .build_transport(false)
        // For `Any`, which has private keys as well.
        .compile_well_known_types(true)
        // They have private keys.
        .skip_debug([
            ".X509SVID",
            ".X509SVIDResponse",
            ".google.protobuf.Any",
            ".envoy.config.core.v3.DataSource",
            ".envoy.extensions.transport_sockets.tls.v3",
        ])
        .compile_fds(protox::compile(FILES, [ROOT])?)?;
    Ok(())
}
