//! Compiles the protocol. `protox` is a compiler written in Rust: no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (files, include) = (["proto/taskd/cluster/v1/cluster.proto", "proto/taskd/cluster/v1/voter.proto"], "proto");
    println!("cargo::rerun-if-changed={include}");
    let descriptors = protox::compile(files, [include])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
