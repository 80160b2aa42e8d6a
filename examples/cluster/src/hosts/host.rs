//! One host: its namespaces, and what can happen to it.

use super::leftovers::kill;
use super::network::{NO_HOST, ip, pids};
use super::quota::Quota;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of a host's network device.
pub(super) const DEVICE: &str = "eth0";
/// Time within which processes end after SIGKILL, on a loaded machine.
const KILLED_WITHIN: Duration = Duration::from_secs(20);
/// Keeps the mount namespace of a host, with its own files, until its input ends. `$1` is mounted over, `$2` is the
/// host's directory there.
const KEEPER: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$2"
[ ! -d /dev/shm ] || mount -t tmpfs -o mode=1777 tmpfs /dev/shm
echo ready
exec cat >/dev/null
"#;
/// Enters the control group of `$1`, if it is not empty; then executes the rest.
const ENTER: &str = r#"[ -z "$1" ] || echo $$ > "$1" || exit 70; shift; exec "$@""#;

/// A host in namespaces.
#[derive(Debug)]
pub struct Host {
    name: String,
    namespace: String,
    switch: String,
    address: Ipv4Addr,
    dir: PathBuf,
    keeper: Child,
    /// Identifier of the network namespace.
    network: String,
    quota: Option<Quota>,
}

impl Host {
    pub(super) fn new(name: &str, namespace: &str, switch: &str, address: Ipv4Addr, root: &Path) -> io::Result<Host> {
        ip(&["netns", "add", namespace])?;
        // From here on the host is removed by dropping it.
        let keeper = keeper(namespace, &root.join("own"), &root.join("own").join(name));
        let keeper = keeper.inspect_err(|_| _ = ip(&["netns", "del", namespace]))?;
        let mut host = Host {
            name: name.into(),
            namespace: namespace.into(),
            switch: switch.into(),
            address,
            dir: root.join("own").join(name),
            keeper,
            network: String::new(),
            quota: None,
        };
        let mut ready = String::new();
        let output = host.keeper.stdout.take().ok_or_else(|| io::Error::other("the keeper has no output"))?;
        BufReader::new(output).read_line(&mut ready)?;
        if ready.trim() != "ready" {
            return Err(io::Error::other("a mount namespace of its own could not be made"));
        }
        host.network = host.keeper_pid().and_then(network_of).unwrap_or_default();
        let network = format!("{address}/24");
        ip(&["-n", switch, "link", "add", name, "type", "veth", "peer", "name", DEVICE, "netns", namespace])?;
        ip(&["-n", switch, "link", "set", name, "master", "bridge", "up"])?;
        ip(&["-n", namespace, "addr", "add", &network, "dev", DEVICE])?;
        ip(&["-n", namespace, "link", "set", DEVICE, "up"])?;
        ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        Ok(host)
    }

    pub(super) fn limit_processors(&mut self, cpus: f64) -> Result<(), String> {
        self.quota = Some(Quota::create(&self.namespace, cpus)?);
        Ok(())
    }

    /// Returns the name, such as `h1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address at which the other hosts reach this one.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the directory of this host's own files, as its processes see it. Another host has an empty directory
    /// there.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path at which this machine sees a file of this host.
    #[must_use]
    pub fn from_outside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns a command that runs a program on this host, with the process id of the command.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        let procs = self.quota.as_ref().map(Quota::procs).unwrap_or_default();
        command.args(["-c", ENTER, "sh"]).arg(procs);
        command.args(["nsenter", "--target", &self.keeper.id().to_string(), "--mount", "--net", "--"]).arg(program);
        command
    }

    /// Returns the ids of the processes on this host.
    ///
    /// # Errors
    /// The namespace does not exist any more.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        let keeper = self.keeper_pid();
        Ok(pids(&self.namespace)?.into_iter().filter(|pid| Some(*pid) != keeper).collect())
    }

    #[cfg(test)]
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the identifier of the network namespace, as [`network_of`] returns it.
    pub(crate) fn network(&self) -> &str {
        &self.network
    }

    /// Sends SIGKILL to all processes on this host, until none is left. Returns their number.
    ///
    /// # Errors
    /// The namespace does not exist any more, or a process does not end.
    pub fn kill_all(&self) -> io::Result<usize> {
        let mut killed = BTreeSet::new();
        let until = Instant::now() + KILLED_WITHIN;
        loop {
            let running: Vec<i32> = self.pids()?.into_iter().filter(|pid| is_alive(*pid)).collect();
            if running.is_empty() {
                return Ok(killed.len());
            }
            if Instant::now() >= until {
                let text = format!("processes {running:?} on {} do not end within {KILLED_WITHIN:?}", self.name);
                return Err(io::Error::other(text));
            }
            for pid in running {
                kill(pid, Signal::KILL);
                killed.insert(pid);
            }
        }
    }

    /// Takes the link of this host down at the bridge, as a cable that is pulled, or up again. The host keeps its
    /// address; packets in both directions are lost without an error.
    ///
    /// # Errors
    /// The namespace does not exist any more.
    pub fn set_link(&self, is_up: bool) -> io::Result<()> {
        ip(&["-n", &self.switch, "link", "set", &self.name, if is_up { "up" } else { "down" }]).map(drop)
    }

    /// Loses all packets from this host to another one, from now on; those in the other direction arrive.
    ///
    /// # Errors
    /// The namespace does not exist any more.
    pub fn cut_to(&self, other: &Host) -> io::Result<()> {
        let to = other.address.to_string();
        let entry = ["neigh", "replace", &to, "lladdr", NO_HOST, "dev", DEVICE, "nud", "permanent"];
        ip(&[&["-n", &self.namespace], &entry[..]].concat()).map(drop)
    }

    /// Ends [`cut_to`](Host::cut_to).
    ///
    /// # Errors
    /// The packets are not lost, or the namespace does not exist any more.
    pub fn heal_to(&self, other: &Host) -> io::Result<()> {
        ip(&["-n", &self.namespace, "neigh", "del", &other.address.to_string(), "dev", DEVICE]).map(drop)
    }

    fn keeper_pid(&self) -> Option<i32> {
        i32::try_from(self.keeper.id()).ok()
    }

    /// Copies this host's own files to a directory of this machine.
    pub(super) fn copy_files(&self, to: &Path) -> io::Result<()> {
        let from = self.from_outside(&self.dir);
        Command::new("cp").arg("-a").arg(from).arg(to).stderr(Stdio::null()).status().map(drop)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.kill_all();
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        let _ = ip(&["netns", "del", &self.namespace]);
    }
}

fn keeper(namespace: &str, mounted_over: &Path, dir: &Path) -> io::Result<Child> {
    // Slave: the removal of another namespace's name is also seen here, so that nothing keeps that namespace.
    let enter = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", KEEPER, "sh"];
    let network = format!("--net=/run/netns/{namespace}");
    let mut command = Command::new("nsenter");
    command.arg(network).args(enter).arg(mounted_over).arg(dir);
    // A group of its own: Ctrl-C is for the program that drops the hosts.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Returns the identifier of the network namespace of a process; `None` if the process has ended.
pub(crate) fn network_of(pid: i32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/ns/net")).ok()?.to_string_lossy().into_owned())
}

/// Returns true if a process has not ended. One that has ended may not be reaped yet.
pub(crate) fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name in parentheses may contain any byte.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
