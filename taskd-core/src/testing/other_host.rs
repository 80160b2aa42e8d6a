//! Another host for tests: a network namespace of its own, joined to this one by a pair of virtual Ethernet devices (`veth(4)`).
//!
//! It needs root and `ip` of iproute2; without, a test says so and is skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the system keeps the names of namespaces.
const NAMES: &str = "/run/netns";
/// How those begin that are made here; the process's id follows.
const PREFIX: &str = "taskd-test-";
/// Pairs of addresses in 198.18.0.0/15, which no host on any network has (RFC 2544).
const PAIRS: u32 = 1 << 15;

/// A host beside this one, which reaches it at [`here`](OtherHost::here) and at no other address. It is gone when this is dropped,
/// also where a test fails.
#[derive(Debug)]
pub struct OtherHost {
    name: String,
    device: String,
    here: Ipv4Addr,
}

impl OtherHost {
    /// Makes one. `None`: it cannot be made here, which is said for the test of this name.
    #[must_use]
    pub fn join(test: &str) -> Option<OtherHost> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("{test} is skipped: only root can make a network namespace");
            return None;
        }
        remove_those_of_tests_that_were_killed();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        // Named after the process, so that tests that run at the same time have different ones.
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

    /// This host's address, as the other one reaches it.
    #[must_use]
    pub const fn here(&self) -> Ipv4Addr {
        self.here
    }

    /// A program on the other host, for a minute at most. Files are those of this host, users and processes as well.
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

/// The link first: a process that is left in the namespace keeps that, and is alone there from now on.
fn remove(name: &str, device: &str) {
    let _ = ip(&["link", "del", device]); // it goes with the namespace otherwise
    let _ = ip(&["netns", "del", name]);
}

/// A test that is killed drops nothing.
fn remove_those_of_tests_that_were_killed() {
    for entry in std::fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((process, number)) = name.strip_prefix(PREFIX).and_then(|of| of.split_once('-')) else { continue };
        if !Path::new("/proc").join(process).exists() {
            remove(&name, &format!("tk{process}-{number}"));
        }
    }
}

/// The two addresses of a network of four.
fn pair(number: u32) -> (Ipv4Addr, Ipv4Addr) {
    let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number % PAIRS * 4;
    (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2))
}

/// Whether no other test has this pair.
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
