//! One server of etcd, Debian's `etcd-server`, as the consensus engine of a run.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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
        let mut command = Command::new(program);
        command.args(["--name", "one", "--initial-cluster", &format!("one={peer}")]);
        command.args(["--listen-client-urls", &uri, "--advertise-client-urls", &uri]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--logger", "zap", "--log-level", "error", "--data-dir"]).arg(dir.join("etcd"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
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

/// Returns the server's program: installed, or where the tests of the engine have downloaded it.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let downloaded = cache.map(|cache| cache.join("taskd/etcd-server/usr/bin"));
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]).chain(downloaded);
    places.map(|dir| dir.join("etcd")).find(|program| program.is_file())
}

fn free_uri() -> Result<String, String> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address.map(|address| format!("http://{address}")).map_err(|error| format!("no free port: {error}"))
}
