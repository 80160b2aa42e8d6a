//! Three real servers of etcd, which can be stopped and continued.

use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Members of one etcd. They are killed on drop.
pub(crate) struct Servers {
    members: Vec<Child>,
    pub(crate) uris: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Servers {
    /// Starts three members at these addresses. `None`: this machine has no etcd.
    pub(crate) fn start(addresses: &[String; 3]) -> Option<Servers> {
        let program = program()?;
        let dir = tempfile::tempdir().unwrap();
        let peer = |at: usize| format!("http://{}:2380", addresses[at]);
        let uris: Vec<String> = addresses.iter().map(|address| format!("http://{address}:2379")).collect();
        let all: Vec<String> = (0..3).map(|at| format!("m{at}={}", peer(at))).collect();
        let start = |at: usize| {
            let mut command = Command::new(&program);
            command.args(["--name", &format!("m{at}"), "--initial-cluster", &all.join(",")]);
            command.args(["--listen-client-urls", &uris[at], "--advertise-client-urls", &uris[at]]);
            command.args(["--listen-peer-urls", &peer(at), "--initial-advertise-peer-urls", &peer(at)]);
            command
                .args(["--logger", "zap", "--log-level", "error", "--data-dir"])
                .arg(dir.path().join(format!("m{at}")));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        Some(Servers { members: (0..3).map(start).collect(), uris, _dir: dir })
    }

    /// Sends a signal to all members.
    pub(crate) fn signal(&self, signal: Signal) {
        for member in &self.members {
            let pid = i32::try_from(member.id()).ok().and_then(Pid::from_raw);
            kill_process(pid.unwrap(), signal).unwrap();
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// Returns Debian's server: installed, or where the tests of the engine have downloaded it.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let downloaded = cache.map(|cache| cache.join("taskd/etcd-server/usr/bin"));
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]).chain(downloaded);
    places.map(|dir| dir.join("etcd")).find(|program| program.is_file())
}
