//! Compiles the `grpc.testing` package without a protoc binary: messages once, and its services by both
//! generators.

use std::error::Error;
use std::path::PathBuf;

const ROOT: &str = "proto";
const FILES: [&str; 3] =
    ["grpc/testing/empty.proto", "grpc/testing/messages.proto", "grpc/testing/test.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let mut compiler = protox::Compiler::new([ROOT])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_client(true)
        .build_server(true)
        .compile_fds(compiler.file_descriptor_set())?;
    let native = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("native");
    std::fs::create_dir_all(&native)?;
    partywall_build::configure()
        .extern_path(".grpc.testing", "crate::proto")
        .out_dir(native)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
