//! The part of etcd's API that this engine uses (`proto/etcd`).

/// Keys and events.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic)]
pub(super) mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// Requests and answers.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic)]
pub(super) mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
