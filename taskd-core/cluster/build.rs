//! Compiles the protocols. `protox` is a compiler written in Rust: no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let include = "proto";
    println!("cargo::rerun-if-changed={include}");
    let own = ["proto/taskd/cluster/v1/cluster.proto", "proto/taskd/cluster/v1/voter.proto"];
    let own = protox::compile(own, [include])?;
    tonic_prost_build::configure().bytes(".").codec_path("crate::wire::SmallCodec").compile_fds(own)?;
    let etcd = protox::compile(["proto/etcd/rpc.proto"], [include])?;
    tonic_prost_build::configure().bytes(".").build_server(false).compile_fds(etcd)?;
    Ok(())
}
