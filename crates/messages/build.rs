//! Compiles the `.proto` files with protox, so that no protoc is needed.

use std::path::PathBuf;

/// Beside the vectors that pin them.
const PROTO: &str = "../wire/proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let mut compiler = protox::Compiler::new([PROTO])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_file("tidings/v1/frame.proto")?;
    compiler.open_file("tidings/v1/store_command.proto")?;
    compiler.open_file("tidings/v1/cell_command.proto")?;
    compiler.open_file("tidings/v1/cell_state.proto")?;
    let descriptors = compiler.file_descriptor_set();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("tidings.bin"), compiler.encode_file_descriptor_set())?;
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure().bytes(".").compile_fds_with_config(descriptors, config)?;
    Ok(())
}
