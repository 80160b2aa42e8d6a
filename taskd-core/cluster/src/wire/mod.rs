//! The messages between agents and manager (`proto/taskd/cluster/v1/cluster.proto`).

/// Generated from the protocol's file.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub(crate) mod proto {
    tonic::include_proto!("taskd.cluster.v1");
}
