//! One server of etcd, Debian's `etcd-server`, as the consensus engine of a run.

use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use taskd_cluster_example::etcd_server::{Member, program};

/// A server that runs. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) uri: String,
}

impl Server {
    /// Starts a server that keeps its data in a directory. It answers a moment later, for which its clients wait.
    pub(crate) fn start(dir: &Path) -> Result<Server, String> {
        let program = program().ok_or(
            "this machine has no etcd: install etcd-server, or run `cargo test -p taskd-cluster etcd`, which downloads it",
        )?;
        let [uri, peer] = [free_uri()?, free_uri()?];
        let cluster = format!("one={peer}");
        let member = Member { name: "one", client: &uri, peer: &peer, cluster: &cluster };
        let mut command = member.command(&program, &dir.join("etcd"));
        let child = command.spawn().map_err(|error| format!("etcd cannot be started: {error}"))?;
        Ok(Server { child, uri })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn free_uri() -> Result<String, String> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address.map(|address| format!("http://{address}")).map_err(|error| format!("no free port: {error}"))
}
