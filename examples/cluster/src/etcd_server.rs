//! Debian's `etcd-server`: where its program is on this machine, and how a member is started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One member of an etcd.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Name of the member.
    pub name: &'a str,
    /// URI at which it serves clients.
    pub client: &'a str,
    /// URI at which it serves other members.
    pub peer: &'a str,
    /// All members, this one included: `NAME=PEER_URI`, separated by commas.
    pub cluster: &'a str,
}

impl Member<'_> {
    /// Returns the command that starts the member. It keeps its data in `data`, and prints nothing.
    #[must_use]
    pub fn command(&self, program: &Path, data: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["--name", self.name, "--initial-cluster", self.cluster]);
        command.args(["--listen-client-urls", self.client, "--advertise-client-urls", self.client]);
        command.args(["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]);
        command.args(["--logger", "zap", "--log-level", "error", "--data-dir"]).arg(data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// Returns the program: installed, or where the tests of the engine have downloaded it. `None` if this machine has none.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let downloaded = cache.map(|cache| cache.join("taskd/etcd-server/usr/bin"));
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]).chain(downloaded);
    places.map(|dir| dir.join("etcd")).find(|program| program.is_file())
}
