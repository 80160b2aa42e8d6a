//! A second host for tests: a network namespace of its own, connected to this one by a pair of virtual Ethernet devices
//! (`veth(4)`).
//!
//! It needs root and `ip` of iproute2; without them, a test reports this and is skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory in which the system keeps the names of namespaces.
const NAMES: &str = "/run/netns";
/// Prefix of the namespaces that are created here; the process id follows.
const PREFIX: &str = "taskd-test-";
/// Number of address pairs in 198.18.0.0/15, which no host on any network uses (RFC 2544).
const PAIRS: u32 = 1 << 15;

/// A simulated second host for tests. It reaches this host at the address [`here`](OtherHost::here) and at no other
/// address. The second host is removed on drop, also if a test fails.
#[derive(Debug)]
pub struct OtherHost {
    name: String,
    device: String,
    here: Ipv4Addr,
}

impl OtherHost {
    /// Creates a simulated second host. Returns `None` if this machine does not allow it; then prints that the test
    /// with the name `test` is skipped.
    #[must_use]
    pub fn join(test: &str) -> Option<OtherHost> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("{test} is skipped: only root can make a network namespace");
            return None;
        }
        remove_those_of_tests_that_were_killed();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        // The name contains the process id, so that tests that run at the same time use different names.
        let (name, device) = (format!("{PREFIX}{process}-{number}"), format!("tk{process}-{number}"));
        let (here, there) = (0..PAIRS).map(|n| pair(process.wrapping_mul(16) + number + n)).find(is_free)?;
        let host = OtherHost { name, device, here };
        match host.make(there) {
            Ok(()) => Some(host),
            Err(error) => {
                eprintln!("{test} is skipped: no network namespace can be made with ip of iproute2: {error}");
                None
            }
        }
    }

    fn make(&self, there: Ipv4Addr) -> io::Result<()> {
        let OtherHost { name, device, here } = self;
        let other_end = format!("{device}p");
        ip(&["netns", "add", name])?;
        ip(&["link", "add", device, "type", "veth", "peer", "name", &other_end, "netns", name])?;
        ip(&["addr", "add", &format!("{here}/30"), "dev", device])?;
        ip(&["link", "set", device, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{there}/30"), "dev", &other_end])?;
        ip(&["-n", name, "link", "set", &other_end, "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])
    }

    /// Returns this host's address, as seen from the other host.
    #[must_use]
    pub const fn here(&self) -> Ipv4Addr {
        self.here
    }

    /// Returns a command that runs a program on the second host, for at most a minute. The program sees the files,
    /// users and processes of this host.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("timeout");
        command.args(["60", "ip", "netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        remove(&self.name, &self.device);
    }
}

/// Removes the network link, then the namespace. A process that is left in the namespace keeps it alive, but has no
/// network from then on.
fn remove(name: &str, device: &str) {
    let _ = ip(&["link", "del", device]); // otherwise it is removed with the namespace
    let _ = ip(&["netns", "del", name]);
}

/// Removes the network namespaces of killed tests, which never dropped theirs.
fn remove_those_of_tests_that_were_killed() {
    for entry in std::fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((process, number)) = name.strip_prefix(PREFIX).and_then(|of| of.split_once('-')) else { continue };
        if !Path::new("/proc").join(process).exists() {
            remove(&name, &format!("tk{process}-{number}"));
        }
    }
}

/// Returns the two host addresses of the test network with this number, which has four addresses (`/30`).
fn pair(number: u32) -> (Ipv4Addr, Ipv4Addr) {
    let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number % PAIRS * 4;
    (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2))
}

/// Returns true if no other test on this host uses this pair of addresses.
fn is_free((here, _): &(Ipv4Addr, Ipv4Addr)) -> bool {
    TcpListener::bind((*here, 0)).is_err()
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_host_reaches_this_one_at_one_address_until_it_is_dropped() {
        let Some(other) = OtherHost::join("another_host_reaches_this_one") else { return };
        let second = OtherHost::join("another_host_reaches_this_one").unwrap();
        assert_ne!(other.here(), second.here());
        let listener = TcpListener::bind((other.here(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let dials = |host: &OtherHost, address: Ipv4Addr| {
            let dial = format!("exec 3<>/dev/tcp/{address}/{port}");
            host.command("timeout").args(["2", "bash", "-c", &dial]).output().unwrap().status.success()
        };
        assert!(dials(&other, other.here()) && !dials(&other, Ipv4Addr::LOCALHOST) && !dials(&second, other.here()));
        let (name, here) = (other.name.clone(), other.here());
        drop(other);
        assert!(!Path::new(NAMES).join(name).exists() && TcpListener::bind((here, 0)).is_err());
    }
}
