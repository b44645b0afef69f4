//! Generates the camera's messages, service and client from `proto/camera.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/camera.proto");
    let builder = partywall_build::configure().bytes(".");
    Ok(builder.compile_protos(&["proto/camera.proto"], &["proto"])?)
}
