//! Hosts for tests and benchmarks: each is a network namespace with an address of its own on one bridge, a mount
//! namespace in which it sees only its own files and the shared ones, and a share of the processors.
//!
//! Needs Linux, root, and `ip`, `nsenter` and `unshare`. Nothing of this machine's own network changes: the bridge is
//! in a namespace, too. All hosts see the processes of this machine, and its clocks.

mod host;
mod leftovers;
mod network;
mod program;
mod quota;
#[cfg(test)]
mod tests;

pub use host::Host;
pub(crate) use host::{is_alive, network_of};
pub use program::Program;

use crate::hosts::network::ip;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Prefix of every namespace, directory and control group that is created here; the process id and a number follow.
const PREFIX: &str = "taskd-hosts-";
/// Name of the second switch.
const LEAF: &str = "leaf";
/// Name of its link to the first one.
const UPLINK: &str = "uplink";
/// Maximum number of hosts on one bridge: their addresses are 10.77.0.1 to 10.77.0.250.
pub const HOSTS_MAX: usize = 250;

/// Hosts on one bridge. They are removed on drop, with their processes and files.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    names: Names,
    /// Directory into which the files are moved on drop, if they are kept.
    kept: Option<PathBuf>,
    /// What this machine does not provide, in sentences.
    notes: Vec<String>,
}

/// The names of one set of hosts on this machine.
#[derive(Debug)]
struct Names {
    prefix: String,
}

impl Names {
    fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }

    fn host(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn root(&self) -> PathBuf {
        std::env::temp_dir().join(&self.prefix)
    }
}

/// Reason why this machine cannot have hosts in namespaces, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

impl Hosts {
    /// Creates `count` hosts, named `h1`, `h2` and so on, each with at most `cpus` processors. Removes hosts that
    /// killed programs have left.
    ///
    /// # Errors
    /// Returns [`Unavailable`] if this machine does not allow it.
    pub fn create(count: usize, cpus: f64) -> Result<Hosts, Unavailable> {
        if !rustix::process::geteuid().is_root() {
            return Err(Unavailable("only root can make network namespaces".into()));
        }
        if count > HOSTS_MAX {
            return Err(Unavailable(format!("{count} hosts are more than {HOSTS_MAX}, which is the limit")));
        }
        leftovers::remove_those_of_killed_programs();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = Names { prefix: format!("{PREFIX}{}-{number}", std::process::id()) };
        let mut hosts = Hosts { hosts: Vec::new(), names, kept: None, notes: Vec::new() };
        hosts.make(count, cpus).map_err(|error| {
            Unavailable(format!(
                "no host can be made with ip of iproute2, and nsenter and unshare of util-linux: {error}"
            ))
        })?;
        Ok(hosts)
    }

    fn make(&mut self, count: usize, cpus: f64) -> io::Result<()> {
        let switch = self.names.switch();
        for dir in [self.shared(), self.logs(), self.names.root().join("own")] {
            std::fs::create_dir_all(dir)?;
        }
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "bridge", "up"])?;
        for number in 1..=count {
            let name = format!("h{number}");
            let namespace = self.names.host(&name);
            let address = network::address(number);
            let mut host = Host::new(&name, &namespace, &switch, address, &self.names.root())?;
            if let Err(why) = host.limit_processors(cpus) {
                let note = format!("the hosts share the processors without limits: {why}");
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
            self.hosts.push(host);
        }
        Ok(())
    }

    /// Moves hosts to a second switch, which has one link to the first.
    ///
    /// # Errors
    /// There is no such host, or the switch exists already.
    pub fn put_behind_switch(&self, hosts: &[&str]) -> io::Result<()> {
        let switch = self.names.switch();
        let link = |arguments: &[&str]| ip(&[&["-n", &switch, "link"], arguments].concat()).map(drop);
        link(&["add", LEAF, "type", "bridge"])?;
        link(&["add", UPLINK, "type", "veth", "peer", "name", "downlink"])?;
        link(&["set", "downlink", "master", "bridge", "up"])?;
        link(&["set", UPLINK, "master", LEAF, "up"])?;
        for host in hosts {
            link(&["set", self.get(host)?.name(), "master", LEAF])?;
        }
        link(&["set", LEAF, "up"])
    }

    /// Takes the link of the second switch down, or up again.
    ///
    /// # Errors
    /// No host was put behind a second switch.
    pub fn set_switch_link(&self, is_up: bool) -> io::Result<()> {
        let to = if is_up { "up" } else { "down" };
        ip(&["-n", &self.names.switch(), "link", "set", UPLINK, to]).map(drop)
    }

    /// Returns the hosts.
    #[must_use]
    pub fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns the host with this name.
    ///
    /// # Errors
    /// There is no host with this name.
    pub fn get(&self, name: &str) -> io::Result<&Host> {
        let none = || io::Error::other(format!("there is no host {name}"));
        self.hosts.iter().find(|host| host.name() == name).ok_or_else(none)
    }

    /// Returns what this machine does not provide, in sentences.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the directory that all hosts share.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        self.names.root().join("shared")
    }

    /// Returns the directory of the output of the programs. It is outside the hosts.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.names.root().join("logs")
    }

    /// Keeps the files after the hosts are removed: the shared ones, the output, and a copy of each host's own files as
    /// they are now. Returns their directory.
    pub fn keep(&mut self) -> PathBuf {
        let root = self.names.root();
        for host in &self.hosts {
            let _ = host.copy_files(&root.join("own")); // what can be copied
        }
        // Under another prefix: the next program would remove it as a leftover.
        let kept = self.names.prefix.replacen(PREFIX, "taskd-kept-", 1);
        self.kept.insert(root.with_file_name(kept)).clone()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.hosts.clear(); // ends their processes
        let root = self.names.root();
        if let Some(kept) = &self.kept {
            let _ = std::fs::rename(&root, kept);
        }
        remove(&self.names.switch(), &root);
    }
}

/// Removes the bridge and the files.
fn remove(switch: &str, root: &Path) {
    let _ = ip(&["netns", "del", switch]);
    let _ = std::fs::remove_dir_all(root);
}
